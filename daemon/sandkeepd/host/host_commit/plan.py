"""The steps of a commit, in an order in which each can be made, and the new entries in their slots."""

import errno
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Final

from sandkeep.system.descriptors import write_all
from sandkeepd.host.host_commit.changes import PERMISSIONS, Change, Entry
from sandkeepd.host.host_commit.moves import IMPLICIT, Act, ChangedError, Step
from sandkeepd.host.host_commit.names import ancestors, depth
from sandkeepd.host.host_commit.staging import Staging
from sandkeepd.host.host_commit.survey import Finding, Survey
from sandkeepd.host.host_commit.tree import (
    FSYNCS,
    PIECE_BYTES,
    Seen,
    Tree,
    copy_attributes,
    look,
    seen_from,
)

_IMPLICIT_MODE: Final = 0o755
_OWNER: Final = 0o300


class ContentsError(Exception):
    """The file of contents is not what the request says."""


class Planner:
    """Fills a staging directory with new entries, and lists the steps. `checkpoint` is called often and may raise."""

    def __init__(self, tree: Tree, staging: Staging, contents: int, checkpoint: Callable[[str], None]) -> None:
        self._tree = tree
        self._staging = staging
        self._contents = contents
        self._checkpoint = checkpoint
        self._slots = 0
        self._files = 0

    def plan(self, changes: Sequence[Change], survey: Survey) -> list[Step]:
        """Return the steps, whose new entries are durable in their slots then. Raises OSError, ContentsError."""
        todo = [(place, change) for place, change in enumerate(changes) if survey.applies(place)]
        modes: list[Step] = []
        removals: list[Step] = []
        entries: list[Step] = []
        made: set[bytes] = set()
        for place, change in sorted(todo, key=lambda each: each[1].path):
            finding = survey.findings[place]
            if change.new is None:
                removals.append(self._step("remove", place, change.path, finding.seen))
            elif finding.only_mode and finding.seen is not None:
                modes.append(self._mode_step(place, change.path, finding.seen, change.new.mode))
            else:
                entries += self._parents(change.path, made)
                entries.append(self._stage(place, change, change.new, finding))
                if change.new.kind == "directory":
                    made.add(change.path)
                    modes += self._mode_of_new(entries[-1], change.new.mode)
        if self._files > FSYNCS:
            self._staging.flush()
        removals.sort(key=lambda step: -depth(step.path))
        modes.sort(key=lambda step: depth(step.path))
        # A directory that becomes writable does so first, one that becomes read-only last.
        first = [step for step in modes if step.old and step.mode & ~step.old.mode & _OWNER]
        last = [step for step in reversed(modes) if step not in first]
        return [*first, *removals, *entries, *last]

    def _step(self, act: Act, place: int, path: bytes, old: Seen | None) -> Step:
        self._slots += 1
        return Step(act=act, place=place, slot=self._slots, path=path, old=old)

    def _mode_step(self, place: int, path: bytes, old: Seen, mode: int) -> Step:
        step = self._step("mode", place, path, old)
        step.mode = mode & PERMISSIONS
        return step

    def _mode_of_new(self, step: Step, mode: int) -> list[Step]:
        staged = look(self._staging.slots, step.name)
        assert staged is not None
        return [self._mode_step(step.place, step.path, staged, mode)] if (staged.mode ^ mode) & PERMISSIONS else []

    def _parents(self, path: bytes, made: set[bytes]) -> list[Step]:
        """Stage the directories that the host removed above a path, which is forced then."""
        steps = []
        for above in ancestors(path):
            if above not in made and self._tree_lacks(above):
                made.add(above)
                steps.append(self._stage_directory(IMPLICIT, above, None, _IMPLICIT_MODE))
        return steps

    def _tree_lacks(self, path: bytes) -> bool:
        try:
            return self._tree.look(path) is None
        except NotADirectoryError:  # what is there is replaced by a directory of this commit
            return False

    def _stage(self, place: int, change: Change, new: Entry, finding: Finding) -> Step:
        self._checkpoint("staging")
        if new.kind == "directory":
            return self._stage_directory(place, change.path, finding.seen, 0o700)
        step = self._step("replace" if finding.seen else "create", place, change.path, finding.seen)
        if new.kind == "symlink":
            os.symlink(new.target, step.name, dir_fd=self._staging.slots)
            if finding.seen and os.geteuid() == 0:
                owner = (finding.seen.uid, finding.seen.gid)
                os.chown(step.name, *owner, dir_fd=self._staging.slots, follow_symlinks=False)
        else:
            self._stage_file(step, change, new, finding.seen)
        return self._identify(step, new)

    def _stage_directory(self, place: int, path: bytes, old: Seen | None, mode: int) -> Step:
        step = self._step("replace" if old else "create", place, path, old)
        os.mkdir(step.name, 0o700, dir_fd=self._staging.slots)
        if mode != 0o700:
            os.chmod(step.name, mode, dir_fd=self._staging.slots)
        return self._identify(step, Entry(kind="directory"))

    def _stage_file(self, step: Step, change: Change, new: Entry, old: Seen | None) -> None:
        fd = self._staging.create_file(step.name)
        try:
            self._copy(fd, new)
            replaces = old is not None and old.kind == "file"
            mode = old.mode if old is not None and replaces and not change.sets_mode else new.mode
            if old is not None and replaces:
                self._copy_attributes(step, old, fd)
            os.fchmod(fd, mode & PERMISSIONS)  # after the ACL, of which it is a part
            self._files += 1
            if self._files <= FSYNCS:
                os.fsync(fd)
        finally:
            os.close(fd)

    def _copy_attributes(self, step: Step, old: Seen, fd: int) -> None:
        try:
            with self._tree.parent(step.path) as (parent, name):
                if not old.is_same(look(parent, name)):
                    raise ChangedError(step.place, "content")
                copy_attributes(parent, name, old, fd)
        except FileNotFoundError:
            raise ChangedError(step.place, "missing") from None

    def _copy(self, fd: int, new: Entry) -> None:
        sha256 = hashlib.sha256()
        done = 0
        while done < new.size:
            piece = os.pread(self._contents, min(PIECE_BYTES, new.size - done), new.offset + done)
            if not piece:
                raise ContentsError
            sha256.update(piece)
            done += len(piece)
            if piece.count(0) == len(piece):
                os.ftruncate(fd, done)  # a hole, as it was
                os.lseek(fd, done, os.SEEK_SET)
            else:
                write_all(fd, piece)
            self._checkpoint("copying")
        if sha256.hexdigest() != new.sha256:
            raise ContentsError

    def _identify(self, step: Step, new: Entry) -> Step:
        info = seen_from(os.stat(step.name, dir_fd=self._staging.slots, follow_symlinks=False))
        if info.device != self._tree.device:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        step.kind, step.inode = info.kind, info.inode
        step.size, step.sha256, step.target = new.size, new.sha256, new.target
        return step
