"""The lineage of sandboxes: the states of files that one descends from, and the nearest that several have in common.

A **state** is what a sandbox had at one moment, and is kept under a name: an image, a snapshot, a fork's files, the
files of a merge, or a point that was kept for a merge. A sandbox descends from the state that it began with, and from
each that was kept of it since, as it had just that then. A state descends from what the sandbox that it was kept of
descended from at that moment; one that was merged, from the points of all its branches.

All of it is read from the views.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from sandkeep.model import BaseKind
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.state import State


class Kept(Struct, frozen=True, kw_only=True):
    """A state of the files of `sandbox_id`, kept at `time_us`. It is that of a plan with these `files` above an image;
    with neither `files` nor `plan` it cannot be read any more.
    """

    state_id: str
    time_us: int
    image_id: str = ""
    plan: Mapping[str, Any] | None = None


def began_with(sandbox: SandboxState) -> tuple[BaseKind, str]:
    """Return the kind and the name of the state that a sandbox began with, or had restored last."""
    asked = sandbox.requested
    if asked.fork_id is not None and not sandbox.restored_us:
        return ("merge" if asked.fork_id.startswith("mrg_") else "fork"), asked.fork_id
    if sandbox.restored_from is not None:
        return "snapshot", sandbox.restored_from
    return "image", asked.image_id


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
            if snapshot.sandbox_id is not None and not (snapshot.requested.include or snapshot.requested.exclude):
                self._note(snapshot.sandbox_id, snapshot.requested_us, snapshot.snapshot_id)
        for merge in state.merges.values():
            for point in merge.points:
                self._note(point.sandbox_id, merge.requested_us, point.point_id)
                source = state.sandboxes.get(point.sandbox_id)
                if source is not None:
                    asked = source.requested
                    self._plans[point.point_id] = asked.image_id, {**asked.plan, **point.files}
        for sandbox in state.sandboxes.values():
            kind, name = began_with(sandbox)
            if kind != "image" and not (sandbox.hidden and name in self._plans):
                self._plans[name] = sandbox.requested.image_id, sandbox.requested.plan

    def _note(self, sandbox_id: str, time_us: int, state_id: str) -> None:
        self._kept_of.setdefault(sandbox_id, []).append((time_us, state_id))

    def parents(self, sandbox: SandboxState) -> list[str]:
        """Return the sandboxes of which the state was kept that a sandbox began with."""
        kind, name = began_with(sandbox)
        if kind == "merge":
            merge = self._state.merges.get(name)
            return sorted(merge.requested.branches.values()) if merge is not None else []
        if kind == "fork":
            return [sandbox.requested.forked_from] if sandbox.requested.forked_from is not None else []
        snapshot = self._state.snapshots.get(name) if kind == "snapshot" else None
        return [snapshot.sandbox_id] if snapshot is not None and snapshot.sandbox_id is not None else []

    def ancestors(self, sandbox: SandboxState) -> dict[str, Kept]:
        """Return the states that a sandbox descends from, by their names."""
        found: dict[str, Kept] = {}
        for kept in self._before(sandbox, 1 << 62, set()):
            known = found.get(kept.state_id)
            if known is None or known.time_us < kept.time_us:
                found[kept.state_id] = kept
        return found

    def common(self, sandboxes: list[SandboxState]) -> list[Kept]:
        """Return the states that all of these descend from, the nearest first: a state is older than what descends from
        it.
        """
        first, *others = [self.ancestors(sandbox) for sandbox in sandboxes]
        shared = [kept for name, kept in first.items() if all(name in other for other in others)]
        return sorted(shared, key=lambda kept: (-kept.time_us, kept.state_id))

    def _before(self, sandbox: SandboxState, before_us: int, seen: set[tuple[str, int]]) -> Iterator[Kept]:
        """Yield the states that a sandbox descended from at a moment."""
        if (sandbox.sandbox_id, before_us) in seen:
            return
        seen.add((sandbox.sandbox_id, before_us))
        for time_us, state_id in self._kept_of.get(sandbox.sandbox_id, ()):
            if sandbox.restored_us <= time_us < before_us:
                yield self._kept(state_id, time_us)
        kind, name = began_with(sandbox)
        if kind == "image":
            yield Kept(state_id=name, time_us=0, image_id=name, plan={})
            return
        born_us = min(sandbox.requested_us, before_us)
        yield self._kept(name, self._time_of(name, born_us))
        if kind == "merge":
            yield from self._before_merge(name, seen)
        else:
            yield from self._before_source(sandbox, name, seen)
        yield Kept(state_id=sandbox.requested.image_id, time_us=0, image_id=sandbox.requested.image_id, plan={})

    def _before_source(self, sandbox: SandboxState, name: str, seen: set[tuple[str, int]]) -> Iterator[Kept]:
        for parent in self.parents(sandbox):
            source = self._state.sandboxes.get(parent)
            if source is not None:
                yield from self._before(source, self._time_of(name, sandbox.requested_us), seen)

    def _before_merge(self, merge_id: str, seen: set[tuple[str, int]]) -> Iterator[Kept]:
        merge = self._state.merges.get(merge_id)
        for point in merge.points if merge is not None else ():
            assert merge is not None
            yield self._kept(point.point_id, merge.requested_us)
            branch = self._state.sandboxes.get(point.sandbox_id)
            if branch is not None:
                yield from self._before(branch, merge.requested_us, seen)

    def _time_of(self, state_id: str, otherwise_us: int) -> int:
        state = self._state
        found = state.forks.get(state_id) or state.snapshots.get(state_id) or state.merges.get(state_id)
        return found.requested_us if found is not None else otherwise_us

    def _kept(self, state_id: str, time_us: int) -> Kept:
        image_id, plan = self._plans.get(state_id, ("", None))
        return Kept(state_id=state_id, time_us=time_us, image_id=image_id, plan=plan)
