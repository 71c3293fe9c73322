"""Looking after the store: the check of log and documents, and their rebuilding."""

import trio

from sandkeep import methods
from sandkeep.model import RebuildReport, VerifyReport
from sandkeep_store import metadata_files, offline
from sandkeep_store.metadata_files import MetadataFiles
from sandkeepd.access import Request
from sandkeepd.core import Core


class Upkeep:
    """The handlers of ``store.*``."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def verify(self, request: Request[methods.NoParams]) -> VerifyReport:
        """Check the log's every row, and every metadata.json against it."""
        core = self._core
        await core.files.flush()
        problems = await trio.to_thread.run_sync(core.log.verify)
        problems += metadata_files.check(core.files.root, core.state, core.log.log_id, skip=core.files.pending())
        return offline.report(core.log, problems)

    async def rebuild(self, request: Request[methods.NoParams]) -> RebuildReport:
        """Write every metadata.json anew, from the log alone."""
        fresh = await trio.to_thread.run_sync(offline.fold, self._core.log)
        files: MetadataFiles = self._core.files
        return await files.rebuild(fresh)
