"""Objects of the cluster, in memory, under one revision: what etcd and the registry do in a real one.

Everything runs on one asyncio loop, and every method but `watch` is done when it returns. Objects that the store
returns are its own and are shared by all readers: change them only in `update`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Literal

from tests.support.kubernetes import metadata
from tests.support.kubernetes.errors import ApiError, not_found
from tests.support.kubernetes.garbage import Dependents
from tests.support.kubernetes.history import Collection, Cursor, Event, Matches
from tests.support.kubernetes.metadata import FOREGROUND, ORPHAN, copy
from tests.support.kubernetes.resources import Object, Resource

Place = tuple[str, str]
Objects = list[Object]  # `list` is a method below
Addresses = list[tuple[str, str, str]]
Resources = list[Resource]
Propagation = Literal["Background", "Foreground", "Orphan"]

GARBAGE_S = 0.05
"""Seconds after which the garbage collector comes to what an object that is deleted in the foreground owns. Controllers
act meanwhile: one makes another pod for a Sandbox of a deleted claim.
"""


class Store:
    """All objects of a cluster. `resource` is `pods`, or `sandboxes.agents.x-k8s.io`."""

    def __init__(self) -> None:
        self.revision = 1
        self._collections: dict[str, Collection] = {}
        self._dependents = Dependents()

    def register(self, resource: Resource) -> None:
        """Serve a kind; one that is known already keeps its objects."""
        known = self._collections.get(resource.key)
        if known:
            known.resource = resource
        else:
            self._collections[resource.key] = Collection(resource, self.revision)

    def unregister(self, resource: str) -> None:
        """Serve a kind no longer; its objects are gone."""
        for place in list(self._collection(resource).objects):
            self._remove(resource, place)
        del self._collections[resource]

    def resources(self) -> Resources:
        """Every kind that is served."""
        return [collection.resource for collection in self._collections.values()]

    def list(self, resource: str, namespace: str | None = None) -> Objects:
        """All objects of a kind, by namespace and name."""
        objects = self._collection(resource).objects
        return [objects[place] for place in sorted(objects) if namespace is None or place[0] == namespace]

    def get(self, resource: str, namespace: str | None, name: str) -> Object | None:
        """One object, or None."""
        return self._collection(resource).objects.get((namespace or "", name))

    def create(self, resource: str, namespace: str | None, obj: Object, *, dry_run: bool = False) -> Object:
        """Add an object. Raises ApiError: 409 if the name is taken, 404 without the namespace, 422 if not valid."""
        collection = self._collection(resource)
        new = copy(obj)
        meta = metadata.initialize(collection.resource, namespace, new)
        place = (meta.get("namespace", ""), meta["name"])
        if collection.resource.namespaced:
            self._enter(resource, *place)
        if place in collection.objects:
            plural, _, group = resource.partition(".")
            details = {"name": place[1], "kind": plural} | ({"group": group} if group else {})
            raise ApiError(409, "AlreadyExists", f'{resource} "{place[1]}" already exists', **details)
        collection.resource.admit(new, None)
        return new if dry_run else self._put(collection, place, new, None)

    def update(
        self,
        resource: str,
        namespace: str | None,
        name: str,
        change: Callable[[Object], Object | None],
        *,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Change a copy of an object (or return another from `change`) and store it.

        Subresource `status` takes over the status alone, none everything but the status, `binding` all, without
        validation. A change of nothing makes no event. Raises ApiError: 404, 409 for a stale resourceVersion, 422.
        """
        collection = self._collection(resource)
        place = (namespace or "", name)
        old = collection.objects.get(place)
        if old is None:
            raise not_found(resource, name)
        new = copy(old)
        new = metadata.merge(collection.resource, old, change(new) or new, subresource)
        if subresource != "binding":
            collection.resource.admit(new, old)
        if new == old or dry_run:
            return new
        self._put(collection, place, new, old)
        return self._settle(resource, place) or new

    def delete(
        self,
        resource: str,
        namespace: str | None,
        name: str,
        *,
        grace: int | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Delete an object, or mark it while finalizers hold it or, for a pod on a node, for its grace period.

        The kubelet ends the containers of a marked pod, then deletes it with `grace=0`. Raises ApiError: 404, and
        409 for a failed precondition. Returns the object as it was last.
        """
        collection = self._collection(resource)
        place = (namespace or "", name)
        old = collection.objects.get(place)
        if old is None:
            raise not_found(resource, name)
        metadata.check_precondition(collection.resource, old, "uid", uid)
        metadata.check_precondition(collection.resource, old, "resourceVersion", resource_version)
        if dry_run:
            return old
        seconds = metadata.grace_period(old, grace) if resource == "pods" else 0
        new = metadata.marked(old, seconds, propagation)
        if resource == "namespaces":
            new["status"] = {"phase": "Terminating"}
        held = seconds or new["metadata"].get("finalizers") or (resource == "namespaces" and self._inhabitants(name))
        if not held:
            return self._remove(resource, place)
        if new != old:
            self._put(collection, place, new, old)
        self._propagate(resource, place, propagation)
        return self._settle(resource, place) or new

    async def watch(
        self, resource: str, namespace: str | None = None, since: int | None = None, matches: Matches | None = None
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """Yield (type, object): changes after revision `since`, or all objects as ADDED and then changes.

        Raises ApiError 410 when events that were not yet yielded are compacted.
        """
        cursor = self.cursor(resource, namespace, since)
        while True:
            for event in cursor.take():
                seen = event.seen_through(matches) if matches else event
                if seen:
                    yield seen.type, seen.object
            await cursor.wait()

    def cursor(self, resource: str, namespace: str | None = None, since: int | None = None) -> Cursor:
        """A position from which to take events; see `watch`."""
        return Cursor(self._collection(resource), namespace, since, self.revision)

    def compact(self) -> None:
        """Forget all events: every resourceVersion until now is too old to watch from."""
        self.revision += 1
        for collection in self._collections.values():
            collection.forget(len(collection.events))
            collection.compacted = self.revision

    def _collection(self, resource: str) -> Collection:
        if resource not in self._collections:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return self._collections[resource]

    def _enter(self, resource: str, namespace: str, name: str) -> None:
        place = self.get("namespaces", "", namespace)
        if place is None:
            raise not_found("namespaces", namespace)
        if "deletionTimestamp" in place["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise ApiError(403, "Forbidden", f'{resource} "{name}" is forbidden: {why}')

    def _put(self, collection: Collection, place: Place, new: Object, old: Object | None) -> Object:
        self.revision += 1
        new["metadata"]["resourceVersion"] = str(self.revision)
        collection.objects[place] = new
        self._dependents.index((collection.resource.key, *place), old, new)
        collection.record(Event("MODIFIED" if old else "ADDED", self.revision, new, old))
        return new

    def _propagate(self, resource: str, place: Place, propagation: Propagation | None) -> None:
        """Do to dependents, and to the objects of a namespace, what the deletion of their owner asks for."""
        if resource == "namespaces":
            for key, namespace, name in self._inhabitants(place[1]):
                if self.get(key, namespace, name):
                    self.delete(key, namespace, name)
        owner = self.get(resource, *place)
        if owner and propagation == "Foreground":
            asyncio.get_running_loop().call_later(GARBAGE_S, self._collect_foreground, owner["metadata"]["uid"])
        if owner and propagation == "Orphan":
            self._dependents.release(self, owner["metadata"]["uid"])

    def _collect_foreground(self, uid: str) -> None:
        for key, namespace, name in self._dependents.of(uid):
            with suppress(ApiError):  # of a kind that is served no longer
                if self.get(key, namespace, name):
                    self.delete(key, namespace, name, propagation="Foreground")

    def _settle(self, resource: str, place: Place) -> Object | None:
        """Drop the finalizers that the garbage collector is done with, and remove an object that nothing holds."""
        collection = self._collection(resource)
        obj = collection.objects.get(place)
        if obj is None or "deletionTimestamp" not in obj["metadata"]:
            return obj
        finalizers = obj["metadata"].get("finalizers", [])
        done = {ORPHAN} | (set() if self._dependents.blocking(obj["metadata"]["uid"]) else {FOREGROUND})
        left = [finalizer for finalizer in finalizers if finalizer not in done]
        if left != finalizers:
            meta = {key: value for key, value in obj["metadata"].items() if key != "finalizers"}
            new = {**obj, "metadata": {**meta, **({"finalizers": left} if left else {})}}
            obj = self._put(collection, place, new, obj)
        if left or obj["metadata"]["deletionGracePeriodSeconds"]:
            return obj
        if resource == "namespaces" and self._inhabitants(place[1]):
            return obj
        return self._remove(resource, place)

    def _remove(self, resource: str, place: Place) -> Object:
        """Remove an object, then what it alone owned, and owners and namespaces that waited for its end."""
        collection = self._collection(resource)
        old = collection.objects.pop(place)
        self.revision += 1
        gone = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.revision)}}
        self._dependents.index((resource, *place), old, None)
        collection.record(Event("DELETED", self.revision, gone, old))
        self._dependents.collect(self, old["metadata"]["uid"])
        for owner in self._dependents.owners(old):
            if self.get(owner[0], *owner[1:]):
                self._settle(owner[0], owner[1:])
        if collection.resource.namespaced and self.get("namespaces", "", place[0]):
            self._settle("namespaces", ("", place[0]))
        return gone

    def _inhabitants(self, namespace: str) -> Addresses:
        return [
            (key, *place)
            for key, collection in self._collections.items()
            if collection.resource.namespaced
            for place in collection.objects
            if place[0] == namespace
        ]
