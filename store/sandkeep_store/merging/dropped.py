"""Changes of branches that the choice of a whole path drops: counted by hunks where the versions are text."""

from collections.abc import Iterator, Mapping, Sequence

from sandkeep_store.archives.tar.members import TOP
from sandkeep_store.archives.trees.changes import parent_of
from sandkeep_store.merging.contents import Contents, changes_of, read_texts
from sandkeep_store.merging.model import Conflict, Decision, Dropped, FromBlob, Version
from sandkeep_store.merging.text import Clash, Kept, Region, merge_text


def changes_dropped(
    conflict: Conflict, side: str | None, resolved: Mapping[bytes, Decision], contents: Contents
) -> list[Dropped]:
    """Return the changes of a conflict that its resolution does not have. `side` is the branch whose version was taken;
    None if that is the base's, or nothing. Blocks.
    """
    counts = _hunks_dropped(conflict, side, resolved, contents)
    found: list[Dropped] = []
    for branch, version in conflict.branches.items():
        if branch == side:
            continue
        for path, own in (version.beneath or {conflict.path: version}).items():
            if not _is_in_result(path, branch, own, resolved):
                hunks, lines = counts.get(branch, (0, 0))
                found.append(Dropped(path=path, branch=branch, hunks=hunks, lines=lines))
    return found


def _is_in_result(path: bytes, branch: str, version: Version, resolved: Mapping[bytes, Decision]) -> bool:
    """Return True if a version is the result or in it, or a deletion a part of that of a directory above."""
    decision = resolved.get(path)
    if decision is None:
        return version.entry is None and _is_hidden(path, resolved)
    entry, own = decision.entry, version.entry
    if entry is None or own is None:
        return entry is own
    if branch in decision.branches:
        return True
    if (entry.kind, entry.mode, entry.target) != (own.kind, own.mode, own.target):
        return False
    return own.kind != "file" or decision.content == FromBlob(version.sha256)


def _is_hidden(path: bytes, resolved: Mapping[bytes, Decision]) -> bool:
    while path != TOP:
        path = parent_of(path)
        above = resolved.get(path)
        if above is not None:
            return above.entry is None or above.entry.kind != "directory"
    return False


def _hunks_dropped(
    conflict: Conflict, side: str | None, resolved: Mapping[bytes, Decision], contents: Contents
) -> dict[str, tuple[int, int]]:
    """Return the numbers of hunks, and of their lines, that each branch loses; nothing for what is no text."""
    if conflict.kind in ("kind", "case"):
        return {}
    base = conflict.base.entry
    before = base if base is not None and base.kind == "file" else None
    edited = {
        branch: change.after
        for branch, change in changes_of(conflict).items()
        if change.after is not None and change.after.kind == "file" and (change.content or before is None)
    }
    texts = read_texts(contents, conflict.path, before, edited) if edited else None
    if texts is None:
        return {}
    is_deleted = conflict.path in resolved and resolved[conflict.path].entry is None
    counts: dict[str, tuple[int, int]] = {}
    names = list(edited)
    for number, count in _lines_dropped(merge_text(texts[0], texts[1:]).regions, names, side, is_deleted):
        hunks, lines = counts.get(names[number], (0, 0))
        counts[names[number]] = hunks + 1, lines + count
    return counts


def _lines_dropped(
    regions: Sequence[Region], names: Sequence[str], side: str | None, is_deleted: bool
) -> Iterator[tuple[int, int]]:
    """Yield each hunk that is not in the result, by the number of its version, with its lines removed and added."""
    taken = names.index(side) if side in names else -1
    for region in regions:
        if isinstance(region, Kept):
            continue
        versions = region.versions if isinstance(region, Clash) else dict.fromkeys(region.by, region.lines)
        result = versions.get(taken, region.base)
        for number, lines in sorted(versions.items()):
            if is_deleted or lines != result:
                yield number, len(region.base) + len(lines)
