"""Snapshots that the daemon makes by itself before the sandbox of a session ends."""

from typing import Final

import trio

from sandkeep.errors import StateError
from sandkeep.events import Meta
from sandkeep.protocol.methods import SandboxResume, SnapshotCreate
from sandkeep.settings.daemon import SESSION_START
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SessionState
from sandkeepd.core import rules
from sandkeepd.core.access import own_request
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.suspend import Resumption
from sandkeepd.snapshots.snapshots import Snapshots

AUTO: Final = "auto-"
"""The beginning of the names of such snapshots, which goes on with the reason: ``stop``, ``idle_timeout``, …"""

LABEL: Final = "sandkeep.auto"
"""The label of such snapshots, with the reason: users name their own as they like."""

KEPT: Final = 3
"""Number of such snapshots that are kept of a session."""

CHANGING: Final = ("suspending", "resuming", "restoring")

TRIES: Final = 3
"""Maximum number of snapshots before an end, each made because something was changed during the one before."""


class Saving:
    """Makes the snapshots, and drops old ones."""

    def __init__(self, core: Core, snapshots: Snapshots, resumption: Resumption) -> None:
        self._core = core
        self._snapshots = snapshots
        self._resumption = resumption

    async def save(self, session: SessionState, sandbox: SandboxState, reason: str) -> str:
        """Snapshot the files of a session's sandbox, with those of calls that were answered meanwhile; return the
        snapshot's id. Raises as ``snapshot.create`` does, and `timeout`.
        """
        seconds = SESSION_START()
        with trio.move_on_after(seconds):
            for _ in range(TRIES):
                touched = sandbox.touched
                saved = await self._save(session, sandbox, reason)
                if sandbox.touched == touched:
                    break
            return saved
        raise StateError("timeout", f"the snapshot took longer than {seconds:g} s ({SESSION_START.name})")

    async def _save(self, session: SessionState, sandbox: SandboxState, reason: str) -> str:
        command = SnapshotCreate(sandbox_id=sandbox.sandbox_id, name=f"{AUTO}{reason}", labels={LABEL: reason})
        request = own_request(session.owner, "snapshot.create", command)
        try:
            made = await self._snapshots.create(request)
        except StateError as error:
            if error.code != "not_ready" or sandbox.status != "suspended":
                raise
            # gVisor reads the files by a program inside
            resume = SandboxResume(sandbox_id=sandbox.sandbox_id)
            await self._resumption.ensure(own_request(session.owner, "sandbox.resume", resume))
            made = await self._snapshots.create(request)
        return made.snapshot_id

    async def save_or_explain(
        self, session: SessionState, sandbox: SandboxState, reason: str
    ) -> tuple[str | None, str | None]:
        """Snapshot the files as `save` does, or return why they are gone for good. Raises the error of a snapshot that
        can be made later, such as one for which there is no room.
        """
        try:
            return await self.save(session, sandbox, reason), None
        except StateError as error:
            if error.code != "not_ready" or sandbox.status not in ("failed", "lost"):
                raise
            return None, f"{error.code}: {error.message}"

    async def can_save(self, sandbox: SandboxState | None) -> bool:
        """Tell if a sandbox has files that can be in a snapshot, once it is neither suspended, resumed nor restored any
        more. Raises as `Core.settled` does.
        """
        if sandbox is None:
            return False
        await self._core.settled(sandbox.sandbox_id, lambda: sandbox.status not in CHANGING)
        return sandbox.made and sandbox.status in rules.READABLE

    async def drop_old(self, session: SessionState) -> None:
        """Delete all but the newest of these snapshots of a session."""
        snapshots = self._core.state.snapshots
        made = [s for s in map(snapshots.get, session.snapshot_ids) if s is not None and s.status == "ready"]
        own = [snapshot for snapshot in made if LABEL in snapshot.requested.labels]
        for snapshot in own[:-KEPT]:
            await self._snapshots.removal.order_end(snapshot, "superseded", Meta())
