"""Restoring a tree from an archive: looked through first, extracted beside its place in a jail, then swapped in.

The archive is read twice: once to know it safe, and once more to extract it, checked again member by member. Only when
both were the same bytes does what was extracted count.
"""

import errno
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final

from sandkeep.errors import DaemonError, ProviderError, SandkeepError
from sandkeep.staging import Stage
from sandkeep_store.archives import jail
from sandkeep_store.archives.inspect import Examined, Inspection, Moved
from sandkeep_store.archives.limits import Limits
from sandkeep_store.archives.members import TOP, Member, corrupt, shown
from sandkeep_store.archives.swapping import swap
from sandkeep_store.archives.tarwriter import Writer

_NO_ROOM: Final = (b"No space left", b"Wrote only", b"quota")
_NOT_BEGUN: Final = (b"bwrap:", b"setpriv:")
_MAX_SAID_BYTES: Final = 65536
_PERMISSIONS: Final = 0o777
_STICKY: Final = stat.S_ISVTX
_MOST_STICKY_BYTES: Final = 32 << 20
_OPEN: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(
    archive: int,
    target: str,
    *,
    owner: tuple[int, int] | None = None,
    limits: Limits | None = None,
    strip: int = 0,
    sha256: str | None = None,
    durable: bool = True,
    moved: Moved | None = None,
) -> Inspection:
    """Put at `target` the tree that an archive, an open file, holds; a directory that is there is replaced.

    As root, the files belong to the uid and gid `owner`, else to ourselves; no set-uid bit is kept. With `sha256`, the
    archive has to have that digest. `strip` leaves out so many directories at the beginning of each name. With
    `durable` what is at `target` survives a power cut, too. `moved` is told how many bytes of the archive are through,
    for each of two times; what it raises ends the work.

    Raises `snapshot_corrupt`, and `storage_unavailable` when there is no room or the archive cannot be read; then
    `target` is as it was. Blocks.
    """
    first = Examined(archive, limits or Limits(), strip=strip, moved=moved)
    for _ in first:
        pass
    check_digest(first.result, sha256)
    with staged(target, first.result.data_bytes, first.result.members) as stage:
        with extracting(stage, owner) as extraction:
            again = first.again()
            for member in again:
                extraction.put(member, again.data())
        take_place(stage, durable=durable)
    return first.result


def check_digest(found: Inspection, sha256: str | None) -> None:
    """Raise `snapshot_corrupt` for an archive that is not the one that was recorded."""
    if sha256 is not None and found.sha256 != sha256:
        raise corrupt("is not the one that was recorded: its digest is another")


@contextmanager
def staged(target: str, size_bytes: int, members: int) -> Iterator[Stage]:
    """A stage beside `target`, for the length of a block. Raises `storage_unavailable` where there is no room for so
    much and so many.
    """
    try:
        with Stage(os.fsencode(target), beside=True) as stage:
            room = os.statvfs(stage.path)
            if room.f_bavail * room.f_frsize < size_bytes or (room.f_files > 0 and room.f_favail < members):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield stage
    except OSError as error:
        raise _unwritable(error.strerror or "it failed") from None


def take_place(stage: Stage, *, durable: bool) -> None:
    """Make what is staged effective. Raises `storage_unavailable`; then nothing is changed."""
    try:
        swap(stage, durable=durable)
    except OSError as error:
        raise _unwritable(error.strerror or "it failed") from None


class Extraction:
    """A tree that is being made of members."""

    def __init__(self, tree: bytes, process: "subprocess.Popen[bytes]", owner: tuple[int, int] | None) -> None:
        assert process.stdin is not None
        self._tree = tree
        self._owner = owner
        self._input = process.stdin.fileno()
        self._writer = Writer(self._pass)
        self._top: Member | None = None
        self._sticky: dict[bytes, int] = {}
        self._sticky_bytes = 0

    def put(self, member: Member, data: Iterable[memoryview] = ()) -> None:
        """Have a member made. Names are checked, so none leads anywhere but into the tree."""
        if member.name == TOP:
            self._top = member
            return
        if member.mode & _STICKY and member.kind == "directory":
            self._remember(member)
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
        """When all is made: what the program does not do, or not for the tree's top. Raises OSError."""
        opened = os.open(self._tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name, mode in self._sticky.items():
                with suppress(PermissionError):  # a directory above is closed to a user's own daemon
                    _set_mode(opened, name, mode)
            if self._top is not None:
                for xattr, value in self._top.xattrs.items():
                    os.setxattr(opened, xattr, value)
                os.fchmod(opened, self._top.mode & (_PERMISSIONS | _STICKY))
                os.utime(opened, ns=(self._top.mtime_ns, self._top.mtime_ns))
        finally:
            os.close(opened)

    def _remember(self, member: Member) -> None:
        self._sticky[member.name] = member.mode & (_PERMISSIONS | _STICKY)
        self._sticky_bytes += len(member.name)
        if self._sticky_bytes > _MOST_STICKY_BYTES:
            raise corrupt(f"cannot be extracted: with {shown(member.name)} it has too many sticky directories")

    def _pass(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self._input, data) :]


@contextmanager
def extracting(stage: Stage, owner: tuple[int, int] | None) -> Iterator[Extraction]:
    """Make a tree in a stage, complete when the block is left well. See `jail` for what does it."""
    if os.geteuid() == 0 and owner is not None:
        os.chown(stage.tree, *owner)
    with tempfile.TemporaryFile() as said:
        process = jail.start_extracting(stage.tree, owner, said, group=stage.group)
        try:
            extraction = Extraction(stage.tree, process, owner)
            with suppress(BrokenPipeError):  # it has ended, and said why
                yield extraction
                extraction.finish()
            process.communicate()
            if process.returncode:
                raise _failure(said, process.returncode)
            extraction.settle()
        finally:
            process.kill()
            process.communicate()


def _set_mode(top: int, name: bytes, mode: int) -> None:
    """Directory by directory, so that no link is followed."""
    opened = os.dup(top)
    try:
        for part in name.split(b"/"):
            above, opened = opened, os.open(part, _OPEN, dir_fd=opened)
            os.close(above)
        os.chmod(f"/proc/self/fd/{opened}", mode)
    finally:
        os.close(opened)


def _failure(said: IO[bytes], code: int) -> SandkeepError:
    said.seek(0)
    lines = said.read(_MAX_SAID_BYTES).strip().splitlines() or [b"it ended with %d" % code]
    if any(words in line for line in lines for words in _NO_ROOM):
        return _unwritable(os.strerror(errno.ENOSPC))
    first = shown(lines[0].removeprefix(b"tar: "))[1:-1]
    if lines[0].startswith(_NOT_BEGUN) or code < 0:
        return ProviderError("provider_unavailable", f"the extracting program failed: {first}; nothing was restored")
    return corrupt(f"cannot be extracted here: {first}; nothing was restored")


def _unwritable(why: str) -> DaemonError:
    return DaemonError("storage_unavailable", f"the files cannot be restored: {why}: make room there")
