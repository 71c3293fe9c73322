"""The client of a Docker engine: the blocking SDK in threads, with deadlines, and its errors in our words.

An engine that is down is reported at once: nothing listens on its socket. One that hangs accepts connections and
answers none, so each request is preceded by a probe, and a slow one accompanied by probes; once it was found to hang,
all requests fail at once, also those already waiting, until it answers.
"""

import functools
import math
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import trio

from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError
from sandkeep.settings import docker
from sandkeep.system import extras
from sandkeep_store.threads import Threads, in_abandoned_thread

if TYPE_CHECKING:
    from docker import APIClient

Client: TypeAlias = "APIClient"
"""The SDK's client, which is imported on first use."""

T = TypeVar("T")

AT_ONCE: Final = 16
"""Maximum number of concurrent requests of one owner; more take no less time."""

ANSWER_S: Final = 5
"""Seconds that an engine may take to answer a probe."""

REQUEST_S: Final = 120
"""Seconds that one request may take on a busy machine."""

AGAIN_S: Final = 1.0
"""Seconds between the end of the engine's event stream and the next connection."""

INTERRUPTION_S: Final = 2.0
"""Seconds after the reconnection of its event stream in which an engine counts as one that was away."""

NOT_FOUND: Final = 404
CONFLICT: Final = 409

_POLL_S: Final = 0.05

Event = dict[str, Any]


class RefusedError(ProviderError):
    """Raised when the engine refused a request: `status` is that of HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__("provider_unavailable", f"the Docker engine refused: {reason}")
        self.status = status
        self.reason = reason


class Tolerate:
    """Suppresses refusals of the engine that have one of these HTTP statuses, in a block of calls of the SDK."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = statuses

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> bool:
        from docker.errors import APIError

        return isinstance(error, APIError) and error.status_code in self._statuses


def post(client: Client, path: str, body: Mapping[str, Any]) -> None:
    """Make a request that the SDK has no method for. Blocks. Raises the SDK's errors."""
    import requests
    from docker.errors import create_api_error_from_http_exception

    url = f"{client.base_url}/v{client.api_version}{path}"
    response = client.post(url, json=body, timeout=REQUEST_S)
    try:
        response.raise_for_status()
    except requests.HTTPError as refused:
        create_api_error_from_http_exception(refused)


def inspect_image(client: Client, name: str) -> dict[str, Any]:
    """Return the engine's document about an image. Raises `not_found`."""
    with Tolerate(NOT_FOUND):
        found: dict[str, Any] = client.inspect_image(name)  # type: ignore[no-untyped-call]
        return found
    raise CallerError("not_found", f"the image {name} is gone from the Docker engine: make it again")


def names_in(client: Client, repository: str, label: str) -> list[tuple[str, str | None]]:
    """Return the tags of the images that have names in a repository, each with the value of a label."""
    return [
        (tag, (image.get("Labels") or {}).get(label))
        for image in client.images(name=repository)
        for found, _, tag in (name.rpartition(":") for name in image.get("RepoTags") or ())
        if found == repository
    ]


class HangingError(ProviderError):
    """Raised when the engine does not answer, although its socket accepts connections."""


class _Request:
    """A request in flight, which can be abandoned; its thread may go on with it, until `finished`."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.begun = False
        self.finished = threading.Event()


class Engine:
    """One engine. The SDK is not imported, and no connection made, before the first request."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._in_thread = Threads(AT_ONCE, abandon_on_cancel=True)
        self._client: APIClient | None = None
        self._asking: APIClient | None = None
        self._hanging: HangingError | None = None
        self._hangs = trio.Event()
        self._is_watched = False
        self._under_way: set[_Request] = set()
        self._given_up: list[_Request] = []
        self._probing = trio.Lock()
        self._heard_since = -math.inf

    @property
    def path(self) -> str:
        """Its socket. Raises `not_configured`."""
        return self._path or docker.HOST()

    @property
    def has_socket(self) -> bool:
        """Return True if there is a socket at all, as there is wherever an engine was ever started."""
        with suppress(SetupError):
            return os.path.exists(self.path)
        return False

    async def call(self, work: Callable[[Client], T]) -> T:
        """Run some work with the SDK's client, in a thread, which is abandoned on cancellation. Raises
        `provider_unavailable` when the engine is down or hangs, and a `RefusedError` when it refuses.
        """
        self._require_awake()
        request = _Request()
        self._under_way.add(request)
        try:
            with request.scope:
                return await self._in_thread(self._run, work, request)
        except HangingError as error:
            self._note_hanging(error)
            raise
        finally:
            self._under_way.remove(request)
            if request.begun and not request.finished.is_set():
                self._given_up.append(request)
        self._require_awake()
        raise self._unavailable("timed out")  # it answered again at that instant

    async def answer(self) -> None:
        """Probe the engine. Raises as `call` does."""
        await self.call(_nothing)

    def _run(self, work: Callable[[Client], T], request: _Request) -> T:
        request.begun = True
        try:
            return self._work(work)
        finally:
            request.finished.set()

    def _require_awake(self) -> None:
        if self._hanging is not None:
            raise HangingError(self._hanging.code, self._hanging.message, **self._hanging.data)

    def _note_hanging(self, error: HangingError) -> None:
        if self._is_watched:
            self._hanging = error
            self._hangs.set()
            for request in self._under_way:
                request.scope.cancel()

    async def watch(self) -> None:
        """Watch for an engine that hangs during a request, and for its next answer. Runs until cancelled."""
        self._is_watched = True
        while True:
            with trio.move_on_after(ANSWER_S):
                await self._hangs.wait()
            self._hangs = trio.Event()
            if self._under_way or self._hanging is not None:
                while not await self._is_awake():
                    pass

    async def _is_awake(self) -> bool:
        try:
            await in_abandoned_thread(self._work, _nothing)
        except HangingError as error:
            self._note_hanging(error)
            return False
        except SandkeepError:
            pass  # it is down, and says so at once
        self._hanging = None
        return True

    async def drained(self) -> None:
        """Wait until no abandoned request runs any more."""
        while self._given_up:
            self._given_up = [request for request in self._given_up if not request.finished.is_set()]
            await trio.sleep(_POLL_S)

    async def stream(self, work: Callable[[Client], T]) -> T:
        """Run some work of any length, such as a build, in a thread, which is abandoned on cancellation."""
        return await trio.to_thread.run_sync(
            functools.partial(self._work, patiently=True), work,
            limiter=trio.CapacityLimiter(1), abandon_on_cancel=True,
        )  # fmt: skip

    def _work(self, work: Callable[[Client], T], *, patiently: bool = False) -> T:
        try:
            import requests
            from docker.errors import APIError, DockerException
        except ModuleNotFoundError:  # of docker, or of what that needs
            raise extras.incomplete("docker") from None

        try:
            client = self._awake()
            if not patiently:
                return work(client)
            with closing(self._connect(ANSWER_S)) as own:  # the work may be abandoned, and its connection with it
                own.timeout = None  # type: ignore[assignment]
                return work(own)
        except APIError as refused:
            raise RefusedError(refused.status_code or 500, _sentence(refused)) from None
        except (requests.RequestException, DockerException, OSError) as error:
            raise self._unavailable(error) from None

    def _awake(self) -> Client:
        """Return the client, once the engine has answered."""
        self._check_socket()
        self._asking = self._asking or self._connect(ANSWER_S)
        self._asking.ping()
        self._client = self._client or self._connect(REQUEST_S)
        return self._client

    def _check_socket(self) -> None:
        """Raise OSError when nothing listens. The SDK would leave a socket open each time."""
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(ANSWER_S)
            door.connect(self.path)

    def _connect(self, timeout_s: int) -> Client:
        """Connect with the engine's API version. Without one, the SDK asks for it first."""
        from docker import APIClient

        version = self._client.api_version if self._client is not None else "auto"
        return APIClient(f"unix://{self.path}", version=version, timeout=timeout_s, max_pool_size=AT_ONCE)

    def _unavailable(self, error: object) -> ProviderError:
        """Return the error for an engine that does not answer."""
        hangs = "timed out" in str(error).lower()
        why = "does not answer" if hangs else "is not running"
        message = f"the Docker engine at {self.path} {why}: start it, or set DOCKER_HOST to its socket"
        return (HangingError if hangs else ProviderError)("provider_unavailable", message, engine="docker")

    async def follow(self, filters: dict[str, Any], hear: Callable[[Event], None], begun: Callable[[], None]) -> None:
        """Follow events until cancelled; call `begun` each time from which on none is missed."""
        while True:
            with suppress(ProviderError, SetupError):
                await self._follow_once(filters, hear, begun)
            self._heard_since = math.inf
            await trio.sleep(AGAIN_S)

    def _begun(self, begun: Callable[[], None]) -> None:
        if self._heard_since == math.inf:
            self._heard_since = trio.current_time()
        begun()

    @property
    def was_away(self) -> bool:
        """Return True if its event stream broke off and is not connected, or was reconnected only a moment ago: it may
        have stopped.
        """
        return trio.current_time() < self._heard_since + INTERRUPTION_S

    async def recovered(self) -> None:
        """Wait until the engine answers again. Waiting tasks probe one after the other, and not at once."""
        while True:
            await trio.sleep(AGAIN_S)
            async with self._probing:
                with suppress(ProviderError):
                    await self.answer()
                    return

    async def _follow_once(
        self, filters: dict[str, Any], hear: Callable[[Event], None], begun: Callable[[], None]
    ) -> None:
        opened = []

        def read(client: Client) -> None:
            stream = client.events(decode=True, filters=filters)
            opened.append(stream)
            trio.from_thread.run_sync(self._begun, begun)
            for event in stream:
                trio.from_thread.run_sync(hear, event)

        try:
            await self.stream(functools.partial(_until_gone, read))
        finally:
            for stream in opened:
                with suppress(Exception):  # it has ended by itself
                    stream.close()

    def close(self) -> None:
        """Close the connections."""
        for client in (self._client, self._asking):
            if client is not None:
                client.close()
        self._client = self._asking = None


def _nothing(_client: Client) -> None:
    """Do nothing: the probe before each request is enough."""


def _until_gone(read: Callable[[Client], None], client: Client) -> None:
    """Read until the daemon has gone: an abandoned thread cannot report to it."""
    with suppress(trio.RunFinishedError, trio.Cancelled):
        read(client)


def _sentence(refused: Any) -> str:
    return " ".join(str(refused.explanation or refused).split())[:500]
