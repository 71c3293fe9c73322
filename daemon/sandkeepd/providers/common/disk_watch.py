"""Disk limits of sandboxes without a disk of their own: those that exceed theirs are suspended."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import trio

from sandkeep.errors import SandkeepError
from sandkeep.protocol.amounts import size
from sandkeepd.contract.pauses import Pausing

if TYPE_CHECKING:
    from sandkeepd.providers.common.keeper_provider import HeldInstance

PERIOD_S: Final = 10.0
"""Seconds between measurements of the sandboxes' disk usage."""

REST: Final = 3
"""Minimum rest between measurements of a sandbox, as a multiple of the duration of the last one."""

_AT_ONCE: Final = 4


class DiskWatch:
    """Measures the disk usage of those of a provider's sandboxes that have a limit. `occupied_bytes` blocks and
    returns those of one.
    """

    def __init__(self, instances: Mapping[str, "HeldInstance"], occupied_bytes: Callable[[Any], int]) -> None:
        self._instances = instances
        self._occupied_bytes = occupied_bytes
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    async def run(self) -> None:
        """Measure them all periodically, until cancelled. A sandbox with so many files that it takes long does not
        delay the others, and is measured less often.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(PERIOD_S)
                for instance in list(self._instances.values()):
                    is_due = instance.look_after <= trio.current_time() and not instance.pause.is_on
                    if instance.disk_bytes is not None and is_due:
                        instance.look_after = math.inf
                        nursery.start_soon(self._try, instance)

    async def _try(self, instance: "HeldInstance") -> None:
        began = trio.current_time()
        try:
            with suppress(SandkeepError, OSError):  # the next round tries again
                await self.check(instance)
        finally:
            now = trio.current_time()
            instance.look_after = now + REST * (now - began)

    async def check(self, instance: "HeldInstance") -> None:
        """Measure a sandbox's disk usage once, and suspend the sandbox if that exceeds the limit."""
        written = await trio.to_thread.run_sync(self._occupied_bytes, instance, limiter=self._limiter)
        limit, instance.occupied_bytes = instance.disk_bytes, written
        if limit is None or written <= limit:
            instance.most_written = 0
        elif written > instance.most_written and _can_suspend(instance.pauses):
            instance.most_written = written
            over = size(written - limit)
            instance.pause.reason = f"as it has written {over} more than its disk limit of {size(limit)}"
            await instance.pauses.suspend()


def _can_suspend(pauses: Pausing | None) -> TypeGuard[Pausing]:
    return pauses is not None and pauses.no_pauses is None
