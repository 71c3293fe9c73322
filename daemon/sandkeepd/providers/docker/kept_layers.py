"""Layers that containers begin with, kept by the engine as images. See `Layering`.

The engine gets an image made from an archive, or from a copy: a layer, above those that lie beneath. The layer's files
at the place of a volume are copied by the engine into a new volume.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import CallerError, SandkeepError, SetupError
from sandkeep.model import SandboxSpec
from sandkeep_store.archives.tar.inspect import CheckedArchive
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.images import ImportedImage
from sandkeepd.contract.layers import CopiedChanges, KeptArchive, Layering, WorkspaceRoots
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.contract.snapshots import Source
from sandkeepd.host.threads import in_long_thread, run_in_thread
from sandkeepd.host.undo import undo_on_error
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.providers.common.views import open_merged
from sandkeepd.providers.docker import filling, trees, workspace
from sandkeepd.providers.docker import images as docker_images
from sandkeepd.providers.docker import layers as docker_layers
from sandkeepd.providers.docker import start as docker_start
from sandkeepd.providers.docker.container import Job, labels
from sandkeepd.providers.docker.images import untag
from sandkeepd.providers.docker.instance import DockerInstance
from sandkeepd.providers.docker.layers import Layer
from sandkeepd.providers.docker.pack import as_layer
from sandkeepd.providers.docker.plan import Plan
from sandkeepd.providers.docker.snapshots import DockerSnapshots

if TYPE_CHECKING:
    from sandkeepd.providers.docker.provider import DockerProvider


class DockerLayers(Layering):
    """The layers of a provider's log in its engine."""

    no_forks: str | None = None
    fills_workspaces = True

    def __init__(self, provider: "DockerProvider", snapshots: DockerSnapshots) -> None:
        self._provider = provider
        self._engine, self._images = provider.docker, provider.images
        self._snapshots = snapshots

    async def open_image(self, image_id: str) -> int:
        layers = await self._snapshots.files_of_image(docker_images.tag(image_id))
        return await self._provider.in_thread(open_merged, layers, self._provider.layout.state_dir)

    async def freeze(self, name: str, source: Source) -> CopiedChanges:
        files = await self._snapshots.files_of(source)
        beneath = await self._engine.call(partial(docker_layers.base_of_image, image=files.image))
        container = self._provider.instances.get(source.sandbox_id)
        with unnamed_file(self._provider.layout.state_dir) as output:
            async with self._snapshots.reading(source.sandbox_id):
                changes = await in_long_thread(self._snapshots.packer.changes, files, container, output, "layer.frozen")
            failpoints.reach("layer.copied")
            try:
                await self._load(name, beneath, changes.layer)
            except SandkeepError:
                # No sandbox will begin with files of that name.
                self._provider.nursery.start_soon(self._discard_later, name)
                raise
        document = await self.files_of_layers([name], None)
        size = changes.layer.size_bytes
        return CopiedChanges(files=document, pause_ms=changes.pause.ms, size_bytes=size)

    async def _load(self, name: str, beneath: docker_layers.Base, layer: Layer) -> None:
        """Load it into the engine; on any error nothing is left of it: without the engine, once that is back."""
        async with undo_on_error(self.discard_layers, [name], ignored=[SandkeepError]):
            await docker_layers.load(self._engine, name, self._provider.log_id, beneath, layer)
        failpoints.reach("layer.made")

    async def _discard_later(self, name: str) -> None:
        """Discard a layer later: an engine that hung during the request may have taken it after all."""
        await self._engine.recovered()
        await self._engine.drained()
        with suppress(SandkeepError):
            await self.discard_layers([name])

    async def files_of_layers(self, names: Sequence[str], image_id: str | None) -> dict[str, Any]:
        """See `Layering.files_of_layers`. The engine keeps the layers beneath as long as one above exists."""
        image = docker_layers.tag(names[0]) if names else docker_images.tag(image_id or "")
        return {"image": image, "kept": list(names)}

    async def has_layer(self, name: str) -> bool:
        return await self._engine.call(partial(docker_layers.layer_exists, name=name))

    async def fill(self, name: str, archive: KeptArchive, progress: Progress) -> None:
        if not archive.is_layer and not archive.only:
            beneath = docker_layers.empty_base(archive.details)
        else:
            assert archive.beneath is not None or archive.image_id is not None
            image = docker_layers.tag(archive.beneath) if archive.beneath else docker_images.tag(archive.image_id or "")
            beneath = await self._engine.call(partial(docker_layers.base_of_image, image=image))
        with unnamed_file(self._provider.layout.state_dir) as descriptor:
            size = os.fstat(archive.descriptor).st_size
            work = partial(as_layer, archive, descriptor)
            layer = await run_in_thread(work, progress, "unpacking the files", total_bytes=size)
            await progress("giving the files to the Docker engine")
            await self._load(name, beneath, layer)

    async def workspace(self, plan: Mapping[str, Any], image_id: str) -> WorkspaceRoots:
        """See `Layering.workspace`. A workspace that no layer has is an empty directory of one."""
        planned = msgspec.convert(plan, Plan)
        try:
            layers = await self._snapshots.files_of_image(planned.image or docker_images.tag(image_id))
        except CallerError as error:
            filled = await self._filled(planned) if error.code == "not_found" else None
            if filled is None:
                raise
            return WorkspaceRoots(roots=[filled], overlay="trusted")
        roots = await self._provider.in_thread(workspace.lowers, layers, planned.workspace)
        if roots is None:
            message = f"the workspace {planned.workspace} of its image is behind a link: its files cannot be compared"
            raise SetupError("not_supported", message)
        return WorkspaceRoots(roots=roots or [self._provider.layout.empty()], overlay="trusted")

    async def _filled(self, plan: Plan) -> str | None:
        """Return the directory of the files that the workspace of this plan was filled with, if that is so."""
        root, volume = await self._snapshots.data_root(), plan.workspace_volume
        if root is None or volume is None:
            return None
        directory = workspace.filled(workspace.mountpoint_of(root, volume.source))
        return directory if await trio.Path(directory).is_dir() else None

    async def create_filled(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any],
        archive: KeptArchive, progress: Progress,
    ) -> DockerInstance | None:  # fmt: skip
        """See `Layering.create_filled`, and `filling`."""
        provider, root = self._provider, await self._snapshots.data_root()
        job = provider.job(sandbox_id, spec, secrets, {**plan, "image": docker_images.tag(image_id)})
        if root is None or trees.paths(archive.only) != [filling.place_of(job.plan)]:
            return None
        if await self.has_layer(job.plan.kept[0]):
            return None
        size = os.fstat(archive.descriptor).st_size
        checking = partial(filling.verified, archive, job.plan)
        checked = await run_in_thread(checking, progress, "verifying the files", total_bytes=size)
        if checked is None:
            return None
        marks = labels(sandbox_id, job.plan.owner, job.log_id)
        async with provider.creating(sandbox_id, plan):
            target = await self._engine.call(
                lambda client: workspace.create_to_fill(client, job.plan, marks, root)
            )  # fmt: skip
            if target is None:
                return None
            await progress("unpacking the files")
            container_id = await self._make_and_fill(job, checked, target)
            return await provider.start(job, secrets, partial(docker_start.start_filled, container_id=container_id))

    async def _make_and_fill(self, job: Job, archive: CheckedArchive, target: str) -> str:
        """Fill the workspace while the engine makes the container, which takes as long; return the container's id."""
        await self._provider.in_thread(docker_start.make_directories, job)
        made, errors = list[str](), list[Exception]()

        async def make() -> None:
            try:
                with trio.CancelScope(shield=True):  # as in a start: one that is left cannot be undone
                    made.append(await self._engine.call(partial(docker_start.make, job=job, overlay=True)))
            except Exception as error:  # noqa: BLE001 - raised below, where the nursery does not wrap it up
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make)
            try:
                await in_long_thread(filling.fill, archive, job.plan, target)
                failpoints.reach("session.filled")
            except Exception as error:  # noqa: BLE001 - as above
                errors.append(error)
        if errors:
            raise errors[0]
        return made[0]

    async def promote(
        self, image_id: str, files: Mapping[str, Any], beneath: str | None, progress: Progress
    ) -> ImportedImage:
        """See `Layering.promote`. It is the same image to the engine, under one more name."""
        return await self._images.adopt_image(image_id, files["image"], progress)

    def needs_image(self, files: Mapping[str, Any]) -> bool:
        return False

    def layers_of(self, plan: Mapping[str, Any]) -> Sequence[str]:
        found: list[str] = plan.get("kept", [])
        return found

    async def discard_layers(self, names: Collection[str]) -> None:
        for name in names:
            await self._engine.call(partial(untag, tag=docker_layers.tag(name)))

    async def clean_up(self, ledger: Ledger) -> Swept:
        """Remove kept files that no sandbox needs. Safe to repeat."""
        removed, foreign = [], []
        for name, log_id in await self._engine.call(docker_layers.list_layers):
            if log_id != self._provider.log_id:
                foreign.append(f"image {docker_layers.tag(name)}")
            elif not ledger.owns_layer(name):
                removed.append(f"kept files {name}")
                await self.discard_layers([name])
        return Swept(removed=removed, foreign=foreign)
