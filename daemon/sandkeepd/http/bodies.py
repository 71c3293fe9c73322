"""Bodies, queries and answers of the routes of sessions: AstraForge's names, for what `sandkeep.model` has.

As there, unknown keys of a body or a query are ignored, and an optional text that is empty counts as left out.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from sandkeep.model import (
    Command,
    Environment,
    Labels,
    Name,
    Path,
    Secrets,
    SessionMode,
    Timestamp,
)
from sandkeep.protocol.methods import Limit

Quantity = Annotated[str, Meta(max_length=32, description="As Kubernetes has it: 500m, 1.5, 512Mi, 2G.")]
Url = Annotated[str, Meta(max_length=2048)]
Seconds = Annotated[int, Meta(ge=0, le=31_536_000)]
OptionalText = Annotated[str, Meta(max_length=4096)]
"""Checked by the method, unless it is empty."""

ShownStatus = Literal["starting", "ready", "failed", "terminated"]


class SessionBody(Struct, frozen=True, kw_only=True):
    """The session to make ready: the one of that `id`, or a new one. What is left out is as it was when the session was
    made ready before; a new one has the `mode` docker, may be idle for 300 s, and lives for 3600 s.
    """

    id: Name | None = None
    mode: SessionMode | None = None
    image: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    cpu: Quantity | None = None
    memory: Quantity | None = None
    ephemeral_storage: Quantity | None = None
    restore_snapshot_id: Name | None = None
    idle_timeout_sec: Annotated[Seconds, Meta(description="0 is never; else at least 60.")] | None = None
    max_lifetime_sec: Annotated[Seconds, Meta(description="0 is never; else at least 300.")] | None = None
    artifact_base_url: Url | None = None
    workspace_uid: Annotated[str, Meta(max_length=256)] | None = None
    env: Environment | None = None
    secrets: Secrets = field(default_factory=dict)
    labels: Labels | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class SessionView(Struct, frozen=True, kw_only=True):
    """A session. `control_endpoint` is the path of the session in this API. What it used is shown of one session alone:
    `cpu_seconds` and `storage_bytes` of its sandbox while that runs, and `artifacts_count`.
    """

    id: str
    mode: SessionMode
    image: str
    cpu: str | None
    memory: str | None
    ephemeral_storage: str | None
    restore_snapshot_id: str | None
    status: ShownStatus
    ref: str | None
    control_endpoint: str
    workspace_path: str | None
    artifact_base_url: str
    workspace_uid: str | None
    workspace_name: str | None
    idle_timeout_sec: int
    max_lifetime_sec: int
    last_activity_at: Timestamp | None
    last_heartbeat_at: Timestamp | None
    expires_at: Timestamp | None
    error_message: str
    error_code: str | None
    metadata: dict[str, Any]
    snapshot_ids: list[str]
    created_at: Timestamp
    updated_at: Timestamp
    sandbox_id: str | None
    note: str | None
    cpu_seconds: float | None = None
    storage_bytes: int | None = None
    artifacts_count: int | None = None


class SessionQuery(Struct, frozen=True):
    """`all` has also sessions that failed or ended; `after` is the one that the header Link names."""

    all: bool = True
    after: Name | None = None
    limit: Limit = 1000


class CommandBody(Struct, frozen=True, kw_only=True):
    """A command: a list of words, or one text for ``sh -c``."""

    command: Command
    cwd: OptionalText | None = None
    env: Environment = field(default_factory=dict)
    timeout_sec: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    capture_stdout: bool = True
    capture_stderr: bool = True


class CommandOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a command. `exit_code` is 124 if its time was over, and 128 + n if signal n ended it. Bytes that
    are not UTF-8 are replaced. `truncated` says that more was written: the whole output is in the journal.
    """

    exit_code: int
    stdout: str
    stderr: str
    duration_sec: float
    timed_out: bool
    truncated: bool
    process_id: str
    error: str | None


class UploadBody(Struct, frozen=True, kw_only=True):
    """A small file, as text or base64. Directories that are missing are made."""

    path: Path
    content: str
    encoding: Literal["utf-8", "base64"] = "utf-8"


class Uploaded(Struct, frozen=True, kw_only=True):
    """A file that was written, or the reason why not. `exit_code` is that of a command that writes it: 0, or 1 if
    `stderr` says why the file cannot be written.
    """

    path: str
    size_bytes: int
    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""


class UploadQuery(Struct, frozen=True):
    """The file to write; a path that is not absolute begins at the session's working directory."""

    path: Path


class ContentQuery(Struct, frozen=True):
    """The file to read, and the name to suggest for it."""

    path: Path
    filename: Annotated[str, Meta(max_length=1024)] | None = None


class SnapshotBody(Struct, frozen=True, kw_only=True):
    """The files to take: those at or below `include_paths`, by default all, without `exclude_paths`. Paths that are not
    absolute begin at the workspace.
    """

    label: Annotated[str, Meta(max_length=1024)] | None = None
    include_paths: Annotated[list[Path], Meta(max_length=256)] = field(default_factory=list)
    exclude_paths: Annotated[list[Path], Meta(max_length=256)] = field(default_factory=list)


class ImportQuery(Struct, frozen=True):
    """The archive to import: a tar of the files of a workspace, or of a whole root, plain or compressed by gzip or
    zstd. Sandboxes that are restored from it run as those of `image`; Docker's need one. `files` says what it holds,
    if its names do not tell; `digest`, such as ``sha256:…``, is that of the body.
    """

    image: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    label: Name | None = None
    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$(?!\n)")] | None = None
    files: Literal["workspace", "root"] | None = None


class SnapshotView(Struct, frozen=True, kw_only=True):
    """A snapshot. `archive_path` is that of its archive in its store, `s3_key` the same if that is a bucket of S3."""

    id: str
    label: str | None
    s3_key: str
    archive_path: str
    size_bytes: int
    include_paths: list[str]
    exclude_paths: list[str]
    created_at: Timestamp
    status: str
    digest: str | None


class ExportBody(Struct, frozen=True, kw_only=True):
    """The file or directory to export; a directory becomes a ``tar.gz``. What is left out is guessed by `path`."""

    path: Path
    filename: OptionalText | None = None
    content_type: OptionalText | None = None


class ArtifactView(Struct, frozen=True, kw_only=True):
    """An exported file, which outlives the session's sandbox. `storage_path` is where it was in that. `download_url` is
    empty if neither the session nor the daemon names a base of such addresses; `content_url` is the path of its bytes
    in this API. `content` are the bytes, in base64, in the answer to an export of up to 64 KiB.
    """

    id: str
    filename: str
    content_type: str
    size_bytes: int
    storage_path: str
    download_url: str
    content_url: str
    created_at: Timestamp
    status: str
    digest: str | None
    content: bytes | None


class ListQuery(Struct, frozen=True):
    """One page; `after` is the one that the header Link names."""

    after: Name | None = None
    limit: Limit = 1000


class Snapshots(Struct, frozen=True, kw_only=True):
    """The snapshots of a session, newest first."""

    session_id: str
    snapshots: list[SnapshotView]


class Artifacts(Struct, frozen=True, kw_only=True):
    """The artifacts of a session, newest first."""

    session_id: str
    artifacts: list[ArtifactView]


class DebugConnection(Struct, frozen=True, kw_only=True):
    """The way of an administrator of the machine to the sandbox. `command` opens a shell in it."""

    id: str
    status: Literal["ready", "not_ready"]
    provider: str | None
    ref: str | None
    sandbox_id: str | None
    workspace_path: str | None
    command: list[str]
