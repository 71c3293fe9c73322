"""One namespace of a cluster through the official `kubernetes` client: requests, and watches that do not end early.

The client is imported here, on first use. Objects are what JSON holds. Every error is Sandkeep's own.
"""

import math
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from sandkeep.errors import ProviderError, SandkeepError, SetupError, StateError
from sandkeep.kubernetes.api_errors import error_of
from sandkeep.kubernetes.objects import READY, Object, condition_of, name_of, text_at
from sandkeep.kubernetes.versions import Group, choose_version
from sandkeep.system import extras
from sandkeep.system.backoff import pauses

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

CONNECT_S: Final = 10.0
REQUEST_S: Final = (CONNECT_S, 60.0)
"""Seconds for the connection, and without a byte of the answer."""

MAX_WATCH_S: Final = 300
"""Seconds after which a watch is begun anew, so that one whose connection is half open is noticed."""

_GRACE_S: Final = 5.0
_GONE: Final = 410


class Resource(Struct, frozen=True):
    """A kind of object in a namespace."""

    group: str
    version: str
    plural: str


PODS: Final = Resource("", "v1", "pods")


class Cluster:
    """A namespace. `api_client` is the caller's and stays open; by default the pod's account or KUBECONFIG is used."""

    def __init__(self, namespace: str, api_client: "ApiClient | None" = None) -> None:
        self.namespace = namespace
        self._is_own = api_client is None
        self.client = api_client or _new_client()

    def close(self) -> None:
        """Close the connections."""
        if self._is_own:
            self.client.rest_client.pool_manager.clear()
            self.client.close()  # type: ignore[no-untyped-call]

    # -- requests -----------------------------------------------------------------------------------------------------

    def resource(self, group: Group, plural: str) -> Resource:
        """Return a resource in the version that the cluster has of its group. Raises `not_supported` without any."""
        version = self.version(group)
        if version is None:
            message = f"the cluster has no {group.name}: install its custom resources and their controller"
            raise SetupError("not_supported", message, group=group.name)
        return Resource(group.name, version, plural)

    def version(self, group: Group) -> str | None:
        """Return the version to use of a group; None if the cluster does not have it."""
        return choose_version(self.discovery, group)

    @cached_property
    def discovery(self) -> Object:
        """The API groups that the cluster has."""
        from kubernetes.client import ApisApi

        with api_errors("asking for the API groups"):
            return self._plain(ApisApi(self.client).get_api_versions(_request_timeout=REQUEST_S))

    def create(self, resource: Resource, body: Mapping[str, Any]) -> Object:
        """Create an object, and return it."""
        with api_errors(f"creating {resource.plural}"):
            made = self._custom.create_namespaced_custom_object(
                *self._place(resource), body=dict(body), _request_timeout=REQUEST_S
            )
        return self._plain(made)

    def patch(self, resource: Resource, name: str, body: Mapping[str, Any]) -> Object:
        """Apply a merge patch, and return the object."""
        with api_errors(f"changing {resource.plural} {name!r}"):
            changed = self._custom.patch_namespaced_custom_object(
                *self._place(resource), name=name, body=dict(body), _request_timeout=REQUEST_S
            )
        return self._plain(changed)

    def delete(self, resource: Resource, name: str) -> bool:
        """Ask for the deletion of an object. Return False if there is none."""
        try:
            with api_errors(f"deleting {resource.plural} {name!r}"):
                self._custom.delete_namespaced_custom_object(
                    *self._place(resource), name=name, _request_timeout=REQUEST_S
                )
        except SandkeepError as error:
            if error.code != "not_found":
                raise
            return False
        return True

    def objects(self, resource: Resource, *, namespace: str | None = None) -> list[Object]:
        """Return all objects of a kind."""
        return self._list(resource, namespace)[0]

    def read(self, resource: Resource, name: str) -> Object | None:
        """Return an object; None if there is none."""
        return self._read(resource, name)[0]

    def states(
        self, resource: Resource, name: str, deadline: float, awaited: str, first: Object | None = None
    ) -> Iterator[Object | None]:
        """Yield an object as it is, from `first` on, and then whenever it changed; None for one that is not there.

        Ends with the error `timeout` at the deadline, by `time.monotonic`. `awaited` is its subject. Lost watches are
        resumed, and after `410 Gone` the object is read anew.
        """
        state, version = (first, text_at(first, "metadata", "resourceVersion")) if first else self._read(resource, name)
        yield state
        waits = pauses(0.1, 5.0)
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                with closing(self._events(resource, name, version, left_s)) as events:
                    for state, version in events:  # noqa: B007 (a lost watch is resumed from there)
                        yield state
                        waits = pauses(0.1, 5.0)
            except _ExpiredError:
                state, version = self._read(resource, name)
                yield state
            except ProviderError:
                pass  # resumed below
            time.sleep(max(0.0, min(next(waits), deadline - time.monotonic())))
        ready = state and condition_of(state, READY)
        message = f"{awaited} took too long{f': {ready.describe()}' if ready and not ready.is_true else ''}"
        raise StateError("timeout", message, name=name)

    # -- the client ---------------------------------------------------------------------------------------------------

    def _events(
        self, resource: Resource, name: str, version: str, left_s: float
    ) -> Generator[tuple[Object | None, str], None, None]:
        """Yield the changes of an object after a version, each with its own version, until the watch ends."""
        from kubernetes.watch import Watch

        function, place = self._lister(resource, self.namespace)
        watch_s = min(math.ceil(left_s), MAX_WATCH_S)
        with api_errors(f"watching {resource.plural} {name!r}"), _expiry():
            events = Watch().stream(  # type: ignore[no-untyped-call]
                function,
                *place,
                field_selector=f"metadata.name={name}",
                resource_version=version,
                timeout_seconds=watch_s,
                _request_timeout=(CONNECT_S, watch_s + _GRACE_S),
            )
            with closing(events):
                for event in events:
                    obj = event["raw_object"]
                    if name_of(obj) == name:
                        yield (None if event["type"] == "DELETED" else obj), text_at(obj, "metadata", "resourceVersion")

    def _read(self, resource: Resource, name: str) -> tuple[Object | None, str]:
        """Return an object, or None, and the version from which to watch it."""
        items, version = self._list(resource, None, field_selector=f"metadata.name={name}")
        return next(iter(items), None), version

    def _list(self, resource: Resource, namespace: str | None, **selectors: str) -> tuple[list[Object], str]:
        function, place = self._lister(resource, namespace or self.namespace)
        with api_errors(f"listing {resource.plural}"):
            answer = self._plain(function(*place, _request_timeout=REQUEST_S, **selectors))
        items = answer.get("items")
        return (items if isinstance(items, list) else []), text_at(answer, "metadata", "resourceVersion")

    def _lister(self, resource: Resource, namespace: str) -> tuple[Any, tuple[str, ...]]:
        """Return the client's function for lists and watches of a kind, and its first arguments."""
        if resource == PODS:
            from kubernetes.client import CoreV1Api

            return CoreV1Api(self.client).list_namespaced_pod, (namespace,)
        place = (resource.group, resource.version, namespace, resource.plural)
        return self._custom.list_namespaced_custom_object, place

    def _place(self, resource: Resource) -> tuple[str, str, str, str]:
        return resource.group, resource.version, self.namespace, resource.plural

    @cached_property
    def _custom(self) -> Any:
        from kubernetes.client import CustomObjectsApi

        return CustomObjectsApi(self.client)

    def _plain(self, answer: Any) -> Object:
        plain = self.client.sanitize_for_serialization(answer)  # type: ignore[no-untyped-call]
        return plain if isinstance(plain, Mapping) else {}


class _ExpiredError(Exception):
    """The version from which to watch is not kept any more."""


@contextmanager
def _expiry() -> Iterator[None]:
    """Raise `_ExpiredError` for ``410 Gone``."""
    from kubernetes.client import ApiException

    try:
        yield
    except ApiException as error:
        if error.status == _GONE:
            raise _ExpiredError from error
        raise


@contextmanager
def api_errors(action: str) -> Iterator[None]:
    """Raise the client's errors as Sandkeep's; `action` says what was tried."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise error_of(int(error.status or 0), error.body or error.reason, action) from error
    except (HTTPError, OSError) as error:
        raise ProviderError("provider_unavailable", f"{action}: the cluster does not answer: {error}") from error


def _new_client() -> "ApiClient":
    try:
        from kubernetes import client, config
    except ImportError:
        raise extras.not_installed("kubernetes", "a client of a cluster") from None
    configuration = client.Configuration()
    try:
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        message = f"no cluster is configured: set KUBECONFIG, or run in a pod: {error}"
        raise SetupError("not_configured", message) from None
    return client.ApiClient(configuration)
