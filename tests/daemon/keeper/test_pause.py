"""Time that does not run out while a sandbox stands still."""

from typing import Any

import trio

from sandkeepd.keeper.pause import Pause


async def test_time_runs_out(autojump_clock: Any) -> None:
    with Pause().timeout(5) as scope:
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == 5


async def test_but_not_while_it_stands_still(autojump_clock: Any) -> None:
    """What was left is left afterwards, however often that happens, and for each who waits."""
    pause = Pause()

    async def pauses() -> None:
        for _ in range(3):
            await trio.sleep(2)
            for _ in range(2):
                pause.set(True)
            await trio.sleep(100)
            pause.set(False)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pauses)
        with pause.timeout(50) as longer, pause.timeout(5) as shorter:
            await trio.sleep_forever()
        assert (longer.cancelled_caught, shorter.cancelled_caught) == (False, True)
    assert trio.current_time() == 306


async def test_who_begins_to_wait_while_it_stands_still_has_all_of_it(autojump_clock: Any) -> None:
    pause = Pause()
    pause.set(True)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def goes_on() -> None:
            await trio.sleep(100)
            pause.set(False)

        with pause.timeout(5):
            await trio.sleep_forever()
        assert trio.current_time() == 105


async def test_each_change_is_heard_of(autojump_clock: Any) -> None:
    pause, seen = Pause(), list[bool]()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def follow() -> None:
            while len(seen) < 4:
                paused = pause.is_on
                await pause.changed(paused)
                seen.append(pause.is_on)

        for number in range(4):
            await trio.sleep(1)
            pause.set(number % 2 == 0)
    assert seen == [True, False, True, False]
