"""Both clients against the real server: what is sent, what comes back, and what happens when one side goes away."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import sandkeep
from sandkeep import blocking, model
from sandkeep.clients.trio import Client
from sandkeep.errors import CallerError, SandkeepError, SetupError, StateError
from sandkeepd.api.listener import listening
from sandkeepd.api.server import Server
from sandkeepd.core.call import Call
from sandkeepd.serving.limits import MAX_CALLS

EVENTS = [
    model.Event(position=n, time="", type="sandbox.created", version=1, stream="s", revision=n, data={}, meta={})
    for n in range(1, 6)
]
OUTPUT = b"one two three"


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


class House:
    """A server on a socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.handler = Handler()
        self.server = Server(self.handler)
        self.scope = trio.CancelScope()
        self.stopped = trio.Event()

    async def run(self, *, task_status: Any) -> None:
        with listening(self.path) as listener, self.scope:
            await self.server.serve(listener, task_status=task_status)
        self.stopped.set()

    async def in_thread(self, work: Callable[[blocking.Client], Any]) -> Any:
        """What `work` answers, given a blocking client in a thread."""

        def run() -> Any:
            with blocking.connect(self.path) as client:
                return work(client)

        return await trio.to_thread.run_sync(run)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    built = House(str(tmp_path / "s.sock"))
    async with trio.open_nursery() as nursery:
        await nursery.start(built.run)
        yield built
        built.handler.release.set()
        built.scope.cancel()
        await built.stopped.wait()


# -- calling ----------------------------------------------------------------------------------------------------------


async def test_both_clients_get_typed_results(house: House) -> None:
    async with sandkeep.connect(house.path, client="me") as client:
        assert await client.daemon.ping() == model.Pong(version="me", pid=os.getpid())
        result = await client.sandbox.exec("sbx_1", ["cat"], stdin=b"\x00\xff")
        assert isinstance(result, model.ExecResult)
        assert result.stdout == b"\x00\xff"
    assert await house.in_thread(lambda c: c.sandbox.exec("sbx_1", ["cat"], stdin=b"\x00\xff")) == result
    assert (await house.in_thread(lambda c: c.daemon.ping())).version == "python"


async def test_errors_are_the_same_classes_again_and_not_in_groups(house: House) -> None:
    with pytest.raises(CallerError, match="no such sandbox") as caught:
        async with sandkeep.connect(house.path) as client:
            await client.sandbox.get("sbx_9")
    assert caught.value.code == "not_found"
    assert caught.value.data == {"sandbox_id": "sbx_9"}
    with pytest.raises(CallerError) as again:
        await house.in_thread(lambda client: client.sandbox.get("sbx_9"))
    assert again.value.data == caught.value.data


async def test_parameters_are_checked_as_a_function_would(house: House) -> None:
    async with sandkeep.connect(house.path) as client:
        untyped: Any = client
        with pytest.raises(TypeError, match=r"sandbox.get\(\) needs sandbox_id"):
            await untyped.sandbox.get()
        with pytest.raises(TypeError, match="more than one value for 'sandbox_id'"):
            await untyped.sandbox.get("a", sandbox_id="a")
        with pytest.raises(TypeError, match="at most 1 positional"):
            await untyped.sandbox.get("a", "b")
        with pytest.raises(TypeError, match="no parameter 'command_id'"):
            await untyped.sandbox.get("a", command_id="c")
        with pytest.raises(AttributeError, match=r"no method sandbox.fly"):
            await untyped.sandbox.fly()
        with pytest.raises(AttributeError, match="'banana'"):
            await untyped.banana.peel()
        assert {"sandbox", "process", "call"} <= set(dir(client))
        assert {"get", "exec"} <= set(dir(client.sandbox))
    assert house.handler.calls == []


async def test_every_change_has_a_command_id_of_its_own(house: House) -> None:
    async with sandkeep.connect(house.path) as client:
        for given in ({}, {}, {"command_id": "mine"}):
            await client.sandbox.exec("sbx_1", "true", **given)
    first, second, third = (call.params.command_id for call in house.handler.calls)  # type: ignore[attr-defined]
    assert first.startswith("cmd_")
    assert first != second
    assert third == "mine"


async def test_progress_is_told(house: House) -> None:
    told: list[str] = []
    async with sandkeep.connect(house.path) as client:
        await client.sandbox.exec("sbx_1", "true", progress=told.append)
    await house.in_thread(lambda client: client.sandbox.exec("sbx_1", "true", progress=told.append))
    assert told == ["launching", "running"] * 2


async def test_a_method_can_be_called_by_its_name(house: House) -> None:
    async with sandkeep.connect(house.path) as client:
        assert (await client.call("daemon.ping"))["version"] == "python"
    assert (await house.in_thread(lambda client: client.call("rpc.discover")))["openrpc"]
    with pytest.raises(CallerError, match="is not a method"):
        await house.in_thread(lambda client: client.call("no.such"))


async def test_the_name_goes_out_with_the_first_request(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with listening(path) as listener:
        listener.settimeout(30)
        with blocking.connect(path, client="me") as client:
            thread = threading.Thread(target=lambda: client.daemon.ping())
            thread.start()
            server = listener.accept()[0]
            server.settimeout(30)
            first = [msgspec.json.decode(line) for line in server.recv(65536).splitlines()]
            server.sendall(b'{"jsonrpc":"2.0","id":1,"result":{"version":"1","pid":1}}\n')
            thread.join()
            server.close()
    assert [(message["method"], message["id"]) for message in first] == [("rpc.hello", 0), ("daemon.ping", 1)]
    assert first[0]["params"] == {"client": "me"}


# -- side by side -----------------------------------------------------------------------------------------------------


async def test_many_tasks_share_a_connection(house: House) -> None:
    answers: list[int] = []

    async def ask(client: Client, number: int) -> None:
        result = await client.sandbox.exec("sbx_1", "cat", stdin=str(number).encode())
        assert result.stdout == str(number).encode()
        answers.append(number)

    async with sandkeep.connect(house.path) as client, trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(ask, client, number)
    assert sorted(answers) == list(range(200))


async def test_a_quick_call_overtakes_one_that_waits(house: House) -> None:
    ended: list[int | None] = []

    async def wait(client: Client) -> None:
        ended.append((await client.process.wait("sbx_1", "p")).exit_code)

    async with sandkeep.connect(house.path) as client, trio.open_nursery() as nursery:
        nursery.start_soon(wait, client)
        nursery.start_soon(wait, client)
        await wait_all_tasks_blocked()
        await client.daemon.ping()
        assert ended == []
        house.handler.release.set()
    assert ended == [7, 7]


async def test_whoever_reads_may_be_cancelled(house: House) -> None:
    """The first of those who wait reads for all; when it gives up, another must take over."""
    ended: list[int | None] = []

    async def wait(client: Client, scope: trio.CancelScope) -> None:
        with scope:
            ended.append((await client.process.wait("sbx_1", "p")).exit_code)

    async with sandkeep.connect(house.path) as client, trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(5)]
        for scope in scopes:
            nursery.start_soon(wait, client, scope)
            await wait_all_tasks_blocked()
        for scope in scopes[:3]:
            scope.cancel()
            await wait_all_tasks_blocked()
        house.handler.release.set()
        with trio.fail_after(20):
            while len(ended) < 2:
                await wait_all_tasks_blocked(0.01)
    assert ended == [7, 7]


async def test_answers_that_nobody_waits_for_do_not_block_a_large_request(house: House) -> None:
    """Cancelled calls leave more answers behind than the daemon holds before it reads on: somebody must take them."""
    async with sandkeep.connect(house.path) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(MAX_CALLS + 1):
                    nursery.start_soon(client.image.list)
                await wait_all_tasks_blocked()
                scope.cancel()
        assert len(house.handler.calls) == MAX_CALLS
        house.handler.release.set()
        with trio.fail_after(20):
            result = await client.sandbox.exec("sbx_1", "cat", stdin=bytes(4 * 1024 * 1024))
        assert len(result.stdout) == 4 * 1024 * 1024
        assert len(house.handler.calls) == MAX_CALLS + 2


async def test_threads_share_a_blocking_client(house: House) -> None:
    def work(client: blocking.Client) -> list[bytes]:
        found: list[bytes] = []

        def ask(number: int) -> None:
            found.append(client.sandbox.exec("sbx_1", "cat", stdin=b"%d" % number).stdout)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    assert sorted(await house.in_thread(work)) == sorted(b"%d" % number for number in range(16))


def test_an_interrupted_call_leaves_the_client_usable(tmp_path: Path) -> None:
    """Ctrl-C while a command waits: what comes late for it is not taken for the answer to the next."""
    path = str(tmp_path / "s")
    told = b'{"jsonrpc":"2.0","method":"progress","params":{"request":1,"message":"waiting"}}\n'
    answers = b"".join(b'{"jsonrpc":"2.0","id":%d,"result":{"version":"%d","pid":1}}\n' % (n, n) for n in (1, 2))

    def interrupt(message: str) -> None:
        raise KeyboardInterrupt(message)

    with listening(path) as listener, blocking.connect(path) as client, listener.accept()[0] as server:
        server.sendall(told)
        with pytest.raises(KeyboardInterrupt, match="waiting"):
            client.daemon.ping(progress=interrupt)
        server.sendall(answers)
        assert client.daemon.ping().version == "2"


# -- following --------------------------------------------------------------------------------------------------------


async def test_events_are_followed_and_resumed(house: House) -> None:
    async with sandkeep.connect(house.path) as client:
        reader = client.follow_events()
        assert [(await anext(reader)).position for _ in range(3)] == [1, 2, 3]
        assert reader.token == "log:3"
        rest = [event.position async for event in client.follow_events(reader.token, follow=False)]
    assert rest == [4, 5]
    assert await house.in_thread(lambda c: [event.position for event in c.follow_events("log:1", follow=False)]) == [
        2,
        3,
        4,
        5,
    ]


async def test_output_is_read_to_its_end_and_resumed(house: House) -> None:
    async with sandkeep.connect(house.path) as client:
        pieces = [piece async for piece in client.read_output("sbx_1", "p")]
        assert b"".join(piece.stdout for piece in pieces) == OUTPUT
        assert pieces[-1].ended
        there = [piece async for piece in client.read_output("sbx_1", "p", 4, follow=False)]
        assert b"".join(piece.stdout for piece in there) == OUTPUT[4:]
    blockwise = await house.in_thread(lambda c: list(c.read_output("sbx_1", "p", 8)))
    assert b"".join(piece.stdout for piece in blockwise) == OUTPUT[8:]


# -- when it cannot work ----------------------------------------------------------------------------------------------


async def connect_both(path: str) -> list[SandkeepError]:
    found = []
    with pytest.raises(SandkeepError) as caught:
        blocking.connect(path)
    found.append(caught.value)
    with pytest.raises(SandkeepError) as caught:
        async with sandkeep.connect(path):
            pass
    return [*found, caught.value]


async def test_no_daemon_is_said_with_what_to_do(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    for failure in await connect_both(path):
        assert isinstance(failure, StateError)
        assert failure.code == "not_ready"
        assert failure.message == f"no daemon is listening on {path}: start one with `sandkeep daemon`"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    assert [failure.code for failure in await connect_both(path)] == ["not_ready"] * 2


async def test_a_path_that_cannot_be_a_socket_is_the_settings_fault(tmp_path: Path) -> None:
    for failure in await connect_both(str(tmp_path / ("x" * 120))):
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


async def test_a_daemon_that_goes_away_is_told_with_the_command_id(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    def answer_nothing(listener: socket.socket) -> None:
        server = listener.accept()[0]
        server.recv(65536)
        server.close()

    for connect_and_call in (_call_blocking, _call_trio):
        with listening(path) as listener:
            listener.settimeout(30)
            thread = threading.Thread(target=answer_nothing, args=(listener,))
            thread.start()
            with pytest.raises(
                StateError, match=r"closed the connection before it answered sandbox\.terminate"
            ) as caught:
                await connect_and_call(path)
            thread.join()
        assert caught.value.code == "not_ready"
        assert caught.value.data == {"socket": path, "command_id": "mine"}


async def _call_trio(path: str) -> None:
    async with sandkeep.connect(path, patience_s=0) as client:
        await client.sandbox.terminate("sbx_1", command_id="mine")


async def _call_blocking(path: str) -> None:
    with blocking.connect(path, patience_s=0) as client:
        client.sandbox.terminate("sbx_1", command_id="mine")


async def test_a_request_that_is_too_long_is_refused_with_the_daemons_own_words(house: House) -> None:
    async with sandkeep.connect(house.path) as client:
        with pytest.raises(SandkeepError, match="a message has at most"):
            await client.sandbox.exec("sbx_1", "cat", stdin=bytes(13 * 1024 * 1024))
        assert (await client.daemon.ping()).version == "python"  # on another connection
    with pytest.raises(SandkeepError, match="a message has at most"):
        await house.in_thread(lambda c: c.sandbox.exec("sbx_1", "cat", stdin=bytes(13 * 1024 * 1024)))


async def test_closing_ends_the_calls_under_way(house: House) -> None:
    failures: list[str] = []

    async def wait(client: Client) -> None:
        with pytest.raises(StateError) as caught:
            await client.process.wait("sbx_1", "p")
        failures.append(caught.value.code)

    async with trio.open_nursery() as nursery, sandkeep.connect(house.path) as client:
        nursery.start_soon(wait, client)
        nursery.start_soon(wait, client)
        await wait_all_tasks_blocked()
    assert failures == ["not_ready"] * 2


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


def test_everything_public_is_there() -> None:
    assert {getattr(sandkeep, name) is not None for name in sandkeep.__all__} == {True}
    assert set(sandkeep.__all__) < set(dir(sandkeep))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        sandkeep.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert sandkeep.__version__ == version("sandkeep")
