"""The lineage of sandboxes: the states of files that one descends from, and the nearest that several have in common.

A **state** is what a sandbox had at one moment, and is kept under a name: an image, a snapshot, a fork's files, the
files of a merge, or a point that was kept for a merge. A sandbox's life has **eras**: each begins with a state, the
first one with its own beginning, the others with a restore over its files. In an era a sandbox descends from what that
begins with, and from each state that was kept of it since. A state descends from what its sandbox descended from at
that moment; that of a merge, from the points of all branches. The files of a checkpoint cannot be read.

All of it is read from the views.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from sandkeep import ids
from sandkeep.model import BaseKind
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.state import State

NOW = 1 << 62


class Kept(Struct, frozen=True, kw_only=True):
    """A state that was kept at `time_us`. Its files are those of a `plan` above an image, those of the image itself if
    the plan is empty; without a plan it cannot be read any more.
    """

    state_id: str
    time_us: int
    image_id: str = ""
    plan: Mapping[str, Any] | None = None


class Era(NamedTuple):
    """A part of a sandbox's life: when it began, and with which state."""

    began_us: int
    kind: BaseKind
    state_id: str


class Life(NamedTuple):
    """A sandbox in one of its eras, before a moment."""

    sandbox: SandboxState
    era: Era
    until_us: int


def began_with(sandbox: SandboxState) -> tuple[BaseKind, str]:
    """Return the kind and the name of the state that a sandbox began with, or had restored last."""
    *_, last = eras(sandbox)
    return last.kind, last.state_id


def eras(sandbox: SandboxState) -> Iterator[Era]:
    """Yield the eras of a sandbox, the first one first."""
    asked = sandbox.requested
    if asked.fork_id is not None:
        is_merge = asked.fork_id.startswith(f"{ids.MERGE}_")
        yield Era(0, "merge" if is_merge else "fork", asked.fork_id)
    elif asked.restored_from is not None:
        yield Era(0, _kind_of(asked.restored_from), asked.restored_from)
    else:
        yield Era(0, "image", asked.image_id)
    own = sandbox.files_replaced[1 if asked.restored_from is not None else 0 :]  # the first is of its creation
    for replaced in own:
        yield Era(replaced.time_us, _kind_of(replaced.snapshot_id), replaced.snapshot_id)


def _kind_of(state_id: str) -> BaseKind:
    return "checkpoint" if state_id.startswith(f"{ids.CHECKPOINT}_") else "snapshot"


class Lineage:
    """The lineage of all sandboxes at one moment."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kept_of: dict[str, list[tuple[int, str]]] = {}
        """The states that were kept of each sandbox, with their times."""
        self._plans: dict[str, tuple[str, Mapping[str, Any]]] = {}
        """Image and plan of a sandbox that began with a state, by which it is read."""
        self._index()

    def _index(self) -> None:
        state = self._state
        for fork in state.forks.values():
            self._note(fork.sandbox_id, fork.requested_us, fork.fork_id)
        for snapshot in state.snapshots.values():
            is_whole = snapshot.has_workspace(state.sandboxes) and not snapshot.requested.exclude
            if snapshot.sandbox_id is not None and is_whole:
                self._note(snapshot.sandbox_id, snapshot.requested_us, snapshot.snapshot_id)
        for checkpoint in state.checkpoints.values():
            self._note(checkpoint.sandbox_id, checkpoint.requested_us, checkpoint.checkpoint_id)
        for merge in state.merges.values():
            for point in merge.points:
                self._note(point.sandbox_id, merge.requested_us, point.point_id)
                source = state.sandboxes.get(point.sandbox_id)
                if source is not None:
                    asked = source.requested
                    self._plans[point.point_id] = asked.image_id, {**asked.plan, **point.files}
        for sandbox in state.sandboxes.values():
            kind, name = began_with(sandbox)
            if kind not in ("image", "checkpoint") and not (sandbox.hidden and name in self._plans):
                self._plans[name] = sandbox.requested.image_id, sandbox.requested.plan

    def _note(self, sandbox_id: str, time_us: int, state_id: str) -> None:
        self._kept_of.setdefault(sandbox_id, []).append((time_us, state_id))

    def parents(self, sandbox: SandboxState) -> list[str]:
        """Return the other sandboxes of which the state was kept that a sandbox began with."""
        *_, last = eras(sandbox)
        found = {life.sandbox.sandbox_id for life in self._before(last)}
        return sorted(found - {sandbox.sandbox_id})

    def lives(self, sandbox: SandboxState) -> list[Life]:
        """Return all parts of lives that a sandbox's present files come from: its own first."""
        *_, last = eras(sandbox)
        seen: dict[tuple[str, int], Life] = {}
        left = [Life(sandbox, last, NOW)]
        while left:
            life = left.pop()
            key = life.sandbox.sandbox_id, life.era.began_us
            known = seen.get(key)
            if known is None or known.until_us < life.until_us:
                seen[key] = life
            if known is None:
                left += self._before(life.era)
        return list(seen.values())

    def ancestors(self, sandbox: SandboxState) -> dict[str, Kept]:
        """Return the states that a sandbox descends from, by their names."""
        found: dict[str, Kept] = {}
        for life in self.lives(sandbox):
            for time_us, state_id in self._kept_of.get(life.sandbox.sandbox_id, ()):
                if life.era.began_us <= time_us < life.until_us:
                    found[state_id] = self._kept(state_id, time_us)
            kind, name = life.era.kind, life.era.state_id
            found[name] = Kept(state_id=name, time_us=0, image_id=name, plan={}) if kind == "image" else self._kept(
                name, self._time_of(name)
            )  # fmt: skip
            image_id = life.sandbox.requested.image_id
            found[image_id] = Kept(state_id=image_id, time_us=0, image_id=image_id, plan={})
        return found

    def common(self, sandboxes: list[SandboxState]) -> list[Kept]:
        """Return the states that all of these descend from, the nearest first: a state is older than what descends from
        it.
        """
        first, *others = [self.ancestors(sandbox) for sandbox in sandboxes]
        shared = [kept for name, kept in first.items() if all(name in other for other in others)]
        return sorted(shared, key=lambda kept: (-kept.time_us, kept.state_id))

    def _before(self, era: Era) -> list[Life]:
        """Return the sandboxes as they were when the state was kept that an era begins with."""
        state = self._state
        if era.kind == "merge":
            merge = state.merges.get(era.state_id)
            # The points, which bear the time of the merge, are among what it descends from.
            of = [(branch, merge.requested_us + 1) for branch in merge.requested.branches.values()] if merge else []
        else:
            kept = (
                state.forks.get(era.state_id) or state.snapshots.get(era.state_id)
                or state.checkpoints.get(era.state_id)
            )  # fmt: skip
            of = [(kept.sandbox_id or "", kept.requested_us)] if kept is not None else []
        return [
            Life(sandbox, _era_at(sandbox, time_us), time_us)
            for sandbox_id, time_us in of
            if (sandbox := state.sandboxes.get(sandbox_id)) is not None
        ]

    def _time_of(self, state_id: str) -> int:
        state = self._state
        found = (
            state.forks.get(state_id) or state.snapshots.get(state_id) or state.merges.get(state_id)
            or state.checkpoints.get(state_id)
        )  # fmt: skip
        return found.requested_us if found is not None else 0

    def _kept(self, state_id: str, time_us: int) -> Kept:
        image_id, plan = self._plans.get(state_id, ("", None))
        return Kept(state_id=state_id, time_us=time_us, image_id=image_id, plan=plan)


def _era_at(sandbox: SandboxState, time_us: int) -> Era:
    """Return the era of a sandbox in which something was kept of it."""
    return max(era for era in eras(sandbox) if era.began_us <= time_us)
