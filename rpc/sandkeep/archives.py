"""Archives of snapshots: a snapshot as a file, and a file or an object of a bucket as a snapshot.

    with sandkeep.blocking.connect() as client:
        archiving.export_to(client, snapshot_id, "work.tar.gz")
        snapshot = archiving.import_from(client, "elsewhere.tar.gz", name="theirs")

An export replaces the file atomically, once its digest matches that of the daemon.
"""

import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final

from sandkeep.blocking import Client
from sandkeep.clients import buckets
from sandkeep.errors import CallerError, DataError, SandkeepError
from sandkeep.model import ArchiveFormat, Snapshot, SnapshotExport
from sandkeep.system.descriptors import write_all
from sandkeep.system.durable import Replacement

Progress = Callable[[int], None]
Read = Callable[[int], bytes]

CHUNK_BYTES: Final = 1 << 20
_MAGIC: Final[dict[bytes, ArchiveFormat]] = {b"\x1f\x8b": "tar.gz", b"\x28\xb5": "tar.zst"}


def export_to(client: Client, snapshot_id: str, path: str, *, progress: Progress | None = None) -> SnapshotExport:
    """Write a snapshot to a file as one whole archive. An existing file is replaced, and a symbolic link stays; FIFOs
    and devices are written to.

    Raises `permission_denied`, `not_found` and `invalid` for the path, and the daemon's errors.
    """
    with new_file(path) as descriptor:
        return export_into(client, snapshot_id, descriptor, progress=progress)


@contextmanager
def new_file(path: str) -> Iterator[int]:
    """Yield a descriptor for a file that takes the place of `path` when the block has ended well; see `export_to`."""
    path = os.path.realpath(path)
    try:
        if _is_special(path):
            with open(path, "wb", buffering=0) as file:
                yield file.fileno()
        else:
            with Replacement(path, temporary=f"{path}.{secrets.token_hex(4)}.part", mode=0o666) as new:
                yield new.file.fileno()
    except OSError as error:
        raise _path_error(error, path) from None


def _is_special(path: str) -> bool:
    """Return True if the path exists and is no regular file. Raises `invalid` for a directory."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    if stat.S_ISDIR(mode):
        raise CallerError("invalid", f"{path} is a directory: give the path of a file", path=path)
    return not stat.S_ISREG(mode)


def export_into(
    client: Client, snapshot_id: str, descriptor: int, *, progress: Progress | None = None
) -> SnapshotExport:
    """Write a snapshot to a descriptor as one archive. Raises `snapshot_corrupt` when its digest does not match."""
    with client.with_descriptors("snapshot.export", snapshot_id) as handed:
        [source] = handed.receive()
        try:
            digest = _copy(iter(lambda: os.read(source, CHUNK_BYTES), b""), descriptor, progress)
        finally:
            os.close(source)
        exported: SnapshotExport = handed.answer()
    if exported.digest != f"sha256:{digest}":
        raise DataError("snapshot_corrupt", "the exported archive does not match the daemon's digest: export it again")
    return exported


def import_from(
    client: Client, path: str, *, digest: str | None = None, progress: Progress | None = None, **options: Any
) -> Snapshot:
    """Import a tar archive, plain or compressed by gzip or zstd, as a snapshot: a file, or an object
    ``gs://BUCKET/OBJECT`` or ``s3://BUCKET/KEY``, which is read with your own credentials. `options` are further
    parameters of ``snapshot.import``.

    Raises `snapshot_corrupt` for an archive that is damaged or unsafe to extract, and the daemon's errors.
    """
    if digest is not None:
        options["digest"] = digest
    if buckets.is_address(path):
        found = buckets.open_object(path)
        return _import(client, found.read, found.size_bytes, progress, options)
    try:
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                message = f"{path} is not a regular file: write it to a file and import that"
                raise CallerError("invalid", message, path=path)
            return _import(client, file.read, status.st_size, progress, options)
    except OSError as error:
        raise _path_error(error, path) from None


def _import(client: Client, read: Read, size: int, progress: Progress | None, options: dict[str, Any]) -> Snapshot:
    first = read(CHUNK_BYTES)
    with client.with_descriptors("snapshot.import", size, **options, format=archive_format(first)) as handed:
        [target] = handed.receive()
        try:
            with suppress(BrokenPipeError):  # the call tells why
                _copy(chain([first], iter(lambda: read(CHUNK_BYTES), b"")), target, progress)
        finally:
            os.close(target)
        snapshot: Snapshot = handed.answer()
    return snapshot


def archive_format(beginning: bytes) -> ArchiveFormat:
    """Return the format of an archive by its first two bytes."""
    return _MAGIC.get(beginning[:2], "tar")


def _copy(chunks: Iterable[bytes], target: int, progress: Progress | None) -> str:
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        write_all(target, chunk)
        size += len(chunk)
        if progress is not None:
            progress(size)
    return digest.hexdigest()


def _path_error(error: OSError, path: str) -> SandkeepError:
    code = {PermissionError: "permission_denied", FileNotFoundError: "not_found"}.get(type(error), "invalid")
    return CallerError(code, f"{path}: {error.strerror}", path=path)
