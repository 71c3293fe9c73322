"""Objects as AstraForge's API shows them."""

from math import ceil
from typing import Any, Final

from sandkeep.model import TIMED_OUT, Artifact, Copied, ExecResult, FileWritten, Session, Snapshot
from sandkeepd.http import quantities
from sandkeepd.http.bodies import (
    ArtifactView,
    CommandOutcome,
    DebugConnection,
    SessionView,
    ShownStatus,
    SnapshotView,
    Uploaded,
)
from sandkeepd.http.row import PREFIX

SESSIONS: Final = "/sessions/"
WORKSPACE_UID: Final = "workspace_uid"
"""The key of the workspace's name in a session's metadata."""

LABEL: Final = "label"
"""The label of a snapshot that has the words with which it was made."""

_NO_EXIT_CODE: Final = 125
_STATUSES: Final[dict[str, ShownStatus]] = {"starting": "starting", "ready": "ready", "failed": "failed"}
"""Statuses by those of a session: the others are ends."""


def path_of(session_id: str) -> str:
    """Return the path of a session in this API."""
    return f"{PREFIX}{SESSIONS}{session_id}/"


def session(found: Session) -> SessionView:
    """Show a session, in AstraForge's statuses. One that ended for a limit of time is terminated, with the reason in
    its metadata, and so is one whose sandbox is being ended: its next use waits for that.
    """
    spec, sandbox = found.spec, found.spec.sandbox
    own = dict(spec.metadata)
    workspace_uid = own.pop(WORKSPACE_UID, None)
    shown = {"latest_snapshot_id": found.latest_snapshot_id, "terminated_reason": found.terminated_reason}
    times = (found.created_at, found.started_at, found.last_activity_at, found.last_heartbeat_at, found.ended_at)
    return SessionView(
        id=found.session_id,
        mode=spec.mode,
        image=spec.image,
        cpu=quantities.shown_cpus(sandbox.cpus),
        memory=quantities.shown_size(sandbox.memory_bytes),
        ephemeral_storage=quantities.shown_size(sandbox.disk_bytes),
        restore_snapshot_id=found.restored_from,
        status=_STATUSES.get(found.status, "terminated"),
        ref=found.ref,
        control_endpoint=path_of(found.session_id),
        workspace_path=found.workspace_path,
        artifact_base_url=spec.artifact_base_url or "",
        workspace_uid=workspace_uid if isinstance(workspace_uid, str) else None,
        workspace_name=found.ref.rpartition("/")[2] if found.ref else None,
        idle_timeout_sec=ceil(spec.idle_timeout_s or 0),
        max_lifetime_sec=ceil(spec.max_lifetime_s or 0),
        last_activity_at=found.last_activity_at,
        last_heartbeat_at=found.last_heartbeat_at,
        expires_at=found.expires_at,
        error_message=found.error or "",
        error_code=found.error_code,
        metadata={**own, **{name: value for name, value in shown.items() if value is not None}},
        snapshot_ids=found.snapshot_ids[::-1],
        created_at=found.created_at,
        updated_at=max(time for time in times if time is not None),
        sandbox_id=found.sandbox_id,
        note=found.note,
    )


def debug_connection(found: Session) -> DebugConnection:
    """Show how an administrator reaches a session's sandbox."""
    return DebugConnection(
        id=found.session_id,
        status="ready" if found.status == "ready" else "not_ready",
        provider=found.provider,
        ref=found.ref,
        sandbox_id=found.sandbox_id,
        workspace_path=found.workspace_path,
        command=["sandkeep", "shell", found.sandbox_id] if found.sandbox_id else [],
    )


def outcome(found: ExecResult, *, stdout: bool, stderr: bool) -> CommandOutcome:
    """Show the outcome of a command, with the streams that were asked for."""
    code = TIMED_OUT if found.timed_out else found.exit_code
    return CommandOutcome(
        exit_code=_NO_EXIT_CODE if code is None else code,
        stdout=found.stdout.decode("utf-8", "replace") if stdout else "",
        stderr=found.stderr.decode("utf-8", "replace") if stderr else "",
        duration_sec=found.duration_s,
        timed_out=found.timed_out,
        truncated=(stdout and found.stdout_truncated) or (stderr and found.stderr_truncated),
        process_id=found.process_id,
        error=found.error,
    )


def uploaded(found: FileWritten | Copied) -> Uploaded:
    """Show a file that was written."""
    return Uploaded(path=found.path, size_bytes=found.size_bytes)


def artifact(session_id: str, found: Artifact) -> ArtifactView:
    """Show an artifact of a session."""
    return ArtifactView(
        id=found.artifact_id,
        filename=found.name,
        content_type=found.media_type,
        size_bytes=found.size_bytes,
        storage_path=found.path,
        download_url=found.download_url or "",
        content_url=f"{path_of(session_id)}artifacts/{found.artifact_id}/content/",
        created_at=found.created_at,
        status=found.status,
        digest=found.digest,
        content=found.data,
    )


def snapshot(found: Snapshot) -> SnapshotView:
    """Show a snapshot, with the first place of its archive."""
    place: Any = found.places[0] if found.places else None
    bucket = place is not None and place.where == "s3"
    return SnapshotView(
        id=found.snapshot_id,
        label=found.labels.get(LABEL, found.name),
        s3_key=place.path if bucket else "",
        archive_path=place.path if place is not None else "",
        size_bytes=found.size_bytes,
        include_paths=found.include,
        exclude_paths=found.exclude,
        created_at=found.created_at,
        status=found.status,
        digest=found.digest,
    )
