"""Description of conflicts: all that their resolution, and their display, needs when the trees are gone."""

from collections.abc import Mapping

from msgspec import structs

from sandkeep_store.merging.compare import Change
from sandkeep_store.merging.decide import Undecided
from sandkeep_store.merging.model import Conflict, ConflictKind, Decision, Version
from sandkeep_store.merging.record import Blobs
from sandkeep_store.merging.trees import Entry, look_up


class Describer:
    """Conflicts, with their contents stored as blobs."""

    def __init__(self, base: int, views: Mapping[str, int], blobs: Blobs) -> None:
        self._base = base
        self._views = views
        self._blobs = blobs

    def conflict(self, name: bytes, undecided: Undecided, changes: Mapping[str, Change]) -> Conflict:
        """Describe the conflict of one path."""
        merged = undecided.merged if undecided.kind == "mode" else None
        return Conflict(
            path=name, kind=undecided.kind, paths=(name,), mode=undecided.mode, hunks=undecided.hunks,
            is_cut=undecided.is_cut, choices=undecided.choices,
            base=self._version(self._base, name, next(iter(changes.values())).before),
            branches={
                branch: self._version(self._views[branch], name, change.after) for branch, change in changes.items()
            },
            merged={} if merged is None else {name: merged},
        )  # fmt: skip

    def owned(
        self, name: bytes, kind: ConflictKind, paths: tuple[bytes, ...], changes: Mapping[bytes, Mapping[str, Change]],
        merged: Mapping[bytes, Decision],
    ) -> Conflict:  # fmt: skip
        """Describe a conflict that owns paths, with all changes at and beneath them."""
        beneath: dict[str, dict[bytes, Version]] = {}
        for path, found in changes.items():
            for branch, change in found.items():
                version = self._version(self._views[branch], path, change.after)
                beneath.setdefault(branch, {})[path] = version
        branches = {branch: self._top(branch, name, versions) for branch, versions in sorted(beneath.items())}
        base = self._version(self._base, name, look_up(self._base, name))
        if len(paths) > 1:
            others = {path: self._version(self._base, path, look_up(self._base, path)) for path in paths}
            base = structs.replace(base, beneath=others)
        return Conflict(path=name, kind=kind, paths=paths, base=base, branches=branches, merged=dict(merged))

    def _top(self, branch: str, name: bytes, versions: dict[bytes, Version]) -> Version:
        own = versions.get(name) or self._version(self._views[branch], name, look_up(self._views[branch], name))
        return structs.replace(own, beneath=versions)

    def _version(self, view: int, name: bytes, entry: Entry | None) -> Version:
        is_file = entry is not None and entry.kind == "file"
        return Version(entry=entry, sha256=self._blobs.copy(view, name) if is_file else "")
