"""Not to be lost: the only copy of a session's files, snapshots of its owner, and one result of one command."""

import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from tests.store.views.test_views import ISOLATION, Log, requested_sandbox
from tests.support.expect import refused, until
from tests.support.inside import Inside, inside

from sandkeep import events, failpoints, model
from sandkeep.errors import SandkeepError, StateError
from sandkeep.events import Meta
from sandkeep.settings.daemon import UID_BASE
from sandkeepd.providers.local.provider import open_local
from sandkeepd.sandboxes.files import Files

PLACES = [model.Place(where="state", base="/s", path="p", uri="file:///s/p")]
STORED = events.SnapshotStored(digest="sha256:0", size_bytes=1, member_count=1, content_bytes=1, format="tar")
NO_ROOM = {"SANDKEEP_QUOTA": "snapshots=1", "SANDKEEP_QUOTA_ADMIN": "1"}


@pytest.fixture
async def daemon(state_dir: str, fakes_end: None) -> AsyncIterator[Inside]:
    async with inside(state_dir) as made:
        yield made


@pytest.fixture
def lost(running_daemon: Any, source: str) -> Any:
    """A daemon whose session `s` lost its sandbox while the daemon was down, and whose owner may keep no snapshot."""
    with running_daemon.connect() as client:
        client.session.ensure(id="s", image=client.image.create(source).image_id)
        client.sandbox.exec("s", "echo mine >file")
        [created] = [event for event in client.sandbox.history("s").events if event.type == "sandbox.created"]
    running_daemon.kill()
    os.kill(created.data["handle"]["first"]["pid"], signal.SIGKILL)
    running_daemon.start(**NO_ROOM)
    with running_daemon.connect() as client:
        until(lambda: client.sandbox.get("s").status == "lost")
    return running_daemon


@pytest.mark.needs("bwrap")
def test_an_end_in_which_the_daemon_died_names_its_snapshot(running_daemon: Any, source: str) -> None:
    with running_daemon.connect() as client:
        client.session.ensure(id="s", image=client.image.create(source).image_id)
    running_daemon.stop()
    running_daemon.start(**{failpoints.SETTING: "SessionStop.acted"})
    with running_daemon.connect(patience_s=0.1) as client, pytest.raises(SandkeepError):
        client.session.close("s")
    running_daemon.end(0)
    running_daemon.start()
    with running_daemon.connect() as client:
        until(lambda: client.session.get("s").status == "terminated")
        stopped = client.session.history("s").events[-1]
        assert stopped.data["snapshot_id"] == client.session.get("s").latest_snapshot_id is not None


def with_room(daemon: Any) -> Any:
    """Start it again so that snapshots can be made; answer a client."""
    daemon.stop()
    daemon.start()
    return daemon.connect()


@pytest.mark.needs("bwrap")
def test_files_of_a_lost_sandbox_stay_until_they_can_be_saved(lost: Any) -> None:
    with lost.connect() as client:
        refused("quota_exceeded", client.sandbox.exec, "s", "true")
        refused("quota_exceeded", client.session.ensure, id="s")
    with with_room(lost) as client:
        assert client.sandbox.exec("s", "cat file").stdout == b"mine\n"
        assert client.session.get("s").note is None


@pytest.mark.needs("bwrap")
def test_a_close_leaves_the_files_of_a_lost_sandbox(lost: Any) -> None:
    with lost.connect() as client:
        refused("quota_exceeded", client.session.close, "s")
    with with_room(lost) as client:
        [snapshot] = client.session.close("s").snapshot_ids
        assert client.session.ensure(id="s").restored_from == snapshot
        assert client.sandbox.exec("s", "cat file").stdout == b"mine\n"


@pytest.mark.needs("bwrap")
def test_files_stay_when_the_other_snapshot_cannot_be_had(lost: Any) -> None:
    with lost.connect() as client:
        unsaved = client.sandbox.create(client.image.list().images[0].image_id, name="other").sandbox_id
        refused("quota_exceeded", client.snapshot.create, unsaved)
    with with_room(lost) as client:
        deleted = client.snapshot.create(unsaved).snapshot_id
        client.snapshot.delete(deleted)
        refused("snapshot_not_ready", client.session.ensure, id="s", restore_snapshot_id=deleted)
        assert client.sandbox.exec("s", "cat file").stdout == b"mine\n"


@pytest.mark.needs("bwrap")
def test_snapshots_of_the_owner_stay_whatever_their_names(client: Any, image: str) -> None:
    client.session.ensure(id="named", image=image)
    mine = [client.snapshot.create("named", name="auto-mine").snapshot_id for _ in range(2)]
    for _ in range(5):
        client.session.close("named")
        client.session.ensure(id="named")
    client.session.close("named")
    until(lambda: len(client.session.get("named").snapshot_ids) == 5)
    assert client.session.get("named").snapshot_ids[:2] == mine


@pytest.mark.needs("bwrap")
def test_a_repeated_command_without_an_id_finds_its_session(client: Any, image: str) -> None:
    made = client.session.ensure(image=image, command_id="once")
    again = client.session.ensure(image=image, command_id="once")
    assert again.session.session_id == made.session.session_id
    client.session.close(made.session.session_id, snapshot=False)
    assert client.session.ensure(image=image, command_id="once").session.key == made.session.key


def test_the_latest_snapshot_is_the_one_that_was_ordered_last() -> None:
    """One of a user may be complete after the one before the end, which has what was written meanwhile."""
    log, key, box = Log(), "ses_1", "sbx_1"
    log.add(key, events.SessionStartRequested(owner="uid:7", session_id="s", spec=model.SessionSpec(image="i")), key)
    asked = requested_sandbox(name="s")
    log.add(box, replace(asked, spec=replace(asked.spec, session_id="s")), box)
    log.add(box, events.SandboxCreated(isolation=ISOLATION), box)
    log.add(key, events.SessionStarted(sandbox_id=box, ref=f"fake://{box}"), key)
    order = events.SnapshotCreateRequested(owner="uid:7", kind="full", format="tar", places=PLACES, sandbox_id=box)
    for name in ("snp_1", "snp_2", "snp_3"):
        log.add(name, order, box)
    for name in ("snp_2", "snp_1", "snp_3"):
        log.add(name, STORED, box)
    assert log.fold().sessions[key].snapshot_ids == ["snp_1", "snp_2", "snp_3"]


async def test_a_session_that_was_brought_back_is_reaped_when_it_is_due(daemon: Inside, source: str) -> None:
    image = await daemon.image(source)

    async def reaped(later_s: float) -> bool:
        daemon.clock.later_s = later_s
        await daemon.sessions.reaper.look()
        made = daemon.core.state.session_called("uid:0", "s")
        assert made is not None
        stop = made.stop
        if stop is None:
            return False
        await daemon.core.settled(made.key, lambda: made.status != "stopping")  # the fake provider has no snapshots
        await daemon.call("session.close", session_id="s", snapshot=False)
        return stop.reason == "idle_timeout"

    await daemon.call("session.ensure", id="s", image=image, idle_timeout_s=5)
    assert await reaped(6)
    await daemon.call("session.ensure", id="s")
    assert await reaped(20)


async def test_what_an_earlier_start_left_is_no_obstacle(
    daemon: Inside, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is put back between the order and the sandbox, which is not ready in time."""
    image = await daemon.image(source)
    monkeypatch.setenv("SANDKEEP_SESSION_START", "0.2s")
    real = daemon.sessions.start._make

    async def make(order: Any) -> Any:
        order.subject.requested_us += 10**9
        return await real(order)

    with monkeypatch.context() as late:
        late.setattr(daemon.sessions.start, "_make", make)
        daemon.fake.faults.create_delay_s = 0.5
        with pytest.raises(StateError, match="was not ready"):
            await daemon.call("session.ensure", id="s", image=image)
    daemon.fake.faults.create_delay_s = 0.0
    monkeypatch.setenv("SANDKEEP_SESSION_START", "30s")
    assert (await daemon.call("session.ensure", id="s", image=image)).created


async def test_a_start_waits_for_an_end_that_was_ordered_meanwhile(daemon: Inside, source: str) -> None:
    image = await daemon.image(source)
    made = (await daemon.call("session.ensure", id="s", image=image)).session
    await daemon.fake.lose(made.sandbox_id, daemon.box("s").handle)
    await daemon.core.settled(made.sandbox_id, lambda: daemon.box("s").status == "failed")
    daemon.fake.faults.silent = trio.Event()
    async with trio.open_nursery() as both:
        both.start_soon(lambda: daemon.call("session.ensure", id="s", fresh=True))
        await daemon.core.settled(made.sandbox_id, lambda: daemon.box("s").status == "stopping")
        both.start_soon(lambda: daemon.call("session.close", session_id="s", snapshot=False))
        session = daemon.core.state.sessions[made.key]
        await daemon.core.settled(made.key, lambda: session.status == "stopping")
        daemon.fake.faults.silent.set()
    types = [event.type for event in (await daemon.call("session.history", session_id="s")).events]
    assert types == [
        "session.start_requested", "session.started", "session.stop_requested", "session.stopped",
        "session.start_requested", "session.started",
    ]  # fmt: skip


async def test_it_is_not_idle_while_files_are_copied(daemon: Inside, source: str) -> None:
    image = await daemon.image(source)
    made = (await daemon.call("session.ensure", id="s", image=image, idle_timeout_s=60)).session
    session = daemon.core.state.sessions[made.key]
    copies = Files(daemon.core, daemon.sandboxes.runtimes)
    async with copies.receive(made.sandbox_id, "copied", form="bytes") as incoming:
        for daemon.clock.later_s in (61, 122):
            await daemon.sessions.reaper.look()
            assert session.stop is None
        os.close(incoming.take_data())
        await incoming.commit(Meta())
    daemon.clock.later_s = 170
    await daemon.sessions.reaper.look()
    assert session.stop is None
    daemon.clock.later_s = 183
    await daemon.sessions.reaper.look()
    assert session.stop is not None


@pytest.mark.needs("bwrap")
def test_a_copy_under_way_is_not_begun_again_elsewhere(client: Any, image: str) -> None:
    """Its sandbox ends: the caller has the end of one pipe, and would not look for another."""
    client.session.ensure(id="copied", image=image)
    with client.with_descriptors("sandbox.copy_in", "copied", path="f", as_bytes=True, transfer_id="t") as handed:
        [pipe] = handed.receive()
        client.sandbox.terminate("copied")
        refused("not_ready", handed.answer)
        os.close(pipe)
    assert client.session.get("copied").starts == 1


@pytest.mark.needs("bwrap")
async def test_a_call_that_is_answered_during_the_snapshot_is_in_the_next(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that began before the end was ordered may be answered while the files are read."""
    local = partial(open_local, uid_base=UID_BASE(), disk_limit=1 << 30)
    async with inside(state_dir, opened=lambda place, log_id: local(place, log_id=log_id)) as daemon:
        made = (await daemon.call("session.ensure", id="s", image=await daemon.image(source))).session
        create, written = daemon.kept.snapshots.create, []

        async def create_and_write(request: Any) -> Any:
            snapshot = await create(request)
            if not written:
                written.append(await daemon.call("sandbox.write_file", sandbox_id=made.sandbox_id, path="f", data=b"x"))
            return snapshot

        monkeypatch.setattr(daemon.kept.snapshots, "create", create_and_write)
        first, second = (await daemon.call("session.close", session_id="s")).snapshot_ids
        assert first != second
        assert (await daemon.call("sandbox.read_file", sandbox_id="s", path="f")).data == b"x"
        await daemon.call("session.close", session_id="s", snapshot=False)


async def test_an_end_waits_until_the_sandbox_is_suspended(daemon: Inside, source: str) -> None:
    """Meanwhile its files cannot be read, and it would end without a snapshot."""
    made = (await daemon.call("session.ensure", id="s", image=await daemon.image(source))).session
    session, box = daemon.core.state.sessions[made.key], daemon.box("s")
    daemon.fake.faults.silent = trio.Event()
    refusals: list[str] = []

    async def close() -> None:
        with pytest.raises(SandkeepError) as refusal:
            await daemon.call("session.close", session_id="s")
        refusals.append(refusal.value.code)

    async with trio.open_nursery() as both:
        both.start_soon(lambda: daemon.call("sandbox.suspend", sandbox_id="s"))
        await daemon.core.settled(made.sandbox_id, lambda: box.status == "suspending")
        both.start_soon(close)
        await daemon.core.settled(made.key, lambda: session.status == "stopping")
        daemon.fake.faults.silent.set()
    assert refusals == ["not_supported"]  # the fake provider has no snapshots
    assert (session.status, box.status) == ("ready", "suspended")


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("began", [False, True])
def test_a_command_is_run_in_the_next_sandbox_unless_it_may_have_begun(
    running_daemon: Any, source: str, began: bool
) -> None:
    """The sandbox ends before the daemon knows: its keeper is stopped, so it takes no request, and is killed. Before it
    starts a process it makes a journal, as this test does instead of it.
    """
    with running_daemon.connect() as client, running_daemon.connect() as other, ThreadPoolExecutor() as pool:
        made = client.session.ensure(id="s", image=client.image.create(source).image_id).session
        [created] = [event for event in client.sandbox.history("s").events if event.type == "sandbox.created"]
        keeper = created.data["handle"]["first"]["pid"]
        os.kill(keeper, signal.SIGSTOP)
        answer = pool.submit(client.sandbox.exec, "s", "echo ran", command_id="once")
        until(lambda: [each.status for each in other.process.list("s").processes] == ["starting"])
        if began:
            [process] = other.process.list("s").processes
            [out] = Path(running_daemon.root, "state").rglob(f"{made.sandbox_id}/out/p")
            (out / f"{process.process_id}.stdout").touch()
        os.kill(keeper, signal.SIGKILL)
        if began:
            refused("not_ready", answer.result)
            refused("not_ready", client.sandbox.exec, "s", "echo ran", command_id="once")
            assert other.session.get("s").starts == 1
            return
        ran = answer.result()
        assert ran.stdout == b"ran\n"
        assert client.sandbox.exec("s", "echo ran", command_id="once").process_id == ran.process_id
        assert client.session.get("s").starts == 2
