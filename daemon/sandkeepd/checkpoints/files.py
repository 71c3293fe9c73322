"""The files of checkpoints: where they go, how they get there, and how they are had again.

A checkpoint is made in a directory of this machine, ``sandbox_checkpoints/CHECKPOINT`` below where archives lie, and
stays there if it goes nowhere else. One for a mount or a bucket is copied from there, file by file, and counts once
each copy is complete and has the digest that it has to have. All of it is for its owner's eyes only: it holds memory.
"""

import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import trio

from sandkeep import failpoints, model
from sandkeep.errors import DaemonError, DataError, SandkeepError, error_from
from sandkeep.model import CheckpointFile
from sandkeep.system import durable
from sandkeep.system.durable import sync_directory
from sandkeep_store.archives.stores import copy as copying
from sandkeep_store.archives.stores.directory import DirectoryArchives
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.archives.stores.transfer import DigestedCopy
from sandkeep_store.buckets.config import STORAGE
from sandkeep_store.buckets.sdks import require_sdk
from sandkeep_store.locks.fence import Fence
from sandkeepd.contract.caller import Progress
from sandkeepd.host import digests
from sandkeepd.host.threads import Meter, in_long_thread, run_in_thread
from sandkeepd.snapshots.archive_paths import place_of, root_of
from sandkeepd.snapshots.archives import LOCAL, LOG_KEY, SnapshotArchives

FOLDER: Final = "sandbox_checkpoints"
MAKING: Final = ".making"
HAD: Final = ".had-"
"""Suffix of directories that are being made, and of copies of checkpoints in a bucket."""

_CHUNK: Final = 1 << 20
_LARGE: Final = 4 << 20
"""Files larger than this are verified while the restore has begun already."""


class CheckpointFiles:
    """Operations on the files of checkpoints."""

    def __init__(self, archives: SnapshotArchives, log_id: str) -> None:
        self.archives = archives
        self._in_thread = in_long_thread
        self._log_id = log_id

    def place(self, checkpoint_id: str, *, bucket: bool) -> model.Place:
        """Return the place of a new checkpoint. Raises `not_configured` and, for a bucket without its SDK,
        `not_supported`, before any effect.
        """
        root = STORAGE.require("checkpoint", bucket=bucket)
        require_sdk(root)
        DirectoryArchives(STORAGE.local_root()).require_private()
        return place_of(root, f"{FOLDER}/{checkpoint_id}")

    def here(self, place: model.Place) -> model.Place:
        """Return the place on this machine in which a checkpoint for that place is made."""
        return place if place.where in LOCAL else place_of(STORAGE.local_root(), place.path)

    @asynccontextmanager
    async def making(self, place: model.Place) -> AsyncIterator[str]:
        """An empty directory for a new checkpoint, for the length of a block. Unless it was kept, nothing is left."""
        directory = _directory(self.here(place)) + MAKING
        await self._in_thread(_make_directory, directory)
        try:
            yield directory
        finally:
            with trio.CancelScope(shield=True):
                await self._in_thread(remove_directory, directory)

    async def keep(
        self,
        directory: str,
        place: model.Place,
        known: Mapping[str, tuple[str, int]],
        fence: Callable[[], Fence | None],
        progress: Progress,
    ) -> list[CheckpointFile]:
        """Publish a directory's files in their place, complete and durable; return the list of files. Of some files the
        digest and size are `known`.
        """
        here = self.here(place)
        kind = digests.BLAKE3 if here == place else digests.SHA256
        files = await run_in_thread(partial(_finish, directory, known, kind), progress, "writing the checkpoint")
        if (held := fence()) is not None:
            held.check()
        await self._in_thread(_publish, directory, _directory(here))
        failpoints.reach("checkpoint.kept")
        if here == place:
            return files
        try:
            for file in files:
                await self._send(here, place, file, fence(), progress)
        except BaseException:
            with trio.CancelScope(shield=True):
                with suppress(SandkeepError):
                    await self._remove_files(place, [file.name for file in files])
                await self._in_thread(remove_directory, _directory(here))
            raise
        await self._in_thread(remove_directory, _directory(here))
        return files

    async def _send(
        self, here: model.Place, place: model.Place, file: CheckpointFile, fence: Fence | None, progress: Progress
    ) -> None:
        def work(moved: Meter) -> None:
            local, target = DirectoryArchives(root_of(here)), open_store(root_of(place))
            path = f"{place.path}/{file.name}"
            metadata, digest = {LOG_KEY: self._log_id}, file.digest.removeprefix("sha256:")
            copying.send(local, path, target, path, sha256=digest, metadata=metadata, fence=fence, progress=moved)

        await run_in_thread(work, progress, f"sending it to {place.uri}", total_bytes=file.size_bytes)

    # Having again

    @asynccontextmanager
    async def opened(
        self, place: model.Place, files: Sequence[CheckpointFile], progress: Progress
    ) -> AsyncIterator["CheckpointCopy"]:
        """Yield a checkpoint as a directory of this machine, which stays until it is released. Its large files may
        still be unverified: see `CheckpointCopy.check`.

        Raises `snapshot_missing`, `snapshot_corrupt`, `provider_unavailable`.
        """
        directory = _directory(self.here(place))
        copied = self.here(place) != place
        if copied:
            directory += f"{HAD}{secrets.token_hex(8)}"
        later = [file for file in files if file.size_bytes > _LARGE and file.name not in FIRST]
        large = [] if copied else later
        copy = CheckpointCopy(directory if copied else None, directory, large)
        try:
            if copied:
                await self._fetch(place, files, directory, progress)
            else:
                few = [file for file in files if file not in large]
                await run_in_thread(partial(_verify, directory, few), progress, "verifying the checkpoint")
            yield copy
        finally:
            with trio.CancelScope(shield=True):
                await self._in_thread(copy.release)

    async def _fetch(
        self, place: model.Place, files: Sequence[CheckpointFile], directory: str, progress: Progress
    ) -> None:
        await self._in_thread(_make_directory, directory)

        def work(moved: Meter) -> None:
            store = open_store(root_of(place))
            for file in files:
                kind = digests.algorithm_of(file.digest)
                target = _private(f"{directory}/{file.name}")
                try:
                    copy = DigestedCopy(partial(digests.Digest, kind), target)
                    path, size_bytes = f"{place.path}/{file.name}", file.size_bytes
                    store.download(path, copy.begin, size_bytes=size_bytes, progress=moved)
                finally:
                    os.close(target)
                _compare(file, copy.digest)

        await run_in_thread(work, progress, f"reading {place.uri}")

    # Removing

    async def remove(self, place: model.Place, files: Sequence[CheckpointFile]) -> None:
        """Remove a checkpoint, complete or half made. Safe to repeat. Raises `provider_unavailable`, with `engine`."""
        here = _directory(self.here(place))
        await self._in_thread(remove_directory, here + MAKING)
        await self._in_thread(remove_directory, here)
        if self.here(place) != place:
            await self._remove_files(place, [file.name for file in files] or KNOWN)

    async def _remove_files(self, place: model.Place, names: Sequence[str]) -> None:
        await self.archives.remove([place_of(root_of(place), f"{place.path}/{name}") for name in names])

    def abandoned(self) -> list[str]:
        """Return copies left by daemons that died. Call before this daemon makes copies. Blocks."""
        folder = f"{STORAGE.local_root().base}/{FOLDER}"
        try:
            return [f"{folder}/{name}" for name in os.listdir(folder) if HAD in name]
        except FileNotFoundError:
            return []


FIRST: Final = ("shared.tar", "processes.json", "open.names")
"""Files that are verified before any use, in any size: they say where files go."""

KNOWN: Final = ("checkpoint.img", *FIRST)
"""The names of a checkpoint's files, of which there may be some where nothing is on record of it."""


class CheckpointCopy:
    """A checkpoint in a local directory, with a reference count: longer users call `hold`, and then `release`.

    The first user calls `check`; others must not rely on the files before `checked` has returned.
    """

    def __init__(self, copy: str | None, directory: str, large: Sequence[CheckpointFile]) -> None:
        self._copy = copy
        self.directory = directory
        self._holds = 1
        self._large = large
        self._looked = trio.Event()
        self._wrong: SandkeepError | None = None

    async def check(self, progress: Progress) -> None:
        """Verify the large files. Raises `snapshot_missing`, `snapshot_corrupt`."""
        try:
            if self._large:
                await run_in_thread(partial(_verify, self.directory, self._large), progress, "verifying the checkpoint")
        except SandkeepError as error:
            self._wrong = error
        except BaseException:
            self._wrong = DaemonError("internal", "the checkpoint was not verified")
            raise
        finally:
            self._looked.set()
        await self.checked()

    async def checked(self) -> None:
        """Wait until all of it is verified. Raises as `check` does."""
        await self._looked.wait()
        if self._wrong is not None:
            raise error_from(self._wrong.code, self._wrong.message, self._wrong.data)

    def hold(self) -> None:
        """Need it."""
        self._holds += 1

    def release(self) -> None:
        """Need it no more. Blocks, the last one."""
        self._holds -= 1
        if not self._holds and self._copy is not None:
            remove_directory(self._copy)


def _directory(place: model.Place) -> str:
    return f"{place.base}/{place.path}"


def _make_directory(path: str) -> None:
    try:
        remove_directory(path)
        os.makedirs(path, mode=0o700)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: str, error: OSError) -> DaemonError:
    return DaemonError("storage_unavailable", f"{path} cannot be written: {error.strerror}: make room there")


def _private(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _finish(directory: str, known: Mapping[str, tuple[str, int]], kind: str, moved: Meter) -> list[CheckpointFile]:
    """Fsync all files of a directory; return their names, sizes and digests of that kind."""
    done = 0
    found = []
    try:
        for name in sorted(os.listdir(directory)):
            file = _digested(f"{directory}/{name}", known.get(name), kind, moved, done)
            done += file.size_bytes
            found.append(file)
        sync_directory(directory)
    except OSError as error:
        raise _unwritable(directory, error) from None
    return found


def _digested(path: str, known: tuple[str, int] | None, kind: str, moved: Meter, before: int) -> CheckpointFile:
    """Fsync a file; return its entry. `before` are the bytes that were digested before it."""
    name, digest, size = os.path.basename(path), digests.Digest(kind), 0
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(fd, 0o600)
        if known is not None and os.fstat(fd).st_size == known[1] and digests.algorithm_of(known[0]) == kind:
            os.fsync(fd)
            return CheckpointFile(name=name, digest=known[0], size_bytes=known[1])
        while chunk := os.read(fd, _CHUNK):
            digest.update(chunk)
            size += len(chunk)
            moved(before + size)
        os.fsync(fd)
    finally:
        os.close(fd)
    return CheckpointFile(name=name, digest=digest.text(), size_bytes=size)


def _publish(making: str, directory: str) -> None:
    try:
        durable.rename(making, directory)
    except OSError as error:
        remove_directory(directory)  # nobody else would
        raise _unwritable(directory, error) from None


def _verify(directory: str, files: Sequence[CheckpointFile], moved: Meter) -> None:
    """Verify all files against their records. Raises `snapshot_missing`, `snapshot_corrupt`."""
    done = 0
    for file in files:
        digest = digests.Digest(digests.algorithm_of(file.digest))
        try:
            fd = os.open(f"{directory}/{file.name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise DataError("snapshot_missing", f"the checkpoint is not in {directory} any more") from None
        try:
            while chunk := os.read(fd, _CHUNK):
                digest.update(chunk)
                done += len(chunk)
                moved(done)
        finally:
            os.close(fd)
        _compare(file, digest)


def _compare(file: CheckpointFile, found: digests.Digest) -> None:
    if file.digest != found.text():
        message = f"the checkpoint's {file.name} is damaged: its digest is not the one on record: restore another"
        raise DataError("snapshot_corrupt", message)


def remove_directory(path: str) -> None:
    """Remove a directory tree, if it exists. Blocks."""
    shutil.rmtree(path, ignore_errors=True)
