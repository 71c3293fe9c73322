"""Sessions with a client at a real stream are not idle, however long; by a clock that the test sets."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from tests.support.expect import until_async
from tests.support.gateway import plain
from tests.support.inside import Inside, inside
from tests.support.patience import patient
from tests.support.streams import message, websocket

from sandkeep.protocol import frames
from sandkeepd.api.listener import listening
from sandkeepd.http.gateway import Gateway
from sandkeepd.http.keys import Keys
from sandkeepd.http.routes import ROWS
from sandkeepd.http.server import HttpServer
from sandkeepd.stream.endpoints import endpoints
from sandkeepd.stream.server import StreamServer
from sandkeepd.stream.tokens import Tokens

MUCH = "head -c 20M /dev/zero | tee big"
"""More than waits in sockets for a client that does not read."""

VIEWS: dict[str, Callable[[str], str]] = {
    "events": lambda box: frames.target("events", sandbox=box),
    "logs": lambda box: frames.target("logs", box, "much"),
    "attach": lambda box: frames.target("attach", box, "much", stdout=0),
    "files": lambda box: frames.target("files", box, path="big"),
}


@pytest.fixture
async def daemon(state_dir: str, fakes_end: None) -> AsyncIterator[Inside]:
    async with inside(state_dir) as made:
        yield made


@asynccontextmanager
async def serving(path: str, server: StreamServer | HttpServer) -> AsyncIterator[None]:
    with listening(path) as listener:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listener)
            yield
            nursery.cancel_scope.cancel()


async def hold_against_idleness(daemon: Inside, view: AbstractAsyncContextManager[None], owner: str) -> None:
    """The session s of 300 idle seconds stays for as long as `view` is open, and ends 300 seconds after."""
    session = daemon.core.state.session_called(owner, "s")
    assert session is not None
    assert session.sandbox_id is not None
    async with view:
        for seconds in (301, 3000):
            daemon.clock.later_s = seconds
            await daemon.sessions.reaper.look()
            assert session.stop is None
    with trio.fail_after(patient(30)):
        while daemon.sessions.activity.is_attached(session.sandbox_id):
            await trio.sleep(0.01)
    daemon.clock.later_s = 3250
    await daemon.sessions.reaper.look()
    assert session.stop is None
    daemon.clock.later_s = 3301
    await daemon.sessions.reaper.look()
    assert session.stop is not None
    assert session.stop.reason == "idle_timeout"


@pytest.mark.parametrize("name", VIEWS)
async def test_a_session_with_a_websocket_is_not_idle(daemon: Inside, source: str, tmp_path: Path, name: str) -> None:
    await daemon.call("session.ensure", id="s", image=await daemon.image(source), idle_timeout_s=300)
    await daemon.call("process.launch", sandbox_id="s", command=MUCH, name="much")
    await daemon.call("process.wait", sandbox_id="s", name="much")
    server = endpoints(daemon.core, daemon.dispatch, daemon.processes, daemon.sessions.activity)
    path = f"{tmp_path}/stream.sock"

    @asynccontextmanager
    async def viewing() -> AsyncIterator[None]:
        async with websocket(plain(path), VIEWS[name](daemon.id_of("s"))) as connection:
            await message(connection)
            yield
            connection.wire.cut()

    async with serving(path, StreamServer(server, Tokens(str(tmp_path)))):
        await hold_against_idleness(daemon, viewing(), "uid:0")


async def test_a_session_whose_events_are_waited_for_is_not_idle(daemon: Inside, source: str) -> None:
    await daemon.call("session.ensure", id="s", image=await daemon.image(source), idle_timeout_s=300)
    now = (await daemon.call("event.list", after="now")).next

    @asynccontextmanager
    async def waiting() -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(daemon.call, "event.list", after=now, sandbox_id="s", wait_s=30.0))
            await until_async(lambda: daemon.sessions.activity.is_attached(daemon.id_of("s")))
            yield
            nursery.cancel_scope.cancel()

    await hold_against_idleness(daemon, waiting(), "uid:0")


async def test_a_session_with_a_stream_of_events_over_http_is_not_idle(
    daemon: Inside, source: str, state_dir: str, tmp_path: Path
) -> None:
    key = (await daemon.call("key.create", name="ci")).key
    image = await daemon.image(source, owner="key:ci")
    gateway = Gateway(daemon.core, daemon.dispatch, Keys(state_dir), daemon.sessions.activity, ROWS)
    path = f"{tmp_path}/http.sock"

    async def ask(stream: trio.SocketStream, verb: str, of: str, **body: Any) -> bytes:
        data = msgspec.json.encode(body) if body else b""
        head = f"{verb} /api/sandbox/sessions/{of} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {key}\r\n"
        await stream.send_all(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return bytes(await stream.receive_some(65536)).split()[1]

    @asynccontextmanager
    async def viewing() -> AsyncIterator[None]:
        async with await trio.open_unix_socket(path) as stream:
            assert await ask(stream, "GET", "s/stream/") == b"200"
            yield

    async with serving(path, HttpServer(gateway.app)):
        async with await trio.open_unix_socket(path) as stream:
            assert await ask(stream, "POST", "", id="s", image=image, idle_timeout_sec=300) == b"201"
        await hold_against_idleness(daemon, viewing(), "key:ci")
