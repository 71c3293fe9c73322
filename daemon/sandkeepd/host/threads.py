"""Long work in threads, with progress; and threads of their own for ends. See `sandkeep_store.threads`."""

import os
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from sandkeep.protocol.amounts import of_total
from sandkeep_store.threads import Threads, check_cancelled
from sandkeep_store.turns import Turns

T = TypeVar("T")

PROGRESS_PERIOD_S: Final = 1.0

in_long_thread: Final = Threads(3, turns=Turns(2 * len(os.sched_getaffinity(0))))
"""For work whose length callers and sandboxes choose, such as comparisons and archives. See `sandkeep_store.turns`."""

in_ending_thread: Final = Threads(16)
"""For what ends a sandbox, an archive or an image: no other work delays that, not even its owner's."""

in_removal_thread: Final = Threads(4)
"""For removing files of what has ended, of which there may be millions."""


class Meter:
    """Called by the work with the bytes done, in its thread. It raises to cancel the work.

    `total_bytes` are those that there will be, if that is known. `count`, which the work may set, finds that out: it is
    called in the work's thread once the work has taken so long that somebody may look at its progress.
    """

    def __init__(self, total_bytes: int | None = None) -> None:
        self.bytes = 0
        self.total_bytes = total_bytes
        self.count: Callable[[], int | None] | None = None
        self._began = time.monotonic()

    def __call__(self, size: int) -> None:
        """So much is through."""
        self.bytes = size
        check_cancelled()
        if self.count is not None and time.monotonic() - self._began > PROGRESS_PERIOD_S:
            count, self.count = self.count, None
            self.total_bytes = count()


async def run_in_thread(
    work: Callable[[Meter], T],
    progress: Callable[[str], Awaitable[None]],
    doing: str,
    *,
    threads: Threads = in_long_thread,
    total_bytes: int | None = None,
) -> T:
    """Run `work` in a thread, calling `progress` with `doing` and the bytes done, of `total_bytes` if known.

    A call that is cancelled before its turn ends at once; later the work ends at its next call of the meter, or of
    `check_cancelled`, and that is waited for.
    """
    meter = Meter(total_bytes)
    outcome: list[T | Exception] = []
    await progress(doing)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_report_progress, meter, progress, doing)
        try:
            outcome.append(await threads(work, meter))
        except Exception as error:  # noqa: BLE001  # raised below, where the nursery does not wrap it up
            outcome.append(error)
        nursery.cancel_scope.cancel()
    await trio.lowlevel.checkpoint_if_cancelled()
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


async def _report_progress(meter: Meter, progress: Callable[[str], Awaitable[None]], doing: str) -> None:
    reported = 0
    while True:
        await trio.sleep(PROGRESS_PERIOD_S)
        if meter.bytes != reported:
            reported = meter.bytes
            await progress(f"{doing}: {of_total(reported, meter.total_bytes)}")
