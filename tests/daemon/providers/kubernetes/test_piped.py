"""Helper commands with pipes over execs, with the real keeper: copies of any size, and how they are given up."""

import fcntl
import functools
import io
import os
import random
import tarfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from tests.daemon.providers.kubernetes.conftest import ExecInstance
from tests.support.exec_server import ExecServer
from tests.support.expect import DEADLINE_S, refused_async, until_async
from trio_websocket import WebSocketConnection

from sandkeep.errors import ProviderError
from sandkeepd.contract.commands import CommandFailedError, PipedCommand
from sandkeepd.keeper.copies import Copy, copying
from sandkeepd.providers.common import piped
from sandkeepd.providers.common.piped import Frames


@functools.cache
def much() -> bytes:
    """Return the same each time. It is made by the process that needs it, and not by all that collect tests."""
    return random.Random(23).randbytes(50_000_000)


READY = "echo ready;"


@asynccontextmanager
async def writing(fd: int, data: bytes) -> AsyncIterator[None]:
    """Write data into a pipe and close it, from a thread as a client would."""

    def write() -> None:
        with suppress(BrokenPipeError), open(fd, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    yield
    with trio.fail_after(DEADLINE_S):
        await trio.to_thread.run_sync(thread.join, abandon_on_cancel=True)


async def read(fd: int) -> bytes:
    def read_all() -> bytes:
        with open(fd, "rb") as file:
            return file.read()

    with trio.fail_after(DEADLINE_S):
        return await trio.to_thread.run_sync(read_all)


def shell(instance: ExecInstance, script: str, *, incoming: bool, working_dir: str | None = None):  # type: ignore[no-untyped-def]
    return instance.run_piped(["sh", "-c", READY + script], incoming=incoming, working_dir=working_dir)


# -- what commands get ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("incoming", [True, False])
async def test_lines_words_and_the_end(instance: ExecInstance, incoming: bool) -> None:
    script = "read word <&4; echo got $word; read word <&4; pwd; printf 'the rest'"
    with trio.fail_after(DEADLINE_S):
        async with shell(instance, script, incoming=incoming, working_dir="/proc") as command:
            os.close(command.take_data())
            command.tell("one")
            assert await command.expect("got") == "one"
            command.tell("two")
            assert await command.expect("/proc") == ""
            assert await command.end() == "the rest"
            assert await command.end() == "the rest"


@pytest.mark.parametrize("incoming", [True, False])
async def test_failures(instance: ExecInstance, incoming: bool) -> None:
    for script, code, stderr in (
        ("echo no >&2; exit 3", 3, b"no\n"), ("kill -9 $$", 137, b"command terminated"), ("echo other", None, b"")
    ):  # fmt: skip
        async with shell(instance, script, incoming=incoming) as command:
            with pytest.raises(CommandFailedError) as caught:
                await command.expect("word")
        assert caught.value.exit_code == code
        assert caught.value.stderr.startswith(stderr)


@pytest.mark.parametrize(
    ("command", "code"),
    [(["false"], 1), (["/absent"], 127), (["sh", "-c", "echo other; exec sleep 1000"], None)],
)
async def test_commands_that_do_not_get_ready(instance: ExecInstance, command: list[str], code: int | None) -> None:
    with pytest.raises(CommandFailedError) as caught:
        await instance.run_piped(command, incoming=True).__aenter__()
    assert caught.value.exit_code == code


async def test_no_such_directory(instance: ExecInstance) -> None:
    with pytest.raises(CommandFailedError) as caught:
        await shell(instance, "", incoming=True, working_dir="/absent").__aenter__()
    assert b"/absent" in caught.value.stderr


async def test_the_caller_s_end_of_the_pipe(instance: ExecInstance) -> None:
    async with shell(instance, "cat <&3", incoming=True) as command:
        fd = command.take_data()
        assert os.get_blocking(fd)
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        os.close(fd)
        assert await command.end() == ""


# -- data -------------------------------------------------------------------------------------------------------------


async def test_fifty_megabytes_in(instance: ExecInstance, tmp_path: Path) -> None:
    async with shell(instance, f"cat <&3 >{tmp_path}/copy; echo whole", incoming=True) as command:
        async with writing(command.take_data(), much()):
            await command.expect("whole")
        await command.end()
    assert (tmp_path / "copy").read_bytes() == much()


async def test_fifty_megabytes_out(instance: ExecInstance, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(much())
    script = f"cat {tmp_path}/file >&3; exec 3>&-; echo whole; seq 1000"
    async with shell(instance, script, incoming=False) as command:
        assert await read(command.take_data()) == much()
        await command.expect("whole")
        assert (await command.end()).endswith("\n999\n1000\n")


async def test_a_slow_reader_holds_the_command_up(instance: ExecInstance, tmp_path: Path) -> None:
    async with shell(instance, f"head -c 50000000 /dev/zero >&3; touch {tmp_path}/done", incoming=False) as command:
        fd = command.take_data()
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert not (tmp_path / "done").exists()
        assert len(await read(fd)) == 50_000_000
        await command.end()


async def test_a_reader_that_goes(instance: ExecInstance) -> None:
    async with shell(instance, "head -c 9000000 /dev/zero >&3; exec 3>&-; echo on", incoming=False) as command:
        fd = command.take_data()
        await trio.to_thread.run_sync(os.read, fd, 10)
        os.close(fd)
        await command.expect("on")
        await command.end()


async def test_a_command_that_does_not_read(instance: ExecInstance) -> None:
    async with shell(instance, "exec 3<&-; echo on", incoming=True) as command, writing(command.take_data(), much()):
        await command.expect("on")
        await command.end()


async def test_output_without_end_is_bounded(instance: ExecInstance) -> None:
    async with shell(instance, "head -c 50000000 /dev/zero; echo; echo late", incoming=False) as command:
        with pytest.raises(CommandFailedError):
            await command.expect("late")
        assert isinstance(command, piped.PipedExec)
        assert len(command._output) <= piped.MAX_OUTPUT_BYTES


# -- copies -----------------------------------------------------------------------------------------------------------


def tar_of(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


async def test_copies(instance: ExecInstance, tmp_path: Path) -> None:
    where = tmp_path / "work"
    where.mkdir()
    async with copying(instance, str(where), incoming=True, form="contents") as copy:
        async with writing(copy.take_data(), tar_of(a=b"1", b=much())):
            await copy.staged()
        assert (await copy.commit()).files == 3
    assert (where / "b").read_bytes() == much()
    async with copying(instance, str(where), incoming=False, form="contents") as copy:
        packed = await read(copy.take_data())
        assert (await copy.done()).size_bytes == len(much()) + 1
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert sorted(archive.getnames()) == [".", "./a", "./b"]


async def begin_copy(instance: ExecInstance, where: Path, then: Callable[[Copy], Awaitable[object]]) -> None:
    where.mkdir(exist_ok=True)
    async with copying(instance, str(where), incoming=True, form="contents") as copy:
        async with writing(copy.take_data(), tar_of(a=b"1" * 100_000)):
            await copy.staged()
        assert len(os.listdir(where)) == 1  # what is staged
        await then(copy)


@pytest.mark.parametrize("protocol", ["v5", "v4"])
async def test_a_copy_that_is_given_up_is_undone(
    instance: ExecInstance, server: ExecServer, tmp_path: Path, protocol: str
) -> None:
    server.speaks = [f"{protocol}.channel.k8s.io"]

    async def nothing(copy: Copy) -> None:
        pass

    await begin_copy(instance, tmp_path / "work", nothing)
    assert os.listdir(tmp_path / "work") == []


async def test_a_copy_whose_data_stops_is_undone(instance: ExecInstance, tmp_path: Path) -> None:
    """The daemon's end is still open, and the pipe is full."""
    where = tmp_path / "work"
    where.mkdir()
    async with copying(instance, str(where), incoming=True, form="contents") as copy:
        fd = copy.take_data()
        os.write(fd, tar_of(a=much())[:300_000])
        await until_async(lambda: list(where.glob(".sandkeep*/tree/a")))
    assert os.listdir(where) == []
    os.close(fd)


async def test_a_reader_that_neither_reads_nor_goes(instance: ExecInstance, server: ExecServer) -> None:
    async with shell(instance, "exec head -c 50000000 /dev/zero >&3", incoming=False) as command:
        fd = command.take_data()
    await server.no_processes()
    os.close(fd)


async def test_a_cancelled_copy_is_undone(instance: ExecInstance, tmp_path: Path) -> None:
    with trio.CancelScope() as scope:

        async def cancel(copy: Copy) -> None:
            scope.cancel()
            await trio.sleep_forever()

        await begin_copy(instance, tmp_path / "work", cancel)
    assert scope.cancelled_caught
    assert os.listdir(tmp_path / "work") == []


async def test_a_committed_copy_is_not(instance: ExecInstance, tmp_path: Path) -> None:
    """It completes, although its caller is cancelled at that moment."""
    with trio.CancelScope() as scope:

        async def cancel(copy: Copy) -> None:
            scope.cancel()
            await copy.commit()

        await begin_copy(instance, tmp_path / "work", cancel)
    assert scope.cancelled_caught
    assert os.listdir(tmp_path / "work") == ["a"]


async def test_a_copy_whose_daemon_dies_is_undone(instance: ExecInstance, server: ExecServer, tmp_path: Path) -> None:
    async def cut(copy: Copy) -> None:
        await server.cut()
        await until_async(lambda: os.listdir(tmp_path / "work") == [])
        error = await refused_async("provider_unavailable", copy.commit())
        assert error.data == {"engine": "kubernetes"}

    await begin_copy(instance, tmp_path / "work", cut)


@pytest.mark.parametrize("incoming", [True, False])
async def test_a_command_that_does_nothing_is_ended(
    instance: ExecInstance, server: ExecServer, incoming: bool, tmp_path: Path
) -> None:
    script = f"trap 'echo ended >{tmp_path}/trapped; exit 1' TERM; >{tmp_path}/set; while :; do sleep 1000; done"
    async with shell(instance, script, incoming=incoming):
        await until_async((tmp_path / "set").exists)  # before that it is ended by the signal
    assert (tmp_path / "trapped").read_text() == "ended\n"
    with trio.fail_after(DEADLINE_S):
        await server.no_processes()


async def test_a_command_that_does_not_want_to_end(
    instance: ExecInstance, server: ExecServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piped, "CLEAN_UP_S", 0.3)
    monkeypatch.setattr(piped, "SIGNAL_PERIOD_S", 0.05)
    script = f"trap '' TERM; {READY} while :; do sleep 0.01; done"
    async with instance.run_piped(["sh", "-c", script], incoming=True):
        pass
    with trio.fail_after(DEADLINE_S):
        await server.no_processes()


async def test_the_errors_of_the_block_are_its_own(instance: ExecInstance) -> None:
    with pytest.raises(KeyError):
        async with shell(instance, "cat <&3", incoming=True):
            raise KeyError


async def test_many_at_once(instance: ExecInstance, tmp_path: Path) -> None:
    async def one(number: int) -> None:
        data = much()[number * 1000 : number * 100_000]
        async with shell(instance, f"cat <&3 >{tmp_path}/{number}; echo whole", incoming=True) as command:
            async with writing(command.take_data(), data):
                await command.expect("whole")
            await command.end()
        assert (tmp_path / str(number)).read_bytes() == data

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(one, number)


# -- hostile pods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [b"\x03\0\0\0\x01x", b"HTTP/1.1 200 OK", b"\0" * 100], ids=range(3))
async def test_frames_that_are_none(instance: ExecInstance, server: ExecServer, frame: bytes) -> None:
    async def script(connection: WebSocketConnection) -> None:
        await connection.send_message(b"\x01\x02\0\0\0\x0epid 1\nready\n..")
        await connection.send_message(b"\x01" + frame)
        await connection.get_message()

    server.script = script

    async def end(command: PipedCommand) -> str:
        return await command.end()

    async with shell(instance, "", incoming=False) as command:
        assert await read(command.take_data()) == b""
        await refused_async("provider_unavailable", end(command))


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=10), st.integers(1, 50))
def test_any_pieces_of_frames(frames: list[tuple[int, bytes]], size: int) -> None:
    wire = b"".join(bytes([tag]) + len(data).to_bytes(4) + data for tag, data in frames)
    parser = Frames()
    found = [piece for start in range(0, len(wire), size) for piece in parser.feed(wire[start : start + size])]
    for wanted in (1, 2):
        sent = b"".join(data for tag, data in frames if tag == wanted)
        assert b"".join(data for tag, data in found if tag == wanted) == sent


@given(st.binary(max_size=200))
def test_noise_is_no_frames(noise: bytes) -> None:
    with suppress(ProviderError):
        assert sum(len(data) for _, data in Frames().feed(noise)) <= len(noise)
