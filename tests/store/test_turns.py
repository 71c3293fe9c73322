"""Turns at long work: owners go on in rotation, and nobody waits for work that is long, or that hangs."""

import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing
from tests.support.patience import patient

from sandkeep_store.threads import Threads, check_cancelled, working_for
from sandkeep_store.turns import Turn, Turns

NEVER_S = 1e6


def entered(turns: Turns, owner: str, wake: Callable[[], object], *, is_urgent: bool = False) -> Turn:
    turn = Turn(turns, owner, is_urgent=is_urgent)
    turn.wake = wake
    turns.enter(turn)
    return turn


def test_owners_go_on_in_rotation_and_administrators_first() -> None:
    turns, order = Turns(1, NEVER_S), list[str]()
    entries = [("first", False)] + [("enemy", False)] * 3 + [("one", False), ("two", False)] + [("root", True)] * 2
    waiting: dict[str, list[Turn]] = {owner: [] for owner, _ in entries}
    for owner, urgent in entries:
        turn = entered(turns, owner, lambda owner=owner: order.append(owner), is_urgent=urgent)
        waiting[owner].append(turn)
    for _ in range(len(entries)):
        waiting[order[-1]].pop(0).end()
    assert order == ["first", "root", "root", "enemy", "one", "two", "enemy", "enemy"]


def test_at_most_so_many_have_a_place() -> None:
    turns, order = Turns(2, NEVER_S), list[int]()
    waiting = [entered(turns, "one", lambda number=number: order.append(number)) for number in range(4)]
    assert order == [0, 1]
    waiting[2].end()  # it gives up while it waits
    waiting[0].end()
    assert order == [0, 1, 3]


def test_work_that_hangs_occupies_no_place() -> None:
    turns, given = Turns(1, 0.01), threading.Event()
    entered(turns, "enemy", lambda: None)
    entered(turns, "one", given.set)
    assert given.wait(patient(60))


async def test_long_work_waits_while_others_have_their_turns() -> None:
    in_turns, is_over = Threads(3, turns=Turns(1, 0.01)), threading.Event()
    runs = list[str]()

    def work_long() -> None:
        while not is_over.is_set():
            check_cancelled()
        runs.append("long")

    def work() -> None:
        runs.append("short")

    async with trio.open_nursery() as nursery:
        with working_for("enemy"):
            for _ in range(5):
                nursery.start_soon(in_turns, work_long)
        with trio.fail_after(patient(60)), working_for("one"):
            for _ in range(3):
                await in_turns(work)
        is_over.set()
    assert runs == ["short"] * 3 + ["long"] * 5


@pytest.mark.parametrize("has_begun", [True, False])
async def test_cancelled_work_leaves_the_queue(has_begun: bool) -> None:
    turns = Turns(1, NEVER_S)
    in_turns, begun = Threads(3, turns=turns), threading.Event()
    blocker = entered(turns, "enemy", lambda: None)
    if has_begun:
        blocker.end()

    def work() -> None:
        begun.set()
        while True:
            check_cancelled()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_turns, work)
        if has_begun:
            await trio.to_thread.run_sync(begun.wait)
        else:
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    blocker.end()
    given = list[str]()
    entered(turns, "one", lambda: given.append("one"))
    assert given == ["one"]


async def test_work_goes_on_only_with_a_place() -> None:
    turns = Turns(1, 0.01)
    in_turns, lost, runs = Threads(3, turns=turns), threading.Event(), list[str]()

    def work() -> None:
        lost.wait()
        check_cancelled()
        runs.append("long")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_turns, work)
        await trio.testing.wait_all_tasks_blocked()
        turns.slice_s = NEVER_S
        other = entered(turns, "one", lost.set)
        while not (turns._queues and lost.is_set()) and not runs:
            await trio.sleep(0.01)
        runs.append("short")
        other.end()
    assert runs == ["short", "long"]


async def test_work_that_lost_its_place_is_cancelled_in_the_queue() -> None:
    turns = Turns(1, 0.01)
    in_turns, lost = Threads(3, turns=turns), threading.Event()

    def work() -> None:
        lost.wait()
        while True:
            check_cancelled()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_turns, work)
        await trio.testing.wait_all_tasks_blocked()
        turns.slice_s = NEVER_S
        other = entered(turns, "one", lost.set)
        with trio.fail_after(patient(60)):
            await trio.to_thread.run_sync(lost.wait)
        nursery.cancel_scope.cancel()
    other.end()
