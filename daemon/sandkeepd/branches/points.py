"""Points: the files that a sandbox had at one moment, kept; and kept files as trees that are compared and merged.

A provider that can fork keeps a point as it does the files of a fork, at the cost of what was changed. Of any other,
an archive of the whole workspace is unpacked.
"""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct

from sandkeep.errors import StateError
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.archives.trees.rebase import Workspace
from sandkeep_store.merging.trees import Layer, TreeState
from sandkeep_store.threads import in_thread
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.branches.lineage import Kept
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.layers import CopiedChanges, KeptArchive, WorkspaceRoots
from sandkeepd.contract.provider import Provider
from sandkeepd.contract.snapshots import PackRequest
from sandkeepd.core.core import Core
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.providers.common.views import open_merged
from sandkeepd.sandboxes.runtimes import Runtimes
from sandkeepd.snapshots.archive_limits import own_limits
from sandkeepd.snapshots.forks import layering, source_of
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.snapshots import snapshotting


class Files(Struct, frozen=True, kw_only=True):
    """Files that a sandbox of this plan begins with, above an image."""

    provider: str
    image_id: str
    plan: Mapping[str, Any]


class Points:
    """Takes points, and opens kept files."""

    def __init__(self, core: Core, runtimes: Runtimes, layers: LayerReferences, state_dir: str) -> None:
        self._core = core
        self._runtimes = runtimes
        self._layers = layers
        self._state_dir = state_dir

    async def take(self, sandbox: SandboxState, point_id: str, progress: Progress) -> CopiedChanges:
        """Keep the present files of a sandbox under that name. On any error nothing is left of them. Raises `not_ready`
        when they are gone.
        """
        provider = self._core.provider(sandbox.requested.provider)
        await self._runtimes.adopted(sandbox.sandbox_id)
        with self._runtimes.reading(sandbox.sandbox_id), self._layers.held(point_id):
            if layering(provider).no_forks is None:
                return await layering(provider).freeze(point_id, source_of(sandbox))
            return await self._unpacked(provider, sandbox, point_id, progress)

    async def _unpacked(
        self, provider: Provider, sandbox: SandboxState, point_id: str, progress: Progress
    ) -> CopiedChanges:
        with unnamed_file(self._state_dir) as output, unnamed_file(self._state_dir) as catalogue:
            request = PackRequest(name=point_id, output=output, catalogue=f"/proc/self/fd/{catalogue}", format="tar")
            packed = await snapshotting(provider).pack(source_of(sandbox), request, progress)
            archive = KeptArchive(
                descriptor=output, sha256=packed.sha256, image_id=sandbox.requested.image_id,
                limits=own_limits(packed.member_count, packed.content_bytes),
            )  # fmt: skip
            await layering(provider).fill(point_id, archive, progress)
        files = await layering(provider).files_of_layers([point_id], None)
        return CopiedChanges(files=files, pause_ms=packed.pause_ms, size_bytes=packed.content_bytes)

    async def files_of(self, provider: str, kept: Kept, like: Mapping[str, Any]) -> Files | None:
        """Return the files of a kept state, or None if they are not there any more. `like` is a plan of the provider's
        for the parts of an image's.
        """
        layers = layering(self._core.provider(provider))
        if kept.plan is None:
            return await self._part_of_another(provider, kept.state_id)
        if not kept.plan:
            image = self._core.state.images.get(kept.image_id)
            if image is None or image.status != "ready":
                return None
            plan = {**like, **await layers.files_of_layers([], kept.image_id)}
            return Files(provider=provider, image_id=kept.image_id, plan=plan)
        for name in layers.layers_of(kept.plan):
            if not await layers.has_layer(name):
                return None
        return Files(provider=provider, image_id=kept.image_id, plan=kept.plan)

    async def _part_of_another(self, provider: str, state_id: str) -> Files | None:
        """Return the files of a state that no sandbox has alone, but one above others: of a fork that was forked."""
        layers = layering(self._core.provider(provider))
        for sandbox in self._core.state.sandboxes.values():
            asked = sandbox.requested
            if sandbox.hidden or asked.provider != provider or state_id not in (names := layers.layers_of(asked.plan)):
                continue
            image_id = asked.image_id if layers.needs_image(asked.plan) else None
            files = await layers.files_of_layers(names[names.index(state_id) :], image_id)
            return Files(provider=provider, image_id=asked.image_id, plan={**asked.plan, **files})
        return None

    async def nearest(self, provider: str, candidates: Sequence[Kept], like: Mapping[str, Any]) -> tuple[str, Files]:
        """Return the first of these states that can still be read, by its name. Raises `conflict` if none can."""
        for kept in candidates:
            found = await self.files_of(provider, kept, like)
            if found is not None:
                return kept.state_id, found
        message = "these have no common base whose files still exist: create branches of one source"
        raise StateError("conflict", message)

    @asynccontextmanager
    async def opened(self, *wanted: Files) -> AsyncIterator[list[TreeState]]:
        """Open files as trees, for the length of a block. Raises `not_supported`, `not_found`."""
        with ExitStack() as opened:
            found = []
            for files in wanted:
                layers = layering(self._core.provider(files.provider))
                roots = await layers.workspace(files.plan, files.image_id)
                found.append(await in_thread(partial(self._open, roots, opened)))
            yield found

    @asynccontextmanager
    async def workspace_of(self, provider: str, image_id: str) -> AsyncIterator[tuple[Workspace, int] | None]:
        """Yield the workspace in layers of an image, with the image as an open directory; None where layers have only
        the workspace.
        """
        able, image = self._core.provider(provider), self._core.state.images.get(image_id)
        workspace = snapshotting(able).workspace_in_archives(image.details if image is not None else {})
        if workspace is None:
            yield None
            return
        with closing_fd(await layering(able).open_image(image_id)) as opened:
            yield workspace, opened

    def _open(self, roots: WorkspaceRoots, opened: ExitStack) -> TreeState:
        view = open_merged(roots.roots, self._state_dir)
        opened.callback(os.close, view)
        layers = []
        for root in roots.roots:
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            layers.append(Layer(descriptor, root, roots.overlay))
        return TreeState(view, layers)

    def ignored(self, sandbox: SandboxState) -> list[bytes]:
        """Return the names that the image of a sandbox was made without: what has these names is no branch's."""
        image = self._core.state.images.get(sandbox.requested.image_id)
        return [os.fsencode(name) for name in image.requested.ignore] if image is not None else []

    async def drop(self, provider: str, point_ids: Sequence[str]) -> None:
        """Remove points that nobody needs. See `LayerReferences.release`."""
        await self._layers.drop(provider, point_ids)
