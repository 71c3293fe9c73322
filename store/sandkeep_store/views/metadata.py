"""The view `metadata.json`: one document a sandbox, made from its state alone.

The first keys are those of the format that this one continues (`sandbox_id, created_timestamp, idle_timeout,
latest_checkpoint, latest_snapshot`); the rest is ours. `position` is that of the sandbox's last event, so that the same
log always gives the same bytes.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from sandkeep.protocol.clock import rfc3339
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import CheckpointSummary, SandboxState, SnapshotSummary

SCHEMA: Final = 1
FILE_NAME: Final = "metadata.json"
_OF_A_PROCESS: Final = (
    "process_id", "name", "command", "status", "started_at", "ended_at", "exit_code", "timed_out"
)  # fmt: skip


class Seen(msgspec.Struct, frozen=True):
    """The part of a document that a check needs: its log, and the last event in it."""

    log_id: str
    position: int


def document(sandbox: SandboxState, log_id: str, fence: int = 0) -> bytes | None:
    """The document's bytes, or None for a sandbox that is not made yet, or never was: it has no document.

    `fence` is the number of the lock under which it is written to where other daemons read it; 0 in the daemon's own.
    """
    if not sandbox.made:
        return None
    asked = sandbox.requested
    fields: dict[str, Any] = {
        "sandbox_id": sandbox.sandbox_id,
        "created_timestamp": rfc3339(sandbox.requested_us),
        "idle_timeout": asked.spec.idle_timeout_s,
        "latest_checkpoint": _latest(sandbox.checkpoints, "/"),
        "latest_snapshot": _latest(sandbox.snapshots),
        "schema": SCHEMA,
        "log_id": log_id,
        "position": sandbox.position,
        "fence": fence,
        "owner": asked.owner,
        "provider": asked.provider,
        "image_id": asked.image_id,
        "status": sandbox.status,
        "terminated_reason": sandbox.terminated_reason,
        "error": sandbox.error[1] if sandbox.error else None,
        "spec": asked.spec,
        "secrets": asked.secrets,
        "forked_from": asked.forked_from,
        "restored_from": sandbox.restored_from,
        "isolation": sandbox.isolation,
        "exec_count": sandbox.exec_count,
        "processes": [_process(process) for process in _shown(sandbox)],
        "snapshots": [_snapshot(kept) for kept in sandbox.snapshots],
        "checkpoints": [_checkpoint(kept) for kept in sandbox.checkpoints],
    }
    return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"


def _latest(kept: Sequence[SnapshotSummary | CheckpointSummary], end: str = "") -> dict[str, Any] | None:
    """Return the place of the last one: in a bucket, or below a directory of this machine."""
    if not kept:
        return None
    place = kept[-1].place
    return {"bucket": place.base if place.where in ("gcs", "s3") else None, "path": f"{place.path}{end}"}


def _checkpoint(kept: CheckpointSummary) -> dict[str, Any]:
    return {
        "checkpoint_id": kept.checkpoint_id,
        "created_at": rfc3339(kept.created_us),
        "name": kept.name,
        "uri": kept.place.uri,
        "size_bytes": kept.size_bytes,
    }


def _snapshot(kept: SnapshotSummary) -> dict[str, Any]:
    return {
        "snapshot_id": kept.snapshot_id,
        "created_at": rfc3339(kept.created_us),
        "kind": kept.kind,
        "parent_id": kept.parent_id,
        "name": kept.name,
        "uri": kept.place.uri,
        "digest": kept.digest,
        "size_bytes": kept.size_bytes,
    }


def _shown(sandbox: SandboxState) -> list[ProcessState]:
    """Those that run and the last named ones that ended, oldest first."""
    shown = [*sandbox.recent_named, *(process for process in sandbox.active.values() if process.named)]
    return sorted(shown, key=lambda process: (process.requested_us, process.process_id))


def _process(process: ProcessState) -> dict[str, Any]:
    view = process.view()
    return {key: getattr(view, key) for key in _OF_A_PROCESS}
