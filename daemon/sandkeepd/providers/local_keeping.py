"""What a local sandbox's files can be used for besides the sandbox: copied for forks, and kept as archives.

All of it goes by what lies in the state directory, so that it works as well for sandboxes that have ended by themselves
and whose files are still there. See `Layering` and `Snapshotting` for the interfaces.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar, TypeVarTuple

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import StateError
from sandkeepd.freezing import Pause, frozen
from sandkeepd.hostprocess import identify, in_fresh_thread
from sandkeepd.providers.base import Fill, Frozen, Source
from sandkeepd.providers.local_layers import MOST_LAYERS, Layers, run, seen_through
from sandkeepd.providers.local_layout import Layout
from sandkeepd.providers.local_plan import Layer, Plan
from sandkeepd.providers.local_probe import Abilities
from sandkeepd.providers.local_start import Handle

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Held(msgspec.Struct, frozen=True):
    """A sandbox as far as its files go: where what it changed lies, and what that is above."""

    sandbox_id: str
    plan: Plan
    handle: Handle
    upper: str
    lowers: list[str]

    @property
    def roots(self) -> list[str]:
        """All that it shows, each hiding parts of the next."""
        return [self.upper, *self.lowers]

    @property
    def first_pid(self) -> int | None:
        """The first process of its pid namespace, if it runs and has one."""
        first = self.handle.first
        return first.pid if self.plan.mechanism == "bubblewrap" and identify(first.pid) == first else None


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

    async def _files_of(self, source: Source) -> Held:
        plan, handle = msgspec.convert(source.plan, Plan), msgspec.convert(source.handle, Handle)
        upper = f"{self.layout.sandbox(source.sandbox_id)}/upper"
        if not await trio.Path(upper).is_dir():
            words = f"the files of sandbox {source.sandbox_id} are gone: nothing can be kept of them"
            raise StateError("not_ready", words, sandbox_id=source.sandbox_id)
        lowers = [self.layers.root(layer.name) for layer in plan.layers]
        if plan.over_image:
            lowers.append(f"{self.layout.image(source.image_id)}/root")
        whole = handle.files != "overlay"
        return Held(source.sandbox_id, plan, handle, upper, [] if whole else lowers)

    # Layers

    async def freeze(self, name: str, source: Source) -> Frozen:
        """See `Layering.freeze`."""
        held = await self._files_of(source)
        flat = not held.lowers or len(held.plan.layers) >= MOST_LAYERS
        try:
            with trio.CancelScope(shield=True):  # it is short, and a sandbox must not be left standing
                pause = await self._in_thread(in_fresh_thread, functools.partial(self._freeze, name, held, flat=flat))
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

    def _freeze(self, name: str, held: Held, *, flat: bool) -> Pause:
        making = self.layers.begin(name)
        shown = seen_through(held.roots) if flat and held.lowers else held.upper
        with frozen(held.plan.cgroups, held.first_pid) as pause:
            failpoints.reach("layer.frozen")
            self.layers.copy(shown, making)
        self.layers.complete(name)
        return pause

    async def filled(self, name: str, image_id: str | None) -> dict[str, Any]:
        """See `Layering.filled`."""
        return _document([Layer(name=name, uid=self.layers.uid)], over_image=await self._fills_above(image_id))

    async def _fills_above(self, image_id: str | None) -> bool:
        return image_id is not None and self.root and (await self.abilities()).overlay.works

    async def fill(self, name: str, image_id: str | None, put: Sequence[Fill]) -> None:
        """See `Layering.fill`."""
        if await self._in_thread(self.layers.is_there, name):
            return
        beneath = f"{self.layout.image(image_id)}/root" if image_id is not None else None
        if beneath is not None and not await self._fills_above(image_id):
            put, beneath = [functools.partial(_copy, beneath), *put], None
        try:
            await self._in_thread(in_fresh_thread, functools.partial(self.layers.fill, name, beneath, put))
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.discard_layers([name])
            raise

    def layered(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """See `Layering.layered`."""
        return {**plan, **files}

    def layers_of(self, plan: Mapping[str, Any]) -> Collection[str]:
        """See `Layering.layers_of`."""
        return [layer["name"] for layer in plan.get("layers", ())]

    async def discard_layers(self, names: Collection[str]) -> None:
        """See `Layering.discard_layers`."""
        await self._in_thread(self.layers.discard, names)


def _document(layers: Sequence[Layer], *, over_image: bool) -> dict[str, Any]:
    return {"layers": msgspec.to_builtins(layers), "over_image": over_image}


def _copy(source: str, target: str, uid: int | None) -> None:  # noqa: ARG001  # it has the shape of `Fill`
    """What is beneath, where it cannot be shown. Only a user's daemon does that, whose files all are his own."""
    run(["cp", "-a", "--reflink=auto", "-T", "--", source, target])
