"""Disk limits of sandboxes without a disk of their own: those that exceed theirs are suspended."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from sandkeep.errors import SandkeepError
from sandkeepd.contract.pauses import Pausing
from sandkeepd.keeper.pause import Pause

if TYPE_CHECKING:
    from sandkeepd.providers.common.keeper_provider import HeldInstance

PERIOD_S: Final = 10.0
"""Seconds between measurements of the sandboxes' disk usage."""

REST: Final = 3
"""Minimum rest between measurements of a sandbox, as a multiple of the duration of the last one."""

_AT_ONCE: Final = 4


class DiskWatch:
    """Measures the disk usage of those of a provider's sandboxes that have a limit. `occupied_bytes` blocks and
    returns those of one; `end` ends one.
    """

    def __init__(
        self,
        instances: Mapping[str, "HeldInstance"],
        occupied_bytes: Callable[[Any], int],
        end: Callable[[Any], Awaitable[None]],
    ) -> None:
        self._instances = instances
        self._occupied_bytes = occupied_bytes
        self._end = end
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    async def run(self) -> None:
        """Measure them all periodically, until cancelled. A sandbox with so many files that it takes long does not
        delay the others, and is measured less often.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(PERIOD_S)
                for instance in list(self._instances.values()):
                    if instance.disk_bytes is not None and instance.look_after <= trio.current_time():
                        instance.look_after = math.inf
                        nursery.start_soon(self._try, instance)

    async def _try(self, instance: "HeldInstance") -> None:
        began = trio.current_time()
        try:
            with suppress(SandkeepError):  # the next round tries again
                await self.check(instance)
        finally:
            now = trio.current_time()
            instance.look_after = now + REST * (now - began)

    async def check(self, instance: "HeldInstance") -> None:
        """Measure a sandbox's disk usage once, and end the sandbox if that exceeds the limit."""
        written = await trio.to_thread.run_sync(self._occupied_bytes, instance, limiter=self._limiter)
        limit = instance.disk_bytes
        if limit is not None and written > limit and instance.ending is None:
            message = f"it had written {written} bytes, and its limit is {limit}"
            instance.ending = Ending(kind="disk_limit", message=message)
            await self._end(instance)
