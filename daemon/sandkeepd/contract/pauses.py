"""Suspending a sandbox, and resuming it."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Pausing(Protocol):
    """What an instance can do beyond `Instance` when its sandbox can be suspended: nothing in it runs then, and all of
    it stays as it is. Requests to it wait meanwhile, without a deadline. `no_pauses` says why it cannot after all.
    """

    no_pauses: str | None

    async def suspend(self) -> None:
        """Have everything in it stand still. Safe to repeat. Raises `provider_unavailable` at once when the engine does
        not answer; when it is interrupted, `is_paused` tells what came of it.
        """
        ...

    async def resume(self) -> None:
        """Have everything in it go on. Safe to repeat. Raises as `suspend` does."""
        ...

    def is_paused(self) -> bool:
        """Whether it stands still, whoever brought that about. An instance that was just adopted knows."""
        ...

    async def pause_changed(self, paused: bool) -> None:
        """Wait until `is_paused` is not `paused` any more."""
        ...
