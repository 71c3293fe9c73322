"""Every event, one frozen Struct each, named by what happened.

An event is a fact: it is in the log because it was committed there, and it is never changed. Its name on the wire and
in the log is a string of our own (`type`), never a Python path; `version` is the version of its shape. Fields are only
added, each with a default; a breaking change is a new version plus a pure dict-to-dict upcast in the store's codec.
Golden files hold one example of every shape ever written.

An event whose name ends in ``_requested`` is an intent: it is durable before anything happens, and one of its
`outcomes` follows, after a crash from the reconciliation at start. Secrets are never in an event, only their names.

Each event belongs to one stream, which is named by the id of the entity it tells about; `Daemon...` events are in the
stream ``daemon``, `Log...` events in the stream ``/log``, which no id can be.
"""

from typing import Any, ClassVar, Final, Literal

from msgspec import Struct, field

from sandkeep.model import (
    ArchiveFormat,
    CheckpointFile,
    ImageKind,
    Isolation,
    LimitField,
    LimitName,
    MergePolicy,
    Place,
    SandboxSpec,
    SavedSandbox,
    SessionSpec,
    SharedImage,
    SkippedFile,
    SnapshotKind,
)

MAX_EVENT_BYTES: Final = 64 * 1024
DAEMON_STREAM: Final = "daemon"
LOG_STREAM: Final = "/log"
OLD_LOG_STREAM: Final = "log"
"""The stream on which older daemons recorded the log's own events; as callers chose ids then, it may be a sandbox's,
too.
"""

OWN_STREAMS: Final = (DAEMON_STREAM, LOG_STREAM, OLD_LOG_STREAM)
"""The streams of the daemon and the log, which do not end."""


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """The base of all events. `type` and `version` are set by each class."""

    type: ClassVar[str] = ""
    version: ClassVar[int] = 1
    outcomes: ClassVar[tuple[str, ...]] = ()


class Failure(Event, frozen=True, kw_only=True):
    """The base of the events of something that failed, with an error's `code` and `message`."""

    code: str
    message: str
    interrupted: bool = False


class Meta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cause of an event: the command's id, the owner, the peer's process id and client name, or an earlier event.

    `command` is the command's fingerprint: its method, and a digest of its parameters, of secrets only the names. The
    digest uses a key that no event holds, and is in the first of the events that were committed together. `caused_by`
    is an event's token, ``log_id:position``.
    """

    command_id: str | None = None
    command: str | None = None
    owner: str | None = None
    pid: int | None = None
    client: str | None = None
    caused_by: str | None = None


# -- the daemon itself ------------------------------------------------------------------------------------------------


class DaemonStarted(Event, frozen=True, kw_only=True):
    """A daemon took over the state directory."""

    type = "daemon.started"
    software: str
    pid: int
    uid: int
    boot_id: str


class DaemonStopped(Event, frozen=True, kw_only=True):
    """The daemon stopped cleanly; sandboxes and processes keep running."""

    type = "daemon.stopped"
    reason: str


class ProviderFellBack(Event, frozen=True, kw_only=True):
    """The daemon chose the provider `used`, as the one `asked` for does not work here and the caller left the choice
    open. It is in the daemon's own stream.
    """

    type = "provider.fell_back"
    asked: str
    used: str
    why: str


# -- the log itself ---------------------------------------------------------------------------------------------------


class LogCompactRequested(Event, frozen=True, kw_only=True):
    """Events of objects that ended before a moment (microseconds since 1970) are about to go into the archive. From
    here on no view holds these sandboxes and images.
    """

    type = "log.compact_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("log.compacted",)
    before_us: int
    sandboxes: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)


class LogCompacted(Event, frozen=True, kw_only=True):
    """Events were moved into these segments of the archive; the log has no gaps from `first_position` on."""

    type = "log.compacted"
    events: int
    segments: list[str]
    first_position: int


class LogRedactRequested(Event, frozen=True, kw_only=True):
    """A caller's data in the event at `position` is about to be removed from the log and the archive."""

    type = "log.redact_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("log.redacted",)
    position: int


class LogRedacted(Event, frozen=True, kw_only=True):
    """A caller's data in the event at `position` is removed everywhere. That event is of type `what` in the stream
    `of`, and was recorded at `time_us`; all three are empty if the event is gone.
    """

    type = "log.redacted"
    position: int
    of: str = ""
    what: str = ""
    time_us: int = 0


class LogEventLost(Event, frozen=True, kw_only=True):
    """Here was an event that a damaged disk lost. A repair of the log put this in its place."""

    type = "log.event_lost"


# -- images -----------------------------------------------------------------------------------------------------------


class ImageCreateRequested(Event, frozen=True, kw_only=True):
    """An image is about to be made from `source`: the absolute path of a directory, which is copied, put onto the image
    `base`, or built by its `dockerfile`; the reference of a container image; or the id of a snapshot. Of a directory
    that is copied the names of `ignore` are left out, at any depth, and what `patterns` match, and, with
    `ignore_files`, those of the files of patterns in it. It is to be called `name`.
    """

    type = "image.create_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("image.created", "image.reused", "image.create_failed")
    owner: str
    provider: str
    kind: ImageKind
    source: str
    labels: dict[str, str] = field(default_factory=dict)
    clean: bool = False
    base: str | None = None
    dockerfile: str | None = None
    ignore: list[str] = field(default_factory=list)
    name: str | None = None
    patterns: list[str] = field(default_factory=list)
    ignore_files: bool = True


class ImageCreated(Event, frozen=True, kw_only=True):
    """The image is complete. `digest` is that of its content; `skipped` the first of the files that were left out.
    `details` are its provider's data, from which it makes sandboxes.
    """

    type = "image.created"
    digest: str
    size_bytes: int
    file_count: int
    skipped_count: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


class ImageReused(Event, frozen=True, kw_only=True):
    """The owner had an image of the same content already; nothing was kept of the new one."""

    type = "image.reused"
    image_id: str


class ImageCreateFailed(Failure, frozen=True, kw_only=True):
    """The image was not made and nothing is left of it. `interrupted` says that only the daemon's own end was the
    reason: the same command, given again, begins anew.
    """

    type = "image.create_failed"


class ImageTagged(Event, frozen=True, kw_only=True):
    """The image's owner means it by `name` from now on, and no other image."""

    type = "image.tagged"
    name: str


class ImageUntagged(Event, frozen=True, kw_only=True):
    """The image is not called `name` any more: its owner took the name, or another one got it in the same commit."""

    type = "image.untagged"
    name: str


class ImagePublished(Event, frozen=True, kw_only=True):
    """An administrator lets these owners use the image by its `reference`; everybody, if there are none. The same
    reference of another image was withdrawn in the same commit.
    """

    type = "image.published"
    reference: str
    owners: list[str] = field(default_factory=list)


class ImageUnpublished(Event, frozen=True, kw_only=True):
    """The reference is published no more: an administrator withdrew it, or another image got it in the same commit."""

    type = "image.unpublished"
    reference: str


class ImageRemoveRequested(Event, frozen=True, kw_only=True):
    """The image is about to be removed; no sandbox may start from it any more."""

    type = "image.remove_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("image.removed",)


class ImageRemoved(Event, frozen=True, kw_only=True):
    """The image's files are gone."""

    type = "image.removed"


# -- sandboxes --------------------------------------------------------------------------------------------------------


class SandboxCreateRequested(Event, frozen=True, kw_only=True):
    """A sandbox is about to be made. `plan` is its provider's plan, such as the uid it will run as.

    It gets the files of the sandbox `forked_from` or of the snapshot `restored_from`; without either the image's.
    `needs_image` is true if any of them are the image's. The files that a fork shares are called `fork_id`. `name` is
    given by its owner; older daemons had the caller choose the id itself, which stands for the name then.

    A shared sandbox that came from another daemon was `saved` there so. `first_image` is the one that it was made of.
    """

    type = "sandbox.create_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("sandbox.created", "sandbox.create_failed")
    owner: str
    image_id: str
    provider: str
    spec: SandboxSpec
    secrets: list[str] = field(default_factory=list)
    plan: dict[str, Any] = field(default_factory=dict)
    forked_from: str | None = None
    fork_id: str | None = None
    restored_from: str | None = None
    needs_image: bool = True
    name: str | None = None
    saved: SavedSandbox | None = None
    first_image: SharedImage | None = None


class SandboxCreated(Event, frozen=True, kw_only=True):
    """The sandbox runs. `handle` identifies it to its provider, also after a restart."""

    type = "sandbox.created"
    isolation: Isolation
    handle: dict[str, Any] = field(default_factory=dict)


class SandboxCreateFailed(Failure, frozen=True, kw_only=True):
    """The sandbox was not made and nothing is left of it, so that its name is free. `interrupted`: as in
    `image.create_failed`; a new `sandbox.create_requested` may follow then.
    """

    type = "sandbox.create_failed"


class SandboxAdopted(Event, frozen=True, kw_only=True):
    """A daemon that started found the sandbox running, and manages it again."""

    type = "sandbox.adopted"


class SandboxFailed(Event, frozen=True, kw_only=True):
    """The sandbox ended by itself while the daemon watched."""

    type = "sandbox.failed"
    message: str


class SandboxLost(Event, frozen=True, kw_only=True):
    """The sandbox runs according to the log, but its provider does not have it."""

    type = "sandbox.lost"
    last_status: str
    message: str


class SandboxSuspendRequested(Event, frozen=True, kw_only=True):
    """The sandbox is about to be suspended."""

    type = "sandbox.suspend_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("sandbox.suspended", "sandbox.suspend_failed")


class SandboxSuspended(Event, frozen=True, kw_only=True):
    """All processes in the sandbox are frozen. `outside`: not by Sandkeep, but by another program. `reason`: why
    Sandkeep did it without an order, as when the sandbox exceeds its disk limit.
    """

    type = "sandbox.suspended"
    outside: bool = False
    reason: str | None = None


class SandboxSuspendFailed(Failure, frozen=True, kw_only=True):
    """The sandbox was not suspended, and runs. `interrupted`: as in `image.create_failed`."""

    type = "sandbox.suspend_failed"


class SandboxResumeRequested(Event, frozen=True, kw_only=True):
    """The sandbox is about to be resumed; or, `anew`, a lost or failed one is about to be restarted from its files."""

    type = "sandbox.resume_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("sandbox.resumed", "sandbox.resume_failed")
    anew: bool = False


class SandboxResumed(Event, frozen=True, kw_only=True):
    """The sandbox runs; a restarted one with a new `handle` and `isolation`. `outside`: as in `sandbox.suspended`."""

    type = "sandbox.resumed"
    isolation: Isolation | None = None
    handle: dict[str, Any] | None = None
    outside: bool = False


class SandboxResumeFailed(Failure, frozen=True, kw_only=True):
    """The sandbox was not resumed, and its status is as before. `interrupted`: as in `image.create_failed`."""

    type = "sandbox.resume_failed"


class SandboxRestoreRequested(Event, frozen=True, kw_only=True):
    """The sandbox's own files are about to be replaced by those of a snapshot, and its processes ended; or all of it by
    its state at the checkpoint `checkpoint_id`. `plan` is its provider's plan after that.
    """

    type = "sandbox.restore_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("sandbox.restored", "sandbox.restore_failed")
    snapshot_id: str = ""
    plan: dict[str, Any]
    needs_image: bool = True
    checkpoint_id: str | None = None


class SandboxRestored(Event, frozen=True, kw_only=True):
    """The sandbox runs with the files of the snapshot, and without processes; or in its state at the checkpoint."""

    type = "sandbox.restored"
    snapshot_id: str = ""
    isolation: Isolation
    handle: dict[str, Any] = field(default_factory=dict)
    checkpoint_id: str | None = None


class SandboxRestoreFailed(Event, frozen=True, kw_only=True):
    """The sandbox has its old files. With `ended` its processes were ended, and it has failed; else its status is as
    before. `interrupted`: as in `image.create_failed`.
    """

    type = "sandbox.restore_failed"
    code: str
    message: str
    ended: bool = False
    interrupted: bool = False


class SandboxForkRequested(Event, frozen=True, kw_only=True):
    """Sandboxes of these ids, and `names` if they have any, are about to be made with the files that this one has at a
    moment to come.

    Its stream is called by an id of its own, as are the files that the forks will share.
    """

    type = "sandbox.fork_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("sandbox.forked", "sandbox.fork_failed")
    sandbox_ids: list[str]
    names: list[str] = field(default_factory=list)


class SandboxForked(Event, frozen=True, kw_only=True):
    """The forks' files are stored; the forks are independent now. The sandbox was frozen for `pause_ms`."""

    type = "sandbox.forked"
    pause_ms: float
    size_bytes: int = 0


class SandboxForkFailed(Failure, frozen=True, kw_only=True):
    """No fork was made. `interrupted`: as in `image.create_failed`."""

    type = "sandbox.fork_failed"


class SandboxTerminateRequested(Event, frozen=True, kw_only=True):
    """The sandbox will end, for `reason`: ``requested``, ``idle_timeout``, ``max_lifetime``, ``disk_limit``."""

    type = "sandbox.terminate_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("sandbox.terminated",)
    reason: str


class SandboxTerminated(Event, frozen=True, kw_only=True):
    """Nothing of the sandbox runs any more and its files are gone; its journals stay."""

    type = "sandbox.terminated"
    reason: str


class SandboxMoved(Event, frozen=True, kw_only=True):
    """The shared sandbox goes on at another daemon, whose addresses are `to`, if it has told them."""

    type = "sandbox.moved"
    to: list[str] = field(default_factory=list)


class SandboxUpdated(Event, frozen=True, kw_only=True):
    """The sandbox has these limits from now on; one that is None stays as it is, and those of `unset` are none. The
    bytes of a disk of its own are reserved, and `plan` is the provider's with these limits.
    """

    type = "sandbox.updated"
    disk_bytes: int | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    cpus: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    unset: list[LimitField] = field(default_factory=list)


class SandboxFileWritten(Event, frozen=True, kw_only=True):
    """A caller put a file or a tree into the sandbox; it was complete when this was recorded. `sha256` was recorded by
    older daemons; short contents can be guessed from a digest, so it is None now.

    Its stream is ``SANDBOX/files``: files come while the sandbox's own stream waits for its end.
    """

    type = "sandbox.file_written"
    path: str
    kind: Literal["file", "tree"]
    size_bytes: int
    files: int = 1
    sha256: str | None = None


# -- sessions ---------------------------------------------------------------------------------------------------------


class SessionStartRequested(Event, frozen=True, kw_only=True):
    """A session is about to be made ready by a new sandbox, for the first time or again. It gets the files of the
    snapshot `restored_from`, without one the image's. `reason` is the method that asked for it.

    Its stream is called by the session's key. `session_id` is unique among the owner's sessions.
    """

    type = "session.start_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("session.started", "session.start_failed")
    owner: str
    session_id: str
    spec: SessionSpec
    restored_from: str | None = None
    reason: str = ""


class SessionStarted(Event, frozen=True, kw_only=True):
    """The session is ready: the sandbox runs. `ref` is how its provider knows that. The files of the session's last
    sandbox that were in no snapshot could not be saved, for the reason `lost`.
    """

    type = "session.started"
    sandbox_id: str
    ref: str
    restored_from: str | None = None
    lost: str | None = None


class SessionStartFailed(Failure, frozen=True, kw_only=True):
    """The session has no sandbox. `interrupted`: as in `image.create_failed`."""

    type = "session.start_failed"


class SessionStopRequested(Event, frozen=True, kw_only=True):
    """The session's sandbox will end, for `reason`: ``stop``, ``idle_timeout``, ``max_lifetime``; after a snapshot of
    its files, unless `snapshot` is false.
    """

    type = "session.stop_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("session.stopped", "session.stop_failed")
    reason: str
    snapshot: bool = True


class SessionStopped(Event, frozen=True, kw_only=True):
    """The session's sandbox has ended; a use of the session makes another. `expired`: for a limit of time. Its files
    are in the snapshot `snapshot_id`; `unsaved` says why they are in none although they were to be.
    """

    type = "session.stopped"
    reason: str
    expired: bool = False
    snapshot_id: str | None = None
    unsaved: str | None = None


class SessionStopFailed(Failure, frozen=True, kw_only=True):
    """The snapshot before the end of the sandbox failed, and the sandbox goes on."""

    type = "session.stop_failed"


# -- artifacts ---------------------------------------------------------------------------------------------------------


class ArtifactExportRequested(Event, frozen=True, kw_only=True):
    """A file or directory of a sandbox is about to be copied into the state directory. `session_id` is the key of the
    sandbox's session. `name` and `media_type` are those that the caller gave.

    Its stream is called by the artifact's id.
    """

    type = "artifact.export_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("artifact.exported", "artifact.export_failed")
    owner: str
    sandbox_id: str
    session_id: str | None = None
    path: str
    name: str | None = None
    media_type: str | None = None


class ArtifactExported(Event, frozen=True, kw_only=True):
    """The copy is whole and on the disk. Its digest is in no event, by which short contents could be guessed."""

    type = "artifact.exported"
    name: str
    media_type: str
    size_bytes: int


class ArtifactExportFailed(Failure, frozen=True, kw_only=True):
    """Nothing was exported. `interrupted`: as in `image.create_failed`."""

    type = "artifact.export_failed"


class ArtifactRemoveRequested(Event, frozen=True, kw_only=True):
    """The copy is about to be removed."""

    type = "artifact.remove_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("artifact.removed",)


class ArtifactRemoved(Event, frozen=True, kw_only=True):
    """The copy is gone."""

    type = "artifact.removed"


# -- volumes -----------------------------------------------------------------------------------------------------------


class VolumeCreateRequested(Event, frozen=True, kw_only=True):
    """A volume that `owner` calls `name` is about to be made. The stream has the id of this order, as a removal has
    one of its own: the volumes themselves are those that the provider has.
    """

    type = "volume.create_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("volume.created", "volume.create_failed")
    owner: str
    provider: str
    name: str


class VolumeCreated(Event, frozen=True, kw_only=True):
    """The provider has the volume."""

    type = "volume.created"


class VolumeCreateFailed(Failure, frozen=True, kw_only=True):
    """It failed. If the engine went down meanwhile, the volume may be there all the same. `interrupted`: as in
    `image.create_failed`.
    """

    type = "volume.create_failed"


class VolumeRemoveRequested(Event, frozen=True, kw_only=True):
    """A volume is about to be removed, with all that is in it. It may be one that a sandbox's first use made."""

    type = "volume.remove_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("volume.removed", "volume.remove_failed")
    owner: str
    provider: str
    name: str


class VolumeRemoved(Event, frozen=True, kw_only=True):
    """The volume is gone."""

    type = "volume.removed"


class VolumeRemoveFailed(Failure, frozen=True, kw_only=True):
    """It failed, as something has the volume mounted, say. `interrupted`: as in `image.create_failed`."""

    type = "volume.remove_failed"


# -- branches ----------------------------------------------------------------------------------------------------------


class BranchCreateRequested(Event, frozen=True, kw_only=True):
    """Sandboxes of these ids, and `names` if they have any, are about to be made as branches of one base: of the
    sandbox, snapshot or image `source_id`.

    Its stream is called by an id of its own, as are the files that branches of a sandbox will share.
    """

    type = "branch.create_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("branch.created", "branch.create_failed")
    owner: str
    source_id: str
    sandbox_ids: list[str]
    names: list[str] = field(default_factory=list)


class BranchCreated(Event, frozen=True, kw_only=True):
    """The files that the branches begin with are there; the branches are independent now. A sandbox that they are of
    was frozen for `pause_ms`.
    """

    type = "branch.created"
    pause_ms: float = 0.0
    size_bytes: int = 0


class BranchCreateFailed(Failure, frozen=True, kw_only=True):
    """No branch was made. `interrupted`: as in `image.create_failed`."""

    type = "branch.create_failed"


class Point(Struct, frozen=True, kw_only=True):
    """The files that a sandbox had at one moment: kept under the name `point_id`, and identified by `files` as those
    of a plan are.
    """

    sandbox_id: str
    point_id: str
    files: dict[str, Any]


class MergeRules(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rules for that in which branches differ: see ``branch.merge``. `takes` are paths, or what is below them,
    each with the branch whose version is taken there.
    """

    policy: MergePolicy = "fail"
    ours: str | None = None
    takes: dict[str, str] = field(default_factory=dict)


class BranchMergeRequested(Event, frozen=True, kw_only=True):
    """The `branches`, sandboxes by what they are called in the merge, are about to be merged over their base `base_id`:
    the files of the plan `base_plan` above the image `image_id`. `points` are the names under which the present files
    of each are kept for that. The sandbox that is made of the result gets the `name` and the `spec`.
    """

    type = "branch.merge_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("branch.merged", "branch.conflicted", "branch.merge_failed")
    owner: str
    name: str | None = None
    branches: dict[str, str]
    points: dict[str, str]
    base_id: str
    base_plan: dict[str, Any]
    image_id: str
    provider: str
    spec: SandboxSpec
    rules: MergeRules = MergeRules()


class BranchConflicted(Event, frozen=True, kw_only=True):
    """The branches differ in so many places, which wait for ``branch.resolve``. The `points` are kept until then, and
    as long as the sandbox that is made of them. `record` names what is kept of the merge, of `size_bytes` with them.
    So many changes of branches are `dropped` already, as rules gave their paths to others.
    """

    type = "branch.conflicted"
    conflicts: int
    changed: int
    points: list[Point]
    record: str
    size_bytes: int
    dropped: int = 0


class BranchMerged(Event, frozen=True, kw_only=True):
    """The merged files are kept, and the sandbox of them is about to be made. `provenance` is the digest of the record
    that tells for each of the `changed` paths where it came from. So many changes of branches are `dropped`, as whole
    versions of others, or nothing, were taken at their paths.
    """

    type = "branch.merged"
    sandbox_id: str
    changed: int
    provenance: str
    points: list[Point]
    dropped: int = 0


class BranchMergeFailed(Failure, frozen=True, kw_only=True):
    """Nothing was merged. `interrupted`: as in `image.create_failed`."""

    type = "branch.merge_failed"


class BranchResolveRequested(Event, frozen=True, kw_only=True):
    """So many decisions on conflicts are about to be applied: `choices` counts them by what is taken, a branch or
    ``base``, of a hunk, a path or the ``(whole)`` path, and ``delete``, ``data`` and ``all``. Their paths are in the
    record of the merge, their contents in no event.
    """

    type = "branch.resolve_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("branch.merged", "branch.resolved", "branch.resolve_failed")
    decisions: int
    choices: dict[str, int] = field(default_factory=dict)


class BranchResolved(Event, frozen=True, kw_only=True):
    """So many conflicts are left. `record` names what is kept of the merge. `dropped`: as in `branch.merged`."""

    type = "branch.resolved"
    conflicts: int
    changed: int
    record: str
    dropped: int = 0


class BranchResolveFailed(Failure, frozen=True, kw_only=True):
    """The conflicts are as before. `interrupted`: as in `image.create_failed`."""

    type = "branch.resolve_failed"


class BranchAbandonRequested(Event, frozen=True, kw_only=True):
    """The merge, which has conflicts, is about to be given up."""

    type = "branch.abandon_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("branch.abandoned",)


class BranchAbandoned(Event, frozen=True, kw_only=True):
    """All that was kept for the merge is gone."""

    type = "branch.abandoned"


class BranchCommitRequested(Event, frozen=True, kw_only=True):
    """What the sandbox changed since its base is about to be applied to the directory `target` of the host, with the
    rights of `uid`, `gid` and `groups`. `force`: also to what was changed there meanwhile.
    """

    type = "branch.commit_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("branch.committed", "branch.commit_failed")
    owner: str
    sandbox_id: str
    target: str
    uid: int
    gid: int
    groups: list[int] = field(default_factory=list)
    force: bool = False
    base_id: str


class BranchCommitted(Event, frozen=True, kw_only=True):
    """So many paths were added, changed and deleted. `provenance`: as in `branch.merged`."""

    type = "branch.committed"
    added: int
    changed: int
    deleted: int
    provenance: str


class BranchCommitFailed(Failure, frozen=True, kw_only=True):
    """The directory is as it was before. `interrupted`: as in `image.create_failed`."""

    type = "branch.commit_failed"


# -- processes --------------------------------------------------------------------------------------------------------


class ProcessLaunchRequested(Event, frozen=True, kw_only=True):
    """A process is about to be started.

    `name` is None for an unnamed ``exec``. `command` is cut to its first few kilobytes (`command_cut`); of the
    environment and the secrets only the names are kept.
    """

    type = "process.launch_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("process.started", "process.launch_failed", "process.lost")
    sandbox_id: str
    name: str | None
    command: list[str]
    command_cut: bool = False
    working_dir: str | None = None
    env: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    stdin: bool = False
    timeout_s: float | None = None
    durable: bool = False
    tty: bool = False


class ProcessStarted(Event, frozen=True, kw_only=True):
    """The process runs. `pid` is its number inside the sandbox, as the sandbox told it."""

    type = "process.started"
    pid: int


class ProcessLaunchFailed(Failure, frozen=True, kw_only=True):
    """The process was not started. `interrupted`: as in `image.create_failed`; its name is free then."""

    type = "process.launch_failed"


class ProcessSignalled(Event, frozen=True, kw_only=True):
    """A signal was ordered for the process's group; recorded before it is sent."""

    type = "process.signalled"
    signal: str


class ProcessTimedOut(Event, frozen=True, kw_only=True):
    """The process's own time limit passed, and its group is being killed; its output is kept."""

    type = "process.timed_out"
    timeout_s: float


class ProcessExited(Event, frozen=True, kw_only=True):
    """The process ended. `exit_code` is the shell's: 128+n for signal n; but 124 if its time limit ended it. The sizes
    are those of its journal at that moment. `oom_killed`: the kernel's OOM killer killed it, or a process it waited
    for. `limits_met` are the limits at which it ended.
    """

    type = "process.exited"
    exit_code: int
    stdout_bytes: int
    stderr_bytes: int
    oom_killed: bool = False
    limits_met: list[LimitName] = field(default_factory=list)


class ProcessRestored(Event, frozen=True, kw_only=True):
    """The process was restored from the checkpoint `checkpoint_id`, where it is the process `restored_from`, of this
    sandbox or of the checkpoint's. `requested` is the launch of that process.
    """

    type = "process.restored"
    checkpoint_id: str
    restored_from: str
    requested: ProcessLaunchRequested
    pid: int


class ProcessLost(Event, frozen=True, kw_only=True):
    """The process is gone, and its exit code is unknown."""

    type = "process.lost"
    message: str


# -- snapshots --------------------------------------------------------------------------------------------------------


class SnapshotCreateRequested(Event, frozen=True, kw_only=True):
    """The files of a sandbox are about to be stored as an archive at each of `places`; or, without a sandbox, an
    archive is about to be imported. See `model.Snapshot` for the rest.
    """

    type = "snapshot.create_requested"
    version = 2
    outcomes: ClassVar[tuple[str, ...]] = ("snapshot.stored", "snapshot.failed")
    owner: str
    kind: SnapshotKind
    format: ArchiveFormat
    places: list[Place]
    sandbox_id: str | None = None
    image_id: str | None = None
    provider: str | None = None
    parent_id: str | None = None
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    root: str = "/workspace"
    include: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)


class SnapshotStored(Event, frozen=True, kw_only=True):
    """The archive is complete, verified and durable in its places; or, `unsent` with the reason, on this machine alone,
    `here`, until its store answers. `digest` is ``sha256:…`` of its bytes. `remarks` counts files that were omitted or
    changed, by reason. `places` was recorded by the oldest daemons, which had not recorded it before. `kind` is that of
    an imported archive if it is another than was requested: one of a workspace is a layer over an image that is a whole
    root file system. `modal_image_id` is an image of the sandbox at that moment, which Modal keeps besides.
    """

    type = "snapshot.stored"
    digest: str
    size_bytes: int
    member_count: int
    content_bytes: int
    format: ArchiveFormat
    pause_ms: float | None = None
    remarks: dict[str, int] = field(default_factory=dict)
    here: Place | None = None
    unsent: str | None = None
    places: list[Place] | None = None
    kind: SnapshotKind | None = None
    modal_image_id: str | None = None


class SnapshotSent(Event, frozen=True, kw_only=True):
    """The archive, which was on this machine only, is in its places."""

    type = "snapshot.sent"


class SnapshotFailed(Failure, frozen=True, kw_only=True):
    """No snapshot was made, and nothing is left of it. `interrupted`: as in `image.create_failed`."""

    type = "snapshot.failed"


class SnapshotDeleteRequested(Event, frozen=True, kw_only=True):
    """The snapshot is about to be deleted, for `reason`: ``requested``, ``count`` or ``age``; no restore begins."""

    type = "snapshot.delete_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("snapshot.deleted",)
    reason: str = "requested"


class SnapshotDeleted(Event, frozen=True, kw_only=True):
    """The snapshot is no more. Its archive is gone, unless it is `kept` for the incremental snapshots that build on it;
    when the last of those is deleted another event of this kind says that it has gone too.
    """

    type = "snapshot.deleted"
    kept: bool = False


class ArchiveRemoveRequested(Event, frozen=True, kw_only=True):
    """Archives that no snapshot owns are about to be removed. It is in the daemon's own stream."""

    type = "archive.remove_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("archive.removed", "archive.remove_failed")
    places: list[Place]
    size_bytes: int


class ArchiveRemoved(Event, frozen=True, kw_only=True):
    """The archives that the event at `position` names are gone."""

    type = "archive.removed"
    position: int


class ArchiveRemoveFailed(Event, frozen=True, kw_only=True):
    """Of the archives that the event at `position` names some may be there still; the next ``snapshot.gc`` finds them.
    `interrupted`: only the daemon's own end was the reason.
    """

    type = "archive.remove_failed"
    position: int
    code: str
    message: str
    interrupted: bool = False


class OutputRemoveRequested(Event, frozen=True, kw_only=True):
    """The journals of these ended sandboxes are about to be removed. It is in the daemon's own stream."""

    type = "output.remove_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("output.removed",)
    sandboxes: list[str]
    size_bytes: int


class OutputRemoved(Event, frozen=True, kw_only=True):
    """The journals that the event at `position` names are gone."""

    type = "output.removed"
    position: int


# -- checkpoints ------------------------------------------------------------------------------------------------------


class CheckpointCreateRequested(Event, frozen=True, kw_only=True):
    """A sandbox is about to be checkpointed with all its processes, in files at `place`. It keeps running, or is
    suspended. `spec`, `secrets`, `plan` and `needs_image` are the sandbox's; `facts` are the properties of this machine
    that a restore depends on.
    """

    type = "checkpoint.create_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("checkpoint.stored", "checkpoint.failed")
    owner: str
    sandbox_id: str
    image_id: str
    provider: str
    spec: SandboxSpec
    place: Place
    leave_running: bool
    plan: dict[str, Any] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    needs_image: bool = True
    facts: dict[str, str] = field(default_factory=dict)
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict)


class CheckpointStored(Event, frozen=True, kw_only=True):
    """The checkpoint is complete, verified and durable in its place. It holds so many `processes`; a sandbox that
    keeps running was frozen for `pause_ms`.
    """

    type = "checkpoint.stored"
    files: list[CheckpointFile]
    processes: int
    pause_ms: float | None = None


class CheckpointFailed(Failure, frozen=True, kw_only=True):
    """No checkpoint was made, and nothing is left of it. `interrupted`: as in `image.create_failed`."""

    type = "checkpoint.failed"


class CheckpointDeleteRequested(Event, frozen=True, kw_only=True):
    """The checkpoint is about to be deleted. Nobody may restore it any more."""

    type = "checkpoint.delete_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("checkpoint.deleted",)


class CheckpointDeleted(Event, frozen=True, kw_only=True):
    """The checkpoint and its files are removed."""

    type = "checkpoint.deleted"


class CheckpointRestoreRequested(Event, frozen=True, kw_only=True):
    """Sandboxes of these ids, and `names` if they have any, are about to be created from a checkpoint. Its stream
    has an id of its own, as that of a fork has.
    """

    type = "checkpoint.restore_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("checkpoint.restored", "checkpoint.restore_failed")
    owner: str
    checkpoint_id: str
    sandbox_ids: list[str]
    names: list[str] = field(default_factory=list)


class CheckpointRestored(Event, frozen=True, kw_only=True):
    """The checkpoint is on this machine and verified; the sandboxes are created from it, independently from here on."""

    type = "checkpoint.restored"


class CheckpointRestoreFailed(Failure, frozen=True, kw_only=True):
    """No sandbox was made of the checkpoint. `interrupted`: as in `image.create_failed`."""

    type = "checkpoint.restore_failed"


# -- locks ------------------------------------------------------------------------------------------------------------


class LockAcquireRequested(Event, frozen=True, kw_only=True):
    """A lock is about to be taken, which may be waited for. It is kept at `where`: ``gs://BUCKET``, ``s3://BUCKET``, or
    a directory; those of users other than root in a part of it, ``/owners/uid-UID``.

    Each acquisition is a stream of its own, and known in the lock's document by an `owner_id` of its own. One for a
    shared sandbox has the `sandbox_id` that this has, or is about to have.
    """

    type = "lock.acquire_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("lock.acquired", "lock.contended", "lock.acquire_failed")
    owner: str
    name: str
    where: str
    owner_id: str
    timeout_s: float = 0.0
    sandbox_id: str | None = None


class LockAcquired(Event, frozen=True, kw_only=True):
    """The lock is held, and renewed from here on. `fence` is larger than that of every acquisition before."""

    type = "lock.acquired"
    fence: int


class LockContended(Event, frozen=True, kw_only=True):
    """The lock was not taken, as another owner holds it, `held_by` until `expires_at`, or will get it next: `waiting`.
    `code` is ``lock_contended``, or ``lock_timeout`` when it was waited for.
    """

    type = "lock.contended"
    code: str
    message: str
    held_by: str | None = None
    expires_at: str | None = None
    waiting: str | None = None


class LockAcquireFailed(Failure, frozen=True, kw_only=True):
    """The lock was not taken. `interrupted`: as in `image.create_failed`, or the waiting caller has gone."""

    type = "lock.acquire_failed"


class LockHandoverRequested(Event, frozen=True, kw_only=True):
    """The shared sandbox under this lock is about to be saved where other daemons find it, and the lock released:
    because the owner `waiter` waits for it (``handed_over``), because it was ordered (``detached``), for a limit of
    time (``idle_timeout``, ``max_lifetime``), or as the daemon stops (``shutdown``).
    """

    type = "lock.handover_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("lock.release_requested", "lock.handover_failed")
    reason: str
    waiter: str | None = None


class LockHandoverFailed(Failure, frozen=True, kw_only=True):
    """The sandbox goes on under the lock. `interrupted`: the daemon stopped meanwhile."""

    type = "lock.handover_failed"


class LockReleaseRequested(Event, frozen=True, kw_only=True):
    """The lock is about to be released; from here on nothing is written under it."""

    type = "lock.release_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("lock.released", "lock.lost", "lock.expired")


class LockReleased(Event, frozen=True, kw_only=True):
    """The lock was released."""

    type = "lock.released"


class LockExpired(Event, frozen=True, kw_only=True):
    """The lock was not renewed in time, and is lost, even if no other owner has taken it."""

    type = "lock.expired"
    message: str


class LockLost(Event, frozen=True, kw_only=True):
    """The lock is held no more: ``taken`` by another, ``freed`` by an administrator, its document ``damaged``, this
    machine's ``clock`` not to be relied on, or kept by a ``twin``, a daemon on a copy of this one's state directory.
    """

    type = "lock.lost"
    reason: str
    message: str


class LockStealRequested(Event, frozen=True, kw_only=True):
    """An administrator is about to free a lock, held by any owner, and with any content in place of its document."""

    type = "lock.steal_requested"
    outcomes: ClassVar[tuple[str, ...]] = ("lock.stolen", "lock.steal_failed")
    owner: str
    name: str
    where: str


class LockStolen(Event, frozen=True, kw_only=True):
    """The lock is free, and its owner has lost it, and learns so at the next renewal."""

    type = "lock.stolen"


class LockStealFailed(Event, frozen=True, kw_only=True):
    """The lock may be as it was. `interrupted`: as in `image.create_failed`."""

    type = "lock.steal_failed"
    code: str
    message: str
    interrupted: bool = False


def _all_events() -> dict[str, type[Event]]:
    found: dict[str, type[Event]] = {}
    for kind in globals().values():  # in the order of this file
        if not isinstance(kind, type) or not issubclass(kind, Event) or kind in (Event, Failure):
            continue
        if not kind.type or kind.type in found:
            raise TypeError(f"{kind.__name__} needs a type of its own")
        found[kind.type] = kind
    return found


EVENTS: Final[dict[str, type[Event]]] = _all_events()
