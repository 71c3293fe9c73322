"""docs/reference/stream.md names every path, query and message that there is, with its fields, and no others."""

import re
import typing
from pathlib import Path
from typing import Any

import pytest

from sandkeep.protocol import frames

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "stream.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no section {title}"
    return found[1]


def first_column(text: str) -> set[str]:
    rows = re.findall(r"^\| (`[^|]*) \|", text, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_path_has_a_section() -> None:
    assert set(re.findall(r"^## `(.*)`$", TEXT, flags=re.MULTILINE)) == set(frames.PATHS)


@pytest.mark.parametrize("path", frames.PATHS)
def test_every_query_is_there(path: str) -> None:
    assert first_column(section(f"`{path}`")) == set(frames.PATHS[path].__struct_fields__)


@pytest.mark.parametrize(
    ("title", "union"),
    [("Messages from the server", frames.FromServer), ("Messages from the client", frames.FromClient)],
)
def test_every_message_is_there_with_its_fields(title: str, union: Any) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) ?\|$", section(title), flags=re.MULTILINE))
    assert set(rows) == {message.__struct_config__.tag for message in typing.get_args(union)}
    for message in typing.get_args(union):
        told = rows[str(message.__struct_config__.tag)]
        assert [name for name in message.__struct_fields__ if f"`{name}`" not in told] == []


def test_streams_and_header_are_as_told() -> None:
    assert "(1 stdout, 2 stderr, 3 a terminal)" in " ".join(TEXT.split())
    assert (frames.STDOUT, frames.STDERR, frames.TERMINAL, frames.HEADER_BYTES) == (1, 2, 3, 9)
    assert f"`{frames.PROTOCOL}`" in TEXT
    assert frames.TOKEN_PROTOCOL in TEXT
