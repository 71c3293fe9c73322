"""Named volumes of the engine. See `contract.volumes`.

An owner's volume is known by its name, which no other owner's can have (see `plan.volume_name`). Labels say whose it
is; those that earlier versions made have none.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sandkeep.errors import StateError
from sandkeep.ids import is_name
from sandkeep.model import NamedVolume
from sandkeep.protocol.clock import parse_rfc3339, rfc3339
from sandkeep.settings.docker import VOLUME_PREFIX
from sandkeepd.providers.docker.container import OWNER_LABEL, VOLUME_LABEL, volume_labels
from sandkeepd.providers.docker.engine import CONFLICT, NOT_FOUND, Client, Engine, RefusedError, Tolerate
from sandkeepd.providers.docker.plan import volume_name

_OF_UID: Final = re.compile(r"volume-uid-([0-9]+)-")


class DockerVolumes:
    """See `Volumes`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, owner: str | None) -> Sequence[NamedVolume]:
        found: dict[str, Any] = await self._engine.call(lambda client: client.volumes())
        volumes = [each for volume in found["Volumes"] or () for each in _named(volume, owner)]
        return sorted(volumes, key=lambda volume: (volume.owner, volume.name))

    async def create(self, owner: str, name: str) -> None:

        def create(client: Client) -> None:
            client.create_volume(volume_name(owner, name), "local", labels=volume_labels(owner, name))

        await self._engine.call(create)

    async def remove(self, owner: str, name: str) -> None:
        """See `Volumes.remove`. The engine itself refuses to remove one that a container has, of whichever daemon."""

        def remove(client: Client) -> None:
            with Tolerate(NOT_FOUND):
                client.remove_volume(volume_name(owner, name))

        try:
            await self._engine.call(remove)
        except RefusedError as refused:
            if refused.status != CONFLICT:
                raise
            look = f"docker ps --all --filter volume={volume_name(owner, name)}"
            message = f"volume {name} is mounted by another container: remove that first (`{look}` shows it)"
            raise StateError("in_use", message, name=name) from None


def _named(volume: dict[str, Any], owner: str | None) -> Iterator[NamedVolume]:
    """Yield a volume of the engine's if it is a named one, of that owner."""
    engine_name = str(volume["Name"])
    whose = owner or _owner_of(engine_name, volume.get("Labels") or {})
    beginning = volume_name(whose, "") if whose is not None else ""
    name = engine_name.removeprefix(beginning)
    time = volume.get("CreatedAt")  # with the offset of the engine's time zone
    created_at = rfc3339(parse_rfc3339(time)) if time else None
    if whose is not None and engine_name.startswith(beginning) and is_name(name):
        yield NamedVolume(
            name=name, provider="docker", owner=whose, engine_name=engine_name, created_at=created_at
        )  # fmt: skip


def _owner_of(engine_name: str, labels: dict[str, str]) -> str | None:
    """Return the owner by the labels, or by a name that has the owner's uid; None if it cannot be told."""
    if VOLUME_LABEL in labels:
        return labels.get(OWNER_LABEL)
    of_uid = _OF_UID.match(engine_name.removeprefix(VOLUME_PREFIX()))
    return f"uid:{of_uid[1]}" if of_uid else None
