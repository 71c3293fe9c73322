"""The metadata of a shared sandbox: the document by which daemons hand it to each other.

It continues the format of `metadata`. The keys ``sandbox_id`` (which all daemons know it by), ``created_timestamp``,
``idle_timeout``, ``latest_checkpoint``, ``latest_snapshot``, and the later names ``latest_sandbox_checkpoint``,
``enable_sandbox_checkpoint``, ``enable_sandbox_handoff`` and ``enable_idle_timeout_auto_checkpoint`` are those of the
format of wlhee/cloud-run-sandbox, in both of its generations, so that its readers find what they need. ``shared`` is
ours. Unknown keys are ignored.

What is read comes from a bucket that others can write to: it is checked here for its form, and by whoever uses it for
its meaning.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, field

from sandkeep.errors import DataError
from sandkeep.model import Place, SandboxSpec, SavedSandbox, SharedImage
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.buckets.config import is_path
from sandkeep_store.views.locks import LockState
from sandkeep_store.views.metadata import document
from sandkeep_store.views.sandboxes import CheckpointSummary, SandboxState, SnapshotSummary
from sandkeep_store.views.state import State

BucketOf = Callable[[str, str], str]
"""Returns the bucket by which other daemons know a place, by its `where` and `base`."""

REMOVED: Final = ("stopped", "requested")
"""Status and reason of a sandbox that its owner has terminated: nothing is left to attach to."""


class Refused(Struct, frozen=True, kw_only=True):
    """The daemon that has the sandbox could not give it up to the owner `waiter` of the lock's document."""

    waiter: str | None
    code: str
    message: str


class Shared(Struct, frozen=True, kw_only=True):
    """Our part of the document. `addresses` are those of the stream server of the daemon that has the sandbox."""

    spec: SandboxSpec
    provider: str
    image: SharedImage | None = None
    saved: SavedSandbox | None = None
    secrets: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    refused: Refused | None = None


class Saved(Struct, frozen=True, kw_only=True):
    """A checkpoint or snapshot in a foreign document."""

    path: str
    bucket: str | None = None


class SharedMetadata(Struct, frozen=True, kw_only=True):
    """A document as it is read: of ours, or of another program, which has no `shared`."""

    sandbox_id: str
    created_timestamp: str | float
    idle_timeout: float | None = None
    latest_checkpoint: Saved | None = None
    latest_sandbox_checkpoint: Saved | None = None
    latest_snapshot: Saved | None = None
    enable_sandbox_checkpoint: bool = False
    enable_sandbox_handoff: bool = False
    enable_idle_timeout_auto_checkpoint: bool = False
    fence: Annotated[int, Meta(ge=0)] = 0
    log_id: str = ""
    status: str = ""
    terminated_reason: str | None = None
    shared: Shared | None = None

    @property
    def is_removed(self) -> bool:
        """True if its owner has terminated it."""
        return (self.status, self.terminated_reason) == REMOVED


def decode(content: bytes, place: str) -> SharedMetadata:
    """Parse a document and check its form. Raises `snapshot_corrupt`, naming the `place`."""
    try:
        found = msgspec.json.decode(content, type=SharedMetadata)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(place, str(error)[:200]) from None
    saved = found.shared.saved if found.shared is not None else None
    if saved is not None and min([saved.size_bytes, *(file.size_bytes for file in saved.files)]) < 0:
        raise _damaged(place, "a size in it is negative")
    paths = [saved.path, *(file.name for file in saved.files)] if saved is not None else []
    image = found.shared.image if found.shared is not None else None
    paths += [image.path] if image is not None and image.path is not None else []
    wrong = next((path for path in paths if not is_path(path)), None)
    if wrong is not None or any("/" in file.name for file in (saved.files if saved is not None else ())):
        raise _damaged(place, f"a path in it, {wrong or 'of a file'!r}, leads elsewhere")
    return found


def _damaged(place: str, why: str) -> DataError:
    message = f"{place} is not valid metadata of a shared sandbox ({why}): find out who wrote it"
    return DataError("snapshot_corrupt", message, place=place)


def shared_document(
    state: State, sandbox: SandboxState, log_id: str, lock: LockState, addresses: Sequence[str], bucket_of: BucketOf
) -> bytes | None:
    """Return the document of a shared sandbox under its lock; None for one that was never made."""
    plain, sharing, fence = document(sandbox, log_id, lock.fence or 0), sandbox.spec.shared, lock.fence or 0
    if plain is None or sharing is None:
        return None
    saved = saved_of(state, sandbox, bucket_of)
    fields: dict[str, Any] = msgspec.json.decode(plain)
    latest = _latest(state, sandbox, bucket_of)
    refused = None
    if lock.refused is not None and lock.handover is not None:
        refused = Refused(waiter=lock.handover.waiter, code=lock.refused[0], message=lock.refused[1])
    fields |= {
        "sandbox_id": sharing.gcs_sandbox_id,
        "local_sandbox_id": sandbox.sandbox_id,
        "created_timestamp": sharing.created_at or rfc3339(sandbox.requested_us),
        "idle_timeout": sandbox.spec.idle_timeout_s or 0,
        "latest_checkpoint": latest["checkpoint"],
        "latest_sandbox_checkpoint": latest["checkpoint"],
        "latest_snapshot": latest["snapshot"],
        "enable_sandbox_checkpoint": sharing.is_movable,
        "enable_sandbox_handoff": sharing.enable_handoff,
        "enable_idle_timeout_auto_checkpoint": sharing.enable_checkpoint_at_idle,
        "fence": fence,
        "shared": Shared(
            spec=sandbox.spec, provider=sandbox.requested.provider, image=sandbox.requested.first_image, saved=saved,
            secrets=sandbox.requested.secrets, addresses=list(addresses), refused=refused,
        ),
    }  # fmt: skip
    return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"


def saved_of(state: State, sandbox: SandboxState, bucket_of: BucketOf) -> SavedSandbox | None:
    """Return the newest checkpoint or snapshot of a shared sandbox that other daemons find; the one that it was
    attached with, if none was made since.
    """
    made = [*_checkpoints(state, sandbox, bucket_of), *_snapshots(state, sandbox, bucket_of)]
    return max(made, key=lambda one: one.created_at, default=sandbox.requested.saved)


def _latest(state: State, sandbox: SandboxState, bucket_of: BucketOf) -> dict[str, dict[str, str] | None]:
    before = sandbox.requested.saved
    found: dict[str, SavedSandbox | None] = {"checkpoint": None, "snapshot": None}
    if before is not None:
        found[before.kind] = before
    for one in (*_checkpoints(state, sandbox, bucket_of), *_snapshots(state, sandbox, bucket_of)):
        found[one.kind] = one
    ends = {"checkpoint": "/", "snapshot": ""}
    return {
        kind: {"bucket": one.bucket, "path": one.path + ends[kind]} if one is not None else None
        for kind, one in found.items()
    }


def _checkpoints(state: State, sandbox: SandboxState, bucket_of: BucketOf) -> list[SavedSandbox]:
    found = []
    for kept in sandbox.checkpoints:
        checkpoint = state.checkpoints.get(kept.checkpoint_id)
        if checkpoint is not None and checkpoint.stored is not None and _is_shared(kept.place):
            common = _common(sandbox, kept, bucket_of)
            facts, files = checkpoint.requested.facts, checkpoint.stored.files
            found.append(SavedSandbox(kind="checkpoint", id=kept.checkpoint_id, files=files, facts=facts, **common))
    return found


def _snapshots(state: State, sandbox: SandboxState, bucket_of: BucketOf) -> list[SavedSandbox]:
    found = []
    for kept in sandbox.snapshots:
        snapshot = state.snapshots.get(kept.snapshot_id)
        if snapshot is None or snapshot.here is not None or not _is_shared(kept.place):
            continue
        if snapshot.requested.kind == "full" and not snapshot.requested.include:
            common = _common(sandbox, kept, bucket_of)
            saved = SavedSandbox(
                kind="snapshot", id=kept.snapshot_id, format=snapshot.format, digest=kept.digest, **common
            )
            found.append(saved)
    return found


def _common(sandbox: SandboxState, kept: SnapshotSummary | CheckpointSummary, bucket_of: BucketOf) -> dict[str, Any]:
    return {
        "path": kept.place.path,
        "bucket": bucket_of(kept.place.where, kept.place.base),
        "created_at": rfc3339(kept.created_us),
        "size_bytes": kept.size_bytes,
        "processes": _running(sandbox),
    }


def _running(sandbox: SandboxState) -> list[str]:
    return sorted(process.name for process in sandbox.active.values())[:100]


def _is_shared(place: Place) -> bool:
    return place.where in ("mount", "gcs", "s3")
