"""The files of sandboxes elsewhere: archives of their workspaces, and layers with which new ones begin.

Such a workspace begins empty. Layers are kept in the state directory, as those of local sandboxes are, and are sent
into the workspace as a tar stream once the sandbox runs; a fork is an archive of its source, kept as a layer.
"""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sandkeep import failpoints
from sandkeep.errors import SetupError
from sandkeep_store.archives.trees.pack import pack
from sandkeep_store.threads import in_abandoned_thread
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.images import ImportedImage
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.layers import CopiedChanges, KeptArchive
from sandkeepd.contract.snapshots import PackedFiles, PackRequest, Snapshotting, Source
from sandkeepd.host.threads import Meter
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.keeper.copies import copying
from sandkeepd.providers.common import streamed_files
from sandkeepd.providers.common.directory_layers import DirectoryLayers, document
from sandkeepd.providers.common.layers import Layer, Layers
from sandkeepd.providers.common.views import shown

if TYPE_CHECKING:
    from sandkeepd.providers.common.relayed_provider import RelayedProvider

NOT_WHOLE: Final = (
    "the sandbox has a writable root, and its cluster gives the daemon no access to that: a snapshot would lack what "
    "was installed; export files of the workspace instead"
)
_INCREMENTAL: Final = "the daemon sees the files of such a sandbox only by its own tar: snapshots are full ones"


class StreamedSnapshots(Snapshotting):
    """Packs the workspaces of sandboxes that run, which are at `workspace` in them."""

    takes_root = False

    def __init__(self, provider: "RelayedProvider[Any]", workspace: str) -> None:
        self._provider = provider
        self._workspace = workspace

    def files_root(self, plan: Mapping[str, Any]) -> str:
        return self._workspace

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:
        return _INCREMENTAL

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        require_whole(source.plan)
        instance = streamed_files.running(self._provider.instances, source.sandbox_id)
        state_dir = self._provider.layout.state_dir
        return await streamed_files.pack(instance, source.handle["workspace"], request, progress, state_dir)


class StreamedLayers(DirectoryLayers):
    """`Layering` for sandboxes elsewhere: directories in the state directory, sent into new workspaces.

    `no_image` is a sentence that says where the files of images are, which this daemon does not see.
    """

    def __init__(self, provider: "RelayedProvider[Any]", no_image: str) -> None:
        self._provider = provider
        self._no_image = no_image
        self._layout, self._in_thread = provider.layout, provider.in_thread
        self._store = Layers(provider.layout, provider.log_id, 0 if os.geteuid() == 0 else None)

    async def open_image(self, image_id: str) -> int:
        raise SetupError("not_supported", self._no_image)

    async def promote(
        self, image_id: str, files: Mapping[str, Any], beneath: str | None, progress: Progress
    ) -> ImportedImage:
        raise SetupError("not_supported", f"{self._no_image}: restore the snapshot into a sandbox instead")

    def needs_image(self, files: Mapping[str, Any]) -> bool:
        return False

    def roots(self, names: Sequence[str], image_id: str | None) -> list[str]:  # type: ignore[override]
        """Return the directories that a workspace begins with, each hiding parts of the next: without layers, an empty
        one.
        """
        return [self._store.root(name) for name in names] or [self._layout.empty()]

    async def files_of_layers(self, names: Sequence[str], image_id: str | None) -> dict[str, Any]:
        return document([Layer(name=name, uid=self._store.uid) for name in names], over_image=True)

    async def freeze(self, name: str, source: Source) -> CopiedChanges:
        """See `Layering.freeze`. The source is not frozen: its own tar reads it while all goes on."""
        require_whole(source.plan)
        instance = streamed_files.running(self._provider.instances, source.sandbox_id)
        self._layout.prepare()
        with unnamed_file(self._layout.state_dir) as received, unnamed_file(self._layout.state_dir) as packed:
            await streamed_files.receive(instance, source.handle["workspace"], received)
            failpoints.reach("layer.copied")
            request = PackRequest(name=name, output=packed, catalogue="", format="tar")
            made = await self._in_thread(streamed_files.repack, received, request, Meter())
            archive = KeptArchive(descriptor=packed, sha256=made.sha256, limits=made.limits)
            await self.fill(name, archive, _no_progress)
        files = document([Layer(name=name, uid=self._store.uid)], over_image=True)
        return CopiedChanges(files=files, pause_ms=None, size_bytes=made.content_bytes)

    async def send(self, instance: Instance, workspace: str, names: Sequence[str]) -> None:
        """Put the files of layers into the workspace of a sandbox that has just begun."""
        async with copying(instance, workspace, incoming=True, form="contents") as copy:
            work = functools.partial(self._write, self.roots(names, None), copy.take_data())
            await in_abandoned_thread(work)
            await copy.staged()
            await copy.commit()

    def _write(self, roots: Sequence[str], pipe: int) -> None:
        """Write the merged view of directories to a pipe as a tar, and close that."""
        with open(pipe, "wb", buffering=0), shown(*roots, above=self._layout.state_dir) as tree:
            pack(tree, pipe, codec="none")


async def _no_progress(_sentence: str) -> None:
    pass


def require_whole(plan: Mapping[str, Any]) -> None:
    """Raise `not_supported` for a sandbox whose root may have changes: the daemon reads its workspace alone."""
    if plan.get("writable_root"):
        raise SetupError("not_supported", NOT_WHOLE)
