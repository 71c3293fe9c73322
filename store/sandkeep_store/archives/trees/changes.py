"""Changes of a directory tree since an earlier look, and an archive of these changes alone.

A **catalogue** is a file that records every file of a tree with its inode number and ctime, which no program inside a
sandbox can set. A file with both unchanged is unchanged. A file that changed right before the look, or that is mapped
writable, may change again without a new ctime; the catalogue marks it, and it counts as changed.

A tree is the upper directory of an overlay or a plain one. Deletions are written as `whiteouts`.
"""

import os
import stat
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import IO, Final, NamedTuple

from sandkeep.errors import DataError, ProviderError, SetupError
from sandkeep.system.descriptors import closing_fd
from sandkeep.system.openat2 import open_beneath
from sandkeep_store.archives.tar import whiteouts
from sandkeep_store.archives.tar.depth import MOST_LEVELS, SHALLOW, require_path
from sandkeep_store.archives.tar.members import TOP, Member
from sandkeep_store.archives.tar.reader import Reader
from sandkeep_store.archives.trees import pipes
from sandkeep_store.archives.trees.read import Names, Program, Remarks
from sandkeep_store.archives.trees.tree import Overlay, is_opaque, reserved
from sandkeep_store.budgets import Table

_MAGIC: Final = b"Sandkeep's catalogue 1\n"
RECENT_NS: Final = 50_000_000
"""More than any kernel's clock of files takes from one tick to the next."""

MAX_BYTES: Final = 512 << 20
"""Maximum memory of a catalogue: of 1.3 million files with paths of 100 bytes."""

_SEEN_BYTES: Final = 300
"""Memory of an entry besides its path."""

_CHUNK: Final = 1 << 16
_FEW: Final = 500
_KINDS: Final = {
    stat.S_IFREG: b"f", stat.S_IFDIR: b"d", stat.S_IFLNK: b"l", stat.S_IFCHR: b"c", stat.S_IFBLK: b"b",
    stat.S_IFIFO: b"p", stat.S_IFSOCK: b"s",
}  # fmt: skip
_SAME: Final = {kind: kind for kind in _KINDS.values()}
"""One object for each kind, however many files are of it."""

_FORMAT: Final = r"%y %i %C@ %P\0"
WHITEOUT: Final = b"c"
DIRECTORY: Final = b"d"
OPAQUE: Final = b"o"
DIRECTORIES: Final = (DIRECTORY, OPAQUE)


class Seen(NamedTuple):
    """The status of one file: its type by find's letter, its inode number and its ctime; empty if unreliable. An opaque
    directory of an overlay has type `OPAQUE`.
    """

    kind: bytes
    inode: bytes
    changed: bytes


Catalogue = Mapping[bytes, Seen]
"""Everything in a tree by its path. The top is called ``.``."""


def take_catalogue(tree: int, enter: Sequence[str] = (), overlay: Overlay | None = None) -> dict[bytes, Seen]:
    """Catalogue an open directory, upper one of an `overlay` or plain. `enter` precedes find's argv. Blocks.

    Raises `not_supported` for more files than `MAX_BYTES` hold: they cost whoever makes them less than the catalogue.
    Raises `quota_exceeded`, see `budgets`, and `tree_too_deep` as soon as it comes to such a file.
    """
    recent = _seconds(time.time_ns() - RECENT_NS)
    found: dict[bytes, Seen] = {}
    size, memory = 0, Table("catalogue")
    for kind, inode, changed, path in _few(tree) or _all(tree, enter):
        require_path(path)
        size += _SEEN_BYTES + len(path)
        memory.grow(_SEEN_BYTES + len(path))
        if size > MAX_BYTES:
            message = f"there are more than {len(found)} changed files, too many for a snapshot: remove some"
            raise SetupError("not_supported", message)
        hides = kind == DIRECTORY and overlay is not None and is_opaque(tree, path or TOP, overlay)
        is_recent = changed >= recent  # both have ten digits before the point
        found[path or TOP] = Seen(OPAQUE if hides else kind, inode, b"" if is_recent else changed)
    return found


def require_shallow(tree: int, enter: Sequence[str] = ()) -> None:
    """Raise `tree_too_deep` for an open directory that is too deep to copy. `enter` precedes find's argv. Blocks."""
    if few := _few(tree):
        for *_, path in few:
            require_path(path)
        return
    least, most = str(SHALLOW + 1), str(MOST_LEVELS + 1)
    for path in _listed(tree, [*enter, "find", ".", "-mindepth", least, "-maxdepth", most, "-printf", r"%P\0"]):
        require_path(path)


_Entry = Sequence[bytes]
"""Kind, number, time and path of one thing, as find prints them; the top has no path."""


def _few(tree: int) -> list[_Entry]:
    """List a small tree without the cost of starting a program; nothing if it is large or partly unreadable."""
    found = [_entry(b"", os.fstat(tree))]
    left = [b"."]
    try:
        while left:
            directory = left.pop()
            for name, status in _in_directory(directory, tree):
                path = name if directory == b"." else directory + b"/" + name
                found.append(_entry(path, status))
                if len(found) > _FEW:
                    return []
                if stat.S_ISDIR(status.st_mode):
                    left.append(path)
    except OSError:  # find reports it
        return []
    return found


def _in_directory(path: bytes, tree: int) -> Iterator[tuple[bytes, os.stat_result]]:
    with closing_fd(open_beneath(tree, path, os.O_RDONLY | os.O_DIRECTORY)) as opened, os.scandir(opened) as entries:
        for entry in entries:
            yield os.fsencode(entry.name), entry.stat(follow_symlinks=False)


def _entry(path: bytes, status: os.stat_result) -> _Entry:
    kind = _KINDS[stat.S_IFMT(status.st_mode)]
    return kind, b"%d" % status.st_ino, _seconds(status.st_ctime_ns) + b"0", path


def is_that(status: os.stat_result, seen: Seen) -> bool:
    """Return True if it is the status of the file that was seen, unchanged if that can be known."""
    kind, inode, changed, _ = _entry(b"", status)
    return (
        kind == (DIRECTORY if seen.kind == OPAQUE else seen.kind)
        and inode == seen.inode
        and (seen.changed in (b"", changed))
    )


def _seconds(time_ns: int) -> bytes:
    return b"%d.%09d" % divmod(time_ns, 1_000_000_000)


def _all(tree: int, enter: Sequence[str]) -> Iterator[_Entry]:
    program = [*enter, "find", ".", "-maxdepth", str(MOST_LEVELS + 1), "-printf", _FORMAT]
    for line in _listed(tree, program):  # as they come, while it looks further
        kind, *rest = line.split(b" ", 3)
        yield _SAME.get(kind, kind), *rest


def _listed(tree: int, program: Sequence[str]) -> Iterator[bytes]:
    with subprocess.Popen(
        program, cwd=f"/proc/self/fd/{tree}", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
    ) as finder:  # fmt: skip
        assert finder.stdout is not None
        try:
            yield from _lines(finder.stdout)
        except BaseException:
            finder.kill()
            raise
    if finder.returncode:
        raise ProviderError("provider_unavailable", "the sandbox's files cannot be listed: try again")


def _lines(pipe: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while chunk := pipes.read_some(pipe.fileno(), _CHUNK):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from whole


def with_unreliable(catalogue: Catalogue, names: Collection[bytes] | None) -> Catalogue:
    """A catalogue by which these names, None for all, will count as changed, with all other names of the same files."""
    doubtful = {catalogue[name].inode for name in (catalogue if names is None else names) if name in catalogue}
    if not doubtful:
        return catalogue
    return {name: seen._replace(changed=b"") if seen.inode in doubtful else seen for name, seen in catalogue.items()}


def save(catalogue: Catalogue, path: str) -> None:
    """Write a new file of it. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(_MAGIC)
        file.writelines(b"%b %b %b %b\0" % (*seen, name) for name, seen in catalogue.items())
        file.write(b"\0")


def load(path: str) -> dict[bytes, Seen]:
    """Read such a file. Raises `snapshot_missing` when there is none, or when it is not whole."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        content = b""
    found = {}
    try:
        if not content.startswith(_MAGIC) or not content.endswith(b"\0\0"):
            raise ValueError
        for line in content[len(_MAGIC) : -2].split(b"\0"):
            kind, inode, changed, name = line.split(b" ", 3)
            found[name] = Seen(kind, inode, changed)
    except ValueError:
        message = f"the catalogue {path} of the snapshot to build on is missing or damaged: make a full snapshot"
        raise DataError("snapshot_missing", message) from None
    return found


class Changes(NamedTuple):
    """The differences: the names to be read from the tree, sorted, and the whiteouts."""

    names: list[bytes]
    marks: list[bytes]


Asked = Callable[[bytes], bool]


def compare(before: Catalogue, now: Catalogue, is_wanted: Asked = lambda _: True) -> Changes:
    """Return the differences among the names that `is_wanted` accepts, and always the top."""
    names: list[bytes] = []
    marks: list[bytes] = []
    anew: set[bytes] = set()  # directories in which nothing is as before
    for name in sorted(now, key=tree_order):
        seen, earlier = now[name], before.get(name)
        inside = name != TOP and parent_of(name) in anew
        if seen.kind in DIRECTORIES and (inside or _is_anew(seen, earlier)):
            anew.add(name)
        is_different = inside or earlier is None or is_changed(seen, earlier)
        if name != TOP and not (is_wanted(name) and is_different):
            continue
        if seen.kind == WHITEOUT:
            marks.append(whiteouts.whiteout(name))
            continue
        names.append(name)
        if name in anew and (seen.kind == OPAQUE or (not inside and earlier is not None)):
            marks.append(whiteouts.opaque(name))
    gone = (name for name in before if name not in now and is_wanted(name))
    marks += [whiteouts.whiteout(name) for name in gone if _leaves_gap(name, before, now, anew)]
    return Changes(names, marks)


def _is_anew(directory: Seen, earlier: Seen | None) -> bool:
    """Return True if a directory may have been replaced. The inode number alone is not proof, as numbers are soon
    reused: any change of an opaque directory counts. A directory that is not opaque shows its deletions instead.
    """
    if earlier is None or earlier.kind not in DIRECTORIES or earlier.inode != directory.inode:
        return True
    return directory.kind == OPAQUE and is_changed(directory, earlier)


def _leaves_gap(name: bytes, before: Catalogue, now: Catalogue, anew: Collection[bytes]) -> bool:
    """Return True if a deletion needs a whiteout: its directory exists and is not written anew."""
    parent = parent_of(name)
    holder = now.get(parent)
    return before[name].kind != WHITEOUT and holder is not None and holder.kind in DIRECTORIES and parent not in anew


def with_directories(names: Sequence[bytes]) -> list[bytes]:
    """Add the directories that have the names, in the order of the tree."""
    found = {TOP}
    for name in names:
        place = name
        while place not in found:
            found.add(place)
            place = parent_of(place)
    return sorted(found, key=tree_order)


def tree_order(name: bytes) -> bytes:
    """Sort key: the contents of a directory come right after it."""
    return b"" if name == TOP else name.replace(b"/", b"\0")


def parent_of(name: bytes) -> bytes:
    """Return the name of the directory that has it; the top's for the top."""
    return name.rpartition(b"/")[0] or TOP


def is_changed(seen: Seen, earlier: Seen) -> bool:
    """Return True if a file may have changed since it was seen earlier."""
    if seen.kind == earlier.kind == WHITEOUT:
        return False
    return seen != earlier or not seen.changed


class ChangedTree:
    """A source of members: the changed files of a tree that `reading_only` reads through `read`. See `tree.Source`."""

    def __init__(self, changes: Changes, read: tuple[Program, Names]) -> None:
        self.remarks = Remarks()
        self._changes = changes
        self._program, self._names = read
        self._data: Reader | None = None

    def __iter__(self) -> Iterator[Member]:
        if self._changes.names:
            # Without the directories a restore would make them anew, and hide the attributes of those beneath.
            self._names.tell(with_directories(self._changes.names))
            self._data = Reader(self._program.chunks())
            yield from filter(self._is_kept, self._data)
            self._data = None
            self._program.check(b"", self.remarks)
        for mark in self._changes.marks:
            yield Member(name=mark, kind="file")

    def data(self) -> Iterator[memoryview]:
        """See `tree.Source`."""
        return iter(()) if self._data is None else self._data.data()

    def _is_kept(self, member: Member) -> bool:
        if whiteouts.is_reserved(member.name):
            raise reserved(member.name)
        if member.kind.endswith("device"):
            self.remarks.add(member.name, "device")
            return False
        return True
