"""Requests that the engine answers by a stream of documents, for any length of time: builds and pulls.

They run in threads. On cancellation the connection is cut, by which the engine recognises that the result is not wanted
any more, and stops its work.
"""

import socket
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
import trio

from sandkeep.errors import ProviderError, SandkeepError
from sandkeepd.providers.docker.engine import Client, Engine

MOST_LINE_BYTES: Final = 8 * 1024 * 1024
"""Maximum length of a document, which is one line; the engine's own are never so long."""

KNOCK_S: Final = 1.0
"""Seconds between probes of the engine meanwhile."""

ENDED_S: Final = 10.0
"""Seconds that a thread whose connection was cut may take to notice."""

_PIECE_BYTES: Final = 64 * 1024
_MALFORMED: Final = "the Docker engine's answer is malformed: check that DOCKER_HOST is a Docker engine"

Document = dict[str, Any]


class StreamedRequest:
    """One request. `body` yields its data in pieces; `receive` gets each document of the answer, in the thread."""

    def __init__(
        self,
        path: str,
        params: Mapping[str, str],
        receive: Callable[[Document], None],
        body: Generator[bytes] | None = None,
        headers: Callable[[Client], dict[str, str]] = lambda _: {},
    ) -> None:
        self._path = path
        self._params = params
        self._receive = receive
        self._body = body
        self._headers = headers
        self._cut = threading.Event()
        self._response: Any = None
        self.began = False

    async def run(self, engine: Engine) -> None:
        """Send the request, and read the whole answer. Raises as `Engine.stream` does, and the errors of `body` and
        `receive`.
        """
        ended = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def work(client: Client) -> None:
            self.began = True
            try:
                self._ask(client)
            except Exception:
                if not self._cut.is_set():  # else it says nothing about the engine
                    raise
            finally:
                client.close()
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(ended.set)

        try:
            await engine.stream(work)
        except trio.Cancelled:
            self.cut()
            with trio.CancelScope(shield=True), trio.move_on_after(ENDED_S if self.began else 0):
                await ended.wait()
            raise

    async def run_while_awake(self, engine: Engine) -> None:
        """Do as `run`, for work that never waits for others: if the engine hangs meanwhile, give up. Raises
        `provider_unavailable` then.
        """
        failures: list[SandkeepError] = []

        async def ask() -> None:
            try:
                await self.run(engine)
            except SandkeepError as error:
                failures.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not failures:
                await trio.sleep(KNOCK_S)
                try:
                    await engine.answer()
                except SandkeepError as error:
                    failures.append(error)
            nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]

    async def run_while_heard(self, engine: Engine, silence_s: float) -> bool:
        """Do as `run`, for work that waits for others. Returns False if it was given up as nothing came for so long."""
        token = trio.lowlevel.current_trio_token()
        receive = self._receive

        def take(document: Document) -> None:
            token.run_sync_soon(extend)
            receive(document)

        def extend() -> None:
            scope.deadline = trio.current_time() + silence_s

        self._receive = take
        with trio.move_on_after(silence_s) as scope:
            await self.run(engine)
        return not scope.cancelled_caught

    def cut(self) -> None:
        """Break it off. From any thread."""
        self._cut.set()
        if self._response is not None:
            _shut(self._response)

    def _ask(self, client: Client) -> None:
        import requests
        from docker.errors import create_api_error_from_http_exception

        try:
            self._response = client.post(
                f"{client.base_url}/v{client.api_version}{self._path}",
                params=self._params, data=self._body and self._until_cut(self._body), headers=self._headers(client),
                stream=True, timeout=None,
            )  # fmt: skip
            if self._cut.is_set():
                return
            try:
                self._response.raise_for_status()
            except requests.HTTPError as error:
                create_api_error_from_http_exception(error)
            for line in self._lines():
                self._receive(_document(line))
        finally:
            if self._body is not None:
                self._body.close()
            if self._response is not None:
                self._response.close()

    def _until_cut(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._cut.is_set():
                raise ProviderError("provider_unavailable", "the request to the Docker engine was cancelled")
            yield piece

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        for piece in self._response.iter_content(_PIECE_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line for line in lines if line.strip())
            if len(rest) > MOST_LINE_BYTES:
                raise ProviderError("provider_unavailable", _MALFORMED)
        if rest.strip():
            yield rest


def report_from_thread(progress: Callable[[str], Awaitable[None]]) -> Callable[[str], None]:
    """Return `progress` for use in a thread. Raises `Cancelled` there when the caller is gone."""
    return lambda message: trio.from_thread.run(progress, message)


def _document(line: bytes) -> Document:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ProviderError("provider_unavailable", _MALFORMED) from None


def _shut(response: Any) -> None:
    """End a connection on which another thread waits: closing alone would not wake it."""
    with suppress(AttributeError, OSError, ValueError):
        reader = response.raw._fp.fp.raw  # noqa: SLF001 - as the SDK finds it, for its own streams
        reader._sock.shutdown(socket.SHUT_RDWR)  # noqa: SLF001
