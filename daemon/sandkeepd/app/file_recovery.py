"""Recovery at start-up of interrupted work on the files of sandboxes.

Operations recover by themselves; this covers the rest. A sandbox whose own files were about to be replaced has its old
ones: it still runs, if none of its processes were ended, or can be resumed.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from sandkeep import events
from sandkeep.errors import StateError
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.app.file_services import SnapshotServices
from sandkeepd.contract.provider import Provider
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Operation
from sandkeepd.sandboxes.last_words import exits_left, last_words
from sandkeepd.sandboxes.oom import KILLED

logger = logging.getLogger("sandkeepd")

RESTORE_INTERRUPTED = "the daemon stopped while the sandbox was being restored, and it has the files that it had"


class FileRecovery:
    """Finishes work that is on record as begun."""

    def __init__(self, core: Core, kept: SnapshotServices) -> None:
        self._core = core
        self._kept = kept
        self._operations: Sequence[Operation[Any]] = (*kept.operations, kept.collection.removal)
        self._abandoned: list[str] = []

    def announce(self) -> None:
        """Note the work that is on record as begun: `run` must not undo work of clients from now on."""
        for operation in self._operations:
            operation.announce()
        self._abandoned = self._kept.checkpoints.files.abandoned()

    async def run(self) -> None:
        """Settle each by itself, so that one whose store does not answer delays no other."""
        guarded, kept = self._core.guarded, self._kept
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guarded, kept.snapshots.removal.sending.settle, "sending archives")
            for operation in self._operations:
                nursery.start_soon(guarded, operation.recover, f"recovery of {type(operation).__name__}")
            sweep = partial(kept.checkpoints.sweep, self._abandoned)
            nursery.start_soon(guarded, sweep, "removing copies of checkpoints")
            nursery.start_soon(guarded, kept.snapshots.removal.drop_kept, "removing archives that were kept")
            nursery.start_soon(guarded, kept.archives.sweep, "removing what was being written")

    async def put_back(self, sandbox: SandboxState, provider: Provider) -> bool:
        """Return a sandbox whose restore was interrupted to its old files; return True if it was ended."""
        assert provider.replacement is not None
        return await provider.replacement.put_back(sandbox.sandbox_id, sandbox.requested.plan, sandbox.handle)

    async def record_undone(self, sandbox: SandboxState, *, ended: bool) -> bool:
        """Put it on record that a restore was undone; False when its end was ordered meanwhile."""
        core, sandbox_id, revision = self._core, sandbox.sandbox_id, sandbox.revision
        plans = sandbox.plans
        told: list[NewEvent] = []
        if ended:
            told = last_words(core, sandbox, await exits_left(core, sandbox), KILLED)
        failed = events.SandboxRestoreFailed(
            code="not_ready", message=RESTORE_INTERRUPTED, ended=ended, interrupted=True
        )
        try:
            await core.record([*told, NewEvent(sandbox_id, failed, sandbox_id, revision)], None)
        except StateError:
            logger.info("not undone, as it is being ended", extra={"sandbox_id": sandbox_id})
            return False
        await self._kept.layers.drop_plans(sandbox.requested.provider, plans)
        return True
