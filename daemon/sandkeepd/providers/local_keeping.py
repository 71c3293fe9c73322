"""What a local sandbox's files can be used for besides the sandbox: copied for forks, and kept as archives.

All of it goes by what lies in the state directory, so that it works as well for sandboxes that have ended by themselves
and whose files are still there. See `Layering` and `Snapshotting` for the interfaces.
"""

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar, TypeVarTuple

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import CallerError, SetupError, StateError
from sandkeep.model import Capability, SandboxSpec
from sandkeepd.freezing import Pause
from sandkeepd.hostpath import digest_tree
from sandkeepd.providers.base import Frozen, ImportedImage, KeptArchive, PackedFiles, PackRequest, Progress, Source
from sandkeepd.providers.local_bubblewrap import WORKSPACE
from sandkeepd.providers.local_files import HeldFiles
from sandkeepd.providers.local_layers import MOST_LAYERS, Layers
from sandkeepd.providers.local_layout import Layout
from sandkeepd.providers.local_packing import Packer, paths
from sandkeepd.providers.local_pausing import NO_FREEZER
from sandkeepd.providers.local_plan import Layer, Plan
from sandkeepd.providers.local_probe import Abilities
from sandkeepd.providers.local_start import Handle
from sandkeepd.providers.shown import open_shown
from sandkeepd.watched import watched

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Keeping(ABC):
    """The part of the local provider that does this."""

    layout: Layout
    layers: Layers
    root: bool

    @abstractmethod
    async def abilities(self) -> Abilities:
        """What was found out about this machine."""

    @abstractmethod
    async def _in_thread(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run what blocks."""

    async def _files_of(self, source: Source) -> HeldFiles:
        plan, handle = msgspec.convert(source.plan, Plan), msgspec.convert(source.handle, Handle)
        upper = f"{self.layout.sandbox(source.sandbox_id)}/upper"
        if not await trio.Path(upper).is_dir():
            words = f"the files of sandbox {source.sandbox_id} are gone: nothing can be kept of them"
            raise StateError("not_ready", words, sandbox_id=source.sandbox_id)
        lowers = (
            [] if handle.files != "overlay" else self._roots(plan.layers, source.image_id if plan.over_image else None)
        )
        mark = self.layout.read_mark(source.sandbox_id)
        return HeldFiles(plan=plan, handle=handle, upper=upper, lowers=lowers, mark=mark)

    def _roots(self, layers: Sequence[Layer], image_id: str | None) -> list[str]:
        roots = [self.layers.root(layer.name) for layer in layers]
        return roots if image_id is None else [*roots, f"{self.layout.image(image_id)}/root"]

    # Archives

    def files_root(self, plan: Mapping[str, Any]) -> str:  # it is the same for all
        """See `Snapshotting.files_root`."""
        return WORKSPACE

    def owner_in_archives(self, spec: SandboxSpec) -> tuple[int, int] | None:
        """See `Snapshotting.owner_in_archives`."""
        uid, _, gid = (spec.user or "1000").partition(":")
        return int(uid), int(gid or uid)

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:
        """See `Snapshotting.why_not_incremental`."""
        return None if handle.get("files") == "overlay" else "the sandbox has a copy of its image"

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        """See `Snapshotting.pack`."""
        held, found = await self._files_of(source), await self.abilities()
        paths([*request.include, *request.exclude])
        packer = Packer(self.layers, self.layout.state_dir, shares_blocks=found.reflink.works)
        return await watched(functools.partial(packer.pack, held, request), progress, "packing the files")

    async def open_image(self, image_id: str) -> int:
        """See `Layering.open_image`."""
        root = f"{self.layout.image(image_id)}/root"
        try:
            return await self._in_thread(os.open, root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            raise CallerError("not_found", f"there is no image {image_id}", image_id=image_id) from None

    # Layers

    async def freeze(self, name: str, source: Source) -> Frozen:
        """See `Layering.freeze`."""
        held = await self._files_of(source)
        flat = not held.lowers or len(held.plan.layers) >= MOST_LAYERS
        try:
            with trio.CancelScope(shield=True):  # it is short, and a sandbox must not be left standing
                pause = await self._in_thread(functools.partial(self._freeze, name, held, flat=flat))
            failpoints.reach("layer.copied")
            size = await self._in_thread(self.layers.size_bytes, self.layers.root(name))
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.discard_layers([name])
            raise
        layer = Layer(name=name, uid=held.plan.uid)
        layers = [layer] if flat else [layer, *held.plan.layers]
        over_image = held.plan.over_image and not flat
        return Frozen(
            files=_document(layers, over_image=over_image), needs_image=over_image, pause_ms=pause.ms, size_bytes=size
        )

    def _freeze(self, name: str, held: HeldFiles, *, flat: bool) -> Pause:
        making = self.layers.begin(name)
        shown = open_shown([held.upper, *held.lowers] if flat else [held.upper], self.layout.state_dir)
        try:
            with held.standing() as pause:
                failpoints.reach("layer.frozen")
                self.layers.copy(shown, making)
        finally:
            os.close(shown)
        self.layers.complete(name)
        return pause

    async def filled(self, names: Sequence[str], image_id: str | None) -> dict[str, Any]:
        """See `Layering.filled`."""
        document = _document([Layer(name=name, uid=self.layers.uid) for name in names], over_image=image_id is not None)
        if len(names) + (image_id is not None) > 1:
            overlay = (await self.abilities()).overlay
            if not overlay.works:
                raise SetupError("not_supported", f"incremental snapshots need overlays: {overlay.why}")
        return document

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

    async def promote(
        self, image_id: str, files: Mapping[str, Any], beneath: str | None, progress: Progress
    ) -> ImportedImage:
        """See `Layering.promote`."""
        roots = self._roots(msgspec.convert(files["layers"], list[Layer]), beneath if files["over_image"] else None)
        root = f"{self.layout.image(image_id)}/root"
        try:
            await self._in_thread(self._make_image, self.layout.image(image_id))
            await progress("copying the files")
            await self._in_thread(self._copy_shown, roots, root)
            await progress("computing the digest")
            digest, size, count = await self._in_thread(_digest, root)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._in_thread(self.layout.discard, [self.layout.image(image_id)])
            raise
        return ImportedImage(digest=digest, size_bytes=size, file_count=count)

    def _copy_shown(self, roots: Sequence[str], target: str) -> None:
        shown = open_shown(roots, self.layout.state_dir)
        try:
            self.layers.copy(shown, target)
        finally:
            os.close(shown)

    @abstractmethod
    def _make_image(self, directory: str) -> None:
        """Make the directory of an image, without its files."""

    def layered(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """See `Layering.layered`."""
        return {**plan, **files}

    def replaced(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """See `Replacing.replaced`."""
        return self.layered(plan, files)

    def needs_image(self, files: Mapping[str, Any]) -> bool:
        """See `Layering.needs_image`."""
        return bool(files["over_image"])

    def layers_of(self, plan: Mapping[str, Any]) -> Sequence[str]:
        """See `Layering.layers_of`."""
        return [layer["name"] for layer in plan.get("layers", ())]

    async def discard_layers(self, names: Collection[str]) -> None:
        """See `Layering.discard_layers`."""
        await self._in_thread(self.layers.discard, names)


def _document(layers: Sequence[Layer], *, over_image: bool) -> dict[str, Any]:
    return {"layers": msgspec.to_builtins(layers), "over_image": over_image}


def _digest(root: str) -> tuple[str, int, int]:
    try:
        return digest_tree(root)
    except PermissionError as error:
        closed = os.fsdecode(error.filename).removeprefix(root).lstrip("/")
        words = f"{closed!r} is closed to its owner, and a user's daemon can make no image of it: chmod it first"
        raise CallerError("permission_denied", words) from None


_WITHOUT_FREEZER: Final = f"{NO_FREEZER}: processes are stopped one by one meanwhile"


def files_features(found: Abilities, *, freezer: bool) -> dict[str, Capability]:
    """What works of all this, for `Provider.capabilities`."""
    overlay = found.overlay
    return {
        "snapshots": Capability(works=True, why=None if freezer else _WITHOUT_FREEZER),
        "incremental_snapshots": Capability(works=overlay.works, why=overlay.why),
        "forks": Capability(works=True, why=None if overlay.works else f"each gets a copy of all files: {overlay.why}"),
        "restore_over_own_files": Capability(works=True),
    }
