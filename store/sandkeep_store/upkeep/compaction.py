"""Compaction: old events of ended objects move from the log into the archive, so that log, views and starts stay small.

Archived are the events of ended sandboxes, with all their processes; of ended processes in live sandboxes, once no view
shows them; of removed images; of released locks. They go as whole streams, and only when all of a stream is older than
a given moment. Of streams that do not end (the daemon's, the log's, of files written into a live sandbox) all but the
last event go. Older events that are still needed stay and are folded as before.

Crash safety: first ``log.compact_requested`` names the sandboxes and images that no view holds any more. Then, portion
by portion, events are written into a segment, which is made durable and read back; only then `first_position` rises,
and they are deleted in small batches by the log's one writer. At last ``log.compacted`` is appended. At any moment an
event is in the log, or in a segment, or in both; in that case the next compaction, which goes by the contents and not
by the plan, writes it into a segment again.
"""

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from sandkeep import failpoints
from sandkeep.events import (
    LOG_STREAM,
    LogCompacted,
    LogCompactRequested,
    Meta,
    ProcessLaunchRequested,
    ProcessRestored,
)
from sandkeep.model import CompactReport
from sandkeep_store.eventlog.log import EventLog, NewEvent
from sandkeep_store.eventlog.reader import LiveObjects, Removal
from sandkeep_store.threads import in_thread
from sandkeep_store.upkeep import segments
from sandkeep_store.views.folds.locks import can_be_archived
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.state import State

ROUND_NAMES: Final = 400
"""Maximum number of sandboxes, and of images, in one ``log.compact_requested``: it must fit into an event."""
ROUND_EVENTS: Final = 200_000
SEGMENT_EVENTS: Final = 20_000
BATCH_EVENTS: Final = 100
"""Events deleted at once, which takes about twice as long as a commit of one."""
BATCH_PAGES: Final = 64
FREE_PAGES: Final = 1024
"""Number of free pages that stay in the file for the next appends."""

Forget = Callable[[Sequence[str]], Awaitable[None]]
ForgetProcesses = Callable[[str, Sequence[str]], Awaitable[None]]


class Wanted(NamedTuple):
    """Objects that had ended before a moment, if that is at least so many events."""

    before_us: int
    least: int = 1


class Plan(NamedTuple):
    """One round of a compaction: its intent, the events that stay, and the positions of those that are archived."""

    intent: LogCompactRequested
    kept: LiveObjects
    positions: Sequence[int]


CarryOut = Callable[[Wanted, Meta], Awaitable[CompactReport | None]]


class Compaction:
    """Compacts one log. `state` must follow the log; `forget` removes the files of archived sandboxes, and
    `forget_processes` those of archived processes in a live sandbox.
    """

    def __init__(self, log: EventLog, state: State, forget: Forget, forget_processes: ForgetProcesses) -> None:
        self._log = log
        self._state = state
        self._forget = forget
        self._forget_processes = forget_processes

    async def run(
        self, before_us: int, meta: Meta, *, least: int = 1, carry_out: "CarryOut | None" = None
    ) -> CompactReport:
        """Archive the objects that had ended before a moment. With fewer than `least` events to archive do nothing,
        unless an earlier compaction was interrupted. `carry_out` plans, records and does the work of one round; it
        returns None if there is none.

        Raises `storage_unavailable`; the next compaction finishes the work.
        """
        report = CompactReport(first_position=self._log.first_position)
        full = True
        while full:
            part = await (carry_out or self._carry_out)(Wanted(before_us, least), meta)
            if part is None:
                break
            report = _sum(report, part)
            full = part.events == ROUND_EVENTS or ROUND_NAMES in (part.sandboxes, part.images)
        while report.events and await self._log.release_pages(BATCH_PAGES) > FREE_PAGES:
            pass
        return report

    async def _carry_out(self, wanted: Wanted, meta: Meta) -> CompactReport | None:
        plan = await self.plan(wanted)
        if plan is None:
            return None
        await self._log.append([NewEvent(LOG_STREAM, plan.intent)], meta)
        outcome, report = await self.archive(plan)
        await self._log.append([NewEvent(LOG_STREAM, outcome)], meta)
        return report

    async def plan(self, wanted: Wanted) -> Plan | None:
        """Choose as much as one intent may name; None if that is too little."""
        state, log = self._state, self._log
        before_us = wanted.before_us
        interrupted = list(state.log.leaving)
        sandboxes = list(islice(_ended_sandboxes(state, before_us), ROUND_NAMES - len(interrupted)))
        images = list(islice(_ended_images(state, before_us), ROUND_NAMES))
        snapshots = list(islice(_ended_snapshots(state, before_us), ROUND_NAMES))
        artifacts = list(islice(_ended_artifacts(state, before_us), ROUND_NAMES))
        sessions = list(islice(_ended_sessions(state, before_us), ROUND_NAMES))
        kept = LiveObjects(
            frozenset((*state.sandboxes, *state.sessions)).difference(sandboxes, sessions),
            frozenset(state.processes),
            frozenset((*state.images, *state.artifacts, *state.volumes)).difference(
                images, artifacts, (name for name, of in state.volumes.items() if of.ended_before(before_us))
            ),
            frozenset((*state.snapshots, *state.checkpoints, *state.forks, *state.merges, *state.commits)).difference(
                snapshots
            ),
            frozenset(lock.lock_id for lock in state.locks.values() if not can_be_archived(state, lock, before_us)),
            frozenset(sandbox.position for sandbox in state.sandboxes.values()),
        )
        positions = await in_thread(log.reader.removable, kept, before_us, ROUND_EVENTS)
        if len(positions) < wanted.least and not state.log.compacting:
            return None
        await in_thread(segments.tidy, log.directory)
        intent = LogCompactRequested(
            before_us=before_us, sandboxes=[*interrupted, *sandboxes], images=images, snapshots=snapshots,
            sessions=sessions, artifacts=artifacts,
        )  # fmt: skip
        return Plan(intent, kept, positions)

    async def archive(self, plan: Plan) -> tuple[LogCompacted, CompactReport]:
        """Carry out a plan whose intent is on record; return the outcome to record, and the report."""
        log, (intent, kept, positions) = self._log, plan
        await self._forget(intent.sandboxes)
        failpoints.reach("compact.forgotten")
        names, size = [], 0
        for start in range(0, len(positions), SEGMENT_EVENTS):
            name = await self._archive(positions[start : start + SEGMENT_EVENTS], kept)
            names.append(name)
            size += os.stat(f"{log.directory}/{segments.FOLDER}/{name}").st_size
        outcome = LogCompacted(events=len(positions), segments=names, first_position=log.first_position)
        return outcome, CompactReport(
            events=len(positions),
            sandboxes=len(intent.sandboxes),
            images=len(intent.images),
            segments=names,
            size_bytes=size,
            first_position=log.first_position,
        )

    async def _archive(self, positions: Sequence[int], kept: LiveObjects) -> str:
        """Move events into a segment; answer its name."""
        log = self._log
        name, leaving, processes = await in_thread(partial(write_segment, log, positions, kept))
        for sandbox_id, process_ids in processes.items():
            await self._forget_processes(sandbox_id, process_ids)
        failpoints.reach("compact.output_dropped")
        await log.raise_first(positions[-1] + 1)
        failpoints.reach("compact.first_raised")
        for start in range(0, len(leaving), BATCH_EVENTS):
            batch = leaving[start : start + BATCH_EVENTS]
            execs: dict[int, int] = {}
            for event in batch:
                if event.counted is not None:
                    execs[event.counted] = execs.get(event.counted, 0) + 1
            streams = {key: stream for event in batch for key, stream in event.streams}
            await log.remove([event.position for event in batch], streams, execs)
            failpoints.reach("compact.removed")
        return name


_BEGINNINGS: Final = (ProcessLaunchRequested.type, ProcessRestored.type)


def write_segment(
    log: EventLog, positions: Sequence[int], kept: LiveObjects
) -> tuple[str, list[Removal], dict[str, list[str]]]:
    """Write the events at these positions into a segment; return its name, the data needed to delete them, and the
    processes that they launched in live sandboxes. Blocks.
    """
    events, leaving = log.reader.removals(positions, kept)
    processes: dict[str, list[str]] = {}
    for event in events:
        box = event.sandbox_id
        if box is not None and box in kept.sandboxes and event.type in _BEGINNINGS:
            processes.setdefault(box, []).append(event.stream)
    return segments.write(log.directory, log.log_id, events), leaving, processes


def _ended_sandboxes(state: State, before_us: int) -> Iterator[str]:
    kept = {snapshot.sandbox_id for snapshot in state.snapshots.values() if snapshot.alive}
    kept |= {checkpoint.sandbox_id for checkpoint in state.checkpoints.values() if checkpoint.alive}
    return (s.sandbox_id for s in state.sandboxes.values() if _has_ended(s, before_us) and s.sandbox_id not in kept)


def _has_ended(sandbox: SandboxState, before_us: int) -> bool:
    return sandbox.hidden and sandbox.ended_before(before_us)


def _ended_artifacts(state: State, before_us: int) -> Iterator[str]:
    return (name for name, of in state.artifacts.items() if not of.alive and of.ended_before(before_us))


def _ended_sessions(state: State, before_us: int) -> Iterator[str]:
    """Yield those that ended, whose sandboxes and snapshots have gone: of any other something could be brought back."""
    for session in state.sessions.values():
        sandbox = state.sandboxes.get(session.sandbox_id or "")
        ended = sandbox.ended_us if sandbox is not None and session.status == "ready" else session.ended_us
        over = session.status_with(sandbox) in ("failed", "expired", "terminated")
        gone = sandbox is None or sandbox.hidden
        if over and gone and not session.snapshot_ids and ended is not None and ended < before_us:
            yield session.key


def _ended_images(state: State, before_us: int) -> Iterator[str]:
    """Yield the removed images that no sandbox or snapshot names: these need the record of how to run the image."""
    named = {snapshot.requested.image_id for snapshot in state.snapshots.values() if snapshot.alive}
    named |= {checkpoint.requested.image_id for checkpoint in state.checkpoints.values() if checkpoint.alive}
    named |= {sandbox.requested.image_id for sandbox in state.sandboxes.values() if not _has_ended(sandbox, before_us)}
    gone = (image.image_id for image in state.images.values() if _is_gone(state, image, before_us))
    return (image_id for image_id in gone if image_id not in named)


def _ended_snapshots(state: State, before_us: int) -> Iterator[str]:
    """Those that are no more, forks that were made or not, and merges and commits whose sandbox is no more."""
    for held in (state.snapshots, state.checkpoints):
        yield from (name for name, of in held.items() if not of.alive and of.ended_before(before_us))
    yield from (name for name, fork in state.forks.items() if fork.ended_before(before_us))
    for of_branches in (state.merges, state.commits):
        for name, found in of_branches.items():
            sandbox = state.sandboxes.get(found.sandbox_id)
            if found.ended_before(before_us) and (sandbox is None or _has_ended(sandbox, before_us)):
                yield name


def _is_gone(state: State, image: ImageState, before_us: int) -> bool:
    """Return True if an image was removed before the moment and is no alias of a present image."""
    alias = image.reused is not None and image.reused in state.images
    return image.ended and not alias and image.ended_before(before_us)


def _sum(one: CompactReport, other: CompactReport) -> CompactReport:
    return CompactReport(
        events=one.events + other.events,
        sandboxes=one.sandboxes + other.sandboxes,
        images=one.images + other.images,
        segments=[*one.segments, *other.segments],
        size_bytes=one.size_bytes + other.size_bytes,
        first_position=other.first_position,
    )
