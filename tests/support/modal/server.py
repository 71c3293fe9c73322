"""The gRPC server of both services, and `/double` over HTTP, by which tests control it."""

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpclib.server
import msgspec
from aiohttp import web
from google.protobuf.message import Message
from grpclib import GRPCError, Status
from grpclib.const import Handler
from tests.support.doubles.faults import Faults
from tests.support.modal.faults import Fault

from modal._utils.grpc_utils import custom_detail_codec

_SERVES: Final = "_serves"


def serves(*names: str) -> Callable[[Any], Any]:
    """Mark a method as the implementation of calls: `async (request, call)`, for one answer or a stream of them."""

    def mark(method: Any) -> Any:
        setattr(method, _SERVES, names)
        return method

    return mark


@dataclass
class Call:
    """A call that is being served."""

    name: str
    stream: Any
    workspace: str = ""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata that the client sent with it."""
        return self.stream.metadata or {}


class Plane:
    """A service: its calls are the methods marked with `serves`; all others are not implemented."""

    def __init__(self) -> None:
        methods = [getattr(self, name) for name in dir(type(self))]
        self.calls = {name: method for method in methods for name in getattr(method, _SERVES, ())}

    def admit(self, call: Call, request: Any) -> None:
        """Check whether the caller may make this call. Raises GRPCError."""
        raise NotImplementedError


class _Lost(Exception):
    """The client gets no answer."""


class Service:
    """Serves planes on 127.0.0.1, and disturbs their calls as tests say."""

    def __init__(self, scripts: Mapping[str, Callable[..., Any]], blobs: Path) -> None:
        self._scripts = scripts
        self._blobs = blobs
        self._faults = Faults(Fault)
        self._calls: list[str] = []
        self._open: dict[Any, Call] = {}
        self._runner: web.ServerRunner | None = None
        self._server: grpclib.server.Server | None = None

    async def start(self, planes: Mapping[type, Plane]) -> tuple[str, str]:
        """Listen on free ports, and return the URLs of the service and of its control."""
        servables = [_Servable(base, plane, self._serve) for base, plane in planes.items()]
        self._server = grpclib.server.Server(servables, status_details_codec=custom_detail_codec)
        await self._server.start("127.0.0.1", 0)
        port = self._server._server.sockets[0].getsockname()[1]
        self._runner = web.ServerRunner(web.Server(self._handle_control, access_log=None), shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{port}", f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close all connections."""
        if self._server:
            self._server.close()
            await self._server.wait_closed()
        if self._runner:
            await self._runner.cleanup()

    # Calls

    async def _serve(self, plane: Plane, name: str, handler: Handler, stream: Any) -> None:
        call = Call(name, stream)
        task = asyncio.current_task()
        self._calls.append(name)
        self._open[task] = call
        fault = self._faults.match(name)
        try:
            if fault:
                await fault.disturb()
                if fault.before:
                    self._fail(fault, stream)
            await self._answer(plane, call, handler, fault)
        except _Lost:
            if not stream._stream._transport.is_closing():
                await stream.cancel()
        finally:
            del self._open[task]

    async def _answer(self, plane: Plane, call: Call, handler: Handler, fault: Fault | None) -> None:
        stream = call.stream
        request = await stream.recv_message()
        if request is None:
            return
        plane.admit(call, request)
        method = plane.calls.get(call.name)
        if method is None:
            raise GRPCError(Status.UNIMPLEMENTED, call.name)
        sent = 0
        if handler.cardinality.server_streaming:
            await stream.send_initial_metadata()
            async for reply in method(request, call):
                sent += reply.ByteSize()
                if fault and fault.after_bytes is not None and sent > fault.after_bytes:
                    self._fail(fault, stream)
                await stream.send_message(reply)
            reply = None
        else:
            reply = await method(request, call)
        if fault and not fault.before:
            self._fail(fault, stream)
        if reply is not None:
            await stream.send_message(reply)

    def _fail(self, fault: Fault, stream: Any) -> None:
        """Let a call fail as a fault says, if it says how."""
        if fault.drop:
            stream._stream._transport.abort()
            raise _Lost
        if fault.reset:
            raise _Lost
        error = fault.error()
        if error:
            raise error

    # Control

    async def _handle_control(self, request: web.BaseRequest) -> web.Response:
        if request.method == "PUT":
            return await self._take_blob(request)
        data = await request.read()
        body = json.loads(data) if data else {}
        try:
            answer = await self._control(request.method, request.path.removeprefix("/double/"), body)
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            return web.Response(status=400, text=f"{type(error).__name__}: {error}")
        return web.json_response(answer)

    async def _take_blob(self, request: web.BaseRequest) -> web.Response:
        """Keep what a client uploads at a URL that `BlobCreate` gave it."""
        digest = hashlib.md5()
        with (self._blobs / Path(request.path).name).open("wb") as file:
            async for data in request.content.iter_any():
                digest.update(data)
                file.write(data)
        return web.Response(headers={"ETag": f'"{digest.hexdigest()}"'})

    async def _control(self, method: str, what: str, body: dict[str, Any]) -> Any:
        match method, what:
            case "GET", "calls":
                return {"order": self._calls, "counts": Counter(self._calls), "open": self._names_open()}
            case "DELETE", "calls":
                self._calls.clear()
            case _, "faults":
                return self._faults.control(method, body)
            case "POST", "cut":
                return self._cut(body["call"], drop=body.get("drop", False))
            case "POST", _:
                return self._scripts[what](**body)
            case _:
                raise KeyError(what)
        return {}

    def _names_open(self) -> list[str]:
        return sorted(call.name for call in self._open.values())

    def _cut(self, pattern: str, *, drop: bool) -> int:
        """End calls that are being served: their streams, or the connections with everything on them."""
        found = {task: call for task, call in self._open.items() if re.fullmatch(pattern, call.name)}
        for task, call in found.items():
            transport = call.stream._stream._transport
            if drop:
                transport.abort()
            elif not transport.is_closing():
                call.stream._stream.reset_nowait()
            task.cancel()
        return len(found)


class _Servable:
    """A service for grpclib."""

    def __init__(self, base: Any, plane: Plane, serve: Callable[..., Awaitable[None]]) -> None:
        self._base = type(base.__name__, (base,), dict.fromkeys(base.__abstractmethods__))()
        self._plane = plane
        self._serve = serve

    def __mapping__(self) -> dict[str, Handler]:
        return {path: self._handler(path, handler) for path, handler in self._base.__mapping__().items()}

    def _handler(self, path: str, handler: Handler) -> Handler:
        name = path.rpartition("/")[2]

        async def serve(stream: Any) -> None:
            await self._serve(self._plane, name, handler, stream)

        return handler._replace(func=serve)


Replies = AsyncIterator[Message]
