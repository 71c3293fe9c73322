"""Trees to compare and merge, and safe access to what is in them.

A tree is a stack of directories, as of an overlay, with the kernel's merged view of it. Hostile code made both: no link
is followed, every file is opened with `open_beneath`, and FIFOs and devices are never opened. Everything here blocks.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Literal, Self

from msgspec import Struct

from sandkeep.errors import CallerError, SandkeepError, StateError
from sandkeep.system.descriptors import closing_fd
from sandkeep.system.openat2 import open_beneath
from sandkeep_store.archives.tar.members import TOP, shown
from sandkeep_store.archives.trees.tree import Overlay
from sandkeep_store.threads import check_cancelled

Kind = Literal["file", "directory", "symlink", "fifo"]

MODE_BITS: Final = 0o1777
"""Mode bits that count: archives store no others."""

Progress = Callable[[int], None]
"""A function that is called with the number of bytes just read; it raises to end the work."""

_KINDS: Final[dict[int, Kind]] = {
    stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo"
}  # fmt: skip
_PLACE: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Entry(Struct, frozen=True, kw_only=True):
    """One file of a tree. `inode` and `device` identify it among those of the same view, where it has `links` names.

    Only kind, mode, target and content distinguish files; owner and mtime are carried along. The mode of a symlink is
    always 0o777.
    """

    kind: Kind
    mode: int
    size: int = 0
    target: bytes = b""
    mtime_ns: int = 0
    uid: int = 0
    gid: int = 0
    device: int = 0
    inode: int = 0
    links: int = 1


class Layer(Struct, frozen=True):
    """One directory of a stack, open as `fd`. Equal keys stand for the same immutable content. `overlay` is the
    namespace of its marks; None for a plain directory, which has none.
    """

    fd: int
    key: str
    overlay: Overlay | None = None


class TreeState(Struct, frozen=True):
    """A tree: the open, read-only merged `view` of its layers, and these, uppermost first."""

    view: int
    layers: Sequence[Layer] = ()


def entry_of(status: os.stat_result, target: bytes = b"") -> Entry | None:
    """Return the entry for a status; None for sockets and devices, which count as absent."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        return None
    return Entry(
        kind=kind, mode=0o777 if kind == "symlink" else status.st_mode & MODE_BITS,
        size=status.st_size if kind == "file" else 0, target=target, mtime_ns=status.st_mtime_ns,
        uid=status.st_uid, gid=status.st_gid, device=status.st_dev, inode=status.st_ino,
        links=1 if kind == "directory" else status.st_nlink,
    )  # fmt: skip


class Lookup:
    """Status of names of a view. Fast for names in the order of the tree: it keeps the last directory open."""

    def __init__(self, view: int) -> None:
        self.view = view
        self._directory: bytes | None = None
        self._opened = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()

    def entry(self, name: bytes) -> Entry | None:
        """Return what has that name, or None. Raises `permission_denied`."""
        directory, _, last = name.rpartition(b"/")
        try:
            if self._directory != directory:
                self._leave()
                self._directory = directory
                self._opened = open_beneath(self.view, directory or TOP, _PLACE | os.O_DIRECTORY)
            return None if self._opened < 0 else _entry_in(self._opened, last)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise unreadable(name, error) from None

    def _leave(self) -> None:
        if self._opened >= 0:
            os.close(self._opened)
        self._directory, self._opened = None, -1


def look_up(view: int, name: bytes) -> Entry | None:
    """Return what has that name in a view, or None. Raises `permission_denied`."""
    with Lookup(view) as lookup:
        return lookup.entry(name)


def _entry_in(directory: int, name: bytes) -> Entry | None:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(status.st_mode) else b""
    return entry_of(status, target)


def open_file(view: int, name: bytes) -> int:
    """Open a regular file for reading. Raises `permission_denied`, and `conflict` if it is none any more."""
    try:
        # O_PATH first: even O_NONBLOCK opens a FIFO, which its writer notices.
        with closing_fd(open_beneath(view, name, _PLACE)) as place:
            if stat.S_ISREG(os.fstat(place).st_mode):
                return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise unreadable(name, error) from None
    raise changed_meanwhile(name)


def walk(top: int, begin: bytes = TOP, ignore: frozenset[bytes] = frozenset()) -> Iterator[tuple[bytes, int, bool]]:
    """Yield everything beneath a directory of a tree: its name, the open directory it is in, and True for a directory.
    Nothing, if there is no such directory. Raises `permission_denied`.
    """
    left = [begin]
    while left:
        check_cancelled()
        directory = left.pop()
        prefix = b"" if directory == TOP else directory + b"/"
        try:
            opened = open_beneath(top, directory, _LIST)
        except OSError as error:
            if error.errno in _ABSENT:
                continue
            raise unreadable(directory, error) from None
        with closing_fd(opened):
            for name, is_directory in _listed(opened, directory):
                if name in ignore:
                    continue
                if is_directory:
                    left.append(prefix + name)
                yield prefix + name, opened, is_directory


def _listed(opened: int, directory: bytes) -> list[tuple[bytes, bool]]:
    try:
        with os.scandir(opened) as entries:
            return [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError as error:
        raise unreadable(directory, error) from None


def unreadable(name: bytes, error: OSError) -> SandkeepError:
    """Return the error for a file that cannot be read."""
    if error.errno == errno.ENAMETOOLONG:
        return CallerError("invalid", f"{shown(name)} is too long a path: rename it", member=shown(name)[1:-1])
    message = (
        f"{shown(name)} cannot be read ({os.strerror(error.errno or errno.EIO)}): change its mode, or leave it out"
    )
    return CallerError("permission_denied", message, member=shown(name)[1:-1])


def changed_meanwhile(name: bytes) -> SandkeepError:
    """Return the error for a file that is not as it was when the trees were compared."""
    return StateError("conflict", f"{shown(name)} changed during the merge: freeze the sandbox, or try again")
