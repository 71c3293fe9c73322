"""Named volumes: their creation and removal, and the handlers of ``volume.*``.

Which volumes there are, their provider knows: sandboxes make them at first use as well. So a creation or a removal is
on record, an order of its own, and no volume is. An order that an earlier daemon began is finished.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from msgspec.structs import replace

from sandkeep import events, ids
from sandkeep.errors import CallerError, SetupError, StateError
from sandkeep.model import NamedVolume, NamedVolumeList
from sandkeep.protocol.methods import VolumeCreate, VolumeQuery, VolumeRemove
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.volumes import VolumeState
from sandkeepd.contract.volumes import Volumes
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Creation, Operation, Order

MOST_SHOWN = 20
"""Maximum number of sandboxes in the data of a refusal."""


class _VolumeOrder(Creation[VolumeState, NamedVolume]):
    """The base of both: an order that can fail."""

    view = "volumes"
    named = "name"
    done: ClassVar[type[Any]]

    @abstractmethod
    async def carry_out(self, volumes: Volumes, volume: VolumeState) -> None:
        """Make the provider do it. Safe to repeat."""

    async def act(self, order: Order[VolumeState]) -> Sequence[NewEvent]:
        """See `Operation.act`. One of an earlier daemon may be half done: it is retried until the engine answers."""
        volume = order.subject
        carry_out = partial(self.carry_out, volumes_of(self.core, volume.provider), volume)
        if order.intent is not None:
            await carry_out()
        else:
            await self._insist_unless_refused(order.stream, volume, carry_out)
        return [NewEvent(order.stream, self.done())]

    async def _insist_unless_refused(
        self, stream: str, volume: VolumeState, carry_out: Callable[[], Awaitable[None]]
    ) -> None:
        refusals: list[StateError] = []

        async def carry_out_or_be_refused() -> None:
            try:
                await carry_out()
            except StateError as refused:  # to retry that would remove a volume long after its last use
                refusals.append(refused)

        then = f"{self.method} of {volume.name}, begun by an earlier daemon, is finished when that answers"
        await self.insist(stream, carry_out_or_be_refused, then, volume.provider)
        if refusals:
            raise refusals[0]

    async def _recover(self, order: Order[VolumeState]) -> None:
        await self._execute(order)


class VolumeCreation(_VolumeOrder):
    """``volume.create``."""

    method = "volume.create"
    under_way = "creating"
    done = events.VolumeCreated
    failure = events.VolumeCreateFailed

    async def carry_out(self, volumes: Volumes, volume: VolumeState) -> None:
        await volumes.create(volume.owner, volume.name)


class VolumeRemoval(_VolumeOrder):
    """``volume.remove``."""

    method = "volume.remove"
    under_way = "removing"
    done = events.VolumeRemoved
    failure = events.VolumeRemoveFailed

    async def carry_out(self, volumes: Volumes, volume: VolumeState) -> None:
        await volumes.remove(volume.owner, volume.name)


def volumes_of(core: Core, provider: str) -> Volumes:
    """Return the volumes of a provider. Raises `not_supported`."""
    found = core.provider(provider).volumes
    if found is None:
        message = f"the {provider} provider has no named volumes: use docker, or copy files in with `cp`"
        raise SetupError("not_supported", message, provider=provider)
    return found


class NamedVolumes:
    """The operations, and the handlers of ``volume.*``."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._creation, self._removal = VolumeCreation(core), VolumeRemoval(core)
        self.operations: Sequence[Operation[Any, Any]] = (self._creation, self._removal)

    async def create(self, request: Request[VolumeCreate]) -> NamedVolume:
        """Create a volume. Raises `conflict` if its owner has one of that name."""
        asked, owner = request.params, self._owner(request, request.params.owner)
        ids.check_new_name(asked.name, "name")
        if await self._find(asked.provider, owner, asked.name) is not None:
            message = f"there is a volume {asked.name!r} already: use that, or choose another name"
            raise StateError("conflict", message, name=asked.name)
        event = events.VolumeCreateRequested(owner=owner, provider=asked.provider, name=asked.name)
        return await self._creation.run(NewEvent(ids.new_id(ids.VOLUME), event, None, 0), request)

    async def list_all(self, request: Request[VolumeQuery]) -> NamedVolumeList:
        """List the caller's volumes; an administrator sees all."""
        asked = request.params
        owner = asked.owner if request.admin else self._owner(request, asked.owner)
        found = await volumes_of(self._core, asked.provider).list(owner)
        return NamedVolumeList(volumes=[replace(each, sandbox_ids=self._users(each)) for each in found])

    async def remove(self, request: Request[VolumeRemove]) -> NamedVolume:
        """Remove a volume that no sandbox mounts. Raises `not_found` and `in_use`."""
        asked, owner = request.params, self._owner(request, request.params.owner)
        found = await self._find(asked.provider, owner, asked.name)
        if found is None:
            raise CallerError("not_found", f"there is no volume {asked.name!r}: see `volume ls`", name=asked.name)
        users = self._users(found)
        if users:
            shown = ", ".join(users[:3]) + (f" and {len(users) - 3} more" if len(users) > 3 else "")
            them = "it" if len(users) == 1 else "them"
            message = f"volume {asked.name} is mounted by {shown}: terminate {them} first"
            raise StateError("in_use", message, name=asked.name, sandbox_ids=users[:MOST_SHOWN])
        event = events.VolumeRemoveRequested(owner=owner, provider=asked.provider, name=asked.name)
        # A sandbox that is created from now on has the volume, and the provider refuses; or it comes later, and has a
        # new one.
        return await self._removal.run(NewEvent(ids.new_id(ids.VOLUME), event, None, 0), request)

    def _owner(self, request: Request[Any], asked: str | None) -> str:
        if asked is not None and not request.sees(asked):
            raise CallerError("permission_denied", "owner: others' volumes are for administrators", field="owner")
        return asked or request.owner

    async def _find(self, provider: str, owner: str, name: str) -> NamedVolume | None:
        found = await volumes_of(self._core, provider).list(owner)
        return next((each for each in found if each.name == name), None)

    def _users(self, volume: NamedVolume) -> list[str]:
        """Return the sandboxes that mount a volume, and may again."""
        return [
            sandbox.sandbox_id for sandbox in self._core.state.sandboxes.values()
            if not sandbox.hidden and sandbox.owner == volume.owner
            and sandbox.requested.provider == volume.provider
            and any(mounted.source == volume.name for mounted in sandbox.spec.volumes)
        ]  # fmt: skip
