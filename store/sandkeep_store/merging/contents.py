"""Contents of the versions of a path that is decided: in the trees that are merged, or stored with a conflict.

Everything here blocks.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from sandkeep_store.merging.compare import Change
from sandkeep_store.merging.content import no_progress, read_text, same_content
from sandkeep_store.merging.model import Conflict, Content, FromBlob, FromBranch, Version
from sandkeep_store.merging.record import Blobs, Spool
from sandkeep_store.merging.text import MOST_TEXT_BYTES, is_text
from sandkeep_store.merging.trees import Entry, Progress


class Contents(Protocol):
    """Contents of regular files: those of branches by their names, and that of the base, which is None."""

    def is_same(self, name: bytes, branches: Sequence[str]) -> bool:
        """Return True if the versions of all these branches, which have one size, have the same bytes."""
        ...

    def text(self, name: bytes, branch: str | None, size: int) -> bytes:
        """Read a version that has this size."""
        ...

    def version(self, branch: str | None) -> Content:
        """Return the content of a whole version."""
        ...

    def put(self, data: bytes) -> Content:
        """Store a merged text."""
        ...


def read_texts(
    contents: Contents, name: bytes, before: Entry | None, edited: Mapping[str, Entry]
) -> list[bytes] | None:
    """Read the texts of the base, empty for a new path, and of the branches that edited it; None if one is no text."""
    versions: list[tuple[str | None, Entry]] = [] if before is None else [(None, before)]
    versions += edited.items()
    if any(entry.size > MOST_TEXT_BYTES for _, entry in versions):
        return None
    texts = [b""] if before is None else []
    for branch, entry in versions:
        texts.append(contents.text(name, branch, entry.size))
        if not is_text(texts[-1]):
            return None
    return texts


class TreeContents:
    """Contents in open views. See `Contents`."""

    def __init__(self, base: int, views: Mapping[str, int], spool: Spool, progress: Progress = no_progress) -> None:
        self._base, self._views = base, views
        self._spool, self._progress = spool, progress

    def is_same(self, name: bytes, branches: Sequence[str]) -> bool:
        first, *others = (self._views[branch] for branch in branches)
        return all(same_content(first, view, name, self._progress) for view in others)

    def text(self, name: bytes, branch: str | None, size: int) -> bytes:
        data = read_text(self._base if branch is None else self._views[branch], name, size)
        self._progress(size)
        return data

    def version(self, branch: str | None) -> Content:
        assert branch is not None  # a merge leaves a path out that stays as in the base
        return FromBranch(branch)

    def put(self, data: bytes) -> Content:
        return self._spool.put(data)


class ConflictContents:
    """Contents that are stored with a conflict. See `Contents`."""

    def __init__(self, conflict: Conflict, blobs: Blobs) -> None:
        self._conflict, self._blobs = conflict, blobs

    def _version(self, branch: str | None) -> Version:
        return self._conflict.base if branch is None else self._conflict.branches[branch]

    def is_same(self, name: bytes, branches: Sequence[str]) -> bool:  # noqa: ARG002
        return len({self._version(branch).sha256 for branch in branches}) == 1

    def text(self, name: bytes, branch: str | None, size: int) -> bytes:  # noqa: ARG002
        return self._blobs.read(self._version(branch).sha256)

    def version(self, branch: str | None) -> Content:
        return FromBlob(self._version(branch).sha256)

    def put(self, data: bytes) -> Content:
        return self._blobs.put(data)


def changes_of(conflict: Conflict) -> dict[str, Change]:
    """Return the changes that the branches of a conflict made at its path."""
    before = conflict.base.entry
    return {
        branch: Change(before, version.entry, version.sha256 != conflict.base.sha256)
        for branch, version in sorted(conflict.branches.items())
    }
