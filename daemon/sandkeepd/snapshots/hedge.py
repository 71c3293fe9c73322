"""Hedged reads: of several copies of one archive the first whole one counts, and nobody waits for a silent store.

A blocked read cannot be interrupted. So its thread is left to itself, and closes what it opens when nobody takes it.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Final

import trio

from sandkeep.errors import ProviderError, SandkeepError
from sandkeep_store.archives.stores.choice import most_specific_error
from sandkeep_store.threads import Threads
from sandkeepd.contract.caller import Progress
from sandkeepd.host.threads import Meter, run_in_thread

Attempt = Callable[[], Awaitable[int]]

in_reading_thread: Final = Threads(8, abandon_on_cancel=True)
"""For reads of archives from stores, of which some may be silent."""


async def first_whole(attempts: Sequence[Attempt], head_start_s: float) -> int:
    """Return the open file of the first attempt that succeeds; the others are cancelled, and what they opened is
    closed. Each begins when the one before it has failed, or has taken `head_start_s`.

    Raises the most specific error when all have failed.
    """
    descriptors: list[int] = []
    failures: list[SandkeepError] = []

    async def run(attempt: Attempt, over: trio.Event) -> None:
        try:
            descriptors.append(await attempt())
            nursery.cancel_scope.cancel()
        except SandkeepError as error:
            failures.append(error)
        finally:
            over.set()

    try:
        async with trio.open_nursery() as nursery:
            for attempt in attempts:
                over = trio.Event()
                nursery.start_soon(run, attempt, over)
                with trio.move_on_after(head_start_s):
                    await over.wait()
    except BaseException:
        _close(descriptors)
        raise
    if not descriptors:
        raise most_specific_error(failures)
    _close(descriptors[1:])
    return descriptors[0]


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


async def open_in_thread(
    work: Callable[[Meter], int], progress: Progress, what: str, total_bytes: int | None, first_byte_s: float
) -> int:
    """Return the file that `work` opens in a thread. Raises `provider_unavailable` when it has reported no byte
    `first_byte_s` after it began. When the call is cancelled, the thread ends at its next report, and closes the file.
    """
    opened: Future[int] = Future()
    begun = trio.Event()
    meters: list[Meter] = []
    failures: list[Exception] = []

    def run(meter: Meter) -> None:
        meters.append(meter)
        trio.from_thread.run_sync(begun.set)
        descriptor = work(meter)
        if opened.set_running_or_notify_cancel():
            opened.set_result(descriptor)
        else:
            os.close(descriptor)

    async def limit() -> None:
        await begun.wait()
        await trio.sleep(first_byte_s)
        if not meters[0].bytes:
            message = f"{what} did not begin to answer within {first_byte_s:g} s: try again later"
            failures.append(ProviderError("provider_unavailable", message))
            nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limit)
            try:
                await run_in_thread(
                    run, progress, f"reading {what}", threads=in_reading_thread, total_bytes=total_bytes
                )
            except Exception as error:  # noqa: BLE001  # raised below, where the nursery does not wrap it up
                failures.append(error)
            nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]
        return opened.result()
    except BaseException:
        if not opened.cancel():  # the thread has opened it, or does so this moment
            os.close(opened.result())
        raise
