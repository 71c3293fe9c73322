"""Deferred upload: archives whose store did not answer wait on this machine until it does.

A snapshot is of one moment, which does not come again. So it counts as made when its archive is on the disk of this
machine, and is sent as soon as the bucket answers; the next daemon continues that. Only then is the local one deleted.
A permanent error, such as a missing bucket, fails the snapshot at once.
"""

import logging
from functools import partial

from sandkeep import events, failpoints
from sandkeep.errors import DataError, ProviderError
from sandkeep_store.archives.stores.store import Stored
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.core.core import Core
from sandkeepd.core.interruption import Interruptible
from sandkeepd.core.retry import retry_until_done
from sandkeepd.snapshots.archives import SnapshotArchives

logger = logging.getLogger("sandkeepd")


def not_sent(snapshot: SnapshotState) -> ProviderError:
    """Return the error for a snapshot that was requested in a shared place, and is not there yet."""
    return ProviderError(
        "provider_unavailable",
        f"snapshot {snapshot.snapshot_id} was made, but {snapshot.why_here}",
        snapshot_id=snapshot.snapshot_id,
    )


class DeferredUploads:
    """One task for each archive that is to be sent still."""

    def __init__(self, core: Core, archives: SnapshotArchives) -> None:
        self._core = core
        self._archives = archives

    def begin(self, snapshot_id: str) -> None:
        """Start sending an archive that is pending; does nothing for others."""
        snapshot = self._core.state.snapshots[snapshot_id]
        if snapshot.here is not None:
            sending = Interruptible()
            self._core.under_way.register(snapshot_id, sending)
            self._core.start_task(partial(self._run, snapshot, sending), f"sending {snapshot_id}")

    async def settle(self) -> None:
        """Go on where an earlier daemon ended."""
        for snapshot_id in list(self._core.state.snapshots):
            self.begin(snapshot_id)

    async def _run(self, snapshot: SnapshotState, sending: Interruptible) -> None:
        with self._core.under_way.running(snapshot.snapshot_id, sending):
            await self._send(snapshot)

    async def _send(self, snapshot: SnapshotState) -> None:
        """Send an archive, retrying. Error handling: an archive that is missing or damaged on the disk cannot be sent.
        A restore reports it.
        """
        here = snapshot.here
        try:
            sent = await retry_until_done(
                partial(self._attempt, snapshot), f"sending {snapshot.snapshot_id}", passing=(DataError,)
            )
        except DataError as error:
            logger.warning("an archive cannot be sent", extra={"place": here and here.uri, "why": error.message})
            return
        if sent is None or here is None:
            return
        failpoints.reach("snapshot.resent")
        told = NewEvent(snapshot.snapshot_id, events.SnapshotSent(), snapshot.sandbox_id)
        await self._core.record([told], None)
        if here not in snapshot.requested.places:
            await self._archives.release(here, snapshot.requested.places[0], sent)

    async def _attempt(self, snapshot: SnapshotState) -> Stored | None:
        """Send it; None when there is nothing to be sent any more."""
        here, asked, stored = snapshot.here, snapshot.requested, snapshot.stored
        if here is None or stored is None:
            return None
        fence = self._archives.fence(asked.sandbox_id, asked.owner) if asked.sandbox_id is not None else None
        sha256 = stored.digest.removeprefix("sha256:")
        return await self._archives.send_on(here, asked.places[0], sha256, fence)
