"""Result of a merge as an OCI layer over the base. See `tar.whiteouts`."""

import os
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Final

from sandkeep.errors import DataError, SandkeepError
from sandkeep_store.archives.tar import whiteouts
from sandkeep_store.archives.tar.members import TOP, Member, shown
from sandkeep_store.archives.tar.sparse import MAX_EXTENTS
from sandkeep_store.archives.trees.changes import parent_of, with_directories
from sandkeep_store.archives.trees.read import Remarks
from sandkeep_store.archives.trees.tree import reserved
from sandkeep_store.merging.content import PIECE, extents, has_holes, read_piece
from sandkeep_store.merging.model import Decision, FromBlob, FromBranch, FromSpool, Merge
from sandkeep_store.merging.trees import Entry, Lookup, changed_meanwhile, open_file, unreadable

_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class MergedLayer:
    """A source of members: the decisions of a merge, with the directories above them. See `tree.Source`. Paths in
    conflict are as in the base.

    `base` and `branches` are the open views that were merged, `spool` and `blobs` those of the merge. Iterating raises
    `invalid` for names that no layer can have, `permission_denied`, `conflict` for a file that is not as it was merged,
    and `snapshot_missing` for a lost blob. Extended attributes are left out.
    """

    def __init__(self, merge: Merge, base: int, branches: Mapping[str, int], *, spool: int, blobs: int) -> None:
        self.remarks = Remarks()
        self._decisions = merge.decisions
        self._base = base
        self._branches = branches
        self._spool = spool
        self._blobs = blobs
        self._present: tuple[int, bytes, list[tuple[int, int]]] | None = None

    def __iter__(self) -> Iterator[Member]:
        first: dict[tuple[str, int, int, int], bytes] = {}
        with Lookup(self._base) as base:
            for name in with_directories([*self._decisions]):
                decision = self._decisions.get(name)
                if decision is not None and decision.entry is None:
                    if self._needs_whiteout(name):
                        yield Member(name=whiteouts.whiteout(name), kind="file")
                    continue
                if whiteouts.is_reserved(name):
                    raise reserved(name)
                before = base.entry(name)
                if decision is None or decision.entry is None:
                    yield _directory_above(name, before)
                    continue
                yield from self._members(name, decision, decision.entry, first)
                if decision.entry.kind == "directory" and before is not None and before.kind != "directory":
                    # A layer below the file may have a directory there, whose contents would show.
                    yield Member(name=whiteouts.opaque(name), kind="file")

    def data(self) -> Iterator[memoryview]:
        """See `tree.Source`."""
        if self._present is None:
            return
        fd, name, parts = self._present
        for begin, length in parts:
            for offset in range(begin, begin + length, PIECE):
                yield memoryview(read_piece(fd, name, offset, min(PIECE, begin + length - offset)))

    def _needs_whiteout(self, name: bytes) -> bool:
        """Return True if a deletion is not part of that of a directory above, or of its replacement."""
        above = self._decisions.get(parent_of(name)) if name != TOP else None
        return above is None or (above.entry is not None and above.entry.kind == "directory")

    def _members(
        self, name: bytes, decision: Decision, entry: Entry, first: dict[tuple[str, int, int, int], bytes]
    ) -> Iterator[Member]:
        member = _member(name, entry)
        if entry.kind != "file":
            yield member
            return
        content = decision.content
        if isinstance(content, FromBranch) and entry.links > 1:
            identity = (content.branch, entry.device, entry.inode, entry.mode)
            if (target := first.setdefault(identity, name)) != name:
                member.kind, member.target, member.size, member.whole_size = "hard link", target, 0, 0
                yield member
                return
        with ExitStack() as closing:
            fd, begin = self._open(name, decision, closing)
            self._present = fd, name, _parts(fd, name, begin, entry.size, member)
            yield member
            self._present = None

    def _open(self, name: bytes, decision: Decision, closing: ExitStack) -> tuple[int, int]:
        """Open what has the content of a file; return it, and the offset of the content there, -1 for a file of its
        own.
        """
        match decision.content:
            case FromBranch(branch):
                fd = open_file(self._branches[branch], name)
                closing.callback(os.close, fd)
                return fd, -1
            case FromBlob(sha256):
                fd = self._open_blob(sha256)
                closing.callback(os.close, fd)
                return fd, -1
            case FromSpool(offset, _):
                return self._spool, offset
        raise _lost(name)

    def _open_blob(self, sha256: str) -> int:
        try:
            return os.open(sha256, _OPEN, dir_fd=self._blobs)
        except OSError:
            raise _lost(sha256.encode()) from None


def _parts(fd: int, name: bytes, begin: int, size: int, member: Member) -> list[tuple[int, int]]:
    """Return offsets and lengths of the data in an open file, and describe its holes in the member."""
    if begin >= 0:
        return [(begin, size)]
    status = os.fstat(fd)
    if status.st_size != size:
        raise changed_meanwhile(name)
    if not has_holes(status):
        return [(0, size)]
    found: list[tuple[int, int]] = []
    try:
        for part in extents(fd, size):
            found.append(part)
            if len(found) > MAX_EXTENTS:
                return [(0, size)]  # the holes are written as zeros
    except OSError as error:
        raise unreadable(name, error) from None
    member.extents = array("q", [number for part in found for number in part])
    member.size = sum(length for _, length in found)
    return found


def _member(name: bytes, entry: Entry) -> Member:
    return Member(
        name=name, kind=entry.kind, mode=entry.mode, uid=entry.uid, gid=entry.gid, mtime_ns=entry.mtime_ns,
        target=entry.target, size=entry.size, whole_size=entry.size,
    )  # fmt: skip


def _directory_above(name: bytes, before: Entry | None) -> Member:
    if before is None or before.kind != "directory":
        raise changed_meanwhile(name)
    return _member(name, before)


def _lost(name: bytes) -> SandkeepError:
    return DataError("snapshot_missing", f"the content of {shown(name)} is no longer stored: merge again")
