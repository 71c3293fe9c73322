"""What a bench answers, and how it is printed."""

import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

HEAD: Final = ("case", "figure", "floor", "ratio", "target", "kept")
WIDTHS: Final = (33, 19, 20, 6, 8, 4)
"""Of the columns in characters; with two spaces between them a line has at most 100."""


class Row(NamedTuple):
    """One case beside its floor. `figure` and `floor` are for people, with their units; `ratio` is figure to floor,
    the way round that `target` says; `ok` tells whether the target was met."""

    case: str
    figure: str
    floor: str
    ratio: float | str
    target: str
    ok: bool


def cells(row: Row) -> list[str]:
    """The row as text."""
    ratio = f"{row.ratio:.2f}" if isinstance(row.ratio, float) else str(row.ratio)
    return [row.case, row.figure, row.floor, ratio, row.target, "yes" if row.ok else "NO"]


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Lay the rows out as a table of plain text, whose cells are wrapped."""
    yield from _lines(HEAD)
    yield from _lines(["-" * width for width in WIDTHS])
    for row in rows:
        yield from _lines(cells(row))


def _lines(texts: Sequence[str]) -> Iterator[str]:
    wrapped = [textwrap.wrap(text, width, subsequent_indent="  ") for text, width in zip(texts, WIDTHS, strict=True)]
    for parts in zip_longest(*wrapped, fillvalue=""):
        yield "  ".join(part.ljust(width) for part, width in zip(parts, WIDTHS, strict=True)).rstrip()


def show(rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    sys.stdout.writelines(f"{line}\n" for line in lines(rows))
