"""What a bench answers, and how it is printed."""

import sys
from collections.abc import Sequence
from typing import NamedTuple


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


def show(rows: Sequence[Row]) -> None:
    """Print the rows as a table that is read on a terminal and pasted into Markdown."""
    table = [["case", "figure", "floor", "ratio", "target", "kept"], *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    table.insert(1, ["-" * width for width in widths])
    for line in table:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        sys.stdout.write("| " + " | ".join(padded) + " |\n")
