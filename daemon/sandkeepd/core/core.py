"""The common parts of the daemon: the log, the state folded from it, the providers, and the recording of facts.

A mutation has three steps, always the same. Its *intent* is appended, by the call, with the caller's `command_id`. A
*task* of the daemon's own, acts and records the outcome, even if the caller has gone. The *answer* is read
from the state once that has settled, by the call or by a later call that repeats the command.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final

import trio

from sandkeep.errors import DaemonError, SandkeepError, SetupError, StateError, error_from, only_error
from sandkeep.events import Meta
from sandkeep.system.backoff import pauses
from sandkeep_store.eventlog.log import EventLog, NewEvent, Recorded
from sandkeep_store.metadata_files import MetadataFiles
from sandkeep_store.views.snapshots import SnapshotState
from sandkeep_store.views.state import State
from sandkeepd.contract.provider import Provider
from sandkeepd.core import rules
from sandkeepd.core.interruption import UnderWay
from sandkeepd.core.quotas import Quotas
from sandkeepd.host.fairness import yield_to_loop

logger = logging.getLogger("sandkeepd")

RUN_AGAIN: Final = object()
"""The answer to a repeated command that failed only because the daemon died: carry it out after all."""

RETRY_S = 1.0
"""Seconds before a task retries to record an outcome after a failure of the disk."""


TRY_AGAIN_S: Final = (0.0, *islice(pauses(0.002, 1.0), 9))
"""Pauses before an order that met a conflict is retried: about a second in all. One retry is enough but for a defect.
"""


class Tries:
    """Bounds the retries of an order that conflicts with a concurrent change.

    The views see a change before the conflict is raised, so that the next try fits. If the views never catch up with
    the log, the loop must end in an error.
    """

    def __init__(self) -> None:
        self._pauses = iter(TRY_AGAIN_S)

    async def again(self, conflict: StateError) -> None:
        """Wait a moment before the next try; raise the `conflict` when there were enough."""
        pause = next(self._pauses, None)
        if pause is None:
            logger.error("an order never fits its stream", extra={"why": conflict.message, **conflict.data})
            raise conflict
        await trio.sleep(pause)


class Core:
    """The log, the state and the tasks. One a daemon; `app` builds it."""

    def __init__(
        self, log: EventLog, state: State, files: MetadataFiles, providers: dict[str, Provider], nursery: trio.Nursery
    ) -> None:
        self.log = log
        self.state = state
        self.files = files
        self.providers = providers
        self.nursery = nursery
        self.problems: list[str] = []
        self.under_way = UnderWay()
        self.quotas = Quotas(state)
        self.caching = trio.Lock()
        """Held while the cached fold is written or removed."""
        self.withheld: set[str] = set()
        """Shared sandboxes that had lost their lock, and stand still until it is known that nobody had them since."""
        self.leaving: set[str] = set()
        """Shared sandboxes that were saved, and are about to be given up."""
        self.foreign: dict[str, list[str]] = {}
        """Findings of each provider that belong to other logs, in sentences."""
        self._waiting: dict[str, trio.Event] = {}
        self._stalled: dict[str, SandkeepError] = {}
        log.on_commit.append(self._committed)

    def _committed(self, facts: Sequence[Recorded]) -> None:
        for fact in facts:
            assert fact.event is not None
            self.state.apply(fact.event, fact)
            self.quotas.committed(fact)
            if fact.sandbox_id is not None:
                self.files.mark(fact.sandbox_id)
            self.wake(fact.stream)

    def wake(self, stream: str) -> None:
        """Wake those that wait for a stream, to look again."""
        waiting = self._waiting.pop(stream, None)
        if waiting is not None:
            waiting.set()

    def provider(self, name: str) -> Provider:
        """The provider of that name. Raises `not_supported`."""
        found = self.providers.get(name)
        if found is None:
            known = ", ".join(sorted(self.providers))
            raise SetupError("not_supported", f"there is no provider {name!r} here: use one of {known}", provider=name)
        return found

    def provider_of(self, snapshot: SnapshotState) -> Provider:
        """The provider whose files a snapshot has; an event that names none is of the time of local ones alone. Raises
        `not_supported`.
        """
        return self.provider(snapshot.requested.provider or "local")

    def provider_of_image(self, image_id: str) -> Provider:
        """The provider that an image was made for. Raises `not_found` and `not_supported`."""
        return self.provider(rules.image(self.state, image_id).requested.provider)

    def require_sound(self) -> None:
        """Raise `storage_unavailable` for a log that could not be folded to its end: the state would not follow."""
        if self.problems:
            raise DaemonError("storage_unavailable", self.problems[0])

    async def intend(self, new: NewEvent, meta: Meta, *, essential: bool = False) -> Recorded:
        """Append an intent. It is durable, and in the state, when this returns.

        Raises `conflict` and `storage_unavailable`.
        """
        self.require_sound()
        recorded = await self.log.append([new], meta, essential=essential)
        self._stalled.pop(new.stream, None)  # earlier outcomes no longer wait for the disk
        return recorded[0]

    async def record(
        self,
        new: Sequence[NewEvent],
        cause: Recorded | None,
        *,
        meta: Meta | None = None,
        essential: bool = False,
        awaited: bool = True,
    ) -> Sequence[Recorded]:
        """Append an outcome, retrying while the disk fails: the fact has happened. Its cause is the event `cause`, or
        `meta`. Returns the recorded events.

        While it is `awaited`, callers that wait for the same streams get `storage_unavailable`.
        """
        meta = meta or (Meta(caused_by=self.log.token(cause.position)) if cause is not None else Meta())
        try:
            while True:
                try:
                    return await self.log.append(new, meta, essential=essential)
                except DaemonError as error:
                    if error.code != "storage_unavailable":
                        raise
                    if awaited:
                        self.stall([event.stream for event in new], error)
                    await trio.sleep(RETRY_S)
        finally:  # also when it is given up, as its sandbox is to end
            self.clear_stall([event.stream for event in new] if awaited else ())

    def stall(self, streams: Sequence[str], error: SandkeepError) -> None:
        """Fail callers that wait for these streams with an error, until it is cleared or an event follows."""
        for stream in streams:
            self._stalled[stream] = error
            self.wake(stream)

    def clear_stall(self, streams: Iterable[str]) -> None:
        """End what `stall` began."""
        for stream in streams:
            self._stalled.pop(stream, None)

    def stalled(self, stream: str) -> str | None:
        """Return the reason why the stream's next event is delayed, if known."""
        stalled = self._stalled.get(stream)
        return stalled.message if stalled is not None else None

    async def settled(self, stream: str, done: Callable[[], bool]) -> None:
        """Wait until `done`, which is looked at after each event of that stream. Raises `storage_unavailable` when it
        cannot be recorded, and `provider_unavailable` when it cannot be done before some engine answers again.
        """
        while not done():
            stalled = self._stalled.get(stream)
            if stalled is not None:
                raise error_from(stalled.code, stalled.message, stalled.data)
            await self.changed(stream)

    async def changed(self, stream: str) -> None:
        """Wait for the next event of that stream, or until it is known why none comes."""
        waiting = self._waiting.get(stream)
        if waiting is None:
            waiting = self._waiting[stream] = trio.Event()
        await waiting.wait()
        await yield_to_loop()

    def start_task(self, task: Callable[[], Awaitable[object]], what: str) -> None:
        """Start a task of the daemon's own. One that fails in a way that nobody foresaw is logged, and ends alone."""
        self.nursery.start_soon(self.run_logged, task, what)

    async def run_logged(self, task: Callable[[], Awaitable[object]], what: str) -> None:
        """Run a task to its end; log a defect."""
        try:
            await yield_to_loop()
            await task()
        except Exception:
            logger.exception("task failed", extra={"what": what})


def as_sandkeep_error(error: Exception) -> SandkeepError:
    """An error of ours as it is, also in a nursery's group; anything else as `internal`, logged with its traceback."""
    error = only_error(error)
    if isinstance(error, SandkeepError):
        return error
    logger.error("unforeseen failure", exc_info=error)
    return DaemonError("internal", f"a defect of Sandkeep ({type(error).__name__}): the daemon's log has the details")
