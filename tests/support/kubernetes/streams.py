"""Exec over websockets, and logs."""

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import WSMsgType, web
from tests.support.doubles.processes import StartError
from tests.support.kubernetes.call import Call
from tests.support.kubernetes.errors import ApiError, not_found
from tests.support.kubernetes.kubelet_api import Exec, Kubelet
from tests.support.kubernetes.resources import Object
from tests.support.kubernetes.store import Store

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_CATCH_UP_SECONDS = 5
_LARGEST_FRAME = 64 << 20


class Streams:
    """Connections to the containers of pods, through the kubelet."""

    def __init__(self, store: Store, kubelet: Kubelet | None) -> None:
        self._store = store
        self._kubelet = kubelet
        self._open: dict[web.WebSocketResponse, Call] = {}

    async def exec(self, call: Call) -> web.StreamResponse:
        """Run a command in a container, on a websocket. Raises ApiError before the upgrade."""
        kubelet, pod = self._node(call)
        container = _container(call, pod)
        pod = await self._started(pod)
        socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=_LARGEST_FRAME, compress=False, autoping=True)
        if not socket.can_prepare(call.request).ok:
            raise ApiError(400, "BadRequest", "Upgrade request required")
        offered = call.request.headers.get("Sec-WebSocket-Protocol", "")
        if not {part.strip() for part in offered.split(",")} & set(PROTOCOLS):
            return web.Response(status=403)  # with nothing that says why
        command = call.query.getall("command", [])
        try:
            if not command:
                raise StartError("exec: no command")
            process = await kubelet.exec(pod, container, command, tty=call.flag("tty"), stdin=call.flag("stdin"))
        except StartError as error:
            await _tell_failure(call, socket, str(error))
            return socket
        try:
            await socket.prepare(call.request)
            self._open[socket] = call
            await _Session(call, socket, process).run()
        finally:
            self._open.pop(socket, None)
            await process.kill()
        return socket

    async def log(self, call: Call) -> web.StreamResponse:
        """Stream the output of a container."""
        kubelet, pod = self._node(call)
        chunks = kubelet.log(
            pod, _container(call, pod), follow=call.flag("follow"), tail_lines=call.number("tailLines")
        )
        first = await anext(chunks, b"")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(call.request)
        if first:
            await response.write(first)
        async for chunk in chunks:
            await response.write(chunk)
        return response

    def cut(self, namespace: str, pod: str) -> int:
        """Lose the exec connections of a pod (empty names: of all)."""
        cut = [
            call
            for call in self._open.values()
            if namespace in ("", call.namespace) and pod in ("", call.name) and call.request.transport
        ]
        for call in cut:
            if call.request.transport:
                call.request.transport.abort()
        return len(cut)

    def open(self) -> list[dict[str, Any]]:
        """The open exec connections."""
        return [
            {"namespace": call.namespace, "pod": call.name, "command": call.query.getall("command", [])}
            for call in self._open.values()
        ]

    async def _started(self, pod: Object) -> Object:
        """Let the kubelet catch up with a client that wrote phase Running itself, before any container ran."""
        meta = pod["metadata"]
        since = int(meta["resourceVersion"])
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(_CATCH_UP_SECONDS),
                contextlib.aclosing(self._store.watch("pods", meta["namespace"], since)) as events,
            ):
                while pod["status"].get("phase") == "Running" and not _has_run(pod):
                    pod = await anext(obj async for _, obj in events if obj["metadata"]["uid"] == meta["uid"])
        return pod

    def _node(self, call: Call) -> tuple[Kubelet, Object]:
        pod = self._store.get("pods", call.namespace, call.name or "")
        if pod is None:
            raise not_found("pods", call.name or "")
        if not pod["spec"].get("nodeName"):
            raise ApiError(400, "BadRequest", f"pod {call.name} does not have a host assigned")
        if self._kubelet is None:
            raise ApiError(500, "InternalError", "error dialing backend: connection refused")
        return self._kubelet, pod


def _container(call: Call, pod: Object) -> str:
    """Return the container that is meant. Raises ApiError where a pod has several and none is named."""
    spec = pod["spec"]
    names = [each["name"] for each in (*spec.get("initContainers", []), *spec["containers"])]
    wanted: str = call.query.get("container", "")
    if not wanted and len(spec["containers"]) > 1:
        choice = f"choose one of: [{' '.join(names)}]"
        raise ApiError(400, "BadRequest", f"a container name must be specified for pod {call.name}, {choice}")
    if wanted and wanted not in names:
        raise ApiError(400, "BadRequest", f"container {wanted} is not valid for pod {call.name}")
    return wanted or names[-1]


async def _tell_failure(call: Call, socket: web.WebSocketResponse, why: str) -> None:
    """Say on the socket that a command could not be started: there is no exit code then."""
    await socket.prepare(call.request)
    message = f"Internal error occurred: error executing command in container: failed to exec in container: {why}"
    status = {"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}
    await socket.send_bytes(bytes([ERROR]) + msgspec.json.encode(status))
    await socket.close()


class _Session:
    """One exec: its process and its websocket, on which every frame begins with the number of a channel."""

    def __init__(self, call: Call, socket: web.WebSocketResponse, process: Exec) -> None:
        self._call = call
        self._socket = socket
        self._process = process

    async def run(self) -> None:
        """Carry data until the process has ended and its output is sent, or the client is gone."""
        lowest = STDOUT if self._call.flag("stdout") else STDERR if self._call.flag("stderr") else ERROR
        output = asyncio.ensure_future(self._send_output())
        received = asyncio.ensure_future(self._receive())
        try:
            await self._socket.send_bytes(bytes([lowest]))  # tells old clients that the process has started
            done, _ = await asyncio.wait({output, received}, return_when=asyncio.FIRST_COMPLETED)
            if output not in done:
                return
            output.result()
            await self._socket.send_bytes(bytes([ERROR]) + msgspec.json.encode(_status(await self._process.wait())))
            await self._socket.close()
        except ConnectionError:
            return
        finally:
            for task in (output, received):
                task.cancel()
            await asyncio.gather(output, received, return_exceptions=True)

    async def _send_output(self) -> None:
        streams = [(STDOUT, "stdout", self._process.stdout)]
        if not self._call.flag("tty"):
            streams.append((STDERR, "stderr", self._process.stderr))
        await asyncio.gather(*(self._pump(channel, self._call.flag(name), s) for channel, name, s in streams))

    async def _pump(self, channel: int, wanted: bool, stream: AsyncIterator[bytes]) -> None:
        prefix = bytes([channel])
        async for data in stream:
            if wanted and data:
                await self._socket.send_bytes(prefix + data)

    async def _receive(self) -> None:
        """Take frames one at a time: the client waits as long as the process does not read."""
        async for message in self._socket:
            data = message.data.encode() if message.type == WSMsgType.TEXT else message.data
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY) and data:
                await self._take(data[0], data[1:])

    async def _take(self, channel: int, data: bytes) -> None:
        if channel == CLOSE and data == bytes([STDIN]) and self._socket.ws_protocol == PROTOCOLS[0]:
            await self._process.close_stdin()
        elif channel == STDIN and data and self._call.flag("stdin"):
            await self._write(data)
        elif channel == RESIZE:
            with contextlib.suppress(msgspec.DecodeError):
                size = msgspec.json.decode(data, type=dict[str, int])
                self._process.resize(size.get("Height", 0), size.get("Width", 0))

    async def _write(self, data: bytes) -> None:
        """Write to stdin. Raises ConnectionError if the client leaves while the process does not read."""
        writing = asyncio.ensure_future(self._process.write(data))
        try:
            while not (await asyncio.wait({writing}, timeout=1))[0]:
                if _is_gone(self._call):
                    raise ConnectionResetError
            with contextlib.suppress(BrokenPipeError):
                writing.result()
        finally:
            writing.cancel()


def _is_gone(call: Call) -> bool:
    """Tell whether the client has closed its connection, which asyncio does not see while it does not read from it."""
    transport = call.request.transport
    if transport is None:
        return True
    poll = select.poll()
    poll.register(transport.get_extra_info("socket"), select.POLLRDHUP)
    return bool(poll.poll(0))


def _has_run(pod: Object) -> bool:
    states = [status["state"] for status in pod["status"].get("containerStatuses", [])]
    return any("waiting" not in state or state["waiting"]["reason"] != "ContainerCreating" for state in states)


def _status(code: int) -> Object:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    message = f"command terminated with non-zero exit code: exit status {code}"
    causes = [{"reason": "ExitCode", "message": str(code)}]
    details = {"causes": causes}
    return {
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "NonZeroExitCode",
        "details": details,
    }
