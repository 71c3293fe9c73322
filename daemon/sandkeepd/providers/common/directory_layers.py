"""Layers as directories of this machine, for providers whose sandboxes begin with these. See `Layering`.

An image's files are copied once, and layers are kept beside them; see `Layers`.
"""

import functools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sandkeep.errors import CallerError
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.images import ImportedImage
from sandkeepd.contract.layers import KeptArchive, Layering, WorkspaceRoots
from sandkeepd.host.caller_paths import digest_tree
from sandkeepd.host.threads import in_removal_thread, run_in_thread
from sandkeepd.host.undo import undo_on_error
from sandkeepd.providers.common.directory_images import require_directories
from sandkeepd.providers.common.directory_provider import DirectoryProvider
from sandkeepd.providers.common.layers import Layer
from sandkeepd.providers.common.views import shown


class DirectoryLayers(Layering):
    """`Layering` over directories. A provider's subclass finds the files that its sandboxes changed."""

    no_forks: str | None = None

    def __init__(self, provider: DirectoryProvider[Any]) -> None:
        self._layout, self._in_thread = provider.layout, provider.in_thread
        self._images, self._store = provider.images, provider.store

    async def open_image(self, image_id: str) -> int:
        return await self._images.open(image_id)

    async def promote(
        self, image_id: str, files: Mapping[str, Any], beneath: str | None, progress: Progress
    ) -> ImportedImage:
        roots = self.roots(self.layers_of(files), beneath if files["over_image"] else None)
        root = self._images.root(image_id)
        async with undo_on_error(self._images.remove, image_id):
            await self._in_thread(self._images.begin, image_id)
            await progress("copying the files")
            await self._in_thread(self._copy_shown, roots, root)
            await progress("computing the digest")
            digest, size, count = await self._in_thread(_digest, root)
        return ImportedImage(digest=digest, size_bytes=size, file_count=count)

    def _copy_shown(self, roots: Sequence[str], target: str) -> None:
        with shown(*roots, above=self._layout.state_dir) as source:
            self._store.copy(source, target)

    async def workspace(self, plan: Mapping[str, Any], image_id: str) -> WorkspaceRoots:
        roots = self.roots(self.layers_of(plan), image_id if plan.get("over_image", True) else None)
        await require_directories(roots)
        return WorkspaceRoots(roots=roots, overlay=self._store.overlay)

    def roots(self, names: Iterable[str], image_id: str | None) -> list[str]:
        """Return the directories that a sandbox begins with, each hiding parts of the next."""
        roots = [self._store.root(name) for name in names]
        return roots if image_id is None else [*roots, self._images.root(image_id)]

    async def has_layer(self, name: str) -> bool:
        return await self._in_thread(self._store.is_complete, name)

    async def fill(self, name: str, archive: KeptArchive, progress: Progress) -> None:
        async with undo_on_error(self.discard_layers, [name]):
            await run_in_thread(
                functools.partial(self._store.fill, name, archive), progress, "unpacking the files",
                total_bytes=os.fstat(archive.descriptor).st_size,
            )  # fmt: skip

    def needs_image(self, files: Mapping[str, Any]) -> bool:
        return bool(files["over_image"])

    def layers_of(self, plan: Mapping[str, Any]) -> Sequence[str]:
        return [layer["name"] for layer in plan.get("layers", ())]

    async def discard_layers(self, names: Collection[str]) -> None:
        await in_removal_thread(self._store.discard, names)


def document(layers: Sequence[Layer], *, over_image: bool) -> dict[str, Any]:
    """Return the `files` that consist of these layers; see `Layering`."""
    return {"layers": msgspec.to_builtins(layers), "over_image": over_image}


def _digest(root: str) -> tuple[str, int, int]:
    try:
        return digest_tree(root)
    except PermissionError as error:
        closed = os.fsdecode(error.filename).removeprefix(root).lstrip("/")
        message = f"{closed!r} is closed to its owner, and a user's daemon can make no image of it: chmod it first"
        raise CallerError("permission_denied", message) from None
