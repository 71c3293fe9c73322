"""Terminals through a real daemon: attached to by descriptor, outliving the daemon, refused where there are none."""

import fcntl
import os
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import DEADLINE_S, until, until_async
from tests.support.inside import inside
from tests.support.users import NOBODY, command_as

from sandkeep.errors import SandkeepError
from sandkeepd.host.processes import pids_where

pytestmark = pytest.mark.needs("bwrap", "tmux")

UP = "echo up; "


@contextmanager
def attached(client: Any, box: str, name: str, **fields: Any) -> Iterator[int]:
    """The terminal that an attached client holds; the connection is closed already."""
    with client.with_descriptors("process.attach", box, name, **fields) as handed:
        (fd,) = handed.receive()
        assert handed.answer().process.name == name
    try:
        yield fd
    finally:
        os.close(fd)


def sees(fd: int, wanted: bytes) -> bytes:
    data, deadline = b"", time.monotonic() + DEADLINE_S
    while wanted not in data:
        assert select.select([fd], [], [], deadline - time.monotonic())[0], data
        data += os.read(fd, 65536)
    return data


def written(client: Any, box: str, name: str, wanted: bytes) -> bytes:
    """The journal, once that is in it."""
    data = b""
    for piece in client.read_output(box, name):
        data += piece.stdout
        if wanted in data:
            return data
    raise AssertionError(data)


def command_lines(words: str) -> list[int]:
    def matches(pid: int) -> bool:
        return words.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()

    return [pid for pid in pids_where(matches) if pid != os.getpid()]


def test_the_life_of_a_process_with_a_terminal(shared_daemon: Any, box: str) -> None:
    script = """
        trap 'stty size' WINCH; echo up
        while :; do line=; read -r line; case $line in end) exit 3;; ?*) echo "<$line>";; esac; done
    """
    with shared_daemon.connect() as client:
        process = client.process.launch(box, script, name="a.b", tty=True, rows=30, cols=90)
        assert (process.tty, process.tmux_session, process.status) == (True, "a_b", "running")
        written(client, box, "a.b", b"up\r\n")  # by then it hears of a new size
        with attached(client, box, "a.b", rows=40, cols=120) as fd:
            sees(fd, b"up")
            written(client, box, "a.b", b"40 120\r\n")
            os.write(fd, b"one\r")
            sees(fd, b"<one>")
            fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 121, 0, 0))
            written(client, box, "a.b", b"41 121\r\n")
            assert client.process.write_stdin(box, "a.b", b"two\n").written_bytes == 4
            sees(fd, b"<two>")
        until(lambda: not command_lines(f"{process.process_id}.tmux\0attach-session"))  # tmux would go by its size
        assert client.process.resize(box, "a.b", 20, 60).status == "running"
        written(client, box, "a.b", b"20 60\r\n")
        client.process.write_stdin(box, "a.b", b"end\n")
        ended = client.process.wait(box, "a.b")
        assert (ended.exit_code, ended.stderr_bytes) == (3, 0)
        output = client.process.read(box, "a.b").stdout
        expected = "up|40 120|one|<one>|41 121|two|<two>|20 60|end|"
        assert output.decode() == expected.replace("|", "\r\n")
        assert len(output) == ended.stdout_bytes
        events = [event for event in client.sandbox.history(box).events if event.type == "process.launch_requested"]
        assert [event.data["tty"] for event in events] == [True]


def test_what_is_refused(shared_daemon: Any, box: str) -> None:
    with shared_daemon.connect() as client:
        client.process.launch(box, ["sleep", "1000"], name="plain")
        client.process.launch(box, ["true"], name="done", tty=True)
        client.process.wait(box, "done")
        for call in (
            lambda name: attached(client, box, name).__enter__(),
            lambda name: client.process.resize(box, name, 10, 10),
        ):
            with pytest.raises(SandkeepError, match="has no terminal: follow its output") as failed:
                call("plain")
            assert failed.value.code == "not_supported"
            with pytest.raises(SandkeepError, match="has ended") as failed:
                call("done")
            assert failed.value.code == "not_ready"
        with pytest.raises(SandkeepError, match="has ended"):
            client.process.write_stdin(box, "done", b"x")
        with pytest.raises(SandkeepError, match="no tmux") as failed:
            client.process.launch(box, ["true"], name="bare", tty=True, secrets={"PATH": "/nowhere"})
        assert failed.value.code == "not_supported"
        assert client.process.get(box, "bare").status == "failed"
        features = {one.provider: one.features for one in client.daemon.capabilities().providers}["local"]
        assert features["terminals"].works


def test_too_much_time(shared_daemon: Any, box: str) -> None:
    with shared_daemon.connect() as client:
        client.process.launch(box, f"{UP} trap '' HUP TERM; sleep 1000", name="slow", tty=True, timeout_s=5)
        ended = client.process.wait(box, "slow")
        assert (ended.exit_code, ended.timed_out) == (124, True)
        assert client.process.read(box, "slow").stdout == b"up\r\n"


def test_a_viewer_is_the_sandboxs_own(shared_daemon: Any, box: str) -> None:
    """Its uid, its control groups and its view of the files; and what tmux tells it to execute stays inside."""
    with shared_daemon.connect() as client:
        process = client.process.launch(box, f"{UP} cat", name="seen", tty=True)
        host_uid = client.sandbox.get(box).isolation.host_uid
        socket = f"{process.process_id}.tmux"
        with attached(client, box, "seen") as fd:
            sees(fd, b"up")
            (viewer,) = command_lines(f"{socket}\0attach-session")
            begun_by = f"{socket}\0set-option"  # for a moment there is also the client that started the server
            (server,) = until(lambda: len(found := command_lines(begun_by)) == 1 and found)
            for pid in (viewer, server):
                assert os.stat(f"/proc/{pid}").st_uid == host_uid
            assert len({Path(f"/proc/{pid}/cgroup").read_text() for pid in (viewer, server)}) == 1
            assert len({os.readlink(f"/proc/{pid}/ns/mnt") for pid in (viewer, server)}) == 1
            assert os.readlink(f"/proc/{viewer}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
            mark = f"/tmp/{process.process_id}"
            told = client.sandbox.exec(
                box, f"tmux -S /run/sandkeep/out/p/{socket} detach-client -s seen -E 'touch {mark}'"
            )
            assert told.exit_code == 0, told
            with pytest.raises(OSError, match="Input/output"):
                sees(fd, b"never")
        assert client.sandbox.exec(box, ["test", "-e", mark]).exit_code == 0
        assert not os.path.exists(mark)


def test_everything_outlives_the_daemon(new_daemon: Any, tmp_path: Path) -> None:
    daemon = new_daemon()
    daemon.start()
    (tmp_path / "empty").mkdir()
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(str(tmp_path / "empty")).image_id).sandbox_id
        for name in ("first", "second"):
            client.process.launch(box, f'{UP} read -r line; echo "<$line>"; exit 7', name=name, tty=True)
        shared = f"{daemon.state_dir}/sandboxes/{box}"
        with attached(client, box, "first") as one:
            sees(one, b"up")
            daemon.kill()
            os.write(one, b"while it is away\r")
            sees(one, b"<while it is away>")
            with attached_anew(daemon, box, "second") as (again, two):
                assert again.process.wait(box, "first").exit_code == 7
                os.write(two, b"again\r")
                assert again.process.wait(box, "second").exit_code == 7
                assert again.process.read(box, "second").stdout.endswith(b"<again>\r\n")
                left = [process.process_id for process in again.process.list(box, all=True).processes] + ["vwr_"]
                while any(name.startswith(tuple(left)) for name in os.listdir(f"{shared}/in")):
                    again.sandbox.exec(box, "true")  # until a last viewer, whose terminal is gone, has ended
                journals = f"{shared}/out/p"
                until(lambda: not any("vwr_" in name or name.endswith(".tmux") for name in os.listdir(journals)))


@contextmanager
def attached_anew(daemon: Any, box: str, name: str) -> Iterator[tuple[Any, int]]:
    """A successor of a daemon that was killed, and a viewer that it attached."""
    daemon.start()
    with daemon.connect() as client, attached(client, box, name) as fd:
        sees(fd, b"up")
        yield client, fd


async def test_without_a_unix_socket_nothing_is_given(tmp_path: Path) -> None:
    """A terminal that cannot be handed over is closed, and its viewer goes."""
    (tmp_path / "source").mkdir()
    async with inside(str(tmp_path / "state")) as daemon:
        image_id = await daemon.image(str(tmp_path / "source"))
        box = (await daemon.call("sandbox.create", image_id=image_id)).sandbox_id
        await daemon.call("process.launch", sandbox_id=box, command="echo up; read -r line", name="p", tty=True)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(SandkeepError, match="Unix socket only"):
            await daemon.call("process.attach", sandbox_id=box, name="p")
        await until_async(lambda: len(os.listdir("/proc/self/fd")) <= before)  # once the viewer has ended
        await daemon.call("sandbox.terminate", sandbox_id=box)


@pytest.mark.needs("root")
def test_under_a_users_daemon() -> None:
    """What of the suite depends on it, for a daemon that is no root: sandboxes then have the daemon's own uid."""
    with tempfile.TemporaryDirectory(prefix="skt-", ignore_cleanup_errors=True) as base:
        os.chown(base, NOBODY, NOBODY)
        chosen = "local and (viewers or typing or sees or inside)"
        suite = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            f"{base}/t",
            "-k",
            chosen,
        ]
        done = subprocess.run(
            command_as(NOBODY, [*suite, "tests/conformance/test_terminals.py"]), cwd=Path(__file__).parents[3],
            env={**os.environ, "HOME": base}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-8000:]
        assert " passed" in done.stdout
