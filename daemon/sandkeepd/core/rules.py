"""Rules: pure decisions, from the state and a command to the event to append or the error.

Nothing here waits, reads or writes. The tables of `sandkeep.lifecycle` say in which states an event may be appended.
"""

import json
import posixpath
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from sandkeep import events, ids
from sandkeep.errors import CallerError, DataError, SandkeepError, SetupError, StateError, error_from
from sandkeep.events import MAX_EVENT_BYTES
from sandkeep.lifecycle import SANDBOX
from sandkeep.model import Network, Place, SandboxSpec
from sandkeep.protocol.clock import rfc3339
from sandkeep.protocol.methods import (
    CheckpointCreate,
    ImageCreate,
    ProcessLaunch,
    SandboxCreate,
    SandboxExec,
    SnapshotCreate,
    SnapshotImport,
    SnapshotPromote,
)
from sandkeep_store.views.checkpoints import CheckpointState
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.locks import LockState
from sandkeep_store.views.moments import Moment, newest
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SAVING_S, SessionState
from sandkeep_store.views.snapshots import SnapshotState
from sandkeep_store.views.state import State
from sandkeepd.contract.image_sources import Source

STANDING: Final = SANDBOX.sources["sandbox.failed"]
"""The states of a sandbox that its provider has."""

SETTLED: Final = tuple(state for state in SANDBOX.states if state not in (*STANDING, *SANDBOX.pending))
"""The states in which nothing of a sandbox runs."""

READABLE: Final = SANDBOX.sources["snapshot.create_requested"]
"""The states of a sandbox, once it was made, in which its files are there and nobody replaces them."""

MAX_COMMAND_ON_RECORD: Final = 8 * 1024
MAX_COMMAND_BYTES: Final = 1024 * 1024
"""Words and variables together; Linux would not start a program with much more."""

MAX_SPEC_BYTES: Final = 48 * 1024
MAX_PATHS_BYTES: Final = 4 * 1024

LEAVING: Final = ("handing_over", "releasing")
"""Statuses of the lock of a shared sandbox that is being given up."""

WHY_NOT_READY: Final[dict[str, str]] = {
    "creating": "is still being made: wait until it runs",
    "suspending": "is being suspended: resume it",
    "suspended": "is suspended: resume it",
    "resuming": "is being resumed: wait until it runs",
    "restoring": "is being restored: wait until it runs",
    "stopping": "is being ended",
    "stopped": "has ended: create a new one",
    "failed": "failed: resume it, if its provider can restart it, or terminate it",
    "lost": "was lost by its provider: resume it, if that can restart it, or terminate it and create a new one",
}


def not_found(state: State, kind: str, name: str, field: str) -> CallerError:
    """Return the error for a missing object and for another owner's: it does not tell which."""
    return CallerError("not_found", f"there is no {kind} {name!r}{state.log.hint}", **{field: name})


def image(state: State, image_id: str) -> ImageState:
    """The image of that id, or of the older one that stands for it. Raises `not_found`."""
    found = state.images.get(image_id)
    while found is not None and found.reused is not None:
        found = state.images.get(found.reused)
    if found is None:
        raise not_found(state, "image", image_id, "image_id")
    return found


def ready_image(state: State, image_id: str) -> ImageState:
    """The same, of which sandboxes can be made. Raises `not_found` and `not_ready`."""
    found = image(state, image_id)
    if found.status != "ready":
        way = "wait until it is" if found.status == "creating" else "make it again"
        message = f"image {found.image_id} is {found.status}, not ready: {way}"
        raise StateError("not_ready", message, image_id=found.image_id, status=found.status)
    return found


def sandbox(state: State, sandbox_id: str) -> SandboxState:
    """The sandbox of that id. Raises `not_found`."""
    if sandbox_id not in state.sandboxes:
        raise not_found(state, "sandbox", sandbox_id, "sandbox_id")
    return state.sandboxes[sandbox_id]


def snapshot(state: State, snapshot_id: str) -> SnapshotState:
    """The snapshot of that id. Raises `not_found`."""
    if snapshot_id not in state.snapshots:
        raise not_found(state, "snapshot", snapshot_id, "snapshot_id")
    return state.snapshots[snapshot_id]


def checkpoint(state: State, checkpoint_id: str) -> CheckpointState:
    """The checkpoint of that id. Raises `not_found`."""
    if checkpoint_id not in state.checkpoints:
        raise not_found(state, "checkpoint", checkpoint_id, "checkpoint_id")
    return state.checkpoints[checkpoint_id]


def ready_snapshot(state: State, snapshot_id: str) -> SnapshotState:
    """The snapshot of that id, which can be restored. Raises `not_found` and `snapshot_not_ready`."""
    found = snapshot(state, snapshot_id)
    require_ready(found, "snapshot", snapshot_id)
    return found


def ready_checkpoint(state: State, checkpoint_id: str) -> CheckpointState:
    """The checkpoint of that id, which can be restored. Raises `not_found` and `snapshot_not_ready`."""
    found = checkpoint(state, checkpoint_id)
    require_ready(found, "checkpoint", checkpoint_id)
    return found


def require_ready(found: SnapshotState | CheckpointState, kind: str, name: str) -> None:
    """Raise `snapshot_not_ready` unless a snapshot or checkpoint can be used."""
    if found.status != "ready":
        why = {"creating": "is still being made: wait until it is ready", "failed": "failed: make another"}
        message = f"{kind} {name} {why.get(found.status, 'was deleted: choose another')}"
        raise StateError("snapshot_not_ready", message, status=found.status, **{f"{kind}_id": name})


def create_checkpoint(
    sandbox: SandboxState, command: CheckpointCreate, place: Place, facts: Mapping[str, str]
) -> events.CheckpointCreateRequested:
    """The intent to keep a sandbox with all that runs in it. Raises `not_ready`, `invalid`."""
    if not may(sandbox, "checkpoint.create_requested"):
        raise not_ready(sandbox)
    _require_small(command.labels)
    asked = sandbox.requested
    return events.CheckpointCreateRequested(
        owner=sandbox.owner,
        sandbox_id=sandbox.sandbox_id,
        image_id=asked.image_id,
        provider=asked.provider,
        spec=asked.spec,
        place=place,
        leave_running=command.leave_running and sandbox.status == "running",
        plan=asked.plan,
        secrets=asked.secrets,
        needs_image=asked.needs_image,
        facts=dict(facts),
        name=_new_name(command.name),
        labels=command.labels,
    )


def return_to(sandbox: SandboxState, checkpoint: CheckpointState) -> None:
    """Raise unless the sandbox can return to the checkpoint: `not_ready`, `invalid` for another sandbox's."""
    if not may(sandbox, "sandbox.restore_requested"):
        raise not_ready(sandbox)
    if checkpoint.sandbox_id != sandbox.sandbox_id:
        message = f"checkpoint_id: {checkpoint.checkpoint_id} is of {checkpoint.sandbox_id}: restore it into a new one"
        raise CallerError("invalid", message, field="checkpoint_id")


def moment(sandbox: SandboxState, found: Sequence[Moment], upto: int, until_us: int | None) -> Moment:
    """The newest of a sandbox's moments that can be used, at or before the one asked for. Raises `snapshot_missing`."""
    chosen = newest(found, upto, until_us)
    if chosen is not None:
        return chosen
    oldest = next((moment for moment in found if moment.status == "ready"), None)
    if oldest is None:
        message = f"sandbox {sandbox.sandbox_id} has no snapshot or checkpoint: create one before you need it"
        raise DataError("snapshot_missing", message, sandbox_id=sandbox.sandbox_id)
    message = (
        f"sandbox {sandbox.sandbox_id} has no snapshot or checkpoint of that time or earlier: "
        f"the oldest is {oldest.kind} {oldest.source_id}, at position {oldest.position}, {rfc3339(oldest.time_us)}"
    )
    raise DataError("snapshot_missing", message, sandbox_id=sandbox.sandbox_id, oldest=oldest.position)


def wanted_files(command: SnapshotCreate, workspace: str, root: str) -> SnapshotCreate:
    """Return a request whose paths begin where names in the archive do, at `root`: those that are not absolute begin at
    the workspace. Paths to include that leave nothing out are none.
    """
    if root == "/":
        command = replace(
            command, include=_from_root(command.include, workspace), exclude=_from_root(command.exclude, workspace)
        )
    return replace(command, include=[]) if _has_all(command.include, root) else command


def _from_root(paths: Sequence[str], workspace: str) -> list[str]:
    return ["/" + posixpath.normpath(posixpath.join(workspace, path)).lstrip("/") for path in paths]


def _has_all(paths: Sequence[str], root: str) -> bool:
    return any(posixpath.normpath(path) in (".", root) for path in paths)


def create_snapshot(
    sandbox: SandboxState, command: SnapshotCreate, places: list[Place], *, parent_id: str | None, root: str
) -> events.SnapshotCreateRequested:
    """The intent to keep the files of a sandbox."""
    _require_small(command.labels)
    for field, paths in (("include", command.include), ("exclude", command.exclude)):
        if sum(map(len, paths)) > MAX_PATHS_BYTES:
            most = MAX_PATHS_BYTES
            message = f"{field}: the paths are longer than {most} bytes together: name directories above them"
            raise CallerError("invalid", message, field=field)
    if _has_all(command.exclude, root):
        raise CallerError("invalid", "exclude: that would exclude everything: give paths below it", field="exclude")
    return events.SnapshotCreateRequested(
        owner=sandbox.owner,
        kind="incremental" if command.incremental or command.parent_id else "full",
        format=command.format,
        places=places,
        sandbox_id=sandbox.sandbox_id,
        image_id=sandbox.requested.image_id,
        provider=sandbox.requested.provider,
        parent_id=parent_id,
        name=_new_name(command.name),
        labels=command.labels,
        root=root,
        include=command.include,
        exclude=command.exclude,
    )


def import_snapshot(
    command: SnapshotImport, owner: str, places: list[Place], image: ImageState | None, root: str
) -> events.SnapshotCreateRequested:
    """The intent to keep an archive from elsewhere, whose names begin at `root`, to be run as `image` is."""
    _require_small(command.labels)
    if image is not None and image.status != "ready":
        raise StateError("not_ready", f"image {image.image_id} is {image.status}", image_id=image.image_id)
    return events.SnapshotCreateRequested(
        owner=owner,
        kind="full",
        format=command.format,
        places=places,
        name=_new_name(command.name),
        labels=command.labels,
        image_id=image.image_id if image is not None else None,
        provider=image.requested.provider if image is not None else None,
        root=root,
    )


def promote(
    snapshot: SnapshotState, owner: str, provider: str, command: SnapshotPromote
) -> events.ImageCreateRequested:
    """The intent to make an image of a snapshot."""
    _require_small(command.labels)
    return events.ImageCreateRequested(
        owner=owner,
        provider=provider,
        kind="snapshot",
        source=snapshot.snapshot_id,
        labels=command.labels,
        name=new_image_name(command.name) if command.name is not None else None,
    )


def may(subject: SandboxState | ImageState, event_type: str) -> bool:
    """Tell if an event of that type may follow in the present state of an object."""
    return subject.status in subject.lifecycle.sources[event_type]


def require_running(sandbox: SandboxState) -> None:
    """Raise `not_ready` unless processes can be started in it."""
    if not may(sandbox, "process.launch_requested"):
        raise not_ready(sandbox)


def shared_lock(state: State, sandbox_id: str) -> LockState | None:
    """Return the last lock that a shared sandbox had. An attempt to take it again that failed, or has no outcome yet,
    is none: what was lost stays lost.
    """
    had = (lock for lock in reversed(state.locks.values()) if lock.sandbox_id == sandbox_id and lock.fence is not None)
    return next(had, None)


def require_lock(state: State, sandbox: SandboxState) -> None:
    """Raise `not_ready` for a shared sandbox that another daemon may have, or is about to: it stays suspended."""
    lock = shared_lock(state, sandbox.sandbox_id) if sandbox.spec.shared is not None else None
    if lock is not None and lock.status != "held":
        why = f"is suspended, as its lock is {lock.status}: see `moved_to`"
        raise not_ready(sandbox, "is being handed over: wait" if lock.status in LEAVING else why)


def not_ready(sandbox: SandboxState, why: str = "") -> StateError:
    """The error of a sandbox in whose present state something cannot be done; `why`, if not because of that alone."""
    why = why or WHY_NOT_READY.get(sandbox.status, "is not in a state for that: try again")
    if sandbox.status == "failed" and sandbox.error is not None:
        way = why.partition(": ")[2] if sandbox.made else "create another"
        why = f"{'failed' if sandbox.made else 'was never created'} ({sandbox.error[1]}): {way}"
    if sandbox.status == "suspended" and sandbox.suspended_reason:
        why = f"is suspended, {sandbox.suspended_reason}: resume it, and remove files"
    moved: dict[str, Any] = {}
    if sandbox.moved_to is not None and sandbox.spec.shared is not None:
        moved = {"moved_to": sandbox.moved_to, "gcs_sandbox_id": sandbox.spec.shared.gcs_sandbox_id}
        at = f" at {', '.join(sandbox.moved_to)}" if sandbox.moved_to else ""
        why = f"goes on at another daemon{at}: attach to it there as {sandbox.spec.shared.gcs_sandbox_id}"
    return StateError(
        "not_ready",
        f"sandbox {sandbox.sandbox_id} {why}",
        sandbox_id=sandbox.sandbox_id,
        status=sandbox.status,
        **moved,
    )


def require_files(sandbox: SandboxState) -> None:
    """Raise `not_ready` unless the sandbox has files that can be read."""
    if sandbox.status not in READABLE:
        raise not_ready(sandbox)
    if not sandbox.made:
        raise not_ready(sandbox, "was never created: create another")


def require_secrets(sandbox: SandboxState, secrets: Container[str]) -> None:
    """Raise `secret_missing` unless all secrets that the sandbox had are there again."""
    missing = [name for name in sandbox.requested.secrets if name not in secrets]
    if missing:
        message = f"sandbox {sandbox.sandbox_id} had secrets, which are not stored: give {_some(missing)} again"
        raise StateError("secret_missing", message, sandbox_id=sandbox.sandbox_id, secrets=missing)


def revive(sandbox: SandboxState, secrets: Container[str], *, can_revive: bool) -> None:
    """Raise `not_ready` unless the sandbox can be restarted on its files, `secret_missing` without all it had."""
    if not may(sandbox, "sandbox.resume_requested"):
        raise not_ready(sandbox)
    if not sandbox.made:
        raise not_ready(sandbox, "was never created: create another")
    if not can_revive:
        cannot = f"the {sandbox.requested.provider} provider cannot restart it: terminate it and create a new one"
        raise not_ready(sandbox, f"{'was lost' if sandbox.status == 'lost' else 'failed'}, and {cannot}")
    require_secrets(sandbox, secrets)


def create_image(
    command: ImageCreate, owner: str, provider: str, source: Source, default_base: str | None
) -> events.ImageCreateRequested:
    """Return the intent to make an image of a source. `default_base` is the provider's base image for plain
    directories.
    """
    _require_small(command.labels)
    for field in ("ignore", "patterns"):
        if getattr(command, field) and source.kind != "directory":
            raise CallerError("invalid", f"{field}: it goes with a plain directory: leave it out", field=field)
    return events.ImageCreateRequested(
        owner=owner,
        provider=provider,
        kind=source.kind,
        source=source.source,
        labels=command.labels,
        clean=command.clean,
        base=source.base or default_base if source.kind == "directory" else None,
        dockerfile=source.dockerfile,
        ignore=command.ignore,
        patterns=command.patterns,
        ignore_files=command.ignore_files,
        name=new_image_name(command.name) if command.name is not None else None,
    )


def _new_name(name: str | None) -> str | None:
    return None if name is None else ids.check_new_name(name, "name")


def new_image_name(name: str) -> str:
    """Return a caller's name for an image as it is recorded; raise `invalid` for one that looks like an id."""
    return ids.image_name(ids.refuse_id(name, "name"))


def require_name(image: ImageState, name: str) -> None:
    """Raise `not_found` unless an image is called so."""
    if name not in image.names:
        names = f"is called {', '.join(image.names)}" if image.names else "has no name"
        message = f"name: image {image.image_id} is not called {name!r}: it {names}"
        raise CallerError("not_found", message, image_id=image.image_id, name=name)


def published_images(state: State, owner: str) -> dict[str, str]:
    """Return the references that are published to an owner, each with the digest of its image."""
    return {
        reference: image.created.digest
        for image in state.images.values()
        if image.status == "ready" and image.created is not None
        for reference in image.published_to(owner)
    }


def published_image(state: State, reference: str) -> ImageState | None:
    """Return the image that is published by a reference."""
    return next((image for image in state.images.values() if reference in image.published and not image.ended), None)


def same_content(state: State, image_id: str, digest: str) -> ImageState | None:
    """An older image, ready and of the same owner, provider and content, that can stand for a new one."""
    new = state.images[image_id]
    for other in state.images.values():
        if (
            other.status == "ready"
            and other.created is not None
            and other.created.digest == digest
            and other.owner == new.owner
            and other.requested.provider == new.requested.provider
            and other.requested.labels == new.requested.labels
            and set(other.requested.ignore) == set(new.requested.ignore)
        ):
            return other
    return None


def remove_image(state: State, image_id: str, pending: Sequence[str]) -> events.ImageRemoveRequested | None:
    """The intent to remove an image; None if it is gone or going. `pending` are sandboxes about to be made from it."""
    found = state.images[image_id]
    if found.status == "creating":
        raise StateError("not_ready", f"image {image_id} is still being made: wait, then remove it", image_id=image_id)
    if not may(found, "image.remove_requested"):
        return None
    if found.published:
        message = f"image {image_id} is published as {_some(list(found.published))}: withdraw that first"
        raise StateError("in_use", message, image_id=image_id, references=list(found.published))
    above = [s.snapshot_id for s in state.snapshots.values() if s.alive and s.needs_image(image_id)]
    if above:
        message = f"image {image_id} is the base of the incremental snapshot {_some(above)}: delete that, or promote it"
        raise StateError("in_use", message, image_id=image_id, snapshot_ids=above[:20])
    kept = [c.checkpoint_id for c in state.checkpoints.values() if c.alive and c.needs_image(image_id)]
    if kept:
        message = f"image {image_id} is needed to restore the checkpoint {_some(kept)}: delete that first"
        raise StateError("in_use", message, image_id=image_id, checkpoint_ids=kept[:20])
    merging = [m.merge_id for m in state.merges.values() if m.waits and m.requested.image_id == image_id]
    if merging:
        message = f"image {image_id} is needed for the merge {_some(merging)}: resolve that, or abandon it"
        raise StateError("in_use", message, image_id=image_id, merge_ids=merging[:20])
    users = [user.sandbox_id for user in state.image_users(image_id)] or list(pending)
    if users:
        raise StateError(
            "in_use",
            f"image {image_id} is used by {_some(users)}: terminate {'it' if len(users) == 1 else 'them'} first",
            image_id=image_id,
            sandbox_ids=users[:20],
        )
    return events.ImageRemoveRequested()


def create_sandbox(
    state: State, command: SandboxCreate, *, network: Network = "none", memory_bytes: int | None = None
) -> tuple[ImageState, SandboxSpec]:
    """Check a request for a new sandbox and return its image and full spec. `network` and `memory_bytes` are the
    defaults.
    """
    source = ready_image(state, command.image_id)
    made_for = source.requested.provider
    if command.provider not in (None, made_for):
        raise SetupError(
            "not_supported",
            f"image {source.image_id} was made for the provider {made_for!r}: make one for {command.provider!r} first",
            provider=command.provider,
        )
    return source, sandbox_spec(command, network=network, memory_bytes=memory_bytes)


def sandbox_spec(command: SandboxCreate, *, network: Network, memory_bytes: int | None) -> SandboxSpec:
    """Return the full spec of a requested sandbox, as `create_sandbox` does, whatever its image."""
    spec = SandboxSpec(
        cpus=command.cpus,
        memory_bytes=command.memory_bytes or memory_bytes,
        pids=command.pids,
        disk_bytes=command.disk_bytes,
        network=command.network or network,
        user=command.user,
        read_only=command.read_only,
        working_dir=command.working_dir,
        isolation=command.isolation,
        volumes=command.volumes,
        env=command.env,
        labels=command.labels,
        idle_timeout_s=command.idle_timeout_s,
        max_lifetime_s=command.max_lifetime_s,
        writable_root=command.writable_root,
    )
    if spec.writable_root and spec.read_only:
        message = "writable_root: with read_only nothing can be written: leave one of them out"
        raise CallerError("invalid", message, field="writable_root")
    if _size(spec.env) + _size(spec.labels) > MAX_SPEC_BYTES:
        field = max("env", "labels", key=lambda name: _size(getattr(spec, name)))
        raise _too_large(field, "variables and labels together are")
    return spec


def with_lifetime(
    spec: SandboxSpec, session: SessionState | None, *, default_s: float | None, longest_s: float | None, keep_s: float
) -> SandboxSpec:
    """Return the spec with the lifetime of a sandbox, by the default and the maximum of its provider, if it has any.

    The sandbox of a session has the longest life of the session, and then time to be saved: `keep_s`, in which that
    may fail, and more.
    """
    if default_s is None and longest_s is None:
        return spec
    asked_s = spec.max_lifetime_s if session is None else session.spec.max_lifetime_s
    if session is None and asked_s is not None:
        return spec
    life_s = default_s if asked_s is None else asked_s
    if life_s is not None and session is not None:
        life_s += keep_s + SAVING_S
    return replace(spec, max_lifetime_s=min(each for each in (life_s, longest_s) if each is not None))


def asked_spec(asked: events.SandboxCreateRequested | events.CheckpointCreateRequested) -> SandboxSpec:
    """Return the spec that a sandbox was asked for with, for others like it. Earlier daemons recorded the default disk
    limit as if it had been asked for: a disk of that size would be reserved for each of them, or refused by gVisor.
    """
    if asked.provider in ("local", "gvisor") and "own_disk" not in asked.plan:
        return replace(asked.spec, disk_bytes=None)
    return asked.spec


def like(spec: SandboxSpec, labels: Mapping[str, str], env: Mapping[str, str] | None = None) -> SandboxSpec:
    """The same as another sandbox was asked to be, with labels and variables besides. It belongs to no session, and is
    not shared.
    """
    together = {"labels": {**spec.labels, **labels}, "env": {**spec.env, **(env or {})}}
    made = replace(spec, **together, session_id=None, shared=None)
    if _size(made.env) + _size(made.labels) > MAX_SPEC_BYTES:
        raise _too_large("labels" if labels else "env", "variables and labels together are")
    return made


def _require_small(labels: Mapping[str, str]) -> None:
    if _size(labels) > MAX_SPEC_BYTES:
        raise _too_large("labels", "they are")


def _too_large(field: str, what: str) -> CallerError:
    message = f"{field}: {what} larger than {MAX_SPEC_BYTES} bytes: put long values into a file"
    return CallerError("invalid", message, field=field)


def argv_of(command: Sequence[str] | str) -> list[str]:
    """Return the argv of a command: a text is a script for the shell."""
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)


def launch(
    sandbox: SandboxState, command: ProcessLaunch | SandboxExec, name: str | None, *, taken: bool = False
) -> events.ProcessLaunchRequested:
    """The intent to start a process. The name of one that has ended is free; `taken`: another is about to use it."""
    require_running(sandbox)
    holder = sandbox.named.get(name) if name is not None else None
    if (holder is not None and not holder.ended) or taken:
        raise StateError(
            "conflict",
            f"process {name!r} of sandbox {sandbox.sandbox_id} has not ended: choose another name, or kill it first",
            sandbox_id=sandbox.sandbox_id,
            name=name,
        )
    _new_name(name)
    if _bytes(argv_of(command.command), command.env) > MAX_COMMAND_BYTES:
        sentence = f"command: with its variables it is larger than {MAX_COMMAND_BYTES} bytes: put parts into files"
        raise CallerError("invalid", sentence, field="command")
    shown, cut = _cut(argv_of(command.command))
    return events.ProcessLaunchRequested(
        sandbox_id=sandbox.sandbox_id,
        name=name,
        command=shown,
        command_cut=cut,
        working_dir=command.working_dir,
        env=_names(command.env),
        secrets=sorted(command.secrets),
        stdin=command.stdin is not None and command.stdin is not False,
        timeout_s=command.timeout_s,
        durable=command.durable,
        tty=isinstance(command, ProcessLaunch) and command.tty,
    )


def restore(sandbox: SandboxState, snapshot: SnapshotState, secrets: Container[str], *, end_processes: bool) -> None:
    """Raise unless the sandbox's files can be replaced by those of the snapshot: `not_ready`, `secret_missing`,
    `in_use` while processes run in it that are not to be ended, `invalid` for another provider's.
    """
    if not may(sandbox, "sandbox.restore_requested"):
        raise not_ready(sandbox)
    if not sandbox.made:
        raise not_ready(sandbox, "was never created: create another")
    require_secrets(sandbox, secrets)
    provider = sandbox.requested.provider
    if snapshot.requested.provider not in (None, provider):
        made_by = snapshot.requested.provider
        message = f"snapshot_id: {snapshot.snapshot_id} is of the {made_by} provider, not {provider}"
        raise CallerError("invalid", message, field="snapshot_id")
    if sandbox.active and not end_processes:
        names = [process.name for process in sandbox.active.values()]
        message = f"in sandbox {sandbox.sandbox_id} run {_some(names)}: kill them first, or give end_processes"
        raise StateError("in_use", message, sandbox_id=sandbox.sandbox_id, processes=names[:20])


def failure_of(process: ProcessState) -> SandkeepError:
    """The error that a process which was not started is answered with."""
    code, message = process.error or ("internal", "the process was lost")
    return error_from(code, message, {"sandbox_id": process.sandbox_id, "process_id": process.process_id})


def _cut(command: Sequence[str]) -> tuple[list[str], bool]:
    """The first words of a command, as many characters as go on record, and whether that cut anything."""
    shown: list[str] = []
    room = MAX_COMMAND_ON_RECORD
    for word in command:
        piece = word if len(json.dumps(word)) <= room else word[: room // len(json.dumps("\x01")) + 1]
        shown.append(piece)
        room -= len(json.dumps(piece)) + 1
        if room <= 0 or len(piece) < len(word):
            break
    return shown, shown != list(command)


def _bytes(command: Sequence[str], env: Mapping[str, str]) -> int:
    return sum(len(text.encode()) for text in (*command, *env, *env.values()))


def _names(env: Mapping[str, str]) -> list[str]:
    """The names of the variables, as many as fit well into an event."""
    names: list[str] = []
    room = MAX_EVENT_BYTES // 4
    for name in sorted(env):
        room -= len(name) + 3
        if room < 0:
            return [*names, "…"]
        names.append(name)
    return names


def _size(values: Mapping[str, str]) -> int:
    return len(json.dumps(values, ensure_ascii=False).encode())


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
