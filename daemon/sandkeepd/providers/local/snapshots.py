"""What a local sandbox's files can be used for besides the sandbox: copied for forks, and kept as archives.

All of it goes by what lies in the state directory, so that it works as well for sandboxes that have ended by themselves
and whose files are still there. See `Layering` and `Snapshotting` for the interfaces.
"""

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import SetupError, StateError
from sandkeep.model import Capability, SandboxSpec
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.layers import Frozen
from sandkeepd.contract.snapshots import PackedFiles, PackRequest, Source
from sandkeepd.host.cgroups.pause import Pause
from sandkeepd.host.threads import watched
from sandkeepd.providers.common.layered_files import LayeredFiles, document
from sandkeepd.providers.common.layers import MOST_LAYERS, Layer
from sandkeepd.providers.common.views import shown
from sandkeepd.providers.local.files import HeldFiles
from sandkeepd.providers.local.pack import Packer, paths
from sandkeepd.providers.local.pause import NO_FREEZER
from sandkeepd.providers.local.plan import Plan
from sandkeepd.providers.local.probe import Abilities
from sandkeepd.providers.local.start import Handle


class LocalSnapshots(LayeredFiles):
    """The part of the local provider that does this."""

    root: bool

    @abstractmethod
    async def abilities(self) -> Abilities:
        """What was found out about this machine."""

    async def _files_of(self, source: Source) -> HeldFiles:
        plan, handle = msgspec.convert(source.plan, Plan), msgspec.convert(source.handle, Handle)
        upper = f"{self.layout.sandbox(source.sandbox_id)}/upper"
        if not await trio.Path(upper).is_dir():
            words = f"the files of sandbox {source.sandbox_id} are gone: nothing can be kept of them"
            raise StateError("not_ready", words, sandbox_id=source.sandbox_id)
        lowers = list[str]()
        if handle.files == "overlay":
            names = [layer.name for layer in plan.layers]
            lowers = self._roots(names, source.image_id if plan.over_image else None)
        mark = self.layout.read_mark(source.sandbox_id)
        return HeldFiles(plan=plan, handle=handle, upper=upper, lowers=lowers, mark=mark)

    # Archives

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
            files=document(layers, over_image=over_image), needs_image=over_image, pause_ms=pause.ms, size_bytes=size
        )

    def _freeze(self, name: str, held: HeldFiles, *, flat: bool) -> Pause:
        making = self.layers.begin(name)
        roots = [held.upper, *held.lowers] if flat else [held.upper]
        with shown(*roots, above=self.layout.state_dir) as source, held.standing() as pause:
            failpoints.reach("layer.frozen")
            self.layers.copy(source, making)
        self.layers.complete(name)
        return pause

    async def filled(self, names: Sequence[str], image_id: str | None) -> dict[str, Any]:
        """See `Layering.filled`."""
        if len(names) + (image_id is not None) > 1:
            overlay = (await self.abilities()).overlay
            if not overlay.works:
                raise SetupError("not_supported", f"incremental snapshots need overlays: {overlay.why}")
        layers = [Layer(name=name, uid=self.layers.uid) for name in names]
        return document(layers, over_image=image_id is not None)

    def replaced(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """See `Replacing.replaced`."""
        return self.layered(plan, files)


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
