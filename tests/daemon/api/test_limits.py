"""What clients may make the daemon hold, and that those who go over it hurt nobody else. Most against a real daemon."""

import json
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.conftest import RunningDaemon, daemon_in
from tests.daemon.api.test_server import PROCESS, SANDBOX, House, house, request
from tests.daemon.stream.test_slow_readers import served
from tests.support.patience import patient
from tests.support.streams import message, websocket
from tests.support.users import NOBODY, as_user
from trio.testing import MockClock, wait_all_tasks_blocked

from sandkeep.errors import SetupError
from sandkeep.settings.daemon import CLIENT_MEMORY
from sandkeepd.api.server import MAX_CONNECTIONS
from sandkeepd.serving.holdings import CALL_BYTES, Holdings
from sandkeepd.serving.limits import MAX_CALLS

__all__ = ["house"]

MIB = 1024 * 1024
LIMIT_MIB = 32
SOMEBODY = NOBODY - 1
"""For tests that count connections: those of another's may just be ending."""

SLACK_MIB = 48
"""What 512 connections cost by themselves, the largest single answer while it is made, and what an allocator keeps."""


# -- accounts ---------------------------------------------------------------------------------------------------------


class Clients:
    """Shares of one user, and those that had to go, in their order."""

    def __init__(self, *names: str, limit: int = 100) -> None:
        self.gone: list[str] = []
        self.holdings = Holdings(limit)
        self.shares = {name: self.holdings.share(1000, lambda name=name: self.gone.append(name)) for name in names}  # type: ignore[misc]

    def __getitem__(self, name: str) -> Any:
        return self.shares[name]


def test_of_the_large_ones_the_one_that_stood_still_longest_goes() -> None:
    clients = Clients("small", "stalled", "moving", "new")
    for name, size in (("small", 1), ("stalled", 40), ("moving", 45)):
        clients[name].add(size)
    clients["stalled"].subtract(1)
    clients["moving"].touch()
    clients["new"].add(40)
    assert clients.gone == ["stalled"]
    assert clients.holdings.of(1000) == 1 + 45 + 40


def test_one_that_is_too_large_alone_goes_itself() -> None:
    clients = Clients("large", "small")
    clients["small"].add(5)
    clients["large"].add(101)
    assert clients.gone == ["large"]
    assert clients.holdings.of(1000) == 5


def test_who_has_gone_counts_for_nothing_but_what_it_keeps() -> None:
    clients = Clients("gone", "other")
    assert clients["gone"].reserve(30)
    clients["gone"].add(80)
    assert clients.gone == ["gone"]
    clients["gone"].add(1000)
    clients["gone"].subtract(80)
    assert not clients["gone"].reserve(1)
    assert clients.holdings.of(1000) == 30
    assert not clients["other"].reserve(71)
    assert clients["other"].reserve(70)
    clients["gone"].release(30)
    clients["other"].release(70)
    assert clients.holdings.of(1000) == 0


def test_users_have_accounts_of_their_own() -> None:
    holdings, gone = Holdings(100), []
    shares = [holdings.share(uid, lambda uid=uid: gone.append(uid)) for uid in (1, 2)]  # type: ignore[misc]
    for share in shares:
        share.add(90)
    assert gone == []
    assert (holdings.of(1), holdings.of(2), holdings.of(3)) == (90, 90, 0)


def test_the_setting_holds_two_of_the_longest_messages() -> None:
    assert CLIENT_MEMORY({"SANDKEEP_CLIENT_MEMORY": "64M"}) == 64 * MIB
    with pytest.raises(SetupError, match="at least 32M"):
        CLIENT_MEMORY({"SANDKEEP_CLIENT_MEMORY": "31M"})


# -- the server in this process: time is the test's own ---------------------------------------------------------------


async def test_a_line_that_was_begun_has_to_be_ended(house: House, autojump_clock: MockClock) -> None:
    slow, idle = await house.wire(), await house.wire()
    begun = trio.current_time()
    with pytest.raises((trio.BrokenResourceError, EOFError)):  # noqa: PT012
        while True:
            await slow.stream.send_all(b'{"jsonrpc":' if trio.current_time() == begun else b" ")
            with trio.move_on_after(7):
                await slow.receive()
    assert trio.current_time() - begun == pytest.approx(30)
    assert "result" in await idle.ask("daemon.ping")  # who begins nothing may wait for ever
    assert house.server.statistics().connections == 1


async def test_each_line_has_its_own_time(house: House, autojump_clock: MockClock) -> None:
    wire = await house.wire()
    ping = json.dumps(request("daemon.ping")).encode()
    await wire.stream.send_all(ping[:5])
    for _ in range(5):
        await trio.sleep(20)
        await wire.stream.send_all(ping[5:] + b"\n" + ping[:5])
        assert "result" in await wire.receive()


async def test_what_is_read_after_a_wait_for_room_is_not_late(house: House, autojump_clock: MockClock) -> None:
    """It is the server that does not read: the time does not run."""
    wire = await house.wire()
    waits = [request("process.wait", PROCESS, number) for number in range(65)]
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in [*waits, request("daemon.ping", None, "last")])
    await wire.stream.send_all(lines[:-10])
    await trio.sleep(100)
    house.handler.release.set()
    await wire.stream.send_all(lines[-10:])
    answers = [await wire.receive() for _ in range(65 * 2 + 1)]
    assert {answer["id"] for answer in answers if "id" in answer} == {*range(65), "last"}


async def test_the_reads_of_a_batch_end_with_its_client(house: House) -> None:
    """Those, too, that it has not begun yet: they would wait for as long as the process runs."""
    wire = await house.wire()
    await wire.send([request("process.wait", PROCESS, number) for number in range(50)])
    await wait_all_tasks_blocked()
    await wire.stream.aclose()
    await wait_all_tasks_blocked()
    assert len(house.handler.cancelled) == len(house.handler.begun)
    assert house.server.statistics().connections == 0


async def test_changes_under_way_are_counted_after_their_client_has_gone(house: House) -> None:
    """Or one could pile up any number by coming and going."""
    house.server._holdings = Holdings(30 * MIB + 3 * CALL_BYTES + CALL_BYTES // 2)
    padding = b" " * (10 * MIB)
    for _ in range(3):
        wire = await house.wire()
        await wire.stream.send_all(padding + json.dumps(request("sandbox.terminate", SANDBOX)).encode() + b"\n")
        await wire.receive()
        await wire.stream.aclose()
    await wait_all_tasks_blocked()
    assert 30 * MIB < house.server._holdings.of(os.getuid()) < 31 * MIB
    wire = await house.wire()
    assert (await wire.ask("sandbox.terminate", SANDBOX))["error"]["data"]["code"] == "not_ready"
    await wire.send([request("sandbox.terminate", SANDBOX)])
    assert (await wire.receive())["error"]["code"] == -32000
    assert "result" in await wire.ask("daemon.ping")
    house.handler.release.set()
    await wait_all_tasks_blocked()
    assert house.server._holdings.of(os.getuid()) == 0
    assert len(house.handler.done) == 3


async def test_a_message_that_was_begun_has_to_be_ended(tmp_path: Path, autojump_clock: MockClock) -> None:
    from tests.daemon.stream.test_door import frame, opening

    async with served(tmp_path) as made:
        sock = trio.socket.from_stdlib_socket(nonblocking(made.plain()))
        await sock.send(opening("/v1/events"))
        while not (await sock.recv(65536)).endswith(b'{"kind":"caught_up"}'):
            pass
        await trio.sleep(1000)
        begun = trio.current_time()
        await sock.send(frame(2, b"x", final=False))
        while True:
            with trio.move_on_after(7) as scope:
                assert await sock.recv(65536) == b""
            if not scope.cancelled_caught:
                break
            await sock.send(frame(0, b"x", final=False))
        assert trio.current_time() - begun == 30
        sock.close()
        async with websocket(made.plain(), "/v1/events") as other:
            assert await message(other) == {"kind": "caught_up"}


def nonblocking(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock


# -- a real daemon, attacked by one user ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon(places: str) -> Iterator[RunningDaemon]:
    with daemon_in(places, SANDKEEP_CLIENT_MEMORY=f"{LIMIT_MIB}M") as made:
        made.start()
        yield made


def dialled(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)  # without a time limit, which would make it fail when the queue is full
    sock.settimeout(patient(60))
    return sock


class Neighbour:
    """A client that behaves: it asks on one connection, which it never loses, again and again."""

    def __init__(self, path: str) -> None:
        self._sock = dialled(path)
        self._file = self._sock.makefile("rwb")
        self.answers = 0

    def ask(self) -> None:
        self._file.write(json.dumps(request("daemon.status", None, self.answers)).encode() + b"\n")
        self._file.flush()
        answer = json.loads(self._file.readline())
        assert answer["id"] == self.answers
        assert "result" in answer
        self.answers += 1

    def close(self) -> None:
        self._file.close()
        self._sock.close()


@contextmanager
def neighbour_of_another_user(path: str) -> Iterator[None]:
    """One that asks all the time; it fails here when it was not served."""
    neighbour, failures, done = Neighbour(path), [], threading.Event()

    def keep_asking() -> None:
        try:
            while not done.is_set():
                neighbour.ask()
        except BaseException as failure:  # it is raised in the test
            failures.append(failure)

    thread = threading.Thread(target=keep_asking)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(patient(60))
        neighbour.close()
    assert failures == []
    assert neighbour.answers > 0


def pushed(sock: socket.socket, data: bytes) -> None:
    """Send as long as the daemon takes anything, or has not dropped us."""
    rest = memoryview(data)
    sock.settimeout(patient(30))
    try:
        while rest:
            rest = rest[sock.send(rest) :]
    except (TimeoutError, BrokenPipeError, ConnectionResetError):
        pass


def is_cut(sock: socket.socket) -> bool:
    """Whether the daemon let go of a connection from which nothing is read."""
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))


def half_lines(path: str, number: int) -> socket.socket:
    sock = dialled(path)
    pushed(sock, b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping","params":"' + b"x" * (2 * MIB))
    return sock


def unread_answers(path: str, number: int) -> socket.socket:
    """A line of 60 KB that asks for 15 MiB."""
    sock = dialled(path)
    pushed(sock, json.dumps([request("rpc.discover", None, one) for one in range(1000)]).encode() + b"\n")
    return sock


def padded_calls(path: str, number: int) -> socket.socket:
    """Calls that wait, and weigh much."""
    sock = dialled(path)
    wait = json.dumps(request("event.list", {"wait_s": 60, "after": None})).encode()
    for _ in range(4):
        pushed(sock, b" " * (MIB // 2) + wait + b"\n")
    return sock


def half_messages(path: str, number: int) -> socket.socket:
    """Websockets on which a message begins."""
    from tests.daemon.stream.test_door import frame, opening

    sock = dialled(os.path.dirname(path) + "/stream.sock")
    pushed(sock, opening("/v1/events?after=now"))
    sock.recv(65536)
    pushed(sock, frame(2, b"x" * (MIB - MIB // 8), final=False))
    return sock


def attack(path: str, one: Callable[[str, int], socket.socket], count: int) -> tuple[int, int]:
    """Do it on so many connections, beside a neighbour of the same user. Answers how many were dropped."""
    neighbour = Neighbour(path)
    held = []
    for number in range(count):
        held.append(one(path, number))
        neighbour.ask()
    for _ in range(20):
        neighbour.ask()
    return sum(map(is_cut, held)), neighbour.answers


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("one", "count", "least_cut"),
    [(half_lines, 60, 40), (unread_answers, 12, 8), (padded_calls, 60, 40), (half_messages, 100, 50)],
)
def test_what_a_user_makes_the_daemon_hold_is_bounded(
    daemon: RunningDaemon, one: Callable[[str, int], socket.socket], count: int, least_cut: int
) -> None:
    before = peak_kib(daemon)
    with neighbour_of_another_user(daemon.socket):
        cut, answers = as_user(NOBODY, lambda: attack(daemon.socket, one, count))
    assert least_cut <= cut < count, "those that go are the attacker's, and only as many as are too much"
    assert answers == count + 20
    assert (peak_kib(daemon) - before) / 1024 < LIMIT_MIB + SLACK_MIB
    assert "its user's clients hold too much" in daemon.said()


def peak_kib(daemon: RunningDaemon) -> int:
    """The most memory that the daemon ever had; asked for before, it is what it has now."""
    assert daemon.process is not None
    with open(f"/proc/{daemon.process.pid}/status") as status:
        peak = next(line for line in status if line.startswith("VmHWM"))
    with open(f"/proc/{daemon.process.pid}/clear_refs", "w") as reset:
        reset.write("5")
    return int(peak.split()[1])


def connections_beyond(path: str) -> tuple[int, int, bool]:
    """Connect more often than one may. Answers how many were let in, how many got a reason, and whether an early one is
    still served.
    """
    neighbour = Neighbour(path)
    held = [dialled(path) for _ in range(MAX_CONNECTIONS + 50)]
    neighbour.ask()
    answers = []
    for sock in held:
        with suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(json.dumps(request("daemon.ping")).encode() + b"\n")
        answers.append(json.loads(sock.recv(65536)))
    neighbour.ask()
    refusals = [answer["error"]["data"]["quota"] for answer in answers if "error" in answer]
    return sum("result" in answer for answer in answers), refusals.count("connections"), neighbour.answers == 2


@pytest.mark.needs("root")
def test_a_user_has_only_so_many_connections(daemon: RunningDaemon) -> None:
    with neighbour_of_another_user(daemon.socket):
        assert as_user(SOMEBODY, lambda: connections_beyond(daemon.socket)) == (MAX_CONNECTIONS - 1, 51, True)


def websockets_beyond(path: str) -> tuple[int, int]:
    from tests.daemon.stream.test_door import opening

    held, answers = [], []
    for _ in range(MAX_CONNECTIONS + 20):
        held.append(dialled(path))
        held[-1].sendall(opening("/v1/events?after=now"))
        answers.append(held[-1].recv(65536).split()[1])
    return answers.count(b"101"), answers.count(b"429")


@pytest.mark.needs("root")
def test_a_user_has_only_so_many_websockets(daemon: RunningDaemon) -> None:
    with neighbour_of_another_user(daemon.socket):
        opened = as_user(SOMEBODY, lambda: websockets_beyond(f"{daemon.root}/stream.sock"))
    assert opened == (MAX_CONNECTIONS, 20)


def pipelined(path: str) -> tuple[list[Any], int]:
    """Send a hundred calls that wait and a ping behind them. Answers which came, and how many before the ping."""
    sock = dialled(path)
    waits = [request("event.list", {"wait_s": 0.2}, number) for number in range(100)]
    sock.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in [*waits, request("daemon.ping", None, 100)]))
    neighbour = Neighbour(path)
    neighbour.ask()
    with sock.makefile("rb") as file:
        answers = [json.loads(file.readline())["id"] for _ in range(101)]
    return sorted(answers), answers.index(100)


@pytest.mark.needs("root")
def test_calls_beyond_those_that_may_be_under_way_wait_and_are_answered(daemon: RunningDaemon) -> None:
    with neighbour_of_another_user(daemon.socket):
        answered, position = as_user(NOBODY, lambda: pipelined(daemon.socket))
    assert answered == list(range(101))
    assert position >= 100 - MAX_CALLS


def too_long(path: str) -> tuple[Any, bytes]:
    sock = dialled(path)
    neighbour = Neighbour(path)
    pushed(sock, b"x" * (16 * MIB + 1))
    neighbour.ask()
    with sock.makefile("rb") as file:
        sock.settimeout(patient(30))
        return json.loads(file.readline())["error"]["code"], file.readline()


@pytest.mark.needs("root")
def test_a_line_that_is_too_long_is_refused_and_ends_its_connection(daemon: RunningDaemon) -> None:
    with neighbour_of_another_user(daemon.socket):
        assert as_user(NOBODY, lambda: too_long(daemon.socket)) == (-32600, b"")


def test_a_client_is_told_what_it_may(daemon: RunningDaemon) -> None:
    with daemon.connect() as client:
        limits = client.rpc.hello(client="me").limits
    assert (limits.held_bytes, limits.message_bytes, limits.calls) == (LIMIT_MIB * MIB, 16 * MIB, 64)
    assert (limits.connections, limits.websockets, limits.stalled_s) == (None, None, 30.0)
