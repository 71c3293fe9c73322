"""Sandboxes that stand still, go on, and are started anew, with real processes; and daemons that were not there."""

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from tests.support import fake_provider as fake_module
from tests.support.expect import refused_async, until, until_async
from tests.support.fake_provider import FakePauses
from tests.support.inside import Inside, inside
from tests.support.patience import patient
from tests.support.printed import lines
from tests.support.suspending_daemons import HOUSES, DockerHouse, House
from tests.support.users import NOBODY, command_as

from sandkeep import events
from sandkeep.errors import ProviderError, SandkeepError
from sandkeep.events import Meta
from sandkeep.model import SandboxSpec
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.metadata import document
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.contract.instance import Ending
from sandkeepd.sandboxes.reaper import reason_to_end

DOWN = ProviderError("provider_unavailable", "the engine is down: start it", engine="fake")


BOXES: list[str] = []
"""The ids of those that a test has made with `box_in`."""


async def box_in(daemon: Inside, source: str, **options: Any) -> SandboxState:
    made = await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box", **options)
    BOXES.append(made.sandbox_id)
    return state(daemon)


def state(daemon: Inside) -> SandboxState:
    return daemon.box()


async def suspend(daemon: Inside, **more: Any) -> str:
    return str((await daemon.call("sandbox.suspend", sandbox_id="box", **more)).status)


async def resume(daemon: Inside, **more: Any) -> str:
    return str((await daemon.call("sandbox.resume", sandbox_id="box", **more)).status)


async def run(daemon: Inside, command: str) -> bytes:
    return bytes((await daemon.call("sandbox.exec", sandbox_id="box", command=command)).stdout)


async def written(daemon: Inside, name: str, expected: bytes) -> None:
    """Wait until a process has written that."""
    seen = b""
    with trio.fail_after(patient(60)):
        while expected not in seen:
            read = daemon.call("process.read", sandbox_id="box", name=name, stdout_offset=len(seen), wait_s=5)
            seen += (await read).stdout


async def until_status(daemon: Inside, status: str) -> None:
    with trio.fail_after(patient(60)):
        while state(daemon).status != status:
            await daemon.core.changed(daemon.id_of())


async def adopted(daemon: Inside) -> None:
    with trio.fail_after(patient(18)):  # less than a sandbox that does not answer would be waited for
        await daemon.reconciler.run()


def box_of(state_dir: str) -> str:
    return f"{state_dir}/sandboxes/{BOXES[-1]}"


@pytest.fixture(params=HOUSES)
async def house(
    request: pytest.FixtureRequest, state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[House]:
    """Of each kind one in which something can be suspended. What others do is seen there when a test says so."""
    monkeypatch.setattr("sandkeepd.providers.local.pause.LOOK_S", math.inf)
    docker = request.param is DockerHouse
    made = DockerHouse(state_dir, request.getfixturevalue("dockerd")) if docker else request.param(state_dir, source)
    yield made
    await made.clear()


docker_by_the_soak = pytest.mark.parametrize(
    "house",
    [*HOUSES[:-1], pytest.param(DockerHouse, marks=[*HOUSES[-1].marks, pytest.mark.soak])],
    indirect=True,
)
"""For what the daemon does by itself; what Docker's engine does and says has other tests here."""


# -- standing still ---------------------------------------------------------------------------------------------------


async def test_what_is_suspended_stands_still_and_goes_on(house: House) -> None:
    async with house.daemon() as daemon:
        sandbox = await house.box(daemon)
        await daemon.call("process.launch", sandbox_id="box", name="web", command="read x; echo $x; exit 3", stdin=True)
        assert await suspend(daemon) == "suspended"
        assert house.stands_still()
        assert msgspec.json.decode(document(sandbox, "log") or b"")["status"] == "suspended"
        assert (await daemon.call("daemon.status")).sandboxes == {"suspended": 1}
        assert await resume(daemon) == "running"
        assert not house.stands_still()
        await daemon.call("process.write_stdin", sandbox_id="box", name="web", data=b"still there\n")
        assert (await daemon.call("process.wait", sandbox_id="box", name="web")).exit_code == 3
        assert await run(daemon, "echo hi") == b"hi\n"
        told = [kind for kind in await daemon.types("box") if kind.startswith("sandbox.")]
        assert told[2:] == [
            "sandbox.suspend_requested", "sandbox.suspended", "sandbox.resume_requested", "sandbox.resumed"
        ]  # fmt: skip


@docker_by_the_soak
async def test_what_is_so_already_is_answered_as_it_is(house: House) -> None:
    async with house.daemon() as daemon:
        await house.box(daemon)
        assert await resume(daemon) == "running"
        for order in (suspend, resume):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(order, daemon)
            await order(daemon)
        types = await daemon.types("box")
        assert (types.count("sandbox.suspend_requested"), types.count("sandbox.resume_requested")) == (1, 1)


REFUSED: dict[str, dict[str, Any]] = {
    "sandbox.exec": {"command": "true"},
    "process.launch": {"command": "true"},
    "process.signal": {"name": "web"},
    "process.write_stdin": {"name": "web", "data": b"x"},
    "sandbox.read_file": {"path": "hello"},
    "sandbox.write_file": {"path": "hello", "data": b""},
    "sandbox.list_dir": {"path": "."},
    "sandbox.copy_out": {"path": "."},
    "sandbox.copy_in": {"path": ".", "transfer_id": "t"},
    "process.attach": {"name": "screen"},
    "process.resize": {"name": "screen", "rows": 2, "cols": 2},
}


@pytest.mark.needs("tmux")
async def test_meanwhile_it_is_said_what_to_do_and_all_can_be_read(house: House) -> None:
    async with house.daemon() as daemon:
        await house.box(daemon)
        await daemon.call("process.launch", sandbox_id="box", name="web", command="echo hi; exec cat", stdin=True)
        await daemon.call("process.launch", sandbox_id="box", name="screen", command="exec cat", tty=True)
        while not (await daemon.call("process.read", sandbox_id="box", name="web", wait_s=10)).stdout:
            pass
        await suspend(daemon)
        for method, params in REFUSED.items():
            error = await refused_async("not_ready", daemon.call(method, sandbox_id="box", **params))
            assert error.message == "sandbox box is suspended: resume it", method
            assert error.data["status"] == "suspended"
        assert (await daemon.call("process.read", sandbox_id="box", name="web")).stdout == b"hi\n"
        assert (await daemon.call("process.get", sandbox_id="box", name="web")).status == "running"
        assert len((await daemon.call("process.list", sandbox_id="box")).processes) == 2
        await refused_async("timeout", daemon.call("process.wait", sandbox_id="box", name="web", timeout_s=0.01))
        ended = trio.Event()

        async def wait() -> None:
            assert (await daemon.call("process.wait", sandbox_id="box", name="web")).exit_code == 143
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await resume(daemon)
            await daemon.call("process.signal", sandbox_id="box", name="web")
        assert ended.is_set()
        await daemon.call("process.write_stdin", sandbox_id="box", name="screen", data=b"typed\n")
        await written(daemon, "screen", b"typed")


@docker_by_the_soak
async def test_a_time_limit_that_passes_meanwhile_is_kept_afterwards(house: House) -> None:
    async with house.daemon() as daemon:
        await house.box(daemon)
        limit = {"command": ["sleep", "1000"], "timeout_s": 2.5}  # it is suspended before
        await daemon.call("process.launch", sandbox_id="box", name="short", **limit)
        await suspend(daemon)
        await refused_async("timeout", daemon.call("process.wait", sandbox_id="box", name="short", timeout_s=2.7))
        assert "process.timed_out" not in await daemon.types("box")
        await resume(daemon)
        view = await daemon.call("process.wait", sandbox_id="box", name="short", timeout_s=patient(60))
        assert (view.status, view.exit_code, view.timed_out) == ("exited", 124, True)


def test_it_is_reaped_all_the_same() -> None:
    for status in ("running", "suspended"):
        asked = events.SandboxCreateRequested(
            owner="uid:0", image_id="i", provider="fake",
            spec=SandboxSpec(max_lifetime_s=10, idle_timeout_s=5),
        )  # fmt: skip
        sandbox = SandboxState(
            sandbox_id="box", requested=asked, requested_us=0, revision=1, position=1, last_activity_us=2_000_000
        )
        sandbox.status = status  # type: ignore[assignment]
        assert [reason_to_end(sandbox, second * 1_000_000) for second in (6, 7, 10)] == [
            None, "idle_timeout", "max_lifetime"
        ]  # fmt: skip


async def test_it_can_be_terminated(house: House) -> None:
    async with house.daemon() as daemon:
        await house.box(daemon)
        await daemon.call("process.launch", sandbox_id="box", name="web", command=["sleep", "1000"])
        await suspend(daemon)
        with trio.fail_after(patient(60)):
            assert (await daemon.call("sandbox.terminate", sandbox_id="box")).status == "stopped"
        assert (await daemon.call("process.get", sandbox_id="box", name="web")).exit_code == 137
        await refused_async("not_ready", daemon.call("sandbox.suspend", sandbox_id="box"))
        await refused_async("not_ready", daemon.call("sandbox.resume", sandbox_id="box"))


async def test_it_is_told_when_it_ends_by_itself(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        sandbox = await box_in(daemon, source)
        await daemon.call("process.launch", sandbox_id="box", name="web", command=["sleep", "1000"])
        await suspend(daemon)
        daemon.fake.faults.ending = Ending(kind="lost", message="it was removed outside Sandkeep")
        await daemon.fake.lose(daemon.id_of(), sandbox.handle)
        await until_status(daemon, "lost")
        view = await daemon.call("sandbox.get", sandbox_id="box")
        assert (view.error, view.last_status) == ("it was removed outside Sandkeep", "suspended")
        process = await daemon.call("process.get", sandbox_id="box", name="web")
        assert process.status == "lost"
        assert "removed outside" in process.error


async def test_an_engine_that_is_down_is_told_at_once_and_nothing_has_changed(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        await box_in(daemon, source)
        daemon.fake.faults.down = DOWN
        for _ in range(2):  # a command given again fails again, and is not carried out
            error = await refused_async("provider_unavailable", suspend(daemon, command_id="first"))
            assert error.message == DOWN.message
        assert (await daemon.types("box"))[-2:] == ["sandbox.suspend_requested", "sandbox.suspend_failed"]
        assert await run(daemon, "echo hi") == b"hi\n"
        daemon.fake.faults.mend()
        await refused_async("provider_unavailable", suspend(daemon, command_id="first"))
        await suspend(daemon)
        daemon.fake.faults.down = DOWN
        await refused_async("provider_unavailable", resume(daemon))
        assert (state(daemon).status, fake_module.stands_still(box_of(state_dir))) == ("suspended", True)
        daemon.fake.faults.mend()
        assert await resume(daemon) == "running"


async def test_a_command_given_again_is_carried_out_once(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        await box_in(daemon, source)
        for _ in range(2):
            assert await suspend(daemon, command_id="still") == "suspended"
        for _ in range(2):
            assert await resume(daemon, command_id="on") == "running"
        assert await suspend(daemon, command_id="still") == "running"  # as it is now: somebody has resumed it since
        types = await daemon.types("box")
        assert (types.count("sandbox.suspended"), types.count("sandbox.resumed")) == (1, 1)
        await refused_async("conflict", resume(daemon, command_id="still"))
        daemon.fake.faults.down = DOWN
        await refused_async("provider_unavailable", suspend(daemon))
        assert await resume(daemon, command_id="on") == "running"  # what failed was another command


async def test_orders_that_cross_are_carried_out_one_after_the_other(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        await box_in(daemon, source)
        for first, second, before, then in (
            (suspend, resume, "suspending", "running"),
            (resume, suspend, "resuming", "suspended"),
        ):
            if before == "resuming":
                await suspend(daemon)
            daemon.fake.faults.silent = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first, daemon)
                await until_status(daemon, before)
                nursery.start_soon(second, daemon)
                await trio.testing.wait_all_tasks_blocked()
                daemon.fake.faults.silent.set()
            assert state(daemon).status == then
            await resume(daemon)


async def test_what_failed_before_says_nothing_of_now(state_dir: str, source: str) -> None:
    """Of an order that failed nobody hears who finds the sandbox as it is to be."""
    async with inside(state_dir) as daemon:
        await box_in(daemon, source)
        daemon.fake.faults.down = DOWN
        await refused_async("provider_unavailable", suspend(daemon))
        daemon.fake.faults.mend()
        assert await resume(daemon) == "running"
        house = House(state_dir, source)
        house.sandbox_id = daemon.id_of()
        await house.outside(daemon, paused=True)
        await until_status(daemon, "suspended")
        assert await suspend(daemon) == "suspended"


async def test_an_end_interrupts_it(state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[FakePauses]()

    async def hang(self: FakePauses) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(self)

    monkeypatch.setattr(FakePauses, "suspend", hang)
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        await box_in(daemon, source)
        nursery.start_soon(refused_async, "not_ready", daemon.call("sandbox.suspend", sandbox_id="box"))
        await until_status(daemon, "suspending")
        assert (await daemon.call("sandbox.terminate", sandbox_id="box")).status == "stopped"
        assert len(ended) == 1
        assert (await daemon.types("box"))[-2:] == ["sandbox.terminate_requested", "sandbox.terminated"]


async def test_what_was_under_way_goes_on_afterwards(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start and a kill that the keeper has not heard of are waited for longer than it takes at most, awake."""
    if isinstance(house, DockerHouse):
        pytest.skip("of what its engine does it hears at once")
    deadline_s = patient(2.0)
    async with house.daemon() as daemon:
        await house.box(daemon)
        await daemon.call("process.launch", sandbox_id="box", name="web", command=["sleep", "1000"])
        monkeypatch.setattr("sandkeepd.keeper.channel.REQUEST_DEADLINE_S", deadline_s)
        monkeypatch.setattr("sandkeepd.keeper.client.KILL_DEADLINE_S", deadline_s)
        await trio.to_thread.run_sync(house.stop)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: daemon.call("process.signal", sandbox_id="box", name="web", signal="KILL"))
            nursery.start_soon(lambda: daemon.call("process.launch", sandbox_id="box", name="new", command="exit 3"))
            asked = daemon.core.state.processes.values
            await until_async(lambda: len(asked()) == 2 and any(process.last_signal for process in asked()))
            await trio.testing.wait_all_tasks_blocked(0.02)
            house.notice(daemon)
            await until_status(daemon, "suspended")
            await trio.sleep(1.1 * deadline_s)  # neither runs out meanwhile: nothing happens that could be awaited
            assert await resume(daemon) == "running"
        codes = {
            name: (await daemon.call("process.wait", sandbox_id="box", name=name)).exit_code for name in ("web", "new")
        }
        assert codes == {"web": 137, "new": 3}


# -- from outside -----------------------------------------------------------------------------------------------------


async def last_of(daemon: Inside) -> tuple[str, bool]:
    event = (await daemon.call("sandbox.history", sandbox_id="box")).events[-1]
    return event.type, msgspec.json.decode(event.data)["outside"]


async def test_what_others_suspend_and_resume_is_on_record(house: House) -> None:
    async with house.daemon() as daemon:
        await house.box(daemon)
        assert await run(daemon, "echo hi") == b"hi\n"
        await house.outside(daemon, paused=True)
        await until_status(daemon, "suspended")
        assert await last_of(daemon) == ("sandbox.suspended", True)
        await refused_async("not_ready", daemon.call("sandbox.exec", sandbox_id="box", command="true"))
        await house.outside(daemon, paused=False)
        await until_status(daemon, "running")
        assert await last_of(daemon) == ("sandbox.resumed", True)
        assert await run(daemon, "echo hi") == b"hi\n"
        await house.outside(daemon, paused=True)
        await until_status(daemon, "suspended")
        assert await resume(daemon) == "running"
        assert await last_of(daemon) == ("sandbox.resumed", False)


# -- daemons that were not there --------------------------------------------------------------------------------------


async def test_a_suspended_sandbox_is_adopted_as_it_is(house: House) -> None:
    async with house.daemon() as daemon:
        await house.box(daemon)
        await daemon.call("process.launch", sandbox_id="box", name="web", command="echo hi; read x; exit 3", stdin=True)
        assert await run(daemon, "echo done") == b"done\n"
        assert (await daemon.call("process.read", sandbox_id="box", name="web", wait_s=30)).stdout == b"hi\n"
        await suspend(daemon)
    async with house.daemon() as daemon:
        await adopted(daemon)
        view = await daemon.call("sandbox.get", sandbox_id="box")
        assert (view.status, view.note, house.stands_still()) == ("suspended", None, True)
        assert (await daemon.call("process.read", sandbox_id="box", name="web", wait_s=0)).stdout == b"hi\n"
        assert await resume(daemon) == "running"
        await daemon.call("process.write_stdin", sandbox_id="box", name="web", data=b"\n")
        assert (await daemon.call("process.wait", sandbox_id="box", name="web", timeout_s=patient(60))).exit_code == 3


async def test_what_others_did_while_no_daemon_ran_is_on_record(house: House) -> None:
    async with house.daemon() as daemon:
        await house.box(daemon)
    await trio.to_thread.run_sync(house.stop)
    async with house.daemon() as daemon:
        await adopted(daemon)
        await until_status(daemon, "suspended")
        assert await last_of(daemon) == ("sandbox.suspended", True)
    await trio.to_thread.run_sync(house.go_on)
    async with house.daemon() as daemon:
        await adopted(daemon)
        await until_status(daemon, "running")
        assert await last_of(daemon) == ("sandbox.resumed", True)
        assert await run(daemon, "echo hi") == b"hi\n"


SUSPEND, RESUME = events.SandboxSuspendRequested(), events.SandboxResumeRequested()


@docker_by_the_soak
@pytest.mark.parametrize(
    ("order", "carried_out", "then"),
    [
        (SUSPEND, True, "suspended"),
        (SUSPEND, False, "running"),
        (RESUME, True, "running"),
        (RESUME, False, "suspended"),
    ],
)
async def test_an_order_without_an_outcome_is_what_the_sandbox_says(
    house: House, order: events.Event, carried_out: bool, then: str
) -> None:
    """And the command, given again, is carried out if it was not."""
    by = {"command_id": "order"}
    call = suspend if order is SUSPEND else resume
    async with house.daemon() as daemon:
        await house.box(daemon)
        if order is RESUME:
            await suspend(daemon)
        await daemon.core.log.append([NewEvent(daemon.id_of(), order, daemon.id_of())], Meta(owner="uid:0", **by))
        if carried_out:
            await trio.to_thread.run_sync(house.stop if order is SUSPEND else house.go_on)
        daemon.core.start_task = lambda *_: None  # type: ignore[method-assign]  # it dies
    async with house.daemon() as daemon:
        assert state(daemon).status == ("suspending" if order is SUSPEND else "resuming")
        await adopted(daemon)
        assert (state(daemon).status, house.stands_still()) == (then, then == "suspended")
        assert await call(daemon, **by) == ("suspended" if order is SUSPEND else "running")
        assert await call(daemon, **by) == ("suspended" if order is SUSPEND else "running")
        kind = "sandbox.suspended" if order is SUSPEND else "sandbox.resumed"
        assert (await daemon.types("box")).count(kind) == 1
        await resume(daemon)
        assert await run(daemon, "echo hi") == b"hi\n"


# -- read meanwhile ---------------------------------------------------------------------------------------------------

LOCAL = pytest.mark.parametrize("house", [house for house in HOUSES if house not in (House, HOUSES[-1])], indirect=True)


@pytest.mark.parametrize("house", HOUSES[1:], indirect=True)
async def test_it_is_kept_and_forked_and_stays_suspended(house: House) -> None:
    """And afterwards it is what it was, its secrets included."""
    async with house.daemon() as daemon:
        await house.box(daemon, secrets={"KEY": "value"})
        await daemon.call("process.launch", sandbox_id="box", name="web", command="read x; exit 3", stdin=True)
        await run(daemon, "echo new >new")
        await suspend(daemon)
        made = await daemon.call("snapshot.create", sandbox_id="box", incremental=True)
        fork = (await daemon.call("sandbox.fork", sandbox_id="box", secrets={"KEY": "other"})).sandboxes[0].sandbox_id
        house.notice(daemon)
        assert (state(daemon).status, house.stands_still()) == ("suspended", True)
        back = (await daemon.call("snapshot.restore", snapshot_id=made.snapshot_id, secrets={"KEY": "x"})).sandbox_id
        for other in (fork, back):
            assert (await daemon.call("sandbox.exec", sandbox_id=other, command="cat new")).stdout == b"new\n"
            await daemon.call("sandbox.terminate", sandbox_id=other)
        assert await resume(daemon) == "running"
        await daemon.call("process.write_stdin", sandbox_id="box", name="web", data=b"\n")
        assert (await daemon.call("process.wait", sandbox_id="box", name="web", timeout_s=patient(60))).exit_code == 3
        assert await run(daemon, "echo $KEY") == b"value\n"


@LOCAL
async def test_what_is_suspended_while_it_is_read_stays_so(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is resumed then goes on when it was read: neither waits for the other."""
    reached, go_on = trio.Event(), threading.Event()

    def wait(point: str) -> None:
        if point == "snapshot.frozen":
            trio.from_thread.run_sync(reached.set)
            assert go_on.wait(patient(60))

    monkeypatch.setattr("sandkeep.failpoints.reach", wait)
    async with house.daemon() as daemon:
        await house.box(daemon)
        for before, order, then in (("running", suspend, "suspended"), ("suspended", resume, "running")):
            reached, go_on = trio.Event(), threading.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: daemon.call("snapshot.create", sandbox_id="box"))
                await reached.wait()
                house.notice(daemon)
                assert (state(daemon).status, house.stands_still()) == (before, True)
                assert await order(daemon) == then
                house.notice(daemon)
                assert (state(daemon).status, house.stands_still()) == (then, True)
                go_on.set()
            assert house.stands_still() == (then == "suspended")
        assert await run(daemon, "echo hi") == b"hi\n"
        history = (await daemon.call("sandbox.history", sandbox_id="box")).events
        assert not any(msgspec.json.decode(event.data).get("outside") for event in history)


@LOCAL
async def test_what_a_daemon_left_standing_goes_on_and_what_was_suspended_does_not(house: House) -> None:
    """It died, and with it what was to have the sandbox go on, while its files were read."""
    for suspended in (False, True):
        async with house.daemon() as daemon:
            if suspended:
                await adopted(daemon)
                await suspend(daemon)
            else:
                await house.box(daemon)
        if not suspended:
            await trio.to_thread.run_sync(house.stop)
            house.mark().touch()
        async with house.daemon() as daemon:
            await adopted(daemon)
            assert (state(daemon).status, house.stands_still()) == (("running", "suspended")[suspended], suspended)
            assert not house.mark().exists()
            house.notice(daemon)
            if not suspended:
                assert await run(daemon, "echo hi") == b"hi\n"


@LOCAL
async def test_its_files_are_replaced_and_it_goes_on(house: House) -> None:
    async with house.daemon() as daemon:
        await house.box(daemon)
        made = await daemon.call("snapshot.create", sandbox_id="box")
        await run(daemon, "echo new >new")
        await suspend(daemon)
        await daemon.call("sandbox.restore", sandbox_id="box", snapshot_id=made.snapshot_id)
        assert (state(daemon).status, house.stands_still()) == ("running", False)
        assert await run(daemon, "ls") == b"hello\n"


@LOCAL
async def test_what_others_do_is_looked_at(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandkeepd.providers.local.pause.LOOK_S", 0.01)
    async with house.daemon() as daemon:
        await house.box(daemon)
        await trio.to_thread.run_sync(house.stop)
        await until_status(daemon, "suspended")
        await trio.to_thread.run_sync(house.go_on)
        await until_status(daemon, "running")


@LOCAL
async def test_its_disk_limit_suspends_it_and_says_so(house: House) -> None:
    async with house.daemon() as daemon:
        daemon.provider._disk_limit = 1 << 20
        await house.box(daemon)
        await run(daemon, "head -c 600000 /dev/zero >one; head -c 600000 /dev/zero >two")
        await daemon.provider.disks.check(daemon.provider.instances[daemon.id_of()])
        await until_status(daemon, "suspended")
        assert "more than its disk limit of 1.0 MB" in str(state(daemon).suspended_reason)
        error = await refused_async("not_ready", run(daemon, "true"))
        assert "more than its disk limit of 1.0 MB" in error.message
        assert await resume(daemon) == "running"
        assert await run(daemon, "rm one; cat two | wc -c") == b"600000\n"


@pytest.mark.parametrize("house", [HOUSES[1], HOUSES[-1]], indirect=True)
async def test_a_measured_disk_limit_is_told_by_the_command_that_met_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a shell that hides the death of the command in it, and no longer when there is room again."""
    for name in ("PERIOD_S", "MAX_LOOK_S"):
        monkeypatch.setattr(f"sandkeepd.providers.common.disk_watch.{name}", 3600.0)
    async with house.daemon() as daemon:
        daemon.provider._disk_limit = 1 << 20
        await house.box(daemon)

        async def met(script: str) -> tuple[int, list[str]]:
            done = await daemon.call("sandbox.exec", sandbox_id="box", command=script)
            return done.exit_code, done.limits_met

        instance = daemon.provider.instances[daemon.id_of()]
        assert await met("exit 1") == (1, [])
        assert instance.occupied_bytes is None  # as nothing was written
        assert await met("head -c 2M /dev/zero >big; exit 0") == (0, ["disk"])
        assert await met("exit 1") == (1, ["disk"])
        assert "its disk is full" in (await daemon.call("sandbox.get", sandbox_id="box")).note
        assert await met("rm big") == (0, [])
        assert await met("exit 1") == (1, [])


@LOCAL
async def test_one_that_is_killed_meanwhile_has_failed_once_it_goes_on(house: House) -> None:
    """By the first version of control groups nothing ends before it goes on."""
    async with house.daemon() as daemon:
        sandbox = await house.box(daemon)
        await suspend(daemon)
        os.kill(sandbox.handle["first"]["pid"], signal.SIGKILL)
        with suppress(SandkeepError):
            await resume(daemon)
        await until_status(daemon, "failed")
        assert await resume(daemon) == "running"
        assert await run(daemon, "echo anew") == b"anew\n"


@LOCAL
async def test_what_nobody_owns_is_removed_though_it_stands_still(house: House) -> None:
    async with house.daemon() as daemon:
        await house.box(daemon)
        await suspend(daemon)
        ended = NewEvent(house.sandbox_id, events.SandboxTerminated(reason="requested"), house.sandbox_id)
        await daemon.core.log.append([ended], Meta())
    async with house.daemon() as daemon:
        await adopted(daemon)
        assert (await daemon.provider.found())[0] == []
        assert not os.path.exists(house.groups["freezer"])


# -- started anew -----------------------------------------------------------------------------------------------------


async def failed(daemon: Inside) -> None:
    """The sandbox ends by itself."""
    await daemon.fake.lose(daemon.id_of(), state(daemon).handle)
    await until_status(daemon, "failed")


async def test_one_that_failed_is_started_anew_on_its_files(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        before = (await box_in(daemon, source)).view()
        await daemon.call("process.launch", sandbox_id="box", name="web", command="echo hi; sleep 1000")
        assert await run(daemon, "echo kept >file; echo said") == b"said\n"
        await written(daemon, "web", b"hi")
        await failed(daemon)
        assert await resume(daemon) == "running"
        view = await daemon.call("sandbox.get", sandbox_id="box")
        assert (view.error, view.ended_at, view.image_id) == (None, None, before.image_id)
        assert (await daemon.call("process.get", sandbox_id="box", name="web")).status == "lost"
        assert (await daemon.call("process.read", sandbox_id="box", name="web")).stdout == b"hi\n"
        assert await run(daemon, "cat file") == b"kept\n"
        await daemon.call("process.launch", sandbox_id="box", name="new", command="read x; exit 3", stdin=True)
        assert (await daemon.types("box"))[0] == "sandbox.create_requested"
    async with inside(state_dir) as daemon:  # by its new handle
        await adopted(daemon)
        assert await run(daemon, "cat file") == b"kept\n"
        await daemon.call("process.write_stdin", sandbox_id="box", name="new", data=b"\n")
        assert (await daemon.call("process.wait", sandbox_id="box", name="new", timeout_s=patient(60))).exit_code == 3
        assert (await daemon.call("sandbox.terminate", sandbox_id="box")).status == "stopped"


async def test_one_that_was_lost_while_no_daemon_ran_too(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        await box_in(daemon, source)
        await run(daemon, "echo kept >file")
    fake_module.kill(box_of(state_dir), {})
    async with inside(state_dir) as daemon:
        await adopted(daemon)
        assert state(daemon).status == "lost"
        assert await resume(daemon, command_id="again") == "running"
        assert await run(daemon, "cat file") == b"kept\n"
        assert await resume(daemon, command_id="again") == "running"
        assert (await daemon.types("box")).count("sandbox.resumed") == 1


async def test_its_secrets_are_needed_again_and_kept_nowhere(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        await box_in(daemon, source, secrets={"ONE": "first-value", "TWO": "second-value"})
        await failed(daemon)
        error = await refused_async("secret_missing", resume(daemon, secrets={"ONE": "third-value"}))
        assert error.data["secrets"] == ["TWO"]
        assert "resume_requested" not in "".join(await daemon.types("box"))
        await resume(daemon, secrets={"ONE": "third-value", "TWO": "fourth-value"})
        assert await run(daemon, "echo $ONE $TWO") == b"third-value fourth-value\n"
    values = ("first-value", "second-value", "third-value", "fourth-value")
    for path in Path(state_dir).rglob("*"):
        if path.is_file() and path.name != "stdout" and not path.name.endswith(".stdout"):
            assert not any(value.encode() in path.read_bytes() for value in values), path


async def test_what_cannot_be_started_anew_says_why(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        await box_in(daemon, source)
        await failed(daemon)
        upper = f"{state_dir}/sandboxes/{daemon.id_of()}/upper"
        os.rename(upper, f"{upper}.away")
        error = await refused_async("not_ready", resume(daemon))
        assert "files" in error.message
        assert (state(daemon).status, state(daemon).view().error) == ("failed", "the fake sandbox was ended")
        daemon.fake.faults.down = DOWN
        await refused_async("provider_unavailable", resume(daemon))
        daemon.fake.faults.mend()
        os.rename(f"{upper}.away", upper)
        assert await resume(daemon) == "running"


async def test_a_sandbox_that_was_never_made_is_not_started(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        daemon.fake.faults.create_error = ProviderError("provider_unavailable", "no room")
        await refused_async("provider_unavailable", box_in(daemon, source))
        error = await refused_async("not_ready", resume(daemon))
        assert "never created" in error.message


@pytest.mark.parametrize("halfway", [False, True])
async def test_a_revival_that_a_dying_daemon_left_is_undone_and_can_be_ordered_again(
    state_dir: str, source: str, halfway: bool
) -> None:
    async with inside(state_dir) as daemon:
        await box_in(daemon, source, secrets={"ONE": "value"})
        await run(daemon, "echo kept >file")
        await failed(daemon)
        order = events.SandboxResumeRequested(anew=True)
        await daemon.core.log.append(
            [NewEvent(daemon.id_of(), order, daemon.id_of())], Meta(owner="uid:0", command_id="order")
        )
        if halfway:
            asked = state(daemon).requested
            handle = state(daemon).handle
            await daemon.fake.revival.revive(daemon.id_of(), asked.image_id, asked.spec, {}, asked.plan, handle)
    async with inside(state_dir) as daemon:
        assert state(daemon).status == "resuming"
        await adopted(daemon)
        assert (state(daemon).status, fake_module.pids(box_of(state_dir))) == ("failed", [])
        assert await resume(daemon, secrets={"ONE": "value"}, command_id="order") == "running"
        assert await run(daemon, "cat file; echo $ONE") == b"kept\nvalue\n"


async def test_an_end_that_is_ordered_while_a_revival_is_undone_gets_ahead(state_dir: str, source: str) -> None:
    """It is on record, and nobody has told the task that undoes the revival yet."""
    async with inside(state_dir) as daemon:
        await box_in(daemon, source)
        await failed(daemon)
        box_id = daemon.id_of()
        await daemon.core.log.append([NewEvent(box_id, events.SandboxResumeRequested(anew=True), box_id)], Meta())
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        daemon.fake.faults.silent = trio.Event()
        nursery.start_soon(daemon.reconciler.run)
        await trio.testing.wait_all_tasks_blocked()
        end = events.SandboxTerminateRequested(reason="requested")
        await daemon.core.log.append([NewEvent(box_id, end, box_id, state(daemon).revision)], Meta())
        daemon.fake.faults.silent.set()
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert state(daemon).status == "stopping"
        assert (await daemon.types(box_id))[-1] == "sandbox.terminate_requested"


async def test_an_end_interrupts_a_revival(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        await box_in(daemon, source)
        await failed(daemon)
        daemon.fake.faults.silent = trio.Event()
        nursery.start_soon(refused_async, "not_ready", daemon.call("sandbox.resume", sandbox_id="box"))
        await until_status(daemon, "resuming")
        nursery.start_soon(lambda: daemon.call("sandbox.terminate", sandbox_id="box"))
        await until_status(daemon, "stopping")
        daemon.fake.faults.silent.set()
        await until_status(daemon, "stopped")
        assert fake_module.pids(box_of(state_dir)) == []


# -- by its command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def with_fake(new_daemon: Callable[[], Any]) -> Any:
    """A real daemon that has the fake provider, too."""
    daemon = new_daemon()
    daemon.program = [sys.executable, "-m", "tests.support.two_providers"]
    daemon.start()
    return daemon


@pytest.mark.parametrize("provider", ["fake", pytest.param("local", marks=pytest.mark.needs("freezer"))])
def test_by_the_command_line(with_fake: Any, source: str, provider: str) -> None:
    cli = with_fake.cli
    with with_fake.connect() as client:
        image = client.image.create(source, provider=provider).image_id
        boxes = [client.sandbox.create(image, name=name, secrets={"KEY": "v"}).sandbox_id for name in ("a", "b")]
    assert lines(cli("suspend", *boxes)) == boxes
    listed = lines(cli("ls"))
    assert sum("suspended" in line for line in listed) == 2
    done = cli("exec", "a", "true")
    assert done.returncode == 125
    assert b"is suspended: resume it [not_ready]" in done.stderr
    assert lines(cli("resume", "--secret", "KEY", *boxes, env={"KEY": "v"})) == boxes
    history = "\n".join(lines(cli("history", "a")))
    assert "sandbox.suspended" in history
    assert "sandbox.resumed" in history
    assert lines(cli("exec", "a", "echo", "hi")) == ["hi"]


@pytest.mark.needs("bwrap")
@pytest.mark.needs("root")
def test_where_nothing_freezes_that_is_said_before_anything_happens(new_daemon: Callable[[], Any]) -> None:
    """As with an ordinary user's daemon that nobody gave control groups."""
    daemon = new_daemon()
    os.mkdir(f"{daemon.root}/source")
    os.chown(daemon.root, NOBODY, NOBODY)
    daemon.program = command_as(NOBODY, daemon.program)
    daemon.start()

    def cli(*words: str) -> "subprocess.CompletedProcess[bytes]":
        argv = command_as(NOBODY, [*daemon.command, *words])
        return subprocess.run(argv, env=daemon.env, capture_output=True, check=False, timeout=patient(60))

    [image] = lines(cli("image", "create", "--provider", "local", f"{daemon.root}/source"))
    [box] = lines(cli("create", image))
    with daemon.connect() as client:
        [local] = [one for one in client.daemon.capabilities().providers if one.provider == "local"]
        assert not local.features["suspend"].works
        done = cli("suspend", box)
        assert done.returncode == 1
        assert b"cannot be suspended: there is no writable freezer control group" in done.stderr
        assert b"[not_supported]" in done.stderr
        assert lines(cli("resume", box)) == [box]
        assert [event.type for event in client.sandbox.history(box).events] == [
            "sandbox.create_requested", "sandbox.created"
        ]  # fmt: skip
        os.kill(_first_process(daemon, box), 9)
        until(lambda: client.sandbox.get(box).status != "running")
        assert lines(cli("resume", box)) == [box]
        assert lines(cli("exec", box, "echo", "anew")) == ["anew"]


def _first_process(daemon: Any, box: str) -> int:
    with daemon.connect() as client:
        created = client.sandbox.history(box).events[1]
        return int(created.data["handle"]["first"]["pid"])
