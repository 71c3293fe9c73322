"""Parameters of ``session.ensure``: limits of time that are left out, and modes."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.expect import refused_async
from tests.support.inside import Inside, inside

from sandkeep.protocol.methods import METHODS
from sandkeepd.core.call import Call
from sandkeepd.core.peer import Peer


@pytest.fixture
async def daemon(state_dir: str, fakes_end: None) -> AsyncIterator[Inside]:
    async with inside(state_dir) as made:
        yield made


async def limits(daemon: Inside, key: str | None, **params: Any) -> tuple[float | None, float | None]:
    """Make the session s of uid 0, or of an API key, ready; return its limits of time."""
    row = METHODS["session.ensure"]
    call = Call(method=row, params=row.params(id="s", **params), peer=Peer(uid=0, gid=0, key=key))
    spec = (await daemon.dispatch(call)).session.spec
    return spec.idle_timeout_s, spec.max_lifetime_s


async def test_limits_that_are_left_out_are_the_own_or_else_the_default(daemon: Inside, source: str) -> None:
    """A repeated command gives the same parameters, whatever the limits are by then."""
    image = await daemon.image(source, owner="key:ci")
    first = {"image": image, "command_id": "once"}
    assert await limits(daemon, "ci", **first) == (300, 3600)
    key = daemon.core.state.session_called("key:ci", "s")
    assert key is not None
    await daemon.call("session.close", session_id=key.key, snapshot=False)
    assert await limits(daemon, "ci", idle_timeout_s=60, max_lifetime_s=0) == (60, None)
    assert await limits(daemon, "ci", **first) == (60, None)
    await daemon.call("session.close", session_id=key.key, snapshot=False)
    assert await limits(daemon, "ci", **first) == (60, None)


async def test_over_the_socket_the_default_is_never(daemon: Inside, source: str) -> None:
    assert await limits(daemon, None, image=await daemon.image(source)) == (None, None)


async def test_limits_are_held_against_the_own_of_a_ready_session(daemon: Inside, source: str) -> None:
    await limits(daemon, None, image=await daemon.image(source), idle_timeout_s=60, max_lifetime_s=300)
    await refused_async("invalid", limits(daemon, None, idle_timeout_s=301))

    async def ensure() -> None:  # answered at once
        await daemon.call("session.ensure", id="s", idle_timeout_s=301)

    await refused_async("invalid", ensure())
    assert await limits(daemon, None, idle_timeout_s=301, max_lifetime_s=0) == (60, 300)


async def test_a_ready_session_has_no_mode_but_docker(daemon: Inside, source: str) -> None:
    await daemon.call("session.ensure", id="s", image=await daemon.image(source))
    assert not (await daemon.call("session.ensure", id="s", mode="docker")).created

    async def ensure() -> None:
        await daemon.call("session.ensure", id="s", mode="k8s")

    await refused_async("conflict", ensure())


async def test_one_that_names_no_image_has_that_of_the_setting(
    daemon: Inside, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await refused_async("invalid", limits(daemon, "ci"))
    assert "SANDKEEP_SESSION_IMAGE" in told.message
    first, second = [await daemon.image(source, owner="key:ci") for _ in range(2)]
    monkeypatch.setenv("SANDKEEP_SESSION_IMAGE", first)
    await limits(daemon, "ci")
    key = daemon.core.state.session_called("key:ci", "s")
    assert key is not None
    assert key.spec.image == first
    await daemon.call("session.close", session_id=key.key, snapshot=False)
    monkeypatch.setenv("SANDKEEP_SESSION_IMAGE", second)
    await limits(daemon, "ci")
    assert key.spec.image == first
