"""Commands in pods: an exec of the API server as a stream of trio."""

import os
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError, StateError
from sandkeep_store.threads import in_abandoned_thread
from sandkeepd.providers.common.remote import BrokenExecError, Outcome, RemoteStream, UnansweredError, readable
from sandkeepd.providers.kubernetes import channels
from sandkeepd.providers.kubernetes.channels import Demultiplexer
from sandkeepd.providers.kubernetes.endpoint import Endpoint, read_endpoint
from sandkeepd.providers.kubernetes.requests import UNAUTHORIZED, UnauthorizedError, redacted
from sandkeepd.providers.kubernetes.websocket import CLOSE_S, RejectedError, WebSocket

if TYPE_CHECKING:
    from kubernetes.client import Configuration

CONNECT_S: Final = 30.0
"""Seconds that the API server may take to begin an exec."""

PIECE_BYTES: Final = 64 * 1024
"""Maximum bytes of stdin in one message."""


class ExecStream(RemoteStream):
    """A command in a pod. See `RemoteStream`.

    Nothing is read ahead, so a command whose output nobody receives is held up, also when that is stderr. Raises
    `trio.BusyResourceError` when two tasks receive.
    """

    def __init__(self, socket: WebSocket, server: str) -> None:
        super().__init__()
        self._socket = socket
        self._server = server
        self._demultiplexer = Demultiplexer()
        self._status = bytearray()

    @property
    def outcome(self) -> Outcome | None:
        """The end of the command, once all its output was received."""
        return channels.outcome(bytes(self._status)) if self._is_over and self._status else None

    def probe(self) -> None:
        """Notice soon from now on when nothing comes after something was sent."""
        self._socket.is_probed = True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write to stdin; wait for room in the connection."""
        rest = memoryview(data)
        while rest:
            await self._send(channels.STDIN + rest[:PIECE_BYTES])
            rest = rest[PIECE_BYTES:]

    async def close_stdin(self) -> None:
        """Close stdin, so that the command reads its end. Raises `not_supported` where only `aclose` can do that."""
        if self._socket.subprotocol != channels.V5:
            message = "the API server cannot close the stdin of a command in a pod: Kubernetes 1.30 and later can"
            raise SetupError("not_supported", message)
        await self._send(channels.CLOSE_STDIN)

    async def resize(self, rows: int, cols: int, pid: int | None = None) -> None:
        """Give the command's terminal a size."""
        await self._send(channels.resize_message(rows, cols))

    async def _send(self, message: bytes) -> None:
        try:
            await self._socket.send(message)
        except trio.BrokenResourceError as error:
            raise BrokenExecError(*error.args) from None

    async def _receive(self) -> bytes:
        try:
            # What comes after the status is the connection's end, which the command's end does not depend on.
            received = await self._socket.receive(CLOSE_S if self._status else None)
        except trio.BrokenResourceError as error:
            if not self._status:
                raise BrokenExecError(*error.args) from None
            received = None
        if received is None:
            if not self._status:
                raise BrokenExecError(self._socket.close_reason)
            self._is_over = True
            return b""
        return self._take(*received)

    def _take(self, piece: bytes, is_last: bool) -> bytes:
        channel, data = self._demultiplexer.feed(piece, is_last=is_last)
        if channel == channels.STDOUT:
            return data
        if channel == channels.STDERR:
            self._append_stderr(data)
        elif channel == channels.STATUS:
            self._status += data
            if len(self._status) > channels.MAX_STATUS_BYTES:
                raise BrokenExecError("its report of the command's end is too long")
        return b""  # there is nothing else that a later server could say and we would have to know

    def unavailable(self, error: BrokenExecError) -> ProviderError:
        """Return the error of the daemon's for a connection that broke."""
        return _unavailable(self._server, error)

    async def aclose(self) -> None:
        """Close the connection. The command is not ended by that; it reads the end of its stdin."""
        await self._socket.aclose()


@asynccontextmanager
async def open_exec(
    configuration: "Configuration",
    namespace: str,
    pod: str,
    command: Sequence[str],
    *,
    container: str | None = None,
    stdin: bool = True,
    stderr: bool = True,
    tty: bool = False,
) -> AsyncIterator[ExecStream]:
    """Run a command in a pod's container for the length of a block, which closes the connection at its end.

    Raises `provider_unavailable` when the API server does not answer, and when the connection breaks within the block;
    `not_found` and `not_ready` when there is no such pod or it does not run, `not_configured` when the daemon may not.
    """
    endpoint = await in_abandoned_thread(read_endpoint, configuration)
    path = channels.exec_path(
        namespace, pod, command, container, stdin=stdin, stdout=True, stderr=stderr and not tty, tty=tty
    )
    stream = ExecStream(await _connect(endpoint, path, pod), endpoint.host_header)
    try:
        yield stream
    except BrokenExecError as error:
        raise stream.unavailable(error) from None
    finally:
        await stream.aclose()


async def _connect(endpoint: Endpoint, path: str, pod: str) -> WebSocket:
    try:
        with trio.fail_after(CONNECT_S):
            socket = WebSocket(await endpoint.connect())
            try:
                target = endpoint.prefix + path
                await socket.handshake(endpoint.host_header, target, (channels.V5, channels.V4), endpoint.headers)
                if socket.subprotocol is None:
                    raise trio.BrokenResourceError("it speaks no protocol for commands that Sandkeep knows")
            except BaseException:
                await socket.abort()
                raise
            return socket
    except RejectedError as error:
        body = redacted(error.body.decode("utf-8", "replace"), (value for _, value in endpoint.headers))
        reason = channels.status_message(body.encode()) or f"HTTP {error.status}"
        raise _refused(error.status, reason, pod) from None
    except trio.TooSlowError:
        raise _unavailable(endpoint.host_header, f"it took longer than {CONNECT_S:.0f} s") from None
    except (OSError, trio.BrokenResourceError) as error:
        raise _unavailable(endpoint.host_header, _cause(error)) from None


def _cause(error: BaseException) -> str:
    """Return the words of the system or of TLS itself, for the first address of several."""
    cause = error.__cause__ or error
    cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause
    number = cause.errno if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) else None
    return os.strerror(number) if number is not None and number > 0 else str(cause)


def _unavailable(server: str, why: object) -> ProviderError:
    reason = readable(str(why)) or "the connection broke"
    message = f"the API server at {server} does not answer: {reason}: see that the cluster runs"
    return UnansweredError("provider_unavailable", message, engine="kubernetes")


NO_REASON: Final = "HTTP 403"
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_NOT_READY: Final = (400, 409)


def _refused(status: int, reason: str, pod: str) -> SandkeepError:
    """Return the error for an exec that the API server refused."""
    if status == UNAUTHORIZED:
        return UnauthorizedError(reason)
    if status == _FORBIDDEN and reason == NO_REASON:
        message = f"the API server refused the way in which a command in pod {pod} is to be run, without a reason"
        return ProviderError("provider_unavailable", message)
    if status == _FORBIDDEN:
        message = f"the daemon may not run commands in pods: {reason}: see the roles in docs/how-to/kubernetes.md"
        return SetupError("not_configured", message, setting="KUBECONFIG")
    if status == _NOT_FOUND:
        return CallerError("not_found", f"cannot run a command in pod {pod}: {reason}", pod=pod)
    if status in _NOT_READY:
        return StateError("not_ready", f"cannot run a command in pod {pod}: {reason}", pod=pod)
    message = f"the API server failed to run a command in pod {pod}: {reason}"
    return ProviderError("provider_unavailable", message, engine="kubernetes")
