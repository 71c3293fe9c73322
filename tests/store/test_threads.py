"""Blocking functions in threads with a limit of their own."""

import threading

import pytest
import trio
import trio.testing

from sandkeep_store.threads import Threads


def fail(words: str) -> None:
    raise ValueError(words)


async def test_it_answers_and_raises_what_the_function_does() -> None:
    in_thread = Threads(trio.CapacityLimiter(1))
    assert await in_thread(divmod, 7, 2) == (3, 1)
    assert await in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ValueError, match="so"):
        await in_thread(fail, "so")


@pytest.mark.parametrize("abandons", [False, True])
async def test_cancelled_it_waits_unless_it_may_abandon_the_thread(abandons: bool) -> None:
    in_thread = Threads(trio.CapacityLimiter(1), abandon_on_cancel=abandons)
    begun, go_on = trio.Event(), threading.Event()
    ended = []

    def work() -> None:
        trio.from_thread.run_sync(begun.set)
        go_on.wait()

    async def call() -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await in_thread(work)
        ended.append(scope.cancelled_caught)

    scopes = list[trio.CancelScope]()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await begun.wait()
            scopes[0].cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert ended == ([True] if abandons else [])
            assert in_thread.limiter.borrowed_tokens == 1  # the thread is there still
            go_on.set()
    finally:
        go_on.set()
    assert ended == [abandons]


async def test_no_more_run_at_once_than_the_limit_says() -> None:
    in_thread = Threads(trio.CapacityLimiter(2))
    begun, go_on = list[int](), threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        go_on.wait()

    try:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(in_thread, work, number)
            await trio.testing.wait_all_tasks_blocked()
            assert in_thread.limiter.statistics().borrowed_tokens == 2
            assert in_thread.limiter.statistics().tasks_waiting == 1
            go_on.set()
    finally:
        go_on.set()
    assert sorted(begun) == [0, 1, 2]
