"""Disk limits of sandboxes without a disk of their own: those that exceed theirs are suspended.

Usage is measured now and then, as that takes three programs. Between two measurements it has grown by no more than the
sandbox's processes have written, which the kernel counts.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import trio

from sandkeep.errors import SandkeepError
from sandkeep.protocol.amounts import size
from sandkeep_store.threads import Threads
from sandkeepd.contract.pauses import Pausing
from sandkeepd.host.processes import written_bytes
from sandkeepd.keeper.shared_directory import LEAST_FULL_BYTES

if TYPE_CHECKING:
    from sandkeepd.providers.common.keeper_provider import HeldInstance

PERIOD_S: Final = 10.0
"""Seconds between measurements of the sandboxes' disk usage."""

REST: Final = 3
"""Minimum rest between measurements of a sandbox, as a multiple of the duration of the last one."""

MAX_LOOK_S: Final = 1.0
"""Seconds that a measurement may have taken for one to be made before the end of a process is recorded."""

AT_ONCE: Final = 4
"""Number of measurements at once: of sandboxes that took longer than `MAX_LOOK_S` last, and of the others."""


class DiskWatch:
    """Measures the disk usage of those of a provider's sandboxes that have a limit. `occupied_bytes` blocks and
    returns those of one.
    """

    def __init__(self, instances: Mapping[str, "HeldInstance"], occupied_bytes: Callable[[Any], int]) -> None:
        self._instances = instances
        self._occupied_bytes = occupied_bytes
        self._in_thread = Threads(AT_ONCE, abandon_on_cancel=True)
        self._in_slow_thread = Threads(AT_ONCE, abandon_on_cancel=True)

    async def run(self) -> None:
        """Measure them all periodically, until cancelled. A sandbox with so many files that it takes long does not
        delay the others, and is measured less often.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(PERIOD_S)
                for instance in list(self._instances.values()):
                    is_due = instance.look_after <= trio.current_time() and not instance.pause.is_on
                    if instance.disk_bytes is not None and is_due and not instance.measuring.locked():
                        nursery.start_soon(self._try, instance)

    async def _try(self, instance: "HeldInstance") -> None:
        with suppress(SandkeepError, OSError):  # the next round tries again
            await self.check(instance)

    async def look(self, instance: "HeldInstance") -> None:
        """Measure a sandbox's disk usage if it may have reached its limit since it was measured last. One that takes
        long to measure is left to the next round.
        """
        asked = trio.current_time()
        if instance.measure_s > MAX_LOOK_S or not _may_be_full(instance):
            return
        async with instance.measuring:
            if instance.measured_at < asked:  # not by another that waited
                await trio.sleep_until(min(instance.look_after, asked + REST * MAX_LOOK_S))
                with suppress(SandkeepError, OSError):  # the next round tries again
                    await self._measure(instance)

    async def _measure(self, instance: "HeldInstance") -> int:
        """Measure a sandbox's disk usage, in its turn. If it is cancelled, as the sandbox ends, the thread is left."""
        instance.measured_at, instance.written_before = trio.current_time(), _written_bytes(instance)
        measure = partial(self._occupied_bytes, instance)
        in_thread = self._in_slow_thread if instance.measure_s > MAX_LOOK_S else self._in_thread
        try:
            occupied = await in_thread(measure)
        finally:
            now = trio.current_time()
            instance.measure_s = now - instance.measured_at
            instance.look_after = now + REST * instance.measure_s
        instance.occupied_bytes = occupied
        return occupied

    async def check(self, instance: "HeldInstance") -> None:
        """Measure a sandbox's disk usage once, and suspend the sandbox if that exceeds the limit."""
        async with instance.measuring:
            written = await self._measure(instance)
        limit = instance.disk_bytes
        if limit is None or written <= limit:
            instance.most_written = 0
        elif written > instance.most_written and _can_suspend(instance.pauses):
            instance.most_written = written
            over = size(written - limit)
            instance.pause.reason = f"as it has written {over} more than its disk limit of {size(limit)}"
            await instance.pauses.suspend()


def _may_be_full(instance: "HeldInstance") -> bool:
    limit, written = instance.disk_bytes, _written_bytes(instance) - instance.written_before
    return limit is not None and (instance.occupied_bytes or 0) + written + LEAST_FULL_BYTES > limit


def _written_bytes(instance: "HeldInstance") -> int:
    """Return the bytes that a sandbox's ended processes have written, of which its keeper is the parent."""
    return written_bytes(instance.first_pid) if instance.first_pid is not None else 0


def _can_suspend(pauses: Pausing | None) -> TypeGuard[Pausing]:
    return pauses is not None and pauses.no_pauses is None
