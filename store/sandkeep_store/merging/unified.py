"""Unified diffs, and counts of changed lines, of what differs between two trees."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sandkeep_store.merging.compare import Change
from sandkeep_store.merging.content import read_text
from sandkeep_store.merging.diff import Hunk, diff, numbered, split_lines
from sandkeep_store.merging.text import MOST_TEXT_BYTES, is_text
from sandkeep_store.merging.trees import Entry

CONTEXT: Final = 3
"""Unchanged lines around a hunk."""

MOST_BYTES: Final = 1 << 20
"""Default size at which a diff is cut."""

_NO_NEWLINE: Final = b"\n\\ No newline at end of file\n"
_TYPES: Final = {"file": 0o100000, "directory": 0o040000, "symlink": 0o120000, "fifo": 0o010000}
_PLAIN: Final = {ord("\n"): "\\n", ord("\t"): "\\t", ord('"'): '\\"', ord("\\"): "\\\\"}


class LineCounts(NamedTuple):
    """Numbers of added and removed lines."""

    added: int
    removed: int


def line_counts(before: int, after: int, name: bytes, change: Change) -> LineCounts | None:
    """Count the lines that a change adds and removes; None if it is one of binary content. `before` and `after` are the
    open views. Raises as `content.read_text`. Blocks.
    """
    texts = _texts(before, after, name, change)
    if texts is None:
        return None
    lines = [split_lines(text) for text in texts]
    hunks = diff(*numbered(lines))
    return LineCounts(
        sum(hunk.new_end - hunk.new_start for hunk in hunks), sum(hunk.end - hunk.start for hunk in hunks)
    )


def unified(before: int, after: int, name: bytes, change: Change, most_bytes: int = MOST_BYTES) -> tuple[bytes, bool]:
    """Return the unified diff of a change in git's form, and True if it was cut at `most_bytes`.

    A symlink's target is its text. A change of kind is a deletion and an addition. Raises as `content.read_text`.
    Blocks.
    """
    found, size = list[bytes](), 0
    for line in _diff(before, after, name, change):
        size += len(line)
        if size > most_bytes:
            return b"".join(found), True
        found.append(line)
    return b"".join(found), False


def _diff(before: int, after: int, name: bytes, change: Change) -> Iterator[bytes]:
    if change.before is not None and change.after is not None and change.before.kind != change.after.kind:
        yield from _diff(before, after, name, Change(change.before, None))
        yield from _diff(before, after, name, Change(None, change.after))
        return
    old, new = _quoted(b"a/" + name), _quoted(b"b/" + name)
    yield b"diff --git " + old + b" " + new + b"\n"
    yield from _mode_lines(change)
    texts = _texts(before, after, name, change)
    old = b"/dev/null" if change.before is None else old
    new = b"/dev/null" if change.after is None else new
    if texts is None:
        yield b"Binary files " + old + b" and " + new + b" differ\n"
        return
    lines = [split_lines(text) for text in texts]
    hunks = diff(*numbered(lines))
    if hunks:
        yield b"--- " + old + b"\n"
        yield b"+++ " + new + b"\n"
    for group in _grouped(hunks):
        yield from _hunk_lines(lines[0], lines[1], group)


def _mode_lines(change: Change) -> Iterator[bytes]:
    before, after = _full_mode(change.before), _full_mode(change.after)
    if before == after:
        return
    if not before or not after:
        yield b"new file mode " + after + b"\n" if after else b"deleted file mode " + before + b"\n"
        return
    yield b"old mode " + before + b"\n"
    yield b"new mode " + after + b"\n"


def _full_mode(entry: Entry | None) -> bytes:
    if entry is None:
        return b""
    return b"%06o" % (_TYPES[entry.kind] | (0 if entry.kind == "symlink" else entry.mode))


def _texts(before: int, after: int, name: bytes, change: Change) -> tuple[bytes, bytes] | None:
    """Return the two texts, empty ones for what has none; None for binary content."""
    kinds = [entry and entry.kind for entry in (change.before, change.after)]
    if kinds == ["file", "file"] and not change.content:
        return b"", b""  # the mode alone differs
    found: list[bytes] = []
    for view, entry in ((before, change.before), (after, change.after)):
        if entry is None or entry.kind in ("directory", "fifo"):
            found.append(b"")
        elif entry.kind == "symlink":
            found.append(entry.target)
        elif entry.size > MOST_TEXT_BYTES:
            return None
        else:
            found.append(read_text(view, name, entry.size))
        if not is_text(found[-1]):
            return None
    return found[0], found[1]


def _grouped(hunks: Sequence[Hunk]) -> Iterator[list[Hunk]]:
    """Yield hunks together that share lines of context."""
    group: list[Hunk] = []
    for hunk in hunks:
        if group and hunk.start - group[-1].end > 2 * CONTEXT:
            yield group
            group = []
        group.append(hunk)
    if group:
        yield group


def _hunk_lines(old: Sequence[bytes], new: Sequence[bytes], group: Sequence[Hunk]) -> Iterator[bytes]:
    above = min(CONTEXT, group[0].start)
    below = min(CONTEXT, len(old) - group[-1].end)
    start, end = group[0].start - above, group[-1].end + below
    new_start, new_end = group[0].new_start - above, group[-1].new_end + below
    yield b"@@ -" + _range(start, end) + b" +" + _range(new_start, new_end) + b" @@\n"
    position = start
    for hunk in group:
        yield from _prefixed(b" ", old[position : hunk.start])
        yield from _prefixed(b"-", old[hunk.start : hunk.end])
        yield from _prefixed(b"+", new[hunk.new_start : hunk.new_end])
        position = hunk.end
    yield from _prefixed(b" ", old[position:end])


def _range(start: int, end: int) -> bytes:
    if end - start == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + (end > start), end - start)


def _prefixed(prefix: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield prefix + line if line.endswith(b"\n") else prefix + line + _NO_NEWLINE


def _quoted(name: bytes) -> bytes:
    """Quote a name as git does, if it has anything but printable ASCII: a newline would begin a line of its own."""
    text = name.decode("latin-1")
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return name
    return (
        b'"%b"'
        % "".join(
            letter.translate(_PLAIN) if ord(letter) in _PLAIN or 32 <= ord(letter) < 127 else f"\\{ord(letter):03o}"
            for letter in text
        ).encode()
    )
