"""What a container's files can be used for besides the container: copied for forks, and kept as archives.

Names in archives begin at the container's root, and what lies in its own volumes is at the places where it sees them.
Out of an archive, or of a copy, the engine gets an image: a layer, above those that lie beneath. What is in that at the
place of a volume is what the engine fills a new one with. See `Layering` and `Snapshotting` for the interfaces.

A container stands still only while that is packed, as a plain tar, in which it differs from its image.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import CallerError, SandkeepError, SetupError
from sandkeep.model import Capability, SandboxSpec
from sandkeep_store.threads import Threads
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.images import ImportedImage
from sandkeepd.contract.layers import Frozen, KeptArchive
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.contract.snapshots import PackedFiles, PackRequest, Source
from sandkeepd.host.threads import watched
from sandkeepd.host.unnamed_file import unnamed
from sandkeepd.providers.common.layout import Layout
from sandkeepd.providers.common.views import open_shown
from sandkeepd.providers.docker import layers as docker_layers
from sandkeepd.providers.docker import trees
from sandkeepd.providers.docker.engine import Engine
from sandkeepd.providers.docker.images import DockerImages, untag
from sandkeepd.providers.docker.instance import DockerInstance
from sandkeepd.providers.docker.layers import Layer
from sandkeepd.providers.docker.pack import Packer, as_layer
from sandkeepd.providers.docker.plan import Plan
from sandkeepd.providers.docker.start import Handle
from sandkeepd.providers.docker.trees import ContainerFiles

if TYPE_CHECKING:
    from docker import APIClient

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class DockerSnapshots(ABC):
    """The part of the Docker provider that does this."""

    layout: Layout
    engine: Engine
    images: DockerImages
    log_id: str
    _in_thread: Threads
    _nursery: trio.Nursery
    _has_files: bool = False

    @abstractmethod
    def _running(self, sandbox_id: str) -> DockerInstance | None:
        """The container of a sandbox, if it runs."""

    async def _files_of(self, source: Source) -> ContainerFiles:
        await self._require_files()
        plan, handle = msgspec.convert(source.plan, Plan), msgspec.convert(source.handle, Handle)
        return await self.engine.call(
            partial(trees.find, container_id=handle.container_id, sandbox_id=source.sandbox_id, plan=plan)
        )

    async def _require_files(self) -> None:
        """Raise `not_supported` unless the engine's files can be read, and written, as they are understood here."""
        if not self._has_files:
            found = await self.engine.call(lambda client: client.info())
            why = trees.why_not(found, root=os.geteuid() == 0)
            if why is not None:
                raise SetupError("not_supported", why)
            self._has_files = True

    # Archives

    def files_root(self, plan: Mapping[str, Any]) -> str:  # it is the same for all
        """See `Snapshotting.files_root`."""
        return "/"

    def owner_in_archives(self, spec: SandboxSpec) -> tuple[int, int] | None:
        """See `Snapshotting.owner_in_archives`."""
        return None

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:  # nothing is in its way
        """See `Snapshotting.why_not_incremental`."""
        return None

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        """See `Snapshotting.pack`. No catalogue is written, so that nothing is asked for over another's."""
        files = await self._files_of(source)
        beneath = await self._layers_of_image(files.image)
        packing = partial(Packer(self.layout.state_dir).pack, files, beneath, self._running(source.sandbox_id), request)
        return await watched(packing, progress, "packing the files")

    async def _layers_of_image(self, image: str) -> list[str]:
        """The directories of an image, by what the engine calls it. Raises `not_found`, `not_supported`."""
        found = await self.engine.call(partial(_inspect_image, image=image))
        return trees.layers_of(found)

    async def open_image(self, image_id: str) -> int:
        """See `Layering.open_image`."""
        layers = await self._layers_of_image(self.images.tag(image_id))
        return await self._in_thread(open_shown, layers, self.layout.state_dir)

    # Layers

    async def freeze(self, name: str, source: Source) -> Frozen:
        """See `Layering.freeze`."""
        files = await self._files_of(source)
        beneath = await self.engine.call(partial(docker_layers.of_image, image=files.image))
        packer, container = Packer(self.layout.state_dir), self._running(source.sandbox_id)
        with unnamed(self.layout.state_dir) as output:
            with trio.CancelScope(shield=True):  # it is short, and a sandbox must not be left standing
                changes = await self._in_thread(packer.changes, files, container, output, "layer.frozen")
            failpoints.reach("layer.copied")
            try:
                await self._give(name, beneath, changes.layer)
            except SandkeepError:
                self._nursery.start_soon(self._discard_later, name)  # nobody begins with files of that name any more
                raise
        document = await self.filled([name], None)
        size = changes.layer.size_bytes
        return Frozen(files=document, needs_image=False, pause_ms=changes.pause.ms, size_bytes=size)

    async def _give(self, name: str, beneath: docker_layers.Beneath, layer: Layer) -> None:
        """Have the engine keep it; on any error nothing is left of it."""
        try:
            await docker_layers.give(self.engine, name, self.log_id, beneath, layer)
        except BaseException:
            with trio.CancelScope(shield=True), suppress(SandkeepError):  # without the engine, the next start does it
                await self.discard_layers([name])
            raise
        failpoints.reach("layer.made")

    async def _discard_later(self, name: str) -> None:
        """An engine that was given something and hung may have taken it after all."""
        await self.engine.recovered()
        await self.engine.quiet()
        with suppress(SandkeepError):
            await self.discard_layers([name])

    async def filled(self, names: Sequence[str], image_id: str | None) -> dict[str, Any]:
        """See `Layering.filled`. The engine keeps what lies beneath as long as there is what lies above."""
        return {"image": docker_layers.tag(names[0]), "kept": list(names)}

    async def is_filled(self, name: str) -> bool:
        """See `Layering.is_filled`."""
        return await self.engine.call(partial(docker_layers.is_kept, name=name))

    async def fill(self, name: str, archive: KeptArchive, progress: Progress) -> None:
        """See `Layering.fill`."""
        if not archive.is_layer:
            beneath = docker_layers.of_nothing(archive.details)
        else:
            assert archive.beneath is not None or archive.image_id is not None
            image = docker_layers.tag(archive.beneath) if archive.beneath else self.images.tag(archive.image_id or "")
            beneath = await self.engine.call(partial(docker_layers.of_image, image=image))
        with unnamed(self.layout.state_dir) as descriptor:
            layer = await watched(partial(as_layer, archive, descriptor), progress, "unpacking the files")
            await progress("giving the files to the Docker engine")
            await self._give(name, beneath, layer)

    async def promote(
        self, image_id: str, files: Mapping[str, Any], beneath: str | None, progress: Progress
    ) -> ImportedImage:
        """See `Layering.promote`. It is the same image to the engine, under one more name."""
        return await self.images.take_over(image_id, files["image"], progress)

    def layered(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """See `Layering.layered`."""
        return {**plan, **files}

    def needs_image(self, files: Mapping[str, Any]) -> bool:
        """See `Layering.needs_image`."""
        return False

    def layers_of(self, plan: Mapping[str, Any]) -> Sequence[str]:
        """See `Layering.layers_of`."""
        found: list[str] = plan.get("kept", [])
        return found

    async def discard_layers(self, names: Collection[str]) -> None:
        """See `Layering.discard_layers`."""
        for name in names:
            await self.engine.call(partial(untag, tag=docker_layers.tag(name)))

    async def clean_up_layers(self, ledger: Ledger) -> Swept:
        """Remove what is kept that no sandbox needs. Safe to repeat."""
        removed, foreign = [], []
        for name, log_id in await self.engine.call(docker_layers.kept):
            if log_id != self.log_id:
                foreign.append(f"image {docker_layers.tag(name)}")
            elif not ledger.owns_layer(name):
                removed.append(f"kept files {name}")
                await self.discard_layers([name])
        return Swept(removed=removed, foreign=foreign)


def _inspect_image(client: "APIClient", image: str) -> dict[str, Any]:
    from docker.errors import ImageNotFound

    try:
        found: dict[str, Any] = client.inspect_image(image)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        raise CallerError("not_found", f"the image {image} is gone from the Docker engine") from None
    return found


def files_features(found: Mapping[str, Any], *, root: bool) -> dict[str, Capability]:
    """What works of all this with an engine that says this of itself, for `Provider.capabilities`."""
    why = trees.why_not(found, root=root)
    works = why is None
    return {
        "snapshots": Capability(works=works, why=why),
        "incremental_snapshots": Capability(works=works, why=why or "each holds all that differs from the beginning"),
        "forks": Capability(works=works, why=why or "each gets a copy of what is in its volumes"),
        "restore_over_own_files": Capability(works=works, why=why),
    }
