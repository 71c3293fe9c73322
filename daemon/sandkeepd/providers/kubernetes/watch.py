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
from sandkeepd.providers.kubernetes.cluster import (
    AGAIN_S,
    ENGINE,
    GONE,
    Api,
    Cluster,
    Kind,
    RefusedError,
    Watched,
)
from sandkeepd.providers.kubernetes.observed import Event, Failure, Observed

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
    """The objects of a kind with the labels of `selector`, as the cluster shows them. `label` names the sandbox."""

    def __init__(self, cluster: Cluster, kind: Kind, selector: str, label: str) -> None:
        self.kind = kind
        self._cluster = cluster
        self._selector = selector
        self._label = label
        self._objects: dict[str, Observed] = {}
        self._waiting: dict[str, set[trio.Event]] = {}
        self._heard = deque[tuple[str, Observed]]()
        self._synced = trio.Event()
        self._why = "the cluster was not asked yet"
        self._event = msgspec.json.Decoder(Event).decode
        self._object = msgspec.json.Decoder(Observed).decode

    def get(self, sandbox_id: str) -> Observed | None:
        """Return a sandbox's object as last seen; None where there is none."""
        return self._objects.get(sandbox_id)

    def all(self) -> dict[str, Observed]:
        """Return all objects, by the ids of their sandboxes."""
        return dict(self._objects)

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
                found, version = await self._cluster.call(self._list)
                self._replace(found)
                self._synced.set()
                await self._follow(version)
            except _GoneError:
                logger.info("the cluster has forgotten a version of its %s: they are listed again", self.kind.plural)
            except SandkeepError as error:
                self._note(error)
                await trio.sleep(AGAIN_S)
            except Exception:  # whatever a server sends must not end the daemon
                logger.exception("the %s of the cluster cannot be read", self.kind.plural)
                await trio.sleep(WRONG_S)

    def _list(self, api: Api) -> tuple[list[Observed], str]:
        return api.list(self.kind, self._selector, Observed)

    def _note(self, error: SandkeepError) -> None:
        if error.message != self._why:
            logger.warning("%s are not followed for now: %s", self.kind.plural, error.message)
        self._why = error.message

    def _replace(self, found: list[Observed]) -> None:
        before, self._objects = self._objects, {}
        for each in found:
            self._keep(each)
        for sandbox_id in {*before, *self._objects}:
            if before.get(sandbox_id) != self._objects.get(sandbox_id):
                self._notify(sandbox_id)

    async def _follow(self, version: str) -> None:
        """Watch from a version on, by one watch after the other. Raises `_GoneError` if the server has forgotten it."""
        self._version, self._token = version, trio.lowlevel.current_trio_token()
        while True:
            begun = trio.current_time()
            try:
                await self._cluster.stream(self._read)
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

    def _read(self, api: Api, opened: Callable[[Watched], None]) -> None:
        watched = api.watch(self.kind, self._selector, self._version, WATCH_S)
        opened(watched)
        with suppress(
            trio.RunFinishedError, trio.Cancelled
        ):  # an abandoned thread cannot report to a daemon that ended
            for line in watched:
                self._heard.append(self._decoded(line))
                if len(self._heard) < MOST_HEARD:  # waiting for each event would cost more than all the rest of it
                    self._token.run_sync_soon(self._take_heard, idempotent=True)
                else:
                    trio.from_thread.run_sync(self._take_heard)

    def _decoded(self, line: bytes) -> tuple[str, Observed]:
        """Return an event's type and object. Raises the error that the server reports."""
        event = self._event(line)
        if event.type == "ERROR":
            failure = msgspec.json.decode(event.object, type=Failure)
            if failure.code == GONE:
                raise _GoneError
            raise ProviderError("provider_unavailable", f"the watch ended: {failure.message[:300]}", engine=ENGINE)
        return event.type, self._object(event.object)

    def _take_heard(self) -> None:
        while self._heard:
            self._take(*self._heard.popleft())

    def _take(self, kind: str, found: Observed) -> None:
        self._version = found.metadata.resource_version or self._version
        if kind == "BOOKMARK":
            return
        sandbox_id = found.label(self._label)
        if kind != "DELETED":
            self._keep(found)
        elif (known := self._objects.get(sandbox_id)) is not None and known.metadata.uid == found.metadata.uid:
            del self._objects[sandbox_id]
        self._notify(sandbox_id)

    def _keep(self, found: Observed) -> None:
        """Keep an object; of two of one sandbox, the one that was made last, as the other is going."""
        sandbox_id = found.label(self._label)
        known = self._objects.get(sandbox_id)
        if known is None or known.metadata.uid == found.metadata.uid or _age(found) >= _age(known):
            self._objects[sandbox_id] = found

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
