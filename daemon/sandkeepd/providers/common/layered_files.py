"""Images and layers as directories of this machine, for providers whose sandboxes begin with these.

An image's files are copied once, and layers are kept beside them; see `Layers`, and `Layering` for the interface.
"""

import functools
import os
from abc import ABC
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, TypeVarTuple

import msgspec
import trio

from sandkeep.errors import CallerError
from sandkeep_store.threads import Threads
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import ImageRequest, ImportedImage
from sandkeepd.contract.layers import KeptArchive
from sandkeepd.host.caller_paths import digest_tree, import_tree
from sandkeepd.host.threads import watched
from sandkeepd.providers.common.errors import translate
from sandkeepd.providers.common.inside import WORKSPACE
from sandkeepd.providers.common.layers import Layer, Layers
from sandkeepd.providers.common.layout import IMAGE_MARK, Layout, write_mark
from sandkeepd.providers.common.views import shown

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LayeredFiles(ABC):
    """The part of a provider that keeps them. What it makes carries `log_id`."""

    layout: Layout
    layers: Layers
    log_id: str
    _in_thread: Threads

    # Images

    async def import_image(
        self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress
    ) -> ImportedImage:
        """See `Provider.import_image`."""
        self.layout.prepare()
        directory = self.layout.image(image_id)
        try:
            self._make_image(directory)
            return await import_tree(
                request.source, caller, f"{directory}/root", owner=self.layers.uid, hide=self.layout.state_dir,
                progress=progress,
            )  # fmt: skip
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.remove_image(image_id)
            raise

    def _make_image(self, directory: str) -> None:
        """Make the directory of an image, without its files."""
        try:
            os.mkdir(directory, 0o755)
            write_mark(f"{directory}/{IMAGE_MARK}", self.log_id)
        except OSError as error:
            raise translate(error, "the image") from None

    async def remove_image(self, image_id: str) -> None:
        """See `Provider.remove_image`."""
        await self._in_thread(self.layout.discard, [self.layout.image(image_id)])

    async def open_image(self, image_id: str) -> int:
        """See `Layering.open_image`."""
        root = self._image_root(image_id)
        try:
            return await self._in_thread(os.open, root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            raise CallerError("not_found", f"there is no image {image_id}", image_id=image_id) from None

    def _image_root(self, image_id: str) -> str:
        return f"{self.layout.image(image_id)}/root"

    async def promote(
        self, image_id: str, files: Mapping[str, Any], beneath: str | None, progress: Progress
    ) -> ImportedImage:
        """See `Layering.promote`."""
        roots = self._roots(self.layers_of(files), beneath if files["over_image"] else None)
        root = self._image_root(image_id)
        try:
            await self._in_thread(self._make_image, self.layout.image(image_id))
            await progress("copying the files")
            await self._in_thread(self._copy_shown, roots, root)
            await progress("computing the digest")
            digest, size, count = await self._in_thread(_digest, root)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.remove_image(image_id)
            raise
        return ImportedImage(digest=digest, size_bytes=size, file_count=count)

    def _copy_shown(self, roots: Sequence[str], target: str) -> None:
        with shown(*roots, above=self.layout.state_dir) as source:
            self.layers.copy(source, target)

    # Archives

    def files_root(self, plan: Mapping[str, Any]) -> str:  # it is the same for all
        """See `Snapshotting.files_root`."""
        return WORKSPACE

    # Layers

    def _roots(self, names: Iterable[str], image_id: str | None) -> list[str]:
        """The directories that a sandbox begins with, each hiding parts of the next."""
        roots = [self.layers.root(name) for name in names]
        return roots if image_id is None else [*roots, self._image_root(image_id)]

    async def _require_there(self, roots: Iterable[str]) -> None:
        """Raise `not_found` when one of them is not there."""
        for root in roots:
            if not await trio.Path(root).is_dir():
                what = os.path.basename(os.path.dirname(root))
                raise CallerError("not_found", f"there is no image {what}", image_id=what)

    async def is_filled(self, name: str) -> bool:
        """See `Layering.is_filled`."""
        return await self._in_thread(self.layers.is_there, name)

    async def fill(self, name: str, archive: KeptArchive, progress: Progress) -> None:
        """See `Layering.fill`."""
        try:
            await watched(functools.partial(self.layers.fill, name, archive), progress, "unpacking the files")
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.discard_layers([name])
            raise

    def layered(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """See `Layering.layered`."""
        return {**plan, **files}

    def needs_image(self, files: Mapping[str, Any]) -> bool:
        """See `Layering.needs_image`."""
        return bool(files["over_image"])

    def layers_of(self, plan: Mapping[str, Any]) -> Sequence[str]:
        """See `Layering.layers_of`."""
        return [layer["name"] for layer in plan.get("layers", ())]

    async def discard_layers(self, names: Collection[str]) -> None:
        """See `Layering.discard_layers`."""
        await self._in_thread(self.layers.discard, names)


def document(layers: Sequence[Layer], *, over_image: bool) -> dict[str, Any]:
    """The `files` that consist of these layers; see `Layering`."""
    return {"layers": msgspec.to_builtins(layers), "over_image": over_image}


def _digest(root: str) -> tuple[str, int, int]:
    try:
        return digest_tree(root)
    except PermissionError as error:
        closed = os.fsdecode(error.filename).removeprefix(root).lstrip("/")
        words = f"{closed!r} is closed to its owner, and a user's daemon can make no image of it: chmod it first"
        raise CallerError("permission_denied", words) from None
