"""How answers are shown: tables and facts for people, JSON for programs.

On a terminal, lines are cut to its width; piped, they are whole. Text that came from a sandbox or a caller is shown
without its control characters, so that a name cannot drive the reader's terminal.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

WIDTH: Final = 80
_CONTROL: Final = dict.fromkeys((*range(32), *range(127, 160)), "�") | {10: "⏎", 9: " ", 0x2028: "⏎", 0x2029: "⏎"}
_COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is, or None when it is none: then nothing is cut."""
    if not sys.stdout.isatty():
        return None
    try:
        return max(40, os.get_terminal_size(sys.stdout.fileno()).columns)
    except OSError:
        return WIDTH


def has_colour() -> bool:
    """Whether stdout may be coloured: a terminal that is not dumb, and no NO_COLOR (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """`text` in a colour, where colours may be."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if has_colour() else text


def plain(text: object) -> str:
    """One line without control characters."""
    return str(text).translate(_CONTROL)


def cut(text: str, width: int | None) -> str:
    """`text` in at most `width` columns, the last an ellipsis when something is missing."""
    return text if width is None or len(text) <= width else text[: max(0, width - 1)] + "…"


def json_line(value: Any) -> None:
    """Print one JSON document on one line."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.flush()


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headers; the last column gives way when the terminal is narrow."""
    cells = [list(headers), *([plain(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers) - 1)]
    for index, row in enumerate(cells):
        line = "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        line = cut(line, terminal_width()).rstrip()
        print(paint(line, "bold") if index == 0 else line)


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line; empty values are left out."""
    shown = [(name, plain(value)) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{paint(name.ljust(width), 'dim')}  {value}")


def note(text: str) -> None:
    """Say something that is not the answer."""
    print(text, file=sys.stderr, flush=True)


def size(count: int | None) -> str:
    """Bytes in at most six columns: ``0 B``, ``1.5 KB``, ``512 MB`` (powers of 1024)."""
    if count is None:
        return "-"
    number, unit = float(count), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1024, larger
    return f"{number:.1f} {unit}" if unit != "B" and number < 10 else f"{number:.0f} {unit}"


def span(seconds: float) -> str:
    """A length of time in at most four columns: ``3s``, ``12m``, ``5h``, ``8d``."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:.0f}s"


def age(timestamp: str) -> str:
    """How long ago an RFC 3339 time was."""
    import time

    return span(time.time() - moment(timestamp))


def moment(timestamp: str) -> float:
    """Seconds since 1970 of an RFC 3339 time."""
    from datetime import datetime

    return datetime.fromisoformat(timestamp).timestamp()
