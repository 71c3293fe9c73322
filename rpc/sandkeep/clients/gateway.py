"""Requests to the HTTP gateway: blocking, each over a connection of its own, with errors as the SDK has them.

No redirect is followed, so that the API key stays with the host that was named.
"""

import json
import re
import socket
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from sandkeep.errors import SetupError, StateError, error_from
from sandkeep.settings.astraforge import API_KEY, API_URL, UNIX

T = TypeVar("T")

HTTP_STATUS: Final = "http_status"
"""The key of the status in the data of an error that the gateway answered."""

_DEFAULT_PATH: Final = "/api"


class Gateway:
    """The gateway at `url`, by default ``ASTRA_FORGE_API_URL``, with a key, by default ``ASTRA_FORGE_API_KEY``.

    `timeout_s` limits each wait for the gateway to go on; None is no limit. Raises `not_configured`.
    """

    def __init__(self, url: str | None, key: str | None, timeout_s: float | None) -> None:
        self.url = API_URL(None if url is None else {API_URL.name: url})
        self._key = API_KEY(None if key is None else {API_KEY.name: key}) or ""
        self._timeout_s = timeout_s
        if not re.fullmatch("[!-~]+", self._key):
            message = f"give an API key, or set {API_KEY.name}: `sandkeep key create NAME` makes one"
            raise SetupError("not_configured", message, setting=API_KEY.name)

    def request(self, verb: str, path: str, body: Mapping[str, Any] | bytes | None = None) -> bytes:
        """Return the body of the answer. Raises its error, with `HTTP_STATUS`; `not_ready` or `timeout` if there is no
        whole answer.
        """
        # The gateway refuses Python's NaN; msgspec would send null instead, which is no limit.
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection, prefix = self._connection()
        try:
            connection.request(verb, prefix + path, content, {"X-Api-Key": self._key})
            response = connection.getresponse()
            answer = response.read()
        except TimeoutError:
            message = f"{self.url} did not answer in time: the request may still be carried out"
            raise StateError("timeout", message) from None
        except (OSError, HTTPException) as error:
            message = f"{self.url} gave no answer ({error}): check that the daemon runs, with SANDKEEP_HTTP"
            raise StateError("not_ready", message) from error
        finally:
            connection.close()
        if response.status in (200, 201, 204):
            return answer
        try:
            problem = msgspec.json.decode(answer, type=_Problem)
        except msgspec.DecodeError:
            raise self._unexpected(f"{response.status} {response.reason}") from None
        raise error_from(problem.code, problem.detail, {**problem.data, HTTP_STATUS: response.status})

    def fetch(self, kind: type[T], verb: str, path: str, body: Mapping[str, Any] | bytes | None = None) -> T:
        """Return the JSON of the answer as a `kind`. Raises as `request` does."""
        answer = self.request(verb, path, body)
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise self._unexpected(str(error)) from None

    def _connection(self) -> tuple[HTTPConnection, str]:
        """Return a connection that is not open yet, and the path of the API."""
        if self.url.startswith(UNIX):
            return _UnixConnection(self.url.removeprefix(UNIX), timeout=self._timeout_s), _DEFAULT_PATH
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self._timeout_s), parts.path or _DEFAULT_PATH

    def _unexpected(self, answer: str) -> SetupError:
        message = f"{self.url} does not answer as Sandkeep's gateway does ({answer}): set {API_URL.name}"
        return SetupError("not_configured", message, setting=API_URL.name)


class _Problem(Struct, frozen=True):
    code: str
    detail: str
    data: dict[str, Any] = field(default_factory=dict)


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
