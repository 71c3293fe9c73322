"""The API of a cluster: the blocking official client in threads, with deadlines, and its errors in our words.

Objects are plain dictionaries, as the API has them. Watches are in `watch`, execs in `exec`.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
import trio

from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError
from sandkeep.settings import kubernetes as settings

if TYPE_CHECKING:
    from kubernetes.client import Configuration

T = TypeVar("T")

Json: TypeAlias = dict[str, Any]

ENGINE: Final = "kubernetes"

AT_ONCE: Final = 16
"""Maximum number of concurrent requests."""

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
"""Seconds that the API server may take to accept a connection, and to answer a request."""

AGAIN_S: Final = 1.0
"""Seconds between attempts to reach an API server that did not answer."""

REFRESH_S: Final = 5.0
"""Seconds for which a token is used until the client looks if it has to be replaced, minutes before it expires."""

NOT_FOUND: Final = 404
CONFLICT: Final = 409
GONE: Final = 410
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_INVALID: Final = (400, 422)
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_MOST_SHOWN: Final = 500

_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class Kind(NamedTuple):
    """A kind of object: the API group (empty for the core), version, and plural name in requests."""

    group: str
    version: str
    plural: str


PODS: Final = Kind("", "v1", "pods")
CONFIG_MAPS: Final = Kind("", "v1", "configmaps")
NETWORK_POLICIES: Final = Kind("networking.k8s.io", "v1", "networkpolicies")


class RefusedError(ProviderError):
    """Raised when the API server refused a request: `status` is that of HTTP, `reason` the server's sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__("provider_unavailable", f"the cluster refused: {reason}")
        self.status = status
        self.reason = reason


class Api:
    """The official client, for one namespace. Every method blocks, and raises what `Cluster.call` converts."""

    def __init__(self, configuration: "Configuration", namespace: str) -> None:
        from kubernetes.client import ApiClient
        from kubernetes.dynamic import DynamicClient

        self.configuration = configuration
        self.namespace = namespace
        self._client = ApiClient(configuration)
        # The client's classes of API groups check requests by models, of which those of the core alone take 21 MiB.
        self._dynamic: Any = DynamicClient(self._client, discoverer=lambda *_: None)  # type: ignore[no-untyped-call]

    def create(self, kind: Kind, body: Json) -> Json:
        """Create an object."""
        return self._ask("post", self._path(kind), body=body)

    def get(self, kind: Kind, name: str) -> Json | None:
        """Return an object; None where there is none."""
        try:
            return self._ask("get", self._path(kind, name))
        except Exception as error:
            if _status(error) == NOT_FOUND:
                return None
            raise

    def patch(self, kind: Kind, name: str, body: Json) -> Json:
        """Change an object by a merge patch."""
        return self._ask("patch", self._path(kind, name), body=body, content_type="application/merge-patch+json")

    def delete(self, kind: Kind, name: str, uid: str | None = None, propagation: str = "Foreground") -> None:
        """Delete an object, if it is there and has that `uid`. It is gone once its finalizers are."""
        options: Json = {"propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            self._ask("delete", self._path(kind, name), body=options)
        except Exception as error:
            # A conflict is a wrong uid here: another object has the name by now.
            if _status(error) not in (NOT_FOUND, CONFLICT):
                raise

    def list(self, kind: Kind, selector: str, item: type[T]) -> tuple[list[T], str]:
        """Return the objects with these labels, decoded as `item`, and the resource version from which a watch goes on.

        As dictionaries, a thousand pods take 50 MiB.
        """
        decode, found, following = msgspec.json.Decoder(item).decode, list[T](), None
        while True:
            answer = self._send("get", self._path(kind), label_selector=selector, limit=_PAGE, _continue=following)
            page = msgspec.json.decode(answer.data, type=_Page)
            found += map(decode, page.items)
            following = page.metadata.following
            if not following:
                return found, page.metadata.resource_version

    def watch(self, kind: Kind, selector: str, since: str, seconds: int, *, name: str | None = None) -> "Watched":
        """Begin a watch, of the object of that `name` alone, if any, which the server ends after `seconds`."""
        field_selector = None if name is None else f"metadata.name={name}"
        return Watched(
            self._send(
                "get", self._path(kind), label_selector=selector, field_selector=field_selector,
                resource_version=since, timeout_seconds=seconds, watch=True, allow_watch_bookmarks=True,
                _request_timeout=(CONNECT_S, seconds + ANSWER_S),
            )
        )  # fmt: skip

    def groups(self) -> Json:
        """Return the API groups and their versions, as discovery answers."""
        return self._ask("get", "/apis/")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()  # type: ignore[no-untyped-call]

    def _path(self, kind: Kind, name: str = "") -> str:
        root = f"apis/{kind.group}" if kind.group else "api"
        path = f"/{root}/{kind.version}/namespaces/{quote(self.namespace, safe='')}/{kind.plural}"
        return f"{path}/{quote(name, safe='')}" if name else path

    def _ask(self, method: str, path: str, **options: Any) -> Json:
        """Send a request and decode the answer."""
        answer: Json = msgspec.json.decode(self._send(method, path, **options).data)
        return answer

    def _send(self, method: str, path: str, **options: Any) -> Any:
        """Send a request; return the response, of which no more than the head was read."""
        return self._dynamic.request(
            method, path, serialize=False, **{"_request_timeout": (CONNECT_S, ANSWER_S), **options}
        )


_PAGE: Final = 200


class _PageMetadata(msgspec.Struct, rename={"resource_version": "resourceVersion", "following": "continue"}):
    resource_version: str
    following: str | None = None


class _Page(msgspec.Struct):
    """A part of a list."""

    metadata: _PageMetadata
    items: list[msgspec.Raw]


class Watched:
    """A watch under way: an iterator of its raw lines, in a thread of its own. `close` ends it from another thread."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        for piece in self._response.stream(amt=None, decode_content=False):
            *lines, rest = (rest + piece).split(b"\n")
            yield from filter(None, lines)

    def close(self) -> None:
        """Shut the connection down, which ends a read that waits."""
        with suppress(Exception):
            self._response.shutdown()
        with suppress(Exception):
            self._response.release_conn()


class Cluster:
    """One namespace of one cluster. Nothing is imported, read or connected before the first request."""

    def __init__(self, kubeconfig: str | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._limiter = trio.CapacityLimiter(AT_ONCE)
        self.opening = trio.CapacityLimiter(AT_ONCE)
        """Taken to open a channel: those of all pods break at once when the API server is started anew."""
        self._api: Api | None = None
        self._connecting = trio.Lock()
        self._probing = trio.Lock()

    @property
    def is_named(self) -> bool:
        """True if the administrator has named a cluster to the daemon, or it runs in one."""
        return bool(self._kubeconfig or settings.KUBECONFIG()) or "KUBERNETES_SERVICE_HOST" in os.environ

    @property
    def is_configured(self) -> bool:
        """True if there is anything that names a cluster."""
        return self.is_named or os.path.exists(_default_path())

    def address(self) -> str:
        """Return the address of the API server, and the namespace. Blocks. Raises `not_configured`."""
        api = self._api or connect(self._kubeconfig or settings.KUBECONFIG())
        return f"{api.configuration.host}/{api.namespace}"

    async def api(self) -> Api:
        """Return the client. Raises `not_configured`."""
        async with self._connecting:
            if self._api is None:
                self._api = await trio.to_thread.run_sync(connect, self._kubeconfig or settings.KUBECONFIG())
        return self._api

    async def call(self, work: Callable[[Api], T]) -> T:
        """Run some work with the client, in a thread, which is abandoned on cancellation.

        Raises `provider_unavailable` when the API server does not answer, a `RefusedError` when it refuses, `invalid`
        for an object that it finds malformed, and `not_configured` when the daemon may not do that.
        """
        api = await self.api()
        return await trio.to_thread.run_sync(_converting, work, api, limiter=self._limiter, abandon_on_cancel=True)

    async def stream(self, work: "Callable[[Api, Callable[[Watched], None]], None]") -> None:
        """Run some work of any length with a watch, which it hands to its second argument and which is closed on
        cancellation. Raises as `call` does.
        """
        api, opened = await self.api(), list[Watched]()
        try:
            await trio.to_thread.run_sync(
                _converting, lambda given: work(given, opened.append), api,
                limiter=trio.CapacityLimiter(1), abandon_on_cancel=True,
            )  # fmt: skip
        finally:
            for watched in opened:
                watched.close()

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


def machine() -> str:
    """Return the architecture of the nodes on which sandboxes run, in the field's words."""
    return settings.MACHINE() or _MACHINES.get(platform.machine(), platform.machine())


def _default_path() -> str:
    return os.path.expanduser("~/.kube/config")


def connect(kubeconfig: str) -> Api:
    """Read the configuration of the cluster. Blocks. Raises `not_configured`."""
    try:
        from kubernetes import client, config
    except ImportError:
        message = "the package kubernetes is missing: install sandkeep[kubernetes]"
        raise SetupError("not_configured", message) from None
    configuration = client.Configuration()
    context = settings.CONTEXT() or None
    try:
        if not kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            with open(f"{_SERVICE_ACCOUNT}/namespace", encoding="utf-8") as file:
                namespace = file.read().strip()
        else:
            path = kubeconfig or _default_path()
            config.load_kube_config(path, context=context, client_configuration=configuration)  # type: ignore[no-untyped-call]
            contexts = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
            namespace = _namespace_of(contexts, context)
    except (config.ConfigException, OSError, ValueError) as error:
        message = f"no cluster is configured: {error}: set KUBECONFIG to a kubeconfig file"
        raise SetupError("not_configured", message, setting="KUBECONFIG") from None
    configuration.connection_pool_maxsize = AT_ONCE + 4
    _refresh_seldom(configuration)
    configuration.retries = False  # the daemon retries recorded work by itself, and says so
    return Api(configuration, settings.NAMESPACE() or namespace or "default")


def _refresh_seldom(configuration: "Configuration") -> None:
    """Have the client look for a newer token now and then: it does so for each request, by reading all its settings."""
    options: Any = configuration
    if (refresh := options.refresh_api_key_hook) is None:
        return
    due = 0.0

    def refresh_if_due(given: "Configuration") -> None:
        nonlocal due
        if time.monotonic() >= due:
            refresh(given)
            due = time.monotonic() + REFRESH_S

    options.refresh_api_key_hook = refresh_if_due


def _namespace_of(contexts: Any, wanted: str | None) -> str:
    every, current = contexts
    chosen = next((each for each in every if each["name"] == wanted), current)
    return str((chosen or {}).get("context", {}).get("namespace") or "")


def _converting(work: Callable[[Api], T], api: Api) -> T:
    try:
        return work(api)
    except SandkeepError:
        raise
    except Exception as error:  # noqa: BLE001 - each is raised again, some as one of ours
        raise converted(error, api.configuration.host) from None


def converted(error: Exception, host: str) -> Exception:
    """Return the error of ours for one of the client; the error itself where it is a mistake in the program."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    if isinstance(error, ApiException) and error.status:
        return _refusal(int(error.status), _sentence(error))
    if isinstance(error, ApiException | HTTPError | OSError | msgspec.DecodeError):
        why = " ".join(str(getattr(error, "reason", None) or error).split())[:_MOST_SHOWN]
        message = f"the API server at {host} does not answer: {why}: see that the cluster runs"
        return ProviderError("provider_unavailable", message, engine=ENGINE)
    return error


def _refusal(status: int, reason: str) -> SandkeepError:
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        message = f"the daemon may not do that in the cluster: {reason}: see the roles in docs/how-to/kubernetes.md"
        return SetupError("not_configured", message, setting="KUBECONFIG")
    if status in _INVALID:
        return CallerError("invalid", f"the cluster refused the object: {reason}")
    if status == _TOO_MANY or status >= _SERVER_ERROR:
        return ProviderError("provider_unavailable", f"the API server failed: {reason}", engine=ENGINE)
    return RefusedError(status, reason)


def _status(error: Exception) -> int:
    return int(getattr(error, "status", 0) or 0)


def _sentence(error: Any) -> str:
    """Return the message of a Status, without control characters: it may quote what a user gave."""
    text = str(error.reason or error.status)
    with suppress(msgspec.DecodeError, TypeError, AttributeError):
        text = msgspec.json.decode(error.body).get("message") or text
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MOST_SHOWN]
