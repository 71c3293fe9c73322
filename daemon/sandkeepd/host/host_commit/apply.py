"""The verbs `apply` and `undo`: all steps of a commit or none, also after a crash at any point."""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandkeepd.host.host_commit.journal import Journal, JournalError
from sandkeepd.host.host_commit.moves import IMPLICIT, ChangedError, Kept, Moves, Step
from sandkeepd.host.host_commit.names import parent_of, why_forbidden
from sandkeepd.host.host_commit.plan import ContentsError, Planner
from sandkeepd.host.host_commit.staging import ForeignError, Staging
from sandkeepd.host.host_commit.survey import BLOCKED, Finding, Survey
from sandkeepd.host.host_commit.tree import Tree


class StoppedError(Exception):
    """SIGTERM: the daemon gave the commit up."""


class MovedError(Exception):
    """The path of the target leads to another directory than that of the commit."""


@dataclass(slots=True)
class Outcome:
    """The end of a verb: `result`, and the paths that an undo left as the host has them now."""

    result: str
    number: int = 0
    kept: list[Kept] = field(default_factory=list)
    leftover: bool = False


class Commit:
    """One commit in a locked target, with its locked journal. `checkpoint` is called with the name of each point; it
    may raise StoppedError.
    """

    def __init__(self, tree: Tree, commit: str, journal: Journal, checkpoint: Callable[[str], None]) -> None:
        self._tree = tree
        self._commit = commit
        self._journal = journal
        self._checkpoint = checkpoint

    def apply(self, changes: Sequence[Any], survey: Survey, contents: int) -> Outcome:
        """Make all changes that the survey lets through. On any error everything is as it was; then the findings of
        the survey name the path that caused it.
        """
        staging = Staging.create(self._tree, self._commit, self._journal)
        moves = Moves(self._tree, staging)
        steps: list[Step] = []
        step: Step | None = None
        try:
            steps = Planner(self._tree, staging, contents, self._checkpoint).plan(changes, survey)
            self._checkpoint("staged")
            staging.sync()
            self._journal.write([each.to_json() for each in steps])
            self._checkpoint("journal")
            made = []
            for step in steps:
                if moves.make(step):
                    made.append(step)
                else:
                    survey.findings[step.place] = Finding("kept", "not_empty")
                self._checkpoint("move")
            step = None
            self._checkpoint("moved")
            self._tree.flush(_touched(steps))
            for each in made:
                moves.check_slot(each)
            self._checkpoint("flushed")
            os.fsync(staging.slots)
            self._journal.mark("complete")
        except (ChangedError, ContentsError, StoppedError, OSError) as error:
            if self._journal.state == "complete":  # and only the fsync after that failed
                return Outcome("complete", leftover=True)
            outcome = self._explain(error, step, survey)
            undone = self._roll_back(staging, steps, discard=False)
            outcome.kept, outcome.leftover = undone.kept, undone.leftover
            return outcome
        self._checkpoint("complete")
        kept, leftover = self._clean_up(staging, steps)
        return Outcome("complete", kept=kept, leftover=leftover)

    def _explain(self, error: Exception, step: Step | None, survey: Survey) -> Outcome:
        if isinstance(error, StoppedError):
            return Outcome("stopped")
        if isinstance(error, ContentsError):
            return Outcome("contents")
        if isinstance(error, JournalError):
            return Outcome("journal", error.errno or errno.EIO)
        if isinstance(error, ChangedError):
            if error.place != IMPLICIT:
                survey.findings[error.place] = Finding("host_changed", error.why)
            return Outcome("changed")
        assert isinstance(error, OSError)
        number = error.errno or errno.EIO
        if step is not None and number in BLOCKED:
            if step.place != IMPLICIT:
                survey.findings[step.place] = Finding("blocked", BLOCKED[number])
            return Outcome("changed")
        return Outcome("failed", number)

    def undo(self, *, discard: bool) -> Outcome:
        """Take back a commit that is not complete, or clean up after one. With `discard`, drop the old entries that
        cannot be put back. "none": there is nothing of it in the target. Raises MovedError, ForeignError, ValueError.
        """
        state = self._journal.state
        if state is None:
            Staging.remove_empty(self._tree, self._commit)
            return Outcome("none")
        target, inode = self._journal.identities()
        if target != self._tree.inode:
            raise MovedError
        steps = _read_steps(self._journal)
        try:
            staging = Staging(self._tree, self._commit, inode)
        except FileNotFoundError:
            if state == "applying":  # it goes only after that
                raise ForeignError from None
            return Outcome("none")
        if state == "applying":
            return self._roll_back(staging, steps, discard=discard)
        kept, leftover = self._clean_up(staging, steps, discard=discard)
        return Outcome("complete" if state == "complete" else "undone", kept=kept, leftover=leftover)

    def _roll_back(self, staging: Staging, steps: list[Step], *, discard: bool) -> Outcome:
        moves = Moves(self._tree, staging)
        kept: list[Kept] = []
        failed = False
        for step in reversed(steps):
            try:
                left = moves.take_back(step)
            except OSError as error:
                failed = True
                left = Kept(step.path, BLOCKED.get(error.errno or 0, "error"), moves.backup_of(step))
            if left:
                kept.append(left)
            self._checkpoint("rollback")
        if self._journal.state == "applying":
            self._tree.flush(_touched(steps))
            if (failed or any(each.slot is not None for each in kept)) and not discard:
                return Outcome("undone", kept=kept, leftover=True)
            os.fsync(staging.slots)
            self._journal.mark("undone")
        self._checkpoint("undone")
        more, leftover = self._clean_up(staging, steps, discard=discard)
        return Outcome("undone", kept=[*kept, *more], leftover=leftover)

    def _clean_up(self, staging: Staging, steps: list[Step], *, discard: bool = False) -> tuple[list[Kept], bool]:
        """Remove the staging directory with its entries. A directory to which the host has added something since goes
        back to its place.
        """
        paths = {step.name: step.path for step in steps}
        moves = Moves(self._tree, staging)
        kept = []
        for name in sorted(os.fsencode(each) for each in os.listdir(staging.slots)):
            if not staging.remove_slot(name):
                path = paths.get(name, b"")
                returned = moves.put_back(name, path)
                kept.append(Kept(path, "not_empty", None if returned else int(name)))
            self._checkpoint("cleanup")
        if any(each.slot is not None for each in kept) and not discard:
            return kept, True
        return kept, not staging.remove()


def _read_steps(journal: Journal) -> list[Step]:
    """Return the steps of the journal. Raises OSError, ValueError."""
    try:
        steps = [Step.from_json(values) for values in journal.steps()]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("damaged") from error
    if any(why_forbidden(step.path) for step in steps):
        raise ValueError("path")
    return steps


def _touched(steps: Sequence[Step]) -> set[bytes]:
    """Return the directories whose names, and the paths whose modes, the steps change."""
    return {parent_of(step.path) for step in steps if step.act != "mode"} | {
        step.path for step in steps if step.act == "mode"
    }
