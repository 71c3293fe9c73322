"""The tutorial, done from its first line to its last by somebody at a real terminal, who compares what is seen."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.documents import Session, agrees, directory, steps
from tests.support.screen import Screen

TUTORIAL = "docs/tutorial/your-first-sandbox.md"


@pytest.fixture
def place(places: str) -> Iterator[Path]:
    with directory(places) as made:
        yield made


@pytest.fixture
def reader(place: Path) -> Iterator[Screen]:
    """A terminal with bash."""
    env = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "HOME": str(place)}
    screen = Screen(place, env, rows=50, cols=100)
    screen.enter(f"cd {place} && exec bash --norc")
    screen.until_prompt()
    yield screen
    screen.close()


@pytest.mark.needs("bwrap", "tmux")
def test_the_tutorial(reader: Screen, place: Path) -> None:
    first, *rest = steps(TUTORIAL)
    assert first.text == "PATH=$PWD/.venv/bin:$PATH"  # where the command is differs here
    session = Session(reader, place)
    for step in rest:
        session.do(step)


@pytest.mark.parametrize(
    ("shown", "seen", "same"),
    [
        (["sbx_01m7yz4kaa8tf6mn2sgzf5g0bb  running  1s"], ["sbx_01m7yz4kaa8tf6mn2sgzf5g0ba   running  12m"], True),
        (["running"], ["exited 1"], False),
        (["one", "…"], ["one", "two", "three"], True),
        (["one", "…", "three"], ["one", "two"], False),
        (["one"], ["one", "two"], False),
        (["one", "two"], ["one"], False),
    ],
)
def test_what_counts_as_the_same(shown: list[str], seen: list[str], same: bool) -> None:
    assert agrees(shown, seen) is same
