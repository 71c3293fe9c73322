"""The tutorial, done from its first line to its last by somebody at a real terminal, who compares what is seen."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandkeep.demo import traces
from sandkeep.demo.house import remove_tree
from tests.documents import Session, agrees, steps
from tests.screen import Screen

TUTORIAL = "docs/tutorial/your-first-sandbox.md"


@pytest.fixture
def reader(places: str) -> Iterator[Screen]:
    """A terminal with bash, in a directory of its own."""
    place = Path(tempfile.mkdtemp(dir=places))
    env = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "HOME": str(place)}
    screen = Screen(place, env, rows=50, cols=100)
    screen.enter(f"cd {place} && exec bash --norc")
    screen.until_prompt()
    yield screen
    screen.close()
    for pid in traces.processes(str(place)):  # there are none, unless the reader got stuck
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    remove_tree(str(place))


@pytest.mark.needs("bwrap", "tmux")
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_tutorial(reader: Screen, places: str) -> None:
    first, *rest = steps(TUTORIAL)
    assert first.text == "PATH=$PWD/.venv/bin:$PATH"  # where the command is differs here
    session = Session(reader)
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
