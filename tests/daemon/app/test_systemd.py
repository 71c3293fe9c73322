"""The daemon as a service: what it tells the manager, the sockets it is given, and a restart that nobody loses by.

The manager here is the test: it holds the notify socket and the listening sockets, as systemd does.
"""

import grp
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.support.service import PATIENCE_S, Notices, Service
from tests.support.users import NOBODY, command_as

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError, SetupError
from sandkeep.events import Meta, SandboxAdopted
from sandkeep_store.eventlog.log import EventLog, NewEvent
from sandkeepd.app import daemon, socket_activation, systemd
from sandkeepd.app.socket_activation import take_passed
from sandkeepd.app.systemd import Manager, take_environment
from sandkeepd.core import access
from sandkeepd.core.peer import Peer


@pytest.fixture
def notices(tmp_path: Path) -> Iterator[Notices]:
    made = Notices(str(tmp_path / "notify"))
    yield made
    made.sock.close()


# -- what the manager is told -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_manager_hears_how_a_daemon_lives(new_service: Callable[[], Service], tmp_path: Path, kind: str) -> None:
    notices = Notices(str(tmp_path / "notify") if kind == "path" else f"@skt-{os.getpid()}")
    service = new_service()
    with notices.sock, open(service.log, "wb") as log:
        heard = {"NOTIFY_SOCKET": notices.address, "WATCHDOG_USEC": "100000"}
        process = service.process = service.spawn(log, heard)
        ready = notices.next("READY=1")
        with connect(service.socket) as client:  # no second attempt: ready is ready
            assert client.daemon.ping().pid == process.pid
        assert f"MAINPID={process.pid}" in ready
        assert "STATUS=0 sandboxes, 0 processes running" in ready
        for _ in range(3):
            notices.next("WATCHDOG=1")

        process.send_signal(1)
        reloading = notices.next("RELOADING=1")
        assert any(line.startswith("MONOTONIC_USEC=") and int(line[15:]) > 0 for line in reloading)
        notices.next("READY=1")

        assert service.stop() == 0
        assert "STATUS=stopping: SIGTERM; sandboxes go on" in notices.next("STOPPING=1")
        assert not any(line.startswith("WATCHDOG") for line in notices.pending())


@pytest.mark.needs("bwrap")
def test_the_status_counts(new_service: Callable[[], Service], tmp_path: Path) -> None:
    service = new_service()
    service.start()
    with service.connect() as client:
        image = client.image.create(str(tmp_path)).image_id
        sandbox = client.sandbox.create(image).sandbox_id
        service.notices.next("STATUS=1 sandbox, 0 processes running")
        client.sandbox.terminate(sandbox)
        service.notices.next("STATUS=0 sandboxes")


def test_a_manager_that_is_gone_harms_nobody(new_service: Callable[[], Service], tmp_path: Path) -> None:
    service = new_service()
    with open(service.log, "wb") as log:
        service.process = service.spawn(log, {"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": "20000"})
    service._wait_until_it_answers(service.process)
    assert service.stop() == 0


def test_a_manager_that_reads_nothing_harms_nobody(notices: Notices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "SEND_DEADLINE_S", 0.000_1)
    manager = Manager(notices.address)
    for number in range(2000):  # more than any queue takes
        manager.tell(f"STATUS={number}")
    monkeypatch.setattr(systemd, "SEND_DEADLINE_S", 1e20)  # which no socket takes
    assert not manager.tell("nothing is waited for a second time")
    assert 0 < len(notices.pending()) < 2000
    assert manager.tell("heard again")
    assert notices.pending() == ["heard again"]


def test_that_it_is_ready_is_told_until_it_is_heard(new_service: Callable[[], Service]) -> None:
    service = new_service()
    filler = Manager(service.notices.address)
    while filler.tell("full"):
        pass
    with open(service.log, "wb") as log:
        service.process = service.spawn(log, {"NOTIFY_SOCKET": service.notices.address})
    service._wait_until_it_answers(service.process)
    assert "READY=1" in service.notices.next("READY=1")


def test_the_variables_are_not_for_children(notices: Notices) -> None:
    environ = {
        "NOTIFY_SOCKET": notices.address, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()),
        "LISTEN_FDS": "1", "LISTEN_PID": "1", "LISTEN_FDNAMES": "rpc", "HOME": "/root",
    }  # fmt: skip
    manager = take_environment(environ)
    assert environ == {"HOME": "/root"}
    assert manager.watchdog_s == 3
    assert manager.passed.rpc is None


@pytest.mark.parametrize(
    ("given", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "500000"}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "9" * 400}, None),
        ({}, None),
    ],
)
def test_whose_watchdog_it_is(given: dict[str, str], watchdog_s: float | None) -> None:
    assert take_environment({"NOTIFY_SOCKET": "/nobody", **given}).watchdog_s == watchdog_s
    assert take_environment(dict(given)).watchdog_s is None


def test_a_long_start_gets_more_time_while_it_gets_on(notices: Notices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "EXTEND_PERIOD_S", 0.001)
    position = iter(range(1_000_000))
    with Manager(notices.address).starting(lambda: next(position)):
        lines = notices.next("EXTEND_TIMEOUT_USEC=30000000")
    assert lines[1].startswith("STATUS=reading the event log, at position ")


def test_a_start_that_hangs_gets_no_more_time(notices: Notices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "EXTEND_PERIOD_S", 0.001)
    looked = threading.Semaphore(0)

    def stuck() -> int:
        looked.release()
        return 7

    with Manager(notices.address).starting(stuck):
        for _ in range(10):
            assert looked.acquire(timeout=PATIENCE_S)
    assert notices.pending() == []


def test_a_reload_looks_groups_up_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKEEP_ADMIN_GROUP", "skt-admins")
    member = Peer(uid=NOBODY, gid=NOBODY, groups=(4711,))
    assert not access.is_admin(member)

    def made_meanwhile(name: str) -> grp.struct_group:
        return grp.struct_group((name, "x", 4711, []))

    monkeypatch.setattr(access.grp, "getgrnam", made_meanwhile)
    assert not access.is_admin(member)  # it was remembered
    access.forget_groups()
    assert access.is_admin(member)
    access.forget_groups()


# -- the watchdog -----------------------------------------------------------------------------------------------------


async def test_pings_stop_while_the_writer_hangs_and_come_again(
    notices: Notices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog.open(str(tmp_path / "events.db"))
    recorder = log._writer._recorder
    insert, hanging, release = recorder.insert, threading.Event(), threading.Event()

    def hang(appends: object, *, time_us: int) -> object:
        hanging.set()
        assert release.wait(PATIENCE_S)
        return insert(appends, time_us=time_us)  # type: ignore[arg-type]

    manager = Manager(notices.address, watchdog_s=0.002)
    async with daemon.running_log(log), trio.open_nursery() as nursery:
        nursery.start_soon(manager.watchdog, log.answers)
        await trio.to_thread.run_sync(notices.next, "WATCHDOG=1")
        monkeypatch.setattr(recorder, "insert", hang)
        event = NewEvent("sbx_1", SandboxAdopted(), "sbx_1")
        nursery.start_soon(log.append, [event], Meta())
        await trio.to_thread.run_sync(hanging.wait, PATIENCE_S)
        notices.pending()
        await trio.testing.wait_all_tasks_blocked(0.05)  # the first ping may have been on its way; what pings waits now
        assert len(notices.pending()) <= 1
        release.set()
        await trio.to_thread.run_sync(notices.next, "WATCHDOG=1")
        nursery.cancel_scope.cancel()
    log.close()


async def test_pings_go_on_while_the_disk_is_full(
    notices: Notices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog.open(str(tmp_path / "events.db"))

    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log._writer._reserve, "hold", full)
    manager = Manager(notices.address, watchdog_s=0.002)
    async with daemon.running_log(log), trio.open_nursery() as nursery:
        nursery.start_soon(manager.watchdog, log.answers)
        with pytest.raises(SandkeepError, match="the disk is full"):
            await log.append([NewEvent("sbx_1", SandboxAdopted(), "sbx_1")], Meta())
        for _ in range(3):
            await trio.to_thread.run_sync(notices.next, "WATCHDOG=1")
        monkeypatch.undo()
        notices.pending()
        for _ in range(3):
            await trio.to_thread.run_sync(notices.next, "WATCHDOG=1")
        assert log.failure is not None  # a ping is no sign that the disk is well again
        nursery.cancel_scope.cancel()
    log.close()


def test_pings_stop_while_the_loop_hangs(notices: Notices) -> None:
    hanging, release = threading.Event(), threading.Event()

    async def alive() -> None:
        await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Manager(notices.address, watchdog_s=0.002).watchdog, alive)
            await trio.to_thread.run_sync(notices.next, "WATCHDOG=1")
            hanging.set()
            assert release.wait(PATIENCE_S)  # holds the loop, which is the point
            await trio.to_thread.run_sync(notices.next, "WATCHDOG=1")
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert hanging.wait(PATIENCE_S)
    notices.pending()
    notices.sock.settimeout(0.1)
    with pytest.raises(TimeoutError):
        notices.sock.recv(4096)
    notices.sock.settimeout(PATIENCE_S)
    release.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


# -- sockets that were opened before ----------------------------------------------------------------------------------


@pytest.fixture
def first() -> int:
    """Return the first of four descriptors that are free in this process: above all that are open."""
    return max(map(int, os.listdir("/proc/self/fd"))) + 16


@pytest.fixture
def given(
    first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., socket_activation.PassedSockets]]:
    """Passes copies of sockets, at descriptors that are free in this process."""
    monkeypatch.setattr(socket_activation, "FIRST", first)  # what is refused is closed by the daemon
    monkeypatch.setenv("SANDKEEP_SOCKET", str(tmp_path / "sandkeep.sock"))
    taken: list[socket.socket] = []

    def take(*files: socket.socket | int, names: str = "") -> socket_activation.PassedSockets:
        count = len(files)
        for place, file in enumerate(files, first):
            os.dup2(file if isinstance(file, int) else file.fileno(), place, inheritable=True)
        found = take_passed({"LISTEN_FDS": str(count), "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": names})
        taken.extend(filter(None, [found.rpc, *found.stream]))
        return found

    yield take
    for sock in taken:
        sock.close()


def unix(path: Path, kind: int = socket.SOCK_STREAM, listen: bool = True) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(str(path))
    if listen:
        sock.listen()
    return sock


def test_sockets_are_known_by_name(
    given: Callable[..., socket_activation.PassedSockets], first: int, tmp_path: Path
) -> None:
    with unix(tmp_path / "a") as a, unix(tmp_path / "b") as b, socket.create_server(("127.0.0.1", 0)) as tcp:
        found = given(a, b, tcp, names="stream:rpc:stream")
        assert found.rpc is not None
        assert len(found.stream) == 2
    assert not os.get_inheritable(first)
    assert not os.get_blocking(first + 1)


def test_sockets_are_known_by_address(given: Callable[..., socket_activation.PassedSockets], tmp_path: Path) -> None:
    with unix(tmp_path / "sandkeep.sock") as rpc, unix(tmp_path / "stream.sock") as stream:
        found = given(stream, rpc, names="sandkeepd.socket:sandkeepd.socket")
        assert found.rpc is not None
        assert len(found.stream) == 1


def test_sockets_for_another_process_are_not_touched() -> None:
    environ = {"LISTEN_FDS": "2", "LISTEN_PID": "1", "LISTEN_FDNAMES": "rpc:stream"}
    assert take_passed(environ) == socket_activation.PassedSockets()
    assert environ == {}


@pytest.mark.parametrize(
    ("make", "names", "why"),
    [
        (lambda path: os.open("/dev/null", os.O_RDONLY), "rpc", "is no socket"),
        (lambda path: unix(path / "x", listen=False), "rpc", "is no listening stream socket"),
        (lambda path: unix(path / "x", socket.SOCK_DGRAM, listen=False), "rpc", "is no listening stream socket"),
        (lambda path: unix(path / "x"), "sandkeepd.socket", "call it rpc or stream by FileDescriptorName="),
        (lambda path: unix(path / "x"), "", "which neither SANDKEEP_SOCKET nor SANDKEEP_STREAM says"),
        (lambda path: socket.create_server(("127.0.0.1", 0)), "rpc", "is served on a Unix socket only"),
        (lambda path: socket.create_server(("0.0.0.0", 0)), "stream", "nor one of the loopback interface"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_told(
    given: Callable[..., socket_activation.PassedSockets],
    first: int,
    tmp_path: Path,
    make: Callable[[Path], socket.socket | int],
    names: str,
    why: str,
) -> None:
    file = make(tmp_path)
    try:
        with pytest.raises(SetupError, match=why) as caught:
            given(file, names=names)
        assert caught.value.code == "not_configured"
        assert f"descriptor {first} " in caught.value.message
    finally:
        os.close(file) if isinstance(file, int) else file.close()


def test_one_api_only(given: Callable[..., socket_activation.PassedSockets], tmp_path: Path) -> None:
    with unix(tmp_path / "a") as a, unix(tmp_path / "b") as b, pytest.raises(SetupError, match="a second socket"):
        given(a, b, names="rpc:rpc")


def test_what_is_passed_twice_is_told(
    given: Callable[..., socket_activation.PassedSockets], first: int, tmp_path: Path
) -> None:
    """Half of the clients would be talked to in the other's language."""
    with unix(tmp_path / "a") as a, pytest.raises(SetupError, match=f"descriptor {first + 1} is the same socket"):
        given(a, a, names="rpc:stream")


@pytest.mark.parametrize("count", ["9" * 30, "9" * 5000, "00099999999999"])
def test_more_sockets_than_there_can_be(count: str) -> None:
    with pytest.raises(SetupError, match="more than a process can have"):
        take_passed({"LISTEN_FDS": count, "LISTEN_PID": str(os.getpid())})
    assert take_passed({"LISTEN_FDS": "\u0661", "LISTEN_PID": str(os.getpid())}) == socket_activation.PassedSockets()


def test_a_daemon_says_what_is_wrong_with_its_sockets(new_service: Callable[[], Service]) -> None:
    service = new_service()
    service.listen("rpc:rpc")
    with open(service.log, "wb") as log:
        assert service.spawn(log, {}).wait(PATIENCE_S) == 1
    assert "sandkeepd: the sockets that were passed cannot be used: descriptor 4 is a second socket" in service.said()


# -- a restart as the unit does it ------------------------------------------------------------------------------------

LINES = 30_000
TALKER = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); done; read word; echo $word; exit 7"


@pytest.mark.needs("bwrap", "root")
def test_a_restart_loses_nothing_and_refuses_nobody(new_service: Callable[[], Service], tmp_path: Path) -> None:
    """SIGTERM to the main process alone; the successor in a mount namespace of its own; the sockets stay."""
    service = new_service()
    service.prefix = ["unshare", "--mount", "--propagation", "slave"]
    service.listen("sandkeepd.socket:sandkeepd.socket", mode=0o640)
    service.start()
    with service.connect() as client:
        assert client.daemon.status().socket == service.socket
        image = client.image.create(str(tmp_path)).image_id
        sandbox = client.sandbox.create(image).sandbox_id
        client.process.launch(sandbox, ["sh", "-c", TALKER], name="talker", stdin=True)
    before = service.process.pid if service.process else 0
    assert service.stop() == 0
    service.notices.next("STOPPING=1")

    answers: list[int] = []
    asking = [threading.Thread(target=lambda: answers.append(ping(service.socket))) for _ in range(5)]
    for thread in asking:
        thread.start()
    assert stat.S_IMODE(os.stat(service.socket).st_mode) == 0o640

    service.start()
    for thread in asking:
        thread.join(PATIENCE_S)
    assert service.process is not None
    assert answers == [service.process.pid] * 5
    assert service.process.pid != before
    with service.connect() as client:
        client.process.write_stdin(sandbox, "talker", b"bye\n")
        ended = client.process.wait(sandbox, "talker")
        assert (ended.status, ended.exit_code) == ("exited", 7)
        assert client.sandbox.get(sandbox).status == "running"
        assert client.sandbox.exec(sandbox, ["cat", "/proc/self/status"]).exit_code == 0
        types = [event.type for event in client.sandbox.history(sandbox).events]
        assert types.count("sandbox.adopted") == 1
    said = service.cli("logs", sandbox, "talker").stdout.decode().splitlines()
    assert said == [*(f"line {number}" for number in range(LINES)), "bye"]
    assert os.path.exists(service.socket)


def ping(path: str) -> int:
    with connect(path) as client:
        return int(client.daemon.ping().pid)


@pytest.mark.needs("root")
def test_a_users_daemon_takes_sockets_too(new_service: Callable[[], Service]) -> None:
    service = new_service()
    service.listen("rpc:stream", mode=0o666)
    os.mkdir(service.state_dir)
    os.chown(service.state_dir, NOBODY, NOBODY)
    *shell, script = command_as(NOBODY, ["env"])
    service.prefix = [*shell, f'{script} "$@"', "sh"]
    service.start()
    with service.connect() as client:
        assert client.daemon.status().uid == NOBODY
    assert service.stop() == 0
    assert stat.S_ISSOCK(os.stat(service.socket).st_mode)
