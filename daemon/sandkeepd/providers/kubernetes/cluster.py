"""The API of a cluster: the blocking official client in threads, of one namespace.

Requests and answers are in `requests`, watches are in `watch`, execs in `exec`.
"""

import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote
from weakref import WeakSet

import msgspec
import trio

from sandkeep.errors import SandkeepError
from sandkeep.settings import kubernetes as settings
from sandkeep_store.threads import Threads, in_thread
from sandkeepd.providers.kubernetes import kubeconfig, requests
from sandkeepd.providers.kubernetes.kubeconfig import Seen
from sandkeepd.providers.kubernetes.observed import Event, Metadata, Observed
from sandkeepd.providers.kubernetes.requests import (
    CONFLICT,
    GONE,
    NOT_FOUND,
    BusyError,
    ForbiddenError,
    RefusedError,
    Requests,
    UnauthorizedError,
    UnderWay,
)

if TYPE_CHECKING:
    from kubernetes.client import Configuration

logger = logging.getLogger("sandkeepd")

T = TypeVar("T")

Json: TypeAlias = dict[str, Any]

AT_ONCE: Final = 16
"""Maximum number of concurrent requests."""

AGAIN_S: Final = 1.0
"""Seconds between attempts to reach an API server that did not answer."""

STARTING_S: Final = 15.0
"""Seconds for which requests are repeated that an API server refuses as it starts."""

_PAGE: Final = 200
"""Objects in a page of a list."""

_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class Kind(NamedTuple):
    """A kind of object: the API group (empty for the core), version, and plural name in requests."""

    group: str
    version: str
    plural: str


PODS: Final = Kind("", "v1", "pods")
CONFIG_MAPS: Final = Kind("", "v1", "configmaps")
NETWORK_POLICIES: Final = Kind("networking.k8s.io", "v1", "networkpolicies")


class Groups(msgspec.Struct, frozen=True):
    """The answer to discovery."""

    groups: list["_Group"]


class _Version(msgspec.Struct, frozen=True):
    version: str


class _Group(msgspec.Struct, frozen=True):
    name: str
    versions: list[_Version]


class _PageMetadata(msgspec.Struct, rename={"resource_version": "resourceVersion", "following": "continue"}):
    resource_version: str
    following: str | None = None


class _Page(msgspec.Struct):
    """A part of a list."""

    metadata: _PageMetadata
    items: list[msgspec.Raw]


_observed: Final = msgspec.json.Decoder(Observed).decode
_groups: Final = msgspec.json.Decoder(Groups).decode
_page: Final = msgspec.json.Decoder(_Page).decode
_any: Final = msgspec.json.Decoder(Json).decode


def read_document(data: bytes) -> Json:
    """Decode an object of any kind. Raises `msgspec.DecodeError`, also for one without a name or uid."""
    document = _any(data)
    msgspec.convert(document.get("metadata"), Metadata)
    return document


class Listed(NamedTuple):
    """The objects of a list, and the resource version from which a watch goes on. `malformed` were left out."""

    found: list[Any]
    version: str
    malformed: int


class Api:
    """Requests for one namespace. Every method blocks, and raises as `Requests` does."""

    def __init__(self, configuration: "Configuration", namespace: str) -> None:
        self.configuration = configuration
        self.namespace = namespace
        self.requests = Requests(configuration)
        self.address = f"{self.requests.server}/{namespace}"

    def create(self, kind: Kind, body: Json) -> Observed:
        """Create an object."""
        return self.requests.ask("POST", self._path(kind), _observed, body)

    def get(self, kind: Kind, name: str) -> Observed | None:
        """Return the fields of an object that matter here; None where there is none."""
        return self._get(kind, name, _observed)

    def document(self, kind: Kind, name: str) -> Json | None:
        """Return an object with all its fields; None where there is none."""
        return self._get(kind, name, read_document)

    def _get(self, kind: Kind, name: str, read: Callable[[bytes], T]) -> T | None:
        try:
            return self.requests.ask("GET", self._path(kind, name), read)
        except RefusedError as refused:
            if refused.status == NOT_FOUND:
                return None
            raise

    def patch(self, kind: Kind, name: str, body: Json) -> Observed:
        """Change an object by a merge patch."""
        return self.requests.ask("PATCH", self._path(kind, name), _observed, body)

    def delete(self, kind: Kind, name: str, uid: str | None = None, propagation: str = "Foreground") -> None:
        """Delete an object, if it is there and has that `uid`. It is gone once its finalizers are."""
        options: Json = {"propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            self.requests.fetch("DELETE", self._path(kind, name), options)
        except RefusedError as refused:
            # A conflict is a wrong uid here: another object has the name by now.
            if refused.status not in (NOT_FOUND, CONFLICT):
                raise

    def list(
        self, kind: Kind, selector: str, read: Callable[[bytes], Any] = _observed, *, fields: str | None = None
    ) -> Listed:
        """Return the objects with these labels and fields, each decoded by `read`.

        As dictionaries, a thousand pods take 50 MiB. An object that cannot be decoded hides no other.
        """
        found, malformed, size, following = list[Any](), 0, 0, None
        deadline = time.monotonic() + requests.CALL_S
        while True:
            data = self.requests.fetch(
                "GET", self._path(kind), labelSelector=selector or None, fieldSelector=fields, limit=_PAGE,
                **{"continue": following},
            )  # fmt: skip
            page = self.requests.decoded(data, _page)
            size += len(data)
            if size > requests.LIST_BYTES or len(found) + len(page.items) > requests.LIST_OBJECTS:
                raise self.requests.nonsense(f"too long a list of {kind.plural}")
            for item in page.items:
                try:
                    found.append(read(item))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    malformed += 1
            following = page.metadata.following
            if not following:
                return Listed(found, page.metadata.resource_version, malformed)
            if time.monotonic() > deadline:
                raise self.requests.nonsense(f"a list of {kind.plural} without an end")

    def watch(self, kind: Kind, selector: str, since: str, seconds: int, *, name: str | None = None) -> Iterator[Event]:
        """Watch from a version on, the object of that `name` alone, if any. The server ends that after `seconds`."""
        field_selector = None if name is None else f"metadata.name={name}"
        return self.requests.watch(
            self._path(kind), seconds, labelSelector=selector or None, fieldSelector=field_selector,
            resourceVersion=since,
        )  # fmt: skip

    def groups(self) -> Groups:
        """Return the API groups and their versions, as discovery answers."""
        return self.requests.ask("GET", "/apis/", _groups)

    def close(self) -> None:
        """Close the connections."""
        self.requests.close()

    def _path(self, kind: Kind, name: str = "") -> str:
        root = f"apis/{kind.group}" if kind.group else "api"
        path = f"/{root}/{kind.version}/namespaces/{quote(self.namespace, safe='')}/{kind.plural}"
        return f"{path}/{quote(name, safe='')}" if name else path


class _Timed:
    """Counts requests under way, as `limiter` does, and gives a scope its deadline when its turn has come."""

    def __init__(self, limiter: trio.CapacityLimiter, scope: trio.CancelScope, seconds: float) -> None:
        self._limiter = limiter
        self._scope = scope
        self._seconds = seconds

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self._limiter.acquire_on_behalf_of(borrower)
        self._scope.deadline = trio.current_time() + self._seconds

    def release_on_behalf_of(self, borrower: object) -> None:
        self._limiter.release_on_behalf_of(borrower)


class Cluster:
    """One namespace of one cluster. Nothing is imported, read or connected before the first request."""

    def __init__(self, kubeconfig: str | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._threads = Threads(AT_ONCE, abandon_on_cancel=True)
        self.opening = trio.CapacityLimiter(AT_ONCE)
        """Taken to open a channel: those of all pods break at once when the API server is started anew."""
        self.broken = WeakSet[object]()
        """The pods whose channels could not be opened."""
        self._api: Api | None = None
        self._seen: Seen = ()
        self._look_at = 0.0
        self._connecting = trio.Lock()
        self._probing = trio.Lock()

    @property
    def is_named(self) -> bool:
        """True if the administrator has named a cluster to the daemon, or it runs in one."""
        return bool(self._path()) or kubeconfig.is_own_pod(self._path())

    @property
    def is_configured(self) -> bool:
        """True if there is anything that names a cluster."""
        return self.is_named or os.path.exists(os.path.expanduser(kubeconfig.DEFAULT))

    def _path(self) -> str:
        return self._kubeconfig or settings.KUBECONFIG()

    def address(self) -> str:
        """Return the address of the API server, and the namespace. Blocks. Raises `not_configured`."""
        return (self._api or connect(self._path())).address

    async def api(self) -> Api:
        """Return the client, with the credentials that there are now. Raises `not_configured`."""
        if self._api is not None and trio.current_time() < self._look_at:  # looked at first: a lock takes longer
            return self._api
        async with self._connecting:
            api = self._api
            if api is None:
                made, self._seen = await in_thread(_connect, self._path())
                api = made
            elif trio.current_time() >= self._look_at:
                api = await self._renewed(api)
            self._api, self._look_at = api, trio.current_time() + kubeconfig.REFRESH_S
            return api

    async def _renewed(self, current: Api) -> Api:
        """Read the configuration again if somebody has changed it; return the client of that. It cannot lead to another
        cluster: the sandboxes in this one would be taken for lost.
        """
        if await in_thread(kubeconfig.seen, self._path()) == self._seen:
            return current
        try:
            renewed, self._seen = await in_thread(_connect, self._path())
        except SandkeepError as error:  # it may be half written
            logger.warning("the kubeconfig was changed, and cannot be used now: %s", error.message)
            return current
        if renewed.address != current.address:
            logger.warning("the kubeconfig names %s now: start the daemon anew to use that", renewed.address)
            renewed.close()
            return current
        current.close()
        return renewed

    async def call(self, work: Callable[[Api], T]) -> T:
        """Run some work with the client, in a thread, whose connection is ended on cancellation.

        Raises as `Requests` does. What is refused is asked again for a while, where an API server that starts refuses
        it: it does not know roles and accounts at first, nor earlier versions.
        """
        deadline, was_ready = trio.current_time() + STARTING_S, False
        while True:
            api = await self.api()
            try:
                return await self._call(work, api)
            except (BusyError, ForbiddenError, UnauthorizedError, RefusedError) as error:
                if (isinstance(error, RefusedError) and error.status != GONE) or trio.current_time() > deadline:
                    raise
                if await self._has_credentials_since(error, api):
                    continue
                if isinstance(error, ForbiddenError | UnauthorizedError) and await self._call(_is_ready, api):
                    if was_ready:  # it may have become so just before it was asked
                        raise
                    was_ready = True
                else:
                    await trio.sleep(AGAIN_S)

    async def _has_credentials_since(self, error: SandkeepError, api: Api) -> bool:
        """Return True if there are others than those that the API server did not know."""
        if not isinstance(error, UnauthorizedError):
            return False
        self._look_at = 0.0
        return await self.api() is not api

    async def _call(self, work: Callable[[Api], T], api: Api) -> T:
        with trio.CancelScope() as scope:
            return await _in_thread(work, api, _Timed(self._threads.share, scope, requests.CALL_S))
        raise api.requests.no_answer(f"it took longer than {requests.CALL_S:.0f} s")

    async def stream(self, work: Callable[[Api], None], seconds: float) -> None:
        """Run some work with a watch, which the server ends after `seconds`. Takes no turn from `call`, and raises as
        that does.
        """
        api = await self.api()
        with trio.move_on_after(seconds + requests.ANSWER_S + requests.CALL_S):
            try:
                await _in_thread(work, api, trio.CapacityLimiter(1))
            except UnauthorizedError:
                self._look_at = 0.0
                raise

    async def recovered(self) -> None:
        """See `Recovering`. Waiting tasks ask one after the other, and not at once."""
        while True:
            await trio.sleep(AGAIN_S)
            async with self._probing:
                try:
                    await self.call(Api.groups)
                except SandkeepError as error:
                    if "engine" in error.data:
                        continue
                return  # a refusal is an answer, too

    def close(self) -> None:
        """Close the connections."""
        if self._api is not None:
            self._api.close()
            self._api = None


async def _in_thread(work: Callable[[Api], T], api: Api, limiter: Any) -> T:
    under_way = UnderWay()
    try:
        return await trio.to_thread.run_sync(under_way.run, work, api, limiter=limiter, abandon_on_cancel=True)
    except trio.Cancelled:
        under_way.abort()
        raise


def machine() -> str:
    """Return the architecture of the nodes on which sandboxes run, in the field's words."""
    return settings.MACHINE() or _MACHINES.get(platform.machine(), platform.machine())


def _is_ready(api: Api) -> bool:
    return api.requests.is_ready()


def connect(path: str) -> Api:
    """Read the configuration of the cluster. Blocks. Raises `not_configured`."""
    configuration, namespace = kubeconfig.load(path, AT_ONCE + 4)
    return Api(configuration, settings.NAMESPACE() or namespace or "default")


def _connect(path: str) -> tuple[Api, Seen]:
    before = kubeconfig.seen(path)  # first: what is written meanwhile is read again
    return connect(path), before
