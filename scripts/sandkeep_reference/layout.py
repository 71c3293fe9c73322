"""Markdown in lines that a person reads as text, too: at most 100 characters."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

WIDTH: Final = 100
_GLUE: Final = "\x00"
"""Stands for a space at which a line must not be broken."""


def wrap(text: str, *, first: str = "", rest: str = "") -> list[str]:
    """Break a paragraph into lines, but not within code that is short. `first` and `rest` begin the lines."""
    glued = re.sub(r"`[^`]{1,60}`", lambda code: code[0].replace(" ", _GLUE), text)
    lines = textwrap.wrap(
        glued, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_GLUE, " ") for line in lines]


def item(text: str) -> list[str]:
    """Lay out an item of a list."""
    return wrap(text, first="- ", rest="  ")


def paragraphs(text: str) -> list[str]:
    """Lay out paragraphs that blank lines separate, as those of a docstring."""
    laid: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        laid += ["", *wrap(" ".join(paragraph.split()))]
    return laid[1:]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lay out a table; answers nothing if a row of it is longer than a line may be."""
    lines = [_row(head), "|" + "---|" * len(head), *(_row([cell(text) for text in row]) for row in rows)]
    return lines if max(map(len, lines)) <= WIDTH else []


def anchor(heading: str) -> str:
    """Return the anchor of a heading that is a name, as GitHub makes it."""
    return heading.lower().replace(".", "")


def cell(text: str) -> str:
    """Escape a cell's text."""
    return re.sub(r"(?<!\\)\|", r"\\|", text).replace("\n", " ")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
