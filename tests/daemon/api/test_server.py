"""The API's server on real Unix sockets: who is served, what each line gets, and how everything ends.

Rules: every wait is for an event or a line; where time matters the clock is the test's own, which is safe as both ends
of each socket are in this process.
"""

import contextlib
import errno
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import trio
from msgspec import Meta
from msgspec.structs import replace
from tests.support.patience import patient
from tests.support.serving import Serving, serving
from trio.testing import MockClock, wait_all_tasks_blocked

from sandkeep import model
from sandkeep.errors import CallerError, SandkeepError, SetupError, StateError
from sandkeep.protocol.lines import MAX_LINE_BYTES
from sandkeep.protocol.methods import METHODS
from sandkeepd.api import server as server_module
from sandkeepd.api.connection import Connection
from sandkeepd.api.listener import listening
from sandkeepd.api.server import Server, serve
from sandkeepd.core.call import Call
from sandkeepd.core.peer import Peer, peer_of
from sandkeepd.serving import params
from sandkeepd.serving.accept import accept_clients
from sandkeepd.serving.limits import MAX_CALLS
from sandkeepd.serving.refusals import RefusalLog

SANDBOX = {"sandbox_id": "sbx_1"}
PROCESS = {"sandbox_id": "sbx_1", "name": "p"}


class Handler:
    """Answers pings at once; reads and changes wait until the test lets them go."""

    def __init__(self) -> None:
        self.immediate = {"daemon.ping": self.ping, "sandbox.get": lambda call: NotImplemented}
        self.calls: list[Call] = []
        self.begun: list[str] = []
        self.done: list[str] = []
        self.cancelled: list[str] = []
        self.release = trio.Event()
        self.failure: Exception | None = None
        self.answer: Any = model.Empty()

    def ping(self, call: Call) -> model.Pong:
        self.calls.append(call)
        return model.Pong(version="1", pid=1)

    async def __call__(self, call: Call) -> Any:
        self.calls.append(call)
        self.begun.append(call.method.name)
        if self.failure is not None:
            raise self.failure
        try:
            if call.method.name in ("process.wait", "sandbox.terminate", "daemon.capabilities"):
                await call.progress("waiting")
                await self.release.wait()
        except trio.Cancelled:
            self.cancelled.append(call.method.name)
            raise
        self.done.append(call.method.name)
        return self.answer


class Wire:
    """One end of a connection, with lines of JSON."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._data = b""

    async def send(self, *messages: Any) -> None:
        await self.stream.send_all(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    async def receive(self) -> Any:
        while b"\n" not in self._data:
            data = await self.stream.receive_some(1 << 20)
            if not data:
                raise EOFError
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        return json.loads(line)

    async def ask(self, method: str, given: Any = None, request_id: Any = 1) -> Any:
        await self.send(request(method, given, request_id))
        return await self.receive()


def request(method: str, given: Any = None, request_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": given or {}}


def note(method: str, given: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": given or {}}


class House(Serving[Handler]):
    """A server on a socket, its handler, and connections to it."""

    def __init__(self, path: str) -> None:
        super().__init__(path, Handler(), send_deadline_s=30, grace_s=5)
        self.wires: list[Wire] = []

    async def wire(self) -> Wire:
        self.wires.append(Wire(await trio.open_unix_socket(self.path)))
        return self.wires[-1]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with serving(House(str(tmp_path / "s.sock"))) as built:
        yield built
        built.handler.release.set()
    for wire in built.wires:
        await wire.stream.aclose()


# -- lines and answers ------------------------------------------------------------------------------------------------


async def test_many_connections_of_a_user_delay_no_other(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """They all ask at once, again and again: the other waits for a few of them."""
    crowd = [await house.wire() for _ in range(40)]
    for wire in crowd:
        await wire.ask("daemon.ping")
    monkeypatch.setattr(server_module, "peer_of", lambda sock: replace(peer_of(sock), uid=7))
    other = await house.wire()
    await other.ask("daemon.ping")
    line = json.dumps(request("daemon.ping")).encode() + b"\n"
    for _ in range(6):
        house.handler.calls.clear()
        for wire in (*crowd, other):
            wire.stream.socket._sock.send(line)  # within one round of the event loop
        for wire in (*crowd, other):
            await wire.receive()
        uids = [call.peer.uid for call in house.handler.calls]
        assert len(uids) == 41
        assert uids.index(7) <= 12


async def test_calls_are_answered_with_their_ids(house: House) -> None:
    wire = await house.wire()
    for request_id in (1, "one", None, 1.5):
        pong = await wire.ask("daemon.ping", request_id=request_id)
        assert pong == {"jsonrpc": "2.0", "id": request_id, "result": {"version": "1", "pid": 1}}


async def test_an_unknown_method_is_told_apart(house: House) -> None:
    answer = await (await house.wire()).ask("sandbox.fly")
    assert answer["error"]["code"] == -32601
    assert answer["error"]["data"] == {"code": "invalid"}


async def test_notifications_are_carried_out_and_never_answered(house: House) -> None:
    wire = await house.wire()
    await wire.send(note("image.list"), note("sandbox.fly"), note("image.get", {"bad": 1}), note("daemon.ping"))
    assert (await wire.ask("daemon.ping", request_id="last"))["id"] == "last"
    await wait_all_tasks_blocked()
    assert house.handler.done == ["image.list"]


async def test_a_batch_is_answered_as_one_array(house: House) -> None:
    wire = await house.wire()
    await wire.send(
        [request("daemon.ping"), 5, note("image.list"), request("image.list", request_id=2), [request("x")]]
    )
    answers = await wire.receive()
    assert sorted(str(answer["id"]) for answer in answers) == ["1", "2", "None", "None"]
    await wire.send([note("daemon.ping")], [])
    assert (await wire.receive())["error"]["code"] == -32600  # of the empty one; the notifications got nothing


async def test_a_large_batch_is_done_a_few_at_a_time(house: House) -> None:
    wire = await house.wire()
    await wire.send([request("image.list", request_id=number) for number in range(1000)])
    assert sorted(answer["id"] for answer in await wire.receive()) == list(range(1000))


async def test_answers_of_a_batch_that_no_line_can_hold_become_errors(house: House) -> None:
    house.handler.answer = {"text": "x" * (6 * 1024 * 1024)}
    wire = await house.wire()
    await wire.send([request("image.list", request_id=number) for number in range(4)])
    answers = await wire.receive()
    assert sum("result" in answer for answer in answers) == 2
    assert {answer["error"]["data"]["code"] for answer in answers if "error" in answer} == {"invalid"}


async def test_an_answer_longer_than_a_line_is_refused(house: House) -> None:
    house.handler.answer = {"text": "x" * MAX_LINE_BYTES}
    wire = await house.wire()
    assert (await wire.ask("image.list"))["error"]["data"]["code"] == "invalid"
    assert "result" in await wire.ask("daemon.ping")


async def test_pipelined_calls_overtake_those_that_wait(house: House) -> None:
    wire = await house.wire()
    await wire.send(request("process.wait", PROCESS, "slow"), request("image.list", request_id="quick"))
    first = [await wire.receive() for _ in range(2)]
    assert [answer["id"] for answer in first if "id" in answer] == ["quick"]
    house.handler.release.set()
    assert (await wire.receive())["id"] == "slow"


async def test_progress_is_told_with_the_id_of_its_request(house: House) -> None:
    told = await (await house.wire()).ask("process.wait", PROCESS, "mine")
    assert told == {"jsonrpc": "2.0", "method": "progress", "params": {"request": "mine", "message": "waiting"}}


async def test_discover_describes_every_method(house: House) -> None:
    document = (await (await house.wire()).ask("rpc.discover"))["result"]
    assert [method["name"] for method in document["methods"]] == list(METHODS)


async def test_hello_names_the_client_from_then_on(house: House) -> None:
    wire = await house.wire()
    await wire.send(request("daemon.ping"), note("rpc.hello", {"client": "me"}), request("daemon.ping"))
    await wire.receive()
    await wire.receive()
    assert [call.client for call in house.handler.calls] == [None, "me"]


async def test_what_cannot_be_answered_at_once_goes_to_the_handler(house: House) -> None:
    assert (await (await house.wire()).ask("sandbox.get", SANDBOX))["result"] == {}
    assert house.handler.begun == ["sandbox.get"]


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "given", "field", "words"),
    [
        ("sandbox.get", {}, "sandbox_id", "is missing"),
        ("sandbox.get", [], "params", "by name"),
        ("sandbox.get", {"sandbox_id": 5}, "sandbox_id", "must be a string, not an integer"),
        ("sandbox.get", {"sandbox_id": "../hush"}, "sandbox_id", "must be an id or name: 1 to 64 letters"),
        ("sandbox.get", {"sandbox_id": "a\n"}, "sandbox_id", "must be an id or name"),
        ("sandbox.get", {"sandbox_id": "a" * 65}, "sandbox_id", "must be a string of at most 64 characters"),
        ("sandbox.get", {"sandbox_id": "a", "hush`\n": 1}, "hush`\n", "there is no such parameter"),
        ("sandbox.create", {"image_id": "a", "network": "hush"}, "network", "must be one of `none`, `host`, `bridge`"),
        ("sandbox.create", {"image_id": "a", "env": {"hush hush": "x"}}, "env", "each name must be a variable's name"),
        ("sandbox.create", {"image_id": "a", "secrets": {"A": "hush\0"}}, "secrets", "must be any text without NUL"),
        ("sandbox.create", {"image_id": "a", "secrets": {"A": ["hush"]}}, "secrets", "must be a string, not an array"),
        (
            "sandbox.create",
            {"image_id": "a", "volumes": [{"source": "./hush", "target": "/d"}]},
            "volumes",
            "[0].source: must be an absolute path of the host, without ':', or the name of a volume",
        ),
        ("sandbox.create", {"image_id": "a", "volumes": [{"source": "a"}]}, "volumes", "[0].target: is missing"),
        ("sandbox.create", {"image_id": "a", "cpus": -1}, "cpus", "must be a number, at least 0.01"),
        ("sandbox.create", {"image_id": "a", "memory_bytes": 10**30}, "memory_bytes", "must be an integer, at most "),
        ("sandbox.create", {"image_id": "a", "memory_bytes": 5e6 + 0.5}, "memory_bytes", "must be an integer or null"),
        ("sandbox.exec", {"sandbox_id": "a", "command": []}, "command", "must be an array of at least 1 element"),
        ("sandbox.exec", {"sandbox_id": "a", "command": ["a", 5]}, "command", "must be a string, not an integer"),
        ("sandbox.exec", {"sandbox_id": "a", "command": "hush\0"}, "command", "must be any text without NUL"),
        ("sandbox.exec", {"sandbox_id": "a", "command": "a", "stdin": "hush!"}, "stdin", "base64"),
        ("event.list", {"limit": 0}, "limit", "must be an integer, at least 1"),
        ("event.list", {"wait_s": "hush"}, "wait_s", "must be a number, not a string"),
        ("daemon.ping", {"hush": 1}, "hush", "there is no such parameter"),
    ],
)
async def test_bad_parameters_are_refused_by_name_and_never_repeated(
    house: House, method: str, given: Any, field: str, words: str
) -> None:
    wire = await house.wire()
    await wire.send({"jsonrpc": "2.0", "id": 1, "method": method, "params": given})
    failure = (await wire.receive())["error"]
    assert failure["code"] == -32602
    assert failure["data"] == {"field": field, "code": "invalid"}
    assert words in failure["message"]
    assert "hush" not in failure["message"].removeprefix(field)
    assert house.handler.begun == []


def test_every_pattern_is_described_in_words() -> None:
    """A refusal says the description, as a regular expression says nothing to most."""
    metas = [part for row in METHODS.values() for part in params._walk(row.params) if isinstance(part, Meta)]
    assert len([meta for meta in metas if meta.pattern]) > 50
    assert [meta for meta in metas if meta.pattern and not meta.description] == []


def test_every_method_has_a_decoder_that_refuses_what_is_no_object() -> None:
    from msgspec import Raw

    for row in METHODS.values():
        for text in (b"[]", b"null", b"5", b'"x"', b'{"no_such_field":1}'):
            with pytest.raises(CallerError) as caught:
                params.decoder(row.params)(Raw(text))
            assert caught.value.code == "invalid"
            assert caught.value.data["field"]


async def test_a_refusal_of_the_handler_reaches_the_client(house: House) -> None:
    house.handler.failure = ExceptionGroup("", [CallerError("not_found", "there is no such image", image_id="img_1")])
    failure = (await (await house.wire()).ask("image.list"))["error"]
    assert failure == {
        "code": -32000,
        "message": "there is no such image",
        "data": {"image_id": "img_1", "code": "not_found"},
    }


async def test_a_defect_is_internal_and_logged_without_secrets(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.handler.failure = ValueError("cannot stand 'hush-tail'")
    wire = await house.wire()
    given = {"image_id": "a", "secrets": {"TOKEN": "hush", "LONG": "hush-tail"}}
    failure = (await wire.ask("sandbox.create", given))["error"]
    assert failure["code"] == -32603
    assert failure["data"]["code"] == "internal"
    assert "hush" not in json.dumps(failure)
    assert failure["data"]["incident"] in caplog.text
    assert "Traceback" in caplog.text
    assert "hush" not in caplog.text
    assert "-tail" not in caplog.text
    assert "result" in await wire.ask("daemon.ping")


async def test_an_error_that_is_no_json_is_internal(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.handler.failure = CallerError("not_found", "none", what=object())
    assert (await (await house.wire()).ask("image.list"))["error"]["data"]["code"] == "internal"
    assert "Traceback" in caplog.text


async def test_the_deadline_of_the_row_holds(house: House, autojump_clock: MockClock) -> None:
    wire = await house.wire()
    start = trio.current_time()
    await wire.ask("daemon.capabilities")
    failure = (await wire.receive())["error"]
    assert failure["data"] == {"code": "timeout", "deadline_s": 30.0}
    assert trio.current_time() - start == pytest.approx(30)
    assert house.handler.cancelled == ["daemon.capabilities"]


# -- too much ---------------------------------------------------------------------------------------------------------


async def test_a_line_that_is_too_long_gets_an_error_and_the_end(house: House) -> None:
    wire, other = await house.wire(), await house.wire()
    await wire.stream.send_all(b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"}\n' + b"x" * (17 * 1024 * 1024) + b"\n")
    assert "result" in await wire.receive()
    assert (await wire.receive())["error"]["code"] == -32600
    with pytest.raises(EOFError):
        await wire.receive()
    assert "result" in await other.ask("daemon.ping")


async def test_calls_under_way_are_bounded_and_then_nothing_is_read(house: House) -> None:
    wire = await house.wire()
    waits = [request("process.wait", PROCESS, number) for number in range(MAX_CALLS)]
    await wire.send(*waits, request("daemon.ping", request_id="behind"), request("image.list", request_id="late"))
    await wait_all_tasks_blocked()
    assert house.server.statistics().calls_in_flight == MAX_CALLS
    assert "image.list" not in house.handler.begun
    house.handler.release.set()
    answers = [await wire.receive() for _ in range(2 * MAX_CALLS + 2)]
    assert {answer["id"] for answer in answers if "id" in answer} == {*range(MAX_CALLS), "behind", "late"}


async def test_a_full_connection_that_hangs_up_is_noticed(house: House) -> None:
    wire = await house.wire()
    await wire.send(*[request("process.wait", PROCESS, number) for number in range(MAX_CALLS + 5)])
    await wait_all_tasks_blocked()
    await wire.stream.aclose()
    await wait_all_tasks_blocked()
    assert len(house.handler.cancelled) == MAX_CALLS
    assert house.server.statistics().connections == 0


async def test_calls_that_may_answer_much_are_few_at_a_time(house: House) -> None:
    wire = await house.wire()
    read = {**PROCESS, "max_bytes": model.MAX_READ_BYTES}
    house.handler.answer = {"stdout": "x" * (10 * 1024 * 1024)}
    await wire.send(*[request("process.read", read, number) for number in range(20)])
    await wait_all_tasks_blocked()
    assert 0 < len(house.handler.begun) < 8
    assert {(await wire.receive())["id"] for _ in range(20)} == set(range(20))


async def test_a_client_that_never_reads_is_dropped(house: House, autojump_clock: MockClock) -> None:
    wire = await house.wire()
    await wire.ask("daemon.ping")
    house.handler.answer = {"text": "x" * (1024 * 1024)}
    await wire.send(*[request("image.list", None, number) for number in range(MAX_CALLS)])
    start = trio.current_time()
    while house.server.statistics().connections:
        await trio.sleep(1)
    assert trio.current_time() - start == pytest.approx(30, abs=2)
    assert house.server.statistics().calls_in_flight == 0


async def test_a_client_that_never_reads_pings_is_not_read_for_ever(house: House, autojump_clock: MockClock) -> None:
    wire = await house.wire()
    pings = b"".join(json.dumps(request("daemon.ping")).encode() + b"\n" for _ in range(1000))
    with pytest.raises(trio.BrokenResourceError), trio.fail_after(patient(60)):
        await wire.stream.send_all(pings * 100)


# -- endings ----------------------------------------------------------------------------------------------------------


async def test_a_client_that_goes_away_ends_its_reads_but_not_its_changes(house: House) -> None:
    wire = await house.wire()
    await wire.send(request("process.wait", PROCESS, 1), request("sandbox.terminate", SANDBOX, 2))
    await wait_all_tasks_blocked()
    await wire.stream.aclose()
    await wait_all_tasks_blocked()
    assert house.handler.cancelled == ["process.wait"]
    house.handler.release.set()
    await wait_all_tasks_blocked()
    assert house.handler.done == ["sandbox.terminate"]
    assert house.server.statistics().connections == 0


async def test_a_client_that_only_stops_sending_gets_its_answers(house: House) -> None:
    wire = await house.wire()
    await wire.send(request("process.wait", PROCESS))
    await wire.stream.send_eof()
    await wire.receive()
    house.handler.release.set()
    assert (await wire.receive())["result"] == {}
    with pytest.raises(EOFError):
        await wire.receive()


async def test_a_half_closed_client_that_goes_away_is_noticed(house: House) -> None:
    wire = await house.wire()
    await wire.send(request("process.wait", PROCESS))
    await wire.stream.send_eof()
    await wire.receive()
    await wire.stream.aclose()
    await wait_all_tasks_blocked()
    assert house.handler.cancelled == ["process.wait"]


async def test_stopping_lets_changes_end_and_answers_them(house: House) -> None:
    wire, idle = await house.wire(), await house.wire()
    await wire.send(request("process.wait", PROCESS, 1), request("sandbox.terminate", SANDBOX, 2))
    await wait_all_tasks_blocked()
    house.scope.cancel()
    await wait_all_tasks_blocked()
    assert house.handler.cancelled == ["process.wait"]
    with pytest.raises(OSError, match="refused"):
        await house.wire()
    with pytest.raises(EOFError):
        await idle.receive()
    house.handler.release.set()
    answers = [await wire.receive() for _ in range(3)]
    assert [answer["id"] for answer in answers if "id" in answer] == [2]
    await house.stopped.wait()


async def test_stopping_waits_only_so_long(house: House, autojump_clock: MockClock) -> None:
    wire = await house.wire()
    await wire.send(request("sandbox.terminate", SANDBOX))
    await wire.receive()
    start = trio.current_time()
    house.scope.cancel()
    await house.stopped.wait()
    assert trio.current_time() - start == pytest.approx(5)
    assert house.handler.cancelled == ["sandbox.terminate"]


async def test_nothing_follows_half_a_line(house: House) -> None:
    """Stopping while a client has taken half an answer: what is answered later would be read as the rest of it."""
    house.handler.immediate["daemon.ping"] = lambda call: {"text": "x" * (4 * 1024 * 1024)}
    house.server = Server(house.handler)
    listener, other = socket.socketpair()
    with other:
        connection = Connection(listener, Peer(uid=0, gid=0), house.handler, house.server._routes, 30)
        listener.setblocking(False)
        other.sendall(b"".join(msgspec.json.encode(one) + b"\n" for one in (
            request("sandbox.terminate", SANDBOX), request("daemon.ping")
        )))  # fmt: skip
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            await wait_all_tasks_blocked()
            connection.stop()
            await wait_all_tasks_blocked()
            house.handler.release.set()
        with other.makefile("rb") as file:
            (half,) = file.readlines()
    assert half.startswith(b'{"jsonrpc":"2.0","id":1,"result":{"text":"xxx')
    assert half.endswith(b"xxx")


async def test_one_busy_client_does_not_keep_the_others_waiting(house: House) -> None:
    """A thousand calls that arrived at once are answered in turns with those of others."""
    busy, other = await house.wire(), await house.wire()
    await busy.ask("daemon.ping")
    await other.ask("daemon.ping")
    house.handler.calls.clear()
    await busy.send(*[request("daemon.ping") for _ in range(1000)])
    await other.send(request("daemon.ping", request_id="other"))
    assert (await other.receive())["id"] == "other"
    assert len(house.handler.calls) < 500
    for _ in range(1000):
        await busy.receive()


async def test_statistics_count(house: House) -> None:
    wire = await house.wire()
    await wire.ask("daemon.ping")
    await wire.ask("daemon.ping")
    found = house.server.statistics()
    assert (found.connections, found.calls_in_flight, found.answers) == (1, 0, 2)
    await wire.stream.aclose()
    await wait_all_tasks_blocked()
    found = house.server.statistics()
    assert (found.connections, found.answers) == (0, 2)


def test_a_user_has_so_many_connections_and_root_any() -> None:
    server = Server(Handler(), max_connections=1)
    assert server._admit(Peer(uid=1000, gid=1000))
    server._of_uid[1000] = server._of_uid[0] = 1
    assert not server._admit(Peer(uid=1000, gid=1000))
    assert server._admit(Peer(uid=1001, gid=1000))
    assert server._admit(Peer(uid=0, gid=0))


async def test_a_refused_client_is_told_why_and_the_log_is_not_filled(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that has sent more than the daemon will read."""
    monkeypatch.setattr(server_module, "peer_of", lambda sock: Peer(uid=1000, gid=1000))
    house.server._max_connections = 2
    for _ in range(2):
        assert "result" in await (await house.wire()).ask("daemon.ping")
    for _ in range(20):
        wire = await house.wire()
        with contextlib.suppress(trio.BrokenResourceError):
            await wire.send(*[request("daemon.ping")] * 100)
        refusal = await wire.receive()
        assert (refusal["id"], refusal["error"]["data"]) == (
            None,
            {"code": "quota_exceeded", "quota": "connections", "used": 2, "limit": 2},
        )
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await wire.receive()
    assert [record.getMessage() for record in caplog.records if "refused" in record.getMessage()] == [
        "refused 1 client of uid:1000: it has 2 connections"
    ]


async def test_refusals_are_counted_for_a_line_a_minute(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = RefusalLog(logging.getLogger("refusals"))
    for user, pause_s in (("a", 0), ("a", 1), ("b", 1), ("a", 60), ("a", 1), ("a", 60), ("a", 0)):
        refusals.count(user, "why")
        await trio.sleep(pause_s)
    assert [record.getMessage() for record in caplog.records] == [
        "refused 1 client of a: why", "refused 1 client of b: why", "refused 3 clients of a: why",
        "refused 2 clients of a: why",
    ]  # fmt: skip


class WithoutDescriptors(socket.socket):
    """A listener of a process that has no descriptor left."""

    def accept(self) -> NoReturn:
        raise OSError(errno.EMFILE, "")


async def test_the_want_of_descriptors_is_logged_once_a_minute(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with WithoutDescriptors(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        client.connect(str(tmp_path / "s"))
        async with trio.open_nursery() as clients:
            with trio.move_on_after(100):
                await accept_clients(listener, clients, trio.aclose_forcefully)  # type: ignore[arg-type]
    assert len([record for record in caplog.records if "cannot accept a client" in record.getMessage()]) == 2


async def test_serve_takes_a_trio_listener_too(tmp_path: Path, nursery: trio.Nursery) -> None:
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await sock.bind(str(tmp_path / "s"))
    sock.listen(1)
    await nursery.start(serve, trio.SocketListener(sock), Handler())
    wire = Wire(await trio.open_unix_socket(str(tmp_path / "s")))
    assert "result" in await wire.ask("daemon.ping")
    await wire.stream.aclose()


# -- peers ------------------------------------------------------------------------------------------------------------


async def test_the_peer_is_known_to_the_handler(house: House) -> None:
    await (await house.wire()).ask("daemon.ping")
    peer = house.handler.calls[0].peer
    assert (peer.uid, peer.gid, peer.pid) == (os.getuid(), os.getgid(), os.getpid())
    assert set(peer.groups) == set(os.getgroups())
    assert peer.owner == f"uid:{os.getuid()}"


@pytest.mark.needs("root")
@pytest.mark.parametrize("count", [0, 3, 1000])
def test_a_peer_is_who_it_was_when_it_connected(tmp_path: Path, count: int) -> None:
    groups = tuple(range(5000, 5000 + count))
    with listening(str(tmp_path / "s"), mode=0o666) as listener:
        listener.settimeout(patient(30))
        os.chmod(tmp_path, 0o755)
        child = os.fork()
        if child == 0:
            connect_as(65534, 65533, groups, str(tmp_path), "s")
        with listener.accept()[0] as connection:
            peer = peer_of(connection)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert peer == Peer(uid=65534, gid=65533, groups=groups, pid=child)


def connect_as(uid: int, gid: int, groups: tuple[int, ...], directory: str, name: str) -> NoReturn:
    """In a child: become that user, connect, and end when the other side has closed."""
    try:
        os.chdir(directory)  # the way to it is closed to others
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(name)
            sock.recv(1)
        os._exit(0)
    finally:
        os._exit(1)


# -- listening --------------------------------------------------------------------------------------------------------


def test_the_socket_has_its_mode_and_its_directory_is_made(tmp_path: Path) -> None:
    path = tmp_path / "made" / "s.sock"
    umask = os.umask(0o077)
    try:
        with listening(str(path), mode=0o666):
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    finally:
        os.umask(umask)
    assert not path.exists()


@pytest.mark.needs("root")
def test_the_socket_belongs_to_the_group_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(str(path), group="nogroup"):
        assert path.stat().st_gid == 65534
    cannot_listen("not_configured", "SANDKEEP_SOCKET_GROUP", str(path), group="no-such-group")


def test_a_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    with listening(path) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        listener.accept()[0].close()


def test_a_daemon_that_listens_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with listening(path):
        cannot_listen("conflict", f"a daemon is already listening on {path}", path)
        assert os.path.exists(path)


HELD_BY_A_CHILD = """
import os, socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
if child := os.fork():
    print(child, flush=True)
    os._exit(0)
os.close(1)
time.sleep(600)  # the test ends it
"""


def test_a_socket_that_only_a_child_of_a_killed_daemon_holds_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    done = subprocess.run([sys.executable, "-c", HELD_BY_A_CHILD, path], stdout=subprocess.PIPE, check=True)
    try:
        with listening(path) as listener, socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            listener.accept()[0].close()
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    cannot_listen("not_configured", "SANDKEEP_SOCKET", str(path))
    assert path.read_text() == "precious"


def test_a_path_that_cannot_be_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cannot_listen("not_configured", "SANDKEEP_SOCKET", str(tmp_path / "file" / "s"))
    cannot_listen("not_configured", "SANDKEEP_SOCKET", str(tmp_path / ("x" * 120)))


def test_the_socket_of_another_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with contextlib.ExitStack() as ours:
        ours.enter_context(listening(str(path)))
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            ours.close()
            assert path.exists()


def cannot_listen(code: str, words: str, path: str, **options: Any) -> None:
    with pytest.raises(SandkeepError) as caught, listening(path, **options):
        pass
    assert isinstance(caught.value, SetupError | StateError)
    assert caught.value.code == code
    assert words in caught.value.message


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("sandkeepd").setLevel(logging.INFO)
