"""Control groups that stand still, read and suspended in any order, with real groups of both versions."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.support.expect import until
from tests.support.patience import patient

from sandkeep.errors import ProviderError, StateError
from sandkeep_store.threads import in_thread
from sandkeepd.host.cgroups import freezer, groups, placement
from sandkeepd.host.cgroups.freezer import Freezer, freezer_of
from sandkeepd.host.cgroups.pause import frozen

PLACES = {
    "version 1": ("/sys/fs/cgroup/freezer", "tasks"),
    "version 2": (
        "/sys/fs/cgroup" if os.path.exists("/sys/fs/cgroup/cgroup.procs") else "/sys/fs/cgroup/unified",
        "cgroup.subtree_control",
    ),
}
"""Where groups can be made, and the file by which that is known."""


class Group:
    """A group with a process, and its freezer."""

    def __init__(self, directory: str, mark: str) -> None:
        self.directory, self.mark = directory, mark
        self.groups = {"freezer": directory}
        os.mkdir(directory)
        self.process = subprocess.Popen(["sleep", "1000"])
        placement.write(f"{directory}/cgroup.procs", str(self.process.pid))
        found = freezer_of(self.groups, mark)
        assert found is not None
        self.freezer: Freezer = found

    def state(self) -> tuple[bool, bool, bool | None]:
        """Whether it stands still, whether it is marked, and whether it is suspended."""
        return freezer.are_frozen(self.groups), os.path.exists(self.mark), self.freezer.is_suspended()

    def outside(self, *, thaw: bool) -> None:
        """Somebody else writes to the kernel's file, and waits until it is so."""
        switch = freezer.switch_of(self.groups)
        assert switch is not None
        placement.write(switch.file, switch.thaw if thaw else switch.freeze)
        until(lambda: freezer.are_frozen(self.groups) != thaw)

    def clear(self) -> None:
        freezer.thaw(self.groups)
        self.process.kill()
        self.process.wait()
        groups.remove(self.groups)


GOES_ON, IS_READ, SUSPENDED = (False, False, False), (True, True, False), (True, False, True)


@pytest.fixture(params=PLACES)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Group]:
    top, file = PLACES[request.param]
    directory = f"{top}/skt-{uuid.uuid4().hex}"
    if not (os.path.exists(f"{top}/{file}") and os.access(top, os.W_OK)):
        pytest.skip(f"no group of {request.param} can be made here")
    made = Group(directory, str(tmp_path / "read"))
    try:
        yield made
    finally:
        made.clear()


def reading(group: Group) -> ExitStack:
    """As somebody who reads, until it is closed."""
    stack = ExitStack()
    stack.enter_context(frozen(group.groups, None, group.mark))
    return stack


FORKS: str = "while :; do /bin/true; done"
"""A program that forks all the time: one in thirty freezes of four of them was never completed, until asked again."""


def test_what_forks_all_the_time_stands_still(group: Group) -> None:
    forking = [subprocess.Popen(["sh", "-c", FORKS]) for _ in range(4)]
    try:
        for one in forking:
            placement.write(f"{group.directory}/cgroup.procs", str(one.pid))
        for _ in range(150):
            group.freezer.suspend()
            assert group.state() == SUSPENDED
            group.freezer.resume()
    finally:
        freezer.thaw(group.groups)
        for one in forking:
            one.kill()
            one.wait()
        until(lambda: groups.members(group.groups) == [group.process.pid])  # what they began ends by itself


def test_it_is_read_for_a_moment(group: Group) -> None:
    assert group.state() == GOES_ON
    for _ in range(2):
        with reading(group):
            assert group.state() == IS_READ
        assert group.state() == GOES_ON


def test_it_is_suspended_until_it_is_resumed(group: Group) -> None:
    for _ in range(2):
        group.freezer.suspend()
        assert group.state() == SUSPENDED
    for _ in range(2):
        group.freezer.resume()
        assert group.state() == GOES_ON


def test_what_is_read_stays_suspended(group: Group) -> None:
    group.freezer.suspend()
    with reading(group):
        assert group.state() == SUSPENDED
    assert group.state() == SUSPENDED


def test_what_is_suspended_while_it_is_read_stays_so(group: Group) -> None:
    with reading(group):
        group.freezer.suspend()
        assert group.state() == SUSPENDED
    assert group.state() == SUSPENDED


def test_what_is_resumed_while_it_is_read_goes_on_afterwards(group: Group) -> None:
    group.freezer.suspend()
    with reading(group):
        group.freezer.resume()
        assert group.state() == IS_READ
        group.freezer.suspend()
        group.freezer.resume()
        assert group.state() == IS_READ
    assert group.state() == GOES_ON


def test_what_others_have_go_on_is_not_read_as_of_one_moment(group: Group) -> None:
    group.freezer.suspend()
    with pytest.raises(StateError, match="was resumed"), reading(group):
        group.outside(thaw=True)
    assert group.state() == GOES_ON


def test_what_others_freeze_is_suspended(group: Group) -> None:
    group.outside(thaw=False)
    assert group.state() == SUSPENDED
    with reading(group):
        assert group.state() == SUSPENDED
    group.freezer.resume()
    assert group.state() == GOES_ON


def test_what_stands_still_with_all_around_it_cannot_be_resumed(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Group(f"{group.directory}/inner", f"{group.mark}-inner")
    try:
        group.freezer.suspend()
        until(lambda: inner.state() == SUSPENDED)
        with monkeypatch.context() as soon:
            soon.setattr(freezer, "DEADLINE_S", 0.05)
            with pytest.raises(ProviderError, match="parent of the sandbox's control group is frozen"):
                inner.freezer.resume()
        group.freezer.resume()
        until(lambda: inner.state() == GOES_ON)
    finally:
        inner.clear()


def test_one_that_does_not_stand_still_in_time_goes_on(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezer, "DEADLINE_S", 0.05)
    monkeypatch.setattr(freezer, "_is_frozen", lambda _: False)
    with pytest.raises(ProviderError, match="does not freeze"):
        group.freezer.suspend()
    with pytest.raises(ProviderError, match="does not freeze"), reading(group):
        pass
    monkeypatch.undo()
    until(lambda: group.state() == GOES_ON)


# What reads and is killed: $1 the group, $2 the mark, $3 whether it is suspended meanwhile, $4 whether its guard, its
# only child, is killed, too.
DIES = """
import os, signal, sys
from sandkeepd.host.cgroups.freezer import freezer_of
from sandkeepd.host.cgroups.pause import frozen
group, mark, suspended, guard = {"freezer": sys.argv[1]}, sys.argv[2], sys.argv[3] == "True", sys.argv[4] == "True"
with frozen(group, None, mark):
    if suspended:
        freezer_of(group, mark).suspend()
    if guard:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            [child] = file.read().split()
        os.kill(int(child), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("guard_too", [False, True])
@pytest.mark.parametrize("suspended", [False, True])
def test_a_daemon_dies_while_it_reads(group: Group, suspended: bool, guard_too: bool) -> None:
    argv = [sys.executable, "-c", DIES, group.directory, group.mark, str(suspended), str(guard_too)]
    assert subprocess.run(argv, check=False).returncode == -signal.SIGKILL
    if suspended:
        assert group.state() == SUSPENDED
    elif guard_too:
        assert group.state()[:2] == (True, True)
    else:
        until(lambda: group.state() == GOES_ON)
    for _ in range(2):
        freezer.recover(group.groups, group.mark)
        assert group.state() == (SUSPENDED if suspended else GOES_ON)


def test_where_there_is_no_group_nothing_is_done(tmp_path: Path) -> None:
    gone = {"freezer": str(tmp_path / "gone")}
    assert freezer_of(gone, str(tmp_path / "read")) is None
    assert not freezer.are_frozen(gone)
    with suppress(FileNotFoundError):
        freezer.thaw(gone)
    freezer.recover(gone, str(tmp_path / "read"))


def test_what_is_being_killed_is_not_frozen_any_more(group: Group) -> None:
    read = reading(group)
    assert group.state() == IS_READ
    freezer.end(group.groups)
    assert not freezer.are_frozen(group.groups)
    with pytest.raises(StateError, match="is being ended"):
        group.freezer.suspend()
    assert not freezer.are_frozen(group.groups)
    with pytest.raises(StateError, match="was resumed"):
        read.close()
    with pytest.raises(StateError, match="is being ended"), reading(group):
        raise AssertionError
    freezer.recover(group.groups, group.mark)
    with reading(group):
        assert group.state() == IS_READ


def test_a_freeze_that_begins_before_the_end_does_not_outlast_it(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end comes after the last look, and its thaw before the freeze."""
    write = freezer.write

    def write_late(path: str, value: str) -> None:
        monkeypatch.setattr(freezer, "write", write)
        freezer.end(group.groups)
        write(path, value)

    monkeypatch.setattr(freezer, "write", write_late)
    with pytest.raises(StateError, match="is being ended"):
        group.freezer.suspend()
    assert not freezer.are_frozen(group.groups)


async def test_readers_take_turns_in_order_and_can_leave_the_queue() -> None:
    turn, order = freezer.Turn(), list[int]()

    async def read(number: int) -> None:
        async with turn.taken() as end:
            order.append(number)
            await trio.testing.wait_all_tasks_blocked()
            await in_thread(end)  # early: the next one goes on
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with turn.taken():
            for number in range(4):
                nursery.start_soon(read, number)
                await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0):
                async with turn.taken():
                    raise AssertionError
            assert order == []
        while len(order) < 4:
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert order == [0, 1, 2, 3]
    with trio.fail_after(patient(60)):
        async with turn.taken():
            pass
