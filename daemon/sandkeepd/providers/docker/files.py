"""Files of a container that has no programs to read them with: accessed from outside, with the rights of its user.

A thread with only the container's user and groups, and no capabilities, resolves every path below the root of the
container's first process, so that no link and no ``..`` leads out of it. Everything here blocks.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, NamedTuple, TypeVar

from sandkeep.errors import SandkeepError, StateError
from sandkeep.ids import new_id
from sandkeep.model import FileContent, FileEntry
from sandkeep.system.descriptors import closing_fd
from sandkeep.system.openat2 import open_in_root
from sandkeepd.contract.instance import Directory
from sandkeepd.host.privileges import take_rights_of
from sandkeepd.host.processes import Identity, identify, in_fresh_thread
from sandkeepd.keeper import files
from sandkeepd.keeper.failure import failure
from sandkeepd.keeper.pipes import HELPER

T = TypeVar("T")

_MOST_LINKS: Final = 40
_MODE: Final = 0o644


class _RefusedError(Exception):
    """Raised when a file cannot be read or written: with the error that a command inside would print."""


class Root:
    """The root of a sandbox's files. Relative paths begin at `working_dir`."""

    def __init__(self, sandbox_id: str, first: Identity, user: tuple[int, int], working_dir: str) -> None:
        self._sandbox_id = sandbox_id
        self._first = first
        self._user = user
        self._working_dir = working_dir

    def do(self, path: str, work: Callable[["_Inside", bytes], T]) -> T:
        """Run some work with a path, in a thread that has the user's rights. Converts errors into those for files."""

        def inside() -> T:
            with closing_fd(self._open()) as place:
                take_rights_of(*self._user)
                return work(_Inside(place), os.fsencode(os.path.join(self._working_dir, path)))

        try:
            return in_fresh_thread(inside)
        except _RefusedError as refused:
            raise failure(str(refused).encode(), 1, path) from None
        except OSError as error:
            raise failure(os.strerror(error.errno or errno.EIO).encode(), 1, path) from None

    def _open(self) -> int:
        """Open the root directory. Its process is identified last, as its pid may become another's."""
        try:
            place = os.open(f"/proc/{self._first.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise self._gone() from None
        if identify(self._first.pid) == self._first:
            return place
        os.close(place)
        raise self._gone()

    def _gone(self) -> SandkeepError:
        return StateError("not_ready", f"sandbox {self._sandbox_id} has ended: create another")


class _Inside(NamedTuple):
    """The place where paths are resolved, with links as the code inside sees them."""

    place: int

    def opened(self, path: bytes, flags: int) -> AbstractContextManager[int]:
        return closing_fd(open_in_root(self.place, path, flags))


# -- reading -----------------------------------------------------------------------------------------------------------


def read_piece(root: Root, path: str, offset: int, max_bytes: int) -> FileContent:
    """See `Instance.read_piece`."""

    def work(inside: _Inside, place: bytes) -> FileContent:
        with inside.opened(place, os.O_PATH) as found:
            _require_file(os.fstat(found).st_mode)
            fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with closing_fd(fd):
            data = _read(fd, offset, max_bytes)
            status = os.fstat(fd)
        size = max(status.st_size, offset + len(data) if data else 0)
        # Files of procfs and sysfs have no size, and end at a short read.
        eof = offset + len(data) >= size and (len(data) < max_bytes or status.st_size > 0 or max_bytes == 0)
        return FileContent(offset=offset, data=data, size_bytes=size, mode=stat.S_IMODE(status.st_mode), eof=eof)

    return root.do(path, work)


def _read(fd: int, offset: int, max_bytes: int) -> bytes:
    pieces = []
    while max_bytes and (piece := os.pread(fd, min(max_bytes, 1 << 20), offset)):
        pieces.append(piece)
        offset += len(piece)
        max_bytes -= len(piece)
    return b"".join(pieces)


def _require_file(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise _RefusedError("Is not a regular file")


def list_directory(root: Root, path: str, after: bytes, limit: int) -> Directory:
    """See `Instance.list_directory`."""

    def work(inside: _Inside, place: bytes) -> Directory:
        with inside.opened(place, os.O_RDONLY | os.O_DIRECTORY) as directory:
            names = sorted(name for name in map(os.fsencode, os.listdir(directory)) if name > after)
            shown = names[:limit]
            entries = [entry for name in shown for entry in _entry(directory, name, path)]
        return Directory(entries=entries, last=shown[-1] if len(names) > limit else None)

    return root.do(path, work)


def _entry(directory: int, name: bytes, path: str) -> Iterator[FileEntry]:
    """Yield the entry of a file, unless it has gone meanwhile."""
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(status.st_mode) else b""
        what = f"x{status.st_mode:x} {status.st_size} {status.st_mtime_ns // 10**9}".encode()
        yield files.entry(path, b"./" + name, what, target)


# -- writing -----------------------------------------------------------------------------------------------------------


def write_whole(root: Root, path: str, data: bytes, *, mode: int | None, parents: bool, most_bytes: int) -> None:
    """See `Instance.write_whole`. A file larger than `most_bytes` is refused."""
    if len(data) > most_bytes:
        raise failure(b"File too large", 1, path)

    def work(inside: _Inside, place: bytes) -> None:
        if place.endswith((b"/", b"/.", b"/..")):
            raise _RefusedError("Is not a regular file")
        made = _make_parents(inside, os.path.dirname(place)) if parents else []
        try:
            with _target(inside, place) as (directory, name):
                _replace(directory, name, data, mode)
        except BaseException:
            for directory_path in reversed(made):
                with suppress(OSError), inside.opened(os.path.dirname(directory_path), os.O_PATH) as above:
                    os.rmdir(os.path.basename(directory_path), dir_fd=above)
            raise

    root.do(path, work)


def _make_parents(inside: _Inside, directory: bytes) -> list[bytes]:
    """Make a directory and its missing parents; return those that were made."""
    missing = []
    while directory.strip(b"/"):
        try:
            with inside.opened(directory, os.O_PATH | os.O_DIRECTORY):
                break
        except FileNotFoundError:
            missing.append(directory)
            directory = os.path.dirname(directory.rstrip(b"/"))
    made: list[bytes] = []
    for path in reversed(missing):
        with inside.opened(os.path.dirname(path.rstrip(b"/")) or b"/", os.O_PATH) as above:
            os.mkdir(os.path.basename(path.rstrip(b"/")), 0o755, dir_fd=above)
        made.append(path)
        with inside.opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as new:
            os.fchmod(new, 0o755)  # regardless of the daemon's umask
    return made


@contextmanager
def _target(inside: _Inside, path: bytes) -> Iterator[tuple[int, bytes]]:
    """Open the directory of the file that a path leads to; yield it with the file's name. The file may be missing."""
    for _ in range(_MOST_LINKS):
        above, name = os.path.split(path)
        if name in (b"", b".", b".."):
            raise _RefusedError("Is not a regular file")
        with inside.opened(above or b"/", os.O_PATH | os.O_DIRECTORY) as directory:
            try:
                link = os.readlink(name, dir_fd=directory)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT):  # it is no link, or is not there
                    raise
                yield directory, name
                return
        path = os.path.join(above, link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _replace(directory: int, name: bytes, data: bytes, mode: int | None) -> None:
    """Write beside the file and rename, so that readers never see half of it. An existing file keeps its mode."""
    kept = _mode_of(directory, name)
    mode = next(each for each in (mode, kept, _MODE) if each is not None)
    new = os.fsencode(files.PARTIAL_PREFIX + new_id(HELPER))
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        with open(fd, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fchmod(fd, mode)
        os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(new, dir_fd=directory)
        raise


def _mode_of(directory: int, name: bytes) -> int | None:
    """Return the mode of a file that may be written to; None when there is none."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _require_file(status.st_mode)
    os.close(os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory))
    return stat.S_IMODE(status.st_mode)
