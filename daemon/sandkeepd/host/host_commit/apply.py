"""The verbs `apply` and `undo`: all steps of a commit or none, also after a crash at any point."""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sandkeepd.host.host_commit.moves import IMPLICIT, ChangedError, Kept, Moves, Step
from sandkeepd.host.host_commit.names import parent_of, why_forbidden
from sandkeepd.host.host_commit.plan import ContentsError, Planner
from sandkeepd.host.host_commit.staging import Staging
from sandkeepd.host.host_commit.survey import BLOCKED, Finding, Survey
from sandkeepd.host.host_commit.tree import Tree

JOURNAL_VERSION: Final = 1


class StoppedError(Exception):
    """SIGTERM: the daemon gave the commit up."""


@dataclass(slots=True)
class Outcome:
    """The end of a verb: `result`, and the paths that an undo left as the host has them now."""

    result: str
    number: int = 0
    kept: list[Kept] = field(default_factory=list)
    leftover: bool = False


class Commit:
    """One commit in a locked target. `checkpoint` is called with the name of each point; it may raise StoppedError."""

    def __init__(self, tree: Tree, commit: str, checkpoint: Callable[[str], None]) -> None:
        self._tree = tree
        self._commit = commit
        self._checkpoint = checkpoint

    def apply(self, changes: Sequence[Any], survey: Survey, contents: int, *, clean_up: bool) -> Outcome:
        """Make all changes that the survey lets through. On any error everything is as it was; then the findings of
        the survey name the path that caused it.
        """
        staging = Staging.create(self._tree, self._commit)
        moves = Moves(self._tree, staging)
        steps: list[Step] = []
        step: Step | None = None
        try:
            steps = Planner(self._tree, staging, contents, self._checkpoint).plan(changes, survey)
            self._checkpoint("staged")
            staging.write_journal({"version": JOURNAL_VERSION, "steps": [each.to_json() for each in steps]})
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
            staging.mark("complete")
        except (ChangedError, ContentsError, StoppedError, OSError) as error:
            if staging.state == "complete":  # and only the fsync after that failed
                return Outcome("complete", leftover=True)
            outcome = self._explain(error, step, survey)
            undone = self._roll_back(staging, steps, discard=False)
            outcome.kept, outcome.leftover = undone.kept, undone.leftover
            return outcome
        self._checkpoint("complete")
        if not clean_up:
            return Outcome("complete")
        kept, leftover = self._clean_up(staging, steps)
        return Outcome("complete", kept=kept, leftover=leftover)

    def _explain(self, error: Exception, step: Step | None, survey: Survey) -> Outcome:
        if isinstance(error, StoppedError):
            return Outcome("stopped")
        if isinstance(error, ContentsError):
            return Outcome("contents")
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
        cannot be put back. "none" means that there is no trace of it; only a comparison tells then how it ended.
        """
        try:
            staging = Staging(self._tree, self._commit)
        except FileNotFoundError:
            return Outcome("none")
        state = staging.state
        if state is None and not os.listdir(staging.slots):  # just begun, or all but cleaned up
            staging.remove()
            return Outcome("none")
        steps = [] if state is None else _read_steps(staging, state)
        if state == "journal":
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
        if staging.state == "journal":
            self._tree.flush(_touched(steps))
            if (failed or any(each.slot is not None for each in kept)) and not discard:
                return Outcome("undone", kept=kept, leftover=True)
            staging.mark("undone")
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


def _read_steps(staging: Staging, state: str) -> list[Step]:
    """Return the steps of the journal. Raises ValueError: it was written by this program and its owner, but when?"""
    try:
        journal = staging.read_journal(state)
        if journal["version"] != JOURNAL_VERSION:
            raise ValueError("version")
        steps = [Step.from_json(values) for values in journal["steps"]]
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
