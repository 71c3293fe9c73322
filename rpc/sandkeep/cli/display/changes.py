"""Changes of files as people read them: one line each, statistics, and coloured patches."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sandkeep.cli.display.layout import cut_middle, pad, width
from sandkeep.cli.display.output import paint, size
from sandkeep.cli.display.paths import content, quote
from sandkeep.model import Diff, FileChange

LETTERS: Final = {"added": "A", "changed": "M", "deleted": "D"}
COLOURS: Final = {"added": "green", "changed": "yellow", "deleted": "red"}

_ROOM: Final = 80
_MOST_BAR: Final = 40
_LEAST_NAME: Final = 20
_LINE_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}


def letter(change: str) -> str:
    """Return git's letter for a kind of change, in its colour."""
    return paint(LETTERS.get(change, "?"), COLOURS.get(change))


def name(file: FileChange) -> str:
    """Return the path of a change; that of a directory ends in a slash."""
    return quote(file.path, file.path_bytes) + ("/" if file.kind == "directory" else "")


def change_line(file: FileChange, room: int | None) -> str:
    """Format a change with what else differs: ``M  run.sh  (mode 644 -> 755)``. With `room` a long path is cut."""
    path, remark = name(file), _remark(file)
    if room is not None:
        path = cut_middle(path, max(_LEAST_NAME, room - 3 - width(remark)))
    return f"{letter(file.change)}  {path}{remark}"


def _remark(file: FileChange) -> str:
    remarks = []
    if file.kind_before is not None:
        remarks.append(f"{file.kind_before} -> {file.kind}")
    elif file.kind not in ("file", "directory"):
        remarks.append(file.kind)
    if file.mode_before is not None and "symlink" not in (file.kind, file.kind_before):
        remarks.append(f"mode {file.mode_before:o} -> {file.mode:o}")
    return f"  ({', '.join(remarks)})" if remarks else ""


# -- statistics -------------------------------------------------------------------------------------------------------


def stat_lines(diff: Diff, room: int | None) -> Iterator[str]:
    """Yield added and removed lines by file with a bar, as git does, and the totals. Without `room` no name is cut."""
    names = [name(file) for file in diff.files]
    most = max([file_lines(file) for file in diff.files], default=0)
    counts = max([len(_count(file)) for file in diff.files], default=0)
    width_of_names = max(map(width, names), default=0)
    if room is not None:
        room -= max([width(_remark(file)) for file in diff.files], default=0)
        width_of_names = min(width_of_names, max(_LEAST_NAME, room - counts - 15))
    bar = max(10, min(_MOST_BAR, (room or _ROOM) - width_of_names - counts - 5))
    for shown, file in zip(names, diff.files, strict=True):
        line = f" {pad(cut_middle(shown, width_of_names), width_of_names)} | {_count(file).rjust(counts)}"
        yield f"{line} {_bar(file, most, bar)}{_remark(file)}".rstrip()
    yield _totals(diff)


def file_lines(file: FileChange) -> int:
    """Return the number of added and removed lines of a file."""
    return (file.added_lines or 0) + (file.removed_lines or 0)


def _count(file: FileChange) -> str:
    return "Bin" if file.added_lines is None else str(file_lines(file))


def _bar(file: FileChange, most: int, room: int) -> str:
    if file.added_lines is None:
        return size(file.size_bytes)
    plus, minus = (_scaled(count or 0, most, room) for count in (file.added_lines, file.removed_lines))
    return paint("+" * plus, "green") + paint("-" * minus, "red")


def _scaled(count: int, most: int, room: int) -> int:
    return count if most <= room else max(count > 0, count * room // most)


def _totals(diff: Diff) -> str:
    plus, minus = (sum(f.added_lines or 0 for f in diff.files), sum(f.removed_lines or 0 for f in diff.files))
    return " " + ", ".join(
        [
            f"{_counted(diff.added + diff.changed + diff.deleted, 'file')} changed",
            *([f"{_counted(plus, 'insertion')}(+)"] if plus else []),
            *([f"{_counted(minus, 'deletion')}(-)"] if minus else []),
        ]
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


# -- patches ----------------------------------------------------------------------------------------------------------


def patch_lines(text: str) -> Iterator[str]:
    """Yield the lines of a unified diff in git's colours, without control characters."""
    in_hunk = False
    for line in text.removesuffix("\n").split("\n"):
        in_hunk = line.startswith("@@") or (in_hunk and line[:1] in " +-\\")
        yield paint(content(line), _LINE_COLOURS.get(line[:1]) if in_hunk else "bold")


def is_altered(text: str) -> bool:
    """Return True if a patch has control characters, which are shown as others."""
    lines = text.split("\n")
    return any(content(line) != line for line in lines)


def path_lines(paths: Iterable[tuple[str, str, bytes | None]]) -> Iterator[str]:
    """Yield a line for each kind of change and path."""
    for change, path, raw in paths:
        yield f"{letter(change)}  {quote(path, raw)}"


def names(files: Sequence[FileChange]) -> Iterator[str]:
    """Yield the paths alone."""
    for file in files:
        yield quote(file.path, file.path_bytes)
