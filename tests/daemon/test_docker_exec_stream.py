"""The connection to an exec: frames that arrive in any pieces, and what is made of the engine's word."""

import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from sandkeepd.hostile_files import HostileRoot
from sandkeepd.providers.base import Exit
from sandkeepd.providers.docker_carrying import UNSEEN, Exec, _exit
from sandkeepd.providers.docker_engine import RefusedError
from sandkeepd.providers.docker_exec_stream import ExecStream, start_exec
from sandkeepd.providers.docker_idle import program
from sandkeepd.providers.docker_records import JournalWriter, Record, Records


@pytest.mark.parametrize("seed", range(20))
async def test_frames_in_any_pieces(seed: int) -> None:
    chance = random.Random(seed)
    wanted, sent = {"stdout": b"", "stderr": b""}, b""
    for _ in range(50):
        number, data = chance.choice((1, 2, 3)), chance.randbytes(chance.choice((0, 1, 7, 8, 9, 1000)))
        sent += struct.pack(">BxxxL", number, len(data)) + data
        wanted["stdout" if number == 1 else "stderr"] += data
    ours, theirs = socket.socketpair()
    stream = ExecStream(trio.SocketStream(trio.socket.from_stdlib_socket(ours)), sent[: chance.randrange(40)])
    sent = sent[len(stream._rest) :]
    got = {"stdout": b"", "stderr": b""}

    async def send() -> None:
        left = sent
        with theirs:
            while left:
                size = chance.randrange(1, 60)
                theirs.sendall(left[:size])
                left = left[size:]
                await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        async for pieces in stream.output():
            for name, data in pieces:
                got[name] += data
    await stream.aclose()
    assert got == wanted


@asynccontextmanager
async def engine(path: Path, answer: bytes) -> AsyncIterator[None]:
    """Something that answers every request so, and hangs up."""

    async def serve(connection: Any) -> None:
        async with connection:
            await connection.receive_some(65536)
            await connection.send_all(answer)

    with trio.socket.socket(socket.AF_UNIX) as listener:
        await listener.bind(str(path))
        listener.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listener)])
            yield
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b'HTTP/1.1 409 Conflict\r\n\r\n{"message":"it is paused"}', RefusedError),
        (b"HTTP/1.1 500 Oh\r\n\r\nnot JSON", RefusedError),
        (b"HTTP/1.1 101 UPGRADED\r\n", OSError),
        (b"nonsense\r\n\r\n", OSError),
        (b"x" * 100_000, OSError),
        (b"", OSError),
    ],
)
async def test_an_engine_that_will_not(tmp_path: Path, answer: bytes, error: type[Exception]) -> None:
    async with engine(tmp_path / "socket", answer):
        with pytest.raises(error, match=r"paused|JSON|reset"):
            await start_exec(str(tmp_path / "socket"), "1.41", "id")
    with pytest.raises(OSError, match="refused"):
        await start_exec(str(tmp_path / "socket"), "1.41", "id")


async def test_output_that_comes_with_the_head_is_not_lost(tmp_path: Path) -> None:
    async with engine(tmp_path / "socket", b"HTTP/1.1 101 UPGRADED\r\n\r\n" + struct.pack(">BxxxL", 1, 2) + b"hi"):
        stream = await start_exec(str(tmp_path / "socket"), "1.41", "id")
        await stream.wait_readable()
        assert [bytes(data) async for pieces in stream.output() for _, data in pieces] == [b"hi"]
        await stream.aclose()


def test_what_the_engine_says_of_an_end() -> None:
    """It says 126 also of a process whose connection broke, as a daemon that dies breaks it."""
    found = {"Pid": 5, "ExitCode": 126}
    assert _exit(Exec(Record(exec_id="x")), found) == Exit(exit_code=None, message=UNSEEN)
    assert _exit(Exec(Record(exec_id="x")), {"Pid": 5, "ExitCode": 7}) == Exit(exit_code=7)
    process = Exec(Record(exec_id="x"))
    process.refused = True
    for words, code in (
        (b'exec: "a": executable file not found in $PATH', 127),
        (b'exec: "a": permission denied', 126),
    ):
        process.words = words
        assert _exit(process, {"Pid": 0, "ExitCode": 126}).exit_code == code


def test_records_are_kept_as_long_as_they_tell_something(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    records = Records(HostileRoot(str(tmp_path)).tree())
    records.prepare()
    for name, gap in (("whole", None), ("cut", "some of it is lost")):
        records.begin(name, Record(exec_id="x", gap=gap))
        records.forget(name)
    assert records.load("whole") is None
    assert records.load("cut") is not None
    with pytest.raises(FileExistsError):
        records.begin("whole", Record(exec_id="y"))
    (tmp_path / "execs" / "garbage").write_bytes(b"{")
    assert records.load("garbage") is None
    records.remove("cut")
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["whole.stderr", "whole.stdout"]


def test_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    records = Records(HostileRoot(str(tmp_path)).tree())
    records.prepare()
    records.begin("one", Record(exec_id="x"))
    writer = JournalWriter(HostileRoot(str(tmp_path)).tree(), "one", 10)
    writer.write([("stdout", memoryview(b"12345")), ("stderr", memoryview(b"e")), ("stdout", memoryview(b"67890"))])
    assert writer.why_not is None
    writer.write([("stdout", memoryview(b"x")), ("stderr", memoryview(b"y"))])
    writer.close()
    assert writer.is_full
    assert (tmp_path / "p" / "one.stdout").read_bytes() == b"1234567890"
    with pytest.raises(FileNotFoundError):
        JournalWriter(HostileRoot(str(tmp_path)).tree(), "none", 10)


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_the_first_program_is_a_program(machine: str, number: int) -> None:
    text = program(machine)
    assert text is not None
    assert text[:4] == b"\x7fELF"
    kind, found, _, entry, headers = struct.unpack_from("<HHIQQ", text, 16)
    assert (kind, found, headers) == (2, number, 64)
    load, rights, offset, address, _, in_file, in_memory, _ = struct.unpack_from("<IIQQQQQQ", text, 64)
    assert (load, rights, offset, in_file, in_memory) == (1, 5, 0, len(text), len(text))
    assert entry - address == 64 + 56
    assert struct.unpack("<QQQQ", text[-32:]) == (1, 0, 0, 0)
    assert program("riscv64") is None
