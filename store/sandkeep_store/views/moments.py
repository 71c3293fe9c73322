"""The moments of a sandbox to which it can go back: its snapshots and checkpoints, with their times.

Pure functions over the views. New sources of moments are added to `moments`, and nowhere else.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from sandkeep import model
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.views.checkpoints import CheckpointState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import SnapshotState
from sandkeep_store.views.state import State


class Moment(Struct, frozen=True, kw_only=True, gc=False):
    """A state of the sandbox at `position`, held by `source_id`, which is `owner`'s. It can be used only while its
    source is ``ready``.
    """

    kind: model.MomentKind
    source_id: str
    owner: str
    position: int
    time_us: int
    status: str
    name: str | None = None
    partial: bool = False

    def view(self) -> model.Moment:
        """The moment as readers see it."""
        return model.Moment(
            kind=self.kind,
            source_id=self.source_id,
            position=self.position,
            time=rfc3339(self.time_us),
            status=self.status,
            name=self.name,
            partial=self.partial,
        )


def moments(state: State, sandbox: SandboxState) -> list[Moment]:
    """The moments of a sandbox in the order of the log, also those whose source was deleted since."""
    found = [*_of_snapshots(state, sandbox), *_of_checkpoints(state, sandbox), *_of_restores(state, sandbox)]
    return sorted(found, key=lambda moment: moment.position)


def newest(found: Iterable[Moment], upto: int, until_us: int | None = None) -> Moment | None:
    """The last of those that can be used, at or before a position and, with `until_us`, a time.

    A clock may have been set back. Then the order of the log counts, not that of its times.
    """
    usable = [
        moment
        for moment in found
        if moment.status == "ready" and moment.position <= upto and (until_us is None or moment.time_us <= until_us)
    ]
    return usable[-1] if usable else None


def _of_snapshots(state: State, sandbox: SandboxState) -> Iterator[Moment]:
    """Yield the moments of snapshots, each at its `snapshot.stored`.

    The content is of a time between request and storage, known only to the daemon that packed it. Nothing in it is
    later than `stored`, so a caller who asks for that moment, or a later one, never gets data from the future. For the
    moment of the request that would not hold.
    """
    for snapshot in state.snapshots.values():
        if snapshot.sandbox_id == sandbox.sandbox_id and snapshot.stored is not None:
            yield _moment(snapshot, snapshot.stored_position, snapshot.stored_us)


def _of_checkpoints(state: State, sandbox: SandboxState) -> Iterator[Moment]:
    """The same of a checkpoint: that of `checkpoint.stored`."""
    for checkpoint in state.checkpoints.values():
        if checkpoint.sandbox_id == sandbox.sandbox_id and checkpoint.stored is not None:
            yield _of_checkpoint(checkpoint, checkpoint.stored_position, checkpoint.stored_us)


def _of_checkpoint(checkpoint: CheckpointState, position: int, time_us: int) -> Moment:
    return Moment(
        kind="checkpoint",
        source_id=checkpoint.checkpoint_id,
        owner=checkpoint.owner,
        position=position,
        time_us=time_us,
        status=checkpoint.status,
        name=checkpoint.requested.name,
    )


def _of_restores(state: State, sandbox: SandboxState) -> Iterator[Moment]:
    """Yield the moments at which a sandbox got the files of a snapshot or checkpoint, of any sandbox. A fork began with
    files that nothing keeps, and earlier snapshots of its source are not of it.
    """
    for replaced in sandbox.files_replaced:
        snapshot = state.snapshots.get(replaced.snapshot_id)
        if snapshot is not None:
            yield _moment(snapshot, replaced.position, replaced.time_us)
        checkpoint = state.checkpoints.get(replaced.snapshot_id)
        if checkpoint is not None:
            yield _of_checkpoint(checkpoint, replaced.position, replaced.time_us)


def _moment(snapshot: SnapshotState, position: int, time_us: int) -> Moment:
    asked = snapshot.requested
    return Moment(
        kind="snapshot",
        source_id=snapshot.snapshot_id,
        owner=snapshot.owner,
        position=position,
        time_us=time_us,
        status=snapshot.status,
        name=asked.name,
        partial=bool(asked.include or asked.exclude),
    )
