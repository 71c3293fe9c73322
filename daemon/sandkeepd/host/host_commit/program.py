"""The program that compares and changes a caller's directory, with his rights.

It reads one request from descriptor 3, takes the caller's rights, and writes one answer to stdout. Descriptor 4, if the
request has contents, is a file with those of all new files; descriptor 5 is the journal of the commit, in the daemon's
state directory. It imports everything before it drops rights.
"""

import errno
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from sandkeep.system.descriptors import write_all
from sandkeepd.host.host_commit import rights
from sandkeepd.host.host_commit.apply import Commit, MovedError, Outcome, StoppedError
from sandkeepd.host.host_commit.changes import Change, change_from_json
from sandkeepd.host.host_commit.journal import Journal, JournalError
from sandkeepd.host.host_commit.names import STAGING_PREFIX, Repositories, ancestors, is_git, staging_id
from sandkeepd.host.host_commit.staging import BusyError, ForeignError, Staging
from sandkeepd.host.host_commit.survey import Survey
from sandkeepd.host.host_commit.target import LedError
from sandkeepd.host.host_commit.tree import Tree

REQUEST_FD: Final = 3
CONTENTS_FD: Final = 4
JOURNAL_FD: Final = 5
MAX_DETAILS: Final = 10_000
"""Maximum number of paths with a status in an answer."""

MAX_TARGET_BYTES: Final = 4095
MAX_KEPT_BYTES: Final = 2 * 1024 * 1024

_STOPPABLE: Final = {"staging", "copying", "staged", "journal", "move", "moved", "flushed"}
_LOCKED: Final = (errno.EAGAIN, errno.EACCES)
_ACTIONS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM}


class _Checkpoints:
    """The points of a commit: there SIGTERM is noticed, and tests have the program fail.

    A failpoint is ``action:name:count``, such as ``kill:move:3``.
    """

    def __init__(self, failpoints: Sequence[str]) -> None:
        self._stopped = False
        self._failpoints = failpoints
        self._passed: Counter[str] = Counter()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self._stopped = True

    def __call__(self, name: str) -> None:
        if self._failpoints:
            self._passed[name] += 1
            for action, wanted, count in (point.split(":") for point in self._failpoints):
                if (wanted, int(count)) == (name, self._passed[name]):
                    self._act(action)
        if self._stopped and name in _STOPPABLE:
            raise StoppedError

    def _act(self, action: str) -> None:
        if action == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.kill(os.getpid(), _ACTIONS[action])


def main() -> None:
    """Run one request."""
    with open(REQUEST_FD, "rb") as file:
        request = json.loads(file.read())
    checkpoint = _Checkpoints(request["failpoints"])
    os.chdir("/")
    os.umask(0o077)
    try:
        rights.become(*request["caller"])
        rights.end_with_parent(request["parent"])
        answer = _run(request, checkpoint)
    except Exception:  # noqa: BLE001 - the daemon logs it
        answer = {"result": "defect", "message": traceback.format_exc()[-2000:]}
    write_all(sys.stdout.fileno(), json.dumps(answer).encode("ascii"))


def _run(request: dict[str, Any], checkpoint: _Checkpoints) -> dict[str, Any]:
    try:
        tree = Tree(request["target"].encode("latin-1"))
        path = tree.path
    except LedError as error:
        return {"result": "target", "errno": error.errno, "message": "link"}
    except OSError as error:
        return {"result": "target", "errno": error.errno}
    if any(is_git(part) or part.lower().startswith(STAGING_PREFIX) for part in path.split(b"/")):
        return {"result": "target", "errno": errno.EPERM, "message": "git"}
    if request["verb"] != "undo" and _is_in_repository(path):
        return {"result": "target", "errno": errno.EPERM, "message": "git"}
    try:
        if request["verb"] != "check":
            Journal(JOURNAL_FD).lock()  # not the target, which anybody can lock who can open it
    except OSError as error:
        return {"result": "busy"} if error.errno in _LOCKED else {"result": "failed", "errno": error.errno}
    try:
        if request["verb"] == "undo":
            return _undo(tree, request, checkpoint)
        return _check_or_apply(tree, request, checkpoint)
    except ForeignError:
        return {"result": "foreign"}
    except BusyError:
        return {"result": "busy"}
    except JournalError as error:
        return {"result": "journal", "errno": error.errno}
    except OSError as error:
        return {"result": "failed", "errno": error.errno or errno.EIO}


def _is_in_repository(path: bytes) -> bool:
    """Return True if git would take a directory for a bare repository, or one above up to the first with a ``.git``."""
    for directory in (path, *(b"/" + above for above in reversed([*ancestors(path[1:])]))):
        if os.path.lexists(directory + b"/.git"):
            return False
        if Repositories(lambda name, top=directory: os.path.lexists(top + b"/" + name)).contain(b"."):  # type: ignore[misc]
            return True
    return False


def _undo(tree: Tree, request: dict[str, Any], checkpoint: _Checkpoints) -> dict[str, Any]:
    try:
        outcome = Commit(tree, request["commit"], Journal(JOURNAL_FD), checkpoint).undo(discard=request["discard"])
    except MovedError:
        return {"result": "moved"}
    except ValueError as error:
        return {"result": "damaged", "message": str(error)[:200]}
    return _answer(outcome)


def _check_or_apply(tree: Tree, request: dict[str, Any], checkpoint: _Checkpoints) -> dict[str, Any]:
    changes = [change_from_json(values) for values in request["changes"]]
    if not _is_consistent(changes):
        return {"result": "invalid"}
    force = request["force"]
    forced = None if force is None else {path.encode("latin-1") for path in force}
    if request["verb"] == "check":
        return {"result": "checked", **_details(Survey(tree, changes, forced))}
    dead = staging_id([os.fsencode(name) for name in os.listdir(tree.fd)])
    if dead is not None:
        if Staging.is_under_way(tree, dead):
            return {"result": "busy"}
        return {"result": "unfinished", "commit": dead}
    survey = Survey(tree, changes, forced)
    if survey.stops():
        return {"result": "refused", **_details(survey)}
    checkpoint("surveyed")
    commit = Commit(tree, request["commit"], Journal(JOURNAL_FD), checkpoint)
    outcome = commit.apply(changes, survey, CONTENTS_FD)
    return {**_answer(outcome), **_details(survey)}


def _is_consistent(changes: Sequence[Change]) -> bool:
    """Return True if no path is there twice, none is below a new file, and every link has a possible target."""
    by_path = {change.path: change for change in changes}
    if len(by_path) < len(changes):
        return False
    for change in changes:
        if change.new and change.new.kind == "symlink" and not _is_target(change.new.target):
            return False
        for above in ancestors(change.path) if change.new else ():
            upper = by_path.get(above)
            if upper and (upper.new is None or upper.new.kind != "directory"):
                return False
    return True


def _is_target(target: bytes) -> bool:
    return 0 < len(target) <= MAX_TARGET_BYTES and b"\0" not in target


def _answer(outcome: Outcome) -> dict[str, Any]:
    kept = []
    room = MAX_KEPT_BYTES
    for each in outcome.kept[:MAX_DETAILS]:
        room -= len(each.path)
        if room >= 0:
            kept.append([each.path.decode("latin-1"), each.why, each.slot])
    return {
        "result": outcome.result,
        "errno": outcome.number,
        "kept": kept,
        "kept_count": len(outcome.kept),
        "leftover": outcome.leftover,
    }


def _details(survey: Survey) -> dict[str, Any]:
    """Return the counts of all statuses, and those of single paths by their places; the problems first."""
    usual = ("apply", "same")
    places = sorted(range(len(survey.findings)), key=lambda place: survey.findings[place].status in usual)
    items = [(place, survey.findings[place]) for place in places[:MAX_DETAILS]]
    return {
        "counts": dict(Counter(finding.status for finding in survey.findings)),
        "items": [[place, finding.status, finding.why] for place, finding in items],
    }
