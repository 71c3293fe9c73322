"""The archives of snapshots: where they go, how they get there, and how they are had again.

An archive is made in a directory of this machine, and stays there if it goes nowhere else. One for a bucket or a mount
is copied from there, and only counts once the copy is complete, with the digest that it has to have. Where
SANDBOX_SNAPSHOT_DIR is set, the one on this machine stays besides. A restore asks these places in order, and the next
one as soon as one is slow.
"""

import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

import trio

from sandkeep import failpoints, model
from sandkeep.errors import DaemonError, DataError, ProviderError, SandkeepError, error_from
from sandkeep_store.archives.stores import copy
from sandkeep_store.archives.stores.choice import restore_order
from sandkeep_store.archives.stores.directory import DirectoryArchives, DirectoryUpload
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.archives.stores.store import ArchiveStore, Stored
from sandkeep_store.archives.stores.transfer import begin_copy
from sandkeep_store.archives.tar.inspect import inspect
from sandkeep_store.buckets.config import STORAGE, Place, Root
from sandkeep_store.buckets.sdks import require_sdk
from sandkeep_store.locks.fence import Fence
from sandkeep_store.threads import in_thread
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.contract.caller import Progress, no_progress
from sandkeepd.host.threads import Meter, in_ending_thread, in_long_thread, run_in_thread
from sandkeepd.host.unnamed_file import open_unnamed
from sandkeepd.snapshots.archive_limits import limits_of
from sandkeepd.snapshots.archive_paths import path_in, place_of, root_of
from sandkeepd.snapshots.hedge import first_whole, open_in_thread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
FenceOf = Callable[[str, str], Fence | None]

logger = logging.getLogger("sandkeepd")

CATALOGUES: Final = "catalogues"
"""The directory of catalogues of this machine's archives, in the formats of their providers."""

LOCAL: Final = ("directory", "state")
"""The kinds of places that are this machine's own, where archives are made."""

PASSING: Final = ("provider_unavailable", "storage_unavailable")
"""Errors of a store that may pass."""

FIRST_PATIENCE_S: Final = 10.0
"""Seconds a caller waits for a bucket that does not answer. Retries continue in the background."""

FIRST_BYTE_S: Final[float] = 30.0
"""Seconds within which a store has to give the first byte of an archive."""

HEAD_START_S: Final = 0.5
"""Seconds that a store has before the next one is asked as well."""

LOG_KEY: Final = "sandkeep-log"
"""The key of an object's metadata that says of which log it is."""


class SnapshotArchives:
    """Operations on archives."""

    def __init__(self, state_dir: str, log_id: str) -> None:
        self.state_dir = state_dir
        self._catalogues = f"{state_dir}/{CATALOGUES}"
        self._log_id = log_id
        self._since = time.time()
        self.fence: FenceOf = lambda sandbox_id, owner: None  # noqa: ARG005
        """Returns the fence for writes of a sandbox, if a lock guards it; see `Leases.fence`."""
        self.publish: Callable[[str], Awaitable[None]] = _nobody
        """Tells other daemons of what was saved of a shared sandbox; see `Publisher.publish`."""

    # -- places -------------------------------------------------------------------------------------------------------

    def places(
        self, snapshot_id: str, group: str, written_as: model.ArchiveFormat, *, bucket: bool
    ) -> list[model.Place]:
        """Return the places of a new archive, the preferred one first. Raises `not_configured` and, for a bucket
        without its SDK, `not_supported`, before any effect.
        """
        local = STORAGE.local_root()
        DirectoryArchives(local).require_private()
        roots = [STORAGE.require("snapshot", bucket=bucket)]
        require_sdk(roots[0])
        if roots[0] != local and local.where == "directory":
            roots.append(local)
        return [place_of(root, path_in(root, snapshot_id, group, written_as)) for root in roots]

    def named_place(self, path: str) -> model.Place:
        """Return the place of an archive that others find by its path. Raises as `places`."""
        DirectoryArchives(STORAGE.local_root()).require_private()
        root = STORAGE.require("snapshot", bucket=True)
        require_sdk(root)
        return place_of(root, path)

    def catalogue(self, snapshot_id: str) -> str:
        """Return the path of an archive's catalogue."""
        try:
            os.makedirs(self._catalogues, mode=0o700, exist_ok=True)
        except OSError as error:
            raise DaemonError(
                "storage_unavailable", f"{self._catalogues} cannot be written: {error.strerror}: make room there"
            ) from None
        return f"{self._catalogues}/{snapshot_id}"

    def has_catalogue(self, snapshot_id: str) -> bool:
        """Return True if an archive has a catalogue here."""
        return os.path.isfile(f"{self._catalogues}/{snapshot_id}")

    def drop_catalogue(self, snapshot_id: str) -> None:
        """Tell it no more. Safe to repeat."""
        with suppress(FileNotFoundError):
            os.unlink(f"{self._catalogues}/{snapshot_id}")

    # -- making -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def making(
        self, places: Sequence[model.Place], fence: Callable[[], Fence | None] = lambda: None
    ) -> AsyncIterator["Making"]:
        """Make an archive for these places, for the length of a block. Unless it was kept, nothing is left.

        The `fence` is called before the archive is written to a shared place. Its errors are raised here.
        """
        here = self.here(places)
        upload = await in_thread(DirectoryArchives(root_of(here)).create, here.path)
        making = Making(self, upload, here, places, self._log_id, fence)
        try:
            yield making
        finally:
            with trio.CancelScope(shield=True):
                await in_thread(upload.abort)
                if not making.is_kept:
                    await self._take_back(making.sent)

    def here(self, places: Sequence[model.Place]) -> model.Place:
        """Return the place on this machine in which an archive for these places is made."""
        local = [place for place in places if place.where in LOCAL]
        return local[0] if local else place_of(STORAGE.local_root(), places[0].path)

    async def send_on(self, here: model.Place, place: model.Place, sha256: str, fence: Fence | None) -> Stored:
        """Send an archive from this machine to where it is to be. Raises as `copy.send` does."""

        def work(moved: Meter) -> Stored:
            local, target = DirectoryArchives(root_of(here)), open_store(root_of(place))
            metadata = {LOG_KEY: self._log_id}
            return copy.send(
                local, here.path, target, place.path, sha256=sha256, metadata=metadata, fence=fence, progress=moved
            )

        return await run_in_thread(work, no_progress, f"sending it to {place.uri}")

    async def release(self, here: model.Place, place: model.Place, sent: Stored) -> None:
        """Remove the archive on this machine, if the copy `sent` exists.

        Error handling: ``snapshot.gc`` finds one that stays.
        """

        def work() -> None:
            copy.release(DirectoryArchives(root_of(here)), here.path, open_store(root_of(place)), sent)

        try:
            await in_long_thread(work)
        except SandkeepError as error:
            logger.warning("a copy of an archive stays on this machine", extra={"why": error.message})

    async def _take_back(self, places: Sequence[model.Place]) -> None:
        """Remove partial copies of a failed archive.

        Error handling: ``snapshot.gc`` finds copies that stay.
        """
        try:
            await self.remove(places)
        except SandkeepError as error:
            logger.warning("an archive stays that nobody needs", extra={"why": error.message})

    async def sweep(self) -> None:
        """Remove unfinished archives of an earlier daemon from the state directory."""
        root = Root("state", f"{self.state_dir}/archives")
        await in_thread(DirectoryArchives(root).sweep, time.time() - self._since)

    # -- having again -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def opened(self, snapshot: SnapshotState, progress: Progress) -> AsyncIterator[int]:
        """An archive as an open file, from the first place that has it as it should be; the last one is not looked
        through yet.

        Raises `snapshot_missing` and `snapshot_corrupt` when no place has it so, and `provider_unavailable` when one
        that may have it does not answer.
        """
        descriptor = await self._have(snapshot, progress)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    async def _have(self, snapshot: SnapshotState, progress: Progress) -> int:
        recorded = [root_of(place).place(place.path) for place in snapshot.places]
        places = restore_order(recorded, STORAGE.roots("snapshot"))
        left = set(places)
        """Places that may still give it."""
        total = snapshot.stored.size_bytes if snapshot.stored is not None else None

        async def attempt(place: Place) -> int:
            work = partial(_had, snapshot, place, is_last=left == {place})
            try:
                return await open_in_thread(work, progress, str(place), total, FIRST_BYTE_S)
            except SandkeepError as error:
                logger.warning("an archive is not to be had", extra={"place": str(place), "why": error.message})
                left.discard(place)
                raise

        try:
            return await first_whole([partial(attempt, place) for place in places], HEAD_START_S)
        except SandkeepError as error:
            raise _for_users(error, snapshot.snapshot_id) from None

    async def remove(self, places: Iterable[model.Place]) -> None:
        """Remove archives. Safe to repeat. Raises `provider_unavailable`, naming the `engine` that has to answer."""
        for place in places:
            try:
                await in_ending_thread(_remove, place)
            except DaemonError:
                raise
            except SandkeepError as error:
                raise ProviderError("provider_unavailable", error.message, engine=place.base) from None


def _for_users(error: SandkeepError, snapshot_id: str) -> SandkeepError:
    """Return the error of an archive without its place: the log has that, and paths of the host are the host's."""
    place = error.data.get("place")
    if not isinstance(place, str):
        return error
    message = error.message.replace(place, f"archive of snapshot {snapshot_id}")
    return error_from(error.code, message, {"snapshot_id": snapshot_id})


async def _nobody(sandbox_id: str) -> None:
    """Tell nobody."""


class Making:
    """An archive being made: its content is written to `descriptor`. After `keep`, `unsent` is the reason why it is
    only `here`, if it is.
    """

    def __init__(
        self,
        archives: SnapshotArchives,
        upload: DirectoryUpload,
        here: model.Place,
        places: Sequence[model.Place],
        log_id: str,
        fence: Callable[[], Fence | None],
    ) -> None:
        self._archives = archives
        self._upload = upload
        self.here = here
        self.unsent: str | None = None
        self._places = places
        self._log_id = log_id
        self._fence = fence
        self.sent: list[model.Place] = []
        self.is_kept = False

    @property
    def descriptor(self) -> int:
        """An empty file."""
        return self._upload.descriptor

    async def keep(self, sha256: str, size_bytes: int, progress: Progress) -> None:
        """Put the archive in its places, complete and durable; or on this machine, while a store is unavailable. The
        copy on this machine is published last.
        """
        for place in self._places:
            if place.where not in LOCAL:
                await self._try_to_send(place, sha256, size_bytes, progress)
        if self.unsent is not None or any(place.where in LOCAL for place in self._places):
            if (fence := self._fence()) is not None:
                fence.check()
            await in_thread(self._upload.finish)
        self.is_kept = True
        failpoints.reach("snapshot.kept")

    async def _try_to_send(self, place: model.Place, sha256: str, size_bytes: int, progress: Progress) -> None:
        work = partial(self._send, place, sha256, size_bytes, self._fence())
        try:
            await run_in_thread(work, progress, f"sending it to {place.uri}", total_bytes=size_bytes)
        except SandkeepError as error:
            if error.code not in PASSING:
                raise
            logger.warning("an archive is not sent yet", extra={"place": place.uri, "why": error.message})
            self.unsent = error.message
            return
        self.sent.append(place)
        failpoints.reach("snapshot.sent")

    def _send(self, place: model.Place, sha256: str, size_bytes: int, fence: Fence | None, moved: Meter) -> None:
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        with open(self.descriptor, "rb", closefd=False) as file:
            open_store(root_of(place), patience_s=FIRST_PATIENCE_S).write(
                place.path,
                file,
                size_bytes=size_bytes,
                sha256=sha256,
                metadata={LOG_KEY: self._log_id},
                fence=fence,
                progress=moved,
            )


def _had(snapshot: SnapshotState, place: Place, moved: Meter, *, is_last: bool) -> int:
    """Return an archive as an open file; looked through, if another place may have it, too. Blocks."""
    stored = snapshot.stored
    assert stored is not None
    descriptor = fetched(open_store(place.root), place, stored.size_bytes, moved)
    try:
        if not is_last:
            check(snapshot, descriptor, moved)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check(snapshot: SnapshotState, descriptor: int, moved: Meter) -> None:
    """Verify an archive against its record, and inspect it. Raises `snapshot_corrupt`. Blocks."""
    stored = snapshot.stored
    assert stored is not None
    layer = snapshot.requested.kind == "incremental"
    found = inspect(descriptor, limits_of(snapshot), layer=layer, moved=moved)
    if f"sha256:{found.sha256}" != stored.digest or found.size_bytes != stored.size_bytes:
        raise DataError("snapshot_corrupt", "the archive is damaged: its digest is not the one on record")


def fetched(store: ArchiveStore, place: Place, size_bytes: int, moved: Meter) -> int:
    """Return a descriptor of the archive: the file itself on this machine; else an unnamed copy. An object of another
    size is refused at once: other writers of a bucket must not fill this machine's disk.
    """
    if isinstance(store, DirectoryArchives):
        return store.open_file(place.path)
    descriptor = open_unnamed(STORAGE.local_root().base, create=True)
    try:
        store.download(place.path, partial(begin_copy, descriptor), size_bytes=size_bytes, progress=moved)
    except OSError as error:
        os.close(descriptor)
        raise DaemonError("storage_unavailable", f"no copy of {place} could be made: {error.strerror}") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove(place: model.Place) -> None:
    with suppress(DataError):  # there is nothing
        open_store(root_of(place)).delete(place.path)
