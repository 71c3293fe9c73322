"""Extraction of members by a program in a jail: see `jail`.

After that program has ended and nothing else touches the tree, this module sets the rest: the properties of the top and
of directories that existed before they were named, and attributes of files that their own user may not write to.
"""

import errno
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Final

from sandkeep.errors import DaemonError, ProviderError, SandkeepError
from sandkeep.system.descriptors import closing_fd, write_all
from sandkeep.system.staging import Stage
from sandkeep_store.archives.tar.contents import Names
from sandkeep_store.archives.tar.members import TOP, Member, corrupt, shown
from sandkeep_store.archives.tar.writer import Writer
from sandkeep_store.archives.trees import jail, pipes

_NO_ROOM: Final = (b"No space left", b"Wrote only", b"quota")
_NOT_BEGUN: Final = (b"bwrap:", b"setpriv:")
_MAX_STDERR_BYTES: Final = 65536
_PERMISSIONS: Final = 0o777
_MODE: Final = 0o1777
_MOST_LATE_BYTES: Final = 64 << 20
_LATE_BYTES: Final = 500
"""Memory per late member beside its name, in bytes."""
_XATTR_BYTES: Final = 150
"""Memory per attribute of a late member beside its name and value, in bytes."""
_OPEN: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MADE, _PART = 1, 2


class Extraction:
    """A tree that is being made of members."""

    def __init__(self, tree: bytes, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        self._tree = tree
        descriptor = process.stdin.fileno()
        pipes.widen(descriptor)
        self._writer = Writer(partial(write_all, descriptor))
        self._directories = Names()
        self._parent = b""
        self._late: dict[bytes, Member] = {}
        self._late_bytes = 0

    def put(self, member: Member, data: Iterable[memoryview] = ()) -> None:
        """Extract a member. Names are checked, so none leads out of the tree."""
        name = member.name
        parent = name.rpartition(b"/")[0]
        if parent != self._parent:
            self._take_parts(parent, member.mtime_ns)
            self._parent = parent
        if member.kind == "directory":
            if self._is_late(member):
                return
        else:
            self._late.pop(name, None)  # another of that name, which this one replaces
        if member.xattrs and not member.mode & stat.S_IWUSR:
            self._remember(member)
            member.xattrs = {}
        member.mode &= _PERMISSIONS
        member.uid = member.gid = 0
        self._writer.add(member)
        for piece in data:
            self._writer.write(piece)
        self._writer.end_member(member)

    def finish(self) -> None:
        """Say that no member follows."""
        self._writer.close()

    def settle(self) -> None:
        """After the last member: apply the properties that the program does not set. Raises OSError."""
        with closing_fd(os.open(self._tree, _OPEN | os.O_DIRECTORY)) as top:
            for name in sorted(self._late, reverse=True):  # the innermost first, as one above may be closed then
                with suppress(PermissionError):  # to a user's own daemon
                    _settle(top, self._late[name])

    def _is_late(self, member: Member) -> bool:
        """Return True if properties are set later: tar changes no existing directory, and sets no sticky bits."""
        known = self._directories.get(member.name)
        self._directories.set(member.name, _MADE)
        if member.name != TOP and not known and not member.mode & stat.S_ISVTX:
            return False
        self._remember(member)
        return bool(known) or member.name == TOP

    def _take_parts(self, parent: bytes, mtime_ns: int) -> None:
        """Directories that are only part of names have to be something, too."""
        while parent and not self._directories.get(parent):
            self._directories.set(parent, _PART)
            self._remember(Member(name=parent, kind="directory", mode=0o755, mtime_ns=mtime_ns))
            parent = parent.rpartition(b"/")[0]

    def _remember(self, member: Member) -> None:
        self._late_bytes += len(member.name) + _LATE_BYTES
        self._late_bytes += sum(len(name) + len(value) + _XATTR_BYTES for name, value in member.xattrs.items())
        mode = member.mode & (_MODE if member.kind == "directory" else _PERMISSIONS)
        self._late[member.name] = Member(
            name=member.name, kind=member.kind, mode=mode, mtime_ns=member.mtime_ns, xattrs=member.xattrs
        )
        if self._late_bytes > _MOST_LATE_BYTES:
            raise corrupt(f"cannot be extracted: too much before {shown(member.name)} can be made at the end only")


@contextmanager
def extracting(stage: Stage, owner: tuple[int, int] | None) -> Iterator[Extraction]:
    """Make a tree in a stage, complete when the block is left well.

    As root, it belongs to the uid and gid `owner`. Raises `storage_unavailable` when there is no room.
    """
    if os.geteuid() == 0 and owner is not None:
        os.chown(stage.tree, *owner)
    with tempfile.TemporaryFile() as stderr:
        process = jail.start_extracting(stage.named_tree, owner, stderr, group=stage.group)
        try:
            extraction = Extraction(stage.tree, process)
            with suppress(BrokenPipeError):  # it has ended, and said why
                yield extraction
                extraction.finish()
            process.communicate()
            if process.returncode:
                raise _failure(stderr, process.returncode)
            try:
                extraction.settle()
            except OSError as error:
                raise unwritable(error.strerror) from None
        finally:
            process.kill()
            process.communicate()


def _settle(top: int, late: Member) -> None:
    """Go there directory by directory, so that no link is followed."""
    opened = os.dup(top)
    try:
        *directories, last = late.name.split(b"/")
        for part in directories:
            above, opened = opened, os.open(part, _OPEN | os.O_DIRECTORY, dir_fd=opened)
            os.close(above)
        above, opened = opened, os.open(last, _OPEN, dir_fd=opened)
        os.close(above)
        path = f"/proc/self/fd/{opened}"
        if late.xattrs:
            os.chmod(path, late.mode | stat.S_IWUSR)
        for xattr, value in late.xattrs.items():
            os.setxattr(path, xattr, value)
        os.utime(path, ns=(late.mtime_ns, late.mtime_ns))
        os.chmod(path, late.mode)
    finally:
        os.close(opened)


def _failure(stderr: IO[bytes], code: int) -> SandkeepError:
    stderr.seek(0)
    lines = stderr.read(_MAX_STDERR_BYTES).strip().splitlines() or [b"it ended with %d" % code]
    if any(phrase in line for line in lines for phrase in _NO_ROOM):
        return unwritable(os.strerror(errno.ENOSPC))
    first = shown(lines[0].removeprefix(b"tar: "))[1:-1]
    if lines[0].startswith(_NOT_BEGUN) or code < 0:
        return ProviderError("provider_unavailable", f"the extracting program failed: {first}; nothing was restored")
    return corrupt(f"cannot be extracted here: {first}; nothing was restored")


def unwritable(why: str | None) -> DaemonError:
    """The error for a tree that cannot be made for a reason of the disk's."""
    return DaemonError("storage_unavailable", f"the files cannot be restored: {why}: make room there")
