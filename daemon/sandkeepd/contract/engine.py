"""An engine that may be down for a while."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Recovering(Protocol):
    """What a provider can do beyond `Provider` when it depends on an engine that may be down for a while."""

    async def recovered(self) -> None:
        """Wait until the engine answers again, of which an error has told that it did not."""
        ...
