"""Snapshots on their way out and in: as whole archives for others, from archives of others, and as images.

An archive leaves as an open file that only can be read, so that nobody waits for the daemon to copy it. One comes in by
a pipe; it is kept once all of it was looked through, whoever says what about it.
"""

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import trio

from sandkeep import events, failpoints, ids
from sandkeep.errors import DataError, StateError
from sandkeep.model import ArchiveFormat, Image, Snapshot, SnapshotExport
from sandkeep.protocol.methods import SnapshotImport, SnapshotPromote, SnapshotRef
from sandkeep_store.archives.tar.compression import Codec
from sandkeep_store.archives.tar.inspect import Inspection, inspect
from sandkeep_store.archives.tar.limits import Limits
from sandkeep_store.archives.trees.layers import flatten
from sandkeep_store.archives.trees.pack import NO_LIMITS, Packed
from sandkeep_store.buckets.config import STORAGE
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.chains import chain
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.contract.provider import Progress
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import ANEW, Core, as_sandkeep_error
from sandkeepd.host.hostile_files import read_only
from sandkeepd.host.threads import Meter, watched
from sandkeepd.host.unnamed_file import open_unnamed
from sandkeepd.sandboxes.images import Images
from sandkeepd.snapshots.archive_limits import limits_of_import
from sandkeepd.snapshots.archives import SnapshotArchives, check
from sandkeepd.snapshots.forks import layering
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.pipe_intake import Intake, enlarge
from sandkeepd.snapshots.restore import Restores, image_beneath, names_of
from sandkeepd.snapshots.snapshots import Snapshots, snapshotting

IMPORTED: Final = "imported"
"""Where archives lie that are of no sandbox."""

_FORMATS: Final[dict[Codec, ArchiveFormat]] = {"none": "tar", "gzip": "tar.gz", "zstd": "tar.zst"}


class Transfers:
    """The handlers of ``snapshot.export``, ``import`` and ``promote``."""

    def __init__(
        self,
        core: Core,
        images: Images,
        snapshots: Snapshots,
        restores: Restores,
        layers: LayerReferences,
        archives: SnapshotArchives,
    ) -> None:
        self._core = core
        self._images = images
        self._snapshots = snapshots
        self._restores = restores
        self._layers = layers
        self._archives = archives

    # -- out ----------------------------------------------------------------------------------------------------------

    async def export(self, request: Request[SnapshotRef]) -> SnapshotExport:
        """Give the caller one whole archive, as an open file."""
        snapshot = rules.ready_snapshot(self._core.state, request.params.snapshot_id)
        if snapshot.requested.kind == "full":
            return await self._export_as_it_is(request, snapshot)
        return await self._export_whole(request, snapshot)

    async def _export_as_it_is(self, request: Request[SnapshotRef], snapshot: SnapshotState) -> SnapshotExport:
        stored = snapshot.stored
        assert stored is not None
        async with self._archives.opened(snapshot, request.progress) as archive:
            await watched(partial(check, snapshot, archive), request.progress, "looking through the archive")
            given = read_only(archive)
            try:
                await request.give([given])
            finally:
                os.close(given)
        return SnapshotExport(
            snapshot_id=snapshot.snapshot_id, digest=stored.digest, size_bytes=stored.size_bytes, format=stored.format
        )

    async def _export_whole(self, request: Request[SnapshotRef], snapshot: SnapshotState) -> SnapshotExport:
        """Put together what it consists of; nothing is unpacked for that."""
        core, progress = self._core, request.progress
        beneath = image_beneath(core, snapshot)
        async with AsyncExitStack() as opened:
            archives = []
            for each in reversed(list(chain(core.state, snapshot))):
                archives.append(await opened.enter_async_context(self._archives.opened(each, progress)))
                await watched(partial(check, each, archives[-1]), progress, "looking through the archive")
            base = None
            provider = core.provider_of(snapshot)
            if beneath is not None:
                base = await layering(provider).open_image(beneath)
                opened.callback(os.close, base)
            output = await trio.to_thread.run_sync(partial(open_unnamed, STORAGE.local_root().base, create=True))
            opened.callback(os.close, output)
            owner = snapshotting(provider).owner_in_archives(core.state.sandboxes[snapshot.sandbox_id or ""].spec)
            work = partial(_flattened, archives, base, output, snapshot.format, owner)
            packed = await watched(work, progress, "putting it together", limiter=self._archives.limiter)
            given = read_only(output)
            opened.callback(os.close, given)
            await request.give([given])
        return SnapshotExport(
            snapshot_id=snapshot.snapshot_id, digest=f"sha256:{packed.sha256}", size_bytes=packed.size_bytes,
            format=snapshot.format,
        )  # fmt: skip

    # -- in -----------------------------------------------------------------------------------------------------------

    async def bring_in(self, request: Request[SnapshotImport]) -> Snapshot:
        """Give the caller the end of a pipe to which an archive is written, and keep it when it is good."""
        command = request.params
        snapshot_id = ids.new_id(ids.SNAPSHOT)
        bucket = command.archive == "bucket"
        places = self._archives.places(snapshot_id, IMPORTED, command.format, bucket=bucket)
        image = self._image(request)
        provider = snapshotting(self._core.provider(image.requested.provider if image is not None else "local"))
        event = rules.import_snapshot(command, request.owner, places, image, provider.files_root({}))
        intent = await self._core.intend(NewEvent(snapshot_id, event, None, 0), request.meta)
        taking = trio.CancelScope()
        work = partial(self._carry_in, snapshot_id, request, event, taking, intent)
        self._core.carry(work, f"import of {snapshot_id}")
        try:
            await self._snapshots.answer_create(snapshot_id)
            return self._snapshots.require_sent(request, snapshot_id)
        finally:
            taking.cancel()  # nobody is there any more who would write; what has come already is kept

    async def _carry_in(
        self,
        snapshot_id: str,
        request: Request[SnapshotImport],
        event: events.SnapshotCreateRequested,
        taking: trio.CancelScope,
        intent: Recorded,
    ) -> None:
        try:
            stored = await self._take(request, event, taking)
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            await self._snapshots.failed(snapshot_id, unforeseen, intent, interrupted=taking.cancelled_caught)
            return
        await self._core.record([NewEvent(snapshot_id, stored)], intent)
        self._snapshots.sending.begin(snapshot_id)

    def _image(self, request: Request[SnapshotImport]) -> ImageState | None:
        """What the archive is to be run as. Raises `not_found`."""
        image_id = request.params.image_id
        if image_id is None:
            return None
        return rules.image(self._core.state, image_id)

    async def brought_in_before(self, request: Request[SnapshotImport], first: Recorded) -> Any:
        """The answer to a command that was given before. Who asks gets a pipe that nobody reads."""
        answer = await self._snapshots.created_before(request, first)
        if answer is not ANEW:
            reading, writing = os.pipe()
            os.close(reading)
            try:
                await request.give([writing])
            finally:
                os.close(writing)
        return answer

    async def _take(
        self, request: Request[SnapshotImport], event: events.SnapshotCreateRequested, taking: trio.CancelScope
    ) -> events.SnapshotStored:
        command, progress = request.params, request.progress
        async with self._archives.making(event.places) as making:
            sha256 = ""
            with taking:
                sha256 = await self._received(request, making.descriptor)
            if taking.cancelled_caught:
                raise StateError("not_ready", "who sent the archive went away before all of it had come: send it again")
            if command.digest not in (None, f"sha256:{sha256}"):
                raise DataError("snapshot_corrupt", "the archive that came has another digest than was said")
            looking = partial(_looked_through, making.descriptor, limits_of_import(event.root))
            found = await watched(looking, progress, "looking through the archive")
            failpoints.reach("snapshot.received")
            await making.keep(found.sha256, found.size_bytes, progress)
        return events.SnapshotStored(
            digest=f"sha256:{found.sha256}",
            size_bytes=found.size_bytes,
            member_count=found.members,
            content_bytes=found.content_bytes,
            format=_FORMATS[found.codec],
            here=making.here if making.unsent else None,
            unsent=making.unsent,
        )

    async def _received(self, request: Request[SnapshotImport], target: int) -> str:
        """Give the caller the end of a pipe, have what comes from it in a file, and answer its digest."""
        reading, writing = os.pipe()
        try:
            try:
                enlarge(reading)
                await request.give([writing])
            finally:
                os.close(writing)
            return await Intake(reading, target, request.params.size_bytes).run(request.progress)
        finally:
            os.close(reading)

    # -- as an image --------------------------------------------------------------------------------------------------

    async def promote(self, request: Request[SnapshotPromote]) -> Image:
        """Make an image of a snapshot."""
        core, command = self._core, request.params
        snapshot = rules.ready_snapshot(core.state, command.snapshot_id)
        provider = core.provider_of(snapshot)
        layering(provider)
        event = rules.promote(snapshot, request.owner, provider.name, command.labels)
        image_id = ids.new_id(ids.IMAGE)
        intent = await core.intend(NewEvent(image_id, event, expected_revision=0), request.meta)
        core.carry(partial(self._promote, image_id, snapshot, request.progress, intent), f"promotion to {image_id}")
        return await self._images.answer_create(image_id)

    async def _promote(self, image_id: str, snapshot: SnapshotState, progress: Progress, intent: Recorded) -> None:
        core = self._core
        provider_name = core.state.images[image_id].requested.provider
        provider = layering(core.provider(provider_name))
        names = names_of(core, snapshot)
        try:
            beneath = image_beneath(core, snapshot)
            with self._layers.held(*names):
                await self._restores.unpack(snapshot, provider_name, progress)
                made = await provider.promote(image_id, await provider.filled(names, beneath), beneath, progress)
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            error = as_sandkeep_error(unforeseen)
            outcome: events.Event = events.ImageCreateFailed(code=error.code, message=error.message)
        else:
            outcome = events.ImageCreated(
                digest=made.digest, size_bytes=made.size_bytes, file_count=made.file_count, details=made.details
            )
        await self._layers.drop(provider_name, names)
        failpoints.reach("image.copied")
        await core.record([NewEvent(image_id, outcome)], intent)


def _flattened(
    archives: Sequence[int],
    base: int | None,
    output: int,
    written_as: ArchiveFormat,
    owner: tuple[int, int] | None,
    moved: Meter,
) -> Packed:
    codec = next(codec for codec, form in _FORMATS.items() if form == written_as)
    return flatten(archives, output, base=base, limits=NO_LIMITS, codec=codec, owner=owner, moved=moved)


def _looked_through(descriptor: int, limits: Limits, moved: Meter) -> Inspection:
    return inspect(descriptor, limits, moved=moved)
