"""One watch for all objects of a kind that carry our labels, by the sandbox to which they belong.

It begins with a list, goes on from its resource version, and is begun again from the last version seen when it breaks.
When the server has forgotten that version (410 Gone), it begins with a list again.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec
import trio

from sandkeep.errors import ProviderError, SandkeepError
from sandkeepd.providers.kubernetes.cluster import AGAIN_S, Api, Cluster, Kind, Listed
from sandkeepd.providers.kubernetes.observed import Event, Observed, Version
from sandkeepd.providers.kubernetes.requests import (
    ENGINE,
    GONE,
    LIST_OBJECTS,
    NonsenseError,
    RefusedError,
    Requests,
)

logger = logging.getLogger("sandkeepd")

T = TypeVar("T")

WATCH_S: Final = 300
"""Seconds after which the server ends a watch, and the next begins: none is left behind by a daemon that has died."""

WRONG_S: Final = 10.0
"""Seconds until objects that could not be understood are listed again."""

MOST_HEARD: Final = 256
"""Events that may wait to be taken note of."""


class _GoneError(Exception):
    """Raised when the server does not know the resource version any more."""


class Watch:
    """The objects of a kind with the labels of `selector`, as the cluster shows them.

    Anybody may give an object these labels: whoever asks for one says its uid, or that of its controller.
    """

    def __init__(self, cluster: Cluster, kind: Kind, selector: str) -> None:
        self.kind = kind
        self._cluster = cluster
        self._selector = selector
        self._objects: dict[str, tuple[Observed, ...]] = {}
        self._count = 0
        self._waiting: dict[str, set[trio.Event]] = {}
        self._heard = deque[tuple[str, Observed | Version]]()
        self._synced = trio.Event()
        self._why = "the cluster was not asked yet"
        self._object = msgspec.json.Decoder(Observed).decode
        self._only_version = msgspec.json.Decoder(Version).decode

    def get(self, sandbox_id: str, uid: str) -> Observed | None:
        """Return the object with that uid as last seen; None where there is none."""
        return next((each for each in self._objects.get(sandbox_id, ()) if each.metadata.uid == uid), None)

    def owned(self, sandbox_id: str, owner: str) -> Observed | None:
        """Return the object whose controller has that uid, as last seen; the newest of several, as others are going."""
        found = (each for each in self._objects.get(sandbox_id, ()) if each.controller == owner)
        return max(found, key=_age, default=None)

    def all(self) -> set[str]:
        """Return the ids of the sandboxes of all objects."""
        return set(self._objects)

    def set_on_change(self, sandbox_id: str, event: trio.Event) -> None:
        """Set an event at the next change of a sandbox's object."""
        self._waiting.setdefault(sandbox_id, set()).add(event)

    def forget(self, sandbox_id: str, event: trio.Event) -> None:
        """Do not set an event any more. Safe to repeat."""
        waiting = self._waiting.get(sandbox_id, set())
        waiting.discard(event)
        if not waiting:
            self._waiting.pop(sandbox_id, None)

    async def synced(self, seconds: float) -> None:
        """Wait until the objects are known. Raises `provider_unavailable`, with the reason, after so many seconds."""
        if self._synced.is_set():
            return
        with trio.move_on_after(seconds) as scope:
            await self._synced.wait()
        if scope.cancelled_caught:
            raise ProviderError("provider_unavailable", self._why, engine=ENGINE)

    # Following

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        while True:
            try:
                found = await self._cluster.call(self._list)
                self._replace(found)
                self._synced.set()
                await self._follow(found.version)
            except _GoneError:
                logger.info("the cluster has forgotten a version of its %s: they are listed again", self.kind.plural)
            except SandkeepError as error:
                self._note(error)
                await trio.sleep(AGAIN_S)
            except Exception:  # whatever a server sends must not end the daemon
                logger.exception("the %s of the cluster cannot be read", self.kind.plural)
                await trio.sleep(WRONG_S)

    def _list(self, api: Api) -> Listed:
        return api.list(self.kind, self._selector)

    def _note(self, error: SandkeepError) -> None:
        if error.message != self._why:
            logger.warning("%s are not followed for now: %s", self.kind.plural, error.message)
        self._why = error.message

    def _replace(self, listed: Listed) -> None:
        before, self._objects, self._count = self._objects, {}, 0
        for each in listed.found:
            self._keep(each)
        if listed.malformed:  # an object that cannot be read is not gone
            logger.warning("%d of the cluster's %s are malformed", listed.malformed, self.kind.plural)
            self._objects = {**before, **self._objects}
        for sandbox_id in {*before, *self._objects}:
            if before.get(sandbox_id) != self._objects.get(sandbox_id):
                self._notify(sandbox_id)

    async def _follow(self, version: str) -> None:
        """Watch from a version on, by one watch after the other. Raises `_GoneError` if the server has forgotten it,
        and the error of a server that sends nonsense.
        """
        self._version, self._token = version, trio.lowlevel.current_trio_token()
        while True:
            begun = trio.current_time()
            try:
                await self._cluster.stream(self._read, WATCH_S)
            except NonsenseError:
                raise
            except RefusedError as refused:
                if refused.status == GONE:
                    raise _GoneError from None
                self._note(refused)
            except SandkeepError as error:
                self._note(error)
            finally:
                self._take_heard()
            if trio.current_time() - begun < AGAIN_S:  # it broke at once: the server may be starting
                await trio.sleep(AGAIN_S)

    def _read(self, api: Api) -> None:
        # An abandoned thread cannot report to a daemon that has ended.
        with suppress(trio.RunFinishedError, trio.Cancelled):
            for event in api.watch(self.kind, self._selector, self._version, WATCH_S):
                self._heard.append(self._decoded(api.requests, event))
                if len(self._heard) < MOST_HEARD:  # waiting for each event would cost more than all the rest of it
                    self._token.run_sync_soon(self._take_heard, idempotent=True)
                else:
                    trio.from_thread.run_sync(self._take_heard)

    def _decoded(self, requests: Requests, event: Event) -> tuple[str, Observed | Version]:
        """Return an event's type and object; of an object that is malformed, its version alone."""
        if event.type != "BOOKMARK":
            try:
                return event.type, self._object(event.object)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._note(requests.nonsense(f"one of its {self.kind.plural} is malformed: {error}"))
        return "BOOKMARK", requests.decoded(event.object, self._only_version)

    def _take_heard(self) -> None:
        while self._heard:
            kind, found = self._heard.popleft()
            self._version = found.metadata.resource_version
            if isinstance(found, Observed):
                self._take(kind, found)

    def _take(self, kind: str, found: Observed) -> None:
        if kind == "DELETED":
            self._drop(found)
        elif self._count < LIST_OBJECTS:
            self._keep(found)
        self._notify(found.labels.sandbox)

    def _keep(self, found: Observed) -> None:
        self._drop(found)
        sandbox_id = found.labels.sandbox
        self._objects[sandbox_id] = (*self._objects.get(sandbox_id, ()), found)
        self._count += 1

    def _drop(self, found: Observed) -> None:
        sandbox_id = found.labels.sandbox
        known = self._objects.get(sandbox_id, ())
        left = tuple(each for each in known if each.metadata.uid != found.metadata.uid)
        self._count -= len(known) - len(left)
        if left:
            self._objects[sandbox_id] = left
        else:
            self._objects.pop(sandbox_id, None)

    def _notify(self, sandbox_id: str) -> None:
        for event in self._waiting.pop(sandbox_id, ()):
            event.set()


async def until(sandbox_id: str, watches: Sequence[Watch], look: Callable[[], T | None]) -> T:
    """Return the first answer that is not None, looking again after each change of the sandbox's objects."""
    while True:
        event = trio.Event()
        for watch in watches:
            watch.set_on_change(sandbox_id, event)
        try:
            if (answer := look()) is not None:
                return answer
            await event.wait()
        finally:
            for watch in watches:
                watch.forget(sandbox_id, event)


def _age(found: Observed) -> tuple[bool, str]:
    return not found.is_going, found.metadata.creation_timestamp or ""
