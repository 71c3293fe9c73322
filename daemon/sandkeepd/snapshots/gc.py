"""Snapshot retention, and garbage collection of archives that no event references.

Rules limit the number and age of each sandbox's snapshots; the first rule that fits a snapshot's labels decides. The
last good one of a sandbox stays in any case, as it may be all that is left of it.

An archive in a store is ours to remove when it lies where this daemon puts archives, is named by a snapshot's id and is
not of another log. In a bucket its metadata name its log; a mount has no metadata, and its archives are only reported.
The id decides whether a snapshot owns the archive, not the recorded place: a directory may have been moved since, or go
by another name. That is checked right before a removal, as new archives are made during the scan. A removal is recorded
first: the archive may have had another owner.
"""

import logging
import os
import time
from collections.abc import Container, Iterator, Sequence
from typing import Any, Final

import trio

from sandkeep import events
from sandkeep.errors import SandkeepError, StateError
from sandkeep.events import DAEMON_STREAM, Event, Meta
from sandkeep.ids import SNAPSHOT, is_name
from sandkeep.model import SnapshotGcReport
from sandkeep.protocol.clock import now_us
from sandkeep.protocol.methods import SnapshotGc
from sandkeep.settings.daemon import SNAPSHOT_RETAIN, SnapshotRule
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.archives.stores.store import ArchiveStore, Stored
from sandkeep_store.buckets.config import STORAGE, Artifact, Root
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.locks.s3 import PROBE
from sandkeep_store.threads import in_thread
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Order, Upkeep
from sandkeepd.snapshots.archive_paths import place_of
from sandkeepd.snapshots.archives import LOG_KEY, SnapshotArchives
from sandkeepd.snapshots.snapshots import SnapshotRemoval

logger = logging.getLogger("sandkeepd")

EVERY_S: Final = 600.0
UPLOADS_EVERY_S: Final = 3600.0
ABANDONED_AFTER_S: Final = 86_400.0
"""Age in seconds at which an unfinished upload counts as abandoned."""

AT_ONCE: Final = 20
"""Maximum number of archives in one event, which has to hold their paths."""

MOST_REPORTED: Final = 1000

INTERRUPTED: Final = "the daemon stopped while archives were being removed: collect again"


def due(
    snapshots: Sequence[SnapshotState], rules: Sequence[SnapshotRule], moment_us: int
) -> Iterator[tuple[SnapshotState, str]]:
    """Those that retention lets go, each with why: ``count`` or ``age``. Pure."""
    groups: dict[tuple[str | None, str], list[SnapshotState]] = {}
    for snapshot in snapshots:
        if snapshot.status == "ready":
            key = (snapshot.sandbox_id, "" if snapshot.sandbox_id else snapshot.owner)
            groups.setdefault(key, []).append(snapshot)
    for group in groups.values():
        yield from _due_of(sorted(group, key=lambda one: (one.requested_us, one.snapshot_id)), rules, moment_us)


def _due_of(
    group: Sequence[SnapshotState], rules: Sequence[SnapshotRule], moment_us: int
) -> Iterator[tuple[SnapshotState, str]]:
    newer = dict.fromkeys(range(len(rules)), 0)
    for snapshot in reversed(group):
        number = next((n for n, rule in enumerate(rules) if rule.fits(snapshot.requested.labels)), None)
        if number is None:
            continue
        rule = rules[number]
        newer[number] += 1
        if snapshot is group[-1]:
            continue
        if rule.most is not None and newer[number] > rule.most:
            yield snapshot, "count"
        elif rule.age_s is not None and moment_us - snapshot.requested_us > rule.age_s * 1e6:
            yield snapshot, "age"


class ArchiveRemoval(Upkeep):
    """The removal of archives by ``snapshot.gc``. One that a daemon's end interrupts has failed: the next collection
    finds the archives again. `payload` is the intent.
    """

    method = "snapshot.gc"
    stream = DAEMON_STREAM
    essential = True

    def __init__(self, core: Core, archives: SnapshotArchives) -> None:
        super().__init__(core)
        self._archives = archives

    def pending(self) -> Sequence[int]:
        return self.core.state.log.removing

    async def plan(self, asked: events.ArchiveRemoveRequested) -> tuple[Event, Any]:
        return asked, asked

    async def act(self, order: Order[Any]) -> Sequence[NewEvent]:
        assert order.intent is not None
        await self._archives.remove(order.payload.places)
        return [NewEvent(self.stream, events.ArchiveRemoved(position=order.intent.position))]

    async def failed(self, order: Order[Any], error: SandkeepError) -> Sequence[NewEvent]:
        order.error = error
        position = order.intent.position if order.intent is not None else order.payload
        failed = events.ArchiveRemoveFailed(
            position=position, code=error.code, message=error.message, interrupted=order.intent is None
        )
        return [NewEvent(self.stream, failed)]

    async def _recover(self, order: Order[Any]) -> None:
        await self.fail(order, StateError("not_ready", INTERRUPTED))


class GarbageCollector:
    """The handler of ``snapshot.gc``, and the task that applies retention."""

    def __init__(self, core: Core, removal: SnapshotRemoval, archives: SnapshotArchives) -> None:
        self._core = core
        self._snapshots = removal
        self.removal = ArchiveRemoval(core, archives)

    async def run(self) -> None:
        """Apply retention now and then, and end abandoned uploads, at first those of an earlier daemon; until
        cancelled.
        """
        looked_at: float | None = None
        while True:
            if looked_at is None or trio.current_time() - looked_at >= UPLOADS_EVERY_S:
                looked_at = trio.current_time()
                await self._core.run_logged(self._end_uploads, "the end of abandoned uploads")
            await trio.sleep(EVERY_S)
            await self._core.run_logged(self._apply, "retention of snapshots")

    async def _apply(self) -> None:
        """Error handling: a disk that takes no record is tried again at the next look."""
        try:
            await self._retain(Meta(), dry_run=False)
        except SandkeepError as error:
            logger.warning("retention was not applied", extra={"why": error.message})

    async def _retain(self, meta: Meta, *, dry_run: bool) -> list[SnapshotState]:
        going = list(due(list(self._core.state.snapshots.values()), SNAPSHOT_RETAIN(), now_us()))
        for snapshot, why in () if dry_run else going:
            logger.info("retention lets a snapshot go", extra={"snapshot_id": snapshot.snapshot_id, "why": why})
            await self._snapshots.order_end(snapshot, why, meta)
        return [snapshot for snapshot, _ in going]

    async def collect(self, request: Request[SnapshotGc]) -> SnapshotGcReport:
        """Delete expired snapshots, and remove archives that no event owns."""
        return await self._collect(request, dry_run=request.params.dry_run)

    async def answer_again(self, request: Request[SnapshotGc]) -> SnapshotGcReport:
        """Answer a repeated command: nothing is removed, and the result is that of a dry run."""
        return await self._collect(request, dry_run=True)

    async def _collect(self, request: Request[SnapshotGc], *, dry_run: bool) -> SnapshotGcReport:
        meta = Meta(owner=request.owner, client=request.client)
        going = await self._retain(meta, dry_run=dry_run)
        for snapshot in () if dry_run else going:
            await self._snapshots.answer(request, snapshot.snapshot_id)
        await request.progress("looking for archives that no snapshot owns")
        removed, left, freed = await self._sweep(meta, dry_run=dry_run)
        freed += sum(snapshot.stored.size_bytes for snapshot in going if snapshot.stored is not None)
        return SnapshotGcReport(
            snapshots=[snapshot.snapshot_id for snapshot in going],
            archives=removed[:MOST_REPORTED],
            left=left[:MOST_REPORTED],
            freed_bytes=freed,
            dry_run=dry_run,
        )

    async def _sweep(self, meta: Meta, *, dry_run: bool) -> tuple[list[str], list[str], int]:
        removed: list[str] = []
        left: list[str] = []
        freed = 0
        roots = dict.fromkeys((*STORAGE.roots("snapshot"), STORAGE.state_root()))
        for root in roots:
            try:
                store = await in_thread(open_store, root)
                orphans = await in_thread(self._orphans, store)
                left += [
                    f"{store.where(orphan.path)}: {why}"
                    for orphan, why in orphans
                    if why is not None and not self._is_owned(orphan.path)
                ]
                ours = [orphan for orphan, why in orphans if why is None]
                for several in (ours[at : at + AT_ONCE] for at in range(0, len(ours), AT_ONCE)):
                    some = [orphan for orphan in several if not self._is_owned(orphan.path)]
                    if some and not dry_run:
                        places = [place_of(root, orphan.path) for orphan in some]
                        size_bytes = sum(orphan.size_bytes for orphan in some)
                        await self.removal.carry_out(
                            events.ArchiveRemoveRequested(places=places, size_bytes=size_bytes), meta
                        )
                    removed += [store.where(orphan.path) for orphan in some]
                    freed += sum(orphan.size_bytes for orphan in some)
                if not dry_run:
                    await in_thread(self._sweep_unfinished, root, store)
            except SandkeepError as error:
                left.append(f"{root.base}: {error.message}")
        if not dry_run:
            left += await self._sweep_buckets("checkpoint", roots)
        return removed, left, freed

    async def _end_uploads(self) -> None:
        """Error handling: a bucket that does not answer is asked again at the next look."""
        try:
            snapshots = STORAGE.roots("snapshot")
            for why in await self._sweep_buckets("snapshot") + await self._sweep_buckets("checkpoint", snapshots):
                logger.info("abandoned uploads may be left", extra={"why": why})
        except SandkeepError as error:  # a malformed setting, of which each request tells
            logger.info("abandoned uploads may be left", extra={"why": error.message})

    async def _sweep_buckets(self, artifact: Artifact, swept: Container[Root] = ()) -> list[str]:
        """Remove what is unfinished in the buckets of such artifacts; return why anything may be left. GCS has none: it
        ends uploads by itself.
        """
        left = []
        for root in STORAGE.roots(artifact):
            if root.where == "s3" and root not in swept:
                try:
                    await in_thread(self._sweep_unfinished, root)
                except SandkeepError as error:
                    left.append(f"{root.base}: {error.message}")
        return left

    def _sweep_unfinished(self, root: Root, store: ArchiveStore | None = None) -> None:
        """Remove what killed daemons left unfinished: on this machine all that is old, in a bucket what is surely of
        this daemon. On other shared storage nothing tells whose it is. Blocks.
        """
        if not root.is_shared:
            (store or open_store(root)).sweep(ABANDONED_AFTER_S)
        elif root.is_bucket:
            store = store or open_store(root)
            ended = store.sweep(ABANDONED_AFTER_S, is_over=self._is_over)
            if ended:
                logger.info("abandoned uploads are aborted", extra={"bucket": root.base, "count": ended})
            _remove_probes(store)

    def _is_over(self, path: str) -> bool:
        """Return True if an upload to that path is of this log, and nothing is sent there any more. Other daemons
        upload to the same bucket, and only the ids of snapshots and checkpoints tell whose an upload is.
        """
        state = self._core.state
        for name in (part.partition(".")[0] for part in path.split("/")):
            if (snapshot := state.snapshots.get(name)) is not None:
                return snapshot.status != "creating" and snapshot.here is None
            if (checkpoint := state.checkpoints.get(name)) is not None:
                return checkpoint.status != "creating"
        return False

    def _orphans(self, store: ArchiveStore) -> list[tuple[Stored, str | None]]:
        """The archives in a store that no snapshot owns; each with why it stays, None when it is ours to remove."""
        return [
            (stored, self._why_left(store, stored))
            for stored in store.objects()
            if _looks_like_ours(stored.path) and not self._is_owned(stored.path)
        ]

    def _is_owned(self, path: str) -> bool:
        """Return True if a snapshot owns an archive of that name, or is about to."""
        snapshot = self._core.state.snapshots.get(_snapshot_id(path))
        return snapshot is not None and snapshot.alive

    def _why_left(self, store: ArchiveStore, stored: Stored) -> str | None:
        if store.root.where == "state":
            return None
        if not store.root.is_bucket:
            return "it may be another daemon's: remove it by hand if it is not"
        log_id = (stored.metadata or store.stat(stored.path).metadata).get(LOG_KEY)
        return None if log_id == self._core.log.log_id else f"it is of log {log_id or 'unknown'}"


def _remove_probes(store: ArchiveStore) -> None:
    """Remove the objects by which a daemon that was killed tried a service. They are no daemon's in particular, and
    needed for a moment only. Blocks.
    """
    for stored in store.objects(PROBE):
        if stored.changed_at < time.time() - ABANDONED_AFTER_S:
            store.delete(stored.path)


def _looks_like_ours(path: str) -> bool:
    name = _snapshot_id(path)
    return is_name(name) and name.startswith(f"{SNAPSHOT}_") and path.endswith((".tar", ".tar.gz", ".tar.zst"))


def _snapshot_id(path: str) -> str:
    return os.path.basename(path).partition(".")[0]
