"""Aggregated branches: what the verification of an iteration begins with, checked before anything is made."""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from sandkeep.compat.gcri.config import SandboxConfig
from sandkeep.errors import CallerError, StateError
from sandkeep.model import Conflict, Merged, Resolution

NAMED_PATHS: Final = 3
"""Maximum number of paths that the message of an error names."""


class Aggregated(Struct, frozen=True, kw_only=True):
    """An aggregated branch: its index, the indices of its sources, their sandboxes, and the sandboxes that have their
    way at paths.
    """

    index: int
    source_indices: list[int]
    containers: list[str]
    takes: dict[str, str]


def aggregated(branches: Iterable[Any], containers: Mapping[int, str], config: SandboxConfig) -> list[Aggregated]:
    """Check aggregated branches, which are objects or mappings with `index` and `source_indices`, and can have a
    `file_selection` of their own. Raises `invalid`.
    """
    for path, source in config.file_selection.items():
        _require_known(source, containers, f"file_selection: {path!r} is of")
    checked = [_checked(branch, containers, config) for branch in branches]
    indices = [branch.index for branch in checked]
    if len(set(indices)) < len(indices):
        raise CallerError("invalid", f"aggregated_branches: two have one index: {indices}", field="index")
    return checked


def _checked(branch: Any, containers: Mapping[int, str], config: SandboxConfig) -> Aggregated:
    index = _convert(branch, "index", int)
    sources = list(dict.fromkeys(_convert(branch, "source_indices", list[int])))
    if not sources:
        message = f"source_indices: aggregated branch {index} has no sources: give at least one"
        raise CallerError("invalid", message, field="source_indices")
    for source in sources:
        _require_known(source, containers, f"source_indices: aggregated branch {index} is of")
    own = _convert(branch, "file_selection", dict[str, int], {})
    for path, source in own.items():
        if source not in sources:
            message = f"file_selection: {path!r} is of {source}, which is no source of aggregated branch {index}"
            raise CallerError("invalid", message, field="file_selection")
    shared = {path: source for path, source in config.file_selection.items() if source in sources}
    return Aggregated(
        index=index, source_indices=sources, containers=list(dict.fromkeys(containers[each] for each in sources)),
        takes={_relative(path): containers[source] for path, source in {**shared, **own}.items()},
    )  # fmt: skip


def _convert(branch: Any, name: str, kind: Any, default: Any = None) -> Any:
    value = branch.get(name) if isinstance(branch, Mapping) else getattr(branch, name, None)
    try:
        return msgspec.convert(default if value is None else value, kind)
    except msgspec.ValidationError as error:
        raise CallerError("invalid", f"aggregated_branches: {name}: {error}", field=name) from None


def _require_known(source: int, containers: Mapping[int, str], context: str) -> None:
    if source not in containers:
        field = context.partition(":")[0]
        known = ", ".join(map(str, containers)) or "none"
        message = f"{context} branch {source}, which is not among source_containers: there are {known}"
        raise CallerError("invalid", message, field=field)


def _relative(path: str) -> str:
    """Return a path of the workspace without its beginning."""
    return posixpath.relpath(posixpath.join("/workspace", path), "/workspace")


# -- conflicts --------------------------------------------------------------------------------------------------------


def merge_conflict(
    iteration: int | None, index: int | None, sources: Sequence[int | str], conflicts: list[Conflict], merged: Merged
) -> StateError:
    """Make the error of a merge that was given up; `index` is that of its aggregated branch, if it has one."""
    message = (
        f"branches {', '.join(map(str, sources))} changed {paths_of(conflicts)} differently: "
        "choose versions by file_selection, or set merge_policy"
    )
    return StateError(
        "merge_conflict", message, iteration=iteration, index=index, source_indices=list(sources),
        branches=merged.merge.branches, conflicts=msgspec.to_builtins(conflicts),
    )  # fmt: skip


def paths_of(conflicts: Sequence[Conflict]) -> str:
    """Return the first paths in conflict as a message names them."""
    paths = [conflict.path for conflict in conflicts[:NAMED_PATHS]]
    return ", ".join(paths) + (f" and {len(conflicts) - len(paths)} more" if len(conflicts) > len(paths) else "")


def later(conflict: Conflict, containers: Sequence[str], *, whole: bool) -> Resolution:
    """Decide a conflict for the last of the branches that has something at the path."""
    sides = [side for side in conflict.sides if side.branch in containers]
    ordered = sorted(sides, key=lambda side: (side.kind is not None, containers.index(side.branch)))
    path = {"path": conflict.path} if conflict.path_bytes is None else {"path_bytes": conflict.path_bytes}
    return Resolution(**path, take=ordered[-1].branch, whole=whole)
