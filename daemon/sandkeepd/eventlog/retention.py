"""Retention: events of objects that ended longer ago than ``SANDKEEP_RETAIN`` are archived, hourly or on request."""

import logging
from collections.abc import Sequence
from typing import Final

import trio

from sandkeep.errors import DaemonError, SandkeepError
from sandkeep.events import Meta
from sandkeep.model import CompactReport, RedactReport
from sandkeep.protocol.clock import now_us
from sandkeep.protocol.methods import StoreCompact, StoreRedact
from sandkeep.settings.daemon import RETAIN
from sandkeep_store.upkeep import state_cache
from sandkeep_store.upkeep.compaction import Compaction
from sandkeep_store.upkeep.redaction import Redaction, Target
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.eventlog import state_cache as caching
from sandkeepd.sandboxes.runtimes import Runtimes

logger = logging.getLogger("sandkeepd")

FIRST_AFTER_S: Final = 60.0
EVERY_S: Final = 3600.0
LEAST_EVENTS: Final = 1000
"""Minimum number of events for a segment; fewer wait for the next ones."""


class Retention:
    """The handlers of ``store.compact`` and ``store.redact``, and the task that compacts by itself."""

    def __init__(self, core: Core, runtimes: Runtimes) -> None:
        self._core = core
        self._runtimes = runtimes
        self._lock = trio.Lock()

    async def compact(self, request: Request[StoreCompact]) -> CompactReport:
        """Archive objects that ended longer ago than the caller's limit, or the setting."""
        age_s = request.params.older_than_s or RETAIN()
        if age_s is None:
            return CompactReport(first_position=self._core.log.first_position)
        return await self.archive(now_us() - int(age_s * 1e6), request.meta)

    async def run(self) -> None:
        """Archive old objects every hour, until cancelled. Interrupted redactions are finished first."""
        await self._finish_redactions()
        await trio.sleep(FIRST_AFTER_S)
        while True:
            try:
                await self._finish_redactions()
                age_s = RETAIN()
                if age_s is not None:
                    await self.archive(now_us() - int(age_s * 1e6), Meta(), least=LEAST_EVENTS)
            except SandkeepError as error:
                logger.warning("nothing was archived", extra={"why": error.message})
            await trio.sleep(EVERY_S)

    async def redact(self, request: Request[StoreRedact]) -> RedactReport:
        """Remove a caller's data from an event in the log and the archive."""
        core, position = self._core, request.params.position
        if core.problems:
            raise DaemonError("storage_unavailable", core.problems[0])
        try:
            async with self._lock:
                return await self._redaction().run(position, request.meta)
        except trio.Cancelled:  # the caller has gone, but has been promised nothing less for that
            core.carry(self._finish_redactions, "redaction")
            raise

    async def _finish_redactions(self) -> None:
        """Carry out recorded requests, after a crash or a failure of the disk."""
        try:
            async with self._lock:
                for position in list(self._core.state.log.redacting):
                    await self._redaction().finish(position, Meta())
        except SandkeepError as error:
            logger.warning("an event is not redacted yet", extra={"why": error.message})

    def _redaction(self) -> Redaction:
        return Redaction(self._core.log, self._core.state, self._forget_event, self._rewrite_files)

    async def _forget_event(self, target: Target) -> None:
        """Remove data computed from an event."""
        core = self._core
        async with core.caching:
            await trio.to_thread.run_sync(state_cache.discard, core.log.directory)
        if target.sandbox_id is not None:
            await core.files.discard_unfinished(target.sandbox_id)
            await self._runtimes.adopted(target.sandbox_id)
            runtime = self._runtimes.by_id.get(target.sandbox_id)
            if runtime is not None and target.type.startswith("process."):
                runtime.instance.forget(target.stream)

    async def _rewrite_files(self, target: Target) -> None:
        if target.sandbox_id is not None:
            await self._core.files.rewrite(target.sandbox_id)

    async def archive(self, before_us: int, meta: Meta, *, least: int = 1) -> CompactReport:
        """Archive objects that had ended before a moment in the past. Raises `storage_unavailable`."""
        core = self._core
        if core.problems:
            raise DaemonError("storage_unavailable", core.problems[0])
        async with self._lock:
            report = await Compaction(core.log, core.state, self._forget, self._forget_processes).run(
                before_us, meta, least=least
            )
            if report.events:
                logger.info("archived", extra={"events": report.events, "segments": len(report.segments)})
                await caching.refresh(core)
        return report

    async def _forget_processes(self, sandbox_id: str, process_ids: Sequence[str]) -> None:
        """Remove the journals of archived processes in a live sandbox.

        Error handling: code inside may have replaced the journals, and must not block archiving. Leftovers go with the
        sandbox, or when they exceed a limit.
        """
        sandbox = self._core.state.sandboxes[sandbox_id]
        provider = self._core.providers.get(sandbox.requested.provider)
        if provider is None:
            return
        try:
            await trio.to_thread.run_sync(provider.drop_output, sandbox_id, process_ids)
        except OSError as error:
            extra = {"sandbox_id": sandbox_id, "why": error.strerror}
            logger.warning("output of processes that are archived stays", extra=extra)

    async def _forget(self, sandboxes: Sequence[str]) -> None:
        """Remove journals and documents. The provider of a forgotten sandbox is unknown, so all are called."""
        for provider in self._core.providers.values():
            await provider.forget(sandboxes)
        for sandbox_id in sandboxes:
            self._core.files.mark(sandbox_id)
