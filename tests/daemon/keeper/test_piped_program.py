"""Programs that move data over a connection of their own: `keeper -x`."""

import hashlib
import os
import signal
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import pytest
from tests.support.expect import until

from sandkeepd.keeper import copies, program

END = struct.pack(">I", 0)
BIG = 50 << 20


class Program:
    """One that runs. What is read of its output is in `data` and `text` when it has ended."""

    def __init__(self, way: str, argv: Sequence[str], directory: Path) -> None:
        words = [program.on_host(str(directory)), "-x", way, *argv]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, cwd=directory)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.stdout: IO[bytes] = self.process.stdout
        self.data, self.text = hashlib.sha256(), b""

    def send(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def put(self, data: bytes) -> None:
        """Send pieces of data, of many sizes."""
        at, size = 0, 1
        while at < len(data):
            piece = data[at : at + size]
            self.stdin.write(struct.pack(">I", len(piece)) + piece)
            at, size = at + size, size * 3 % 300_007
        self.stdin.flush()

    def take(self, enough: Callable[["Program"], bool] = lambda _: False) -> None:
        """Read frames, until that is enough."""
        while not enough(self) and (head := self.stdout.read(5)):
            tag, length = struct.unpack(">BI", head)
            piece = self.stdout.read(length)
            assert len(piece) == length
            if tag == 1:
                self.data.update(piece)
            else:
                assert tag == 2
                self.text += piece

    def end(self) -> tuple[int, bytes]:
        """Wait for its end; return its exit code and what it said on stderr."""
        assert self.process.stderr is not None
        with self.process:
            said = self.process.stderr.read()
        return self.process.returncode, said


def copying(way: str, path: str, form: str) -> list[str]:
    """What copies are made by."""
    return [
        "sh",
        "-c",
        copies._SCRIPT,
        "sh",
        "receive" if way == "in" else "send",
        path,
        form,
        "hlp_" + "0" * 26,
        "513",
    ]


def test_in(tmp_path: Path) -> None:
    data = os.urandom(BIG)
    script = "sha256sum <&3; read word <&4; echo $word; read word <&4 || echo over; echo err >&2; exit 7"
    running = Program("in", ["sh", "-c", script], tmp_path)
    running.put(data)
    running.send(END + b"commit\n")
    assert running.stdout.readline().split()[0] == hashlib.sha256(data).hexdigest().encode()
    assert running.stdout.readline() == b"commit\n"
    running.stdin.close()
    assert running.stdout.read() == b"over\n"
    assert running.end() == (7, b"err\n")


def test_out(tmp_path: Path) -> None:
    data = os.urandom(BIG)
    (tmp_path / "data").write_bytes(data)
    script = "echo ready; read word <&4; cat data >&3; exec 3>&-; printf 'done %s' $word; echo err >&2; kill -9 $$"
    running = Program("out", ["sh", "-c", script], tmp_path)
    running.take(lambda found: found.text == b"ready\n")
    running.send(b"go\n")
    running.take()
    assert running.data.digest() == hashlib.sha256(data).digest()
    assert running.text == b"ready\ndone go"
    assert running.end() == (137, b"err\n")


def test_a_copy_in(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/big").write_bytes(os.urandom(BIG))
    running = Program("in", copying("in", str(tmp_path / "copy"), "whole"), tmp_path)
    assert running.stdout.readline() == b"ready\n"
    archive = subprocess.run(["tar", "-cC", str(tmp_path), "tree"], check=True, capture_output=True).stdout
    running.put(archive)
    running.send(END)
    assert running.stdout.readline().startswith(b"staged tree 2 ")
    assert not (tmp_path / "copy").exists()
    running.send(b"commit\n")
    assert running.stdout.read().startswith(b"done tree 2 ")
    assert running.end() == (0, b"")
    assert (tmp_path / "copy/big").read_bytes() == (tmp_path / "tree/big").read_bytes()


@pytest.mark.parametrize("how", ["cut", "cut when staged", "signal", "kill"])
def test_a_copy_in_that_is_given_up(how: str, tmp_path: Path) -> None:
    """Nothing is left of it."""
    (tmp_path / "place").mkdir()
    running = Program("in", copying("in", str(tmp_path / "place/file"), "bytes"), tmp_path)
    assert running.stdout.readline() == b"ready\n"
    running.put(os.urandom(3_000_000))
    until(lambda: os.listdir(tmp_path / "place"))
    if how == "signal":
        running.process.send_signal(signal.SIGTERM)
    elif how == "kill":
        running.process.kill()
    elif how == "cut when staged":
        running.send(END)
        assert running.stdout.readline().startswith(b"staged")
    running.stdin.close()
    assert running.end()[0] == (-9 if how == "kill" else 1)
    until(lambda: not os.listdir(tmp_path / "place"))


def test_a_copy_out(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/big").write_bytes(os.urandom(BIG))
    running = Program("out", copying("out", str(tmp_path / "tree/big"), "bytes"), tmp_path)
    running.take()
    assert running.data.digest() == hashlib.sha256((tmp_path / "tree/big").read_bytes()).digest()
    assert running.text.startswith(f"ready\ndone file 1 {BIG} ".encode())
    assert running.end() == (0, b"")


@pytest.mark.parametrize("gone", ["stdin", "stdout"])
def test_nobody_reads_it_any_more(gone: str, tmp_path: Path) -> None:
    """The program's own end of the data is closed then, and it notices."""
    running = Program(
        "out", ["sh", "-c", "cat /dev/zero >&3; echo $? >code; read word <&4 || echo over >>code"], tmp_path
    )
    running.stdout.read(100_000)
    getattr(running, gone).close()
    if gone == "stdin":
        threading.Thread(target=running.stdout.read).start()
    assert running.end()[0] == 0
    assert (tmp_path / "code").read_text() == "141\nover\n"


def test_a_program_that_uses_neither(tmp_path: Path) -> None:
    running = Program("in", ["true"], tmp_path)
    assert running.end() == (0, b"")
    running = Program("out", ["sh", "-c", "exec 3>&- 4<&-; echo text"], tmp_path)
    running.take()
    assert (running.text, running.end()) == (b"text\n", (0, b""))


def test_a_program_that_reads_only_some(tmp_path: Path) -> None:
    """The rest is taken from the connection, so that what comes after it is read."""
    running = Program("in", ["sh", "-c", "head -c 10 <&3; exec 3<&-; read word <&4; echo $word"], tmp_path)
    running.put(b"x" * 5_000_000)
    running.send(END + b"word\n")
    assert running.stdout.read() == b"x" * 10 + b"word\n"
    assert running.end() == (0, b"")


def test_children_that_stay(tmp_path: Path) -> None:
    """Nothing waits for them, and what was written is there."""
    running = Program(
        "out", ["sh", "-c", "sleep 1000 2>/dev/null & echo $! >pid; head -c 200000 /dev/zero >&3; echo text"], tmp_path
    )
    running.take()
    assert (running.text, running.data.digest()) == (b"text\n", hashlib.sha256(bytes(200_000)).digest())
    assert running.end()[0] == 0
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_signal_is_passed_on(tmp_path: Path) -> None:
    script = "exec 2>/dev/null; trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    running = Program("out", ["sh", "-c", script], tmp_path)  # a shell may say of its `sleep` that it was terminated
    running.take(lambda found: found.text == b"ready\n")
    running.process.send_signal(signal.SIGTERM)
    running.take()
    assert (running.text, running.end()) == (b"ready\ntold\n", (5, b""))


def test_what_cannot_be_run(tmp_path: Path) -> None:
    assert Program("in", ["no-such-program"], tmp_path).end() == (127, b"no-such-program: not found\n")
    assert Program("on", ["true"], tmp_path).end() == (125, b"")
    assert Program("out", ["/"], tmp_path).end() == (126, b"/: permission denied\n")


def test_the_descriptors_of_a_program(tmp_path: Path) -> None:
    running = Program("in", ["sh", "-c", "exec ls /proc/self/fd"], tmp_path)
    assert running.stdout.read().split() == [b"0", b"1", b"2", b"3", b"4", b"5"]  # the last is the directory's
    assert running.end() == (0, b"")
