"""Clients whose daemon is killed or stopped, and started again, in the middle of what they do: a pause, and no more."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from tests.conftest import RunningDaemon, daemon_in
from tests.support.boxes import new_box
from tests.support.clients import KINDS, Kind, caught, daemon_of, pause
from tests.support.expect import until
from tests.support.patience import patient

import sandkeep
from sandkeep import blocking, transfer
from sandkeep.errors import DataError, StateError
from sandkeep.model import ExecResult
from sandkeepd.api.listener import listening

pytestmark = pytest.mark.needs("bwrap")
MANY = 270
"""More than a client has connections."""

SLOW = "while [ ! -e go ]; do sleep 0.01; done"


@pytest.fixture(scope="module")
def daemon(places: str) -> Iterator[RunningDaemon]:
    """A daemon for all tests here. Each leaves one running."""
    with daemon_in(places) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def image(daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    with daemon.connect() as client:
        return str(client.image.create(str(tmp_path_factory.mktemp("image"))).image_id)


@pytest.fixture
def box(daemon: Any, image: str) -> Iterator[str]:
    with new_box(daemon, image) as made:
        yield made.id


@pytest.fixture
def restart(daemon: Any) -> Callable[..., None]:
    """Kills the daemon, or stops it, and starts another."""

    def again(how: str = "kill") -> None:
        getattr(daemon, how)()
        daemon.start()

    return again


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each of the clients in turn."""
    found: Kind = request.param
    return found


@contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Do something meanwhile; what came of it is in the list when the block has ended."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(work())
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield came
    thread.join(patient(60))
    assert not thread.is_alive()


def until_connected(daemon: Any, count: int) -> None:
    with daemon.connect() as client:
        until(lambda: client.daemon.status().connections > count)


def until_it_talks(running: "subprocess.Popen[bytes]") -> None:
    """Return when a command has connected to the daemon."""
    while True:
        with open("/proc/net/unix") as table:  # Num RefCount Protocol Flags Type State Inode Path
            connected = {fields[6] for fields in map(str.split, table) if fields[5] == "03"}
        for number in os.listdir(f"/proc/{running.pid}/fd"):
            with suppress(FileNotFoundError):
                if os.readlink(f"/proc/{running.pid}/fd/{number}")[8:-1] in connected:
                    return


def let_go(daemon: Any, box: str) -> None:
    with daemon.connect() as client:
        client.sandbox.exec(box, "touch go")


# -- one call in the middle -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_calls_that_wait_get_their_answers(how: str, daemon: Any, box: str, restart: Callable[..., None]) -> None:
    """An exec and a wait, blocking; and the exec is carried out once."""
    with daemon.connect() as first:
        first.process.launch(box, f"{SLOW}; exit 9", name="p")

        def execute(client: Any) -> ExecResult:
            result = client.sandbox.exec(box, f"echo x >>count; {SLOW}; echo out; cat count; echo err >&2; exit 4")
            assert isinstance(result, ExecResult)
            return result

        with (
            daemon.connect() as one,
            daemon.connect() as two,
            in_thread(lambda: execute(one)) as executed,
            in_thread(lambda: two.process.wait(box, "p")) as waited,
        ):
            until(lambda: first.process.list(sandbox_id=box).processes[1:])
            restart(how)
            let_go(daemon, box)
        (result,), (process,) = executed, waited
        assert (result.stdout, result.stderr, result.exit_code) == (b"out\nx\n", b"err\n", 4)
        assert process.exit_code == 9
        assert first.process.get(box, "p").exit_code == 9  # a client that did nothing meanwhile


def test_calls_side_by_side_are_each_carried_out_once(
    daemon: Any, box: str, restart: Callable[..., None], kind: Kind
) -> None:
    """With hundreds of threads, or tasks: those that run, those that are being asked for, and those that come later."""

    async def body(client: Any) -> list[bytes]:
        async def execute(number: int) -> bytes:
            result = await client.sandbox.exec(box, f"echo {number} >>count; {SLOW}; echo {number}", inline_bytes=100)
            return bytes(result.stdout)

        return await kind.together(*(partial(execute, number) for number in range(MANY)))

    with daemon.connect() as other:
        with in_thread(lambda: kind.run(daemon.socket, body, client="many")) as came:
            until(lambda: len(other.process.list(sandbox_id=box).processes) >= 20)
            restart()
            let_go(daemon, box)
        assert came == [[b"%d\n" % number for number in range(MANY)]]
        count = other.sandbox.read_file(box, path="count").data.split()
        assert sorted(count) == sorted(b"%d" % number for number in range(MANY))


def test_followers_go_on_where_they_were(daemon: Any, box: str, restart: Callable[..., None], kind: Kind) -> None:
    """Events and output: nothing is missing and nothing comes twice."""
    script = f"seq 0 499; {SLOW}; seq 500 999"

    async def body(client: Any) -> list[Any]:
        async def follow() -> list[str]:
            seen = []
            async for event in client.follow_events(sandbox_id=box):
                seen.append(event.type)
                if event.data.get("exit_code") == 5:
                    break
            return seen

        async def read() -> bytes:
            said = b""
            async for piece in client.read_output(box, "p"):
                said += piece.stdout
                if said:
                    begun.set()
            return said

        await client.process.launch(box, f"{script}; exit 5", name="p")
        return await kind.together(follow, read)

    begun = threading.Event()
    with in_thread(lambda: kind.run(daemon.socket, body)) as came:
        assert begun.wait(patient(60))
        restart()
        let_go(daemon, box)
    [(seen, said)] = came
    assert said == b"".join(b"%d\n" % number for number in range(1000))
    with daemon.connect() as other:
        types = [event.type for event in other.follow_events(sandbox_id=box, follow=False)]
    assert seen == types[: len(seen)]  # what let it go may be told of after its end
    assert "sandbox.adopted" in seen


@pytest.mark.parametrize("way", ["in", "out"])
def test_copies_are_begun_anew(way: str, daemon: Any, box: str, restart: Callable[..., None], tmp_path: Path) -> None:
    data = os.urandom(8_000_000)
    here, there = tmp_path / "here", tmp_path / "there"
    here.write_bytes(data)
    restarted = threading.Event()

    def moved(count: int) -> None:
        if not restarted.is_set():
            restarted.set()
            restart()

    with daemon.connect() as client:
        if way == "in":
            transfer.copy_in(client, here, box, "there", progress=moved)
            assert client.sandbox.exec(box, "sha256sum there").stdout[:64] == _digest(data)
        else:
            client.sandbox.exec(box, ["sh", "-c", "cat >there"], stdin=data)
            transfer.copy_out(client, box, "there", there, progress=moved)
            assert there.read_bytes() == data
            assert sorted(os.listdir(tmp_path)) == ["here", "there"]
    assert restarted.is_set()


def _digest(data: bytes) -> bytes:
    from hashlib import sha256

    return sha256(data).hexdigest().encode()


def test_a_stream_that_was_begun_is_an_error(daemon: Any, box: str) -> None:
    """What was read from a pipe cannot be read again."""
    source, sink = os.pipe()
    with daemon.connect() as client:
        with in_thread(lambda: transfer.receive_archive(client, source, box, ".")) as came:
            os.write(sink, bytes(512))
            until_connected(daemon, 1)
            until(lambda: client.sandbox.exec(box, "ls -A").stdout)
            daemon.kill()
            daemon.start()
            os.close(sink)
        os.close(source)
        assert isinstance(came[0], StateError), came
        assert "start it again" in came[0].message


def test_descriptors_outlive_the_daemon(daemon: Any, box: str, restart: Callable[..., None], kind: Kind) -> None:
    """Handed over once; what is still to be told is asked anew, on another connection."""

    async def body(client: Any) -> None:
        await client.process.launch(box, f"echo one; {SLOW}; echo two", name="p")
        async with client.with_descriptors("process.open_output", box, "p") as handed:
            out, err = await handed.receive()
            restart()
            let_go(daemon, box)
            await client.process.wait(box, "p")
            assert os.pread(out, 100, 0) == b"one\ntwo\n"
            os.close(out)
            os.close(err)
        async with client.with_descriptors("process.open_output", box, "p") as handed:
            restart()  # before anything was received
            for descriptor in await handed.receive():
                os.close(descriptor)
            assert (await handed.answer()).process.exit_code == 0

    kind.run(daemon.socket, body)


def test_what_is_told_late_is_asked_anew(tmp_path: Path, kind: Kind) -> None:
    """The daemon dies between the descriptors and the answer: the next one's are closed, as they are known already."""
    path = str(tmp_path / "s")
    given = b'{"jsonrpc":"2.0","method":"descriptors","params":{"request":1,"count":2}}\n'
    process = {"process_id": "p", "sandbox_id": "b", "name": "p", "named": True, "command": [], "requested_at": ""}
    result = {"process": {**process, "status": "running"}, "stdout_bytes": 1, "stderr_bytes": 2}
    answer = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "result": result}) + b"\n"

    file = (tmp_path / "file").open("w")

    def serve(listener: socket.socket) -> None:
        for last in (b"", answer):
            server = listener.accept()[0]
            with server:
                socket.send_fds(server, [given], [file.fileno()] * 2)
                server.sendall(last)
                while last and server.recv(65536):
                    pass

    async def body(client: Any) -> Any:
        async with client.with_descriptors("process.open_output", "b", "p") as handed:
            for descriptor in await handed.receive():
                os.close(descriptor)
            answered = await handed.answer()
            numbers = os.listdir("/proc/self/fd")
            opened = [number for number in numbers if os.path.realpath(f"/proc/self/fd/{number}") == file.name]
            assert len(opened) == 1
            return answered

    with file, listening(path) as listener:
        listener.setblocking(True)
        with in_thread(lambda: (listener.accept()[0].close(), serve(listener))):
            assert kind.run(path, body).stderr_bytes == 2


# -- the command ------------------------------------------------------------------------------------------------------


@contextmanager
def command(daemon: Any, *words: str, **options: Any) -> "Iterator[subprocess.Popen[bytes]]":
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen([*daemon.command, *words], env=daemon.env, **options) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_commands_see_a_pause(how: str, daemon: Any, box: str, restart: Callable[..., None]) -> None:
    """Input that is passed on, output that is followed, a wait: all across a restart.

    They say nothing of it, but that they wait for a daemon that is slow to come.
    """
    words = ["sh", "-c", "echo up; cat; exit 6"]
    with (
        command(daemon, "run", box, "p", "--interactive", "--", *words, stdin=subprocess.PIPE) as run,
        command(daemon, "exec", box, "--", "sh", "-c", f"echo x >>count; echo up; {SLOW}; cat count") as exec_,
    ):
        for running in (run, exec_):
            assert running.stdout is not None
            assert running.stdout.readline() == b"up\n"
        with (
            command(daemon, "logs", box, "p", "--follow") as logs,
            command(daemon, "wait", box, "p") as wait,
            command(daemon, "attach", box, "p", "--from-start") as attach,
        ):
            for running in (logs, attach):
                assert running.stdout is not None
                assert running.stdout.readline() == b"up\n"
            until_it_talks(wait)
            assert run.stdin is not None
            run.stdin.write(b"before\n")
            run.stdin.flush()
            restart(how)
            let_go(daemon, box)
            run.stdin.write(b"after\n")
            run.stdin.close()
            run.stdin = None
            expected = {run: (6, b"before\nafter\n"), exec_: (0, b"x\n"), logs: (0, b"before\nafter\n")}
            expected |= {wait: (6, b""), attach: (6, b"before\nafter\n")}
            for running, (code, said) in expected.items():
                out, err = running.communicate(timeout=patient(60))
                assert (running.returncode, out) == (code, said), running.args
                assert all(b"waiting for it" in line for line in err.splitlines()), err


def test_an_interrupt_ends_the_pause(daemon: Any, box: str) -> None:
    with daemon.connect() as client:
        client.process.launch(box, ["sleep", "1000"], name="p")
    with (
        command(daemon, "wait", box, "p") as wait,
        command(daemon, "exec", box, "--", "sh", "-c", "echo up; sleep 1000") as exec_,
    ):
        assert exec_.stdout is not None
        assert exec_.stdout.readline() == b"up\n"
        until_it_talks(wait)
        daemon.kill()
        for running in (wait, exec_):
            assert running.stderr is not None
            assert b"does not answer: waiting for it" in running.stderr.readline()
            running.send_signal(signal.SIGINT)
            assert running.wait(patient(60)) == 130
    daemon.start()


# -- when it cannot go on ---------------------------------------------------------------------------------------------


def test_patience_has_an_end(tmp_path: Path, kind: Kind) -> None:
    """And with none there is no waiting. The error says by which id the command can be repeated."""
    path = str(tmp_path / "s")

    async def body(client: Any) -> None:
        listener.accept()[0].close()
        listener.close()
        for _ in range(2):  # it stays lost
            no = await caught(client.sandbox.terminate("box", command_id="mine"))
            assert no.code == "not_ready"
            assert no.data["socket"] == path

    for patience_s in (0, 0.2):
        with listening(path) as listener:
            listener.settimeout(patient(60))
            kind.run(path, body, patience_s=patience_s)


def test_a_daemon_that_says_nothing_is_not_waited_for_longer(tmp_path: Path, kind: Kind) -> None:
    path = str(tmp_path / "s")

    async def body(client: Any) -> None:
        async def ask() -> bool:
            return isinstance(await caught(client.daemon.ping()), StateError)

        listener.accept()[0].close()
        assert await ask()
        assert await kind.together(ask, ask, ask) == [True] * 3

    with listening(path) as listener:
        listener.settimeout(patient(60))
        kind.run(path, body, patience_s=0.2)


def test_another_log_is_recognised(new_daemon: Callable[[], Any], tmp_path: Path, kind: Kind) -> None:
    """Nothing is asked of a daemon that knows nothing of what was before."""
    daemon = new_daemon()
    daemon.start()
    (tmp_path / "image").mkdir()

    async def body(client: Any) -> None:
        await client.daemon.ping()
        daemon.stop()
        os.rename(daemon.state_dir, f"{daemon.state_dir}.old")
        daemon.start()
        for _ in range(2):
            no = await caught(client.image.create(str(tmp_path / "image")))
            assert no.code == "wrong_log"
            with pytest.raises(DataError):
                async with client.with_descriptors("process.open_output", "b", "p") as handed:
                    await handed.receive()

    kind.run(daemon.socket, body)
    with daemon.connect() as fresh:
        assert fresh.image.list(all=True).images == []


def test_what_cannot_be_given_again_is_not(tmp_path: Path) -> None:
    """A method that the client does not know may change anything; and a daemon that was told to stop has stopped."""
    path = str(tmp_path / "s")
    with listening(path) as listener, blocking.connect(path) as client:
        listener.settimeout(patient(60))
        for method in ("new.method", "daemon.shutdown"):
            with in_thread(lambda name=method: client.call(name)) as came:  # type: ignore[misc]
                server = listener.accept()[0]
                _greet(server)
                server.close()
            assert isinstance(came[0], StateError), method


def _greet(server: socket.socket) -> None:
    """Hear a client out, and answer its greeting."""
    server.settimeout(patient(60))
    said = b""
    while said.count(b"\n") < 1:
        said += server.recv(65536)
    greeting = msgspec.json.decode(said.splitlines()[0])
    assert (greeting["method"], greeting["id"]) == ("rpc.hello", 0)
    server.sendall(b'{"jsonrpc":"2.0","id":0,"result":{"version":"1","log_id":"log_1"}}\n')
    while said.count(b"\n") < 2:
        said += server.recv(65536)


async def test_what_is_left_of_a_wait_is_less_each_time(daemon: Any, box: str) -> None:
    with daemon.connect() as client:
        client.process.launch(box, ["sleep", "1000"], name="p")
        began = time.monotonic()
        with in_thread(lambda: client.process.wait(box, "p", timeout_s=3)) as came:
            until_connected(daemon, 1)
            daemon.kill()
            # The time of the wait passes, and nobody is there to tell so.
            time.sleep(max(0.0, began + 3 - time.monotonic()))
            daemon.start()
        assert came[0].code == "timeout"
        assert "after 3 s" not in came[0].message


def test_closing_ends_the_pause(daemon: Any, kind: Kind) -> None:
    async def body(client: Any) -> None:
        await client.daemon.ping()

        async def ask() -> str:
            return (await caught(client.daemon.ping())).code

        async def close() -> None:
            while not daemon_of(client).is_away:
                await pause(kind)
            client.close()

        daemon.kill()
        assert await kind.together(ask, ask, close) == ["not_ready", "not_ready", None]

    kind.run(daemon.socket, body)
    daemon.start()


# -- at any moment ----------------------------------------------------------------------------------------------------


def test_killed_again_and_again_under_load(daemon: Any, box: str) -> None:
    """Clients execute, launch and write, the daemon is killed at odd moments: each is done once, and answered."""
    over = threading.Event()
    done: list[str] = []
    unsure: list[str] = []

    def work(number: int) -> int:
        count = 0
        with daemon.connect() as client:
            while not over.is_set():
                word = f"b{number}-{count}"
                result = client.sandbox.exec(box, f"echo {word} >>count; echo {word}; exit {count % 7}")
                assert (result.stdout, result.exit_code) == (f"{word}\n".encode(), count % 7)
                done.append(word)
                count += 1
        return count

    async def work_on_trio() -> int:
        total = 0

        async def task(number: int, client: Any) -> None:
            nonlocal total
            count = 0
            while not over.is_set():
                word = f"t{number}-{count}"
                process = await client.process.launch(box, "read -r l; echo $l >>count", name=word, stdin=True)
                count += 1
                try:
                    written = await client.process.write_stdin(box, word, data=f"{word}\n".encode(), eof=True)
                except StateError as error:  # the daemon ended in the very moment of writing
                    if "it is unknown how many it took" not in error.message:
                        raise
                    unsure.append(word)
                    continue
                assert written.written_bytes == len(word) + 1
                assert (await client.process.wait(box, process.process_id)).exit_code == 0
                done.append(word)
            total += count

        async with sandkeep.connect(daemon.socket) as client, trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(task, number, client)
        return total

    with (
        in_thread(lambda: work(0)) as first,
        in_thread(lambda: work(1)) as second,
        in_thread(lambda: trio.run(work_on_trio)) as third,
    ):
        for number in range(6):
            enough = len(done) + 3 + number
            until(lambda enough=enough: len(done) >= enough)
            daemon.kill()
            daemon.start()
        over.set()
    assert all(isinstance(count, int) and count for count in (*first, *second, *third)), (first, second, third)
    with daemon.connect() as client:
        found = client.sandbox.read_file(box, path="count").data.decode().split()
        assert sorted(word for word in found if word not in unsure) == sorted(done)
        assert len(found) == len(set(found))
        assert client.store.verify().problems == []
