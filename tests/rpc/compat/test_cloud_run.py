"""The client of cloud-run-sandbox's protocol, with servers that lie, refuse and hand over as they are told to."""

import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.support.patience import patient
from trio_websocket import ConnectionClosed
from wsproto import ConnectionType

from sandkeep.compat import cloud_run
from sandkeep.compat.cloud_run import CloudRunSandbox
from sandkeep.errors import CallerError, DaemonError, StateError
from sandkeep.protocol import frames
from sandkeep.protocol.tls import SecureStream
from sandkeep.protocol.wire import Connection, Wire
from sandkeep.stream.dial import close
from sandkeepd.stream.identity import Identity

TOKEN = "0" * 32
STRANGER = "1" * 64
"""The pin of no server here."""

Script = Callable[["Guest"], Awaitable[None]]


class Guest:
    """A server's side of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def say(self, *statuses: str, **more: Any) -> None:
        for status in statuses:
            await self.connection.send_message(json.dumps({"event": "status_update", "status": status, **more}))

    async def heard(self) -> Any:
        return json.loads(await self.connection.get_message())

    async def runs(self, sandbox_id: str = "sandbox-1") -> None:
        """Say that the sandbox runs."""
        told = {"event": "sandbox_id", "sandbox_id": sandbox_id, "sandbox_token": TOKEN}
        await self.connection.send_message(json.dumps(told))
        await self.say("SANDBOX_RUNNING")

    async def execute(self, output: str = "", status: str = "SANDBOX_EXECUTION_DONE") -> None:
        """Run a command that was asked for."""
        await self.say("SANDBOX_EXECUTION_RUNNING")
        await self.connection.send_message(json.dumps({"event": "stdout", "data": output}))
        await self.say(status, exit_code=0)

    async def move(self, *addresses: str) -> None:
        await self.say("SANDBOX_CHECKPOINTED", moved_to=list(addresses))

    async def serve(self, output: str) -> None:
        """Run all commands that are asked for."""
        while "code" in await self.heard():
            await self.execute(output)


class Server:
    """A server on TCP with TLS, whose connections a script serves."""

    def __init__(self, identity: Identity, nursery: trio.Nursery) -> None:
        self.identity = identity
        self.nursery = nursery
        self.script: Script = Guest.runs
        self.targets: list[str] = []
        self.open = 0
        self.address = ""

    @property
    def pinned(self) -> str:
        return f"{self.address}#{self.identity.pin}"

    async def start(self) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = f"tls://127.0.0.1:{listener.socket.getsockname()[1]}"
        self.nursery.start_soon(trio.serve_listeners, self._serve, [listener])

    async def _serve(self, stream: trio.SocketStream) -> None:
        sock = socket.socket(fileno=stream.socket.detach())
        sock.setblocking(False)
        wire = Wire(sock)
        secure = SecureStream(wire, self.identity.context, server_side=True)
        connection = Connection(wire, ConnectionType.SERVER, 1 << 26, secure)
        self.open += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.read)
                try:
                    request = await connection.proposed()
                    if request is not None:
                        self.targets.append(request.path)
                        await request.accept(subprotocol=frames.PROTOCOL)
                        if request.path == "/create":
                            await connection.get_message()
                        await self.script(Guest(connection))
                        while True:
                            await connection.get_message()
                except (ConnectionClosed, trio.BrokenResourceError):
                    pass
                finally:
                    await close(connection)
        finally:
            self.open -= 1

    @asynccontextmanager
    async def created(self) -> AsyncIterator[CloudRunSandbox]:
        async with cloud_run.create(self.address, pin=self.identity.pin) as sandbox:
            yield sandbox


@pytest.fixture(scope="module")
def identity() -> Iterator[Identity]:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o700)
        yield Identity.of(directory)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_run, "_PAUSE_S", 0.01)
    monkeypatch.setattr(cloud_run, "_NOTICE_S", 0.2)


@pytest.fixture
async def servers(identity: Identity) -> AsyncIterator[list[Server]]:
    """Two of them. A test that hangs fails."""
    with trio.fail_after(patient(60)):
        async with trio.open_nursery() as nursery:
            made = [Server(identity, nursery), Server(identity, nursery)]
            for server in made:
                await server.start()
            yield made
            nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.01)


def script(function: Callable[..., Awaitable[None]], *args: Any) -> Script:
    async def serve(guest: Guest) -> None:
        await function(guest, *args)

    return serve


async def denies(guest: Guest) -> None:
    await guest.say("SANDBOX_PERMISSION_DENIAL_ERROR", message="no")


async def moves(guest: Guest, *addresses: str) -> None:
    """Move the sandbox as soon as a command is asked for."""
    await guest.runs()
    await guest.heard()
    await guest.move(*addresses)


async def runs(guest: Guest, output: str) -> None:
    await guest.runs()
    await guest.serve(output)


async def test_connections_that_lead_nowhere_are_closed(servers: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = servers
    one.script = script(moves, other.pinned)
    other.script = denies
    monkeypatch.setattr(cloud_run, "PATIENCE_S", 1.0)
    async with one.created() as sandbox:
        with pytest.raises(CallerError, match="no"):
            await sandbox.run("bash", "true")
        assert len(other.targets) > 1  # it was patient
        await until(lambda: one.open == other.open == 0)


async def test_one_that_is_cancelled_while_it_follows_ends(servers: list[Server]) -> None:
    one, other = servers
    one.script = script(moves, other.pinned)
    other.script = _silent
    async with one.created() as sandbox:
        with trio.CancelScope() as scope:
            one.nursery.start_soon(_cancel_when, scope, lambda: bool(other.targets))
            await sandbox.run("bash", "true")
        assert scope.cancelled_caught
        await until(lambda: one.open == other.open == 0)
        other.script = script(_runs_idle, "there")
        assert (await sandbox.run("bash", "true")).stdout == "there"
        assert sandbox.address == other.pinned


async def _silent(_guest: Guest) -> None:
    pass


async def _cancel_when(scope: trio.CancelScope, condition: Callable[[], bool]) -> None:
    await until(condition)
    scope.cancel()


async def _runs_idle(guest: Guest, output: str) -> None:
    """Run commands; none is there to kill."""
    await guest.runs()
    while True:
        if (await guest.heard()).get("action") == "kill_process":
            await guest.say("SANDBOX_EXECUTION_FORCE_KILL_ERROR", message="no command runs")
        else:
            await guest.execute(output)


async def test_a_daemon_that_refuses_the_token_is_asked_again(servers: list[Server]) -> None:
    one, other = servers
    one.script = script(moves, other.pinned)
    other.script = script(_denies_twice, other)
    async with one.created() as sandbox:
        assert (await sandbox.run("bash", "true")).stdout == "there"
    assert len(other.targets) == 3
    assert other.targets[0] == f"/attach/sandbox-1?sandbox_token={TOKEN}"


async def _denies_twice(guest: Guest, server: Server) -> None:
    await (denies(guest) if len(server.targets) < 3 else runs(guest, "there"))


async def test_a_server_with_another_pin_is_tried_once(servers: list[Server]) -> None:
    one, other = servers
    one.script = script(moves, f"{other.address}#{STRANGER}")
    async with one.created() as sandbox:
        with pytest.raises(CallerError, match="pinned"):
            await sandbox.run("bash", "true")
    assert not other.targets


async def test_the_sandbox_is_followed_on_from_where_it_was_given_away(servers: list[Server]) -> None:
    one, other = servers
    one.script = script(_given_away_at_first, one, other.pinned)
    other.script = script(Guest.move, one.pinned)
    async with one.created() as sandbox:
        assert (await sandbox.run("bash", "true")).stdout == "back"
        assert sandbox.address == one.pinned


async def _given_away_at_first(guest: Guest, server: Server, address: str) -> None:
    await (moves(guest, address) if len(server.targets) == 1 else runs(guest, "back"))


@pytest.mark.parametrize("early", [False, True])
async def test_a_refusal_while_the_sandbox_leaves_is_no_answer(servers: list[Server], early: bool) -> None:
    one, other = servers
    one.script = script(_leaves_during_a_command, other.pinned) if not early else script(_refuses_first, other.pinned)
    other.script = script(runs, "there")
    async with one.created() as sandbox:
        if not early:
            assert (await sandbox.run("bash", "true")).stdout == "here"
        assert (await sandbox.run("bash", "true")).stdout == "there"


async def _leaves_during_a_command(guest: Guest, address: str) -> None:
    await guest.runs()
    await guest.heard()
    await guest.say("SANDBOX_LOCK_RELEASE_REQUESTED", "SANDBOX_CHECKPOINTING")
    await guest.execute("here")
    await guest.heard()
    await guest.say("SANDBOX_EXECUTION_ERROR", message="the sandbox is suspended")
    await _is_patient(guest)
    await guest.move(address)


async def _is_patient(guest: Guest) -> None:
    """Check that the client waits for more than the notice, and asks for nothing."""
    with trio.move_on_after(2 * cloud_run._NOTICE_S):
        raise AssertionError(await guest.heard())


async def _refuses_first(guest: Guest, address: str) -> None:
    await guest.runs()
    await guest.heard()
    await guest.say("SANDBOX_EXECUTION_ERROR", message="the sandbox is suspended")
    await guest.say("SANDBOX_LOCK_RELEASE_REQUESTED", "SANDBOX_CHECKPOINTING")
    await _is_patient(guest)
    await guest.move(address)


async def test_a_sandbox_that_stays_is_asked_again(servers: list[Server]) -> None:
    one, _ = servers
    one.script = _fails_to_leave
    async with one.created() as sandbox:
        assert (await sandbox.run("bash", "true")).stdout == "here"
        with pytest.raises(StateError, match="no memory"):
            await sandbox.run("bash", "true")
        assert (await sandbox.run("bash", "true")).stdout == "here"


async def _fails_to_leave(guest: Guest) -> None:
    await guest.runs()
    await guest.say("SANDBOX_CHECKPOINTING")
    await guest.heard()
    await guest.say("SANDBOX_EXECUTION_ERROR", message="the sandbox is suspended")
    await guest.say("SANDBOX_RUNNING")
    await guest.heard()
    await guest.execute("here")
    await guest.heard()
    await guest.say("SANDBOX_EXECUTION_ERROR", message="no memory")
    await guest.serve("here")


async def test_a_sandbox_is_followed_to_pinned_addresses_alone(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = servers
    monkeypatch.setenv("SANDKEEP_STREAM_PLAINTEXT", "1")
    port = other.address.rpartition(":")[2]
    wrong = [
        f"unix:{tempfile.gettempdir()}/none", f"tcp://127.0.0.1:{port}", other.address, f"{other.address}#", "",
        f"{other.address}#12", f"tls://127.0.0.1:0#{STRANGER}", f"127.0.0.1:{port}#{STRANGER}", "tls://#", "x",
    ]  # fmt: skip
    one.script = script(moves, *wrong)
    async with one.created() as sandbox:
        with pytest.raises(StateError, match="no address"):
            await sandbox.run("bash", "true")
    one.script = script(moves, *wrong, other.pinned)
    other.script = script(runs, "there")
    async with one.created() as sandbox:
        assert (await sandbox.run("bash", "true")).stdout == "there"
    assert len(other.targets) == 1


@pytest.mark.parametrize("nonsense", ['{"x": ' + "[" * 100_000, "[" * 100_000, b"\xff", b"{}", "[]", '{"data": 1}'])
async def test_nonsense_is_an_internal_error(servers: list[Server], nonsense: str | bytes) -> None:
    one, _ = servers
    one.script = script(_says, nonsense)
    with pytest.raises(DaemonError) as error:
        async with one.created():
            pass
    assert error.value.code == "internal"


async def _says(guest: Guest, message: str | bytes) -> None:
    await guest.connection.send_message(message)


async def test_a_sandbox_that_moved_before_it_ran_is_followed(servers: list[Server]) -> None:
    one, other = servers
    one.script = script(Guest.move, other.pinned)
    other.script = script(runs, "there")
    with pytest.raises(StateError):  # nobody knows which sandbox
        async with one.created():
            pass
    assert not other.targets
    async with cloud_run.attach(one.pinned, "sandbox-1", TOKEN) as sandbox:
        assert (await sandbox.run("bash", "true")).stdout == "there"


async def test_a_sandbox_that_only_moves_is_given_up(servers: list[Server]) -> None:
    one, other = servers
    one.script = script(moves, other.pinned)
    other.script = script(moves, one.pinned)
    async with one.created() as sandbox:
        with pytest.raises(StateError, match="times") as error:
            await sandbox.run("bash", "true")
    assert error.value.code == "not_ready"
    assert len(one.targets) + len(other.targets) == 1 + cloud_run.MAX_MOVES


async def test_a_sandbox_may_move_often_that_does_something(servers: list[Server]) -> None:
    one, other = servers
    one.script = script(_runs_once, other.pinned)
    other.script = script(_runs_once, one.pinned)
    async with one.created() as sandbox:
        for _ in range(cloud_run.MAX_MOVES + 2):
            assert (await sandbox.run("bash", "true")).stdout == "once"


async def _runs_once(guest: Guest, address: str) -> None:
    await guest.runs()
    await guest.heard()
    await guest.execute("once")
    await guest.move(address)


@pytest.mark.parametrize("moved", [False, True])
async def test_a_cancelled_command_is_killed_and_its_output_is_nobodys(servers: list[Server], moved: bool) -> None:
    one, other = servers
    asked: list[str] = []
    one.script = script(_slow, asked, other.pinned if moved else None)
    other.script = script(runs, "there")
    async with one.created() as sandbox:
        with trio.CancelScope() as scope:
            one.nursery.start_soon(_cancel_when, scope, lambda: "first" in asked)
            await sandbox.run("bash", "first")
        assert scope.cancelled_caught
        assert (await sandbox.run("bash", "second")).stdout == ("there" if moved else "of second")
        assert (await sandbox.run("bash", "third")).stdout == ("there" if moved else "of third")
    assert asked.count("kill_process") == (1 if moved else 2)


async def _slow(guest: Guest, asked: list[str], moves_to: str | None) -> None:
    """Run ``first`` until anything else is asked for. On other connections it is gone after one `kill_process`."""
    await guest.runs()
    while True:
        message = await guest.heard()
        asked.append(message.get("action") or message["code"])
        if message.get("action") == "kill_process":
            if moves_to is not None:
                await guest.move(moves_to)
            elif asked.count("kill_process") == 1:
                await guest.say("SANDBOX_EXECUTION_FORCE_KILLED")
            else:
                await guest.say("SANDBOX_EXECUTION_FORCE_KILL_ERROR", message="no command runs")
        elif message["code"] == "first":
            await guest.say("SANDBOX_EXECUTION_RUNNING")
            asked.append((await guest.heard()).get("code", "other"))
            await guest.execute("of first")
            await guest.execute("of second")
        else:
            await guest.execute(f"of {message['code']}")


async def test_a_sandbox_that_ended_meanwhile_is_told_at_once(servers: list[Server]) -> None:
    one, _ = servers
    one.script = Guest.runs
    async with one.created() as sandbox:
        with trio.move_on_after(0):
            await sandbox.run("bash", "true")
        one.script = denies
        with pytest.raises(StateError, match="ended"):
            await sandbox.run("bash", "true")
    assert len(one.targets) == 2


async def test_a_connection_cut_in_the_middle_of_a_message_is_replaced(servers: list[Server]) -> None:
    one, _ = servers
    one.script = script(_reads_nothing_at_first, one)
    async with one.created() as sandbox:
        with trio.CancelScope() as scope:
            one.nursery.start_soon(_cancel_when, scope, lambda: not sandbox._connection.wire.has_room)
            await sandbox.run("bash", "#" * 30_000_000)
        assert scope.cancelled_caught
        assert (await sandbox.run("bash", "true")).stdout == "here"


async def _never(_max_bytes: int | None = None) -> None:
    await trio.sleep_forever()


async def _reads_nothing_at_first(guest: Guest, server: Server) -> None:
    if len(server.targets) == 1:
        await guest.runs()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(guest.connection.wire, "receive_some", _never)
            try:
                await trio.sleep_forever()
            finally:
                guest.connection.wire.gone.set()
    else:
        await _runs_idle(guest, "here")


async def test_input_that_came_too_late_is_not_the_next_commands_error(servers: list[Server]) -> None:
    one, _ = servers
    one.script = _ends_early
    async with one.created() as sandbox:
        assert (await sandbox.run("bash", "first", "input")).stdout == "1"
        assert (await sandbox.run("bash", "second")).stdout == "2"


async def _ends_early(guest: Guest) -> None:
    await guest.runs()
    await guest.heard()
    await guest.execute("1")
    await guest.say("SANDBOX_STDIN_ERROR", message="no command runs")
    while (await guest.heard()).get("code") != "second":
        pass
    await guest.execute("2")


async def test_two_tasks_do_not_share_an_answer(servers: list[Server]) -> None:
    one, _ = servers
    asked = trio.Event()
    go = trio.Event()
    one.script = script(_waits, asked, go)
    async with one.created() as sandbox, trio.open_nursery() as nursery:
        nursery.start_soon(_expect, sandbox, "waited")
        await asked.wait()
        with pytest.raises(StateError) as error:
            await sandbox.kill()
        assert error.value.code == "in_use"
        go.set()


async def _waits(guest: Guest, asked: trio.Event, go: trio.Event) -> None:
    await guest.runs()
    await guest.heard()
    asked.set()
    await go.wait()
    await guest.execute("waited")


async def _expect(sandbox: CloudRunSandbox, output: str) -> None:
    assert (await sandbox.run("bash", "true")).stdout == output
