"""Run a blocking function in a thread, with progress and cancellation."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

T = TypeVar("T")

PROGRESS_PERIOD_S: Final = 1.0


class AbandonedError(Exception):
    """Nobody waits for it any more."""


class Meter:
    """Called by the work with the bytes done, from any thread. It raises to cancel the work."""

    def __init__(self) -> None:
        self.bytes = 0
        self._abandoned = False

    def __call__(self, size: int) -> None:
        """So much is through."""
        self.bytes = size
        if self._abandoned:
            raise AbandonedError

    def abandon(self) -> None:
        """Make the next call raise, which ends the work."""
        self._abandoned = True


async def run_in_thread(
    work: Callable[[Meter], T],
    progress: Callable[[str], Awaitable[None]],
    doing: str,
    *,
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """Run `work` in a thread, calling `progress` with `doing` and the bytes done. Cancellation waits for it to end."""
    meter = Meter()
    outcome: list[T | Exception] = []
    await progress(doing)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_report_progress, meter, progress, doing)
        nursery.start_soon(_abandon_when_cancelled, meter)
        with trio.CancelScope(shield=True):
            try:
                outcome.append(await trio.to_thread.run_sync(work, meter, limiter=limiter))
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
            await progress(f"{doing}: {reported / 1e6:.0f} MB")


async def _abandon_when_cancelled(meter: Meter) -> None:
    try:
        await trio.sleep_forever()
    finally:
        meter.abandon()
