"""Decisions on conflicts, as callers give them, as resolutions of paths."""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sandkeep.errors import CallerError
from sandkeep.model import Resolution
from sandkeep_store.archives.tar.members import shown
from sandkeep_store.merging import resolve as resolving

BASE: Final = "base"
ALL: Final = "all"


def resolutions_of(decisions: Sequence[Resolution]) -> dict[bytes, resolving.Resolution]:
    """Return the resolutions by their paths; decisions on hunks of one path become one. Raises `invalid` for a decision
    that says nothing or several things, and for two of one path.
    """
    resolutions: dict[bytes, resolving.Resolution] = {}
    hunks: dict[bytes, dict[int, str | None]] = {}
    for decision in decisions:
        path = path_of(decision)
        _check(decision, path)
        if decision.line is not None:
            lines = hunks.setdefault(path, {})
            is_repeated = decision.line - 1 in lines or path in resolutions
            lines[decision.line - 1] = None if decision.take == BASE else decision.take
        else:
            is_repeated = path in resolutions or path in hunks
            resolutions[path] = _resolution(decision)
        if is_repeated:
            raise CallerError("invalid", "decisions: a path is decided twice: give each once", field="decisions")
    return resolutions | {path: resolving.TakeHunks(choices) for path, choices in hunks.items()}


def counted_choices(resolutions: Mapping[bytes, resolving.Resolution], branches: Collection[str]) -> dict[str, int]:
    """Count resolutions by what they take. Raises `invalid` for one that takes none of the branches."""
    counts = Counter[str]()
    for path, resolution in resolutions.items():
        for branch in _taken(resolution):
            if branch is not None and branch not in branches:
                names = ", ".join(sorted(branches))
                message = f"branch {branch!r}, for {shown(path)}, is not in this merge: take one of {names}"
                raise CallerError("invalid", message, field="decisions")
        if isinstance(resolution, resolving.TakeHunks):
            counts.update(f"{branch or BASE} (hunk)" for branch in resolution.choices.values())
        else:
            counts[resolving.said_by(resolution)] += 1
    return dict(sorted(counts.items()))


def _taken(resolution: resolving.Resolution) -> Collection[str | None]:
    if isinstance(resolution, resolving.TakeHunks):
        return resolution.choices.values()
    return [resolution.branch] if isinstance(resolution, resolving.TakeBranch) else []


def path_of(named: Resolution) -> bytes:
    """Return the path of a decision, as names in trees are. Raises `invalid`."""
    if (named.path is None) == (named.path_bytes is None):
        raise CallerError("invalid", "decisions: give path, or path_bytes, of each", field="decisions")
    path = named.path_bytes if named.path_bytes is not None else os.fsencode(named.path or "")
    return path.strip(b"/") or b"."


def _check(decision: Resolution, path: bytes) -> None:
    said = (decision.take is not None) + decision.delete + (decision.data is not None)
    if said != 1:
        message = f"decisions: for {shown(path)} give one of take, delete and data"
        raise CallerError("invalid", message, field="decisions")
    is_part = decision.whole or decision.line is not None
    if is_part and (decision.take is None or decision.take == ALL or (decision.whole and decision.line is not None)):
        message = f"decisions: for {shown(path)} give a branch or {BASE} to take with `whole` or `line`, not with both"
        raise CallerError("invalid", message, field="decisions")


def _resolution(decision: Resolution) -> resolving.Resolution:
    if decision.delete:
        return resolving.Delete()
    if decision.data is not None:
        return resolving.TakeContent(decision.data, decision.mode)
    if decision.take == BASE:
        return resolving.TakeBase(decision.whole)
    if decision.take == ALL:
        return resolving.TakeAll()
    return resolving.TakeBranch(decision.take or "", decision.whole)
