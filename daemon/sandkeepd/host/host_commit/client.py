"""The daemon's side of commits to the host: starts the program with the caller's rights, and parses its answer.

All functions block, for a thread of their own. Nothing that the program says is trusted: the caller may manipulate
processes of his uid. Its answer names paths by their places in the request, except those that an undo kept.

A commit that was cut off, by a crash, a cancellation or a timeout, is taken back by `undo` with its id and its journal.
The journal alone says how a commit ended, whatever the program has answered: see `journal`.
"""

import errno
import fcntl
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, Literal, NoReturn

import msgspec
import trio
from msgspec import Struct

from sandkeep.errors import CallerError, DaemonError, ProviderError, SandkeepError, StateError
from sandkeep.system import openat2
from sandkeep.system.descriptors import closing_fd, write_all
from sandkeepd.contract.caller import Caller
from sandkeepd.host import spawn
from sandkeepd.host.host_commit import program
from sandkeepd.host.host_commit.changes import Change, change_to_json
from sandkeepd.host.host_commit.names import STAGING_PREFIX, why_forbidden
from sandkeepd.host.processes import TOOL_ENV, ordinary_priority

MAX_CHANGES: Final = 200_000
TIMEOUT_S: Final = 900.0
_GRACE_S: Final = 10.0
"""Seconds that the program has to take its steps back before it is killed."""

_EXIT_S: Final = 5.0
_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
_MAX_NAMED: Final = 100
_PATIENCE_MS: Final = 250
_COMMIT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_DENIED: Final = (errno.EACCES, errno.EPERM)
_RESET: Final = [signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]

# Without site-packages: the program needs none, and starts in half the time.
_BOOT: Final = "import sys; sys.path[:0] = sys.argv[1:]; from sandkeepd.host.host_commit.program import main; main()"
_ROOTS: Final = [
    os.path.abspath(os.path.join(os.path.dirname(file), *[os.pardir] * levels))
    for file, levels in ((program.__file__, 3), (openat2.__file__, 2))
]

Status = Literal["apply", "same", "kept", "host_changed", "blocked", "forbidden"]
_Why = Literal[
    "", "missing", "exists", "content", "mode", "kind", "link", "not_a_directory", "permission", "owner",
    "other_filesystem", "in_use", "name", "not_empty", "absolute", "empty", "dots", "git", "staging",
    "backup_missing", "error",
]  # fmt: skip
_Result = Literal[
    "checked", "complete", "refused", "changed", "undone", "none", "busy", "unfinished", "failed", "stopped", "target",
    "contents", "invalid", "foreign", "moved", "journal", "damaged", "defect",
]  # fmt: skip


class PathStatus(Struct, frozen=True, kw_only=True):
    """The status of one path. `why` says how the host changed it, what blocks it, or what forbids it."""

    path: bytes
    status: Status
    why: str


class Report(Struct, frozen=True, kw_only=True):
    """The statuses of a commit's paths: all are counted, and 10,000 named, with the problems first.

    `leftover`: the commit is complete, but its staging directory remains, for `undo` to remove.
    """

    counts: dict[str, int]
    paths: list[PathStatus]
    leftover: bool = False


class KeptPath(Struct, frozen=True, kw_only=True):
    """A path that the host changed after the commit did, which `undo` left alone. `backup` is the path, in the target,
    of the entry before the commit, if there was one.
    """

    path: bytes
    why: str
    backup: bytes | None


class Undone(Struct, frozen=True, kw_only=True):
    """The end of an `undo`. `outcome`: "undone"; "complete", if the commit had been; "none", if there is nothing of it
    in the target. `leftover`: the staging directory remains, with the backups.
    """

    outcome: Literal["undone", "complete", "none"]
    kept: list[KeptPath]
    kept_count: int
    leftover: bool


class _Answer(Struct, frozen=True, forbid_unknown_fields=True):
    result: _Result
    errno: int = 0
    message: str = ""
    commit: str = ""
    counts: dict[Status, int] = {}
    items: list[tuple[int, Status, _Why]] = []
    kept: list[tuple[str, _Why, int | None]] = []
    kept_count: int = 0
    leftover: bool = False


def check(
    target: str,
    caller: Caller,
    changes: Sequence[Change],
    *,
    force: Collection[bytes] | None = (),
    timeout_s: float = TIMEOUT_S,
) -> Report:
    """Compare the directory `target` with the changes. `force` names paths to overwrite (None: all), as for `apply`.

    Raises `invalid` (no such directory), `permission_denied`, `timeout`, `storage_unavailable`.
    """
    answer = _run("check", target, caller, timeout_s, changes=changes, force=force)
    if answer.result != "checked":
        _fail(answer, target, "", changes)
    return _report(answer, changes)


def apply(
    target: str,
    caller: Caller,
    commit: str,
    changes: Sequence[Change],
    contents: int,
    journal: int,
    *,
    force: Collection[bytes] | None = (),
    timeout_s: float = TIMEOUT_S,
    failpoints: Sequence[str] = (),
) -> Report:
    """Make all changes in the directory `target`, or none. `contents` is a read-only descriptor of all new contents,
    `journal` one of an empty file, whose name is durable.

    Raises `invalid` (no such directory; a forbidden path), `permission_denied`, `host_changed` with the `paths` and
    their statuses, `conflict` while another commit changes the target, or if it has a staging directory (`unfinished`
    is the id in its name), `storage_unavailable` on a full disk. Nothing is changed then. After `timeout`,
    `provider_unavailable`, `internal` and a cancellation the commit may be half-done or complete, and so it may if the
    error has `leftover`: read the state of the journal, or call `undo`, which is harmless after the others, too.
    """
    if fcntl.fcntl(contents, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        raise ValueError("contents must be open for reading only")
    answer = _run(
        "apply", target, caller, timeout_s, commit=commit, changes=changes, contents=contents, journal=journal,
        force=force, failpoints=failpoints,
    )  # fmt: skip
    if answer.result != "complete":
        _fail(answer, target, commit, changes)
    return _report(answer, changes)


def undo(
    target: str,
    caller: Caller,
    commit: str,
    journal: int,
    *,
    discard: bool = False,
    timeout_s: float = TIMEOUT_S,
    failpoints: Sequence[str] = (),
) -> Undone:
    """Take back a commit that was cut off, or clean up after a complete one, as its `journal` says. It can be repeated.

    A path that the host changed since stays; its backup remains in the staging directory, and other commits to the
    target are refused until it is removed, by hand or with `discard`. Raises as `apply` does; `host_changed` if the
    target or its staging directory is not the one of the commit, so that nothing is taken back.
    """
    answer = _run(
        "undo", target, caller, timeout_s, commit=commit, journal=journal, discard=discard, failpoints=failpoints
    )
    if answer.result not in ("undone", "complete", "none"):
        _fail(answer, target, commit, [])
    backups = STAGING_PREFIX + commit.encode("ascii") + b"/slots/"
    kept = [
        KeptPath(path=_path(path), why=why, backup=None if slot is None else backups + b"%d" % slot)
        for path, why, slot in answer.kept
    ]
    return Undone(
        outcome=answer.result,
        kept=kept,
        kept_count=answer.kept_count,
        leftover=answer.leftover,
    )


def _run(
    verb: str,
    target: str,
    caller: Caller,
    timeout_s: float,
    *,
    commit: str = "",
    changes: Sequence[Change] = (),
    contents: int | None = None,
    journal: int | None = None,
    force: Collection[bytes] | None = (),
    discard: bool = False,
    failpoints: Sequence[str] = (),
) -> _Answer:
    _check_request(target, caller, commit, verb, changes)
    request = {
        "verb": verb,
        "caller": [caller.uid, caller.gid, list(caller.groups)],
        "parent": os.getpid(),
        "target": os.fsencode(target).decode("latin-1"),
        "commit": commit,
        "changes": [change_to_json(change) for change in changes],
        "force": None if force is None else [path.decode("latin-1") for path in force],
        "discard": discard,
        "failpoints": list(failpoints),
    }
    files = {program.CONTENTS_FD: contents, program.JOURNAL_FD: journal}
    output = _exchange(json.dumps(request).encode("ascii"), target, files, timeout_s)
    try:
        answer = msgspec.json.decode(output, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = f"the program that writes in {target} ended before it answered: undo the commit"
        raise ProviderError("provider_unavailable", message) from None
    if max(len(answer.items), len(answer.kept)) > program.MAX_DETAILS:
        raise _nonsense(target)
    if any(not 0 <= place < len(changes) for place, _, _ in answer.items):
        raise _nonsense(target)
    return answer


def _check_request(target: str, caller: Caller, commit: str, verb: str, changes: Sequence[Change]) -> None:
    if os.geteuid() != 0 and caller.uid != os.geteuid():
        message = "this daemon can write files only for the user it runs as: use root's daemon, or one of your own"
        raise CallerError("permission_denied", message)
    if not target.startswith("/") or "\0" in target:
        raise CallerError("invalid", f"target: {target[:200]!r} is not an absolute path", field="target")
    if verb != "check" and not _COMMIT.fullmatch(commit):
        raise ValueError(f"{commit[:100]!r} is not the id of a commit")
    if len(changes) > MAX_CHANGES:
        message = f"the branch changed {len(changes)} paths, and a commit can have {MAX_CHANGES}: commit fewer"
        raise CallerError("invalid", message, field="paths")


def _exchange(request: bytes, target: str, files: Mapping[int, int | None], timeout_s: float) -> bytes:
    """Run the program with a request, and return its answer; nothing if it was killed. Raises as trio if cancelled."""
    with ExitStack() as stack:
        null = stack.enter_context(closing_fd(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)))
        requested = stack.enter_context(closing_fd(os.memfd_create("sandkeep-commit")))
        write_all(requested, request)
        os.lseek(requested, 0, os.SEEK_SET)
        reading, writing = os.pipe()
        stack.enter_context(closing_fd(reading))
        with closing_fd(writing), ordinary_priority():
            descriptors = {0: null, 1: writing, 2: null, program.REQUEST_FD: requested}
            for number, file in files.items():
                if file is not None:
                    # The number of the copy must not be one of those that are assigned before it.
                    copy = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, program.JOURNAL_FD + 1)
                    descriptors[number] = stack.enter_context(closing_fd(copy))
            argv = [sys.executable, "-I", "-S", "-c", _BOOT, *_ROOTS]
            pid = spawn.start(argv, TOOL_ENV, descriptors, _RESET)
        with _ended_with_block(pid):
            return _read(reading, time.monotonic() + timeout_s, target)


@contextmanager
def _ended_with_block(pid: int) -> Iterator[None]:
    """End the program, a child of ours, and its group when the block ends, however that is; and reap it.

    After an error it may take its steps back first.
    """
    with closing_fd(os.pidfd_open(pid)) as pidfd:
        try:
            yield
            _wait(pidfd, _EXIT_S)
        except BaseException:
            os.killpg(pid, signal.SIGTERM)
            os.killpg(pid, signal.SIGCONT)
            _wait(pidfd, _GRACE_S)
            raise
        finally:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _wait(pidfd: int, timeout_s: float) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll(timeout_s * 1000)


def _read(pipe: int, deadline: float, target: str) -> bytes:
    """Read the answer up to the end of the pipe."""
    output = bytearray()
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while True:
        with suppress(RuntimeError):  # not a thread of trio's
            trio.from_thread.check_cancelled()
        if time.monotonic() > deadline:
            message = f"the commit to {target} took too long: undo it, and see whether the disk is overloaded"
            raise StateError("timeout", message)
        if poll.poll(_PATIENCE_MS):
            piece = os.read(pipe, 65536)
            output += piece
            if not piece:
                return bytes(output)
            if len(output) > _MAX_ANSWER_BYTES:
                raise _nonsense(target)


def _report(answer: _Answer, changes: Sequence[Change]) -> Report:
    paths = [PathStatus(path=changes[place].path, status=status, why=why) for place, status, why in answer.items]
    counts = {str(status): count for status, count in answer.counts.items()}
    return Report(counts=counts, paths=paths, leftover=answer.leftover)


def _path(text: str) -> bytes:
    """Return a path that the program names. Raises `provider_unavailable` for one that no commit has."""
    try:
        path = text.encode("latin-1")
    except UnicodeEncodeError:
        raise _nonsense("the target") from None
    if why_forbidden(path) or len(path) > 4095:
        raise _nonsense("the target")
    return path


def _nonsense(target: str) -> SandkeepError:
    message = f"the program that writes in {target} was tampered with: check the directory, and who else has your uid"
    return ProviderError("provider_unavailable", message)


def _fail(answer: _Answer, target: str, commit: str, changes: Sequence[Change]) -> NoReturn:
    """Raise the error that an answer means."""
    rest = {"leftover": True, "commit": commit} if answer.leftover else {}
    match answer.result:
        case "target":
            raise _target_error(answer, target)
        case "busy":
            raise StateError("conflict", f"another commit is changing {target}: try again later")
        case "unfinished":
            dead = answer.commit if _COMMIT.fullmatch(answer.commit) else ""
            name = answer.commit.encode("unicode_escape").decode("ascii")
            message = (
                f"{_staging(target, name)} is not of a commit that this daemon can take back: if it is of another"
                " daemon's, start that one, else look at what is in it and remove it, and commit again"
            )
            raise StateError("conflict", message, unfinished=dead)
        case "refused" | "changed":
            raise _refusal(_report(answer, changes), target, rest)
        case "failed":
            raise _system_error(answer.errno, target, rest)
        case "stopped":
            message = f"the program that writes in {target} was stopped before it changed anything: try again"
            raise ProviderError("provider_unavailable", message, **rest)
        case "invalid":
            raise CallerError(
                "invalid", "a path is there twice or below a file, or a link leads nowhere: leave it out", field="paths"
            )
        case "foreign":
            directory = _staging(target, commit)
            message = f"{directory} was moved or replaced, so nothing was undone: compare {target} with branch.plan"
            raise StateError("host_changed", message)
        case "moved":
            message = f"{target} is no longer the directory that {commit} began to change: nothing was undone"
            raise StateError("host_changed", message)
        case "journal":
            reason = _reason(answer.errno)
            message = f"the journal of {commit} cannot be written: {reason}: make room in the state directory"
            raise DaemonError("storage_unavailable", message, **rest)
        case "damaged":
            message = f"the journal of {commit} in the state directory is damaged: look at its backups in {target}"
            raise DaemonError("internal", message)
        case _:
            message = f"the commit to {target} failed: {answer.result} {answer.message[-500:]!r}"
            raise DaemonError("internal", message, **rest)


def _target_error(answer: _Answer, target: str) -> SandkeepError:
    if answer.message == "git":
        message = f"{target} is in a directory of git's or of a commit: choose another one"
        return CallerError("invalid", message, field="target")
    if answer.message == "link":
        message = f"{target} leads through a link where another user may write: give the path without links"
        return CallerError("invalid", message, field="target")
    if answer.errno in _DENIED:
        return CallerError("permission_denied", f"you may not read {target}", field="target", path=target)
    return CallerError("invalid", f"target: {target} is not a directory: {_reason(answer.errno)}", field="target")


def _refusal(report: Report, target: str, rest: dict[str, Any]) -> SandkeepError:
    problems = [each for each in report.paths if each.status in ("host_changed", "blocked", "forbidden")]
    paths = [
        {"path": each.path.decode("utf-8", "backslashreplace"), "status": each.status, "why": each.why}
        for each in problems[:_MAX_NAMED]
    ]
    data: dict[str, Any] = {"paths": paths, "counts": report.counts, **rest}
    first = f"{paths[0]['path']} ({paths[0]['why'] or paths[0]['status']})" if paths else "no path was named"
    if any(each.status == "forbidden" for each in problems):
        message = f"a commit may not write {first}: leave it out"
        return CallerError("invalid", message, field="paths", **data)
    if problems and all(each.why in ("permission", "owner") for each in problems):
        return CallerError("permission_denied", f"you may not change {first} in {target}", **data)
    message = f"{target} differs from what the branch began with, so nothing was committed: see {first}"
    return StateError("host_changed", message, **data)


def _system_error(number: int, target: str, rest: dict[str, Any]) -> SandkeepError:
    reason = _reason(number)
    if number in _FULL:
        message = f"{target} cannot be written: {reason}: make room there, or repair the disk"
        return DaemonError("storage_unavailable", message, **rest)
    if number in _DENIED:
        return CallerError("permission_denied", f"you may not write in {target}", field="target", path=target, **rest)
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EBADF):
        message = f"the file system of {target} cannot exchange files atomically: choose a directory on a local disk"
        return CallerError("invalid", message, field="target", **rest)
    if number in (errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.ENOTEMPTY, errno.ELOOP):
        message = f"{target} is being changed by another program ({reason}), and nothing was changed: try again"
        return StateError("conflict", message, **rest)
    return DaemonError("internal", f"the commit to {target} failed: {reason}", **rest)


def _reason(number: int) -> str:
    return os.strerror(number) if 0 < number < 4096 else "no reason was given"


def _staging(target: str, commit: str) -> str:
    return f"{target}/{os.fsdecode(STAGING_PREFIX)}{commit}"
