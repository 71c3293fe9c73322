"""Result of a merge: decisions, conflicts, and the documents in which a daemon stores them."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct, field

from sandkeep.errors import DataError
from sandkeep_store.merging.trees import Entry

ConflictKind = Literal["content", "binary", "deleted", "added", "mode", "symlink", "kind", "case"]
"""Reasons of a conflict.

``content``: hunks clash. ``binary``: bytes that are no text. ``deleted``: edited and deleted. ``added``: new in several
branches, and different. ``mode``: permissions. ``symlink``: targets. ``kind``: a file against a directory or the like;
it owns the path with all beneath it. ``case``: names that differ in case only, brought together from several branches.
"""

MOST_SHOWN_BYTES: Final = 256 << 10
"""Size of the text in the hunks of one conflict; what is beyond is cut."""

BYTES: Final = -1
"""Key, among the choices of clashes, of that of a content that is not merged by lines."""


class FromBranch(Struct, frozen=True, tag="branch"):
    """Content of the file of that name in a branch's tree."""

    branch: str


class FromSpool(Struct, frozen=True, tag="spool"):
    """Content in the spool of the merge."""

    offset: int
    length: int


class FromBlob(Struct, frozen=True, tag="blob"):
    """Content in the directory of blobs, by its SHA-256."""

    sha256: str


Content = FromBranch | FromSpool | FromBlob


class Decision(Struct, frozen=True, kw_only=True):
    """The state of one path in the result: deleted if `entry` is None. Only a file has `content`.

    `branches` are those it comes from; `how` is ``taken``, ``alike``, ``merged``, ``policy:…``, ``takes``,
    ``resolved``, by the `choice` that was made, or ``provisional`` for a directory that has a conflict of modes.
    """

    entry: Entry | None
    content: Content | None = None
    branches: tuple[str, ...] = ()
    how: str = "taken"
    choice: str = ""


class Version(Struct, frozen=True, kw_only=True):
    """A path in one of the trees of a conflict: absent if `entry` is None. A file's content is the blob `sha256`.

    `beneath` has the changes below and beside the path that a conflict owns, by their paths.
    """

    entry: Entry | None
    sha256: str = ""
    beneath: "dict[bytes, Version]" = field(default_factory=dict)


class ShownHunk(Struct, frozen=True, kw_only=True):
    """A clash for display: lines of the base from line `start` (the first is 0), and those of each branch."""

    start: int
    base: list[str]
    branches: dict[str, list[str]]


class Conflict(Struct, frozen=True, kw_only=True):
    """A path that branches changed differently, with what `resolve` needs.

    `branches` are the versions of those that changed it. `paths` are all paths that it owns together with what is
    beneath them. `mode` is the merged mode of a file; None if it clashes. `is_cut` is True if the hunks are not
    complete. `choices` are the clashes that are decided, by their first lines in the base (the first is 0; `BYTES` for
    all bytes), each with the branch whose lines it takes, None for the base. `merged` is the result without the
    conflict, for the kinds that have one (``mode``, ``case``). `said` are the choices so far.
    """

    path: bytes
    kind: ConflictKind
    base: Version
    branches: dict[str, Version]
    paths: tuple[bytes, ...] = ()
    mode: int | None = None
    hunks: list[ShownHunk] = field(default_factory=list)
    is_cut: bool = False
    choices: dict[int, str | None] = field(default_factory=dict)
    merged: dict[bytes, Decision] = field(default_factory=dict)
    said: tuple[str, ...] = ()


class Dropped(Struct, frozen=True, kw_only=True):
    """A branch's change of a path that the result does not have: in so many hunks of text, which remove and add so many
    `lines`; none for what is not merged by lines.
    """

    path: bytes
    branch: str
    hunks: int = 0
    lines: int = 0


class Merge(Struct, frozen=True, kw_only=True):
    """A merge: `decisions` for the paths where the result differs from the base, in the order of the tree, and the
    conflicts, whose paths are as in the base until they are resolved.

    `deferred` are deletions of directories, which wait for conflicts beneath. `dropped` are the changes that choices of
    whole paths have dropped.
    """

    decisions: dict[bytes, Decision]
    conflicts: list[Conflict]
    deferred: dict[bytes, Decision] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)


class Policy(Struct, frozen=True, kw_only=True):
    """Rules for conflicts.

    ``fail``: all stay. ``ours``: each clash takes the version of `branch`, if it takes part. ``union``: clashing lines
    are kept from all, and edits win over deletions. ``markers``: clashing lines are put between conflict markers.
    `takes` gives paths, with all beneath them, to one branch whatever the others did.
    """

    rule: Literal["fail", "ours", "union", "markers"] = "fail"
    branch: str = ""
    takes: Mapping[bytes, str] = field(default_factory=dict)


def to_document(merge: Merge) -> bytes:
    """Serialise a merge, as MessagePack."""
    return msgspec.msgpack.encode(merge)


def from_document(document: bytes) -> Merge:
    """Read a document of `to_document`. Raises `snapshot_corrupt`."""
    try:
        return msgspec.msgpack.decode(document, type=Merge)
    except msgspec.DecodeError as error:
        raise DataError("snapshot_corrupt", f"the document of the merge is damaged ({error}): merge again") from None
