"""Open descriptors on the wire: sent once, to whom they are for, never kept by anybody else; and the journals that are
handed out so.

Whether somebody still holds a descriptor is seen at the other end of a pipe: it ends when the last copy is closed.
"""

import array
import contextlib
import errno
import fcntl
import json
import os
import resource
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.expect import until, until_async
from tests.support.patience import patient
from tests.support.serving import Serving, serving
from tests.support.users import as_user

import sandkeep
from sandkeep import blocking, model
from sandkeep.clients.descriptors import ANCILLARY_BYTES, Handover
from sandkeep.clients.dial import Daemon
from sandkeep.errors import CallerError, DaemonError, DataError, SandkeepError, SetupError, StateError
from sandkeep.protocol import methods
from sandkeepd.api.writer import Writer
from sandkeepd.core.call import Call
from sandkeepd.serving.holdings import Holdings
from sandkeepd.serving.limits import MAX_DESCRIPTORS, MAX_DESCRIPTORS_OF_USER

PROCESS = model.Process(
    process_id="prc_1", sandbox_id="sbx_1", name="p", named=True, command=["x"], status="exited", requested_at=""
)
OPENED = model.OpenOutput(process=PROCESS, stdout_bytes=3, stderr_bytes=0)
NAMED = {"sandbox_id": "sbx_1", "name": "p"}


class Handler:
    """Gives the writing ends of pipes, whose reading ends the test keeps."""

    def __init__(self) -> None:
        self.immediate: dict[str, Any] = {}
        self.pipes: list[int] = []
        self.count = 2
        self.given = 0
        self.before = trio.Event()
        self.before.set()

    async def __call__(self, call: Call) -> Any:
        if call.method.name == "sandbox.list":
            return {"sandboxes": [], "next": "x" * 2_000_000}
        ends = [os.pipe() for _ in range(self.count)]
        self.pipes += [reading for reading, _ in ends]
        try:
            await self.before.wait()
            await call.give([writing for _, writing in ends])
            self.given += 1
        finally:
            for _, writing in ends:
                os.close(writing)
        return OPENED

    def all_closed(self) -> bool:
        """Whether nobody holds a writing end any more."""
        for reading in self.pipes:
            os.set_blocking(reading, False)
        with contextlib.suppress(BlockingIOError):
            return [os.read(reading, 1) for reading in self.pipes] == [b""] * len(self.pipes)
        return False


class House(Serving[Handler]):
    """A server on a socket, with the handler above."""

    async def dial(self) -> trio.socket.SocketType:
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await sock.connect(self.path)
        return sock


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with serving(House(str(tmp_path / "s.sock"), Handler())) as built:
        yield built
    for reading in built.handler.pipes:
        os.close(reading)


def line(request_id: int | None = 1, method: str = "process.open_output", **params: Any) -> bytes:
    identity = {} if request_id is None else {"id": request_id}
    return json.dumps({"jsonrpc": "2.0", **identity, "method": method, "params": params or NAMED}).encode() + b"\n"


async def receive(sock: trio.socket.SocketType, until: Callable[[bytes], bool]) -> tuple[bytes, list[tuple[int, int]]]:
    """All bytes until enough, and each descriptor with the place in them before which it came."""
    data, found = b"", []
    while not until(data):
        piece, ancillary, flags, _ = await sock.recvmsg(65536, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        assert piece
        assert not flags & socket.MSG_CTRUNC
        for _, _, packed in ancillary:
            numbers = array.array("i")
            numbers.frombytes(packed)
            found += [(number, len(data)) for number in numbers]
        data += piece
    return data, found


def lines(count: int) -> Callable[[bytes], bool]:
    return lambda data: data.count(b"\n") >= count


def numbers_open() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- from the server --------------------------------------------------------------------------------------------------


async def test_descriptors_come_ahead_of_the_answer_with_their_line(house: House) -> None:
    sock = await house.dial()
    await sock.send(line(7))
    data, found = await receive(sock, lines(2))
    told, answer = map(json.loads, data.splitlines())
    assert told == {"jsonrpc": "2.0", "method": "descriptors", "params": {"request": 7, "count": 2}}
    assert answer["id"] == 7
    assert answer["result"]["stdout_bytes"] == 3
    assert len(found) == 2
    assert not house.handler.all_closed()
    for number, _ in found:
        assert fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        os.close(number)
    assert house.handler.all_closed()
    sock.close()


async def test_a_slow_client_gets_them_once_and_in_their_place(house: House) -> None:
    sock = await house.dial()
    await sock.send(line(1, "sandbox.list", all=True) + line(2))
    await until_async(lambda: bool(house.handler.pipes))
    assert house.handler.given == 0  # the first answer does not fit, and the second call's must stand behind it
    data, found = await receive(sock, lines(3))
    assert [json.loads(part).get("method") for part in data.splitlines()] == [None, "descriptors", None]
    assert len(found) == 2
    start = data.index(b'{"jsonrpc":"2.0","method":"descriptors"')
    assert all(place <= start for _, place in found)
    for number, _ in found:
        os.close(number)
    assert house.handler.all_closed()
    sock.close()


async def test_what_is_sent_in_pieces_carries_them_once() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    reader = trio.socket.from_stdlib_socket(theirs)
    with ours, theirs:
        before = 0
        with contextlib.suppress(BlockingIOError):  # so full that not even the first byte can be sent at once
            while True:
                before += ours.send(b"x" * 65536)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Writer(ours, 30, Holdings().share(0, ours.close)).send, b"y" * 1_000_000, [0])
            _, found = await receive(reader, lambda data: data.count(b"y") == 1_000_000)
        for number, _ in found:
            os.close(number)
        assert len(found) == 1
        assert found[0][1] <= before


async def test_a_client_that_reads_plainly_loses_them_and_nobody_keeps_them(house: House) -> None:
    sock = await house.dial()
    await sock.send(line())
    data = b""
    while data.count(b"\n") < 2:
        data += await sock.recv(65536)
    assert house.handler.all_closed()
    sock.close()


async def test_a_client_that_is_gone_leaves_nothing_behind(house: House) -> None:
    house.handler.before = trio.Event()
    sock = await house.dial()
    await sock.send(line())
    await until_async(lambda: len(house.handler.pipes) == 2)
    sock.close()
    house.handler.before.set()
    await until_async(lambda: house.server.statistics().connections == 0)
    assert house.handler.all_closed()


async def test_no_descriptors_in_a_batch_nor_for_a_notification(house: House) -> None:
    sock = await house.dial()
    await sock.send(line(None) + b"[" + line(3).strip() + b"]\n")
    data, found = await receive(sock, lines(1))
    (answer,) = json.loads(data)
    assert answer["id"] == 3
    assert answer["error"]["data"]["code"] == "invalid"
    assert found == []
    assert house.handler.pipes == []
    sock.close()


async def test_a_client_that_never_reads_makes_nobody_hold_many(house: House) -> None:
    sock = await house.dial()
    for number in range(MAX_DESCRIPTORS // 2 + 3):
        await sock.send(line(number))
    await until_async(lambda: house.server.statistics().answers == MAX_DESCRIPTORS // 2 + 3)
    assert house.handler.given == MAX_DESCRIPTORS // 2
    data, found = await receive(sock, lines(MAX_DESCRIPTORS + 3))
    refused = [answer["error"] for answer in map(json.loads, data.splitlines()) if "error" in answer]
    assert [error["data"]["code"] for error in refused] == ["not_ready"] * 3
    for number, _ in found:
        os.close(number)
    await sock.send(line(99))  # it has read them: more may come
    data, found = await receive(sock, lines(2))
    assert len(found) == 2
    for number, _ in found:
        os.close(number)
    sock.close()


async def test_nor_does_a_user_with_many_connections(house: House) -> None:
    async with contextlib.AsyncExitStack() as stack:
        each, enough = MAX_DESCRIPTORS // 2, MAX_DESCRIPTORS_OF_USER // MAX_DESCRIPTORS
        for _ in range(enough + 1):
            sock = await house.dial()
            stack.callback(sock.close)
            await sock.send(b"".join(line(number) for number in range(each)))
        await until_async(lambda: house.server.statistics().answers == each * (enough + 1))
        assert house.handler.given == each * enough
    await until_async(lambda: house.server.statistics().connections == 0)
    assert house.handler.all_closed()


async def test_calls_that_have_not_given_yet_count_too(house: House) -> None:
    house.handler.before = trio.Event()
    sock = await house.dial()
    await sock.send(b"".join(line(number) for number in range(MAX_DESCRIPTORS)))
    await until_async(lambda: house.server.statistics().answers == MAX_DESCRIPTORS // 2)  # all of them refusals
    assert len(house.handler.pipes) == MAX_DESCRIPTORS
    sock.close()


async def test_a_handler_that_gives_another_number_is_a_defect(house: House) -> None:
    house.handler.count = 3
    sock = await house.dial()
    await sock.send(line())
    data, found = await receive(sock, lines(1))
    assert json.loads(data)["error"]["data"]["code"] == "internal"
    assert found == []
    assert house.handler.all_closed()
    sock.close()


# -- to the clients ---------------------------------------------------------------------------------------------------


async def test_the_trio_client_receives_and_then_gets_its_answer(house: House) -> None:
    async with sandkeep.connect(house.path) as client:
        async with client.with_descriptors("process.open_output", "sbx_1", "p") as handed:
            given = await handed.receive()
            assert await handed.answer() == OPENED
        assert len(given) == 2
        assert not any(os.get_inheritable(number) for number in given)
        assert not house.handler.all_closed()
        for number in given:
            os.close(number)
        async with client.with_descriptors("process.open_output", "sbx_1", "p") as handed:
            await handed.answer()  # and what it did not receive is closed
        assert house.handler.all_closed()


async def test_so_does_the_blocking_client(house: House) -> None:
    def work() -> None:
        with blocking.connect(house.path) as client:
            with client.with_descriptors("process.open_output", "sbx_1", name="p") as handed:
                given = handed.receive()
                assert handed.answer() == OPENED
            assert len(given) == 2
            assert not any(os.get_inheritable(number) for number in given)
            for number in given:
                os.close(number)
            with client.with_descriptors("process.open_output", "sbx_1", "p") as handed:
                assert handed.answer() == OPENED

    await trio.to_thread.run_sync(work)
    assert house.handler.all_closed()


async def test_a_call_that_would_lose_them_is_refused(house: House) -> None:
    async with sandkeep.connect(house.path) as client:
        with pytest.raises(CallerError, match="with_descriptors"):
            await client.call("process.open_output", NAMED)
        with pytest.raises(TypeError, match="hands over no descriptors"):
            async with client.with_descriptors("process.get", "sbx_1", "p"):
                pass
    with blocking.connect(house.path) as connection:
        with pytest.raises(CallerError, match="with_descriptors"):
            connection.process.open_output("sbx_1", "p")  # type: ignore[attr-defined]
        with pytest.raises(CallerError, match="with_descriptors"):
            connection.call("process.open_output", NAMED)
    assert house.handler.pipes == []


# -- from a server that lies ------------------------------------------------------------------------------------------

TOLD = b'{"jsonrpc":"2.0","method":"descriptors","params":{"request":1,"count":%d}}\n'
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
REFUSED = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no","data":{"code":"not_found"}}}\n'
PROGRESS = b'{"jsonrpc":"2.0","method":"progress","params":{"request":1,"message":"m"}}\n'

Told = list[tuple[bytes, int]]


@contextlib.contextmanager
def lying(path: str, told: Told) -> Iterator[None]:
    """A server that answers whatever it is asked with these lines, and that many descriptors with each."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            served = listener.accept()[0]  # the client's own connection, which says nothing
            with listener.accept()[0] as sock, served:
                sock.recv(65536)
                for data, count in told:
                    socket.send_fds(sock, [data], [0] * count)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def receive_and_close(handed: Any) -> None:
    for number in handed.receive():
        os.close(number)
    handed.answer()


LIES: dict[str, Told] = {
    "more than it says": [(TOLD % 2, 3)],
    "fewer than it says": [(TOLD % 2, 1)],
    "another number than the method gives": [(TOLD % 3, 3)],
    "none, but an answer": [(ANSWER, 0)],
    "some with the answer": [(TOLD % 2, 2), (ANSWER, 1)],
    "some with no word": [(PROGRESS, 2), (ANSWER, 0)],
    "twice": [(TOLD % 2, 2), (TOLD % 2, 2)],
    "garbage": [(b"garbage\n", 2)],
    "half a line": [(TOLD[:20], 2)],
    "as many as there can be": [(TOLD % 253, 253)],
    "a refusal with descriptors": [(REFUSED, 2)],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_an_error_and_leaves_nothing_open(lie: str, tmp_path: Path) -> None:
    before = numbers_open()
    path = str(tmp_path / "s.sock")
    with lying(path, LIES[lie]), blocking.connect(path, patience_s=0) as client:
        handed = client.with_descriptors("process.open_output", "sbx_1", "p")
        with handed, pytest.raises(SandkeepError) as no:
            receive_and_close(handed)
        assert no.value.code in ("internal", "not_ready")
    assert numbers_open() == before


async def test_the_trio_client_leaves_nothing_open_either(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    before = numbers_open()
    with lying(path, LIES["more than it says"]):
        async with (
            sandkeep.connect(path, patience_s=0) as client,
            client.with_descriptors("process.open_output", "sbx_1", "p") as handed,
        ):
            with pytest.raises(DaemonError):
                await handed.receive()
    assert numbers_open() == before


def test_a_refusal_is_the_calls_error(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    with (
        lying(path, [(REFUSED, 0)]),
        blocking.connect(path, patience_s=0) as client,
        client.with_descriptors("process.open_output", "sbx_1", "p") as handed,
        pytest.raises(CallerError),
    ):
        handed.receive()


def test_without_room_for_more_descriptors_it_says_so() -> None:
    ours, theirs = socket.socketpair()
    handover = Handover(Daemon("/s", "test"), "process.open_output", ("sbx_1", "p"), {})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ours, theirs:
        socket.send_fds(theirs, [TOLD % 2], [0, 0])
        before = numbers_open()
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
        try:
            spare = [os.dup(0) for _ in range(_gaps())]  # one place is left
            os.close(spare.pop())
            data, ancillary, flags, _ = ours.recvmsg(65536, ANCILLARY_BYTES)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in spare:
            os.close(number)
        with pytest.raises(SetupError, match="limit of open files"):
            handover.feed(data, ancillary, flags)
        assert numbers_open() == before


def _gaps() -> int:
    """How many descriptors can still be opened."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    return sum(1 for number in range(limit) if number not in used) + 1  # listing took one for itself


# -- process.open_output ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(daemon: Any, sandbox_id: str, name: str) -> Iterator[tuple[list[int], model.OpenOutput]]:
    """Both journals of a process, and what was answered with them."""
    with daemon.connect() as client, client.with_descriptors("process.open_output", sandbox_id, name) as handed:
        given = handed.receive()
        try:
            yield given, handed.answer()
        finally:
            for number in given:
                os.close(number)


@pytest.mark.needs("bwrap")
def test_journals_are_for_reading_and_go_on_growing(shared_daemon: Any, box: str) -> None:
    with shared_daemon.connect() as client:
        client.process.launch(box, ["sh", "-c", "echo one; echo err >&2; read x; echo two"], name="p", stdin=True)
        until(lambda: client.process.read(box, "p", wait_s=10).stderr)
        with opened(shared_daemon, box, "p") as ((out, err), told):
            assert (told.process.status, told.stdout_bytes, told.stderr_bytes) == ("running", 4, 4)
            assert (os.pread(out, 100, 0), os.pread(err, 100, 0)) == (b"one\n", b"err\n")
            client.process.write_stdin(box, "p", data=b"\n", eof=True)
            client.process.wait(box, "p", timeout_s=patient(30))
            assert os.pread(out, 100, 4) == b"two\n"
            assert fcntl.fcntl(out, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            with pytest.raises(OSError):
                os.write(out, b"x")


@pytest.mark.needs("bwrap")
def test_those_of_a_sandbox_that_has_ended_too(shared_daemon: Any, image: str) -> None:
    with shared_daemon.connect() as client:
        box = client.sandbox.create(image).sandbox_id
        client.process.launch(box, ["echo", "kept"], name="p")
        client.process.wait(box, "p")
        client.sandbox.terminate(box)
        with opened(shared_daemon, box, "p") as ((out, _), told):
            assert os.pread(out, 100, 0) == b"kept\n"
            assert (told.process.status, told.process.stdout_bytes) == ("exited", 5)


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("instead", ["ln -s /etc/passwd {}", "mkfifo {}", "mkdir {}", "ln -s /proc/self/mem {}"])
def test_what_was_put_in_a_journals_place_is_not_handed_out(shared_daemon: Any, box: str, instead: str) -> None:
    with shared_daemon.connect() as client:
        done = client.sandbox.exec(box, ["sh", "-c", "echo here"])
        place = _journal_inside(client, box, done.process_id)
        made = client.sandbox.exec(box, ["sh", "-c", f"rm {place} && {instead.format(place)}"])
        assert made.exit_code == 0, made.stderr
        handed = client.with_descriptors("process.open_output", box, done.process_id)
        with handed, pytest.raises(StateError, match="replaced the journal of stdout") as no:
            handed.receive()
        assert no.value.code == "conflict"
        client.sandbox.exec(box, ["sh", "-c", f"rm -r {place}"])
        handed = client.with_descriptors("process.open_output", box, done.process_id)
        with handed, pytest.raises(DataError, match="is not kept any more") as gone:  # without one it is not just empty
            handed.receive()
        assert gone.value.code == "compacted"


def _journal_inside(client: Any, box: str, process_id: str) -> str:
    """Where the code inside finds the journal of a process."""
    found = client.sandbox.exec(box, ["sh", "-c", "readlink /proc/self/fd/1"]).stdout.decode().strip()
    return f"{os.path.dirname(found)}/{process_id}.stdout"


@pytest.mark.needs("bwrap", "root")
def test_a_caller_who_opens_one_anew_may_still_only_read(shared_daemon: Any, box: str) -> None:
    with shared_daemon.connect() as client:
        done = client.sandbox.exec(box, ["echo", "mine"])

    with opened(shared_daemon, box, done.process_id) as ((out, _), _told):
        assert os.fstat(out).st_uid not in (0, os.geteuid())

        def try_to_write() -> list[str]:
            said = []
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
                try:
                    os.close(os.open(f"/proc/self/fd/{out}", flags))
                    said.append("opened")
                except OSError as error:
                    said.append(errno.errorcode[error.errno or 0])
            return said

        assert set(as_user(4321, try_to_write)) <= {"EACCES", "EROFS"}
        assert os.pread(out, 100, 0) == b"mine\n"


def test_every_row_that_hands_over_is_for_the_owner_alone() -> None:
    for row in methods.METHODS.values():
        if row.descriptors and row.name != "snapshot.import":  # what it hands over is the caller's own
            assert row.access is methods.Access.OWNER, row.name
            assert set(row.references) & {"sandbox_id", "snapshot_id", "artifact_id"}, row.name
