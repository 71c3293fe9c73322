"""All clients against the real server: what is sent, what comes back, and what happens when one side goes away."""

import asyncio
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from tests.support.clients import KINDS, Body, Kind, caught, daemon_of, pause
from tests.support.patience import patient
from tests.support.serving import Serving, serving

import sandkeep
from sandkeep import blocking, model
from sandkeep.clients import dial, exchange, steps, threads
from sandkeep.errors import CallerError, SandkeepError, SetupError, StateError
from sandkeepd.api import server as server_module
from sandkeepd.api.listener import listening
from sandkeepd.core.call import Call
from sandkeepd.core.peer import Peer
from sandkeepd.serving.limits import MAX_CALLS

EVENTS = [
    model.Event(position=n, time="", type="sandbox.created", version=1, stream="s", revision=n, data={}, meta={})
    for n in range(1, 6)
]
OUTPUT = b"one two three"
PATIENCE_S = 0.3


class Handler:
    """A little world: events in pages of two, a process's output in pieces of four, and calls that wait."""

    def __init__(self) -> None:
        self.immediate = {"daemon.ping": lambda call: model.Pong(version=call.client, pid=os.getpid())}
        self.calls: list[Call] = []
        self.release = trio.Event()

    async def __call__(self, call: Call) -> Any:
        self.calls.append(call)
        return await getattr(self, call.method.name.replace(".", "_"))(call, call.params)

    async def sandbox_get(self, call: Call, params: Any) -> Any:
        raise CallerError("not_found", "there is no such sandbox: see `sandkeep ls`", sandbox_id=params.sandbox_id)

    async def sandbox_exec(self, call: Call, params: Any) -> Any:
        await call.progress("launching")
        await call.progress("running")
        return model.ExecResult(
            process_id="prc_1", sandbox_id=params.sandbox_id, exit_code=0, timed_out=False, status="exited",
            stdout=params.stdin or b"", stderr=b"", stdout_bytes=0, stderr_bytes=0,
            stdout_truncated=False, stderr_truncated=False, duration_s=0.5,
        )  # fmt: skip

    async def process_wait(self, call: Call, params: Any) -> Any:
        await self.release.wait()
        return model.Process(
            process_id="prc_1", sandbox_id=params.sandbox_id, name=params.name, named=True, command=["x"],
            status="exited", requested_at="", exit_code=7,
        )  # fmt: skip

    async def process_read(self, call: Call, params: Any) -> Any:
        start = params.stdout_offset
        if params.name == "quick":  # however much is read, as much is new
            return model.ProcessOutput(
                process_id="quick", status="running", stdout=bytes(4), stderr=b"", stdout_offset=start,
                stderr_offset=0, next_stdout_offset=start + 4, next_stderr_offset=0, ended=False,
                stdout_bytes=start + 10, stderr_bytes=0,
            )  # fmt: skip
        end = min(start + 4, len(OUTPUT))
        return model.ProcessOutput(
            process_id="prc_1", status="running", stdout=OUTPUT[start:end], stderr=b"", stdout_offset=start,
            stderr_offset=0, next_stdout_offset=end, next_stderr_offset=0,
            ended=bool(params.wait_s) and start == len(OUTPUT),
        )  # fmt: skip

    async def event_list(self, call: Call, params: Any) -> Any:
        after = int((params.after or "log:0").rpartition(":")[2])
        page = EVENTS[after : after + 2]
        if not page and params.wait_s:
            await self.release.wait()
        end = page[-1].position if page else after
        return model.EventPage(events=page, next=f"log:{end}", caught_up=end == len(EVENTS))

    async def image_list(self, call: Call, params: Any) -> Any:
        await self.release.wait()
        return {"images": [], "next": "x" * (256 * 1024)}

    async def sandbox_terminate(self, call: Call, params: Any) -> Any:
        await self.release.wait()
        return model.Empty()


class House(Serving[Handler]):
    """A server on a socket, on trio; clients are in threads of their own."""

    def __init__(self, path: str) -> None:
        super().__init__(path, Handler())
        self._token = trio.lowlevel.current_trio_token()

    def let_go(self) -> None:
        """Let all calls that wait go on. For clients' threads."""
        self._token.run_sync_soon(self.handler.release.set)

    async def use(self, kind: Kind, body: Body, **options: Any) -> Any:
        """The answer of the body, given a client of that kind."""
        return await trio.to_thread.run_sync(partial(kind.run, self.path, body, **options))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with serving(House(str(tmp_path / "s.sock"))) as built:
        yield built
        built.handler.release.set()


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each of the clients in turn."""
    found: Kind = request.param
    return found


# -- calling ----------------------------------------------------------------------------------------------------------


async def test_results_are_typed(house: House, kind: Kind) -> None:
    async def body(client: Any) -> Any:
        assert await client.daemon.ping() == model.Pong(version="me", pid=os.getpid())
        return await client.sandbox.exec("sbx_1", ["cat"], stdin=b"\x00\xff")

    result = await house.use(kind, body, client="me")
    assert isinstance(result, model.ExecResult)
    assert result.stdout == b"\x00\xff"


async def test_the_name_of_a_client_is_python_unless_given(house: House, kind: Kind) -> None:
    assert (await house.use(kind, lambda client: _awaited(client.daemon.ping()))).version == "python"


async def _awaited(work: Any) -> Any:
    return await work


async def test_errors_are_the_same_classes_again_and_not_in_groups(house: House, kind: Kind) -> None:
    with pytest.raises(CallerError, match="no such sandbox") as caught:
        await house.use(kind, lambda client: _awaited(client.sandbox.get("sbx_9")))
    assert caught.value.code == "not_found"
    assert caught.value.data == {"sandbox_id": "sbx_9"}


async def test_parameters_are_checked_as_a_function_would(house: House, kind: Kind) -> None:
    async def body(client: Any) -> None:
        with pytest.raises(TypeError, match=r"sandbox.get\(\) needs sandbox_id"):
            await client.sandbox.get()
        with pytest.raises(TypeError, match="more than one value for 'sandbox_id'"):
            await client.sandbox.get("a", sandbox_id="a")
        with pytest.raises(TypeError, match="at most 1 positional"):
            await client.sandbox.get("a", "b")
        with pytest.raises(TypeError, match="no parameter 'command_id'"):
            await client.sandbox.get("a", command_id="c")
        with pytest.raises(AttributeError, match=r"no method sandbox.fly"):
            await client.sandbox.fly()
        with pytest.raises(AttributeError, match="'banana'"):
            await client.banana.peel()
        assert {"sandbox", "process", "call"} <= set(dir(client))
        assert {"get", "exec"} <= set(dir(client.sandbox))

    await house.use(kind, body)
    assert house.handler.calls == []


async def test_every_change_has_a_command_id_of_its_own(house: House, kind: Kind) -> None:
    async def body(client: Any) -> None:
        for given in ({}, {}, {"command_id": "mine"}):
            await client.sandbox.exec("sbx_1", "true", **given)

    await house.use(kind, body)
    first, second, third = (call.params.command_id for call in house.handler.calls)  # type: ignore[attr-defined]
    assert first.startswith("cmd_")
    assert first != second
    assert third == "mine"


async def test_progress_is_told(house: House, kind: Kind) -> None:
    told: list[str] = []
    await house.use(kind, lambda client: _awaited(client.sandbox.exec("sbx_1", "true", progress=told.append)))
    assert told == ["launching", "running"]


async def test_a_method_can_be_called_by_its_name(house: House, kind: Kind) -> None:
    async def body(client: Any) -> None:
        assert (await client.call("daemon.ping"))["version"] == "python"
        assert (await client.call("rpc.discover"))["openrpc"]
        with pytest.raises(CallerError, match="is not a method"):
            await client.call("no.such")

    await house.use(kind, body)


def test_the_name_goes_out_with_the_first_request(tmp_path: Path, kind: Kind) -> None:
    path = str(tmp_path / "s")
    first: list[Any] = []

    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as server:
            server.settimeout(patient(60))
            said = b""
            while said.count(b"\n") < 2:
                said += server.recv(65536)
            first.extend(msgspec.json.decode(line) for line in said.splitlines())
            server.sendall(b'{"jsonrpc":"2.0","id":1,"result":{"version":"1","pid":1}}\n')

    with listening(path) as listener:
        listener.settimeout(patient(60))
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        kind.run(path, lambda client: _awaited(client.daemon.ping()), client="me")
        thread.join()
    assert [(message["method"], message["id"]) for message in first] == [("rpc.hello", 0), ("daemon.ping", 1)]
    assert first[0]["params"] == {"client": "me"}


# -- side by side -----------------------------------------------------------------------------------------------------


async def test_many_tasks_share_a_client(house: House, kind: Kind) -> None:
    """And they leave as many connections as were in use at once, or fewer, which later calls use again."""

    async def body(client: Any) -> list[int]:
        async def ask(number: int) -> int:
            result = await client.sandbox.exec("sbx_1", "cat", stdin=str(number).encode())
            return int(result.stdout)

        assert await kind.together(*(partial(ask, number) for number in range(200))) == list(range(200))
        found: list[int] = []
        for number in range(20):
            found.append(await ask(number))
        return found

    assert await house.use(kind, body) == list(range(20))
    assert len(house.handler.calls) == 220


async def test_more_calls_than_connections_all_get_their_turn(
    house: House, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MAX_CONNECTIONS", 3)

    async def body(client: Any) -> None:
        async def ask(number: int) -> None:
            assert (await client.sandbox.exec("sbx_1", "cat", stdin=b"%d" % number)).stdout == b"%d" % number
            most.append(house.server.statistics().connections)

        await kind.together(*(partial(ask, number) for number in range(30)))

    most: list[int] = []
    await house.use(kind, body)
    assert max(most) <= 3


async def test_a_daemon_that_gives_fewer_connections_is_waited_for(
    house: House, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a user's share it closes a connection at once. Calls then wait for those before them, however long, and
    the daemon is not asked again and again: once for each call, and anew after each of the three that it gave.
    """
    refused: list[bool] = []

    def admit(peer: Any) -> bool:
        admitted = house.server.statistics().connections < 3
        refused.append(not admitted)
        return admitted

    monkeypatch.setattr(house.server, "_admit", admit)
    began = time.monotonic()

    async def body(client: Any) -> list[Any]:
        async def wait() -> int | None:
            code: int | None = (await client.process.wait("sbx_1", "p")).exit_code
            return code

        async def let_go() -> None:
            began = time.monotonic()
            while len(house.handler.calls) < 3 or time.monotonic() < began + 2 * PATIENCE_S:
                await pause(kind)
            house.let_go()

        return await kind.together(*[wait] * 10, let_go)

    assert await house.use(kind, body, patience_s=PATIENCE_S) == [*[7] * 10, None]
    assert sum(refused) < 40 + (time.monotonic() - began) / exchange.REDIAL_S


def test_a_thread_waits_for_as_long_as_it_is_told_to() -> None:
    """Also for longer than poll(2) can."""
    one, other = socket.socketpair()
    with one, other:
        other.send(b"x")
        assert [threads.wait(steps.READABLE, one, seconds) for seconds in (1.0, 1e7, math.inf)] == [True] * 3


@pytest.fixture
def few(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients' user may have two connections."""
    monkeypatch.setattr(server_module, "peer_of", lambda sock: Peer(uid=1000, gid=1000))
    monkeypatch.setattr(house.server, "_max_connections", 2)


async def test_a_client_that_gets_no_connection_says_why_after_its_patience(
    house: House, kind: Kind, few: None
) -> None:
    """The same for calls that wait, calls that do not, and those that hand over descriptors."""

    async def body(client: Any) -> list[SandkeepError]:
        async def hand_over() -> None:
            async with client.with_descriptors("process.open_output", "sbx_1", "p") as handed:
                await handed.receive()

        async def refused(patience_s: float) -> list[SandkeepError]:
            daemon_of(client).patience_s = patience_s
            return [await caught(client.daemon.ping()), await caught(hand_over())]

        return [*await refused(0), *await refused(PATIENCE_S)]

    with blocking.connect(house.path) as one, blocking.connect(house.path) as two:
        for other in (one, two):
            await trio.to_thread.run_sync(other.daemon.ping)
        failures = await house.use(kind, body)
    for failure in failures:
        assert (failure.code, failure.data) == ("quota_exceeded", {"quota": "connections", "used": 2, "limit": 2})
        assert "end programs that hold some" in failure.message


async def test_a_client_that_gets_no_connection_waits_until_one_is_free(
    house: House, kind: Kind, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial, "_NOTIFY_AFTER_S", 0)
    said: list[str] = []

    async def body(client: Any) -> str:
        def leave(message: str) -> None:
            said.append(message)
            others[0].close()

        daemon_of(client).on_wait = leave
        return str((await client.daemon.ping()).version)

    others = [blocking.connect(house.path) for _ in range(2)]
    for other in others:
        await trio.to_thread.run_sync(other.daemon.ping)
    try:
        assert await house.use(kind, body) == "python"
    finally:
        for other in others:
            other.close()
    assert [message.startswith("you have 2 connections to the daemon") for message in said] == [True]
    assert said[0].endswith("; waiting")


async def test_a_quick_call_overtakes_those_that_wait(house: House, kind: Kind) -> None:
    """However many wait: more than the daemon carries out at once for one connection."""

    async def body(client: Any) -> list[Any]:
        async def wait() -> int | None:
            code: int | None = (await client.process.wait("sbx_1", "p")).exit_code
            return code

        async def look() -> None:
            while len(house.handler.calls) < MAX_CALLS + 2:
                await client.daemon.ping()
            house.let_go()

        return await kind.together(*[wait] * (MAX_CALLS + 2), look)

    assert await house.use(kind, body) == [*[7] * (MAX_CALLS + 2), None]


async def test_a_call_that_is_given_up_leaves_the_client_usable(house: House) -> None:
    """On trio and asyncio; its connection is closed, which ends a call that only waits. For threads see below."""

    async def on_trio(client: Any) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(client.process.wait, "sbx_1", "p")
            while len(house.handler.calls) < 5:
                await client.daemon.ping()
            nursery.cancel_scope.cancel()

    async def on_asyncio(client: Any) -> None:
        tasks = [asyncio.ensure_future(client.process.wait("sbx_1", "p")) for _ in range(5)]
        while len(house.handler.calls) < 5:
            await client.daemon.ping()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)

    for kind, give_up in zip(KINDS, (on_trio, on_asyncio), strict=False):
        house.handler.calls.clear()

        async def body(client: Any, give_up: Any = give_up) -> None:
            await give_up(client)
            assert (await client.sandbox.exec("sbx_1", "cat", stdin=bytes(4 * 1024 * 1024))).exit_code == 0
            while house.server.statistics().calls_in_flight:
                await client.daemon.ping()

        await house.use(kind, body)


async def test_on_trio_ctrl_c_ends_a_call_at_checkpoints_only(house: House) -> None:
    """Between them it could come when the command was sent, and that is not on record."""
    protected: list[bool] = []

    def told(message: str) -> None:
        protected.append(trio.lowlevel.currently_ki_protected())

    async def body(client: Any) -> None:
        await client.sandbox.exec("sbx_1", "true", progress=told)

    await house.use(KINDS[0], body)
    assert protected == [True, True]


def test_an_interrupted_call_leaves_the_client_usable(tmp_path: Path) -> None:
    """Ctrl-C while a command waits: the next call has another connection, where nothing comes late for this one."""
    path = str(tmp_path / "s")
    told = b'{"jsonrpc":"2.0","method":"progress","params":{"request":1,"message":"waiting"}}\n'
    hello = b'{"jsonrpc":"2.0","id":0,"result":{"version":"1","log_id":"log_1"}}\n'
    answer = b'{"jsonrpc":"2.0","id":1,"result":{"version":"2","pid":1}}\n'

    def interrupt(message: str) -> None:
        raise KeyboardInterrupt(message)

    with listening(path) as listener, blocking.connect(path) as client, listener.accept()[0] as server:
        listener.settimeout(patient(60))
        server.sendall(told)
        with pytest.raises(KeyboardInterrupt, match="waiting"):
            client.daemon.ping(progress=interrupt)
        server.settimeout(patient(60))
        with suppress(ConnectionResetError):
            while server.recv(65536):
                pass  # it is closed

        def serve() -> None:
            with listener.accept()[0] as again:
                again.settimeout(patient(60))
                for line in (hello, answer):
                    again.recv(65536)
                    again.sendall(line)
                while again.recv(65536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        assert client.daemon.ping().version == "2"
        client.close()
        thread.join()


async def test_a_forked_process_has_connections_of_its_own(house: House) -> None:
    """The parent's stay with it, whatever the child does with the client: calls, or closes it."""

    def use(client: blocking.Client) -> bytes:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                found = client.sandbox.exec("sbx_1", "cat", stdin=b"child").stdout
                client.close()
                code = 0 if found == b"child" else 2
            finally:
                os._exit(code)
        found = bytes(client.sandbox.exec("sbx_1", "cat", stdin=b"parent").stdout)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return found + bytes(client.sandbox.exec("sbx_1", "cat", stdin=b" again").stdout)

    def run() -> bytes:
        with blocking.connect(house.path) as client:
            client.daemon.ping()
            return use(client)

    assert await trio.to_thread.run_sync(run) == b"parent again"


# -- following --------------------------------------------------------------------------------------------------------


async def test_events_are_followed_and_resumed(house: House, kind: Kind) -> None:
    async def body(client: Any) -> list[int]:
        reader = client.follow_events()
        assert [(await anext(reader)).position for _ in range(3)] == [1, 2, 3]
        assert reader.token == "log:3"
        return [event.position async for event in client.follow_events(reader.token, follow=False)]

    assert await house.use(kind, body) == [4, 5]


async def test_output_is_read_to_its_end_and_resumed(house: House, kind: Kind) -> None:
    async def body(client: Any) -> None:
        pieces = [piece async for piece in client.read_output("sbx_1", "p")]
        assert b"".join(piece.stdout for piece in pieces) == OUTPUT
        assert pieces[-1].ended
        there = [piece async for piece in client.read_output("sbx_1", "p", 4, follow=False)]
        assert b"".join(piece.stdout for piece in there) == OUTPUT[4:]

        quick = [piece.stdout_offset async for piece in client.read_output("sbx_1", "quick", follow=False)]
        assert quick == [0, 4, 8]  # what was there at first, and no more

    await house.use(kind, body)


# -- when it cannot work ----------------------------------------------------------------------------------------------


def refusal(kind: Kind, path: str) -> SandkeepError:
    with pytest.raises(SandkeepError) as caught:
        kind.run(path, lambda client: _awaited(client.daemon.ping()))
    return caught.value


def test_no_daemon_is_said_with_what_to_do(tmp_path: Path, kind: Kind) -> None:
    path = str(tmp_path / "s")
    failure = refusal(kind, path)
    assert isinstance(failure, StateError)
    assert failure.code == "not_ready"
    assert failure.message == f"no daemon is listening on {path}: start one with `sandkeep daemon --detach`"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    assert refusal(kind, path).code == "not_ready"


def test_a_full_queue_of_new_clients_is_waited_for_and_not_for_ever(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "s")

    async def nothing(client: Any) -> str:
        return "connected"

    with socket.socket(socket.AF_UNIX) as server, ExitStack() as queue:
        server.bind(path)
        server.listen(0)
        number = 0
        while not number:
            waiting = queue.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            number = waiting.connect_ex(path)
        with monkeypatch.context() as soon:
            soon.setattr(steps, "_CONNECT_S", 0.05)
            assert refusal(kind, path).message == f"the daemon on {path} is too busy to answer: try again"
        accepting = threading.Thread(target=lambda: server.accept()[0].close())
        accepting.start()
        assert kind.run(path, nothing) == "connected"
        accepting.join()


def test_a_path_that_cannot_be_a_socket_is_the_settings_fault(tmp_path: Path, kind: Kind) -> None:
    failure = refusal(kind, str(tmp_path / ("x" * 120)))
    assert isinstance(failure, SetupError)
    assert "SANDKEEP_SOCKET" in failure.message


@pytest.mark.needs("root")
def test_a_socket_of_others_is_permission_denied(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with listening(path, mode=0o600):
        child = os.fork()
        if child == 0:
            os._exit(_code_as_nobody(path))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13


def _code_as_nobody(path: str) -> int:
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        blocking.connect(path)
    except SandkeepError as error:
        return 13 if error.code == "permission_denied" else 1
    except BaseException:
        return 2
    return 3


def test_a_daemon_that_goes_away_is_told_with_the_command_id(tmp_path: Path, kind: Kind) -> None:
    path = str(tmp_path / "s")

    def answer_nothing(listener: socket.socket) -> None:
        server = listener.accept()[0]
        server.recv(65536)
        server.close()

    with listening(path) as listener:
        listener.settimeout(patient(60))
        thread = threading.Thread(target=answer_nothing, args=(listener,))
        thread.start()
        with pytest.raises(StateError, match=r"closed the connection before it answered sandbox\.terminate") as caught:
            kind.run(path, lambda client: _awaited(client.sandbox.terminate("sbx_1", command_id="mine")), patience_s=0)
        thread.join()
    assert caught.value.code == "not_ready"
    assert caught.value.data == {"socket": path, "command_id": "mine"}


async def test_a_request_that_is_too_long_is_refused_with_the_daemons_own_words(house: House, kind: Kind) -> None:
    async def body(client: Any) -> None:
        with pytest.raises(SandkeepError, match="a message has at most"):
            await client.sandbox.exec("sbx_1", "cat", stdin=bytes(13 * 1024 * 1024))
        assert (await client.daemon.ping()).version == "python"  # on another connection

    await house.use(kind, body)


async def test_closing_ends_the_calls_under_way(house: House, kind: Kind) -> None:
    async def body(client: Any) -> list[Any]:
        async def wait() -> str:
            return (await caught(client.process.wait("sbx_1", "p"))).code

        async def close() -> None:
            while len(house.handler.calls) < 2:
                await client.daemon.ping()
            client.close()

        codes = await kind.together(wait, wait, close)
        assert (await caught(client.daemon.ping())).code == "not_ready"
        return codes

    assert await house.use(kind, body) == ["not_ready", "not_ready", None]


# -- what is imported -------------------------------------------------------------------------------------------------


def loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys; print(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout.split()
    )


def test_the_package_alone_imports_nothing_heavy() -> None:
    assert not {"trio", "msgspec", "socket", "importlib.metadata"} & loaded_by("import sandkeep")


def test_the_blocking_client_imports_no_trio_and_little_else() -> None:
    loaded = loaded_by("import sandkeep; sandkeep.blocking.connect")
    assert not {"trio", "trio_websocket", "socket", "asyncio", "threading", "logging", "subprocess", "json"} & loaded
    assert "sandkeep.protocol.methods" in loaded


def test_the_client_on_asyncio_imports_no_trio() -> None:
    loaded = loaded_by("import sandkeep.aio; sandkeep.aio.connect")
    assert not {"trio", "trio_websocket"} & loaded


def test_everything_public_is_there() -> None:
    assert {getattr(sandkeep, name) is not None for name in sandkeep.__all__} == {True}
    assert set(sandkeep.__all__) < set(dir(sandkeep))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        sandkeep.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert sandkeep.__version__ == version("sandkeep")
