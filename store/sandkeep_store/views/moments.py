"""The moments of a sandbox to which it can go back: its snapshots and checkpoints, with their times.

Pure functions over the views. New sources of moments are added to `moments`, and nowhere else.
"""

from collections.abc import Iterable, Iterator
from functools import partial

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
    found = [*_of_sources(state, sandbox), *_of_restores(state, sandbox)]
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


def _of_sources(state: State, sandbox: SandboxState) -> Iterator[Moment]:
    """Yield the moments of snapshots and checkpoints, each at its `snapshot.stored` or `checkpoint.stored`.

    The content is of a time between request and storage, known only to the daemon that packed it. Nothing in it is
    later than `stored`, so a caller who asks for that moment, or a later one, never gets data from the future. For the
    moment of the request that would not hold.
    """
    sources: list[SnapshotState | CheckpointState] = [*state.snapshots.values(), *state.checkpoints.values()]
    for source in sources:
        if source.sandbox_id == sandbox.sandbox_id and source.stored is not None:
            yield _moment(source, source.stored_position, source.stored_us)


def _of_restores(state: State, sandbox: SandboxState) -> Iterator[Moment]:
    """Yield the moments at which a sandbox got the files of a snapshot or checkpoint, of any sandbox. A fork began with
    files that nothing keeps, and earlier snapshots of its source are not of it.
    """
    for replaced in sandbox.files_replaced:
        source = state.snapshots.get(replaced.snapshot_id) or state.checkpoints.get(replaced.snapshot_id)
        if source is not None:
            yield _moment(source, replaced.position, replaced.time_us)


def _moment(source: SnapshotState | CheckpointState, position: int, time_us: int) -> Moment:
    moment = partial(
        Moment, owner=source.owner, position=position, time_us=time_us, status=source.status, name=source.requested.name
    )
    if isinstance(source, CheckpointState):
        return moment(kind="checkpoint", source_id=source.checkpoint_id)
    is_partial = bool(source.requested.include or source.requested.exclude)
    return moment(kind="snapshot", source_id=source.snapshot_id, partial=is_partial)
