"""Looking after the store: the check of log and documents, and their rebuilding."""

from typing import Final

import trio

from sandkeep.errors import DaemonError
from sandkeep.model import RebuildReport, VerifyReport
from sandkeep.protocol import methods
from sandkeep_store import metadata_files
from sandkeep_store.metadata_files import MetadataFiles
from sandkeep_store.threads import in_thread
from sandkeep_store.upkeep import offline, segments, state_cache
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core

TRY_AGAIN_S: Final = 1.0
"""Seconds between attempts to write to a failed log without appends."""


async def recover(core: Core) -> None:
    """Find out by itself that a disk works again, until cancelled."""
    while True:
        await trio.sleep(TRY_AGAIN_S)
        if core.log.failure is not None:
            await core.log.try_again()


class Verification:
    """The handlers of ``store.*``."""

    def __init__(self, core: Core, state_dir: str) -> None:
        self._core = core
        self._state_dir = state_dir

    async def verify(self, request: Request[methods.NoParams]) -> VerifyReport:
        """Check the log's every row, and every segment; and against it every metadata.json and the cached fold."""
        core = self._core
        await core.files.flush()
        problems = await in_thread(core.log.verify)
        problems += await in_thread(segments.verify, self._state_dir, core.log.log_id)
        problems += metadata_files.check(core.files.root, core.state, core.log.log_id, skip=core.files.pending())
        if not problems:
            state = await in_thread(offline.fold, core.log)
            problems += await in_thread(state_cache.difference, self._state_dir, core.log, state)
        return await in_thread(offline.report, core.log, problems)

    async def rebuild(self, request: Request[methods.NoParams]) -> RebuildReport:
        """Write every metadata.json anew, from the log alone; none while it is damaged, as they may have seen more."""
        if self._core.problems:
            raise DaemonError("storage_unavailable", self._core.problems[0])
        fresh = await in_thread(offline.fold, self._core.log)
        files: MetadataFiles = self._core.files
        return await files.rebuild(fresh)
