"""Comparison of a target with the changes of a commit: a status for each path, and nothing is changed."""

import errno
import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sandkeepd.host.host_commit.changes import PERMISSIONS, Change, Entry
from sandkeepd.host.host_commit.names import Repositories, ancestors, depth, folded_mark, parent_of, why_forbidden
from sandkeepd.host.host_commit.tree import Seen, Tree, digest, entries, look

BLOCKED: Final = {
    errno.ELOOP: "link",
    errno.ENOTDIR: "not_a_directory",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.EXDEV: "other_filesystem",
    errno.EBUSY: "in_use",
    errno.EAGAIN: "in_use",
    errno.ETXTBSY: "in_use",
    errno.ENAMETOOLONG: "name",
}
"""The errors of one path, which name it as blocked. Others end the commit."""


@dataclass(slots=True)
class Finding:
    """The status of a path: apply, same, kept, host_changed, blocked or forbidden; and the entry that was seen.

    `only_mode` says that the entry has the new content already, and its mode is set where it is. A file with a set-uid
    bit, or with other names, is replaced instead: nobody gets more of it than of a new file.
    """

    status: str
    why: str = ""
    seen: Seen | None = None
    only_mode: bool = False


class Survey:
    """The findings of one comparison, in the order of the changes. `forced` are paths (None: all) that are applied
    though the host changed them.
    """

    def __init__(self, tree: Tree, changes: Sequence[Change], forced: Collection[bytes] | None) -> None:
        self._tree = tree
        self._changes = changes
        self._forced = forced
        self._places = {change.path: place for place, change in enumerate(changes)}
        # With `force` also the directories above, which the host may lack.
        brought = {path for change in changes if change.new for path in (change.path, *ancestors(change.path))}
        self._brought = {folded_mark(path) for path in brought}
        self._repositories = Repositories(self._has)
        self.findings = [self._inspect(change) for change in changes]
        for place in sorted(range(len(changes)), key=lambda each: -depth(changes[each].path)):
            self._check_contents(changes[place], self.findings[place])

    def applies(self, place: int) -> bool:
        """Return True if the change is to be made: nothing is in its way, or it is forced."""
        finding = self.findings[place]
        return finding.status == "apply" or (finding.status == "host_changed" and self._is_forced(place))

    def stops(self) -> bool:
        """Return True if some change can neither be made nor left out."""
        return not all(
            finding.status in ("same", "kept") or self.applies(place) for place, finding in enumerate(self.findings)
        )

    def _is_forced(self, place: int) -> bool:
        return self._forced is None or self._changes[place].path in self._forced

    def _inspect(self, change: Change) -> Finding:
        why = why_forbidden(change.path) or ("git" if self._repositories.contain(change.path) else None)
        if why:
            return Finding("forbidden", why)
        try:
            with self._tree.parent(change.path) as (parent, name):
                return self._inspect_in(parent, name, change)
        except FileNotFoundError:
            return self._without_parent(change)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and self._explains(change.path):
                return self._without_parent(change)
            if error.errno not in BLOCKED:
                raise
            return Finding("blocked", BLOCKED[error.errno])

    def _has(self, path: bytes) -> bool:
        """Return True if there is something, or the commit brings something."""
        try:
            return folded_mark(path) in self._brought or self._tree.look(path) is not None
        except OSError:
            return False

    def _explains(self, path: bytes) -> bool:
        """Return True if a change of a directory above has a finding of its own about what is there."""
        return any(above in self._places for above in ancestors(path))

    def _without_parent(self, change: Change) -> Finding:
        if change.new is None:
            return Finding("same")
        above = self._places.get(parent_of(change.path))
        if change.old is None and above is not None:  # which has to be a directory, and is made first
            return Finding("apply")
        return Finding("host_changed", "missing")

    def _inspect_in(self, parent: int, name: bytes, change: Change) -> Finding:
        seen = look(parent, name)
        finding = _compare(parent, name, seen, change)
        if finding.status in ("apply", "host_changed"):
            why = self._why_blocked(parent, name, finding, change)
            # A path that the host changed is blocked only for those who force it.
            if why and (finding.status == "apply" or self._is_forced(self._places[change.path])):
                return Finding("blocked", why)
        return finding

    def _why_blocked(self, parent: int, name: bytes, finding: Finding, change: Change) -> str:
        seen, uid, directory = finding.seen, os.geteuid(), os.fstat(parent)
        if {directory.st_dev, seen.device if seen else directory.st_dev} != {self._tree.device}:
            return "other_filesystem"
        own = seen is None or uid in (0, seen.uid)
        if finding.only_mode:
            return "" if own else "owner"
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=parent) and not self._is_widened(change.path, directory, uid):
            return "permission"
        if seen is None:
            return ""
        if not own and directory.st_mode & stat.S_ISVTX and directory.st_uid != uid:
            return "owner"
        writable = os.access(name, os.W_OK, dir_fd=parent, follow_symlinks=False)
        if not own and change.new and not (writable and seen.kind == "file"):
            return "owner"  # replaced, it would belong to the caller
        # The kernel moves a directory only for those who may write in it.
        return "permission" if seen.kind == "directory" and not writable else ""

    def _is_widened(self, path: bytes, directory: os.stat_result, uid: int) -> bool:
        """Return True if this commit makes the directory above writable first."""
        above = self._places.get(parent_of(path))
        entry = self._changes[above].new if above is not None else None
        return entry is not None and directory.st_uid == uid and entry.mode & 0o300 == 0o300

    def _check_contents(self, change: Change, finding: Finding) -> None:
        """Change the finding of a directory that is to go, but holds more than this commit deletes."""
        if finding.seen is None or finding.seen.kind != "directory" or finding.status not in ("apply", "host_changed"):
            return
        if change.new is not None and change.new.kind == "directory":
            return
        try:
            with self._tree.parent(change.path) as (parent, name):
                empty = all(self._is_deleted(change.path + b"/" + entry) for entry in entries(parent, name))
        except OSError as error:
            finding.status, finding.why = "blocked", BLOCKED.get(error.errno or 0, "permission")
            return
        if not empty:
            is_plain = change.new is None and finding.status == "apply"
            finding.status, finding.why = ("kept", "not_empty") if is_plain else ("blocked", "not_empty")

    def _is_deleted(self, path: bytes) -> bool:
        place = self._places.get(path)
        return place is not None and self._changes[place].new is None and self.applies(place)


def _compare(parent: int, name: bytes, seen: Seen | None, change: Change) -> Finding:
    if seen is None:
        return _compare_missing(change)
    old, new = change.old, change.new
    content = _content(parent, name, seen, change)
    is_old, is_new = content in ("old", "both"), content in ("new", "both")
    only_mode = is_new and seen.is_plain
    mode = seen.mode & PERMISSIONS
    if is_new and new and (not change.sets_mode or mode == new.mode & PERMISSIONS or _is_new_directory(change)):
        return Finding("same", "", seen)
    if is_old and old and (not change.sets_mode or old.kind != (new or old).kind or _mode_is_known(mode, old, new)):
        return Finding("apply", "", seen, only_mode=only_mode)
    return Finding("host_changed", _difference(seen, change, is_old or is_new), seen, only_mode=only_mode)


def _compare_missing(change: Change) -> Finding:
    if change.new is None:
        return Finding("same")
    return Finding("apply") if change.old is None else Finding("host_changed", "missing")


def _is_new_directory(change: Change) -> bool:
    return change.old is None and change.new is not None and change.new.kind == "directory"


def _mode_is_known(mode: int, old: Entry, new: Entry | None) -> bool:
    return mode in (old.mode & PERMISSIONS, new.mode & PERMISSIONS if new else -1)


def _difference(seen: Seen, change: Change, same_content: bool) -> str:
    if same_content:
        return "mode"
    if change.old is None:
        return "exists"
    return "kind" if seen.kind != change.old.kind else "content"


def _content(parent: int, name: bytes, seen: Seen, change: Change) -> str:
    """Return whose content the entry has: old, new, both, or none, also if it is being written."""
    candidates = {"old": change.old, "new": change.new}
    alike = {which for which, entry in candidates.items() if entry and entry.kind == seen.kind}
    if seen.kind == "symlink" and alike:
        target = os.readlink(name, dir_fd=parent)
        alike = {which for which in alike if _entry(candidates, which).target == target}
    if seen.kind == "file":
        alike = {which for which in alike if _entry(candidates, which).size == seen.size}
        if alike:
            sha256 = digest(parent, name, seen)
            alike = {which for which in alike if _entry(candidates, which).sha256 == sha256}
    return "both" if len(alike) == 2 else next(iter(alike), "none")


def _entry(candidates: dict[str, Entry | None], which: str) -> Entry:
    entry = candidates[which]
    assert entry is not None
    return entry
