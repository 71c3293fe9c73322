"""Layers that local sandboxes begin with, and those made of a sandbox's changes, for forks. See `Layering`.

All of it depends only on the state directory, so that it also works for sandboxes that have ended by themselves and
whose files are still there.
"""

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import SetupError, StateError
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.archives.trees.changes import require_shallow
from sandkeep_store.archives.trees.passes import PassCopy
from sandkeepd.contract.layers import CopiedChanges
from sandkeepd.contract.snapshots import Source
from sandkeepd.host.cgroups.pause import Pause
from sandkeepd.host.threads import in_long_thread
from sandkeepd.host.undo import undo_on_error
from sandkeepd.providers.common.directory_layers import DirectoryLayers, document
from sandkeepd.providers.common.layers import MOST_LAYERS, Layer
from sandkeepd.providers.common.views import shown
from sandkeepd.providers.local.files import SandboxFiles
from sandkeepd.providers.local.plan import Plan
from sandkeepd.providers.local.precopy import copy_running, is_quick_to_copy, whole
from sandkeepd.providers.local.start import Handle

if TYPE_CHECKING:
    from sandkeepd.providers.local.provider import LocalProvider


class LocalLayers(DirectoryLayers):
    """`Layering` for local sandboxes."""

    def __init__(self, provider: "LocalProvider") -> None:
        super().__init__(provider)
        self._abilities = provider.abilities

    async def files_of(self, source: Source) -> SandboxFiles:
        """Locate the files of a sandbox. Raises `not_ready` when they are gone."""
        plan, handle = msgspec.convert(source.plan, Plan), msgspec.convert(source.handle, Handle)
        upper = f"{self._layout.sandbox(source.sandbox_id)}/upper"
        if not await trio.Path(upper).is_dir():
            message = f"the files of sandbox {source.sandbox_id} are gone: nothing is left to fork or to snapshot"
            raise StateError("not_ready", message, sandbox_id=source.sandbox_id)
        lowers = list[str]()
        if handle.files == "overlay":
            names = [layer.name for layer in plan.layers]
            lowers = self.roots(names, source.image_id if plan.over_image else None)
        mark = self._layout.read_mark(source.sandbox_id)
        return SandboxFiles(plan=plan, handle=handle, upper=upper, lowers=lowers, mark=mark)

    async def freeze(self, name: str, source: Source) -> CopiedChanges:
        held = await self.files_of(source)
        flat = not held.lowers or len(held.plan.layers) >= MOST_LAYERS
        async with undo_on_error(self.discard_layers, [name]):
            shares_blocks = (await self._abilities()).reflink.works
            freeze = functools.partial(self._freeze, name, held, flat=flat, shares_blocks=shares_blocks)
            async with held.reading():
                pause = await in_long_thread(freeze)
            failpoints.reach("layer.copied")
            size = await in_long_thread(self._store.size_bytes, self._store.root(name))
        layer = Layer(name=name, uid=held.plan.uid)
        layers = [layer] if flat else [layer, *held.plan.layers]
        files = document(layers, over_image=held.plan.over_image and not flat)
        return CopiedChanges(files=files, pause_ms=pause.ms, size_bytes=size)

    def _freeze(self, name: str, held: SandboxFiles, *, flat: bool, shares_blocks: bool) -> Pause:
        state_dir = self._layout.state_dir
        making = self._store.begin(name)
        roots = [held.upper, *held.lowers] if flat else [held.upper]
        if len(roots) == 1 and not is_quick_to_copy(held, self._store, state_dir, shares_blocks=shares_blocks):
            pause = self._copy_running(held, making)
            if pause is not None:
                self._store.complete(name)
                return pause
            making = self._store.begin(name)
        with shown(*roots, above=state_dir) as source, held.freeze() as pause:
            failpoints.reach("layer.frozen")
            require_shallow(source, self._store.enter)
            self._store.copy(source, making)
        if len(roots) > 1 and held.plan.uid is not None:
            self._store.give(making, held.plan.uid)
        self._store.complete(name)
        return pause

    def _copy_running(self, held: SandboxFiles, making: str) -> Pause | None:
        """Copy a sandbox's changes while it runs; return None where that is impossible."""
        os.mkdir(making, 0o700)
        opened = os.open(making, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with closing_fd(opened) as target, shown(held.upper, above=self._layout.state_dir) as source:
            copy = PassCopy(source, target)
            copied = copy_running(held, self._store, source, copy, select=whole, point="layer.frozen")
        return None if copied is None else copied.pause

    async def files_of_layers(self, names: Sequence[str], image_id: str | None) -> dict[str, Any]:
        if len(names) + (image_id is not None) > 1:
            overlay = (await self._abilities()).overlay
            if not overlay.works:
                raise SetupError("not_supported", f"incremental snapshots need overlays: {overlay.why}")
        layers = [Layer(name=name, uid=self._store.uid) for name in names]
        return document(layers, over_image=image_id is not None)
