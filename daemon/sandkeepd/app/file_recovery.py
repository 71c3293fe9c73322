"""Recovery at start-up of snapshots, forks and restores that an earlier daemon had begun.

What was being made is as if it had never been; what was to be deleted is. A sandbox whose own files were about to be
replaced has the ones that it had: it still runs, if nothing of it was ended, or can be resumed.
"""

import logging
from functools import partial

import trio

from sandkeep import events
from sandkeep.errors import StateError
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import ForkState
from sandkeepd.app.file_services import SnapshotServices
from sandkeepd.contract.provider import Provider, Replacing
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.oom import KILLED
from sandkeepd.sandboxes.sandboxes import Sandboxes

logger = logging.getLogger("sandkeepd")

FORK_INTERRUPTED = "the daemon stopped while the sandbox was being forked: fork it again"
RESTORE_INTERRUPTED = "the daemon stopped while the sandbox was being restored, and it has the files that it had"


class FileRecovery:
    """Brings to an end what is on record as begun."""

    def __init__(self, core: Core, sandboxes: Sandboxes, kept: SnapshotServices) -> None:
        self._core = core
        self._sandboxes = sandboxes
        self._kept = kept
        self._snapshots_due: list[str] = []
        self._checkpoints_due: list[str] = []
        self._forks_due: list[str] = []
        self._abandoned: list[str] = []

    def announce(self) -> None:
        """Note what is on record as begun: what a client begins from now on is not for `run` to undo."""
        state = self._core.state
        begun = ("creating", "deleting")
        self._snapshots_due = [i for i, snapshot in state.snapshots.items() if snapshot.status in begun]
        self._checkpoints_due = [i for i, checkpoint in state.checkpoints.items() if checkpoint.status in begun]
        self._abandoned = self._kept.checkpoints.files.abandoned()
        self._forks_due = [i for i, fork in state.forks.items() if fork.ended_us is None]

    async def run(self) -> None:
        """Settle snapshots and forks, each by itself, so that one whose store does not answer delays no other."""
        core, snapshots = self._core, self._kept.snapshots
        snapshots.sending.settle()
        async with trio.open_nursery() as nursery:
            for name in self._snapshots_due:
                snapshot = core.state.snapshots[name]
                if snapshot.status == "creating":
                    nursery.start_soon(core.guarded, partial(self._undo_snapshot, name), f"undoing {name}")
                elif snapshot.status == "deleting":
                    nursery.start_soon(core.guarded, partial(snapshots.finish_delete, name, None), f"deleting {name}")
            checkpoints = self._kept.checkpoints
            for name in self._checkpoints_due:
                checkpoint = core.state.checkpoints[name]
                if checkpoint.status == "creating":
                    nursery.start_soon(core.guarded, partial(checkpoints.undo, name), f"undoing {name}")
                elif checkpoint.status == "deleting":
                    nursery.start_soon(core.guarded, partial(checkpoints.finish_delete, name, None), f"deleting {name}")
            removal = partial(checkpoints.sweep, self._abandoned)
            nursery.start_soon(core.guarded, removal, "removing copies of checkpoints")
            for fork_id in self._forks_due:
                fork = core.state.forks[fork_id]
                if fork.ended_us is None:
                    nursery.start_soon(core.guarded, partial(self._undo_fork, fork), f"undoing {fork.fork_id}")
            nursery.start_soon(core.guarded, snapshots.drop_kept, "removing archives that were kept")
            nursery.start_soon(core.guarded, self._kept.archives.sweep, "removing what was being written")
            nursery.start_soon(core.guarded, self._kept.collection.settle, "settling removals of archives")

    async def _undo_snapshot(self, snapshot_id: str) -> None:
        await self._kept.snapshots.undo(snapshot_id)
        provider = self._core.state.snapshots[snapshot_id].requested.provider
        if provider is not None:
            await self._kept.layers.drop(provider, [snapshot_id])

    async def _undo_fork(self, fork: ForkState) -> None:
        """The files that it copied go with whatever else nobody owns."""
        failed: events.Event = events.SandboxForkFailed(code="not_ready", message=FORK_INTERRUPTED, interrupted=True)
        if fork.checkpoint_id is not None:
            words = f"the daemon stopped while checkpoint {fork.checkpoint_id} was being restored: restore it again"
            failed = events.CheckpointRestoreFailed(code="not_ready", message=words, interrupted=True)
        await self._core.record([NewEvent(fork.fork_id, failed, fork.sandbox_id)], None)
        source = self._core.state.sandboxes.get(fork.sandbox_id)
        if source is not None:
            await self._kept.layers.drop(source.requested.provider, [fork.fork_id])

    async def put_back(self, sandbox: SandboxState, provider: Provider) -> bool:
        """Have a sandbox that was being restored be what it was; answer whether it was ended."""
        assert isinstance(provider, Replacing)
        return await provider.put_back(sandbox.sandbox_id, sandbox.requested.plan, sandbox.handle)

    async def record_undone(self, sandbox: SandboxState, *, ended: bool) -> bool:
        """Put it on record that a restore was undone; False when its end was ordered meanwhile."""
        core, sandbox_id, revision = self._core, sandbox.sandbox_id, sandbox.revision
        plans = sandbox.plans
        told: list[NewEvent] = []
        if ended:
            provider = core.provider(sandbox.requested.provider)
            exits = await trio.to_thread.run_sync(provider.last_exits, sandbox_id, list(sandbox.active))
            told = self._sandboxes.last_words(sandbox, exits.get, KILLED)
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
