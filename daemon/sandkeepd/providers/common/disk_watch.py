"""Disk limits of sandboxes without a disk of their own: those that exceed theirs are suspended."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeGuard, TypeVar

import trio

from sandkeep.errors import SandkeepError
from sandkeepd.contract.pauses import Pausing
from sandkeepd.keeper.pause import Pause

PERIOD_S: Final = 10.0
"""Seconds between measurements of the sandboxes' disk usage."""

REST: Final = 3
"""Minimum rest between measurements of a sandbox, as a multiple of the duration of the last one."""

_AT_ONCE: Final = 4


class Limited(Protocol):
    """A sandbox with a disk limit."""

    @property
    def disk_bytes(self) -> int:
        """Limit on its disk usage in bytes."""
        ...

    pauses: Pausing | None
    pause: Pause
    look_after: float
    """By Trio's clock, the earliest time of its next measurement."""
    most_written: float
    """Bytes at which it was suspended last. When resumed it may run, to remove files, until it has written more."""


L = TypeVar("L", bound=Limited)


class DiskWatch(Generic[L]):
    """Measures the disk usage of a provider's sandboxes. `occupied` blocks and returns the bytes of one."""

    def __init__(self, instances: Mapping[str, L], occupied: Callable[[L], int]) -> None:
        self._instances = instances
        self._occupied = occupied
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    async def run(self) -> None:
        """Measure them all periodically, until cancelled. A sandbox with so many files that it takes long does not
        delay the others, and is measured less often.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(PERIOD_S)
                for instance in list(self._instances.values()):
                    if instance.look_after <= trio.current_time() and not instance.pause.is_on:
                        instance.look_after = math.inf
                        nursery.start_soon(self._try, instance)

    async def _try(self, instance: L) -> None:
        began = trio.current_time()
        try:
            with suppress(SandkeepError):  # the next round tries again
                await self.check(instance)
        finally:
            now = trio.current_time()
            instance.look_after = now + REST * (now - began)

    async def check(self, instance: L) -> None:
        """Measure a sandbox's disk usage once, and suspend the sandbox if that exceeds the limit."""
        written = await trio.to_thread.run_sync(self._occupied, instance, limiter=self._limiter)
        limit = instance.disk_bytes
        if written <= limit:
            instance.most_written = 0
        elif written > instance.most_written and can_suspend(instance.pauses):
            instance.most_written = written
            instance.pause.reason = f"as it has written {written} bytes, and its disk limit is {limit}"
            await instance.pauses.suspend()


def can_suspend(pauses: Pausing | None) -> TypeGuard[Pausing]:
    """Tell if a sandbox can be suspended."""
    return pauses is not None and pauses.no_pauses is None
