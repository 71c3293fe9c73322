"""The difference that a branch brings to a directory of the host, as a commit needs it. Everything here blocks."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from msgspec import Struct, structs

from sandkeep.model import ChangeKind
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.archives.tar.members import TOP
from sandkeep_store.archives.trees.changes import tree_order
from sandkeep_store.merging.compare import changes
from sandkeep_store.merging.content import PIECE, read_piece, write_all
from sandkeep_store.merging.trees import Entry, Lookup, TreeState, open_file
from sandkeepd.branches.merge_files import Origin
from sandkeepd.host.host_commit.changes import Change as HostChange
from sandkeepd.host.host_commit.changes import Entry as HostEntry
from sandkeepd.host.host_commit.names import Repositories, why_forbidden
from sandkeepd.host.threads import Meter
from sandkeepd.providers.common.errors import storage_errors

_KINDS: Final = ("file", "directory", "symlink")


class Difference(Struct, frozen=True, kw_only=True):
    """The changes, in the order of the tree, with their origins; and the names that no commit may bring, with why."""

    changes: list[HostChange]
    origins: list[Origin]
    forbidden: dict[bytes, str]


class Sources(Struct, frozen=True, kw_only=True):
    """The trees of a commit: its `base`, the state that the branch began with, and the branch. `label` is what that is
    called, `ignored` the names that are none of its. `merged` are the origins in the merge that it began with, if any,
    by their paths. `written` is what earlier commits of the branch, or of those that it came from, left in the target.
    """

    base: TreeState
    start: TreeState
    branch: TreeState
    label: str
    ignored: Sequence[bytes]
    merge_id: str | None
    merged: Mapping[bytes, Origin]
    written: Mapping[bytes, Origin]


def difference(sources: Sources, contents: int | None, meter: Meter) -> Difference:
    """Compare a branch with its base. New contents are written to the open, empty file `contents`, if there is one.

    Raises as `compare.changes`, and `storage_unavailable`.
    """
    found = changes(sources.base, sources.branch, sources.ignored)
    own = changes(sources.start, sources.branch, sources.ignored) if sources.merged else found
    names = sorted({*found, *sources.written} - {TOP}, key=tree_order)
    made: list[HostChange] = []
    origins: list[Origin] = []
    forbidden: dict[bytes, str] = {}
    writer = _Contents(contents, meter)
    with ExitStack() as stack:
        views = (sources.base.view, sources.branch.view)
        base, branch = (stack.enter_context(Lookup(view)) for view in views)
        # Others than those: a lookup keeps the last directory open.
        beside = [stack.enter_context(Lookup(view)) for view in views]
        repositories = Repositories(lambda path: any(lookup.entry(path) is not None for lookup in beside))
        for name in names:
            why = why_forbidden(name) or ("git" if repositories.contain(name) else None)
            if why is not None:
                forbidden[name] = why
                continue
            before, after = base.entry(name), branch.entry(name)
            if after is not None and after.kind not in _KINDS:
                forbidden[name] = after.kind
                continue
            written = sources.written.get(name)
            old = _as_written(written) if written is not None else writer.entry(sources.base, name, before, keep=False)
            new = writer.entry(sources.branch, name, after, keep=True)
            if (old is None and new is None) or _is_alike(old, new):
                continue
            made.append(HostChange(path=name, old=old, new=new))
            origins.append(_origin(sources, name, old, new, is_own=name in own))
    return Difference(changes=made, origins=origins, forbidden=forbidden)


def _origin(sources: Sources, name: bytes, old: HostEntry | None, new: HostEntry | None, *, is_own: bool) -> Origin:
    change: ChangeKind = "deleted" if new is None else "added" if old is None else "changed"
    origin = Origin(name, change, [sources.label], "branch", sources.merge_id if not is_own else None)
    merged = sources.merged.get(name)
    if merged is not None and not is_own:
        origin = structs.replace(origin, branches=merged.branches, how=merged.how, choice=merged.choice)
    if new is None:
        return origin
    content = new.target.hex() if new.kind == "symlink" else new.sha256
    return structs.replace(origin, sha256=content, kind=new.kind, mode=new.mode, size=new.size)


def _as_written(origin: Origin) -> HostEntry | None:
    """Return what a commit wrote at a path; a file's size is not compared when its digest is."""
    if origin.change == "deleted":
        return None
    if origin.kind == "symlink":
        return HostEntry(kind="symlink", mode=0o777, target=bytes.fromhex(origin.sha256))
    kind = "directory" if origin.kind == "directory" else "file"
    return HostEntry(kind=kind, mode=origin.mode, sha256=origin.sha256, size=origin.size)  # type: ignore[arg-type]


def _is_alike(old: HostEntry | None, new: HostEntry | None) -> bool:
    if old is None or new is None:
        return False
    return (old.kind, old.mode & 0o777, old.sha256, old.target) == (new.kind, new.mode & 0o777, new.sha256, new.target)


class _Contents:
    """A file of contents, to which each new file is appended."""

    def __init__(self, descriptor: int | None, meter: Meter) -> None:
        self._descriptor = descriptor
        self._end = 0
        self._meter = meter
        self._read = 0

    def entry(self, tree: TreeState, name: bytes, found: Entry | None, *, keep: bool) -> HostEntry | None:
        """Convert an entry; with `keep` a file's content is kept. What no commit can bring counts as absent."""
        if found is None or found.kind not in _KINDS:
            return None
        if found.kind == "symlink":
            return HostEntry(kind="symlink", mode=0o777, target=found.target)
        if found.kind == "directory":
            return HostEntry(kind="directory", mode=found.mode & 0o777)
        offset = self._end
        sha256 = self._digest(tree, name, found.size, keep=keep and self._descriptor is not None)
        return HostEntry(kind="file", mode=found.mode & 0o777, size=found.size, sha256=sha256, offset=offset)

    def _digest(self, tree: TreeState, name: bytes, size: int, *, keep: bool) -> str:
        digest = hashlib.sha256()
        with closing_fd(open_file(tree.view, name)) as opened:
            for offset in range(0, size, PIECE):
                piece = read_piece(opened, name, offset, min(PIECE, size - offset))
                digest.update(piece)
                self._read += len(piece)
                self._meter(self._read)
                if keep:
                    self._write(piece)
        return digest.hexdigest()

    def _write(self, piece: bytes) -> None:
        """Append a piece; one of zeros becomes a hole."""
        assert self._descriptor is not None
        with storage_errors("the contents of the commit"):
            if piece.count(0) == len(piece):
                os.ftruncate(self._descriptor, self._end + len(piece))
            else:
                write_all(self._descriptor, piece, self._end)
        self._end += len(piece)


def changed_counts(origins: Sequence[Origin]) -> dict[str, int]:
    """Count the added, changed and deleted paths of a record."""
    counts = {"added": 0, "changed": 0, "deleted": 0}
    for origin in origins:
        counts[origin.change] += 1
    return counts


def read_only(descriptor: int) -> int:
    """Open an unnamed file once more, for reading alone; the caller closes it."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
