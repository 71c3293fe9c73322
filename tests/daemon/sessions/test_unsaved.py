"""Files that cannot be saved at a limit of time: how long they are kept, and who hears that they are lost."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio.testing
from tests.support.inside import Inside, inside

from sandkeep.errors import SandkeepError, error_from
from sandkeep.protocol.methods import METHODS
from sandkeep_store.views.sessions import SessionState
from sandkeepd.core.call import Call
from sandkeepd.core.peer import Peer
from sandkeepd.sessions.stopping import FILES_KEEP_S

KEEP_S = 3600
LIMITS = {"idle_timeout_s": 60, "max_lifetime_s": 100_000}


@pytest.fixture(autouse=True)
def _keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKEEP_SESSION_KEEP", f"{KEEP_S}s")


@pytest.fixture
async def daemon(state_dir: str, fakes_end: None) -> AsyncIterator[Inside]:
    """Its provider has no snapshots."""
    async with inside(state_dir) as made:
        yield made


async def ready(daemon: Inside, source: str, **limits: Any) -> SessionState:
    """Make the session s ready."""
    image = await daemon.image(source)
    made = await daemon.call("session.ensure", id="s", image=image, **(limits or LIMITS))
    return daemon.core.state.sessions[made.session.key]


async def tried_at(daemon: Inside, session: SessionState, later_s: float) -> str:
    """Let the reaper look at that time, at which the session is due; return its status after the try."""
    daemon.clock.later_s, before = later_s, session.position
    await daemon.sessions.reaper.look()
    assert session.position > before, "no end was ordered"
    await daemon.core.settled(session.key, lambda: session.status != "stopping")
    return session.status


async def used(daemon: Inside, method: str) -> None:
    if method == "session.ensure":
        await daemon.call(method, id="s")
    elif method == "session.heartbeat":
        await daemon.call(method, session_id="s")
    else:
        await daemon.call("sandbox.exec", sandbox_id=daemon.id_of("s"), command="true")


async def test_it_ends_when_tries_have_failed_for_the_whole_time(daemon: Inside, source: str) -> None:
    session = await ready(daemon, source)
    for later_s in (61, 1000, 61 + KEEP_S - 100):
        assert await tried_at(daemon, session, later_s) == "ready"
    assert await tried_at(daemon, session, 61 + KEEP_S + 60) == "expired"


@pytest.mark.parametrize("limits", [LIMITS, {"max_lifetime_s": 60}], ids=["idle", "life"])
@pytest.mark.parametrize("method", ["session.ensure", "session.heartbeat", "sandbox.exec"])
async def test_the_time_begins_anew_after_a_use(
    daemon: Inside, source: str, method: str, limits: dict[str, Any]
) -> None:
    session = await ready(daemon, source, **limits)
    assert await tried_at(daemon, session, 61) == "ready"
    daemon.clock.later_s = 62.0
    await used(daemon, method)
    assert await tried_at(daemon, session, 61 + KEEP_S + 70) == "ready"
    assert await tried_at(daemon, session, 61 + 2 * KEEP_S + 140) == "expired"


@pytest.mark.parametrize("limits", [LIMITS, {"max_lifetime_s": 60}], ids=["idle", "life"])
@pytest.mark.parametrize("code", ["tree_too_deep", "provider_unavailable"])
async def test_files_that_keep_it_from_being_saved_are_given_up_earlier(
    daemon: Inside, source: str, monkeypatch: pytest.MonkeyPatch, code: str, limits: dict[str, Any]
) -> None:
    """Also by a user who goes on with a session that is too old."""
    monkeypatch.setenv("SANDKEEP_SESSION_KEEP", "24h")
    session = await ready(daemon, source, **limits)

    async def save(*of: Any) -> Any:
        raise error_from(code, "links are swapped", {})

    monkeypatch.setattr(daemon.sessions._saving, "save_or_explain", save)
    monkeypatch.setattr(daemon.sessions._saving, "can_save", always)
    assert await tried_at(daemon, session, 61) == "ready"
    if "idle_timeout_s" not in limits:
        daemon.clock.later_s = 62.0
        await used(daemon, "session.ensure")
    assert await tried_at(daemon, session, FILES_KEEP_S - 60) == "ready"
    assert await tried_at(daemon, session, 61 + FILES_KEEP_S + 60) == "expired"
    assert session.stopped is not None
    assert session.stopped.unsaved == f"{code}: links are swapped"


async def always(*of: Any) -> bool:
    return True


async def test_a_use_during_the_last_try_keeps_the_files(
    daemon: Inside, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await ready(daemon, source)
    assert await tried_at(daemon, session, 61) == "ready"
    save = daemon.sessions._saving.save_or_explain

    async def save_while_used(*of: Any) -> Any:
        daemon.core.start_task(lambda: daemon.call("session.ensure", id="s"), "a use")
        await trio.testing.wait_all_tasks_blocked(0.01)
        return await save(*of)

    monkeypatch.setattr(daemon.sessions._saving, "save_or_explain", save_while_used)
    assert await tried_at(daemon, session, 61 + KEEP_S + 60) == "ready"


async def test_a_close_never_gives_files_up(daemon: Inside, source: str) -> None:
    session = await ready(daemon, source)
    for daemon.clock.later_s in (0.0, KEEP_S + 1.0):
        with pytest.raises(SandkeepError, match="without a snapshot"):
            await daemon.call("session.close", session_id="s")
        assert session.status == "ready"


async def test_the_time_begins_with_each_reason(daemon: Inside, source: str) -> None:
    session = await ready(daemon, source, idle_timeout_s=60, max_lifetime_s=KEEP_S)
    assert await tried_at(daemon, session, 61) == "ready"
    assert await tried_at(daemon, session, 61 + KEEP_S + 60) == "ready"
    assert session.stop is not None
    assert session.stop.reason == "max_lifetime"


async def test_the_time_in_which_no_daemon_runs_does_not_count(state_dir: str, source: str, fakes_end: None) -> None:
    async with inside(state_dir) as before:
        session = await ready(before, source)
        assert await tried_at(before, session, 61) == "ready"
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        session = daemon.core.state.sessions[session.key]
        assert await tried_at(daemon, session, 200_000) == "ready"
        assert await tried_at(daemon, session, 200_000 + KEEP_S - 100) == "ready"
        assert await tried_at(daemon, session, 200_000 + KEEP_S) == "expired"


async def test_steps_of_the_clock_do_not_count(daemon: Inside, source: str) -> None:
    session = await ready(daemon, source)
    assert await tried_at(daemon, session, 61) == "ready"
    daemon.clock.stepped_s = 10.0 * KEEP_S
    assert await tried_at(daemon, session, 200) == "ready"


async def test_the_time_for_which_the_machine_was_suspended_does_not_count(daemon: Inside, source: str) -> None:
    session = await ready(daemon, source)
    assert await tried_at(daemon, session, 61) == "ready"
    daemon.clock.suspended_s = 10.0 * KEEP_S
    assert await tried_at(daemon, session, 200 + 10 * KEEP_S) == "ready"


async def test_everybody_hears_that_files_are_lost(daemon: Inside, source: str) -> None:
    session = await ready(daemon, source)
    await tried_at(daemon, session, 61)
    assert await tried_at(daemon, session, 61 + KEEP_S) == "expired"
    shown = await daemon.call("session.get", session_id="s")
    assert "lost: not_supported" in shown.note
    messages: list[str] = []

    async def progress(message: str) -> None:
        messages.append(message)

    row = METHODS["sandbox.exec"]
    params = row.params(sandbox_id="s", command="true")
    await daemon.dispatch(Call(method=row, params=params, peer=Peer(uid=0, gid=0), progress=progress))
    [message] = [message for message in messages if "brought back" in message]
    assert "lost: not_supported" in message
    assert str(session.lost).startswith("not_supported")
    assert "lost: not_supported" in (await daemon.call("session.get", session_id="s")).note


async def test_who_begins_anew_hears_of_no_loss(daemon: Inside, source: str) -> None:
    session = await ready(daemon, source)
    await tried_at(daemon, session, 61)
    assert await tried_at(daemon, session, 61 + KEEP_S) == "expired"
    assert (await daemon.call("session.ensure", id="s", fresh=True)).session.note is None
