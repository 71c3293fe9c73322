"""Conflicts of merges as people read them."""

from collections.abc import Callable, Iterator

from sandkeep.cli.display.layout import pad, plain, width
from sandkeep.cli.display.output import paint, size
from sandkeep.cli.display.paths import content, quote
from sandkeep.model import Conflict, ConflictHunk, ConflictSide, Merged

Brush = Callable[[str, str | None], str]
"""Colours a text, or leaves it as it is: `paint` for stdout."""


def unpainted(text: str, _: str | None) -> str:
    """Leave a text without colour: a `Brush`."""
    return text


def conflict_lines(conflict: Conflict, most: int | None = None, brush: Brush = paint) -> Iterator[str]:
    """Yield a conflict: its path and kind, the version of each branch, and the lines that differ, at most `most` of
    each version.
    """
    yield f"{brush(quote(conflict.path, conflict.path_bytes), 'bold')}  ({plain(conflict.kind)})"
    columns = max(width(plain(side.branch)) for side in conflict.sides) if conflict.sides else 0
    for side in conflict.sides:
        yield f"  {brush(pad(plain(side.branch), columns), 'cyan')}  {_version(side)}"
    for hunk in conflict.hunks:
        yield f"  {brush(f'line {hunk.start}', 'dim')}"
        yield from _hunk_lines(hunk, columns, most, brush)
    if conflict.cut:
        yield f"  {brush('(more, which is not shown)', 'dim')}"


def dropped_lines(merged: Merged, most: int) -> Iterator[str]:
    """Yield the changes that a merge drops, one line for each of the first paths."""
    by_path: dict[str, list[str]] = {}
    for each in merged.dropped:
        count = f" ({counted(each.hunks, 'hunk')}, {counted(each.lines, 'line')})" if each.hunks else ""
        by_path.setdefault(quote(each.path, each.path_bytes), []).append(plain(each.branch) + count)
    for path, branches in list(by_path.items())[:most]:
        yield f"dropped  {path}: {', '.join(branches)}"
    if len(by_path) > most or merged.dropped_count > len(merged.dropped):
        yield f"(changes dropped in all: {merged.dropped_count})"


def counted(count: int, noun: str) -> str:
    """Return a number of things."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _version(side: ConflictSide) -> str:
    if side.kind is None:
        return "nothing"
    if side.kind == "symlink":
        return f"symlink to {quote(side.target or '')}"
    if side.kind == "file":
        return f"file, {size(side.size_bytes)}, mode {side.mode:o}"
    return f"{plain(side.kind)}, mode {side.mode:o}"


def _hunk_lines(hunk: ConflictHunk, columns: int, most: int | None, brush: Brush) -> Iterator[str]:
    for branch, lines in (("base", hunk.base), *hunk.versions.items()):
        label = pad(plain(branch), columns)
        for line in lines[:most]:
            yield f"    {brush(label, 'cyan')} | {content(line.removesuffix(chr(10))).rstrip(chr(13))}"
            label = " " * columns
        if not lines:
            yield f"    {brush(label, 'cyan')} | {brush('(no lines)', 'dim')}"
        elif most is not None and len(lines) > most:
            yield f"    {label} | {brush(f'({len(lines) - most} more lines)', 'dim')}"
