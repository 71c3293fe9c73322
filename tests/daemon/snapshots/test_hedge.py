"""Hedged reads: one open file is returned, and no other stays open."""

import os
import threading

import pytest
import trio
from tests.support.expect import until_async
from tests.support.patience import patient

from sandkeep.errors import DataError, ProviderError
from sandkeepd.contract.caller import no_progress
from sandkeepd.host.threads import Meter
from sandkeepd.snapshots.hedge import Attempt, first_whole, open_in_thread


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class Store:
    """A store that gives an empty file once it is let go; `opened` has its descriptor."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go_on = threading.Event()
        self.opened: list[int] = []

    def read(self, _: Meter) -> int:
        self.asked.set()
        self.go_on.wait(patient(60))
        self.opened.append(os.memfd_create("archive"))
        return self.opened[0]

    def attempt(self, first_byte_s: float = patient(60)) -> Attempt:
        return lambda: open_in_thread(self.read, no_progress, "the archive", None, first_byte_s)


async def test_the_next_store_is_asked_while_the_first_is_slow_and_the_slow_one_leaves_nothing_open() -> None:
    slow, fast = Store(), Store()
    fast.go_on.set()
    found = await first_whole([slow.attempt(), fast.attempt()], 0.01)
    assert (found, is_open(found), slow.asked.is_set(), slow.opened) == (fast.opened[0], True, True, [])
    os.close(found)
    slow.go_on.set()
    await until_async(lambda: slow.opened != [])
    await until_async(lambda: not is_open(slow.opened[0]))


async def test_the_next_store_is_not_asked_when_the_first_answers() -> None:
    first, second = Store(), Store()
    first.go_on.set()
    os.close(await first_whole([first.attempt(), second.attempt()], patient(60)))
    assert not second.asked.is_set()


async def test_a_failure_is_no_reason_to_wait_and_the_most_specific_one_is_raised() -> None:
    async def missing() -> int:
        raise DataError("snapshot_missing", "there is none")

    async def damaged() -> int:
        raise DataError("snapshot_corrupt", "it is damaged")

    with trio.fail_after(patient(30)), pytest.raises(DataError, match="it is damaged"):
        await first_whole([missing, damaged, missing], patient(600))


async def test_of_two_that_answer_at_once_one_is_closed() -> None:
    opened: list[int] = []
    both = trio.Event()

    async def attempt() -> int:
        opened.append(os.memfd_create("archive"))
        mine = opened[-1]
        if len(opened) == 2:
            both.set()
        with trio.CancelScope(shield=True):
            await both.wait()
        return mine

    found = await first_whole([attempt, attempt], 0.01)
    assert [is_open(descriptor) for descriptor in sorted(opened, key=lambda one: one != found)] == [True, False]
    os.close(found)


async def test_a_cancelled_read_leaves_nothing_open() -> None:
    store = Store()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first_whole, [store.attempt()], 0.01)
        await trio.to_thread.run_sync(store.asked.wait, patient(60))
        nursery.cancel_scope.cancel()
    store.go_on.set()
    await until_async(lambda: store.opened != [])
    await until_async(lambda: not is_open(store.opened[0]))


async def test_a_store_that_says_nothing_is_given_up() -> None:
    store = Store()
    with pytest.raises(ProviderError, match="the archive did not begin to answer"):
        await store.attempt(0.01)()
    store.go_on.set()
    await until_async(lambda: store.opened != [])
    await until_async(lambda: not is_open(store.opened[0]))
