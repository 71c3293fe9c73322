"""Blocking functions in threads, of which each owner has a share."""

import threading

import pytest
import trio
import trio.testing
from tests.support.patience import patient

from sandkeep_store.threads import Threads, check_cancelled, working_for


def fail(words: str) -> None:
    raise ValueError(words)


async def test_it_answers_and_raises_what_the_function_does() -> None:
    in_thread = Threads(1)
    assert await in_thread(divmod, 7, 2) == (3, 1)
    assert await in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ValueError, match="so"):
        await in_thread(fail, "so")


@pytest.mark.parametrize("abandons", [False, True])
async def test_cancelled_it_waits_unless_it_may_abandon_the_thread(abandons: bool) -> None:
    in_thread = Threads(1, abandon_on_cancel=abandons)
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
            assert in_thread.share.borrowed_tokens == 1  # the thread is there still
            go_on.set()
    finally:
        go_on.set()
    assert ended == [abandons]


async def test_work_that_looks_ends_when_it_is_cancelled() -> None:
    in_thread, begun = Threads(1), trio.Event()

    def work() -> None:
        trio.from_thread.run_sync(begun.set)
        while True:
            check_cancelled()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, work)
        await begun.wait()
        nursery.cancel_scope.cancel()
    assert in_thread.share.borrowed_tokens == 0


async def test_no_more_run_at_once_than_the_limit_says() -> None:
    in_thread = Threads(2)
    begun, go_on = list[int](), threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        go_on.wait()

    try:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(in_thread, work, number)
            await trio.testing.wait_all_tasks_blocked()
            assert in_thread.share.statistics().borrowed_tokens == 2
            assert in_thread.share.statistics().tasks_waiting == 1
            go_on.set()
    finally:
        go_on.set()
    assert sorted(begun) == [0, 1, 2]


async def test_an_owner_waits_for_own_work_alone() -> None:
    in_thread, go_on = Threads(1), threading.Event()
    try:
        async with trio.open_nursery() as nursery:
            with working_for("uid:1"):
                for _ in range(100):  # each task inherits the owner
                    nursery.start_soon(in_thread, go_on.wait)
            await trio.testing.wait_all_tasks_blocked()
            for owner in ("uid:2", ""):
                with working_for(owner), trio.fail_after(patient(60)):
                    assert await in_thread(divmod, 7, 2) == (3, 1)
            with working_for("uid:1"):
                assert in_thread.share.statistics().tasks_waiting == 99
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await in_thread(go_on.wait)
                assert scope.cancelled_caught  # in its queue
            go_on.set()
    finally:
        go_on.set()
