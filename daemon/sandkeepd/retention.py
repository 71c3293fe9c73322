"""Retention: what ended longer ago than ``SANDKEEP_RETAIN`` goes into the archive, by itself or on request."""

import logging
from collections.abc import Sequence
from typing import Final

import trio

from sandkeep.clock import now_us
from sandkeep.errors import DaemonError, SandkeepError
from sandkeep.events import Meta
from sandkeep.methods import StoreCompact, StoreRedact
from sandkeep.model import CompactReport, RedactReport
from sandkeep.settings import RETAIN
from sandkeep_store.compaction import Compaction
from sandkeep_store.redaction import Redaction
from sandkeepd import caching
from sandkeepd.access import Request
from sandkeepd.core import Core

logger = logging.getLogger("sandkeepd")

FIRST_AFTER_S: Final = 60.0
EVERY_S: Final = 3600.0
LEAST_EVENTS: Final = 1000
"""What is fewer is not worth a segment; it goes with the next ones."""


class Retention:
    """The handlers of ``store.compact`` and ``store.redact``, and the task that compacts by itself."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._one_at_a_time = trio.Lock()

    async def compact(self, request: Request[StoreCompact]) -> CompactReport:
        """Archive what ended longer ago than the caller says, or the setting."""
        age_s = request.params.older_than_s or RETAIN()
        if age_s is None:
            return CompactReport(first_position=self._core.log.first_position)
        return await self.archive(now_us() - int(age_s * 1e6), request.meta)

    async def run(self) -> None:
        """Archive what is due, every hour, until cancelled. An interrupted compaction is finished first."""
        await trio.sleep(FIRST_AFTER_S)
        while True:
            try:
                if self._core.state.log.redacting:
                    await self._finish_redactions()
                age_s = RETAIN()
                if age_s is not None:
                    await self.archive(now_us() - int(age_s * 1e6), Meta(), least=LEAST_EVENTS)
            except SandkeepError as error:
                logger.warning("nothing was archived", extra={"why": error.message})
            await trio.sleep(EVERY_S)

    async def redact(self, request: Request[StoreRedact]) -> RedactReport:
        """Take what a caller put into an event out of the log and the archive."""
        core, position = self._core, request.params.position
        if core.problems:
            raise DaemonError("storage_unavailable", core.problems[0])
        async with self._one_at_a_time:
            report = await Redaction(core.log).run(position, request.meta)
        self._refresh_documents()
        return report

    async def _finish_redactions(self) -> None:
        async with self._one_at_a_time:
            for position in list(self._core.state.log.redacting):
                await Redaction(self._core.log).finish(position, Meta())
        self._refresh_documents()

    def _refresh_documents(self) -> None:
        for sandbox_id in self._core.state.sandboxes:
            self._core.files.mark(sandbox_id)

    async def archive(self, before_us: int, meta: Meta, *, least: int = 1) -> CompactReport:
        """Archive what had ended before a moment in the past. Raises `storage_unavailable`."""
        core = self._core
        if core.problems:
            raise DaemonError("storage_unavailable", core.problems[0])
        async with self._one_at_a_time:
            report = await Compaction(core.log, core.state, self._forget).run(before_us, meta, least=least)
            if report.events:
                logger.info("archived", extra={"events": report.events, "segments": len(report.segments)})
                await trio.to_thread.run_sync(caching.refresh, core.log, core.log.directory)
        return report

    async def _forget(self, sandboxes: Sequence[str]) -> None:
        """Remove journals and documents. Who made a sandbox is not known any more, so all are asked."""
        for provider in self._core.providers.values():
            await provider.forget(sandboxes)
        for sandbox_id in sandboxes:
            self._core.files.mark(sandbox_id)
