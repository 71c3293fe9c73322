"""What a daemon finds when it starts again: all that runs, whoever does not answer, and what is not what it was."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from tests.conftest import RunningDaemon
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.streams import house_in
from tests.support.two_providers import SILENT

import sandkeep
from sandkeep import events
from sandkeep.events import Meta
from sandkeep.ids import new_id
from sandkeep.protocol import frames
from sandkeep_store.eventlog.log import EventLog, NewEvent
from sandkeepd.host.processes import boot_id, pids_where, start_time

pytestmark = pytest.mark.needs("bwrap")


def types(client: Any, sandbox_id: str) -> list[str]:
    return [event.type for event in client.sandbox.history(sandbox_id).events]


def recorded(state_dir: str) -> list[Any]:
    """Everything in the log of a daemon that does not run."""
    log = EventLog.open(f"{state_dir}/events.db")
    found: list[Any] = []
    try:
        log.scan(found.append)
    finally:
        log.close()
    return found


def first_pid(state_dir: str, sandbox_id: str) -> int:
    """The host's pid of a sandbox's first process."""
    handle = next(f.event.handle for f in recorded(state_dir) if (f.stream, f.type) == (sandbox_id, "sandbox.created"))
    return int(handle["first"]["pid"])


def forge(state_dir: str, *new: NewEvent) -> None:
    """Append to the log of a daemon that does not run."""

    async def append() -> None:
        log = EventLog.open(f"{state_dir}/events.db")
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            await log.append(new, Meta(owner=f"uid:{os.geteuid()}"))
            nursery.cancel_scope.cancel()
        log.close()

    trio.run(append)


# -- who does not answer ----------------------------------------------------------------------------------------------


@pytest.fixture
def two(new_daemon: Callable[[], RunningDaemon]) -> Iterator[RunningDaemon]:
    """A daemon that runs, with a sandbox of each provider."""
    daemon = new_daemon()
    daemon.program = [sys.executable, "-m", "tests.support.two_providers"]
    daemon.start()
    yield daemon
    Path(daemon.state_dir, SILENT).unlink(missing_ok=True)


def test_a_provider_that_says_nothing_delays_nobody(two: RunningDaemon, tmp_path: Path) -> None:
    """Not reads, not the others' sandboxes, old or new; its own say that they are not adopted, until it answers."""
    silent, ended = Path(two.state_dir, SILENT), list[str]()
    source = tmp_path / "source"
    source.mkdir()
    with two.connect() as client:
        images = {name: client.image.create(str(source), provider=name).image_id for name in ("local", "fake")}
        boxes = {name: client.sandbox.create(image).sandbox_id for name, image in images.items()}
        doomed = client.sandbox.create(images["fake"]).sandbox_id
        client.process.launch(boxes["fake"], ["cat"], name="cat", stdin=True)
    half = new_id("sbx")
    two.kill()
    asked = next(f.event for f in recorded(two.state_dir) if f.stream == doomed)
    forge(two.state_dir, NewEvent(half, asked, half))
    silent.touch()
    two.start()
    with two.connect() as client:
        until(lambda: client.sandbox.get(boxes["local"]).note is None)
        assert client.sandbox.exec(boxes["local"], ["echo", "hi"]).stdout == b"hi\n"
        new = client.sandbox.create(images["local"]).sandbox_id
        assert client.sandbox.exec(new, ["true"]).exit_code == 0
        shown = {box.sandbox_id: box for box in client.sandbox.list().sandboxes}
        assert (shown[boxes["fake"]].status, shown[boxes["local"]].note) == ("running", None)
        assert "not adopted yet" in (shown[boxes["fake"]].note or "")
        until(lambda: "did not answer" in (client.sandbox.get(boxes["fake"]).note or ""))
        assert client.daemon.status().not_adopted == 2
        assert client.process.get(boxes["fake"], "cat").status == "running"
        assert types(client, boxes["fake"])[-1] == "process.started"
        told = refused("provider_unavailable", client.sandbox.exec, boxes["fake"], ["true"])
        assert "not adopted yet" in told.message
        ls = two.cli("ls")
        assert b"not adopted" in ls.stdout
        ending = threading.Thread(target=lambda: ended.append(terminated(two, doomed)))
        ending.start()
        until(lambda: client.sandbox.get(doomed).status == "stopping")
        assert client.sandbox.get(half).status == "creating"
        assert types(client, boxes["local"]).count("sandbox.adopted") == 1
        silent.unlink()
        until(lambda: client.sandbox.get(boxes["fake"]).note is None)
        client.process.write_stdin(boxes["fake"], "cat", b"still here\n", eof=True)
        assert client.process.wait(boxes["fake"], "cat").exit_code == 0
        assert client.process.read(boxes["fake"], "cat").stdout == b"still here\n"
        ending.join(patient(60))
        assert ended == ["stopped"]
        until(lambda: client.sandbox.get(half).status == "failed")
        until(lambda: client.daemon.status().not_adopted == 0)
        assert "sandbox.lost" not in [e.type for e in client.event.list().events]


def terminated(daemon: RunningDaemon, sandbox_id: str) -> str:
    with daemon.connect() as client:
        return str(client.sandbox.terminate(sandbox_id).status)


@pytest.fixture
def image(running_daemon: RunningDaemon, tmp_path: Path) -> str:
    (tmp_path / "image").mkdir()
    with running_daemon.connect() as client:
        return str(client.image.create(str(tmp_path / "image")).image_id)


@pytest.mark.needs("tmux")
def test_a_sandbox_that_is_stopped_delays_nobody(running_daemon: RunningDaemon, image: str) -> None:
    """Its first process, or the tmux of a terminal in it: what runs is adopted, goes on later, and can be ended."""
    daemon = running_daemon
    with daemon.connect() as client:
        stopped, hung, well = (client.sandbox.create(image).sandbox_id for _ in range(3))
        for box in (stopped, well):
            client.process.launch(box, ["cat"], name="cat", stdin=True)
        client.process.launch(hung, ["cat"], name="shell", tty=True)
    daemon.kill()
    keeper = first_pid(daemon.state_dir, stopped)
    servers = [pid for pid in inside(first_pid(daemon.state_dir, hung)) if b"tmux" in command_of(pid)]
    assert servers
    for pid in (keeper, *servers):
        os.kill(pid, signal.SIGSTOP)
    daemon.start()
    with daemon.connect() as client:
        assert client.sandbox.exec(well, ["echo", "hi"]).stdout == b"hi\n"
        until(lambda: all(client.sandbox.get(box).note is None for box in (stopped, hung, well)))
        assert client.process.get(stopped, "cat").status == "running"
        assert client.process.get(hung, "shell").status == "running"
        os.kill(keeper, signal.SIGCONT)
        client.process.write_stdin(stopped, "cat", b"later\n", eof=True)
        assert client.process.wait(stopped, "cat", timeout_s=patient(60)).exit_code == 0
        os.kill(keeper, signal.SIGSTOP)
        for box in (stopped, hung):
            assert client.sandbox.terminate(box).status == "stopped"


def inside(first: int) -> list[int]:
    """The processes in the pid namespace of a sandbox."""
    namespace = os.readlink(f"/proc/{first}/ns/pid")
    return pids_where(lambda pid: os.readlink(f"/proc/{pid}/ns/pid") == namespace)


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


# -- what is not what it was ------------------------------------------------------------------------------------------


@contextmanager
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with any sandbox. It ends here, however the test does."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("forged", ["another start", "another boot"])
def test_a_pid_that_is_anothers_now_is_not_taken(running_daemon: RunningDaemon, image: str, forged: str) -> None:
    """Neither adopted nor, when the lost sandbox is terminated, killed. A sandbox that really runs is what it was."""
    daemon = running_daemon
    with daemon.connect() as client:
        box = client.sandbox.create(image).sandbox_id
    daemon.kill()
    facts = {fact.type: fact.event for fact in recorded(daemon.state_dir) if fact.stream == box}
    asked, made = facts["sandbox.create_requested"], facts["sandbox.created"]
    with bystander() as victim:
        started = start_time(victim.pid)
        assert started is not None
        first = {
            "another start": {"pid": victim.pid, "started": started - 1, "boot_id": boot_id()},
            "another boot": {"pid": victim.pid, "started": started, "boot_id": "00000000-of-before"},
        }[forged]
        handle = {**made.handle, "first": first}
        plan = {**asked.plan, "uid": asked.plan["uid"] and asked.plan["uid"] + 1, "cgroups": {}}
        work = NewEvent("prc_old", events.ProcessLaunchRequested(sandbox_id="old", name="work", command=["x"]), "old")
        forge(
            daemon.state_dir,
            NewEvent("old", msgspec.structs.replace(asked, plan=plan), "old"),
            NewEvent("old", msgspec.structs.replace(made, handle=handle), "old"),
            work,
            NewEvent("prc_old", events.ProcessStarted(pid=7), "old"),
        )
        daemon.start()
        with daemon.connect() as client:
            lost = until(lambda: (view := client.sandbox.get("old")).status == "lost" and view)
            assert (lost.last_status, lost.note) == ("running", None)
            process = client.process.get("old", "work")
            assert (process.status, process.pid, process.exit_code) == ("lost", 7, None)
            assert client.sandbox.terminate("old").status == "stopped"
            assert client.sandbox.exec(box, ["true"]).exit_code == 0
        assert victim.poll() is None


def test_what_ended_before_its_sandbox_was_lost_is_known(running_daemon: RunningDaemon, image: str) -> None:
    daemon = running_daemon
    with daemon.connect() as client:
        box = client.sandbox.create(image).sandbox_id
        client.process.launch(box, "while [ ! -e go ]; do sleep 0.01; done; echo done; exit 5", name="ends")
        client.process.launch(box, ["sleep", "1000"], name="runs")
        client.process.launch(box, "while [ ! -e go ]; do sleep 0.01; done", name="both")
        until(lambda: len(client.process.list(box).processes) == 3)
        pids = [process.process_id for process in client.process.list(box).processes]
    daemon.kill()
    exits = Path(daemon.state_dir, "sandboxes", box, "out", "exits")
    first = first_pid(daemon.state_dir, box)
    Path(f"/proc/{first}/root/workspace/go").touch()
    until(lambda: f"{pids[0]} 5\n" in exits.read_text() and f"{pids[2]} 0\n" in exits.read_text())
    os.kill(first, signal.SIGKILL)
    daemon.start()
    with daemon.connect() as client:
        until(lambda: client.sandbox.get(box).status == "lost")
        ended = client.process.get(box, "ends")
        assert (ended.status, ended.exit_code, ended.stdout_bytes) == ("exited", 5, 5)
        assert client.process.get(box, "both").exit_code == 0
        assert client.process.get(box, "runs").status == "lost"
        assert client.process.read(box, "ends").stdout == b"done\n"


@pytest.mark.needs("tmux")
def test_what_is_done_to_what_was_adopted(running_daemon: RunningDaemon, image: str) -> None:
    """Signals, input, a terminal's size and what is typed into it; also to what an earlier daemon had adopted."""
    daemon = running_daemon
    shell = 'while read -r word; do stty size; echo "<$word>"; [ "$word" = end ] && exit 6; done'
    with daemon.connect() as client:
        box = client.sandbox.create(image).sandbox_id
        client.process.launch(box, shell, name="shell", tty=True)
        client.process.launch(box, ["cat"], name="cat", stdin=True)
        client.process.launch(box, "trap 'echo heard' USR1; echo hears; while :; do sleep 0.01; done", name="hears")
        until(lambda: client.process.read(box, "hears").stdout)

    def has_size(client: Any, size: bytes) -> bool:
        """Have the shell say its size, which tmux changes a quarter of a second late if it has just done so."""
        client.process.write_stdin(box, "shell", b"size\n")
        return size in client.process.read(box, "shell").stdout

    for turn in range(3):
        daemon.kill()
        daemon.start()
        with daemon.connect() as client:
            client.process.resize(box, "shell", rows=30 + turn, cols=100)
            client.process.write_stdin(box, "shell", b"turn\n")
            client.process.write_stdin(box, "cat", b"%d\n" % turn)
            client.process.signal(box, "hears", "USR1")
            until(lambda t=turn: client.process.read(box, "hears").stdout == b"hears\n" + b"heard\n" * (t + 1))
            until(lambda t=turn: client.process.read(box, "shell").stdout.count(b"<turn>") == t + 1)
            until(lambda t=turn: has_size(client, b"%d 100" % (30 + t)))
    with daemon.connect() as client:
        client.process.write_stdin(box, "shell", b"end\n")
        assert client.process.wait(box, "shell", timeout_s=patient(60)).exit_code == 6
        client.process.signal(box, "hears", "TERM")
        assert client.process.wait(box, "hears", timeout_s=patient(60)).exit_code == 143
        client.process.write_stdin(box, "cat", b"", eof=True)
        assert client.process.wait(box, "cat", timeout_s=patient(60)).exit_code == 0
        assert client.process.read(box, "cat").stdout == b"0\n1\n2\n"


def test_time_that_ran_out_while_nobody_looked(running_daemon: RunningDaemon, image: str) -> None:
    """What still runs is killed at once; what had ended by itself before is no matter of time."""
    daemon = running_daemon
    limit_s = 5.0
    with daemon.connect() as client:
        box = client.sandbox.create(image).sandbox_id
        client.process.launch(box, "while [ ! -e go ]; do sleep 0.01; done; exit 3", name="quick", timeout_s=limit_s)
        client.process.launch(box, ["sleep", "1000"], name="slow", timeout_s=limit_s)
        (quick, slow) = client.process.list(box).processes
        daemon.kill()
    root = f"/proc/{first_pid(daemon.state_dir, box)}/root/workspace"
    Path(root, "go").touch()
    over = time.monotonic() + limit_s
    exits = Path(daemon.state_dir, "sandboxes", box, "out", "exits")
    until(lambda: f"{quick.process_id} 3\n" in exits.read_text() and time.monotonic() > over)
    assert f"{slow.process_id} 1" not in exits.read_text()
    daemon.start()
    with daemon.connect() as client:
        killed = client.process.wait(box, "slow", timeout_s=patient(60))
        assert (killed.exit_code, killed.timed_out) == (124, True)
        ended = client.process.wait(box, "quick", timeout_s=patient(60))
        assert (ended.exit_code, ended.timed_out) == (3, False)


# -- nothing lost, nothing twice --------------------------------------------------------------------------------------

RUSH = "i=0; while [ ! -e stop ]; do {}; i=$((i+1)); [ $((i % 500)) = 0 ] && sleep 0.02; done; exit {}"
FAST, TYPED = RUSH.format("echo out $i; echo err $i >&2", 9), RUSH.format("echo tty $i", 8)
DEATHS = 4


def is_whole(written: bytes, word: bytes, end: bytes = b"\n") -> bool:
    """Whether it is numbered lines from the first, and many."""
    count = written.count(b"\n")
    return count > 100 and written == b"".join(b"%s %d%s" % (word, number, end) for number in range(count))


@pytest.mark.needs("tmux")
async def test_what_is_written_at_speed_across_many_deaths(places: str) -> None:
    """Who follows by socket and by websocket gets every byte once; so do the journals; and who waits gets the end."""
    with house_in(places) as house:
        box, daemon = house.sandbox_id, house.daemon
        got: dict[str, Any] = {}
        begun = {f"{way} {name}": trio.Event() for way in ("socket", "websocket") for name in ("fast", "typed")}

        async def by_socket(name: str) -> None:
            async with sandkeep.connect(daemon.socket) as client:
                out, err = bytearray(), bytearray()
                async for piece in client.read_output(box, name):
                    begun[f"socket {name}"].set()
                    out += piece.stdout
                    err += piece.stderr
                got[f"socket {name}"] = bytes(out), bytes(err)

        async def by_websocket(name: str) -> None:
            pieces: dict[Any, bytearray] = {frames.STDOUT: bytearray(), frames.STDERR: bytearray()}
            async with house.streams().logs(box, name) as log:
                async for stream, _, data in log:
                    begun[f"websocket {name}"].set()
                    pieces[stream] += data
            assert log.exit is not None
            got[f"websocket {name}"] = bytes(pieces[frames.STDOUT]), bytes(pieces[frames.STDERR])

        async def waiting(name: str) -> None:
            async with sandkeep.connect(daemon.socket) as client:
                got[f"exit {name}"] = (await client.process.wait(box, name)).exit_code

        async with trio.open_nursery() as nursery:
            house.launch(FAST, "fast")
            house.launch(TYPED, "typed", tty=True)
            for name in ("fast", "typed"):
                for follow in (by_socket, by_websocket, waiting):
                    nursery.start_soon(follow, name)
            for event in begun.values():
                await event.wait()
            for _ in range(DEATHS):
                await trio.to_thread.run_sync(die_and_rise, daemon)
            with daemon.connect() as client:
                assert {p.status for p in client.process.list(box).processes if p.named} == {"running"}
                client.sandbox.exec(box, "touch stop")
        with daemon.connect() as client:
            sizes = {name: client.process.get(box, name).stdout_bytes for name in ("fast", "typed")}
    for name, size in sizes.items():
        same = got[f"socket {name}"] == got[f"websocket {name}"]
        assert same  # and no comparison of megabytes for people to read
        assert len(got[f"socket {name}"][0]) == size
    (out, err), (typed, nothing) = got["socket fast"], got["socket typed"]
    assert is_whole(out, b"out")
    assert is_whole(err, b"err")
    assert is_whole(typed, b"tty", b"\r\n")
    assert nothing == b""
    assert (got["exit fast"], got["exit typed"]) == (9, 8)


def die_and_rise(daemon: RunningDaemon) -> None:
    daemon.kill()
    daemon.start()


# -- what is left of others -------------------------------------------------------------------------------------------


def test_what_no_event_owns_is_told(running_daemon: RunningDaemon, image: str) -> None:
    """Administrators see in the status what was left because it is of another log; what was ours is gone."""
    daemon = running_daemon
    with daemon.connect() as client:
        box = client.sandbox.create(image).sandbox_id
        own = client.daemon.status().log_id
    daemon.kill()
    for name, log_id in (("ours", own), ("theirs", new_id("log"))):
        Path(daemon.state_dir, "sandboxes", name, "in").mkdir(parents=True)
        Path(daemon.state_dir, "sandboxes", name, "in", ".log").write_text(f"{log_id}\n")
    daemon.start()
    with daemon.connect() as client:
        (found,) = until(lambda: [what for what in client.daemon.status().foreign if daemon.state_dir in what])
        assert "theirs" in found
        assert client.sandbox.get(box).status == "running"
    (line,) = [line for line in daemon.cli("status").stdout.decode().splitlines() if line.startswith("leftovers")]
    advice = r"\(`foreign` of --json\): remove them by hand, unless a daemon still uses them"
    assert re.fullmatch(rf"leftovers  \d+ objects? of other logs {advice}", line)
    assert found.encode() in daemon.cli("status", "--json").stdout
    assert "removed objects that no event owns" in daemon.said()
    assert sorted(os.listdir(f"{daemon.state_dir}/sandboxes")) == sorted([box, "theirs"])
    shutil.rmtree(f"{daemon.state_dir}/sandboxes/theirs")
