"""Named volumes of a provider, which outlive sandboxes. Each owner has names of his own.

::

    await provider.volumes.create("uid:1000", "cache")   # between volume.create_requested and volume.created
    [volume] = await provider.volumes.list("uid:1000")   # also those that a sandbox's first use made
    await provider.volumes.remove("uid:1000", "cache")

The provider alone knows which there are. Everything here raises `provider_unavailable` when the engine does not answer.
"""

from collections.abc import Sequence
from typing import Protocol

from sandkeep.model import NamedVolume


class Volumes(Protocol):
    """`provider.volumes`: present when sandboxes can mount volumes by name."""

    async def list(self, owner: str | None) -> Sequence[NamedVolume]:
        """Return an owner's volumes, by name; for None those of all owners, as far as the engine can tell whose they
        are.
        """
        ...

    async def create(self, owner: str, name: str) -> None:
        """Create a volume. Safe to repeat: one that is there stays as it is."""
        ...

    async def remove(self, owner: str, name: str) -> None:
        """Remove a volume, with the files in it. Safe to repeat. Raises `in_use` while anything mounts it."""
        ...
