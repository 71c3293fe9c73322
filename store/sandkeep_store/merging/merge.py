"""Merge of any number of branches of a tree.

Each path is decided by itself; then the paths are made to fit together: a directory stays while something in it does,
nothing lies beneath a file, and names that differ only in case do not meet unnoticed. The order of the branches does
not matter. As in git, a directory is deleted only if nothing is left in it.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from sandkeep.errors import CallerError
from sandkeep_store.archives.tar.members import TOP
from sandkeep_store.archives.trees.changes import parent_of, tree_order
from sandkeep_store.archives.trees.tree import is_in
from sandkeep_store.merging.compare import Change, changes
from sandkeep_store.merging.content import no_progress
from sandkeep_store.merging.contents import TreeContents
from sandkeep_store.merging.decide import Decider, Undecided
from sandkeep_store.merging.describe import Describer
from sandkeep_store.merging.model import Conflict, ConflictKind, Decision, Dropped, Merge, Policy
from sandkeep_store.merging.record import Blobs, Spool
from sandkeep_store.merging.trees import Entry, Progress, TreeState, look_up


def merge(
    base: TreeState,
    branches: Mapping[str, TreeState],
    policy: Policy | None = None,
    *,
    spool: int,
    blobs: int,
    ignore: Collection[bytes] = (),
    progress: Progress = no_progress,
) -> Merge:
    """Merge branches of a tree.

    `spool` is an open, unnamed file for merged texts, and `blobs` an open directory for the contents of conflicts; the
    caller makes both durable. `ignore` and `progress` are those of `compare.changes`. Raises `permission_denied` for
    what cannot be read, `invalid` for a policy that names no branch, `conflict` for files that change meanwhile, and
    `storage_unavailable`. Blocks.
    """
    policy = policy or Policy()
    for name in [policy.branch] * (policy.rule == "ours") + [*policy.takes.values()]:
        if not name or name not in branches:
            raise CallerError(
                "invalid", f"policy: there is no branch {name!r}: use one of those merged", field="policy"
            )
    ordered = {name: branches[name] for name in sorted(branches)}
    changed = {name: changes(base, state, ignore, progress) for name, state in ordered.items()}
    views = {name: state.view for name, state in ordered.items()}
    decider = Decider(TreeContents(base.view, views, Spool(spool), progress), policy)
    merger = _Merger(base.view, views, changed, policy, decider)
    merger.run()
    return merger.result(Describer(base.view, views, Blobs(blobs, progress)))


class _Owned(Struct, frozen=True):
    """A conflict that owns paths with all beneath them, and the decisions there without it."""

    kind: ConflictKind
    paths: tuple[bytes, ...]
    merged: dict[bytes, Decision]


class _Merger:
    """The state of a merge."""

    def __init__(
        self, base: int, views: Mapping[str, int], changed: Mapping[str, Mapping[bytes, Change]], policy: Policy,
        decider: Decider,
    ) -> None:  # fmt: skip
        self._base, self._views, self._policy, self._decider = base, views, policy, decider
        found: dict[bytes, dict[str, Change]] = {}
        for branch, names in changed.items():
            for name, change in names.items():
                found.setdefault(name, {})[branch] = change
        self._changed = {name: found[name] for name in sorted(found, key=tree_order)}
        self._names = list(self._changed)
        self._takes = {path.rstrip(b"/"): branch for path, branch in policy.takes.items()}
        self._decisions: dict[bytes, Decision] = {}
        self._open: dict[bytes, Undecided] = {}
        self._owned: dict[bytes, _Owned] = {}
        self._deferred: dict[bytes, Decision] = {}
        self._dropped: dict[tuple[bytes, str], Dropped] = {}

    def run(self) -> None:
        """Decide on all paths."""
        within: bytes | None = None
        for name in self._changed:
            if within is None or not is_in(name, within):
                within = name if self._decide(name) else None
        self._fit_together()
        self._find_cases()

    def result(self, describer: Describer) -> Merge:
        """Return the merge, with the contents of all conflicts stored."""
        conflicts: list[Conflict] = []
        for name in sorted({*self._open, *self._owned}, key=tree_order):
            owned = self._owned.get(name)
            if owned is None:
                conflicts.append(describer.conflict(name, self._open[name], self._changed[name]))
            else:
                beneath = {path: self._changed[path] for path in self._beneath(owned.paths)}
                conflicts.append(describer.owned(name, owned.kind, owned.paths, beneath, owned.merged))
        decisions = {name: self._decisions[name] for name in self._changed if name in self._decisions}
        dropped = [self._dropped[key] for key in sorted(self._dropped)]
        return Merge(decisions=decisions, conflicts=conflicts, deferred=self._deferred, dropped=dropped)

    def _decide(self, name: bytes) -> bool:
        """Decide on a path; return True if everything beneath it is decided, too."""
        taken = self._taken_from(name)
        if taken is not None:
            self._note_dropped(name, taken)
            if taken in self._changed[name]:
                self._decisions[name] = self._decider.taken(taken, self._changed[name][taken], "takes")
            return False
        outcome = self._decider.decide(name, self._changed[name])
        if isinstance(outcome, Decision):
            self._decisions[name] = outcome
            return False
        if outcome.kind == "kind":
            self._own("kind", (name,))
            return True
        self._leave_open(name, outcome)
        return False

    def _leave_open(self, name: bytes, outcome: Undecided) -> None:
        self._open[name] = outcome
        merged, before = outcome.merged, self._before(name)
        is_new = before is None or before.kind != "directory"
        if outcome.kind == "mode" and merged and merged.entry and merged.entry.kind == "directory" and is_new:
            self._decisions[name] = merged  # else there would be no directory for what is beneath

    def _taken_from(self, name: bytes) -> str | None:
        """Return the branch to which a path is given."""
        return next((self._takes[path] for path in _with_parents(name) if path in self._takes), None)

    def _own(self, kind: ConflictKind, paths: tuple[bytes, ...]) -> None:
        """Make one conflict of paths with all beneath them; or take the preferred branch's, if it takes part."""
        names = list(self._beneath(paths))
        merged = {name: self._decisions.pop(name) for name in names if name in self._decisions}
        if any(name in self._open or name in self._owned for name in names):
            merged = {}  # it could not be taken without the conflicts beneath
        for name in names:
            self._open.pop(name, None)
            self._owned.pop(name, None)
            self._deferred.pop(name, None)
        branch = self._policy.branch
        if self._policy.rule == "ours" and any(branch in self._changed[name] for name in names):
            for name in names:
                self._note_dropped(name, branch)
                if branch in self._changed[name]:
                    self._decisions[name] = self._decider.taken(branch, self._changed[name][branch], "policy:ours")
        else:
            self._owned[paths[0]] = _Owned(kind, paths, merged if kind == "case" else {})

    def _note_dropped(self, name: bytes, branch: str) -> None:
        """Note the branches whose change of a path differs from that of the branch that is taken."""
        changes = self._changed[name]
        for other in changes:
            if other != branch and not (branch in changes and self._decider.is_alike(name, branch, other, changes)):
                self._dropped[name, other] = Dropped(path=name, branch=other)

    def _beneath(self, paths: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the changed names at and beneath paths."""
        for path in paths:  # in the order of the tree they follow each other
            for place in range(bisect_left(self._names, tree_order(path), key=tree_order), len(self._names)):
                if not is_in(self._names[place], path):
                    break
                yield self._names[place]

    def _fit_together(self) -> None:
        """Go through all paths, contents of directories first."""
        firm, pending = set[bytes](), set[bytes]()  # directories with something that remains, or may remain
        inside = _owned_paths(self._owned, self._changed)
        for name in reversed(self._changed):
            if name in inside:
                if name in self._owned:
                    _add_parents(pending, name)
                continue
            self._fit(name, name in firm, name in pending)
            if name in self._open or name in self._owned or name in self._deferred:
                _add_parents(pending, name)
            elif self._exists(name):
                _add_parents(firm, name)

    def _fit(self, name: bytes, is_firm: bool, is_pending: bool) -> None:
        if not (is_firm or is_pending):
            return
        undecided, decision = self._open.get(name), self._decisions.get(name)
        if undecided is not None and undecided.kind == "deleted" and self._is_directory(name):
            if is_firm:  # it is not deleted then
                del self._open[name]
                if undecided.merged is not None:
                    self._decisions[name] = undecided.merged
                else:
                    self._leave_open(name, Undecided(kind="mode", mode=undecided.mode))
        elif decision is not None and decision.entry is None and self._is_directory(name):
            del self._decisions[name]
            if not is_firm:
                self._deferred[name] = decision
        elif not self._will_be_directory(name):
            self._own("kind", (name,))

    def _before(self, name: bytes) -> Entry | None:
        return next(iter(self._changed[name].values())).before

    def _is_directory(self, name: bytes) -> bool:
        before = self._before(name)
        return before is not None and before.kind == "directory"

    def _will_be_directory(self, name: bytes) -> bool:
        decision = self._decisions.get(name)
        if decision is None:
            return self._is_directory(name)
        return decision.entry is not None and decision.entry.kind == "directory"

    def _exists(self, name: bytes) -> bool:
        decision = self._decisions.get(name)
        return (self._before(name) if decision is None else decision.entry) is not None

    def _find_cases(self) -> None:
        groups: dict[tuple[bytes, str], list[bytes]] = {}
        inside = _owned_paths(self._owned, self._changed)
        for name in self._changed:
            if name not in inside and name not in self._open and name != TOP and self._exists(name):
                last = name.rpartition(b"/")[2].decode("utf-8", "surrogateescape").casefold()
                groups.setdefault((parent_of(name), last), []).append(name)
        for names in groups.values():
            if len(names) > 1 and not self._is_known_together(names) and not _owned_paths(self._owned, names):
                self._own("case", tuple(names))

    def _is_known_together(self, names: Sequence[bytes]) -> bool:
        """Return True if one tree has all these names."""
        views = [self._base, *self._views.values()]
        return any(all(look_up(view, name) is not None for name in names) for view in views)


def _owned_paths(owned: Mapping[bytes, _Owned], names: Iterable[bytes]) -> set[bytes]:
    paths = {path for found in owned.values() for path in found.paths}
    if not paths:
        return set()
    return {name for name in names if any(place in paths for place in _with_parents(name))}


def _with_parents(name: bytes) -> Iterator[bytes]:
    while name != TOP:
        yield name
        name = parent_of(name)
    yield TOP


def _add_parents(found: set[bytes], name: bytes) -> None:
    while name != TOP and (name := parent_of(name)) not in found:
        found.add(name)
