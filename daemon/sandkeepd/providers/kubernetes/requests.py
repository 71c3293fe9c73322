"""Requests to the API server, and its answers: typed, and bounded in size and time, as it may lie or never end.

The official client has the configuration, the credentials and the connections. All of this blocks. Errors are one
sentence, and never contain the token, which a server could quote.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec

from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError
from sandkeepd.providers.common.remote import readable
from sandkeepd.providers.kubernetes.endpoint import authorization
from sandkeepd.providers.kubernetes.observed import Event, Failure

if TYPE_CHECKING:
    from kubernetes.client import Configuration

T = TypeVar("T")
U = TypeVar("U")

ENGINE: Final = "kubernetes"

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
"""Seconds that the API server may take to accept a connection, and until its next byte."""

CALL_S: Final = 60.0
"""Seconds that a whole answer may take."""

PAGE_BYTES: Final = 16 * 1024**2
"""Maximum length of an answer, and of a page of a list."""

LIST_BYTES: Final = 64 * 1024**2
LIST_OBJECTS: Final = 50_000
"""Maximum length of a list, and maximum number of its objects; a watch has no more objects either."""

EVENT_BYTES: Final = 4 * 1024**2
"""Maximum length of an event; objects in etcd have 1.5 MiB at most."""

_PIECE: Final = 64 * 1024
_REFUSAL_BYTES: Final = 64 * 1024

NOT_FOUND: Final = 404
CONFLICT: Final = 409
GONE: Final = 410
UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_INVALID: Final = (400, 422)
_BUSY: Final = (429, 503)
_SERVER_ERROR: Final = 500


_event: Final = msgspec.json.Decoder(Event).decode
_failure: Final = msgspec.json.Decoder(Failure).decode


class UnderWay:
    """The connection that a thread waits for, which another can end."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None

    def run(self, work: Callable[[U], T], argument: U) -> T:
        """Run some work in this thread."""
        _thread.under_way = self
        try:
            return work(argument)
        finally:
            _thread.under_way = None

    def abort(self) -> None:
        """End the connection, and with it the work that reads from it."""
        if self.socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # TLS's own is for one thread at a time


class _Thread(threading.local):
    under_way: UnderWay | None = None


_thread: Final = _Thread()


def _abortable(pool: Any) -> Any:
    """Return a class of connection pools whose connections make themselves known to `UnderWay`."""

    class Connection(pool.ConnectionCls):  # type: ignore[misc]
        def request(self, *args: Any, **options: Any) -> None:
            super().request(*args, **options)
            if _thread.under_way is not None:
                _thread.under_way.socket = self.sock  # here, as the response of a server that closes takes it

    return type(pool.__name__, (pool,), {"ConnectionCls": Connection})


class NonsenseError(ProviderError):
    """Raised for an answer that no API server gives."""


class RefusedError(ProviderError):
    """Raised when the API server refused a request: `status` is that of HTTP, `reason` the server's sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__("provider_unavailable", f"the cluster refused: {reason}")
        self.status = status
        self.reason = reason


class BusyError(ProviderError):
    """Raised when the API server did not do what was requested, and may soon, as while it starts."""

    def __init__(self, reason: str) -> None:
        super().__init__("provider_unavailable", f"the API server failed: {reason}", engine=ENGINE)


class ForbiddenError(SetupError):
    """Raised when the daemon may not do something, or while the API server does not know yet that it may."""

    def __init__(self, reason: str) -> None:
        message = (
            f"the daemon may not do that in the cluster: {reason}: see the roles in docs/how-to/kubernetes.md, and "
            "that nobody has deleted the namespace"
        )
        super().__init__("not_configured", message, setting="KUBECONFIG")


class UnauthorizedError(SetupError):
    """Raised when the API server does not know the daemon's credentials (any more)."""

    def __init__(self, why: str) -> None:
        message = (
            f"the cluster does not know the daemon's credentials (401: {why}): they have expired or were revoked: "
            "renew those in KUBECONFIG"
        )
        super().__init__("not_configured", message, setting="KUBECONFIG")


class Requests:
    """Sends requests with the connections of the official client. Raises `provider_unavailable` when the server does
    not answer, or with nonsense, `RefusedError` when it refuses, `invalid` for an object that it finds malformed, and
    `not_configured` when the daemon may not do that.
    """

    def __init__(self, configuration: "Configuration") -> None:
        from kubernetes.client import ApiClient

        self.configuration = configuration
        self.server = configuration.host.rpartition("@")[2]
        # The client's classes of API groups check requests by models, of which those of the core alone take 21 MiB.
        self._client = ApiClient(configuration)
        self._pool: Any = self._client.rest_client.pool_manager
        kinds = self._pool.pool_classes_by_scheme
        self._pool.pool_classes_by_scheme = {scheme: _abortable(kind) for scheme, kind in kinds.items()}

    def ask(self, method: str, path: str, read: Callable[[bytes], T], body: Any = None, **query: object) -> T:
        """Send a request; return the answer, as `read` decodes it."""
        return self.decoded(self.fetch(method, path, body, **query), read)

    def fetch(self, method: str, path: str, body: Any = None, **query: object) -> bytes:
        """Send a request; return the answer, of `PAGE_BYTES` at most."""
        deadline = time.monotonic() + CALL_S
        with self.errors():
            return self._read(self._send(method, path, body, ANSWER_S, query), PAGE_BYTES, deadline)

    def watch(self, path: str, seconds: int, **query: object) -> Iterator[Event]:
        """Yield the events of a watch, which the server ends after `seconds`. Raises `RefusedError` for one of type
        ``ERROR``.
        """
        query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": seconds}
        deadline = time.monotonic() + seconds + ANSWER_S
        with self.errors():
            response = self._send("GET", path, None, seconds + ANSWER_S, query)
        try:
            for line in self._lines(response, deadline):
                event = self.decoded(line, _event)
                if event.type == "ERROR":
                    failure = self.decoded(event.object, _failure)
                    raise RefusedError(failure.code, self.readable(failure.message))
                yield event
        finally:
            response.close()

    def _lines(self, response: Any, deadline: float) -> Iterator[bytes]:
        rest = bytearray()
        while piece := self._receive(response, deadline):
            rest += piece
            if b"\n" in piece:
                *lines, tail = bytes(rest).split(b"\n")
                rest = bytearray(tail)
                yield from filter(None, lines)
            elif len(rest) > EVENT_BYTES:
                raise self.nonsense(f"an event of more than {EVENT_BYTES} bytes")

    def _receive(self, response: Any, deadline: float) -> bytes:
        with self.errors():
            piece: bytes = response.read1(_PIECE, decode_content=False)
        # The server should have ended it: a connection that only drips would be held for ever.
        return piece if time.monotonic() < deadline else b""

    def is_ready(self) -> bool:
        """Return True if the API server has started, and knows all roles."""
        try:
            self.fetch("GET", "/readyz")
        except SandkeepError:
            return False
        return True

    def decoded(self, data: bytes, read: Callable[[bytes], T]) -> T:
        """Return what `read` makes of a JSON document. Raises `provider_unavailable` if it is malformed."""
        try:
            return read(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.nonsense(str(error)) from None

    def nonsense(self, why: str) -> NonsenseError:
        """Return the error for an answer that no API server gives."""
        message = f"the API server at {self.server} sent an invalid response: {self.readable(why)}: see KUBECONFIG"
        return NonsenseError("provider_unavailable", message, engine=ENGINE)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()  # type: ignore[no-untyped-call]

    def _send(self, method: str, path: str, body: Any, timeout_s: float, query: dict[str, object]) -> Any:
        """Send a request; return the response, of which no more than the head was read, if it is none of refusal."""
        from urllib3 import Timeout

        url = f"{self.configuration.host}{path}"
        if given := {name: value for name, value in query.items() if value is not None}:
            url += f"?{urlencode(given)}"
        headers = {"Accept": "application/json", "User-Agent": "sandkeep", **self._credentials()}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        response = self._pool.urlopen(
            method, url, body=None if body is None else msgspec.json.encode(body), headers=headers,
            preload_content=False, redirect=False, retries=False,  # the daemon retries recorded work, and says so
            timeout=Timeout(connect=CONNECT_S, read=timeout_s),
        )  # fmt: skip
        if 200 <= response.status < 300:
            return response
        refusal = self._read(response, _REFUSAL_BYTES, time.monotonic() + ANSWER_S)
        raise self._refusal(int(response.status), self._sentence(refusal) or self.readable(response.reason))

    def _credentials(self) -> dict[str, str]:
        try:
            return dict(authorization(self.configuration))
        except Exception as error:  # noqa: BLE001 - plugins for credentials raise anything
            message = f"cannot use the credentials for the cluster at {self.server}: {error}: see KUBECONFIG"
            raise SetupError("not_configured", self.readable(message), setting="KUBECONFIG") from None

    def _read(self, response: Any, limit: int, deadline: float) -> bytes:
        """Read an answer to its end, by what each packet brings."""
        found, size = list[bytes](), 0
        try:
            while piece := response.read1(_PIECE, decode_content=False):
                size += len(piece)
                if size > limit:
                    raise self.nonsense(f"an answer of more than {limit} bytes")
                if time.monotonic() > deadline:
                    raise self.no_answer(f"it took longer than {CALL_S:.0f} s")
                found.append(piece)
        except BaseException:
            response.close()  # the rest of the answer would be taken for the next one
            raise
        return found[0] if len(found) == 1 else b"".join(found)

    # Errors

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors of the client as ours."""
        from urllib3.exceptions import HTTPError

        try:
            yield
        except (HTTPError, HTTPException, OSError) as error:
            raise self.no_answer(_cause(error)) from None
        except ValueError:  # whose text quotes the header, with the token
            message = f"the address of the cluster at {self.server}, or the token for it, is malformed: see KUBECONFIG"
            raise SetupError("not_configured", message, setting="KUBECONFIG") from None

    def no_answer(self, why: str) -> ProviderError:
        """Return the error for an API server that does not answer."""
        reason = self.readable(why).rstrip(":. ")
        message = f"the API server at {self.server} does not answer: {reason}: see that the cluster runs"
        return ProviderError("provider_unavailable", message, engine=ENGINE)

    def _refusal(self, status: int, reason: str) -> SandkeepError:
        reason = reason or f"HTTP {status}"
        if status == UNAUTHORIZED:
            return UnauthorizedError(reason)
        if status == _FORBIDDEN:
            return ForbiddenError(reason)
        if status in _INVALID:
            return CallerError("invalid", f"the cluster refused the object: {reason}")
        if 300 <= status < 400:
            return self.nonsense(f"a redirect (HTTP {status})")
        if status in _BUSY:
            return BusyError(reason)
        if status >= _SERVER_ERROR:
            return ProviderError("provider_unavailable", f"the API server failed: {reason}", engine=ENGINE)
        return RefusedError(status, reason)

    def _sentence(self, body: bytes) -> str:
        """Return the message of a Status."""
        try:
            return self.readable(_failure(body).message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""

    def readable(self, text: str) -> str:
        """Return a text of the server's as one line, without the token."""
        return readable(redacted(text, self.configuration.api_key.values()))


def _cause(error: Exception) -> str:
    """Return the system's own words for an error of the client, which has objects and their types in its."""
    from urllib3 import exceptions

    inner: object = error
    while isinstance(inner, BaseException):
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        if isinstance(inner, RemoteDisconnected):
            return "it closed the connection without an answer"
        if isinstance(inner, exceptions.IncompleteRead | IncompleteRead):
            return "it broke off its answer"
        if isinstance(inner, exceptions.TimeoutError) and not isinstance(inner, exceptions.NewConnectionError):
            return "it took too long"
        inner = inner.__cause__ or inner.__context__ or getattr(inner, "reason", None)
    return str(error)


def redacted(text: str, credentials: Iterable[str]) -> str:
    """Return a text without the tokens in the values of ``Authorization`` headers."""
    for value in credentials:
        if token := value.rpartition(" ")[2]:
            text = text.replace(token, "***")
    return text
