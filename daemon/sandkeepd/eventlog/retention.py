"""Retention: events of objects that ended longer ago than ``SANDKEEP_RETAIN`` are archived, hourly or on request."""

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, cast

import trio

from sandkeep.errors import SandkeepError
from sandkeep.events import LOG_STREAM, Event, Meta
from sandkeep.model import CompactReport, RedactReport
from sandkeep.protocol.clock import now_us
from sandkeep.protocol.methods import StoreCompact, StoreRedact
from sandkeep.settings.daemon import RETAIN
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.threads import in_thread
from sandkeep_store.upkeep import state_cache
from sandkeep_store.upkeep.compaction import Compaction, Plan, Wanted
from sandkeep_store.upkeep.redaction import Redaction, Target
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Order, Upkeep
from sandkeepd.eventlog import state_cache as caching
from sandkeepd.sandboxes.output_times import OutputTimes
from sandkeepd.sandboxes.runtimes import Runtimes

logger = logging.getLogger("sandkeepd")

FIRST_AFTER_S: Final = 60.0
EVERY_S: Final = 3600.0
LEAST_EVENTS: Final = 1000
"""Minimum number of events for a segment; fewer wait for the next ones."""


class LogRedaction(Upkeep):
    """``store.redact``: a caller's data is removed from an event, everywhere. `payload` is its position."""

    method = "store.redact"
    stream = LOG_STREAM

    def __init__(self, core: Core, runtimes: Runtimes, turn: trio.Semaphore) -> None:
        super().__init__(core, turn)
        self._runtimes = runtimes
        self._redaction = Redaction(core.log, core.state, self._forget_event)

    def pending(self) -> Sequence[int]:
        return self.core.state.log.redacting

    async def plan(self, asked: int) -> tuple[Event, int]:
        """See `Upkeep.plan`. Raises as `Redaction.plan` does."""
        return await self._redaction.plan(asked), asked

    async def act(self, order: Order[Any]) -> Sequence[NewEvent]:
        """See `Operation.act`. Leaves the event that was redacted, and the report."""
        outcome, *order.context = await self._redaction.carry_out(order.payload)
        return [NewEvent(self.stream, outcome)]

    async def recorded(self, order: Order[Any], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        """See `Operation.recorded`. The views have forgotten the data: write the sandbox's document anew."""
        sandbox_id = order.context[0].sandbox_id
        if sandbox_id is not None:
            await self.core.files.rewrite(sandbox_id)

    async def _forget_event(self, target: Target) -> None:
        """Remove data computed from an event."""
        core = self.core
        async with core.caching:
            await in_thread(state_cache.discard, core.log.directory)
        if target.sandbox_id is not None:
            await core.files.discard_unfinished(target.sandbox_id)
            await self._runtimes.adopted(target.sandbox_id)
            runtime = self._runtimes.by_id.get(target.sandbox_id)
            if runtime is not None and target.type.startswith("process."):
                runtime.instance.forget(target.stream)


class LogCompaction(Upkeep):
    """``store.compact``, one round of it: events of ended objects go into the archive. `payload` is the plan."""

    method = "store.compact"
    stream = LOG_STREAM

    def __init__(self, core: Core, turn: trio.Semaphore) -> None:
        super().__init__(core, turn)
        self._times = OutputTimes(core.log.directory)
        self._compaction = Compaction(core.log, core.state, self._forget, self._forget_processes)

    async def run_all(self, before_us: int, meta: Meta, least: int) -> CompactReport:
        """Archive objects that had ended before a moment, in as many rounds as that takes."""
        return await self._compaction.run(before_us, meta, least=least, carry_out=self.carry_out)

    def pending(self) -> Sequence[int]:
        """See `Upkeep.pending`. A compaction is known by its moment."""
        log = self.core.state.log
        return [log.archived_before_us] if log.compacting else []

    async def plan(self, asked: Wanted) -> tuple[Event, Plan] | None:
        plan = await self._compaction.plan(asked)
        return (plan.intent, plan) if plan is not None else None

    async def act(self, order: Order[Any]) -> Sequence[NewEvent]:
        outcome, order.context = await self._compaction.archive(order.payload)
        return [NewEvent(self.stream, outcome)]

    async def _recover(self, order: Order[Any]) -> None:
        """See `Operation._recover`. Another round, which goes by the contents, finishes an interrupted one."""
        try:
            await self.carry_out_in_turn(Wanted(order.payload), Meta(), AsyncExitStack())
        except SandkeepError as error:
            logger.warning("a compaction is not finished yet", extra={"why": error.message})

    async def _forget_processes(self, sandbox_id: str, process_ids: Sequence[str]) -> None:
        """Remove the journals of archived processes in a live sandbox, and the times of their output.

        Error handling: code inside may have replaced the journals, and must not block archiving. Leftovers go with the
        sandbox, or when they exceed a limit.
        """
        sandbox = self.core.state.sandboxes[sandbox_id]
        provider = self.core.providers.get(sandbox.requested.provider)
        if provider is None:
            return
        try:
            await in_thread(self._times.forget_processes, sandbox_id, process_ids)
            await in_thread(provider.drop_output, sandbox_id, process_ids)
        except OSError as error:
            extra = {"sandbox_id": sandbox_id, "why": error.strerror}
            logger.warning("output of processes that are archived stays", extra=extra)

    async def _forget(self, sandboxes: Sequence[str]) -> None:
        """Remove journals, their times, and documents. The provider of a forgotten sandbox is unknown, so all are
        called.
        """
        for provider in self.core.providers.values():
            await provider.forget(sandboxes)
        await in_thread(self._times.forget, sandboxes)
        for sandbox_id in sandboxes:
            self.core.files.mark(sandbox_id)


class Retention:
    """The handlers of ``store.compact`` and ``store.redact``, and the task that compacts by itself."""

    def __init__(self, core: Core, runtimes: Runtimes) -> None:
        self._core = core
        turn = trio.Semaphore(1)
        self.redaction = LogRedaction(core, runtimes, turn)
        self.compaction = LogCompaction(core, turn)

    async def run(self) -> None:
        """Archive old objects every hour, until cancelled. What an earlier daemon, or a failure of the disk, left
        unfinished is finished first.
        """
        await self.recover()
        await trio.sleep(FIRST_AFTER_S)
        while True:
            try:
                await self.recover()
                age_s = RETAIN()
                if age_s is not None:
                    await self.archive(now_us() - int(age_s * 1e6), Meta(), least=LEAST_EVENTS)
            except SandkeepError as error:
                logger.warning("nothing was archived", extra={"why": error.message})
            await trio.sleep(EVERY_S)

    async def recover(self) -> None:
        """Finish redactions and compactions that are on record as begun."""
        for upkeep in (self.redaction, self.compaction):
            upkeep.announce()
            await upkeep.recover()

    async def redact(self, request: Request[StoreRedact]) -> RedactReport:
        """Remove a caller's data from an event in the log and the archive."""
        self._core.require_sound()
        _, report = await self.redaction.carry_out(request.params.position, request.meta)
        return cast("RedactReport", report)

    async def compact(self, request: Request[StoreCompact]) -> CompactReport:
        """Archive objects that ended longer ago than the caller's limit, or the setting."""
        age_s = request.params.older_than_s or RETAIN()
        if age_s is None:
            return CompactReport(first_position=self._core.log.first_position)
        return await self.archive(now_us() - int(age_s * 1e6), request.meta)

    async def archive(self, before_us: int, meta: Meta, *, least: int = 1) -> CompactReport:
        """Archive objects that had ended before a moment in the past. Raises `storage_unavailable`."""
        self._core.require_sound()
        report = await self.compaction.run_all(before_us, meta, least)
        if report.events:
            logger.info("archived", extra={"events": report.events, "segments": len(report.segments)})
            await caching.refresh(self._core)
        return report
