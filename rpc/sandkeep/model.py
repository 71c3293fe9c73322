"""The values that callers send and see: frozen Structs, with units in the names of their fields.

Times are text in RFC 3339 form, in UTC, with microseconds and a final ``Z``. Bytes travel in JSON as base64. A view
names its own id by its word (`sandbox_id`, never `id`).
"""

import posixpath
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

from sandkeep.ids import FILE_NAME_PATTERN, IMAGE_NAME_PATTERN, MAX_NAME_LENGTH, NAME_PATTERN, SHOWN_PATTERN

TIMED_OUT: Final = 124
"""Exit code of a process that its time limit ended, as that of coreutils' `timeout`."""

MAX_INLINE_BYTES: Final = 1024 * 1024
"""Maximum bytes of each stream in the answer of an ``exec``. The rest is in the journal."""

MAX_READ_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes in the answer of one `process.read`: base64 of two streams of that stays below the 16 MiB of a message.
"""

MAX_OUTPUT_TIMES: Final = 2000
"""Maximum times in the answer of one `process.read`: 10,000 kept other requests waiting for 30 ms."""

Name: TypeAlias = Annotated[
    str,
    Meta(
        pattern=NAME_PATTERN,
        max_length=MAX_NAME_LENGTH,
        description="An id or name: 1 to 64 letters, digits, '_', '.' or '-'.",
    ),
]
ImageName: TypeAlias = Annotated[
    str,
    Meta(
        pattern=IMAGE_NAME_PATTERN,
        max_length=256,
        description="A name for an image, with or without a tag, such as py:3.12.",
    ),
]
ImageWord: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,511}$(?!\n)",
        description="An image: its id, its name, or the reference that it was made from.",
    ),
]
Timestamp: TypeAlias = Annotated[str, Meta(description="RFC 3339, UTC, microseconds, final Z.")]
Text: TypeAlias = Annotated[
    str, Meta(max_length=131071, pattern=r"^[^\x00]*$(?!\n)", description="Any text without NUL.")
]
Key: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$(?!\n)", description="A variable's name.")]
FileName: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        pattern=FILE_NAME_PATTERN,
        description="A file's name, without '/' and control characters, and not of dots alone.",
    ),
]
Label: TypeAlias = Annotated[
    str,
    Meta(min_length=1, max_length=256, pattern=SHOWN_PATTERN, description="Any text without control characters."),
]
Path: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=4096, pattern=r"^[^\x00]+$(?!\n)", description="A path without NUL.")
]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=31_536_000)]
Offset: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
Environment: TypeAlias = Annotated[dict[Key, Text], Meta(max_length=1024)]
Labels: TypeAlias = Annotated[dict[Label, Annotated[str, Meta(max_length=1024)]], Meta(max_length=64)]
Secrets: TypeAlias = Annotated[
    dict[Key, Annotated[str, Meta(max_length=65536, pattern=r"^[^\x00]*$(?!\n)", description="Any text without NUL.")]],
    Meta(max_length=64),
]
Command: TypeAlias = Annotated[list[Text], Meta(min_length=1, max_length=4096)] | Annotated[Text, Meta(min_length=1)]

ImageKind: TypeAlias = Literal["directory", "dockerfile", "reference", "snapshot"]
ImageStatus: TypeAlias = Literal["creating", "ready", "failed", "removing", "removed"]
SandboxStatus: TypeAlias = Literal[
    "creating",
    "running",
    "suspending",
    "suspended",
    "resuming",
    "restoring",
    "stopping",
    "stopped",
    "failed",
    "lost",
]
SnapshotStatus: TypeAlias = Literal["creating", "ready", "failed", "deleting", "deleted"]
CheckpointStatus: TypeAlias = Literal["creating", "ready", "failed", "deleting", "deleted"]
SnapshotKind: TypeAlias = Literal["full", "incremental"]
ArchiveFormat: TypeAlias = Literal["tar", "tar.gz", "tar.zst"]
MomentKind: TypeAlias = Literal["snapshot", "checkpoint"]
ProcessStatus: TypeAlias = Literal["starting", "running", "exited", "failed", "lost"]
LimitField: TypeAlias = Literal["cpus", "memory_bytes", "pids", "disk_bytes"]
LimitName: TypeAlias = Literal["disk", "memory", "pids", "time"]
LockStatus: TypeAlias = Literal[
    "acquiring", "held", "handing_over", "releasing", "released", "contended", "failed", "expired", "lost", "stealing",
    "stolen",
]  # fmt: skip
SessionStatus: TypeAlias = Literal["starting", "ready", "stopping", "failed", "expired", "terminated"]
ArtifactStatus: TypeAlias = Literal["creating", "ready", "failed", "deleting", "deleted"]
VolumeStatus: TypeAlias = Literal["creating", "created", "failed", "removing", "removed"]
"""Of a creation, or a removal."""

MergeStatus: TypeAlias = Literal["creating", "conflicted", "resolving", "ready", "failed", "removing", "removed"]
MergePolicy: TypeAlias = Literal["fail", "ours", "union", "markers"]
CommitStatus: TypeAlias = Literal["creating", "ready", "failed"]
ChangeKind: TypeAlias = Literal["added", "changed", "deleted"]
BaseKind: TypeAlias = Literal["image", "snapshot", "checkpoint", "fork", "merge"]
SessionMode: TypeAlias = Literal["docker", "k8s"]
Network: TypeAlias = Literal["none", "host", "bridge"]
IsolationMode: TypeAlias = Literal["default", "none"]


class SkippedFile(Struct, frozen=True, kw_only=True):
    """A file that an image does not hold, and why: ``socket``, ``device``, or ``kernel``, such as `/proc`."""

    path: str
    why: str


class Image(Struct, frozen=True, kw_only=True):
    """An immutable template that sandboxes start from.

    `source` is a directory's path, the reference of a container image, or the id of a promoted snapshot. `base` is the
    reference of the image below a plain directory, and `dockerfile` the path, below `source`, of the Dockerfile. For
    Docker's, `docker_image_id` names the content and `docker_image_tag` is the engine's name for it; Modal's have
    `modal_image_id`. `names` are those that its owner gave it, such as ``py:3.12``. `published` has the references by
    which others may use it, each with these owners; without any, everybody.
    """

    image_id: str
    provider: str
    kind: ImageKind
    source: str
    status: ImageStatus
    owner: str
    created_at: Timestamp
    base: str | None = None
    dockerfile: str | None = None
    docker_image_id: str | None = None
    docker_image_tag: str | None = None
    modal_image_id: str | None = None
    digest: str | None = None
    size_bytes: int = 0
    file_count: int = 0
    skipped_count: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    names: list[str] = field(default_factory=list)
    published: dict[str, list[str]] = field(default_factory=dict)


class NamedVolume(Struct, frozen=True, kw_only=True):
    """A volume that its `owner` calls `name`. `engine_name` is the name that the provider's engine has for it, and
    `sandbox_ids` are the sandboxes that mount it, which have not ended.
    """

    name: str
    provider: str
    owner: str
    engine_name: str = ""
    created_at: Timestamp | None = None
    sandbox_ids: list[str] = field(default_factory=list)


class NamedVolumeList(Struct, frozen=True, kw_only=True):
    """Volumes, by name."""

    volumes: list[NamedVolume]


class Volume(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mount at `target` in a sandbox: a directory of the host, by its absolute path, for administrators; or a named
    volume of the owner, which is made on first use and outlives sandboxes.
    """

    source: Annotated[
        str,
        Meta(
            max_length=4096,
            pattern=r"^(/[^\x00:]*|[A-Za-z0-9][A-Za-z0-9_.-]{0,63})$(?!\n)",
            description="An absolute path of the host, without ':', or the name of a volume: 1 to 64 letters, digits, "
            "'_', '.' or '-'.",
        ),
    ]
    target: Annotated[
        str,
        Meta(
            max_length=4096, pattern=r"^/[^\x00:]+$(?!\n)", description="An absolute path in the sandbox, without ':'."
        ),
    ]
    read_only: bool = False


class Sharing(Struct, frozen=True, kw_only=True):
    """The properties of a sandbox that daemons on several machines share, one at a time, under the lock of
    `gcs_sandbox_id`.

    With `enable_handoff` its daemon gives it up when another one asks for it; with `enable_checkpoint_at_idle` it is
    saved and given up when it is idle, instead of being terminated. Whoever attaches to it has the token whose SHA-256
    is `token_sha256`, in hexadecimal digits. Its first daemon made it at `created_at`.
    """

    gcs_sandbox_id: Name
    enable_handoff: bool = False
    enable_checkpoint_at_idle: bool = False
    token_sha256: str = ""
    created_at: Timestamp | None = None

    @property
    def is_movable(self) -> bool:
        """True if its daemon saves it before it gives it up by itself."""
        return self.enable_handoff or self.enable_checkpoint_at_idle


class SandboxSpec(Struct, frozen=True, kw_only=True):
    """The requested properties of a sandbox. Limits mean the same with every provider; None is the provider's default.

    `user` is a uid inside the sandbox, or ``uid:gid``. `working_dir` is where processes start, from the workspace on if
    it is relative. `session_id` is the session that it belongs to; `shared` is there if several daemons share it. With
    a `writable_root` programs can be installed into its system.
    """

    cpus: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    network: Network = "none"
    user: str | None = None
    read_only: bool = False
    working_dir: str | None = None
    isolation: IsolationMode = "default"
    volumes: list[Volume] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    session_id: Name | None = None
    shared: Sharing | None = None
    writable_root: bool = False

    def directory(self, workspace: str) -> str:
        """Return the absolute path at which processes start that ask for no other."""
        return posixpath.join(workspace, self.working_dir) if self.working_dir else workspace


class Isolation(Struct, frozen=True, kw_only=True):
    """The mechanisms that isolate a sandbox.

    `mechanism` isolates (``bubblewrap``, ``none``); `files` is how the image became the sandbox's own (``overlay``,
    ``reflink``, ``copy``); `host_uid` is the uid that its code has on the host; `limits` names the mechanism of each
    limit; `notes` are sentences on weaknesses. `host_path` is the workspace itself on the host, while this runs, for
    the daemon's own user and root; links in it lead on the host, and code inside makes them.
    """

    mechanism: str
    files: str
    host_uid: int | None = None
    workspace: str = "/workspace"
    limits: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    host_path: str | None = None


class Sandbox(Struct, frozen=True, kw_only=True):
    """A running environment made from an image by a provider.

    `note` says when the daemon, just started, has not heard from it yet: the rest is its last known state then. One
    that is lost had `last_status` before. `forked_from` is the sandbox that it was forked from, `restored_from` the
    snapshot that its files came from last, or the checkpoint that all of it did; `latest_snapshot_id` and
    `latest_checkpoint_id` are the last that were made of it. One that was restored from a snapshot of elsewhere has
    that for its `image_id`. `suspended_reason` says why the daemon suspended it without an order. Its owner may call
    it by its `name`, which no other has of the owner's until it has ended. `limits_met` counts the processes that ended
    at each limit; `note` also says at which limit a running one is. One that is shared, and goes on at another daemon,
    has `moved_to`, that one's addresses; `sandbox_token`, by which others attach to it, is in the answer to its
    creation alone. At `expires_at` its lifetime, or that of its session, is over. `container_id` and `container_name`
    are the Docker engine's, `modal_sandbox_id` is Modal's. `ssh_address` is the public ``HOST:PORT`` that leads to an
    SSH server in it.
    """

    sandbox_id: str
    image_id: str
    provider: str
    status: SandboxStatus
    owner: str
    created_at: Timestamp
    spec: SandboxSpec
    secrets: list[str] = field(default_factory=list)
    isolation: Isolation | None = None
    running_processes: int = 0
    exec_count: int = 0
    ended_at: Timestamp | None = None
    terminated_reason: str | None = None
    error: str | None = None
    position: int = 0
    last_status: str | None = None
    note: str | None = None
    forked_from: str | None = None
    restored_from: str | None = None
    latest_snapshot_id: str | None = None
    latest_checkpoint_id: str | None = None
    name: str | None = None
    suspended_reason: str | None = None
    limits_met: dict[LimitName, int] = field(default_factory=dict)
    moved_to: list[str] | None = None
    sandbox_token: str | None = None
    expires_at: Timestamp | None = None
    container_id: str | None = None
    container_name: str | None = None
    modal_sandbox_id: str | None = None
    ssh_address: str | None = None


class SessionSpec(Struct, frozen=True, kw_only=True):
    """The requested properties of a session. `image` is the id of an image or the reference of a container image, of
    which its sandboxes are made; `sandbox` their specification, without limits of time: these are the session's.
    `metadata` is the owner's own, kept and not read.
    """

    image: str
    mode: SessionMode = "docker"
    sandbox: SandboxSpec = SandboxSpec()
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    artifact_base_url: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class Session(Struct, frozen=True, kw_only=True):
    """A user's claim on a sandbox that is ready when it is used.

    `session_id` is unique among its owner's sessions, `key` among all. `sandbox_id` is its present sandbox, or the last
    one: each revival makes a new one, with the session's id for its name. `ref` is that sandbox as its provider knows
    it, such as ``docker://sandbox-SESSION_ID``. `restored_from` is the snapshot that the present sandbox began with;
    `latest_snapshot_id` is the one that a revival begins with. Its limits of time count from `started_at`, when it was
    last made ready. It is over at `expires_at`. `note` says what keeps a sandbox that is due to end.
    """

    session_id: str
    key: str
    owner: str
    status: SessionStatus
    spec: SessionSpec
    provider: str | None = None
    image_id: str | None = None
    sandbox_id: str | None = None
    ref: str | None = None
    workspace_path: str | None = None
    created_at: Timestamp
    started_at: Timestamp | None = None
    expires_at: Timestamp | None = None
    last_activity_at: Timestamp | None = None
    last_heartbeat_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    terminated_reason: str | None = None
    error: str | None = None
    error_code: str | None = None
    restored_from: str | None = None
    latest_snapshot_id: str | None = None
    snapshot_ids: list[str] = field(default_factory=list)
    starts: int = 0
    note: str | None = None
    position: int


class SessionEnsured(Struct, frozen=True, kw_only=True):
    """A session that is ready. `created` is false if it was ready already, and nothing was made; else the sandbox was
    made for this call or a concurrent one's, of the snapshot `restored_from` if there is one.
    """

    session: Session
    created: bool
    restored_from: str | None = None


class SessionList(Struct, frozen=True, kw_only=True):
    """One page of sessions, in the order of their keys. `next` is given as `after` for the next page."""

    sessions: list[Session]
    next: str | None = None


class Artifact(Struct, frozen=True, kw_only=True):
    """A file that was exported from a sandbox, and outlives it. A directory is exported as a ``tar.gz``.

    `path` is where it was in the sandbox. `name` and `media_type` are guesses by that unless they were given. `digest`
    (``sha256:…``) is in answers about one artifact alone. `download_url` is where its users get it, if its session or
    ``SANDBOX_ARTIFACT_BASE_URL`` names a place. `data` are its bytes, if it is small and they were asked for.
    """

    artifact_id: str
    status: ArtifactStatus
    owner: str
    sandbox_id: str
    session_id: str | None = None
    path: str
    name: str
    media_type: str
    size_bytes: int = 0
    digest: str | None = None
    download_url: str | None = None
    data: bytes | None = None
    created_at: Timestamp
    error: str | None = None


class ArtifactList(Struct, frozen=True, kw_only=True):
    """One page of artifacts, oldest first. `next` is given as `after` for the next page."""

    artifacts: list[Artifact]
    next: str | None = None


class Place(Struct, frozen=True, kw_only=True):
    """The location of an archive: `path` below `base`, a directory or a bucket according to `where`: ``mount``,
    ``directory``, ``state``, ``gcs`` or ``s3``. `uri` is the whole.
    """

    where: str
    base: str
    path: str
    uri: str


class Snapshot(Struct, frozen=True, kw_only=True):
    """The files of a sandbox at one moment, stored as an archive in `places`, the first of them preferred.

    Names in the archive begin at the directory `root` of the sandbox. An ``incremental`` one holds the differences from
    the snapshot `parent_id`, or from the image `image_id`. `pause_ms` is the time for which the sandbox was frozen.
    `imported` is true for a foreign archive. `digest`, `size_bytes` and `member_count` are those of the archive,
    `content_bytes` those of the files in it. `remarks` counts files that were omitted or changed, by reason, such as
    ``socket``. Of a sandbox at Modal there is an image besides, `modal_image_id`, with which sandboxes there begin.
    """

    snapshot_id: str
    status: SnapshotStatus
    kind: SnapshotKind
    format: ArchiveFormat
    owner: str
    created_at: Timestamp
    sandbox_id: str | None = None
    image_id: str | None = None
    provider: str | None = None
    parent_id: str | None = None
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    root: str = "/workspace"
    include: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    imported: bool = False
    places: list[Place] = field(default_factory=list)
    digest: str | None = None
    size_bytes: int = 0
    member_count: int = 0
    content_bytes: int = 0
    pause_ms: float | None = None
    remarks: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    note: str | None = None
    modal_image_id: str | None = None


class SnapshotList(Struct, frozen=True, kw_only=True):
    """Snapshots, oldest first; `next` is the `after` for the next page."""

    snapshots: list[Snapshot]
    next: str | None = None


class SnapshotExport(Struct, frozen=True, kw_only=True):
    """A whole archive that was handed over, as an open file to read from its beginning."""

    snapshot_id: str
    digest: str
    size_bytes: int
    format: ArchiveFormat


class CheckpointFile(Struct, frozen=True, kw_only=True):
    """A file of a checkpoint. `digest` is ``blake3:…`` of its bytes, or ``sha256:…`` of one in a bucket."""

    name: str
    digest: str
    size_bytes: int


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A sandbox at one moment with its memory and processes, stored in `files` below `place`.

    `processes` counts its processes. With `leave_running` the sandbox was frozen for `pause_ms`; otherwise it was
    suspended. It can be restored on machines with the same `facts`.
    """

    checkpoint_id: str
    status: CheckpointStatus
    owner: str
    created_at: Timestamp
    sandbox_id: str
    image_id: str
    provider: str
    leave_running: bool
    place: Place
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    files: list[CheckpointFile] = field(default_factory=list)
    size_bytes: int = 0
    processes: int = 0
    pause_ms: float | None = None
    error: str | None = None


class CheckpointList(Struct, frozen=True, kw_only=True):
    """Checkpoints, oldest first; `next` is the `after` for the next page."""

    checkpoints: list[Checkpoint]
    next: str | None = None


class CheckpointRestoreResult(Struct, frozen=True, kw_only=True):
    """The running sandboxes that were created from a checkpoint."""

    checkpoint_id: str
    sandboxes: list[Sandbox]


class SnapshotGcReport(Struct, frozen=True, kw_only=True):
    """The result of a collection, or of a dry run: expired snapshots, and archives that no event owns, by their places.
    `left` are archives that could not be identified as ours, or not be removed, each with the reason.
    """

    snapshots: list[str] = field(default_factory=list)
    archives: list[str] = field(default_factory=list)
    freed_bytes: int = 0
    left: list[str] = field(default_factory=list)
    dry_run: bool = False


class PruneReport(Struct, frozen=True, kw_only=True):
    """The result of a prune, or of a dry run: the images, and the ended sandboxes whose output, that were removed, with
    their sizes. `left` are images that could not be removed, each with the reason.
    """

    images: list[str] = field(default_factory=list)
    sandboxes: list[str] = field(default_factory=list)
    image_bytes: int = 0
    output_bytes: int = 0
    left: list[str] = field(default_factory=list)
    dry_run: bool = False


class ForkResult(Struct, frozen=True, kw_only=True):
    """The sandboxes that a fork created, and the milliseconds for which their source was frozen."""

    sandbox_id: str
    sandboxes: list[Sandbox]
    pause_ms: float


class FileChange(Struct, frozen=True, kw_only=True):
    """A difference at one path of the workspace. `path_bytes` is there for a path that is not UTF-8.

    `kind` and `mode` are those of the new file, or of one that was deleted; those before are given where they differ.
    Lines are counted for text if they were asked for.
    """

    path: str
    path_bytes: bytes | None = None
    change: ChangeKind
    kind: str
    mode: int
    kind_before: str | None = None
    mode_before: int | None = None
    size_bytes: int = 0
    added_lines: int | None = None
    removed_lines: int | None = None


class Diff(Struct, frozen=True, kw_only=True):
    """The differences from `base_id`, a sandbox, a snapshot, an image, or the kept files with which the sandbox began,
    to the workspace of `sandbox_id`; the other way with `reverse`. `files` are the first of them by path,
    `unified` their texts; with `truncated` there is more.
    """

    sandbox_id: str
    base_id: str
    files: list[FileChange]
    added: int
    changed: int
    deleted: int
    unified: str | None = None
    truncated: bool = False


class BranchCreateResult(Struct, frozen=True, kw_only=True):
    """The sandboxes that were made as branches of `source_id`; a sandbox was frozen for `pause_ms`."""

    source_id: str
    sandboxes: list[Sandbox]
    pause_ms: float


class Branch(Struct, frozen=True, kw_only=True):
    """A sandbox in the tree of branches: it began as `base_id`, which is of the kind `base`, and came from the
    sandboxes `parents`: the one that was forked or saved, or all that were merged.
    """

    sandbox_id: str
    name: str | None = None
    status: SandboxStatus
    provider: str
    owner: str
    created_at: Timestamp
    base: BaseKind
    base_id: str
    image_id: str
    parents: list[str] = field(default_factory=list)


class BranchList(Struct, frozen=True, kw_only=True):
    """One page of branches, oldest first. `next` is given as `after` for the next page."""

    branches: list[Branch]
    next: str | None = None


class ConflictSide(Struct, frozen=True, kw_only=True):
    """The version of a branch, or ``base``. Without `kind` there is nothing. The content of a file is read by
    ``branch.read_version`` and its `sha256`.
    """

    branch: str
    kind: str | None = None
    mode: int = 0
    size_bytes: int = 0
    sha256: str | None = None
    target: str | None = None


class ConflictHunk(Struct, frozen=True, kw_only=True):
    """Lines that branches changed differently: those of the base from the line `start` on, and those of each branch.
    They are cut where they are long.
    """

    start: int
    base: list[str]
    versions: dict[str, list[str]]


class Conflict(Struct, frozen=True, kw_only=True):
    """A path at which branches differ. `kind` says how: ``content``, ``binary``, ``deleted``, ``added``, ``mode``,
    ``symlink``, ``kind`` (such as a file against a directory), ``case`` (names that differ in case alone). `hunks` are
    those that no decision has settled yet; not all of them if `cut`.
    """

    path: str
    path_bytes: bytes | None = None
    kind: str
    sides: list[ConflictSide]
    hunks: list[ConflictHunk] = field(default_factory=list)
    cut: bool = False


class DroppedChange(Struct, frozen=True, kw_only=True):
    """The change of a `branch` at a path that a merge's result does not have, as a whole version was taken there, or
    none: so many `hunks` of text, which removed and added so many `lines`; 0 of what is not merged by lines.
    """

    path: str
    path_bytes: bytes | None = None
    branch: str
    hunks: int = 0
    lines: int = 0


class Merge(Struct, frozen=True, kw_only=True):
    """A merge of branches over their common `base_id`. `branches` are sandboxes by what they are called in it.

    One that is ``conflicted`` waits for decisions on so many `conflicts`. One that is ``ready`` was made into the
    sandbox `sandbox_id`, in which `changed` paths differ from the base.
    """

    merge_id: str
    status: MergeStatus
    owner: str
    created_at: Timestamp
    branches: dict[str, str]
    base_id: str
    policy: MergePolicy
    sandbox_id: str | None = None
    name: str | None = None
    changed: int = 0
    conflicts: int = 0
    error: str | None = None


class Merged(Struct, frozen=True, kw_only=True):
    """The result of a merge: the `sandbox`, or the first of the conflicts. `dropped` has the changes that choices of
    whole paths have dropped, the first of `dropped_count`.
    """

    merge: Merge
    sandbox: Sandbox | None = None
    conflicts: list[Conflict] = field(default_factory=list)
    dropped: list[DroppedChange] = field(default_factory=list)
    dropped_count: int = 0


class ConflictList(Struct, frozen=True, kw_only=True):
    """Conflicts by their paths. `next` is given as `after` for the next page."""

    conflicts: list[Conflict]
    next: int | None = None


class MergeList(Struct, frozen=True, kw_only=True):
    """One page of merges, oldest first. `next` is given as `after` for the next page."""

    merges: list[Merge]
    next: str | None = None


class Resolution(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision on the conflict at a path: a branch or ``base``, or, of names that differ in case, ``all`` (`take`);
    nothing (`delete`); or this `data`, with this `mode` or the present one.

    `take` decides what clashes: hunks of text, bytes, a mode, a target. Clean edits of other branches stay. With `line`
    it decides the hunk alone that begins there in the base. With `whole` the version of the whole path is taken, and
    the answer lists what that drops; conflicts of ``kind`` and ``case`` are always taken so.
    """

    path: Path | None = None
    path_bytes: bytes | None = None
    take: Name | None = None
    whole: bool = False
    line: Annotated[int, Meta(ge=1)] | None = None
    delete: bool = False
    data: bytes | None = None
    mode: Annotated[int, Meta(ge=0, le=0o777)] | None = None


class CommitPath(Struct, frozen=True, kw_only=True):
    """The effect of a commit at one path of the target. `status`: ``apply``; ``same`` (it is so already);
    ``host_changed``; ``blocked``; ``kept`` (a directory in which something else is); ``forbidden`` (below ``.git``).
    """

    path: str
    path_bytes: bytes | None = None
    change: ChangeKind
    status: str
    why: str = ""


class CommitPlan(Struct, frozen=True, kw_only=True):
    """The effect that a commit of a branch would have: the first `paths`, and how many there are of each status."""

    sandbox_id: str
    target: str
    base_id: str
    counts: dict[str, int]
    paths: list[CommitPath]


class Commit(Struct, frozen=True, kw_only=True):
    """A commit of a branch's changes to a directory of the host."""

    commit_id: str
    status: CommitStatus
    owner: str
    created_at: Timestamp
    sandbox_id: str
    target: str
    base_id: str
    added: int = 0
    changed: int = 0
    deleted: int = 0
    error: str | None = None


class Provenance(Struct, frozen=True, kw_only=True):
    """The origin of the state of one path: of these `branches`, and `how`: ``taken``, ``alike``, ``merged``,
    ``takes``, ``resolved``, ``policy:…``, or ``branch`` for what was changed in the branch itself. `choice` is how a
    conflict was resolved: by a branch or ``base``, of the whole path or a line, by ``delete``, ``data`` or ``all``.
    """

    path: str
    path_bytes: bytes | None = None
    change: ChangeKind
    branches: list[str]
    how: str
    merge_id: str | None = None
    choice: str = ""


class Blame(Struct, frozen=True, kw_only=True):
    """The origins of paths, in their order. `next` is given as `after` for the next page."""

    paths: list[Provenance]
    next: int | None = None


class Moment(Struct, frozen=True, kw_only=True):
    """A moment of a sandbox that can be restored: the snapshot or checkpoint `source_id` holds it as of `position`.

    `status` is that of the source, which must be ``ready`` for a restore. One that is `partial` leaves out files, as
    its creator chose.
    """

    kind: MomentKind
    source_id: str
    position: int
    time: Timestamp
    status: str
    name: str | None = None
    partial: bool = False


class RestoredAt(Struct, frozen=True, kw_only=True):
    """A new sandbox, and the `moment` that was used for it, which may be before the requested one.

    `distance_s` and `events_between`, events of the sandbox, lie between the two; None when some of those may be
    archived.
    """

    sandbox: Sandbox
    moment: Moment
    events_between: int | None
    distance_s: float


class Process(Struct, frozen=True, kw_only=True):
    """A command in a sandbox. `name` is its process_id when it was not given one (`named` is False then).

    With `tty` it runs in a terminal: a tmux session inside the sandbox, which `tmux_session` names. `exit_code` is the
    shell's: 128+n when signal n ended it; but 124 when its time limit did. `oom_killed` is true if the kernel's OOM
    killer ended it, or a process it waited for. `limits_met` are the limits at which it ended, and `error` says so:
    ``disk`` and ``pids`` if it failed while the sandbox was at that limit, ``memory`` as `oom_killed`, ``time`` as
    `timed_out`. A process that exited with 0 has no `error`, but ``disk`` if the disk became full while it ran.
    `kill_scope` is the target of a kill: the
    process ``group``.
    """

    process_id: str
    sandbox_id: str
    name: str
    named: bool
    command: list[str]
    status: ProcessStatus
    requested_at: Timestamp
    command_cut: bool = False
    working_dir: str | None = None
    env: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    stdin: bool = False
    tty: bool = False
    tmux_session: str | None = None
    timeout_s: float | None = None
    pid: int | None = None
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    exit_code: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    last_signal: str | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None
    kill_scope: str = "group"
    error: str | None = None
    limits_met: list[LimitName] = field(default_factory=list)


class ExecResult(Struct, frozen=True, kw_only=True):
    """The outcome of an ``exec``, with up to `MAX_INLINE_BYTES` of each stream; the whole is in the journal of
    `process_id`. `oom_killed` and `limits_met` are as in `Process`; `error` then names the sandbox's limit.
    """

    process_id: str
    sandbox_id: str
    exit_code: int | None
    timed_out: bool
    status: ProcessStatus
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    duration_s: float
    error: str | None = None
    oom_killed: bool = False
    limits_met: list[LimitName] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its stdout as text, with replacement characters for what is not UTF-8."""
        return self.stdout.decode(errors="replace")


class OutputTime(Struct, frozen=True, kw_only=True):
    """By the time `at` the daemon had seen the streams of a process up to these offsets; the first entry whose offset
    is larger than a byte's has its time. It is None for output of before the daemon noted times.
    """

    at: str | None
    stdout_offset: int
    stderr_offset: int


class ProcessOutput(Struct, frozen=True, kw_only=True):
    """A piece of a journal. Continue from `next_stdout_offset` and `next_stderr_offset`; `ended` means no more will
    come. `stdout_bytes` and `stderr_bytes` are the lengths of both streams at present.

    `stdout_offset` is larger than requested when the beginning of the stream was dropped, as is `stderr_offset`. `note`
    reports that and any anomaly, such as a journal that became shorter. `limits_met` are as in `Process`. `times` are
    those of the piece, oldest first, if they were asked for; after 2,000 times the piece ends.
    """

    process_id: str
    status: ProcessStatus
    stdout: bytes
    stderr: bytes
    stdout_offset: int
    stderr_offset: int
    next_stdout_offset: int
    next_stderr_offset: int
    ended: bool
    exit_code: int | None = None
    timed_out: bool = False
    note: str | None = None
    limits_met: list[LimitName] = field(default_factory=list)
    times: list[OutputTime] = field(default_factory=list)
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None


class Attachment(Struct, frozen=True, kw_only=True):
    """A terminal that was given to a client, as a descriptor: the controlling side of a pseudo-terminal in which the
    sandbox's own tmux shows the process. Closing it detaches; its size is set by TIOCSWINSZ.
    """

    process: Process


class OpenOutput(Struct, frozen=True, kw_only=True):
    """The journals of a process, given to a client as two descriptors for reading: stdout, then stderr.

    They grow while the process runs. Read them by offset; their content is untrusted. Dropped data is a hole
    at the beginning (SEEK_DATA finds its end), which may grow during a read.
    """

    process: Process
    stdout_bytes: int
    stderr_bytes: int


FileType: TypeAlias = Literal["file", "directory", "symlink", "fifo", "socket", "device", "unknown"]


class FileEntry(Struct, frozen=True, kw_only=True):
    """A file in a sandbox. `name_bytes` is there when the name is not UTF-8; `name` then shows it as well as it can."""

    name: str
    type: FileType
    mode: int
    size_bytes: int
    modified_at: Timestamp
    target: str | None = None
    name_bytes: bytes | None = None


class DirectoryList(Struct, frozen=True, kw_only=True):
    """The files of a directory, by name; `next` is the `after` for the next page."""

    entries: list[FileEntry]
    next: str | None = None


class FileContent(Struct, frozen=True, kw_only=True):
    """A piece of a file from `offset`. `size_bytes` is the size of the whole file; `eof` is true at its end."""

    offset: int
    data: bytes
    size_bytes: int
    mode: int
    eof: bool


class FileWritten(Struct, frozen=True, kw_only=True):
    """A file that was written whole."""

    path: str
    size_bytes: int
    sha256: str


class Copied(Struct, frozen=True, kw_only=True):
    """A complete copy. `path` is its place in the sandbox; `files` counts its files."""

    path: str
    files: int
    size_bytes: int


class StreamAccess(Struct, frozen=True, kw_only=True):
    """The addresses of the stream server, as ``unix:/path`` or ``tls://127.0.0.1:PORT``, and the caller's token for
    TCP.

    The token is a password: it stands for the caller until it is renewed. `pin` is the SHA-256 of the server's TLS
    certificate: send the token to no server with another one. It is null where there is no TLS.
    """

    addresses: list[str]
    token: str
    pin: str | None = None


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as it is in the log and on the wire. `version` is that of its type, `revision` its place in its stream.

    In the history of a sandbox, `moment` is set where one was kept, even if its snapshot or checkpoint was deleted
    since.
    """

    position: int
    time: Timestamp
    type: str
    version: int
    stream: str
    revision: int
    data: dict[str, Any]
    meta: dict[str, Any]
    moment: Moment | None = None


class EventPage(Struct, frozen=True, kw_only=True):
    """Events in order. `next` is the token to continue from; `caught_up` is true if there were no more then."""

    events: list[Event]
    next: str
    caught_up: bool


class SandboxAt(Struct, frozen=True, kw_only=True):
    """A sandbox as the record had it after the event at `position`, which was at `time`; its processes, snapshots and
    checkpoints.

    Of many processes, snapshots or checkpoints, these are the last; `left_out` counts the others. `note` says so where
    processes that had ended by then may be in the archive by now.
    """

    position: int
    time: Timestamp
    sandbox: Sandbox
    processes: list[Process]
    snapshots: list[Snapshot]
    checkpoints: list[Checkpoint] = field(default_factory=list)
    left_out: int = 0
    note: str | None = None


class ImageList(Struct, frozen=True, kw_only=True):
    """Images, oldest first; `next` is the `after` for the next page."""

    images: list[Image]
    next: str | None = None


class SandboxList(Struct, frozen=True, kw_only=True):
    """Sandboxes, oldest first; `next` is the `after` for the next page."""

    sandboxes: list[Sandbox]
    next: str | None = None


class SandboxStats(Struct, frozen=True, kw_only=True):
    """Resource usage and limits of a running sandbox, as the kernel counted them at `sampled_at`.

    None is a value that this machine does not count, or no limit. `cpu_s` is the time of all its processes, ended ones
    included; `cpu_user_s` and `cpu_system_s` are its parts, more coarsely counted. `memory_bytes` excludes the page
    cache, `memory_peak_bytes` includes it. `io_read_bytes` were read from disks, `io_written_bytes` were or will be
    written. `oom_kills` counts OOM kills; `pids` all processes, `running_processes` those that callers started,
    `pids_refused` those that were not started because of `pids_limit`, `timeouts` those that ended at their time limit.
    `disk_bytes` of `disk_limit_bytes` are taken: all, of a full disk. Where the sandbox has no disk of its own, that is
    the last measurement, and the limit is approximate. `session_id` is the session that it belongs to. At `expires_at`
    its longest life is over.
    """

    sandbox_id: str
    provider: str
    owner: str
    sampled_at: Timestamp
    name: str | None = None
    session_id: str | None = None
    created_at: Timestamp | None = None
    expires_at: Timestamp | None = None
    cpu_s: float | None = None
    cpu_user_s: float | None = None
    cpu_system_s: float | None = None
    cpus_limit: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    pids: int | None = None
    pids_limit: int | None = None
    pids_refused: int | None = None
    disk_bytes: int | None = None
    disk_limit_bytes: int | None = None
    io_read_bytes: int | None = None
    io_written_bytes: int | None = None
    oom_kills: int | None = None
    running_processes: int = 0
    timeouts: int = 0


class SandboxStatsList(Struct, frozen=True, kw_only=True):
    """Resource usage of running sandboxes, oldest sandbox first; `next` is the `after` for the next page."""

    sandboxes: list[SandboxStats]
    next: str | None = None


class ProcessList(Struct, frozen=True, kw_only=True):
    """Processes, oldest first; `next` is the `after` for the next page."""

    processes: list[Process]
    next: str | None = None


class ClientLimits(Struct, frozen=True, kw_only=True):
    """Limits on clients. `message_bytes` is for a line either way, `batch` for the messages of one, `calls` for those
    in flight on a connection; `connections` and `websockets` are a user's, None for any number, and `held_bytes` limits
    the memory that all its clients together may take in the daemon. A client that takes longer than `stalled_s` over
    the rest of a line, or over an answer, is dropped.
    """

    message_bytes: int
    batch: int
    calls: int
    connections: int | None
    websockets: int | None
    held_bytes: int
    stalled_s: float


class Welcome(Struct, frozen=True, kw_only=True):
    """The daemon's answer to a client's greeting. By `log_id` a client knows it again after a restart."""

    version: str
    log_id: str
    limits: ClientLimits | None = None


class Pong(Struct, frozen=True, kw_only=True):
    """The daemon's answer to a ping."""

    version: str
    pid: int


class Capability(Struct, frozen=True, kw_only=True):
    """A feature of this machine. If it does not work fully, `why` names the cause and the remedy."""

    works: bool
    why: str | None = None


class ProviderCapabilities(Struct, frozen=True, kw_only=True):
    """The features of a provider on this machine."""

    provider: str
    works: bool
    why: str | None = None
    features: dict[str, Capability] = field(default_factory=dict)


class ProviderChoice(Struct, frozen=True, kw_only=True):
    """The provider to use. With `fell_back` it is not the requested one, and `why` is the reason."""

    provider: str
    fell_back: bool = False
    why: str | None = None


class Capabilities(Struct, frozen=True, kw_only=True):
    """The features of this machine, provider by provider. `buckets`: the services, ``gcs`` and ``s3``, whose SDK is
    installed beside the daemon, so that archives and locks can be in their buckets.
    """

    providers: list[ProviderCapabilities]
    buckets: dict[str, Capability] = field(default_factory=dict)


class QuotaUsage(Struct, frozen=True, kw_only=True):
    """One quota: its limit, None for none, and what is used of it, in `unit`. `frees` says what frees it."""

    quota: str
    used: int
    limit: int | None
    unit: Literal["count", "bytes"]
    frees: str


class QuotaList(Struct, frozen=True, kw_only=True):
    """The quotas of an owner. `exempt` is True for an administrator's own ones, if they are counted only."""

    owner: str
    exempt: bool
    quotas: list[QuotaUsage]


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key of the HTTP gateway. What it makes is owned by `owner`."""

    name: str
    owner: str
    created_at: Timestamp


class NewKey(Struct, frozen=True, kw_only=True):
    """A new key. `key` is a password; the daemon keeps only its digest and never shows it again."""

    name: str
    owner: str
    key: str


class KeyList(Struct, frozen=True, kw_only=True):
    """The keys of the HTTP gateway, by their names."""

    keys: list[ApiKey]


class DaemonStatus(Struct, frozen=True, kw_only=True):
    """The status of the daemon. `healthy` is False when mutations are refused; `problems` are the reasons and remedies.
    `stream` and `http` have the addresses of the stream server and of the HTTP gateway. `not_adopted` counts running
    sandboxes that have not answered since the start. `foreign` are objects on the machine that carry the id of another
    log and were left alone; only administrators see them.
    """

    version: str
    pid: int
    uid: int
    state_dir: str
    socket: str
    log_id: str
    position: int
    started_at: Timestamp
    healthy: bool
    problems: list[str]
    owner: str
    admin: bool
    sandboxes: dict[str, int]
    images: dict[str, int]
    running_processes: int
    connections: int
    resident_bytes: int
    stream: list[str] = field(default_factory=list)
    http: list[str] = field(default_factory=list)
    not_adopted: int = 0
    foreign: list[str] = field(default_factory=list)


class VerifyReport(Struct, frozen=True, kw_only=True):
    """The result of a check of the event log and of every `metadata.json`."""

    ok: bool
    events: int
    first_position: int
    last_position: int
    problems: list[str]


class RebuildReport(Struct, frozen=True, kw_only=True):
    """The result of a rebuild of every `metadata.json`."""

    position: int
    written: int
    unchanged: int
    removed: int


class CompactReport(Struct, frozen=True, kw_only=True):
    """The result of a compaction: events moved into `segments` of the archive, which take `size_bytes`. The log has no
    gaps from `first_position` on.
    """

    events: int = 0
    sandboxes: int = 0
    images: int = 0
    segments: list[str] = field(default_factory=list)
    size_bytes: int = 0
    first_position: int


class RedactReport(Struct, frozen=True, kw_only=True):
    """The redacted event, and the `places` it was in: the ``log``, or segments of the archive."""

    position: int
    type: str
    stream: str
    places: list[str]


class RepairReport(Struct, frozen=True, kw_only=True):
    """Problems of a log, and the events `kept`. Once `mended`, the damaged files are in `quarantine`."""

    kept: int
    problems: list[str]
    mended: bool
    quarantine: str | None = None


class Empty(Struct, frozen=True, kw_only=True):
    """A result without content."""


class Lock(Struct, frozen=True, kw_only=True):
    """One acquisition of a lock by this daemon: pending, held, or ended.

    `where` is the bucket or directory of the lock's document, in which this acquisition is `owner_id`. `fence` is
    larger than that of every earlier acquisition by any owner. For one that was ``contended``, `held_by` is the holder,
    until `expires_at` unless renewed. One that was ``stolen`` is that of an administrator who freed the lock by force.
    One that was taken for a shared sandbox has its `sandbox_id`; `handover_error` is why that was not handed over.

    A lock that this daemon has nothing to do with has no `lock_id`: it is ``contended`` or ``released``.
    """

    lock_id: str
    name: str
    status: LockStatus
    owner: str
    where: str
    requested_at: Timestamp
    owner_id: str | None = None
    fence: int | None = None
    acquired_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    held_by: str | None = None
    expires_at: Timestamp | None = None
    error: str | None = None
    sandbox_id: str | None = None
    handover_error: str | None = None


class SavedSandbox(Struct, frozen=True, kw_only=True):
    """A checkpoint or snapshot of a shared sandbox, as its metadata tells other daemons of it: `path` is that in the
    place of such objects, and `bucket` the bucket. A checkpoint has `files`, and the `facts` that a restore depends on;
    a snapshot is an archive with a `digest`. `processes` are the names of those that ran.
    """

    kind: Literal["checkpoint", "snapshot"]
    id: Name
    path: str
    bucket: str
    created_at: Timestamp
    files: list[CheckpointFile] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    format: ArchiveFormat = "tar.gz"
    digest: str = ""
    size_bytes: int = 0
    processes: list[str] = field(default_factory=list)


class SharedImage(Struct, frozen=True, kw_only=True):
    """The image of a shared sandbox. `digest` is that of its content; `path` that of an archive of it, in the place of
    checkpoints; `source` the reference of a container image, if it is one.
    """

    provider: Name
    digest: str
    path: str | None = None
    source: str | None = None


class LockList(Struct, frozen=True, kw_only=True):
    """Locks; `next` is the `after` for the next page, None on the last."""

    locks: list[Lock]
    next: str | None = None
