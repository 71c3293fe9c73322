"""Controllers: functions that bring one object to what it asks for, called whenever something about it changes."""

import asyncio
import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.informer import follow
from tests.support.kubernetes.pod_status import merged
from tests.support.kubernetes.store import Store

Object = dict[str, Any]
Key = tuple[str, str]
Watches = Mapping[str, Callable[[Object], Iterable[Key]]]
RETRY_S = 0.05


class Controller(Protocol):
    """One kind of object that is looked after; `watches` says which keys a change of an object concerns."""

    @property
    def watches(self) -> Watches:
        """Return the functions from an object to keys, by kind."""

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Do what is to be done now; return the seconds until there is more to do, if known."""

    def script(self, **options: Any) -> None:
        """See `Component`."""


class Manager:
    """Runs controllers; of each key there is one call at a time."""

    def __init__(self, store: Store, controllers: Iterable[Controller]) -> None:
        self._store = store
        self._works = [_Work(controller) for controller in controllers]

    async def run(self) -> None:
        """See `Component`."""
        try:
            async with asyncio.TaskGroup() as group:
                for work in self._works:
                    for resource, keys in work.controller.watches.items():
                        group.create_task(self._follow(work, resource, keys))
        finally:
            for work in self._works:
                await work.close()

    async def _follow(self, work: "_Work", resource: str, keys: Callable[[Object], Iterable[Key]]) -> None:
        async for _, found in follow(self._store, resource):
            for key in keys(found):
                work.add(key)

    def script(self, **options: Any) -> None:
        """See `Component`. Everything is looked at again."""
        for work in self._works:
            work.controller.script(**options)
            for key in list(work.known):
                work.add(key)


class _Work:
    """The calls of one controller."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.known: set[Key] = set()
        self._dirty: set[Key] = set()
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def add(self, key: Key) -> None:
        """Have a key looked at, after the call that may be under way."""
        self.known.add(key)
        self._dirty.add(key)
        if key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._run(key))

    async def _run(self, key: Key) -> None:
        try:
            while key in self._dirty:
                self._dirty.discard(key)
                delay = await self._call(key)
                if timer := self._timers.pop(key, None):
                    timer.cancel()
                if delay is not None:
                    self._timers[key] = asyncio.get_running_loop().call_later(max(delay, RETRY_S), self.add, key)
        finally:
            del self._tasks[key]

    async def _call(self, key: Key) -> float | None:
        try:
            return await self.controller.reconcile(*key)
        except ApiError:  # something changed meanwhile, or is being deleted
            return RETRY_S

    async def close(self) -> None:
        """Cancel everything."""
        for timer in self._timers.values():
            timer.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# For controllers


def itself(obj: Object) -> list[Key]:
    """Return the key of an object."""
    return [key_of(obj)]


def owner(kind: str) -> Callable[[Object], list[Key]]:
    """Return a function that names the controlling owner of that kind."""

    def keys(obj: Object) -> list[Key]:
        found = controller_of(obj)
        return [(obj["metadata"]["namespace"], found["name"])] if found is not None and found["kind"] == kind else []

    return keys


def key_of(obj: Object) -> Key:
    """Return namespace and name of an object."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def controller_of(obj: Object) -> Object | None:
    """Return the reference to the object that controls this one."""
    references: list[Object] = obj["metadata"].get("ownerReferences", [])
    return next((reference for reference in references if reference.get("controller")), None)


def reference_to(obj: Object) -> Object:
    """Return a controlling reference to an object."""
    found = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": obj["metadata"]["name"]}
    return {**found, "uid": obj["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}


def condition(kind: str, status: str, reason: str, message: str = "") -> Object:
    """Return a condition."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


def condition_of(obj: Object, kind: str) -> Object:
    """Return an object's condition of a type, or an empty one."""
    conditions: list[Object] = obj.get("status", {}).get("conditions", [])
    return next((found for found in conditions if found["type"] == kind), {})


def set_status(
    store: Store, resource: str, obj: Object, conditions: Iterable[Object], without: Iterable[str] = (), **fields: Any
) -> None:
    """Write conditions and fields of a status, and remove conditions. Raises ApiError."""
    uid, generation = obj["metadata"]["uid"], obj["metadata"].get("generation", 1)
    gone = set(without)

    def write(new: Object) -> None:
        if new["metadata"]["uid"] == uid:
            status = new.setdefault("status", {})
            old = [found for found in status.get("conditions", []) if found["type"] not in gone]
            status |= fields
            status["conditions"] = merged(old, [{**found, "observedGeneration": generation} for found in conditions])

    store.update(resource, *key_of(obj), write, subresource="status")


def seconds_until(moment: str | None) -> float | None:
    """Return the seconds until a time of the API, negative if it has passed; None for none."""
    if moment is None:
        return None
    return (dt.datetime.fromisoformat(moment) - dt.datetime.now(dt.UTC)).total_seconds()


def soonest(*delays: float | None) -> float | None:
    """Return the smallest of some delays."""
    return min((delay for delay in delays if delay is not None), default=None)


def name_hash(name: str) -> str:
    """Return the hash of a name that labels have: FNV-1a, 32 bits."""
    number = 0x811C9DC5
    for byte in name.encode():
        number = (number ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{number:08x}"


class Delays:
    """Scripted delays: seconds from when an object was first seen."""

    def __init__(self) -> None:
        self._first: dict[str, float] = {}

    def left(self, obj: Object, seconds: float) -> float:
        """Return the seconds that are left of a delay; 0 or less when it is over."""
        now = asyncio.get_running_loop().time()
        return self._first.setdefault(obj["metadata"]["uid"], now) + seconds - now
