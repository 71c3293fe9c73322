"""Output of answers: tables and facts for people, JSON for programs.

On a terminal, lines are made to fit its width; piped, they are whole. Text that came from a sandbox or a caller is
shown without its control characters, so that a name cannot drive the reader's terminal.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Final

from sandkeep.cli.display.layout import GAP, LEAST_OF_ID, Column, cut, cut_id, cut_middle, fit, plain, total_width, wrap
from sandkeep.cli.display.layout import width as columns_of
from sandkeep.protocol.amounts import of_total, size
from sandkeep.protocol.printable import document, lines

__all__ = [
    "Column", "age", "colour", "cut", "cut_middle", "echo", "facts", "has_colour", "identifier", "json_line", "moment",
    "note", "of_total", "paint", "plain", "size", "span", "status", "status_colour", "table", "table_lines",
    "terminal_width", "when", "wrap",
]  # fmt: skip

WIDTH: Final = 80
_COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_KEPT: Final = re.compile(rf"(\x1b\[(?:0|{'|'.join(_COLOURS.values())})m|\r(?=(?:\x1b\[0m)?(?:\n|\Z)))")
_STATUS: Final = {
    "running": "green", "ready": "green", "creating": "yellow", "starting": "yellow", "stopping": "yellow",
    "suspending": "yellow", "suspended": "yellow", "resuming": "yellow", "conflicted": "yellow", "resolving": "yellow",
    "removing": "yellow", "failed": "red", "lost": "red", "stopped": "dim", "expired": "dim",
    "terminated": "dim", "removed": "dim", "exited 0": "dim",
    "out of memory": "red",
}  # fmt: skip

colour = "auto"
"""The value of ``--color``: ``auto``, ``always`` or ``never``."""


def terminal_width(stream: IO[str] | None = None) -> int | None:
    """Columns of the terminal that `stream` is, stdout by default; None when it is none: then nothing is cut."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return None
    try:
        return max(40, os.get_terminal_size(stream.fileno()).columns or WIDTH)
    except OSError:
        return WIDTH


def has_colour() -> bool:
    """Return True if stdout may be coloured, by ``--color``, TERM and NO_COLOR (https://no-color.org)."""
    if colour != "auto":
        return colour == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def paint(text: str, colour: str | None) -> str:
    """`text` in a colour, where colours may be."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if colour and text and has_colour() else text


def status_colour(text: str) -> str | None:
    """Return the colour of a status: green is running, yellow in transition, red an error, dim ended."""
    return _STATUS.get(text) or ("red" if text.startswith("exited ") else None)


def status(title: str = "STATUS") -> Column:
    """A column of statuses."""
    return Column(title, colour=status_colour)


def identifier(title: str, least: int = LEAST_OF_ID) -> Column:
    """A column of ids that are there for orientation, and may lose their middles."""
    return Column(title, least=least, shorten=cut_id, spare=True)


def echo(text: object = "", *, end: str = "\n", flush: bool = False) -> None:
    """Print text on stdout. Control characters are replaced, but for newlines, tabs, the carriage returns of a DOS
    file, and the colours of `paint`.
    """
    parts = _KEPT.split(str(text))
    parts[::2] = map(lines, parts[::2])
    print("".join(parts), end=end, flush=flush)  # noqa: T201  # the one place that does


def json_line(value: Any) -> None:
    """Print one JSON document on one line."""
    sys.stdout.buffer.write(document(value) + b"\n")
    sys.stdout.flush()


def table(columns: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under titles, made to fit the terminal. A last column that is only a title may be cut anywhere."""
    for line in table_lines(columns, rows, terminal_width()):
        echo(line)


def table_lines(columns: Sequence[str | Column], rows: Iterable[Sequence[object]], room: int | None) -> Iterator[str]:
    """Return the table as lines for so much room.

    If even the columns that cannot be cut do not fit, the first column becomes headings over the others, and if need be
    the second one, too.
    """
    *first, last = columns
    known = [column if isinstance(column, Column) else Column(column) for column in first]
    known.append(last if isinstance(last, Column) else Column(last, least=12))
    cells = [[plain(cell) for cell in row] for row in rows]
    shown = fit(known, cells, room)
    if room is None or total_width(shown) <= room:
        return iter([_titles(shown), *(_line(shown, line) for row in cells for line in _wrapped(shown[-1], row))])
    narrow = [*known[:-1], known[-1]._replace(least=known[-1].least and 1)]
    for depth, columns in ((d, some) for d in range(1, max(2, len(known) - 1)) for some in (known, narrow)):
        shown = fit(columns[depth:], [row[depth:] for row in cells], room - depth * GAP)
        if total_width(shown) <= room - depth * GAP:
            break
    return _groups(known[:depth], shown, cells)


def _wrapped(last: tuple[Column, int, int], row: list[str]) -> Iterator[list[str]]:
    """Yield a row, in several lines if its last cell wraps."""
    column, index, wanted = last
    first, *more = wrap(row[index], wanted) if column.wraps else [row[index]]
    yield [*row[:index], first]
    for line in more:
        yield [*[""] * index, line]


def _groups(headings: list[Column], shown: list[tuple[Column, int, int]], rows: list[list[str]]) -> Iterator[str]:
    """The first cells of rows once for all that follow each other, each below the one before, and the others below."""
    depth = len(headings)
    for level, column in enumerate(headings):
        yield " " * GAP * level + paint(column.title, "bold")
    yield " " * GAP * depth + _titles(shown)
    above: list[str] = []
    for row in rows:
        for level in range(depth):
            if row[: level + 1] != above[: level + 1]:
                yield " " * GAP * level + row[level]
        yield " " * GAP * depth + _line(shown, row[depth:])
        above = row[:depth]


def _titles(shown: list[tuple[Column, int, int]]) -> str:
    return (" " * GAP).join(_padded(cut(column.title, wanted), wanted, "bold") for column, _, wanted in shown).rstrip()


def _line(shown: list[tuple[Column, int, int]], row: list[str]) -> str:
    return (
        (" " * GAP)
        .join(
            _padded((column.shorten or cut)(row[index], wanted), wanted, column.colour and column.colour(row[index]))
            for column, index, wanted in shown
        )
        .rstrip()
    )


def _padded(text: str, wanted: int, colour: str | None) -> str:
    return paint(text, colour) + " " * (wanted - columns_of(text))


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line; empty values are left out, and a name that repeats is shown once."""
    shown = [(name, plain(value)) for name, value in pairs if value not in (None, "", [], {})]
    indent = max((len(name) for name, _ in shown), default=0) + GAP
    room = terminal_width()
    before = ""
    for name, value in shown:
        label = "" if name == before else name
        colour = status_colour(value) if name == "status" else None
        for line in wrap(value, room and room - indent):
            echo(f"{paint(label, 'dim')}{' ' * (indent - len(label))}{paint(line, colour)}")
            label = ""
        before = name


def note(text: str, end: str = "\n") -> None:
    """Print a message to stderr, without control characters. Errors, such as a closed terminal, are ignored."""
    with contextlib.suppress(OSError):
        print(lines(text), end=end, file=sys.stderr, flush=True)  # noqa: T201  # the one place that does


LIMITS_MET: Final = {
    "disk": "disk limit", "memory": "out of memory", "pids": "process limit", "time": "time limit",
}  # fmt: skip
"""Reason for the end of a process, by the limit that it met."""


def span(seconds: float) -> str:
    """A length of time in at most four columns: ``3s``, ``12m``, ``5h``, ``8d``."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:.0f}s"


def age(timestamp: str) -> str:
    """Return the time since an RFC 3339 time, as text."""
    import time

    return span(time.time() - moment(timestamp))


def when(timestamp: str | None) -> str:
    """A time, and how long ago that was."""
    return f"{timestamp}, {age(timestamp)} ago" if timestamp else ""


def moment(timestamp: str) -> float:
    """Seconds since 1970 of an RFC 3339 time."""
    from datetime import datetime

    return datetime.fromisoformat(timestamp).timestamp()
