"""What differs between two trees, as a source of members and of marks for what is gone.

For where no overlay has kept them apart. What is alike in kind, size, mode, owner and times is read and compared, too:
a program can set a time back.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from sandkeep_store.archives import whiteouts
from sandkeep_store.archives.members import TOP, Kind, Member, is_kept, is_too_long
from sandkeep_store.archives.reading import Remarks
from sandkeep_store.archives.tree import reserved

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK: Final = 1 << 18
_KINDS: Final[dict[int, Kind]] = {
    stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo",
}  # fmt: skip


class Difference:
    """What the open directory `tree` has otherwise than the open directory `base`. See `tree.Source`.

    Both are read with our own rights, and no link of theirs is followed.
    """

    def __init__(self, base: int, tree: int) -> None:
        self.remarks = Remarks()
        self._base = base
        self._tree = tree
        self._first: dict[tuple[int, int], bytes] = {}
        self._present: Member | None = None

    def __iter__(self) -> Iterator[Member]:
        yield self._member(TOP, os.fstat(self._tree))
        to_do = [TOP]
        while to_do:
            directory = to_do.pop()
            before, now = _listed(self._base, directory), _listed(self._tree, directory)
            for name in sorted(now):
                yield from self._of(_joined(directory, name), now[name], before.get(name))
                if stat.S_ISDIR(now[name].st_mode):
                    to_do.append(_joined(directory, name))
            for name in sorted(before.keys() - now.keys()):
                yield self._marked(whiteouts.whiteout(_joined(directory, name)))

    def data(self) -> Iterator[memoryview]:
        """The bytes of the present file: as many as it had when it was looked at."""
        member, self._present = self._present, None
        if member is None or not member.size:
            return
        left = member.size
        with suppress(OSError):
            descriptor = _opened(self._tree, member.name, _FILE)
            try:
                while left and (piece := os.read(descriptor, min(left, _CHUNK))):
                    left -= len(piece)
                    yield memoryview(piece)
            finally:
                os.close(descriptor)
        if left:
            self.remarks.add(member.name, "shrank")
            while left:
                yield memoryview(bytes(min(left, _CHUNK)))
                left -= min(left, _CHUNK)

    def _of(self, name: bytes, now: os.stat_result, before: os.stat_result | None) -> Iterator[Member]:
        kind = _KINDS.get(stat.S_IFMT(now.st_mode))
        if whiteouts.is_reserved(name):
            raise reserved(name)
        if kind is None:
            self.remarks.add(name, "socket" if stat.S_ISSOCK(now.st_mode) else "device")
        elif is_too_long(name):
            self.remarks.add(name, "name too long")
        elif before is None or not self._is_same(name, now, before):
            try:
                member = self._member(name, now)
            except FileNotFoundError:
                self.remarks.add(name, "vanished")
            else:
                yield member

    def _is_same(self, name: bytes, now: os.stat_result, before: os.stat_result) -> bool:
        told = [(it.st_mode, it.st_uid, it.st_gid, it.st_mtime_ns) for it in (now, before)]
        if told[0] != told[1] or _xattrs(self._tree, name) != _xattrs(self._base, name):
            return False
        if stat.S_ISDIR(now.st_mode):
            return True
        # Which names are one file is not compared: those of a file that has several are taken together.
        if now.st_nlink > 1 or before.st_nlink > 1 or now.st_size != before.st_size:
            return False
        if stat.S_ISLNK(now.st_mode):
            return _target(self._tree, name) == _target(self._base, name)
        return not stat.S_ISREG(now.st_mode) or self._reads_same(name)

    def _reads_same(self, name: bytes) -> bool:
        descriptors = []
        try:
            descriptors = [_opened(top, name, _FILE) for top in (self._tree, self._base)]
            while True:
                piece, other = (os.read(descriptor, _CHUNK) for descriptor in descriptors)
                if piece != other:
                    return False
                if not piece:
                    return True
        except OSError:
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _member(self, name: bytes, status: os.stat_result) -> Member:
        kind = _KINDS[stat.S_IFMT(status.st_mode)]
        member = Member(
            name=name, kind=kind, mode=stat.S_IMODE(status.st_mode), uid=status.st_uid, gid=status.st_gid,
            mtime_ns=status.st_mtime_ns, xattrs=_xattrs(self._tree, name),
        )  # fmt: skip
        if status.st_nlink > 1 and kind in ("file", "symlink"):
            first = self._first.setdefault((status.st_dev, status.st_ino), name)
            if first != name:
                member.kind, member.target, member.xattrs = "hard link", first, {}
                return member
        if kind == "symlink":
            member.target = _target(self._tree, name)
        elif kind == "file":
            member.size = member.whole_size = status.st_size
        self._present = member
        return member

    def _marked(self, name: bytes) -> Member:
        self._present = None
        return Member(name=name, kind="file")


def _joined(directory: bytes, name: bytes) -> bytes:
    return name if directory == TOP else directory + b"/" + name


def _opened(top: int, name: bytes, flags: int) -> int:
    """Something in a tree, opened directory by directory, so that no link is followed."""
    opened = os.dup(top)
    *directories, last = name.split(b"/")
    for part in directories:
        above = opened
        try:
            opened = os.open(part, _DIRECTORY, dir_fd=above)
        finally:
            os.close(above)
    try:
        return os.open(last, flags, dir_fd=opened)
    finally:
        os.close(opened)


def _listed(top: int, directory: bytes) -> dict[bytes, os.stat_result]:
    """What is in a directory; nothing where there is none."""
    try:
        opened = _opened(top, directory, _DIRECTORY)
    except OSError:
        return {}
    found = {}
    try:
        for name in os.listdir(opened):
            with suppress(FileNotFoundError):
                found[os.fsencode(name)] = os.stat(name, dir_fd=opened, follow_symlinks=False)
    finally:
        os.close(opened)
    return found


def _target(top: int, name: bytes) -> bytes:
    return os.readlink(_path(top, name))


def _xattrs(top: int, name: bytes) -> dict[bytes, bytes]:
    path = _path(top, name)
    try:
        names = [os.fsencode(xattr) for xattr in os.listxattr(path, follow_symlinks=False)]
        return {xattr: os.getxattr(path, xattr, follow_symlinks=False) for xattr in names if is_kept(xattr)}
    except OSError:
        return {}


def _path(top: int, name: bytes) -> bytes:
    return b"/proc/self/fd/%d/%s" % (top, name)
