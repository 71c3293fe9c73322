"""Resolution of conflicts from their descriptions alone, when the trees of the branches may be gone."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from sandkeep.errors import CallerError
from sandkeep_store.archives.tar.members import TOP, shown
from sandkeep_store.archives.trees.changes import parent_of, tree_order, with_directories
from sandkeep_store.merging.model import Conflict, Decision, FromBlob, Merge, Version
from sandkeep_store.merging.record import Blobs
from sandkeep_store.merging.trees import MODE_BITS, Entry


class TakeBranch(Struct, frozen=True, tag="branch"):
    """Take the version of a branch, with all beneath it."""

    branch: str


class TakeBase(Struct, frozen=True, tag="base"):
    """Leave the path as it is in the base, with all beneath it."""


class Delete(Struct, frozen=True, tag="delete"):
    """Delete the path, with all beneath it."""


class TakeContent(Struct, frozen=True, tag="content"):
    """Make a file with this content; `mode` is by default the merged one."""

    data: bytes
    mode: int | None = None


class TakeAll(Struct, frozen=True, tag="all"):
    """Keep the names that differ only in case."""


Resolution = TakeBranch | TakeBase | Delete | TakeContent | TakeAll


def resolve(merge: Merge, resolutions: Mapping[bytes, Resolution], *, blobs: int, now_ns: int) -> Merge:
    """Return the merge with some of its conflicts resolved, by their paths. The others stay.

    `blobs` is the open directory that the merge was made with; given contents are added to it, and get `now_ns` as
    mtime. Raises `not_found` for a path without conflict, `invalid` for a resolution that it cannot have or that does
    not fit to others, and `storage_unavailable`. Blocks.
    """
    conflicts = {conflict.path: conflict for conflict in merge.conflicts}
    decisions, present = dict(merge.decisions), list[bytes]()
    for path, resolution in resolutions.items():
        if path not in conflicts:
            raise CallerError("not_found", f"{shown(path)} has no conflict: choose a path that has one", field="path")
        conflict = conflicts.pop(path)
        for name in conflict.merged:
            decisions.pop(name, None)
        decisions |= _resolved(conflict, resolution, Blobs(blobs), now_ns)
        present += _present(conflict, resolution)
    _keep_directories(merge, resolutions, decisions)
    deferred = _decide_deferred(merge.deferred, conflicts, decisions, present)
    _check_parents(decisions)
    ordered = {name: decisions[name] for name in sorted(decisions, key=tree_order)}
    return Merge(decisions=ordered, conflicts=list(conflicts.values()), deferred=deferred)


def _resolved(conflict: Conflict, resolution: Resolution, blobs: Blobs, now_ns: int) -> dict[bytes, Decision]:
    match resolution:
        case TakeBranch(branch):
            return _of_branch(conflict, branch)
        case TakeBase():
            return _of_base(conflict)
        case Delete():
            return _deleted(conflict)
        case TakeAll() if conflict.kind == "case" and conflict.merged:
            return conflict.merged
        case TakeContent(data, mode) if conflict.kind != "case":
            entry = Entry(kind="file", mode=_mode(conflict, mode), size=len(data), mtime_ns=now_ns)
            content = blobs.put(data)
            return {conflict.path: _decision(entry, content, tuple(conflict.branches))}
    message = f"{shown(conflict.path)} cannot be resolved like that, as its conflict is one of {conflict.kind}"
    raise CallerError("invalid", f"{message}: take a branch or the base", field="resolution")


def _decision(entry: Entry | None, content: FromBlob | None, branches: tuple[str, ...]) -> Decision:
    return Decision(entry=entry, content=content, branches=branches, how="resolved")


def _of_branch(conflict: Conflict, branch: str) -> dict[bytes, Decision]:
    version = conflict.branches.get(branch)
    if version is None:
        names = ", ".join(sorted(conflict.branches))
        message = f"branch {branch!r} has no version of {shown(conflict.path)} in conflict: take one of {names}"
        raise CallerError("invalid", message, field="branch")
    if version.beneath:
        return {name: _of_version(found, branch) for name, found in version.beneath.items()}
    merged = conflict.merged.get(conflict.path)
    if merged and merged.entry and version.entry:  # of the modes alone
        return {conflict.path: _with_mode(merged, version.entry.mode)}
    return {conflict.path: _of_version(version, branch)}


def _of_version(version: Version, branch: str) -> Decision:
    return _decision(version.entry, FromBlob(version.sha256) if version.sha256 else None, (branch,))


def _with_mode(merged: Decision, mode: int) -> Decision:
    assert merged.entry is not None
    return structs.replace(merged, entry=structs.replace(merged.entry, mode=mode), how="resolved")


def _of_base(conflict: Conflict) -> dict[bytes, Decision]:
    merged, base = conflict.merged.get(conflict.path), conflict.base.entry
    if conflict.kind == "mode" and merged and base and merged.entry and merged.entry.kind == base.kind == "file":
        return {conflict.path: _with_mode(merged, base.mode)}  # the content is not in conflict
    return {}


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


def _present(conflict: Conflict, resolution: Resolution) -> list[bytes]:
    """Return the paths of a conflict that exist after its resolution, also without a decision."""
    if isinstance(resolution, TakeBase):
        versions = conflict.base.beneath or {conflict.path: conflict.base}
        return [name for name, version in versions.items() if version.entry]
    if isinstance(resolution, TakeBranch) and conflict.branches[resolution.branch].entry:
        return [conflict.path]
    return []


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
            message = f"{shown(parent_of(name))} cannot be resolved like that, as {shown(name)} lies in it"
            raise CallerError("invalid", f"{message}: resolve both alike", field="resolution")
