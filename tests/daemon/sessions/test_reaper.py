"""Limits of time of sessions: by a clock that the test sets, and with snapshots that fail."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from tests.store.views.test_views import ISOLATION, Log, launch, requested_sandbox
from tests.support.expect import refused, refused_async, until, until_async
from tests.support.inside import Inside, inside

from sandkeep import events, model
from sandkeep_store.views.state import State
from sandkeepd.sessions.activity import Activity
from sandkeepd.sessions.reaper import AT_ONCE, ENDS_AT_ONCE, ENDS_OF_OWNER, Reaper, choose, reason_to_stop

SECOND = 1_000_000


def ready(
    log: Log, number: int = 0, idle_s: float | None = 300, life_s: float | None = 3600, owner: str = "uid:7",
    box_s: float | None = None,
) -> str:  # fmt: skip
    """Add a session whose sandbox runs, and has a lifetime of `box_s`; return its key."""
    key, box = f"ses_{number}", f"sbx_{number}"
    spec = model.SessionSpec(image="img_1", idle_timeout_s=idle_s, max_lifetime_s=life_s)
    log.add(key, events.SessionStartRequested(owner=owner, session_id=f"s{number}", spec=spec), key)
    asked = requested_sandbox(name=f"s{number}")
    log.add(box, replace(asked, spec=replace(asked.spec, session_id=f"s{number}", max_lifetime_s=box_s)), box)
    log.add(box, events.SandboxCreated(isolation=ISOLATION), box)
    log.add(key, events.SessionStarted(sandbox_id=box, ref=f"fake://{box}"), key)
    return key


def reason(state: State, key: str, after_us: int, idle_us: int | None = None) -> str | None:
    """The reason to stop a session so long after it was made ready."""
    return reason_to_stop(state.sessions[key], state.sandboxes["sbx_0"], after_us, idle_us or after_us)


def test_limits_are_exact_and_the_longest_life_goes_first() -> None:
    log = Log()
    state = (key := ready(log)) and log.fold()
    assert reason(state, key, 300 * SECOND - 1) is None
    assert reason(state, key, 300 * SECOND) == "idle_timeout"
    assert reason(state, key, 3600 * SECOND) == "max_lifetime"
    assert reason(state, key, 3600 * SECOND - 1, 200 * SECOND) is None


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
    first = log.fold().sessions[key].expires_us(None)
    log.add(key, events.SessionStopRequested(reason="idle_timeout"), key)
    log.add(key, events.SessionStopped(reason="idle_timeout", expired=True), key)
    ready(log)
    state = log.fold()
    assert state.sessions[key].expires_us(None) == (state.sessions[key].started_us or 0) + 3600 * SECOND
    assert state.sessions[key].expires_us(None) != first


def test_a_session_ends_in_time_to_save_a_sandbox_that_has_an_end() -> None:
    for life_s, end_s, expected_s in ((None, 86400, 84600), (3600, 5400, 3600), (90000, 86400, 84600), (None, 60, 0)):
        log = Log()
        key = ready(log, idle_s=None, life_s=life_s, box_s=end_s)
        state = log.fold()
        assert reason(state, key, expected_s * SECOND - 1) is None
        assert reason(state, key, expected_s * SECOND) == "max_lifetime"
        started_us = state.sessions[key].started_us or 0
        assert state.expires_us(state.sandboxes["sbx_0"]) == started_us + expected_s * SECOND


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
    daemon.clock.later_s = 250
    await daemon.sessions.reaper.look()
    await daemon.call("session.heartbeat", session_id="s")
    daemon.clock.later_s = 500
    await daemon.sessions.reaper.look()
    assert (await daemon.call("session.ensure", id="s")).created is False
    daemon.clock.later_s = 750
    await daemon.sessions.reaper.look()
    assert (await daemon.call("session.get", session_id="s")).status == "ready"
    daemon.clock.later_s = 801
    await daemon.sessions.reaper.look()
    asked = daemon.core.state.sessions[made.key].stop
    assert asked is not None
    assert asked.reason == "idle_timeout"


@pytest.mark.parametrize("steps_s", [(3600.0, -3600.0), (-3600.0, 3600.0)], ids=["forward", "back"])
@pytest.mark.parametrize("limit", ["idle_timeout_s", "max_lifetime_s"])
async def test_a_step_of_the_clock_changes_no_limit(
    daemon: Inside, source: str, limit: str, steps_s: tuple[float, float]
) -> None:
    made = await daemon.call("session.ensure", id="s", image=await daemon.image(source), **{limit: 300})
    session = daemon.core.state.sessions[made.session.key]
    await daemon.sessions.reaper.look()
    used_at = 0.0 if limit == "max_lifetime_s" else 200.0
    daemon.clock.later_s = used_at
    await daemon.call("session.ensure", id="s")
    for daemon.clock.stepped_s in steps_s:
        daemon.clock.later_s += 100
        await daemon.sessions.reaper.look()
        assert session.stop is None
    daemon.clock.later_s = used_at + 301
    await daemon.sessions.reaper.look()
    assert session.stop is not None


async def test_an_end_that_failed_is_ordered_again_though_the_clock_was_set_back(daemon: Inside, source: str) -> None:
    """The fake provider has no snapshots."""
    made = await daemon.call("session.ensure", id="s", image=await daemon.image(source), max_lifetime_s=60)
    session, position = daemon.core.state.sessions[made.session.key], 0
    for daemon.clock.later_s, daemon.clock.stepped_s in ((61, 0.0), (122, -3600.0)):
        await daemon.sessions.reaper.look()
        assert session.position > position
        await daemon.core.settled(session.key, lambda: session.status == "ready")
        position = session.position


def owners(state: State, under_way: dict[str, int]) -> list[str]:
    """The owners of the sessions that end now, if all are due."""
    return [session.owner for session, _ in choose([(each, "") for each in state.sessions.values()], under_way)]


def test_sessions_end_round_robin_by_owner() -> None:
    log = Log()
    for number in range(20):
        ready(log, number, owner="uid:1")
    for number in range(20, 22):
        ready(log, number, owner="uid:2")
    state = log.fold()
    assert owners(state, {}) == ["uid:1", "uid:2", "uid:1", "uid:2", "uid:1", "uid:1"]
    assert owners(state, {"uid:1": ENDS_OF_OWNER - 1}) == ["uid:2", "uid:2", "uid:1"]
    assert owners(state, {"uid:1": ENDS_OF_OWNER}) == ["uid:2", "uid:2"]
    assert owners(state, {"uid:3": ENDS_AT_ONCE}) == ["uid:1", "uid:2"]
    assert owners(state, {"uid:3": ENDS_AT_ONCE - 3}) == ["uid:1", "uid:2", "uid:1"]


async def test_ends_of_one_owner_that_hang_keep_no_session_of_others(
    daemon: Inside, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that are ordered by the reaper, of which there are a few at a time, nor by the owner."""
    let_go, sessions = trio.Event(), daemon.core.state.sessions
    save = daemon.sessions._saving.save_or_explain

    async def hang(session: Any, *of: Any) -> Any:
        if session.owner == "uid:1":
            await let_go.wait()
        return await save(session, *of)

    def ending(uid: int) -> int:
        asked = [each for each in sessions.values() if each.owner == f"uid:{uid}" and each.stop is not None]
        return sum(each.stop is not None and each.stop.reason == "max_lifetime" for each in asked)

    monkeypatch.setattr(daemon.sessions._saving, "save_or_explain", hang)
    for uid, count in ((1, ENDS_AT_ONCE + ENDS_OF_OWNER + 2), (2, 1)):
        image = await daemon.image(source, owner=f"uid:{uid}")
        for number in range(count):
            await daemon.call("session.ensure", uid, id=f"s{number}", image=image, max_lifetime_s=3600)
    async with trio.open_nursery() as closes:
        for number in range(ENDS_AT_ONCE):
            closes.start_soon(closed, daemon, f"s{number}")
        await until_async(lambda: [each.status for each in sessions.values()].count("stopping") == ENDS_AT_ONCE)
        daemon.clock.later_s = 3601
        for _ in range(2):
            await daemon.sessions.reaper.look()
            assert (ending(1), ending(2)) == (ENDS_OF_OWNER, 1)
        let_go.set()


async def closed(daemon: Inside, session_id: str) -> None:
    await refused_async("not_supported", daemon.call("session.close", 1, session_id=session_id))


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
