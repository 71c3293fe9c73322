"""Tasks that are woken at once take turns at the event loop."""

import trio
from tests.support.expect import DEADLINE_S

from sandkeep_store.threads import working_for
from sandkeepd.host.fairness import yield_to_loop

TASKS = 100


async def _through(done: list[int], number: int) -> None:
    await yield_to_loop()
    done.append(number)


async def test_whoever_looks_at_the_loop_in_between_sees_few_go() -> None:
    done, seen = list[int](), list[int]()
    async with trio.open_nursery() as nursery:
        for number in range(TASKS):
            nursery.start_soon(_through, done, number)
        while len(done) < TASKS:
            seen.append(len(done))
            await trio.lowlevel.checkpoint()
    steps = [after - before for before, after in zip(seen, [*seen[1:], TASKS], strict=True)]
    assert max(steps) <= 4, "two rounds' worth, as the observer may go last in one round and first in the next"


async def test_a_turn_that_is_given_up_is_somebody_elses() -> None:
    done = list[int]()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as given_up:
                for number in range(TASKS):
                    given_up.start_soon(_through, done, number)
                await trio.lowlevel.checkpoint()
                scope.cancel()
        nursery.start_soon(_through, done, TASKS)
    assert len(done) < TASKS
    assert done[-1] == TASKS


async def test_no_turn_is_given_to_who_was_cancelled_in_that_moment() -> None:
    """It would be lost, and with the last one the whole daemon would wait for ever."""
    scopes = list[trio.CancelScope]()

    async def wait(owner: str) -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await yield_to_loop(owner)

    async with trio.open_nursery() as nursery:
        for number in range(TASKS):
            nursery.start_soon(wait, f"uid:{number}")
        while len(scopes) < TASKS:
            await trio.lowlevel.checkpoint()
        for scope in scopes:
            scope.cancel()
    done = list[int]()
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for number in range(TASKS):
                nursery.start_soon(_through, done, number)


async def test_one_of_another_owner_does_not_wait_for_a_crowd() -> None:
    done = list[int]()
    async with trio.open_nursery() as nursery:
        with working_for("uid:1"):
            for number in range(TASKS):
                nursery.start_soon(_through, done, number)
        await trio.lowlevel.checkpoint()
        with working_for("uid:2"):
            nursery.start_soon(_through, done, TASKS)
    assert len(done) == TASKS + 1
    assert done.index(TASKS) <= 10


class _Rounds(trio.abc.Instrument):
    """Counts the rounds of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_who_is_alone_waits_for_nobody() -> None:
    """Still the loop looks at its sockets now and then."""
    rounds = _Rounds()
    await yield_to_loop()
    trio.lowlevel.add_instrument(rounds)
    for _ in range(TASKS):
        await yield_to_loop()
    trio.lowlevel.remove_instrument(rounds)
    assert TASKS / 4 <= rounds.count <= TASKS / 2
