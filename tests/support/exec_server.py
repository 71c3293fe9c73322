"""A websocket server that runs commands as an API server does in pods: real processes of this machine.

It is made of trio-websocket, with which the code under test shares the framing, but neither handshake nor channels.
"""

import fcntl
import json
import os
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, wrap_server_stream

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"

Handler = Callable[[Any], Awaitable[None]]


class ExecServer:
    """A server on a port of its own. `rejection` refuses requests; `script` answers them in place of a command; no
    terminal is read before `reads` is set.
    """

    def __init__(self) -> None:
        self.port = 0
        self.speaks = [V5, V4]
        self.rejection: tuple[int, bytes] | None = None
        self.script: Callable[[WebSocketConnection], Awaitable[None]] | None = None
        self.requests: list[WebSocketRequest] = []
        self.connections: list[WebSocketConnection] = []
        self.processes: list[trio.Process] = []
        self.sizes: list[tuple[int, int]] = []
        self.reads = trio.Event()
        self.reads.set()

    async def handle(self, request: WebSocketRequest) -> None:
        self.requests.append(request)
        if self.rejection is not None:
            await request.reject(self.rejection[0], body=self.rejection[1])
            return
        chosen = next((name for name in request.proposed_subprotocols if name in self.speaks), None)
        connection = await request.accept(subprotocol=chosen)
        self.connections.append(connection)
        with suppress(ConnectionClosed):
            if self.script is not None:
                await self.script(connection)
            else:
                await self._run(connection, parse_qs(urlsplit(request.path).query, keep_blank_values=True))

    async def _run(self, connection: WebSocketConnection, query: dict[str, list[str]]) -> None:
        command = query["command"]
        if query.get("tty") == ["true"]:
            code = await self._with_terminal(connection, command)
        else:
            code = await self._with_pipes(connection, command, has_stdin=query.get("stdin") == ["true"])
        await connection.send_message(b"\x03" + status(code))

    async def _with_pipes(self, connection: WebSocketConnection, command: list[str], *, has_stdin: bool) -> int:
        stdin = subprocess.PIPE if has_stdin else subprocess.DEVNULL
        process = await trio.lowlevel.open_process(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self.processes.append(process)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._feed, connection, process.stdin, None)
            async with trio.open_nursery() as outputs:
                outputs.start_soon(_forward, connection, b"\x01", process.stdout)
                outputs.start_soon(_forward, connection, b"\x02", process.stderr)
            code = await process.wait()
            nursery.cancel_scope.cancel()
        return code

    async def _with_terminal(self, connection: WebSocketConnection, command: list[str]) -> int:
        controlling, terminal = os.openpty()
        process = await trio.lowlevel.open_process(
            ["setsid", "-c", *command], stdin=terminal, stdout=terminal, stderr=terminal
        )
        self.processes.append(process)
        os.close(terminal)
        async with trio.lowlevel.FdStream(controlling) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._feed, connection, stream, controlling)
            await self.reads.wait()
            with suppress(trio.BrokenResourceError):  # the end of a terminal
                await _forward(connection, b"\x01", stream)
            code = await process.wait()
            nursery.cancel_scope.cancel()
        return code

    async def _feed(
        self, connection: WebSocketConnection, stdin: trio.abc.SendStream | None, terminal: int | None
    ) -> None:
        """Pass channel 0 to the command, until that or the connection ends, which ends its stdin, if that is a pipe."""
        with suppress(ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                message = await connection.get_message()
                assert isinstance(message, bytes)
                if message[0] == 4 and terminal is not None:
                    size = json.loads(message[1:])
                    self.sizes.append((size["Height"], size["Width"]))
                    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *self.sizes[-1], 0, 0))
                elif message[:2] == b"\xff\x00":
                    break
                elif message[0] == 0 and stdin is not None:
                    await stdin.send_all(message[1:])
        if stdin is not None and terminal is None:  # whoever has a terminal learns nothing of it
            await stdin.aclose()

    async def cut(self) -> None:
        """Cut all connections, as a network does."""
        for connection in self.connections:
            await trio.aclose_forcefully(connection._stream)

    async def kill_all(self) -> None:
        """Kill all commands that run, and reap them."""
        with trio.CancelScope(shield=True):
            for process in self.processes:
                process.kill()
                await process.wait()

    async def no_processes(self) -> None:
        """Wait until no command runs any more."""
        for process in self.processes:
            await process.wait()


def status(code: int) -> bytes:
    """Return the Status of a command that ended: negative codes are signals, which the kubelet adds to 128."""
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    exit_code = code if code > 0 else 128 - code
    message = f"command terminated with non-zero exit code: exit status {exit_code}"
    causes = [{"reason": "ExitCode", "message": str(exit_code)}]
    document = {"status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": {"causes": causes}}
    return json.dumps(document).encode()


async def _forward(connection: WebSocketConnection, channel: bytes, source: trio.abc.ReceiveStream | None) -> None:
    assert source is not None
    async for data in source:
        with suppress(ConnectionClosed):  # the command is not told
            await connection.send_message(channel + bytes(data))


@asynccontextmanager
async def exec_server(tls: SSLContext | None = None) -> AsyncIterator[ExecServer]:
    """Serve for the length of a block; then all commands are killed."""
    server = ExecServer()

    async def accept(stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        with suppress(trio.BrokenResourceError):
            if isinstance(stream, trio.SSLStream):
                await stream.do_handshake()
            async with trio.open_nursery() as connection_nursery:
                request = await wrap_server_stream(connection_nursery, stream)
                await server.handle(request)
                await request._connection.aclose()

    serve = partial(trio.serve_tcp, accept, 0) if tls is None else partial(_serve_tls, accept, tls)
    try:
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(serve, host="127.0.0.1"))
            server.port = (listener.transport_listener if tls else listener).socket.getsockname()[1]
            yield server
            nursery.cancel_scope.cancel()
    finally:
        await server.kill_all()  # those, too, that were just starting


async def _serve_tls(accept: Handler, context: SSLContext, **options: Any) -> None:
    await trio.serve_ssl_over_tcp(accept, 0, context, https_compatible=True, **options)
