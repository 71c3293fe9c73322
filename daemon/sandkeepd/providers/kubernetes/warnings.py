"""What the cluster says of a pod that does not start: many reasons stand in its Events alone.

They are looked at now and then while somebody waits, and not watched: a namespace has many more of them than sandboxes.
"""

from collections.abc import Callable
from typing import Final

import msgspec
import trio
from msgspec import Struct

from sandkeep.errors import SandkeepError
from sandkeep.system.backoff import pauses
from sandkeepd.contract.caller import STARTING, Progress
from sandkeepd.providers.kubernetes.cluster import Api, Cluster, Kind
from sandkeepd.providers.kubernetes.observed import Observed, sentence, why_waiting

EVENTS: Final = Kind("", "v1", "events")

FIRST_LOOK_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0
"""Seconds until the Events of a pod that starts are looked at, and between further looks at most."""


class Warned(Struct, frozen=True, rename="camel"):
    """A warning of the cluster's. Which of the times it has depends on who gives it."""

    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def time(self) -> str:
        """When it was given last, in UTC, to be compared."""
        return self.last_timestamp or self.event_time or ""


_warned: Final = msgspec.json.Decoder(Warned).decode


class Warnings:
    """The warnings about objects. A daemon that may not read any goes without."""

    def __init__(self, cluster: Cluster, nursery: trio.Nursery) -> None:
        self._cluster = cluster
        self._nursery = nursery

    async def why(self, found: Observed | None) -> str:
        """Return the reason why an object that is being started does not run yet."""
        why = why_waiting(found)
        if found is None:
            return why
        fields = f"involvedObject.uid={found.metadata.uid},type=Warning"

        def read(api: Api) -> list[Warned]:
            return api.list(EVENTS, "", _warned, fields=fields).found

        try:
            last = max(await self._cluster.call(read), key=lambda each: each.time, default=None)
        except SandkeepError:
            return why
        return sentence(last.reason, last.message) if last is not None else why

    def tell(self, look: Callable[[], Observed | None]) -> trio.CancelScope:
        """Tell whoever waits for a start why it takes so long, until the scope that is returned is cancelled."""
        scope = trio.CancelScope()
        self._nursery.start_soon(self._tell, look, STARTING.get(), scope)
        return scope

    async def _tell(self, look: Callable[[], Observed | None], progress: Progress, scope: trio.CancelScope) -> None:
        told = ""
        with scope:
            for pause_s in pauses(FIRST_LOOK_S, LONGEST_PAUSE_S):
                await trio.sleep(pause_s)
                if (why := await self.why(look())) != told:
                    told = why
                    await progress(f"the pod does not run yet: {why}")
