"""Lifecycles: the states of each kind of object and the events between them, as tables.

Rules read from which states an event may follow, views to which state it leads, and `docs/reference/lifecycles.md` is
generated from both. Pure.
"""

from enum import Enum
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from sandkeep.events import Event
from sandkeep.model import (
    ArtifactStatus,
    CheckpointStatus,
    CommitStatus,
    ImageStatus,
    LockStatus,
    MergeStatus,
    ProcessStatus,
    SandboxStatus,
    SessionStatus,
    SnapshotStatus,
    VolumeStatus,
)

S = TypeVar("S", bound=str)

ForkStatus: TypeAlias = Literal["creating", "ready", "failed"]


class Keep(Enum):
    """The target of an event that leaves the state as it is."""

    SAME = "the same"


class Before(NamedTuple):
    """The target of an event that undoes an intent: the state in which that found the object."""

    intent: str


class Row(NamedTuple, Generic[S]):
    """An event, the states that it may follow (None: there is no such object yet), and the state that it leads to.

    An event whose boolean `field` makes a difference has a row for each value, the one with the field set first.
    """

    event: str
    sources: tuple[S | None, ...]
    target: S | Keep | Before
    field: str | None = None


class Lifecycle(Generic[S]):
    """The states of one kind of object, called `noun`, and its table. The first row is how most of them begin."""

    def __init__(self, noun: str, states: tuple[S, ...], *rows: Row[S]) -> None:
        self.noun = noun
        self.states = states
        self.rows = rows
        self.sources: Final = {row.event: row.sources for row in rows}
        """The states that each event may follow."""
        by_field = {row.event for row in rows if row.field is not None}
        self.targets: Final[dict[str, S]] = {
            row.event: row.target
            for row in rows
            if not isinstance(row.target, Keep | Before) and row.event not in by_field
        }
        """The state that an event leads to, of those that lead to one and the same always."""
        self.first: Final = self.targets[rows[0].event]
        self.pending: Final = tuple(self.targets[event] for event in self.targets if event.endswith("_requested"))
        """The states in which an intent waits for its outcome."""
        left = {source for row in rows for source in row.sources if row.target not in (source, Keep.SAME)}
        self.final: Final = tuple(state for state in states if state not in left)
        """The states that no event leads out of."""

    def after(self, event: Event, now: S, before: S | None = None) -> S:
        """Return the state that an event leads to. `before` is the one in which the last intent found the object.

        Events in a log may follow the rules of another version: `sources` are not checked.
        """
        return self.targets.get(event.type) or self._after(event, now, before)

    def _after(self, event: Event, now: S, before: S | None) -> S:
        for row in self.rows:
            if row.event == event.type and (row.field is None or getattr(event, row.field)):
                if isinstance(row.target, Before):
                    return before or now
                return now if isinstance(row.target, Keep) else row.target
        raise KeyError(event.type)


_STANDING: Final = ("running", "suspending", "suspended", "resuming")
_WITH_FILES: Final = ("running", "suspended", "failed", "lost")

SANDBOX: Final = Lifecycle[SandboxStatus](
    "sandbox",
    get_args(SandboxStatus),
    Row("sandbox.create_requested", (None,), "creating"),
    Row("sandbox.created", ("creating",), "running"),
    Row("sandbox.create_failed", ("creating",), "failed"),
    Row("sandbox.adopted", ("running", "suspended"), Keep.SAME),
    Row("sandbox.suspend_requested", ("running",), "suspending"),
    Row("sandbox.suspended", ("running", "suspending"), "suspended"),
    Row("sandbox.suspend_failed", ("suspending",), Before("sandbox.suspend_requested")),
    Row("sandbox.resume_requested", ("suspended", "failed", "lost"), "resuming"),
    Row("sandbox.resumed", ("suspended", "resuming"), "running"),
    Row("sandbox.resume_failed", ("resuming",), Before("sandbox.resume_requested")),
    Row("sandbox.restore_requested", _WITH_FILES, "restoring"),
    Row("sandbox.restored", ("restoring",), "running"),
    Row("sandbox.restore_failed", ("restoring",), "failed", "ended"),
    Row("sandbox.restore_failed", ("restoring",), Before("sandbox.restore_requested")),
    Row("sandbox.updated", _WITH_FILES, Keep.SAME),
    Row("sandbox.failed", _STANDING, "failed"),
    Row("sandbox.lost", (*_STANDING, "stopping"), "lost"),
    Row("sandbox.terminate_requested", ("creating", *_STANDING, "restoring", "failed", "lost"), "stopping"),
    Row("sandbox.terminated", ("stopping",), "stopped"),
    # In streams of their own.
    Row("process.launch_requested", ("running",), Keep.SAME),
    Row("checkpoint.create_requested", ("running", "suspended"), Keep.SAME),
    Row("snapshot.create_requested", _WITH_FILES, Keep.SAME),
    Row("sandbox.fork_requested", _WITH_FILES, Keep.SAME),
    # On record when another daemon has told where it is.
    Row("sandbox.moved", tuple(s for s in get_args(SandboxStatus) if s != "creating"), Keep.SAME),
    # On record after the file was written, by when the sandbox may have ended.
    Row("sandbox.file_written", tuple(s for s in get_args(SandboxStatus) if s != "creating"), Keep.SAME),
)

PROCESS: Final = Lifecycle[ProcessStatus](
    "process",
    get_args(ProcessStatus),
    Row("process.launch_requested", (None,), "starting"),
    Row("process.started", ("starting",), "running"),
    Row("process.launch_failed", ("starting",), "failed"),
    Row("process.signalled", ("running", "exited", "lost"), Keep.SAME),  # it may end while that goes to the disk
    Row("process.timed_out", ("running",), Keep.SAME),
    Row("process.exited", ("running",), "exited"),
    Row("process.lost", ("starting", "running"), "lost"),
    Row("process.restored", (None, *get_args(ProcessStatus)), "running"),  # in any later state
)

SESSION: Final = Lifecycle[SessionStatus](
    "session",
    get_args(SessionStatus),
    Row("session.start_requested", (None, "ready", "failed", "expired", "terminated"), "starting"),
    Row("session.started", ("starting",), "ready"),
    Row("session.start_failed", ("starting",), "failed"),
    Row("session.stop_requested", ("ready", "failed"), "stopping"),
    Row("session.stopped", ("stopping",), "expired", "expired"),
    Row("session.stopped", ("stopping",), "terminated"),
    Row("session.stop_failed", ("stopping",), Before("session.stop_requested")),
)

ARTIFACT: Final = Lifecycle[ArtifactStatus](
    "artifact",
    get_args(ArtifactStatus),
    Row("artifact.export_requested", (None,), "creating"),
    Row("artifact.exported", ("creating",), "ready"),
    Row("artifact.export_failed", ("creating",), "failed"),
    Row("artifact.remove_requested", ("ready",), "deleting"),
    Row("artifact.removed", ("deleting",), "deleted"),
)

VOLUME: Final = Lifecycle[VolumeStatus](
    "volume",
    get_args(VolumeStatus),
    Row("volume.create_requested", (None,), "creating"),
    Row("volume.created", ("creating",), "created"),
    Row("volume.create_failed", ("creating",), "failed"),
    Row("volume.remove_requested", (None,), "removing"),
    Row("volume.removed", ("removing",), "removed"),
    Row("volume.remove_failed", ("removing",), "failed"),
)
"""Of one order, a creation or a removal: see `VolumeCreateRequested`."""

SNAPSHOT: Final = Lifecycle[SnapshotStatus](
    "snapshot",
    get_args(SnapshotStatus),
    Row("snapshot.create_requested", (None,), "creating"),
    Row("snapshot.stored", ("creating",), "ready"),
    Row("snapshot.failed", ("creating",), "failed"),
    Row("snapshot.sent", ("ready", "deleting", "deleted"), Keep.SAME),  # other snapshots may build on one deleted
    Row("snapshot.delete_requested", ("ready",), "deleting"),
    Row("snapshot.deleted", ("deleting", "deleted"), "deleted"),
)

CHECKPOINT: Final = Lifecycle[CheckpointStatus](
    "checkpoint",
    get_args(CheckpointStatus),
    Row("checkpoint.create_requested", (None,), "creating"),
    Row("checkpoint.stored", ("creating",), "ready"),
    Row("checkpoint.failed", ("creating",), "failed"),
    Row("checkpoint.delete_requested", ("ready",), "deleting"),
    Row("checkpoint.deleted", ("deleting",), "deleted"),
)

FORK: Final = Lifecycle[ForkStatus](
    "fork",
    get_args(ForkStatus),
    Row("sandbox.fork_requested", (None,), "creating"),
    Row("sandbox.forked", ("creating",), "ready"),
    Row("sandbox.fork_failed", ("creating",), "failed"),
    Row("checkpoint.restore_requested", (None,), "creating"),
    Row("checkpoint.restored", ("creating",), "ready"),
    Row("checkpoint.restore_failed", ("creating",), "failed"),
    Row("branch.create_requested", (None,), "creating"),
    Row("branch.created", ("creating",), "ready"),
    Row("branch.create_failed", ("creating",), "failed"),
)

MERGE: Final = Lifecycle[MergeStatus](
    "merge",
    get_args(MergeStatus),
    Row("branch.merge_requested", (None,), "creating"),
    Row("branch.merged", ("creating", "resolving"), "ready"),
    Row("branch.conflicted", ("creating",), "conflicted"),
    Row("branch.merge_failed", ("creating",), "failed"),
    Row("branch.resolve_requested", ("conflicted",), "resolving"),
    Row("branch.resolved", ("resolving",), "conflicted"),
    Row("branch.resolve_failed", ("resolving",), "conflicted"),
    Row("branch.abandon_requested", ("conflicted",), "removing"),
    Row("branch.abandoned", ("removing",), "removed"),
)

COMMIT: Final = Lifecycle[CommitStatus](
    "commit",
    get_args(CommitStatus),
    Row("branch.commit_requested", (None,), "creating"),
    Row("branch.committed", ("creating",), "ready"),
    Row("branch.commit_failed", ("creating",), "failed"),
)

IMAGE: Final = Lifecycle[ImageStatus](
    "image",
    get_args(ImageStatus),
    Row("image.create_requested", (None,), "creating"),
    Row("image.created", ("creating",), "ready"),
    Row("image.reused", ("creating",), "removed"),
    Row("image.create_failed", ("creating",), "failed"),
    Row("image.remove_requested", ("ready",), "removing"),
    Row("image.removed", ("removing",), "removed"),
    Row("image.tagged", ("ready",), Keep.SAME),
    Row("image.untagged", ("ready",), Keep.SAME),
    Row("image.published", ("ready",), Keep.SAME),
    Row("image.unpublished", ("ready",), Keep.SAME),
)

LOCK: Final = Lifecycle[LockStatus](
    "lock",
    get_args(LockStatus),
    Row("lock.acquire_requested", (None,), "acquiring"),
    Row("lock.acquired", ("acquiring",), "held"),
    Row("lock.contended", ("acquiring",), "contended"),
    Row("lock.acquire_failed", ("acquiring",), "failed"),
    Row("lock.handover_requested", ("held",), "handing_over"),
    Row("lock.handover_failed", ("handing_over",), "held"),
    Row("lock.release_requested", ("held", "handing_over"), "releasing"),
    Row("lock.released", ("releasing",), "released"),
    Row("lock.expired", ("held", "handing_over", "releasing"), "expired"),
    Row("lock.lost", ("held", "handing_over", "releasing"), "lost"),
    Row("lock.steal_requested", (None,), "stealing"),
    Row("lock.stolen", ("stealing",), "stolen"),
    Row("lock.steal_failed", ("stealing",), "failed"),
)

LIFECYCLES: Final[tuple[Lifecycle[Any], ...]] = (
    SANDBOX, PROCESS, SESSION, ARTIFACT, VOLUME, SNAPSHOT, CHECKPOINT, FORK, MERGE, COMMIT, IMAGE, LOCK
)  # fmt: skip
