"""Commands and files in a pod, over the exec stream of the API server.

Commands run in the container's own `/bin/sh`; files need its `cat`, `head`, `mkdir` and `wc`.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sandkeep.compat.agent_sandbox.cluster import Cluster
from sandkeep.errors import CallerError, ProviderError, SandkeepError, StateError
from sandkeep.kubernetes.api_errors import error_of

if TYPE_CHECKING:
    from websocket import WebSocket

MAX_OUTPUT_BYTES: Final = 256 << 20
"""Of one command or file; more is an error, as all of it is in memory."""

TIMEOUT_EXIT_CODE: Final = 124
"""Of a command that took too long, as that of `timeout`."""

_STDIN: Final = b"\0"
_STDOUT: Final = 1
_STDERR: Final = 2
_STATUS: Final = 3
_BINARY: Final = 2
_WITH_CLOSE: Final = "v5.channel.k8s.io"
_CLOSE_STDIN: Final = b"\xff\0"
_CHUNK_BYTES: Final = 32 << 10
_GRACE_S: Final = 10.0
"""Seconds that are left to the container to end a command whose time is up."""

_RUN: Final = 'command -v timeout >/dev/null && exec timeout -k 5 "$1" /bin/sh -c "$2"; exec /bin/sh -c "$2"'
_KILLED: Final = (TIMEOUT_EXIT_CODE, 128 + 9, 128 + 15)
# The end of stdin cannot be sent in version 4 of the protocol, hence the size. What a failure leaves of it is read, as
# the answer would be lost with a connection on which there is more to send.
_WRITE: Final = """\
case "$1" in */*) parent=${1%/*};; *) parent=;; esac
{ [ -z "$parent" ] || mkdir -p -- "$parent"; } && head -c "$2" >"$1" && [ "$(wc -c <"$1")" -eq "$2" ] && exit
head -c "$2" >/dev/null
exit 1"""
_READ: Final = 'cat <"$1"'


@dataclass
class ExecutionResult:
    """Output of a command, as UTF-8 with U+FFFD for what is invalid, and its exit code."""

    stdout: str
    stderr: str
    exit_code: int


class Container:
    """A container of a running pod; None is the pod's first."""

    def __init__(self, cluster: Cluster, pod_name: str, container: str | None) -> None:
        self._cluster = cluster
        self._pod_name = pod_name
        self._container = container

    def run(self, command: str, timeout_s: float) -> ExecutionResult:
        """Run a shell command. One that takes longer is killed, if the container has `timeout`; see `MAX_OUTPUT_BYTES`.

        Its exit code then is 124.
        """
        began = time.monotonic()
        argv = ["/bin/sh", "-c", _RUN, "sh", f"{timeout_s:g}", command]
        try:
            stdout, stderr, exit_code = self._exec(argv, timeout_s + _GRACE_S)
        except _LateError as late:
            stdout, stderr, exit_code = late.stdout, late.stderr, TIMEOUT_EXIT_CODE
        if exit_code in _KILLED and time.monotonic() - began >= timeout_s:
            exit_code = TIMEOUT_EXIT_CODE
        return ExecutionResult(stdout.decode(errors="replace"), stderr.decode(errors="replace"), exit_code)

    def write(self, path: str, content: bytes, timeout_s: float) -> None:
        """Write a file, and the directories above it. A relative path begins at the container's working directory."""
        self._file("written", path, [_WRITE, "sh", path, str(len(content))], timeout_s, content)

    def read(self, path: str, timeout_s: float) -> bytes:
        """Return the bytes of a file."""
        return self._file("read", path, [_READ, "sh", path], timeout_s)

    def _file(self, done: str, path: str, script: list[str], timeout_s: float, content: bytes = b"") -> bytes:
        if not path or "\0" in path:
            raise CallerError("invalid", f"path: {path!r} is not a path", field="path")
        try:
            stdout, stderr, exit_code = self._exec(["/bin/sh", "-c", *script], timeout_s, content)
        except _LateError:
            raise StateError("timeout", f"{path!r} was not {done} within {timeout_s:g} s") from None
        if exit_code != 0:
            why = " ".join(stderr.decode(errors="replace").split())[:500]
            raise CallerError("not_found", f"{path!r} cannot be {done}: {why or f'exit code {exit_code}'}", path=path)
        return stdout

    def _exec(self, argv: list[str], timeout_s: float, stdin: bytes = b"") -> tuple[bytes, bytes, int]:
        """Return stdout, stderr and the exit code. Raises `_LateError` with what there is of them."""
        deadline = time.monotonic() + timeout_s
        streams = {_STDOUT: bytearray(), _STDERR: bytearray(), _STATUS: bytearray()}
        try:
            with self._opened(argv, has_stdin=bool(stdin), timeout_s=timeout_s) as socket:
                for start in range(0, len(stdin), _CHUNK_BYTES):
                    _set_deadline(socket, deadline)
                    socket.send(_STDIN + stdin[start : start + _CHUNK_BYTES], opcode=_BINARY)
                if stdin and socket.getsubprotocol() == _WITH_CLOSE:
                    socket.send(_CLOSE_STDIN, opcode=_BINARY)
                for channel, data in _frames(socket, deadline):
                    if channel in streams:
                        streams[channel] += data
                    if sum(map(len, streams.values())) > MAX_OUTPUT_BYTES:
                        message = f"more than {MAX_OUTPUT_BYTES >> 20} MiB came out of {self._pod_name!r}: read less"
                        raise CallerError("invalid", message, field="command")
        except TimeoutError:
            raise _LateError(bytes(streams[_STDOUT]), bytes(streams[_STDERR])) from None
        return bytes(streams[_STDOUT]), bytes(streams[_STDERR]), _exit_code(bytes(streams[_STATUS]), self._pod_name)

    @contextmanager
    def _opened(self, argv: list[str], *, has_stdin: bool, timeout_s: float) -> Iterator["WebSocket"]:
        from kubernetes.client import ApiClient, CoreV1Api
        from kubernetes.client.exceptions import ApiException
        from kubernetes.stream import stream
        from websocket import WebSocketException, WebSocketTimeoutException

        # One for this call alone: `stream` replaces a method of its client for as long as it connects.
        client = ApiClient(self._cluster.client.configuration)
        try:
            opened = stream(
                CoreV1Api(client).connect_get_namespaced_pod_exec,
                self._pod_name,
                self._cluster.namespace,
                command=argv,
                **({"container": self._container} if self._container else {}),
                stdin=has_stdin,
                stdout=True,
                stderr=True,
                tty=False,
                _preload_content=False,
                _request_timeout=timeout_s,
            )
        except ApiException as error:
            raise _refusal(str(error.reason), f"a command in pod {self._pod_name!r}") from error
        try:
            yield opened.sock
        except WebSocketTimeoutException:
            raise TimeoutError from None
        except (WebSocketException, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise ProviderError(
                "provider_unavailable", f"the connection to {self._pod_name!r} broke: {error}"
            ) from error
        finally:
            opened.sock.shutdown()


class _LateError(Exception):
    """Time is up; the output so far."""

    def __init__(self, stdout: bytes, stderr: bytes) -> None:
        super().__init__()
        self.stdout = stdout
        self.stderr = stderr


def _frames(socket: "WebSocket", deadline: float) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of channels until the server closes. Raises TimeoutError at the deadline."""
    from websocket import ABNF

    while True:
        _set_deadline(socket, deadline)
        opcode, frame = socket.recv_data_frame(True)
        if opcode == ABNF.OPCODE_CLOSE:
            return
        if opcode in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and frame.data:
            yield frame.data[0], frame.data[1:]


def _set_deadline(socket: "WebSocket", deadline: float) -> None:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    socket.settimeout(left_s)


def _exit_code(status: bytes, pod_name: str) -> int:
    """Return the exit code in a `Status` object, which ends each exec. Raises if there is none."""
    try:
        said: Any = msgspec.json.decode(status)
        if said["status"] == "Success":
            return 0
        causes = said["details"]["causes"]
        return next(int(cause["message"]) for cause in causes if cause["reason"] == "ExitCode")
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, StopIteration):
        message = f"a command in {pod_name!r} ended without an exit code: {status[:500].decode(errors='replace')}"
        raise ProviderError("provider_unavailable", message) from None


def _refusal(reason: str, action: str) -> SandkeepError:
    """Return the error for a websocket that could not be opened, of which the client tells in one text."""
    refused = re.match(r"Handshake status (\d+)", reason)
    body = re.search(r"\{.*\}", reason.rpartition("-+-+-")[2])
    return error_of(int(refused[1]) if refused else 0, body[0].encode() if body else reason, action)
