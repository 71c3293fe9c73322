"""Terminals in gVisor sandboxes, with a real daemon and runsc: they are kept with all else, viewers are not."""

import os
import re
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.boxes import new_box
from tests.support.expect import refused, until
from tests.support.patience import patient

from sandkeep.errors import SandkeepError
from sandkeepd.host.processes import pids_where
from sandkeepd.providers.gvisor import viewers

pytestmark = pytest.mark.needs("runsc", "tmux")

LATE_S = patient(60.0)
SHELL = ["bash", "--norc", "-i"]


@pytest.fixture(scope="module")
def image(shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    with shared_daemon.connect() as client:
        return str(client.image.create(str(tmp_path_factory.mktemp("empty")), provider="gvisor").image_id)


@pytest.fixture
def box(shared_daemon: Any, image: str) -> Iterator[str]:
    with new_box(shared_daemon, image) as made:
        yield made.id
    assert of_runsc(made.id) == []


def of_runsc(*words: str) -> list[str]:
    """What `runsc` runs of which the command holds all these words."""
    listed = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith("runsc") and all(word in line for word in words)]


@contextmanager
def attached(client: Any, box: str, name: str, **fields: Any) -> Iterator[int]:
    with client.with_descriptors("process.attach", box, name, **fields) as handed:
        (fd,) = handed.receive()
        handed.answer()
    try:
        yield fd
    finally:
        os.close(fd)


def sees(fd: int, wanted: bytes) -> bytes:
    data, deadline = b"", time.monotonic() + LATE_S
    while wanted not in data:
        assert select.select([fd], [], [], deadline - time.monotonic())[0], data
        data += os.read(fd, 65536)
    return data


def gone(fd: int) -> bytes:
    """What was to be seen last, once the viewer has gone."""
    data, deadline = b"", time.monotonic() + LATE_S
    while True:
        assert select.select([fd], [], [], deadline - time.monotonic())[0], data
        try:
            data += os.read(fd, 65536)
        except OSError:
            return data


def typed(fd: int, line: str, answer: bytes) -> None:
    os.write(fd, line.encode() + b"\r")
    sees(fd, answer)


def shell(client: Any, box: str, name: str = "shell") -> None:
    """A shell that knows something which it was only told."""
    client.process.launch(box, SHELL, name=name, tty=True)
    client.process.write_stdin(box, name, b"told=$((6*7)); echo known:$told\n")
    until(lambda: b"known:42" in client.process.read(box, name).stdout)


def test_a_shell_goes_on_here_and_in_a_restored_sandbox(client: Any, box: str) -> None:
    shell(client, box)
    with attached(client, box, "shell") as before:
        sees(before, b"known:42")
        checkpoint = client.checkpoint.create(box, leave_running=True)
        assert viewers.SAVED.encode() in gone(before)
    (other,) = (made.sandbox_id for made in client.checkpoint.restore(checkpoint.checkpoint_id).sandboxes)
    with attached(client, box, "shell") as here, attached(client, other, "shell") as there:
        for fd in (here, there):
            sees(fd, b"known:42")
        typed(there, "told=$((told+1)); echo there:$told", b"there:43")
        typed(here, "echo here:$told", b"here:42")
        client.process.write_stdin(other, "shell", b"exit 9\n")
        assert client.process.wait(other, "shell", timeout_s=LATE_S).exit_code == 9
        gone(there)
        typed(here, "echo still:$told", b"still:42")
    client.process.resize(box, "shell", 33, 99)
    client.process.write_stdin(box, "shell", b"stty size; exit 3\n")
    assert client.process.wait(box, "shell", timeout_s=LATE_S).exit_code == 3
    assert b"33 99\r\n" in client.process.read(box, "shell").stdout
    assert b"here:42" not in client.process.read(other, "shell").stdout
    client.sandbox.terminate(other)
    assert of_runsc(other) == []


def test_what_a_restored_terminal_is_told(client: Any, box: str) -> None:
    """Signals, and more checkpoints, by its new id; and what it had inside is gone with it."""
    client.process.launch(box, "trap '' HUP TERM; echo up; sleep 1000", name="deaf", tty=True)
    shell(client, box)
    checkpoint = client.checkpoint.create(box)
    with pytest.raises(SandkeepError, match="resume it"), attached(client, box, "shell"):
        pass
    (other,) = (made.sandbox_id for made in client.checkpoint.restore(checkpoint.checkpoint_id).sandboxes)
    again = client.checkpoint.create(other, leave_running=True)
    (third,) = (made.sandbox_id for made in client.checkpoint.restore(again.checkpoint_id).sandboxes)
    for sandbox in (other, third):
        client.process.signal(sandbox, "deaf", signal="KILL")
        assert client.process.wait(sandbox, "deaf", timeout_s=LATE_S).exit_code == 137
        client.process.write_stdin(sandbox, "shell", b"echo also:$told; exit 1\n")
        assert client.process.wait(sandbox, "shell", timeout_s=LATE_S).exit_code == 1
        assert b"also:42" in client.process.read(sandbox, "shell").stdout
        left = client.sandbox.exec(sandbox, ["ls", "/run/sandkeep/tty"])
        assert (left.exit_code, left.stdout) == (0, b"")
        client.sandbox.terminate(sandbox)
    client.sandbox.resume(box)
    with attached(client, box, "shell") as fd:
        sees(fd, b"known:42")


def test_what_holds_a_viewers_terminal_is_not_saved(client: Any, box: str) -> None:
    """A tmux that hangs lets nobody go, and what was saved with its viewer's terminal could not be brought back."""
    shell(client, box)
    server = "server=${TMUX#*,}; server=${server%,*}"
    client.process.write_stdin(box, "shell", f"{server}; echo server:$server.\n".encode())
    said = until(lambda: re.search(rb"server:(\d+)\.", client.process.read(box, "shell").stdout))
    number = said[1].decode()
    with attached(client, box, "shell") as fd:
        sees(fd, b"known:42")
        assert client.sandbox.exec(box, ["kill", "-STOP", number]).exit_code == 0
        refused("conflict", client.checkpoint.create, box, leave_running=True)
        assert of_runsc(box, "exec") == []
        refused("conflict", client.sandbox.suspend, box)
        assert client.sandbox.exec(box, ["kill", "-CONT", number]).exit_code == 0
        gone(fd)
    client.sandbox.suspend(box)
    client.sandbox.resume(box)
    with attached(client, box, "shell") as fd:
        typed(fd, "echo after:$told", b"after:42")


def test_a_server_without_viewers_waits(client: Any, box: str) -> None:
    """Under gVisor's poll(2) it would take a processor."""
    shell(client, box)
    with attached(client, box, "shell") as fd:
        sees(fd, b"known:42")
    ask = 'for p in /proc/[0-9]*; do read -r l <$p/stat; case $l in *"(tmux: s"*) echo ${l##*) };; esac; done'
    work = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"
    said = client.sandbox.exec(box, ["sh", "-c", f"{ask}; {work}; {ask}; times"]).stdout.decode().splitlines()
    before, after = (sum(map(int, line.split()[11:13])) for line in said[:2])
    assert after - before < 5, said


def test_a_viewer_goes_when_it_is_left_and_outlives_the_daemon(new_daemon: Any, tmp_path: Path) -> None:
    """A later daemon knows of those of an earlier one, too."""
    daemon = new_daemon()
    daemon.start()
    source = tmp_path / "source"
    source.mkdir()
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(str(source), provider="gvisor").image_id).sandbox_id
        shell(client, box)
        with attached(client, box, "shell") as fd:
            sees(fd, b"known:42")
            assert len(of_runsc(box, "exec")) == 1
        until(lambda: not of_runsc(box, "exec"))
        with client.with_descriptors("process.attach", box, "shell") as handed:
            (fd,) = handed.receive()
            handed.answer()
    daemon.stop()
    daemon.start()
    with daemon.connect() as client:
        typed(fd, "echo still:$told", b"still:42")
        client.sandbox.suspend(box)
        assert viewers.SAVED.encode() in gone(fd)
        os.close(fd)
        client.sandbox.resume(box)
        with attached(client, box, "shell") as fd:
            sees(fd, b"still:42")
        client.sandbox.terminate(box)
    assert pids_where(lambda pid: box.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()) == []
