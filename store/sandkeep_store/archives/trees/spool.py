"""A copy of a tree in a single file, made in passes, from which an archive is written.

The file system has nothing to make or remove for each file of the tree. ext4 needs a millisecond for a new file where
thousands were removed minutes ago, as after the last copy: it gives no inode number anew so soon, and looks through all
of these. Everything here blocks.
"""

import errno
import os
import stat
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sandkeep_store.archives.tar import whiteouts
from sandkeep_store.archives.tar.members import Kind, Member, is_archived, is_too_long
from sandkeep_store.archives.tar.sparse import MAX_EXTENTS
from sandkeep_store.archives.trees.changes import Catalogue, Seen
from sandkeep_store.archives.trees.passes import Passes, extended, require_space
from sandkeep_store.archives.trees.read import Remarks, What
from sandkeep_store.archives.trees.tree import reserved
from sandkeep_store.files.holes import data_of
from sandkeep_store.threads import check_cancelled

_PIECE: Final = 8 << 20
_WINDOW: Final = 1 << 20
"""Bytes read at once: most files follow the one before."""

_BLOCK: Final = 512
_KINDS: Final[dict[bytes, Kind]] = {
    b"f": "file", b"d": "directory", b"o": "directory", b"l": "symlink", b"p": "fifo"
}  # fmt: skip
_OMITTED: Final[dict[bytes, What]] = {b"s": "socket", b"c": "device", b"b": "device"}


class _Spooled(NamedTuple):
    """A file as it is in an archive. Its content is at `offset`, that of all its `extents` if it has holes."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    whole_size: int
    target: bytes = b""
    xattrs: Sequence[tuple[bytes, bytes]] = ()
    offset: int = 0
    size: int = 0
    extents: "array[int] | None" = None


class Spool(Passes):
    """A copy in the open, empty file `target`, which the caller closes."""

    def __init__(self, source: int, target: int, proceed: Callable[[], None] = check_cancelled) -> None:
        super().__init__(source, proceed)
        self.target = target
        self._spooled: dict[bytes, _Spooled] = {}
        self._end = 0

    def seen(self, name: bytes) -> Seen:
        """Return the status of a copied file."""
        return self._copied[name]

    def spooled(self, name: bytes) -> _Spooled:
        """Return the copy of a file."""
        return self._spooled[name]

    def _remove(self, now: Catalogue, names: Collection[bytes], todo: Sequence[bytes]) -> None:  # noqa: ARG002
        for name in self._stale(names, todo):  # the content stays in the file, unused
            del self._copied[name]
            self._spooled.pop(name, None)

    def _link(self, same: bytes, name: bytes) -> None:
        self._spooled[name] = self._spooled[same]

    def _copy_directory(self, name: bytes, seen: Seen) -> None:
        with self._opened(name, seen) as (opened, status):
            self._spooled[name] = _spooled(status, xattrs=_archived(opened))

    def _copy_file(self, name: bytes, seen: Seen) -> None:
        if seen.kind in _OMITTED:
            return
        with self._opened(name, seen) as (opened, status):
            if seen.kind == b"f":
                found = _spooled(status, xattrs=_archived(opened))
                self._spooled[name] = self._copy_content(opened, status, found)
            elif seen.kind == b"l":
                self._spooled[name] = _spooled(status, target=os.readlink(b"", dir_fd=opened))
            else:
                self._spooled[name] = _spooled(status)

    def _copy_content(self, opened: int, status: os.stat_result, found: _Spooled) -> _Spooled:
        size, begin = status.st_size, self._end
        if status.st_blocks * _BLOCK >= size:
            self._copy_piece(opened, 0, size)
            return found._replace(offset=begin, size=size)
        extents = array("q")
        for offset, end in data_of(opened, size):
            self._copy_piece(opened, offset, end - offset)
            extents.extend((offset, end - offset))
            if len(extents) > 2 * MAX_EXTENTS:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return found._replace(offset=begin, size=self._end - begin, extents=extents)

    def _copy_piece(self, opened: int, offset: int, left: int) -> None:
        while left:
            require_space(self.target, self._end)
            os.lseek(self.target, self._end, os.SEEK_SET)
            count = os.sendfile(self.target, opened, offset, min(_PIECE, left))
            if not count:  # it was truncated
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            offset, left, self._end = offset + count, left - count, self._end + count
            self._proceed()


class SpooledTree:
    """A source of members: the files `names` of a spool in this order, and `marks`. With `is_layer`, no name may be one
    of a mark. See `tree.Source`.
    """

    def __init__(
        self, spool: Spool, names: Iterable[bytes], marks: Sequence[bytes] = (), *, is_layer: bool = False
    ) -> None:
        self.remarks = Remarks()
        self._spool = spool
        self._names = [*names]
        self._marks = marks
        self._is_layer = is_layer
        self._present: _Spooled | None = None
        self._window = 0, memoryview(b"")

    def count_bytes(self) -> int:
        """Return the bytes of the files."""
        seen = {name: self._spool.seen(name) for name in self._names if not is_too_long(name)}
        first = {each.inode: name for name, each in seen.items() if each.kind not in _OMITTED}
        return sum(self._spool.spooled(name).size for name in first.values())

    def __iter__(self) -> Iterator[Member]:
        first: dict[bytes, bytes] = {}
        for name in self._names:
            seen = self._spool.seen(name)
            if is_too_long(name):
                self.remarks.add(name, "name too long")
            elif seen.kind in _OMITTED:
                self.remarks.add(name, _OMITTED[seen.kind])
            elif self._is_layer and whiteouts.is_reserved(name):
                raise reserved(name)
            elif _KINDS[seen.kind] != "directory" and (target := first.setdefault(seen.inode, name)) != name:
                self._present = None
                yield _member(self._spool.spooled(name), name, "hard link", target)
            else:
                self._present = self._spool.spooled(name)
                yield _member(self._present, name, _KINDS[seen.kind], self._present.target)
        self._present = None
        for mark in self._marks:
            yield Member(name=mark, kind="file")

    def data(self) -> Iterator[memoryview]:
        """See `Source`."""
        if self._present is None:
            return
        offset, left = self._present.offset, self._present.size
        while left:
            begin, window = self._window
            if not begin <= offset < begin + len(window):
                begin, window = self._window = offset, memoryview(os.pread(self._spool.target, _WINDOW, offset))
                if not window:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            piece = window[offset - begin :][:left]
            yield piece
            offset, left = offset + len(piece), left - len(piece)


def _member(found: _Spooled, name: bytes, kind: Kind, target: bytes) -> Member:
    member = Member(
        name=name, kind=kind, mode=found.mode, uid=found.uid, gid=found.gid, mtime_ns=found.mtime_ns, target=target
    )
    if kind == "file":
        member.size, member.whole_size, member.extents = found.size, found.whole_size, found.extents
    if kind in ("file", "directory"):
        member.xattrs = dict(found.xattrs)
    return member


def _spooled(status: os.stat_result, *, target: bytes = b"", xattrs: Sequence[tuple[bytes, bytes]] = ()) -> _Spooled:
    mode = stat.S_IMODE(status.st_mode)
    return _Spooled(mode, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_size, target, xattrs)


def _archived(opened: int) -> Sequence[tuple[bytes, bytes]]:
    found = [(os.fsencode(name), value) for name, value in extended(opened)]
    return tuple((name, value) for name, value in found if is_archived(name))
