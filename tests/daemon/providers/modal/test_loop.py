"""The SDK's loop beside trio's: results, errors, cancellation in both directions, and its end."""

import asyncio
import threading

import pytest
import trio
from tests.support.expect import DEADLINE_S
from tests.support.modal.accounts import leaving_no_descriptors

from sandkeepd.providers.modal.loop import Loop

pytestmark = [pytest.mark.needs("modal"), pytest.mark.usefixtures("nothing_is_left")]


async def _value() -> int:
    await asyncio.sleep(0)
    return 7


async def _failure() -> None:
    raise ValueError("of the SDK")


async def _name() -> str:
    return threading.current_thread().name


async def test_results_and_errors() -> None:
    loop = Loop()
    with trio.fail_after(DEADLINE_S):
        assert await loop.run(_value) == 7
        with pytest.raises(ValueError, match="of the SDK"):
            await loop.run(_failure)
        assert await loop.run(_name) != threading.current_thread().name
    await loop.aclose()


async def test_cancelling_cancels_the_coroutine() -> None:
    loop, begun, ended = Loop(), threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run, wait)
            await trio.to_thread.run_sync(begun.wait)
            nursery.cancel_scope.cancel()
        assert await trio.to_thread.run_sync(ended.wait, DEADLINE_S)
        await loop.aclose()


async def test_a_closed_loop_ends_what_waits_and_begins_nothing() -> None:
    loop, begun = Loop(), threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(1000)

    async def run() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await loop.run(wait)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.to_thread.run_sync(begun.wait)
            await loop.aclose()
        await loop.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await loop.run(_value)


async def test_many_at_once_take_one_thread() -> None:
    loop = Loop()
    with trio.fail_after(DEADLINE_S):
        await loop.run(_value)
        threads = threading.active_count()
        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(loop.run, _value)
            assert threading.active_count() <= threads
        await loop.aclose()


async def test_the_last_user_ends_the_thread() -> None:
    with leaving_no_descriptors(), trio.fail_after(DEADLINE_S):
        first, second = Loop(), Loop()
        assert await first.run(_value) == await second.run(_value)
        await first.aclose()
        assert await second.run(_value) == 7
        await second.aclose()
