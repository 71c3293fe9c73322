"""Limits of time of sessions: by a clock that the test sets, and with snapshots that fail."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from tests.store.views.test_views import ISOLATION, Log, launch, requested_sandbox
from tests.support.expect import refused, until
from tests.support.inside import Inside, inside

from sandkeep import events, model
from sandkeep_store.views.state import State
from sandkeepd.sessions.activity import Activity
from sandkeepd.sessions.reaper import AT_ONCE, ENDS_AT_ONCE, Reaper, reason_to_stop

SECOND = 1_000_000


def ready(log: Log, number: int = 0, idle_s: float | None = 300, life_s: float | None = 3600) -> str:
    """Add a session whose sandbox runs; return its key."""
    key, box = f"ses_{number}", f"sbx_{number}"
    spec = model.SessionSpec(image="img_1", idle_timeout_s=idle_s, max_lifetime_s=life_s)
    log.add(key, events.SessionStartRequested(owner="uid:7", session_id=f"s{number}", spec=spec), key)
    log.add(box, requested_sandbox(name=f"s{number}"), box)
    log.add(box, events.SandboxCreated(isolation=ISOLATION), box)
    log.add(key, events.SessionStarted(sandbox_id=box, ref=f"fake://{box}"), key)
    return key


def reason(state: State, key: str, after_us: int, idle_since_us: int | None = None) -> str | None:
    """The reason to stop a session so long after it was made ready."""
    session = state.sessions[key]
    assert session.started_us is not None
    since = session.started_us if idle_since_us is None else idle_since_us
    return reason_to_stop(session, state.sandboxes["sbx_0"], since, session.started_us + after_us)


def test_limits_are_exact_and_the_longest_life_goes_first() -> None:
    log = Log()
    state = (key := ready(log)) and log.fold()
    assert reason(state, key, 300 * SECOND - 1) is None
    assert reason(state, key, 300 * SECOND) == "idle_timeout"
    assert reason(state, key, 3600 * SECOND) == "max_lifetime"
    started = state.sessions[key].started_us or 0
    assert reason(state, key, 3600 * SECOND - 1, started + 3400 * SECOND) is None


def test_no_limit_never_ends_it() -> None:
    log = Log()
    state = (key := ready(log, idle_s=None, life_s=None)) and log.fold()
    assert reason(state, key, 10**15) is None


def test_it_is_not_idle_while_a_process_runs() -> None:
    log = Log()
    key = ready(log)
    log.add("prc_1", launch("sbx_0", None), "sbx_0")
    log.add("prc_1", events.ProcessStarted(pid=1), "sbx_0")
    state = log.fold()
    assert reason(state, key, 3600 * SECOND - 1) is None
    assert reason(state, key, 3600 * SECOND) == "max_lifetime"


def test_limits_start_anew_when_it_is_made_ready_again() -> None:
    log = Log()
    key = ready(log)
    first = log.fold().sessions[key].expires_us
    log.add(key, events.SessionStopRequested(reason="idle_timeout"), key)
    log.add(key, events.SessionStopped(reason="idle_timeout", expired=True), key)
    ready(log)
    state = log.fold()
    assert state.sessions[key].expires_us == (state.sessions[key].started_us or 0) + 3600 * SECOND
    assert state.sessions[key].expires_us != first


async def test_ten_thousand_sessions_delay_nobody() -> None:
    log = Log()
    for number in range(10_000):
        ready(log, number)
    core: Any = type("Core", (), {"state": log.fold()})
    stopping: Any = None  # none is due
    turns, ends = 0, Reaper(core, stopping, Activity(lambda: 0), lambda: 0, lambda _: False)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await ends.look()
        nursery.cancel_scope.cancel()
    assert turns >= 10_000 // AT_ONCE - 1  # it may be the first of the two to get its last turn


@pytest.fixture
async def daemon(state_dir: str, fakes_end: None) -> AsyncIterator[Inside]:
    async with inside(state_dir) as made:
        yield made


async def test_heartbeats_and_uses_extend_idle(daemon: Inside, source: str) -> None:
    image = await daemon.image(source)
    limits = {"idle_timeout_s": 300, "max_lifetime_s": 3600}
    made = (await daemon.call("session.ensure", id="s", image=image, **limits)).session
    daemon.clock.later_s = 299
    await daemon.sessions.reaper.look()
    await daemon.call("session.heartbeat", session_id="s")
    daemon.clock.later_s = 598
    await daemon.sessions.reaper.look()
    assert (await daemon.call("session.ensure", id="s")).created is False
    daemon.clock.later_s = 897
    await daemon.sessions.reaper.look()
    assert (await daemon.call("session.get", session_id="s")).status == "ready"
    daemon.clock.later_s = 899
    await daemon.sessions.reaper.look()
    asked = daemon.core.state.sessions[made.key].stop
    assert asked is not None
    assert asked.reason == "idle_timeout"


async def test_ends_that_are_due_together_are_ordered_a_few_at_a_time(daemon: Inside, source: str) -> None:
    image = await daemon.image(source)
    for number in range(ENDS_AT_ONCE + 1):
        await daemon.call("session.ensure", id=f"s{number}", image=image, max_lifetime_s=60)
    daemon.clock.later_s = 61
    for ordered in (ENDS_AT_ONCE, ENDS_AT_ONCE + 1):
        await daemon.sessions.reaper.look()
        assert sum(session.stop is not None for session in daemon.core.state.sessions.values()) == ordered
        for key, session in daemon.core.state.sessions.items():
            await daemon.core.settled(key, lambda session=session: session.status != "stopping")


async def test_a_sandbox_that_cannot_be_saved_is_kept_for_a_while(
    daemon: Inside, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake provider has no snapshots."""
    monkeypatch.setenv("SANDKEEP_SESSION_KEEP", "1h")
    made = (await daemon.call("session.ensure", id="s", image=await daemon.image(source), max_lifetime_s=60)).session
    session = daemon.core.state.sessions[made.key]

    async def look_after(seconds: float) -> Any:
        daemon.clock.later_s = seconds
        await daemon.sessions.reaper.look()
        await daemon.core.settled(made.key, lambda: session.status != "stopping")
        return await daemon.call("session.get", session_id="s")

    kept = await look_after(60)
    assert kept.status == "ready"
    assert "kept" in kept.note
    assert (await look_after(3500)).status == "ready"
    ended = await look_after(3700)
    assert (ended.status, ended.terminated_reason) == ("expired", "max_lifetime")
    assert session.stopped is not None
    assert str(session.stopped.unsaved).startswith("not_supported")


@pytest.mark.needs("bwrap")
def test_a_close_whose_snapshot_fails_leaves_the_sandbox(running_daemon: Any, source: str) -> None:
    running_daemon.stop()
    running_daemon.env |= {"SANDKEEP_QUOTA": "snapshots=1", "SANDKEEP_QUOTA_ADMIN": "1"}
    running_daemon.start()
    with running_daemon.connect() as client:
        client.session.ensure(id="s", image=client.image.create(source).image_id)
        client.sandbox.exec("s", "echo mine >file")
        message = refused("quota_exceeded", client.session.close, "s").message
        assert "without a snapshot" in message
        assert client.sandbox.exec("s", "cat file").stdout == b"mine\n"
        closed = client.session.close("s", snapshot=False)
        assert (closed.status, closed.snapshot_ids) == ("terminated", [])
        until(lambda: not client.sandbox.list().sandboxes)
