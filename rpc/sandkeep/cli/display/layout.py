"""Text in columns of a terminal. Pure: text and a width in, text out.

Widths are the terminal's: a Chinese character takes two columns, a combining accent none. Nothing here is right for
every font; it is right where terminals agree.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sandkeep.protocol.printable import plain

__all__ = [
    "GAP", "LEAST_OF_ID", "Column", "cut", "cut_id", "cut_middle", "fit", "pad", "plain", "total_width", "width",
    "wrap",
]  # fmt: skip

GAP: Final = 2
LEAST_OF_ID: Final = 8
"""Columns of an id that is cut to its kind and its end."""


class Column(NamedTuple):
    """A column of a table. On a narrow terminal the columns with a `least` give way, the last one first.

    They shrink to `least` columns. If that is not enough, those that are `spare` are left out, again the last one
    first, and the room that is left then goes to the spare ones that stay. `shorten` shortens a cell. A column without
    `least` is never cut: users copy it from the screen. `colour` chooses a colour for a cell, or none. The last column
    may be of sentences: it `wraps`.
    """

    title: str
    least: int | None = None
    spare: bool = False
    shorten: Callable[[str, int], str] | None = None
    colour: Callable[[str], str | None] | None = None
    wraps: bool = False


def width(text: str) -> int:
    """Return the number of terminal columns that `text` takes."""
    return len(text) if text.isascii() else sum(map(_width_of, text))


def _width_of(character: str) -> int:
    from unicodedata import category, east_asian_width

    if category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def pad(text: str, columns: int) -> str:
    """`text` with blanks after it, so that it takes so many columns."""
    return text + " " * (columns - width(text))


def cut(text: str, columns: int | None) -> str:
    """`text` in at most so many columns, the last an ellipsis when something is missing."""
    if columns is None or width(text) <= columns:
        return text
    return _beginning(text, columns - 1) + "…"


def cut_middle(text: str, columns: int) -> str:
    """`text` in at most so many columns, with an ellipsis in its middle: ids differ at their ends."""
    if width(text) <= columns:
        return text
    end = _beginning(text[::-1], (columns - 1) // 2)[::-1]
    return _beginning(text, columns - 1 - width(end)) + "…" + end


def cut_id(text: str, columns: int) -> str:
    """Return an id in at most so many columns: of its kind, as far as there is room, and its end, ``img…t691``. A name
    instead of an id loses its middle.
    """
    if width(text) <= columns or text[3:4] != "_":
        return cut_middle(text, columns)
    kind = text[:3] if columns >= LEAST_OF_ID else ""
    return kind + "…" + _beginning(text[::-1], columns - 1 - width(kind))[::-1]


def _beginning(text: str, columns: int) -> str:
    """As much of the beginning as there is room for."""
    if text.isascii():
        return text[: max(0, columns)]
    taken = 0
    for index, character in enumerate(text):
        taken += _width_of(character)
        if taken > columns:
            return text[:index]
    return text


def wrap(text: str, columns: int | None) -> list[str]:
    """`text` in lines of at most so many columns. A word that is longer has a line of its own, and is not cut."""
    if columns is None or width(text) <= columns:
        return [text]
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and width(lines[-1]) + 1 + width(word) > columns:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None) -> list[tuple[Column, int, int]]:
    """Choose the columns that fit into so much room: each with its index in a row, and its width."""
    shown = [
        (column, index, max([width(column.title), *(width(row[index]) for row in rows)]))
        for index, column in enumerate(columns)
    ]
    if room is None:
        return shown
    natural = [wanted for _, _, wanted in shown]
    for place in reversed(range(len(shown))):
        column, index, wanted = shown[place]
        if column.least is not None:
            shown[place] = column, index, max(min(wanted, column.least), wanted - max(0, total_width(shown) - room))
    for place in reversed(range(len(shown))):
        if shown[place][0].spare and total_width(shown) > room:
            del shown[place]
    _share(shown, natural, room)
    return shown


def _share(shown: list[tuple[Column, int, int]], natural: Sequence[int], room: int) -> None:
    """Share what the other columns leave among those that can be spared: first those that need the least to be whole,
    such as names beside labels that are cut. The others stay as narrow, so that a table that is drawn again and again
    does not move.
    """
    spare = [place for place, (column, _, _) in enumerate(shown) if column.spare]
    for place in spare:
        column, index, wanted = shown[place]
        shown[place] = column, index, min(wanted, column.least or wanted)
    by_need = sorted(spare, key=lambda place: natural[shown[place][1]] - shown[place][2])
    for places, is_whole in ((by_need, True), (spare, False)):
        for place in places:
            column, index, wanted = shown[place]
            left = max(0, room - total_width(shown))
            if not is_whole or natural[index] - wanted <= left:
                shown[place] = column, index, min(natural[index], wanted + left)


def total_width(shown: Sequence[tuple[Column, int, int]]) -> int:
    """Return the total width of the columns, with the gaps between them."""
    return sum(wanted for _, _, wanted in shown) + GAP * (len(shown) - 1)
