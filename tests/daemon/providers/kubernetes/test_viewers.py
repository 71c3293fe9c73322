"""Viewers of terminals over execs: bytes and sizes each way, and how they come and go."""

import fcntl
import os
import struct
import subprocess
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.daemon.providers.kubernetes.conftest import ExecInstance
from tests.support import relayed
from tests.support.exec_server import ExecServer
from tests.support.expect import DEADLINE_S, refused_async, until_async
from trio_websocket import WebSocketConnection

from sandkeepd.contract.processes import Launch, Terminal
from sandkeepd.keeper import terminal
from sandkeepd.providers.common import remote_viewers as viewers
from sandkeepd.providers.common.remote_viewers import RemoteViewers

pytestmark = pytest.mark.needs("tmux")

SHOWING = 'stty -echo; trap "stty size" WINCH; echo begun; while :; do read -r line && echo "<$line>"; done'


async def start(instance: ExecInstance, script: str = SHOWING, name: str = "t1") -> None:
    wanted = Terminal(rows=24, cols=80, session="s")
    await instance.launch(Launch(process_id=name, command=["sh", "-c", script], terminal=wanted))


@asynccontextmanager
async def attached(instance: ExecInstance, name: str = "t1", **options: Any) -> AsyncIterator[trio.lowlevel.FdStream]:
    """Attach, and close the descriptor at the end of the block."""
    fd = await instance.open_terminal(name, **{"rows": 24, "cols": 80, "term": "xterm-256color", **options})
    assert not os.get_blocking(fd)
    assert not os.get_inheritable(fd)
    async with trio.lowlevel.FdStream(fd) as stream:
        yield stream


async def sees(stream: trio.lowlevel.FdStream, wanted: bytes) -> bytes:
    data = b""
    with trio.fail_after(DEADLINE_S):
        while wanted not in data:
            received = await stream.receive_some()
            assert received, data
            data += received
    return data


async def hangs_up(stream: trio.lowlevel.FdStream) -> bytes:
    """Read until the terminal hangs up."""
    data = b""
    with trio.fail_after(DEADLINE_S), suppress(trio.BrokenResourceError):
        while True:
            data += await stream.receive_some()
    return data


def clients(keeper: relayed.Pod, name: str = "t1") -> list[str]:
    """Return the terminals of the viewers that tmux has."""
    socket = keeper.directory / "tty" / f"{name}.tmux"
    command = ["tmux", "-S", str(socket), "list-clients", "-F", "#{client_width}x#{client_height}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


async def test_a_viewer(instance: ExecInstance, keeper: relayed.Pod, server: ExecServer) -> None:
    await start(instance)
    async with attached(instance, rows=30, cols=90) as stream:
        await sees(stream, b"begun")
        assert clients(keeper) == ["90x30"]
        await stream.send_all(b"typed\r")
        await sees(stream, b"<typed>")
        fcntl.ioctl(stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        await sees(stream, b"33 77")
        assert server.sizes == [(30, 90), (33, 77)]
    await until_async(lambda: clients(keeper) == [])
    with trio.fail_after(DEADLINE_S):
        await server.no_processes()
    assert instance.exit_of("t1") is None


async def test_a_node_that_reads_the_terminal_late(
    instance: ExecInstance, keeper: relayed.Pod, server: ExecServer
) -> None:
    """tmux drops what its terminal holds when it begins, so the pid has to be read before: it tells whom to end."""
    await start(instance)
    server.reads = trio.Event()

    def waits() -> bool:
        """Return True once the viewer's shell reads its terminal."""
        return any((Path("/proc") / str(each.pid) / "wchan").read_text() == "wait_woken" for each in server.processes)

    async def read() -> None:
        await until_async(waits)
        assert clients(keeper) == []
        server.reads.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        async with attached(instance) as stream:
            await sees(stream, b"begun")
    await until_async(lambda: clients(keeper) == [])


async def test_a_copy_of_the_descriptor_keeps_it(instance: ExecInstance, keeper: relayed.Pod) -> None:
    await start(instance)
    async with attached(instance) as stream:
        copy = os.dup(stream.fileno())
    async with trio.lowlevel.FdStream(copy) as stream:
        await stream.send_all(b"still\r")
        await sees(stream, b"<still>")
    await until_async(lambda: clients(keeper) == [])


async def test_two_viewers_and_one_that_only_reads(instance: ExecInstance, keeper: relayed.Pod) -> None:
    await start(instance)
    async with attached(instance) as one, attached(instance, read_only=True) as two:
        await sees(two, b"begun")
        await two.send_all(b"not this\r")
        await one.send_all(b"but this\r")
        assert b"not this" not in await sees(two, b"<but this>")
        assert len(clients(keeper)) == 2


async def test_the_end_of_the_process(instance: ExecInstance) -> None:
    await start(instance, "read line; echo last words; read line")
    async with attached(instance) as stream:
        await stream.send_all(b"\r")
        await sees(stream, b"last words")  # before it ends: tmux may then be too late to show it
        await stream.send_all(b"\r")
        assert b"[exited]" in await hangs_up(stream)
    with trio.fail_after(DEADLINE_S):
        await instance.wait("t1")
    error = await refused_async("not_ready", instance.open_terminal("t1", rows=1, cols=1, term="xterm"))
    assert "has ended" in error.message


async def test_much_output(instance: ExecInstance) -> None:
    """A reader that is slow misses nothing at the end."""
    await start(instance, "read line; seq 100000; echo the-end; read line")
    async with attached(instance) as stream:
        await stream.send_all(b"\r")
        await trio.testing.wait_all_tasks_blocked(0.1)
        await sees(stream, b"the-end")


async def test_a_connection_that_is_cut(instance: ExecInstance, keeper: relayed.Pod, server: ExecServer) -> None:
    """The terminal hangs up; the process goes on, and can be seen again."""
    await start(instance)
    async with attached(instance) as stream:
        await sees(stream, b"begun")
        await server.cut()
        await hangs_up(stream)
    await until_async(lambda: clients(keeper) == [])
    async with attached(instance) as stream:
        await stream.send_all(b"again\r")
        await sees(stream, b"<again>")


async def test_tmux_says_why_it_cannot(instance: ExecInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    await start(instance)
    monkeypatch.setattr(instance._shared, "sockets", "/absent")
    error = await refused_async("provider_unavailable", instance.open_terminal("t1", rows=24, cols=80, term="xterm"))
    assert "/absent/t1.tmux" in error.message
    assert error.message.isprintable()


async def test_a_pod_that_is_gone(instance: ExecInstance, server: ExecServer) -> None:
    await start(instance)
    server.rejection = (404, b'{"message": "pods \\"pod\\" not found"}')
    await refused_async("not_found", instance.open_terminal("t1", rows=24, cols=80, term="xterm"))


@pytest.mark.parametrize("says", [b"", b"pid 7\r\n", b"noise " * 100_000])
async def test_a_viewer_that_shows_nothing(
    instance: ExecInstance, server: ExecServer, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    monkeypatch.setattr(terminal, "DEADLINE_S", 0.2)

    async def script(connection: WebSocketConnection) -> None:
        await connection.send_message(b"\x01" + says)
        while True:
            await connection.get_message()

    await start(instance)
    server.script = script
    error = await refused_async("provider_unavailable", instance.open_terminal("t1", rows=24, cols=80, term="xterm"))
    assert len(error.message) < 800


async def test_not_too_many(instance: ExecInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MAX_TERMINALS", 1)
    await start(instance)
    async with attached(instance):
        error = await refused_async(
            "provider_unavailable", instance.open_terminal("t1", rows=24, cols=80, term="xterm")
        )
        assert "maximum of 1" in error.message

    async def again() -> None:
        async with attached(instance) as stream:
            await sees(stream, b"begun")

    await until_async(lambda: isinstance(instance._viewers, RemoteViewers) and instance._viewers.shown == 0)
    await again()


async def test_those_of_an_earlier_daemon_are_ended(
    instance: ExecInstance, keeper: relayed.Pod, server: ExecServer
) -> None:
    await start(instance)
    async with attached(instance) as stream:
        await sees(stream, b"begun")
        assert isinstance(instance._viewers, RemoteViewers)
        await instance._viewers.end_earlier()
        await hangs_up(stream)
        await until_async(lambda: clients(keeper) == [])


async def test_cancelled(instance: ExecInstance, keeper: relayed.Pod, server: ExecServer) -> None:
    await start(instance)
    for delay_s in (0.0, 0.01, 0.03):
        with trio.move_on_after(delay_s) as scope:
            os.close(await instance.open_terminal("t1", rows=24, cols=80, term="xterm"))
        del scope
    await until_async(lambda: clients(keeper) == [])
    with trio.fail_after(DEADLINE_S):
        await server.no_processes()
