"""Export and import of snapshots: as whole archives, from foreign archives, and as images.

An export hands out a read-only descriptor, so that the caller copies without the daemon. An import comes by a pipe; the
archive is kept only after a full inspection, even if its digest is right.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, TypeVar

from sandkeep import events, failpoints, ids, model
from sandkeep.errors import CallerError, DaemonError, DataError, SetupError, StateError
from sandkeep.model import ArchiveFormat, Image, Snapshot, SnapshotExport
from sandkeep.protocol.methods import SnapshotImport, SnapshotPromote, SnapshotRef
from sandkeep.system.descriptors import write_all
from sandkeep_store.archives.tar.compression import Codec
from sandkeep_store.archives.tar.inspect import CheckedArchive, Inspection
from sandkeep_store.archives.tar.limits import DEFAULT_LIMITS
from sandkeep_store.archives.tar.top_level import TopLevel
from sandkeep_store.archives.trees.layers import flatten
from sandkeep_store.archives.trees.pack import NO_LIMITS, PackedArchive, write
from sandkeep_store.archives.trees.read import Remarks
from sandkeep_store.archives.trees.rebase import Rebased, Workspace
from sandkeep_store.buckets.config import STORAGE
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.threads import in_thread
from sandkeep_store.views.chains import chain
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.contract.caller import Progress
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import RUN_AGAIN, Core
from sandkeepd.core.operation import Operation, Order
from sandkeepd.host.hostile_files import read_only
from sandkeepd.host.threads import Meter, run_in_thread
from sandkeepd.host.unnamed_file import open_unnamed, unnamed_file
from sandkeepd.sandboxes.images import ImageCreation, ImageHolds, Images
from sandkeepd.sandboxes.runtimes import Runtimes
from sandkeepd.snapshots.archives import SnapshotArchives, check
from sandkeepd.snapshots.forks import layering
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.pipe_intake import Intake, enlarge
from sandkeepd.snapshots.restore import Unpacking, image_beneath, names_of
from sandkeepd.snapshots.snapshots import SnapshotCreation, Snapshots, snapshotting

T = TypeVar("T")

IMPORTED: Final = "imported"
"""The directory of imported archives."""

LOCAL: Final = "local"
"""The provider of imported archives without an image."""

CHUNK_BYTES: Final = 1 << 20

_FORMATS: Final[dict[Codec, ArchiveFormat]] = {"none": "tar", "gzip": "tar.gz", "zstd": "tar.zst"}


class SnapshotIntake(SnapshotCreation):
    """``snapshot.import``: an archive that its caller writes to a pipe. It ends with him."""

    method = "snapshot.import"

    def owns(self, subject: SnapshotState) -> bool:
        return subject.sandbox_id is None

    async def act(self, order: Order[SnapshotState]) -> Sequence[NewEvent]:
        request, asked = order.request, order.subject.requested
        assert request is not None
        async with self._archives.making(asked.places) as making:
            sha256 = ""
            with order.abandoned:  # the writer has gone; a complete archive is kept
                sha256 = await _received(request, making.descriptor)
            if order.abandoned.cancelled_caught:
                raise StateError("not_ready", "the sender disconnected before the end of the archive: send it again")
            if request.params.digest not in (None, f"sha256:{sha256}"):
                raise DataError("snapshot_corrupt", "the archive does not match the announced digest: send it again")

            found, kind = await self._fit(order, making.descriptor)
            failpoints.reach("snapshot.received")
            self.charge(order, asked.owner, "snapshots", found.size_bytes)
            await making.keep(found.sha256, found.size_bytes, order.progress)
        stored = events.SnapshotStored(
            digest=f"sha256:{found.sha256}",
            size_bytes=found.size_bytes,
            member_count=found.members,
            content_bytes=found.content_bytes,
            format=_FORMATS[found.codec],
            here=making.here if making.unsent else None,
            unsent=making.unsent,
            kind=kind,
        )
        return [NewEvent(order.stream, stored)]

    async def _fit(
        self, order: Order[SnapshotState], archive: int
    ) -> tuple[Inspection | PackedArchive, model.SnapshotKind | None]:
        """Inspect an archive, and rewrite it if its names begin elsewhere than those in its provider's archives do.

        Return its kind if that is not ``full``. Raises `not_supported` for a whole root that the provider cannot take.
        """
        core, asked = self.core, order.subject.requested
        assert order.request is not None
        image = core.state.images.get(asked.image_id or "")
        provider = core.provider(asked.provider or LOCAL)
        able = snapshotting(provider)
        into = able.workspace_in_archives(image.details if image is not None else {})
        top = TopLevel(None if into is None else into.path)
        found = await _looked_through(archive, partial(_look_through, archive, top), order.progress)
        files = order.request.params.files or top.files
        if files == "root" and not able.takes_root:
            message = f"the archive holds a whole root file system, which {provider.name} sandboxes do not start from"
            advice = "import it with an image of Docker or gVisor, or with files=workspace if it is a workspace"
            raise SetupError("not_supported", f"{message}: {advice}", field="files")
        strip = top.is_in_workspace and order.request.params.files is None
        layer = into if files == "workspace" else None
        if not strip and layer is None:
            return found, None
        if layer is not None and found.duplicates:
            message = "the archive has duplicate names, which no layer over an image can have: pack it again"
            raise DataError("snapshot_corrupt", message)
        async with AsyncExitStack() as opened:
            base = None
            if layer is not None:
                base = await layering(provider).open_image(asked.image_id or "")
                opened.callback(os.close, base)
            work = partial(_rewrite, archive, found.codec, strip=strip, into=layer, image=base)
            packed = await run_in_thread(work, order.progress, "rewriting it")
        return packed, "incremental" if layer is not None else None

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        """See `Operation.again`. The caller gets a pipe without a reader."""
        answer = await super().again(request, first)
        if answer is not RUN_AGAIN:
            reading, writing = os.pipe()
            os.close(reading)
            try:
                await request.give([writing])
            finally:
                os.close(writing)
        return answer


class Promotion(ImageCreation):
    """``snapshot.promote``: an image of the files of a snapshot."""

    method = "snapshot.promote"

    def __init__(self, core: Core, holds: ImageHolds, unpacking: Unpacking, layers: LayerReferences) -> None:
        super().__init__(core, holds)
        self._unpacking = unpacking
        self._layers = layers

    def owns(self, subject: ImageState) -> bool:
        return not super().owns(subject)

    async def act(self, order: Order[ImageState]) -> Sequence[NewEvent]:
        core, asked = self.core, order.subject.requested
        snapshot = core.state.snapshots[asked.source]
        provider, names = layering(core.provider(asked.provider)), names_of(core, snapshot)
        try:
            beneath = image_beneath(core, snapshot)
            with self._layers.held(*names):
                await self._unpacking.unpack(snapshot, asked.provider, order.progress)
                files = await provider.files_of_layers(names, beneath)
                made = await provider.promote(order.stream, files, beneath, order.progress)
        finally:
            await self._layers.drop(asked.provider, names)
        failpoints.reach("image.copied")
        await self.charge_image(order, made.size_bytes)
        created = events.ImageCreated(
            digest=made.digest, size_bytes=made.size_bytes, file_count=made.file_count, details=made.details
        )
        return [NewEvent(order.stream, created), *await self.tags(order, order.subject)]


class Transfers:
    """The handlers of ``snapshot.export``, ``import`` and ``promote``."""

    def __init__(
        self,
        core: Core,
        runtimes: Runtimes,
        images: Images,
        snapshots: Snapshots,
        unpacking: Unpacking,
        layers: LayerReferences,
        archives: SnapshotArchives,
    ) -> None:
        self._core = core
        self._archives = archives
        self._intake = SnapshotIntake(core, runtimes, archives, layers, snapshots.removal)
        self._promotion = Promotion(core, images.holds, unpacking, layers)
        self.operations: Sequence[Operation[Any, Any]] = (self._intake, self._promotion)

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
            await _looked_through(archive, partial(check, snapshot, archive), request.progress)
            given = read_only(archive)
            try:
                await request.give([given])
            finally:
                os.close(given)
        return SnapshotExport(
            snapshot_id=snapshot.snapshot_id, digest=stored.digest, size_bytes=stored.size_bytes, format=stored.format
        )

    async def _export_whole(self, request: Request[SnapshotRef], snapshot: SnapshotState) -> SnapshotExport:
        """Merge the chain of archives into one, without unpacking it."""
        core, progress = self._core, request.progress
        beneath = image_beneath(core, snapshot)
        async with AsyncExitStack() as opened:
            archives = []
            for each in reversed(list(chain(core.state, snapshot))):
                archives.append(await opened.enter_async_context(self._archives.opened(each, progress)))
                await _looked_through(archives[-1], partial(check, each, archives[-1]), progress)
            base = None
            provider = core.provider_of(snapshot)
            if beneath is not None:
                base = await layering(provider).open_image(beneath)
                opened.callback(os.close, base)
            output = await in_thread(partial(open_unnamed, STORAGE.local_root().base, create=True))
            opened.callback(os.close, output)
            source = core.state.sandboxes.get(snapshot.sandbox_id or "")
            owner = snapshotting(provider).owner_in_archives(source.spec) if source is not None else None
            work = partial(_flattened, archives, base, output, snapshot.format, owner)
            packed = await run_in_thread(work, progress, "putting it together")
            given = read_only(output)
            opened.callback(os.close, given)
            await request.give([given])
        return SnapshotExport(
            snapshot_id=snapshot.snapshot_id, digest=f"sha256:{packed.sha256}", size_bytes=packed.size_bytes,
            format=snapshot.format,
        )  # fmt: skip

    # -- in -----------------------------------------------------------------------------------------------------------

    async def import_archive(self, request: Request[SnapshotImport]) -> Snapshot:
        """Give the caller the end of a pipe to which an archive is written, and keep it when it is good."""
        command, owner = request.params, request.params.owner or request.owner
        if not request.sees(owner):
            raise CallerError("permission_denied", "owner: others' snapshots are for administrators", field="owner")
        self._core.quotas.require(request, owner, "snapshots")
        snapshot_id = ids.new_id(ids.SNAPSHOT)
        bucket = command.archive == "bucket"
        places = self._archives.places(snapshot_id, IMPORTED, command.format, bucket=bucket)
        image = rules.image(self._core.state, command.image_id) if command.image_id is not None else None
        provider = snapshotting(self._core.provider(image.requested.provider if image is not None else LOCAL))
        event = rules.import_snapshot(command, owner, places, image, provider.files_root({}))
        return await self._intake.run(NewEvent(snapshot_id, event, None, 0), request)

    # -- as an image --------------------------------------------------------------------------------------------------

    async def promote(self, request: Request[SnapshotPromote]) -> Image:
        """Make an image of a snapshot."""
        core, command = self._core, request.params
        snapshot = rules.ready_snapshot(core.state, command.snapshot_id)
        provider = core.provider_of(snapshot)
        layering(provider)
        core.quotas.require(request, request.owner, "images")
        event = rules.promote(snapshot, request.owner, provider.name, command)
        return await self._promotion.run(NewEvent(ids.new_id(ids.IMAGE), event, expected_revision=0), request)


async def _received(request: Request[SnapshotImport], target: int) -> str:
    """Hand the caller the writing end of a pipe, copy its data into a file, and return the digest."""
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


async def _looked_through(archive: int, work: Callable[[Meter], T], progress: Progress) -> T:
    """Run work that reads a whole archive."""
    size = os.fstat(archive).st_size
    return await run_in_thread(work, progress, "looking through the archive", total_bytes=size)


def _look_through(archive: int, top: TopLevel, moved: Meter) -> Inspection:
    checked = CheckedArchive(archive, DEFAULT_LIMITS, moved=moved)
    for member in checked:
        top.add(member)
    return checked.result


def _rewrite(
    archive: int, codec: Codec, moved: Meter, *, strip: bool, into: Workspace | None, image: int | None
) -> PackedArchive:
    """Replace the content of a file by the same archive under other names."""
    with unnamed_file(STORAGE.local_root().base) as output:
        source = Rebased(CheckedArchive(archive, DEFAULT_LIMITS), strip=strip, into=into, image=image)
        packed = write(source, output, codec, Remarks(), moved=moved)
        try:
            os.ftruncate(archive, 0)
            for descriptor in (archive, output):
                os.lseek(descriptor, 0, os.SEEK_SET)
            while chunk := os.read(output, CHUNK_BYTES):
                write_all(archive, chunk)
        except OSError as error:
            raise DaemonError("storage_unavailable", f"the archive cannot be rewritten: {error.strerror}") from None
    return packed


def _flattened(
    archives: Sequence[int],
    base: int | None,
    output: int,
    written_as: ArchiveFormat,
    owner: tuple[int, int] | None,
    moved: Meter,
) -> PackedArchive:
    codec = next(codec for codec, form in _FORMATS.items() if form == written_as)
    return flatten(archives, output, base=base, limits=NO_LIMITS, codec=codec, owner=owner, moved=moved)
