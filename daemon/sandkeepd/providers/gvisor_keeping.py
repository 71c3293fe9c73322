"""Files that gVisor sandboxes begin with besides an image's: those of snapshots. See `Layering`.

They are kept as those of local sandboxes are, and nothing ever writes to them.
"""

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar, TypeVarTuple

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import CallerError, DaemonError, SetupError, StateError
from sandkeep.model import SandboxSpec
from sandkeep_store.archives.inspect import Examined
from sandkeep_store.archives.pack import NO_LIMITS, write
from sandkeep_store.archives.reading import Remarks
from sandkeepd.freezing import Pause
from sandkeepd.hostpath import digest_tree
from sandkeepd.keeper.copies import copying
from sandkeepd.providers import gvisor_plan, gvisor_probe
from sandkeepd.providers.base import Frozen, ImportedImage, KeptArchive, PackedFiles, PackRequest, Progress, Source
from sandkeepd.providers.gvisor_instance import GvisorInstance
from sandkeepd.providers.gvisor_plan import Layer
from sandkeepd.providers.local_bubblewrap import WORKSPACE
from sandkeepd.providers.local_layers import Layers
from sandkeepd.providers.local_layout import Layout
from sandkeepd.providers.packing import CODECS, told
from sandkeepd.providers.shown import open_shown
from sandkeepd.watched import Meter, watched

_PIECE_BYTES: Final = 1 << 20

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def nameless(directory: str) -> int:
    """An empty file without a name. Raises `storage_unavailable`."""
    try:
        return os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        words = f"the state directory cannot be written: {error.strerror}: make room there"
        raise DaemonError("storage_unavailable", words) from None


def _receive(pipe: int, into: int) -> None:
    """Read a pipe to its end, and close it. Raises `storage_unavailable`."""
    with open(pipe, "rb", buffering=0) as source:
        try:
            while data := source.read(_PIECE_BYTES):
                while data:
                    data = data[os.write(into, data) :]
        except OSError as error:
            words = f"the state directory cannot be written: {error.strerror}: make room there"
            raise DaemonError("storage_unavailable", words) from None


def _pack(received: int, request: PackRequest, moved: Meter) -> PackedFiles:
    os.lseek(received, 0, os.SEEK_SET)
    packed = write(Examined(received, NO_LIMITS), request.output, CODECS[request.format], Remarks(), moved=moved)
    return told(packed, Pause())


class Keeping(ABC):
    """The part of the gVisor provider that does this."""

    _instances: dict[str, GvisorInstance]
    layout: Layout
    layers: Layers
    root: bool

    @abstractmethod
    async def _in_thread(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run what blocks."""

    @abstractmethod
    def _make_image(self, directory: str) -> None:
        """Make the directory of an image, without its files."""

    # Archives

    def files_root(self, plan: Mapping[str, Any]) -> str:  # it is the same for all
        """See `Snapshotting.files_root`."""
        return WORKSPACE

    def owner_in_archives(self, spec: SandboxSpec) -> tuple[int, int] | None:
        """See `Snapshotting.owner_in_archives`."""
        uid, _, gid = (spec.user or ("1000" if self.root else "0")).partition(":")
        return int(uid), int(gid or uid)

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:
        """See `Snapshotting.why_not_incremental`."""
        return "only gVisor's kernel knows what was changed"

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        """See `Snapshotting.pack`. The sandbox's own `tar` reads them while all goes on; what it sends is looked
        through, and written anew.
        """
        instance = self._instances.get(source.sandbox_id)
        if instance is None or instance.is_closed or instance.is_suspended:
            words = f"sandbox {source.sandbox_id} does not run, and its files are where it is saved: resume it first"
            raise StateError("not_ready", words, sandbox_id=source.sandbox_id)
        if source.handle.get("whole") or request.include or request.exclude:
            words = "of a gVisor sandbox all of a workspace is kept, or all of it as a checkpoint"
            raise SetupError("not_supported", words)
        received = nameless(self.layout.state_dir)
        try:
            async with copying(instance, WORKSPACE, incoming=False, form="contents") as copy:
                await trio.to_thread.run_sync(_receive, copy.take_data(), received, abandon_on_cancel=True)
                await copy.done()
            failpoints.reach("snapshot.copied")
            return await watched(functools.partial(_pack, received, request), progress, "packing the files")
        finally:
            os.close(received)

    # Layers

    no_forks: str | None = gvisor_probe.FORKS

    async def freeze(self, name: str, source: Source) -> Frozen:
        """See `Layering.freeze`."""
        raise SetupError("not_supported", gvisor_probe.FORKS)

    async def filled(self, names: Sequence[str], image_id: str | None) -> dict[str, Any]:
        """See `Layering.filled`."""
        layers = [Layer(name=name, uid=self.layers.uid) for name in names]
        if len(names) + (image_id is not None) > 1 and not self.root:
            raise SetupError("not_supported", "without root gVisor sandboxes need full snapshots")
        return {"layers": msgspec.to_builtins(layers), "over_image": image_id is not None}

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
        return gvisor_plan.layers_of(plan)

    async def open_image(self, image_id: str) -> int:
        """See `Layering.open_image`."""
        root = f"{self.layout.image(image_id)}/root"
        try:
            return await self._in_thread(os.open, root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            raise CallerError("not_found", f"there is no image {image_id}", image_id=image_id) from None

    async def promote(
        self, image_id: str, files: Mapping[str, Any], beneath: str | None, progress: Progress
    ) -> ImportedImage:
        """See `Layering.promote`."""
        roots = [self.layers.root(layer["name"]) for layer in files["layers"]]
        if files["over_image"]:
            roots.append(f"{self.layout.image(beneath or '')}/root")
        root = f"{self.layout.image(image_id)}/root"
        try:
            await self._in_thread(self._make_image, self.layout.image(image_id))
            await progress("copying the files")
            await self._in_thread(self._copy_shown, roots, root)
            await progress("computing the digest")
            digest, size, count = await self._in_thread(digest_tree, root)
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

    async def discard_layers(self, names: Collection[str]) -> None:
        """See `Layering.discard_layers`."""
        await self._in_thread(self.layers.discard, names)
