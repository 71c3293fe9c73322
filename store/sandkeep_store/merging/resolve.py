"""Resolution of conflicts from their descriptions alone, when the trees of the branches may be gone."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from sandkeep.errors import CallerError
from sandkeep_store.archives.tar.members import TOP, shown
from sandkeep_store.archives.trees.changes import parent_of, tree_order, with_directories
from sandkeep_store.merging.contents import ConflictContents, changes_of
from sandkeep_store.merging.decide import Decided, Decider, Undecided
from sandkeep_store.merging.dropped import changes_dropped
from sandkeep_store.merging.hunks import Shown
from sandkeep_store.merging.model import Conflict, Decision, Dropped, FromBlob, Merge, Policy, Version
from sandkeep_store.merging.record import Blobs
from sandkeep_store.merging.trees import MODE_BITS, Entry


class TakeBranch(Struct, frozen=True, tag="branch"):
    """Decide what clashes for a branch. Clean edits of others stay, unless its `whole` version is taken, and unless the
    conflict is one of kinds or of names, which is taken whole, with all beneath it.
    """

    branch: str
    whole: bool = False


class TakeBase(Struct, frozen=True, tag="base"):
    """Decide what clashes for the base, or leave the `whole` path as it is there, with all beneath it."""

    whole: bool = False


class TakeHunks(Struct, frozen=True, tag="hunks"):
    """Take in single clashes, by their first lines in the base (the first is 0), the lines of a branch, or for None
    those of the base.
    """

    choices: Mapping[int, str | None]


class Delete(Struct, frozen=True, tag="delete"):
    """Delete the path, with all beneath it."""


class TakeContent(Struct, frozen=True, tag="content"):
    """Make a file with this content; `mode` is by default the merged one."""

    data: bytes
    mode: int | None = None


class TakeAll(Struct, frozen=True, tag="all"):
    """Keep the names that differ only in case."""


Resolution = TakeBranch | TakeBase | TakeHunks | Delete | TakeContent | TakeAll


def resolve(merge: Merge, resolutions: Mapping[bytes, Resolution], *, blobs: int, now_ns: int) -> Merge:
    """Return the merge with some of its conflicts resolved, by their paths. The others stay, and so does what clashes
    between other branches than the one that is taken.

    `blobs` is the open directory that the merge was made with; given and merged contents are added to it, and given
    ones get `now_ns` as mtime. Raises `not_found` for a path without conflict, `invalid` for a resolution that it
    cannot have, that decides nothing or does not fit to others, and `storage_unavailable`. Blocks.
    """
    conflicts = {conflict.path: conflict for conflict in merge.conflicts}
    decisions, present, dropped = dict(merge.decisions), list[bytes](), list(merge.dropped)
    resolver = _Resolver(Blobs(blobs), now_ns)
    for path, resolution in resolutions.items():
        if path not in conflicts:
            raise CallerError("not_found", f"{shown(path)} has no conflict: choose a path that has one", field="path")
        conflict = conflicts[path]
        resolved = resolver.resolved(conflict, resolution)
        said = (*conflict.said, said_by(resolution))
        if isinstance(resolved, Conflict):
            conflicts[path] = structs.replace(resolved, said=said)
            continue
        del conflicts[path]
        for name in conflict.merged:
            decisions.pop(name, None)
        choice = ", ".join(said)
        decisions |= {name: structs.replace(decision, choice=choice) for name, decision in resolved.items()}
        present += _present(conflict, resolution, resolved)
        dropped += resolver.dropped(conflict, resolution, resolved)
    _keep_directories(merge, resolutions, decisions)
    deferred = _decide_deferred(merge.deferred, conflicts, decisions, present)
    _check_parents(decisions)
    ordered = {name: decisions[name] for name in sorted(decisions, key=tree_order)}
    return Merge(decisions=ordered, conflicts=list(conflicts.values()), deferred=deferred, dropped=dropped)


def said_by(resolution: Resolution) -> str:
    """Describe a choice for the record."""
    match resolution:
        case TakeBranch(branch, whole):
            return f"{branch} (whole)" if whole else branch
        case TakeBase(whole):
            return "base (whole)" if whole else "base"
        case TakeHunks(choices):
            return ", ".join(f"line {line + 1}: {branch or 'base'}" for line, branch in sorted(choices.items()))
        case Delete():
            return "delete"
        case TakeContent():
            return "data"
        case TakeAll():
            return "all"


class _Resolver:
    """Resolution of single conflicts, with the stored contents of all."""

    def __init__(self, blobs: Blobs, now_ns: int) -> None:
        self._blobs, self._now_ns, self._shown = blobs, now_ns, Shown()

    def resolved(self, conflict: Conflict, resolution: Resolution) -> dict[bytes, Decision] | Conflict:
        """Return the decisions on the paths of a conflict that differ from the base, or the rest of the conflict."""
        match resolution:
            case TakeBranch(branch, whole):
                if whole or conflict.kind in ("kind", "case"):
                    return _of_branch(conflict, branch)
                _version(conflict, branch)
                return self._by_hunks(conflict, Policy(rule="ours", branch=branch), _decided(conflict))
            case TakeBase(whole):
                if whole or not _is_merged_file(conflict):
                    return {}
                return self._by_hunks(conflict, Policy(), _decided(conflict, rest_of_base=True))
            case TakeHunks(choices):
                _check_hunks(conflict, choices)
                return self._by_hunks(conflict, Policy(), _decided(conflict, choices))
            case Delete():
                return _deleted(conflict)
            case TakeAll() if conflict.kind == "case" and conflict.merged:
                return conflict.merged
            case TakeContent(data, mode) if conflict.kind != "case":
                entry = Entry(kind="file", mode=_mode(conflict, mode), size=len(data), mtime_ns=self._now_ns)
                return {conflict.path: _decision(entry, self._blobs.put(data), tuple(conflict.branches))}
        message = f"{shown(conflict.path)} cannot be resolved like that, as its conflict is one of {conflict.kind}"
        raise CallerError("invalid", f"{message}: take a branch or the base", field="resolution")

    def _by_hunks(self, conflict: Conflict, policy: Policy, decided: Decided) -> dict[bytes, Decision] | Conflict:
        """Decide again, as the merge did, with what is decided now."""
        decider = Decider(ConflictContents(conflict, self._blobs), policy, self._shown, decided)
        outcome = decider.decide(conflict.path, changes_of(conflict))
        if isinstance(outcome, Undecided):
            return _rest(conflict, outcome, decided, policy.branch)
        if _is_base(conflict, outcome):
            return {}
        return {conflict.path: structs.replace(outcome, how="resolved")}

    def dropped(self, conflict: Conflict, resolution: Resolution, resolved: Mapping[bytes, Decision]) -> list[Dropped]:
        """Return the changes that a resolution drops, apart from the other sides of clashing lines."""
        if isinstance(resolution, TakeContent | TakeAll):
            return []
        is_whole = isinstance(resolution, Delete) or (
            isinstance(resolution, TakeBranch | TakeBase) and resolution.whole
        )
        if not is_whole and conflict.hunks:
            return []
        side = resolution.branch if isinstance(resolution, TakeBranch) else None
        return changes_dropped(conflict, side, resolved, ConflictContents(conflict, self._blobs))


def _decided(
    conflict: Conflict, choices: Mapping[int, str | None] | None = None, *, rest_of_base: bool = False
) -> Decided:
    return Decided(choices={**conflict.choices, **(choices or {})}, mode=conflict.mode, rest_of_base=rest_of_base)


def _is_merged_file(conflict: Conflict) -> bool:
    """Return True if the base has a file of which a part may be taken: some of its lines, its bytes, or its mode."""
    base, merged = conflict.base.entry, conflict.merged.get(conflict.path)
    if conflict.kind == "mode" and not (merged and merged.entry and merged.entry.kind == "file"):
        return False
    return conflict.kind in ("content", "binary", "mode") and base is not None and base.kind == "file"


def _check_hunks(conflict: Conflict, choices: Mapping[int, str | None]) -> None:
    """Raise `invalid` for lines at which nothing clashes, and branches that have no lines there."""
    hunks = {hunk.start: hunk for hunk in conflict.hunks}
    for line, branch in choices.items():
        if line not in hunks:
            lines = ", ".join(str(start + 1) for start in hunks) or "no lines"
            message = f"{shown(conflict.path)} has no clash that begins at line {line + 1}: it has some at {lines}"
            raise CallerError("invalid", message, field="line")
        if branch is not None and branch not in hunks[line].branches:
            names = ", ".join(sorted(hunks[line].branches))
            message = (
                f"branch {branch!r} does not change line {line + 1} of {shown(conflict.path)}: take one of {names}"
            )
            raise CallerError("invalid", message, field="branch")


def _rest(conflict: Conflict, outcome: Undecided, decided: Decided, branch: str) -> Conflict:
    """Return a conflict that is decided in part. Raises `invalid` if no part of it is."""
    rest = structs.replace(
        conflict, kind=outcome.kind, mode=outcome.mode, hunks=outcome.hunks, is_cut=outcome.is_cut,
        choices={**decided.choices, **outcome.choices},
        merged={conflict.path: outcome.merged} if outcome.kind == "mode" and outcome.merged else {},
    )  # fmt: skip
    if (rest.kind, rest.mode, rest.choices) == (conflict.kind, conflict.mode, conflict.choices):
        names = ", ".join(sorted({name for hunk in rest.hunks for name in hunk.branches})) or "another branch"
        message = f"branch {branch!r} has no change in the conflict in {shown(conflict.path)}: take {names}"
        raise CallerError("invalid", message, field="branch")
    return rest


def _is_base(conflict: Conflict, decision: Decision) -> bool:
    """Return True if a decision leaves a file as it is in the base."""
    base, entry = conflict.base.entry, decision.entry
    if base is None or entry is None or base.kind != "file" or (entry.kind, entry.mode) != (base.kind, base.mode):
        return False
    return isinstance(decision.content, FromBlob) and decision.content.sha256 == conflict.base.sha256


def _decision(entry: Entry | None, content: FromBlob | None, branches: tuple[str, ...]) -> Decision:
    return Decision(entry=entry, content=content, branches=branches, how="resolved")


def _version(conflict: Conflict, branch: str) -> Version:
    version = conflict.branches.get(branch)
    if version is None:
        names = ", ".join(sorted(conflict.branches))
        message = f"branch {branch!r} has no version of {shown(conflict.path)} in conflict: take one of {names}"
        raise CallerError("invalid", message, field="branch")
    return version


def _of_branch(conflict: Conflict, branch: str) -> dict[bytes, Decision]:
    version = _version(conflict, branch)
    versions = version.beneath or {conflict.path: version}
    return {name: _of_version(found, branch) for name, found in versions.items()}


def _of_version(version: Version, branch: str) -> Decision:
    return _decision(version.entry, FromBlob(version.sha256) if version.sha256 else None, (branch,))


def _deleted(conflict: Conflict) -> dict[bytes, Decision]:
    """Delete what the base has of the paths; whatever is beneath is deleted with it."""
    versions = conflict.base.beneath or {conflict.path: conflict.base}
    deletion = _decision(None, None, tuple(conflict.branches))
    return {name: deletion for name, version in versions.items() if version.entry}


def _mode(conflict: Conflict, mode: int | None) -> int:
    if mode is not None:
        return mode & MODE_BITS
    if conflict.mode is not None:
        return conflict.mode
    entries = [conflict.base.entry, *(version.entry for version in conflict.branches.values())]
    modes = [entry.mode for entry in entries if entry is not None and entry.kind == "file"]
    return modes[0] if modes else 0o644


def _keep_directories(merge: Merge, resolutions: Mapping[bytes, Resolution], decisions: dict[bytes, Decision]) -> None:
    """Put back new directories that are resolved to their absence, but in which there is something."""
    holders = _holders(decisions)
    for conflict in merge.conflicts:
        merged = conflict.merged.get(conflict.path)
        if conflict.kind == "mode" and conflict.path in resolutions and conflict.path in holders and merged:
            is_there = conflict.base.entry is not None and conflict.base.entry.kind == "directory"
            if conflict.path not in decisions and not is_there:
                decisions[conflict.path] = merged


def _holders(decisions: Mapping[bytes, Decision]) -> set[bytes]:
    """Return all directories beneath which the decisions have something."""
    return set(with_directories([parent_of(name) for name, found in decisions.items() if found.entry and name != TOP]))


def _present(conflict: Conflict, resolution: Resolution, resolved: Mapping[bytes, Decision]) -> list[bytes]:
    """Return the paths of a conflict that exist after its resolution without a decision."""
    versions = conflict.base.beneath or {conflict.path: conflict.base}
    present = [name for name, version in versions.items() if version.entry and name not in resolved]
    if isinstance(resolution, TakeBranch) and conflict.branches[resolution.branch].entry:
        present.append(conflict.path)
    return present


def _decide_deferred(
    deferred: Mapping[bytes, Decision], conflicts: Mapping[bytes, Conflict], decisions: dict[bytes, Decision],
    present: Sequence[bytes],
) -> dict[bytes, Decision]:  # fmt: skip
    """Delete the directories in which nothing is left; return those that still wait for conflicts."""
    holders = _holders(decisions).union(with_directories([parent_of(name) for name in present if name != TOP]))
    left = {name: deletion for name, deletion in deferred.items() if name not in holders}
    pending = set(with_directories([*conflicts]))
    decisions.update({name: deletion for name, deletion in left.items() if name not in pending})
    return {name: deletion for name, deletion in left.items() if name in pending}


def _check_parents(decisions: Mapping[bytes, Decision]) -> None:
    """Raise `invalid` if something is to lie in what is to be no directory."""
    for name, decision in decisions.items():
        parent = decisions.get(parent_of(name)) if name != TOP else None
        if decision.entry is None or parent is None:
            continue
        if parent.entry is None or parent.entry.kind != "directory":
            message = f"{shown(parent_of(name))} cannot be resolved like that, as {shown(name)} is below it"
            raise CallerError("invalid", f"{message}: resolve both alike", field="resolution")
