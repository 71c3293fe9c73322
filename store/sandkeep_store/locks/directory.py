"""Documents in a directory that several processes, or several machines by a network file system, see.

A file system has no compare-and-swap. But on each of them, NFS of any version included, only one of several concurrent
hard links to one name succeeds. So a writer

    1. puts the new document beside the old one, under a name of its own, and fsyncs it;
    2. links it to ``NAME.next``: the one that succeeds is the only one to write next;
    3. checks that the old document is still the expected version, and
    4. renames ``NAME.next`` to ``NAME``, which readers see whole or not at all.

A dead process blocks others for a limited time only: the next writer moves a ``NAME.next`` older than `STALE_S`,
by the file system's own clock, out of the way, and its maker, should it go on then, finds nothing to rename. (It could
rename the unchecked link of another writer if it was stopped for a minute between its last check and the rename, and
went on in the very instant of that writer's check: a window of some microseconds after a pause of a minute. Then fences
still protect.) ``flock`` would be shorter, and wrong where it covers only this machine, as on many mounts; and a
process that is stopped while it holds the lock stops all others.

Mounts of buckets have no links, or emulate them by copies, and so no safe locks: links are tried before the first
write to a directory, which is refused with `not_supported` if they fail. Use the bucket itself.
"""

import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sandkeep.errors import ProviderError, SetupError
from sandkeep.system.descriptors import closing_fd
from sandkeep.system.durable import make_directory
from sandkeep_store.locks.document import damaged
from sandkeep_store.locks.store import MAX_DOCUMENT_BYTES, Stored, Written

STALE_S: Final = 60.0
"""Age in seconds at which another writer's link counts as left by a dead process."""

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)


class DirectoryStore:
    """See `DocumentStore`. The directory `root` is there already; documents are readable by their owner alone."""

    def __init__(self, root: str) -> None:
        self.where = root
        self._has_links = False

    def read(self, path: str, most: int = MAX_DOCUMENT_BYTES) -> Stored | None:
        """See `DocumentStore.read`."""
        place = f"{self.where}/{path}"
        with _translated(place), self._open_root() as root:
            try:
                with _open_folder(root, path) as folder:
                    return _read(folder, os.path.basename(path), place, most)
            except FileNotFoundError:
                return None

    def write(self, path: str, content: bytes, over: str | None) -> Written | None:
        """See `DocumentStore.write`. Raises `not_supported` where no links can be made."""
        place = f"{self.where}/{path}"
        with _translated(place), self._open_root() as root:
            _make_folders(root, path)
            with _open_folder(root, path) as folder:
                if not self._has_links:
                    _require_links(folder, place)
                    self._has_links = True
                return _write(folder, os.path.basename(path), content, over, place)

    @contextmanager
    def _open_root(self) -> Iterator[int]:
        try:
            root = os.open(self.where, _FOLDER & ~os.O_NOFOLLOW)
        except OSError as error:
            message = f"{self.where} cannot be used ({error.strerror}): make that directory, or mount it"
            raise ProviderError("provider_unavailable", message) from None
        with closing_fd(root):
            yield root


@contextmanager
def _translated(place: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{place} cannot be used ({error.strerror}): check that directory"
        raise ProviderError("provider_unavailable", message) from None


# -- folders ----------------------------------------------------------------------------------------------------------


def _make_folders(root: int, path: str) -> None:
    parts = path.split("/")[:-1]
    for depth in range(len(parts)):
        with _open_folder(root, "/".join(parts[: depth + 1])) as parent:
            make_directory(parts[depth], parent)


@contextmanager
def _open_folder(root: int, path: str) -> Iterator[int]:
    """A descriptor of the directory that a document is in, which no link below the root leads to."""
    opened = [os.dup(root)]
    try:
        for part in path.split("/")[:-1]:
            opened.append(os.open(part, _FOLDER, dir_fd=opened[-1]))
        yield opened[-1]
    finally:
        for descriptor in opened:
            os.close(descriptor)


# -- documents --------------------------------------------------------------------------------------------------------


def _read(folder: int, name: str, place: str, most: int) -> Stored | None:
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise damaged(place, "it is not a regular file") from None
        raise
    with closing_fd(descriptor):
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise damaged(place, "it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(most + 1)
        return Stored(content, _version(os.fstat(descriptor), content))


def _version(status: os.stat_result, content: bytes) -> str:
    """Identify a version of a document. Time stamps are coarse and inodes are reused, so the content counts too."""
    digest = hashlib.sha256(content[:MAX_DOCUMENT_BYTES]).hexdigest()[:32]
    return f"{status.st_ino}.{status.st_mtime_ns}.{status.st_size}.{digest}"


def _write(folder: int, name: str, content: bytes, over: str | None, place: str) -> Written | None:
    own, following = f".{name}.{uuid.uuid4().hex}", f"{name}.next"
    written = _put(folder, own, content)
    try:
        if not _claim(folder, own, following, written.time, place):
            return None
        found = _read(folder, name, place, MAX_DOCUMENT_BYTES)
        if (found and found.version) != over or not _commit(folder, own, following, name):
            return None
    finally:
        if _is_same(folder, own, following):
            _remove(folder, following)
        _remove(folder, own)
    os.fsync(folder)
    return written


def _put(folder: int, name: str, content: bytes) -> Written:
    with open(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        status = os.fstat(file.fileno())
    return Written(_version(status, content), status.st_mtime)


def _claim(folder: int, own: str, following: str, now: float, place: str) -> bool:
    """Become the only process to write next; return False while another is. `now` is by the file system's clock."""
    if _link(folder, own, following, place):
        return True
    try:
        made = os.stat(following, dir_fd=folder, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return False
    if now - made <= STALE_S:
        return False
    aside = f"{own}.stale"
    with suppress(FileNotFoundError):
        os.rename(following, aside, src_dir_fd=folder, dst_dir_fd=folder)
        _remove(folder, aside)
    return _link(folder, own, following, place)


def _link(folder: int, own: str, following: str, place: str) -> bool:
    try:
        os.link(own, following, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return _is_same(folder, own, following)  # NFS: it was made, the answer was lost, and it was asked for again
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise _no_links(place) from None
        raise
    return True


def _require_links(folder: int, place: str) -> None:
    """See that a link is the same file, and that a second one of that name is refused. Raises `not_supported`."""
    one, other, link = (f".links.{uuid.uuid4().hex}" for _ in range(3))
    try:
        for name in (one, other):
            os.close(os.open(name, _NEW, 0o600, dir_fd=folder))
        made = _link(folder, one, link, place) and _is_same(folder, one, link)
        if not made or _link(folder, other, link, place) or not _is_same(folder, one, link):
            raise _no_links(place)
    finally:
        for name in (one, other, link):
            _remove(folder, name)


def _no_links(place: str) -> SetupError:
    message = f"{place} has no hard links, as a mounted bucket has none: no lock is safe there: use the bucket itself"
    return SetupError("not_supported", message)


def _commit(folder: int, own: str, following: str, name: str) -> bool:
    """Publish the new document; return False if another writer took over our link as stale."""
    if not _is_same(folder, own, following):
        return False
    try:
        os.rename(following, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        return _is_same(folder, own, name)  # as above
    return True


def _is_same(folder: int, one: str, other: str) -> bool:
    try:
        first, second = (os.stat(name, dir_fd=folder, follow_symlinks=False) for name in (one, other))
    except FileNotFoundError:
        return False
    return os.path.samestat(first, second)


def _remove(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
