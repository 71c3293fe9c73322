"""Archives of a container's files. See `Snapshotting`.

Names in archives begin at the container's root, and the files of its own volumes are at the mount points inside.

A container is frozen only while its difference from its image is packed, as a plain tar.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from sandkeep.errors import SetupError
from sandkeep.model import Capability
from sandkeep_store.archives.trees.rebase import Workspace
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.snapshots import PackedFiles, PackRequest, Snapshotting, Source
from sandkeepd.host.cgroups.pause import reading
from sandkeepd.host.threads import run_in_thread
from sandkeepd.providers.common.own_disks import refused
from sandkeepd.providers.docker import trees
from sandkeepd.providers.docker.engine import inspect_image
from sandkeepd.providers.docker.pack import Packer
from sandkeepd.providers.docker.plan import Details, Plan, workspace_of
from sandkeepd.providers.docker.trees import ContainerFiles

if TYPE_CHECKING:
    from sandkeepd.providers.docker.provider import DockerProvider


class DockerSnapshots(Snapshotting):
    """Locates and packs the files of a provider's containers."""

    takes_root = True

    def __init__(self, provider: "DockerProvider") -> None:
        self._provider = provider
        self.packer = Packer(provider.layout.state_dir)
        self._engine: dict[str, Any] = {}

    def files_root(self, plan: Mapping[str, Any]) -> str:
        return "/"

    def workspace_in_archives(self, details: Mapping[str, Any]) -> Workspace | None:
        image = msgspec.convert(dict(details), Details)
        return Workspace(path=os.fsencode(workspace_of(image).strip("/")), owner=image.user)

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:
        return None

    def directory_written(self, plan: Mapping[str, Any], handle: Mapping[str, Any]) -> str | None:
        """See `Snapshotting.directory_written`. Volumes that the image asks for are writable in a read-only root."""
        planned = msgspec.convert(dict(plan), Plan)
        volume = planned.workspace_volume
        if not planned.read_only_root or volume is None or not volume.own:
            return None
        has_others = len(handle["written"]) > len(("its own layer", "its workspace"))
        return None if has_others else planned.workspace

    async def require_packable(self, plan: Mapping[str, Any]) -> None:
        why = await self._why_unreadable()
        if why is not None:
            raise SetupError("not_supported", why)
        trees.require_own_workspace(msgspec.convert(dict(plan), Plan))

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        files = await self.files_of(source)
        beneath = await self.files_of_image(files.image) if request.over == "nothing" else []
        container = self._provider.instances.get(source.sandbox_id)
        async with self.reading(source.sandbox_id) as end:
            packing = partial(self.packer.pack, files, beneath, container, request, end)
            return await run_in_thread(packing, progress, "packing the files")

    def reading(self, sandbox_id: str) -> AbstractAsyncContextManager[Callable[[], None]]:
        """Hold the turn to freeze a container. See `pause.reading`."""
        container = self._provider.instances.get(sandbox_id)
        return reading(container.cgroups if container is not None else {}, sandbox_id)

    async def files_of(self, source: Source) -> ContainerFiles:
        """Return the files of a container. Raises `not_supported` where they cannot be read, and `not_ready`."""
        await self.require_packable(source.plan)
        plan, container_id = msgspec.convert(source.plan, Plan), source.handle["container_id"]
        find = partial(trees.find, container_id=container_id, sandbox_id=source.sandbox_id, plan=plan)
        return await self._provider.docker.call(find)

    async def data_root(self) -> str | None:
        """Return the engine's directory, if workspaces can be overlays of the files in it."""
        if await self._why_unreadable() is not None or why_no_data_root(self._engine, root=True) is not None:
            return None
        return str(self._engine["DockerRootDir"])

    async def require_data_root(self) -> None:
        """Raise `not_supported` if the volumes of containers cannot be mounts of the daemon."""
        reason = await self._why_unreadable() or why_no_data_root(self._engine, root=True)
        if reason is not None:
            raise refused(reason)

    async def _why_unreadable(self) -> str | None:
        if self._engine:
            return None
        found = await self._provider.docker.call(lambda client: client.info())
        why = trees.why_unreadable(found, root=os.geteuid() == 0)
        if why is None:
            self._engine = found
        return why

    async def files_of_image(self, image: str) -> list[str]:
        """Return the directories of an image, by the engine's name for it. Raises `not_found`, `not_supported`."""
        return trees.layers_of(await self._provider.docker.call(partial(inspect_image, name=image)))


def why_no_data_root(found: Mapping[str, Any], *, root: bool) -> str | None:
    """Return the reason why volumes of an engine with this description cannot be mounts of the daemon, or None."""
    if any(option.startswith("name=selinux") for option in found.get("SecurityOptions") or ()):
        return "SELinux keeps containers from mounts of the daemon, which have no label"
    return trees.why_unreadable(found, root=root)


def files_features(found: Mapping[str, Any], *, root: bool) -> dict[str, Capability]:
    """Return the capabilities that concern files, for an engine with this description, for `Provider.capabilities`."""
    why = trees.why_unreadable(found, root=root)
    works = why is None
    return {
        "snapshots": Capability(works=works, why=why),
        "incremental_snapshots": Capability(works=works, why=why),
        "forks": Capability(works=works, why=why),
        "restore_over_own_files": Capability(works=works, why=why),
    }
