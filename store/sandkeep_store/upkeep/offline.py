"""The store looked after without a daemon, or by one: folded, checked, and its documents written anew."""

import contextlib
import math
import os
import subprocess
from collections.abc import Sequence

import trio

from sandkeep.errors import DaemonError, SandkeepError, SetupError
from sandkeep.events import Meta
from sandkeep.model import CompactReport, RebuildReport, VerifyReport
from sandkeep.protocol.clock import now_us
from sandkeep.system.descriptors import closing_fd
from sandkeep_store import metadata_files
from sandkeep_store.eventlog import witness
from sandkeep_store.eventlog.log import EventLog, Recorded
from sandkeep_store.threads import in_thread
from sandkeep_store.upkeep import segments, state_cache
from sandkeep_store.upkeep.compaction import Compaction
from sandkeep_store.views.metadata import document
from sandkeep_store.views.state import State

LOG_NAME = "events.db"
OUTPUT_TIMES = "output-times"
"""The directory with the times of output: a directory for each sandbox, in it a file for each process."""


def fold(log: EventLog) -> State:
    """Return the state of the whole log. Blocks. Raises as `EventLog.fold` does."""
    state = State()
    log.fold(state)
    return state


def open_log(state_dir: str) -> EventLog:
    """The log of a state directory that no daemon uses. Raises `not_configured` when there is none."""
    require_log(state_dir)
    return EventLog.open(f"{state_dir}/{LOG_NAME}")


def require_log(state_dir: str) -> None:
    """Raise `not_configured` where there is no log, and `storage_unavailable` where there was one."""
    path = f"{state_dir}/{LOG_NAME}"
    if os.path.isfile(path):
        return
    if os.path.lexists(path) or os.path.lexists(witness.path_of(path)):
        message = f"the event log {path} is gone: restore the state directory from a backup"
        raise DaemonError("storage_unavailable", message)
    raise SetupError("not_configured", f"{state_dir} holds no event log: name the directory of a daemon's state")


def verify(state_dir: str) -> VerifyReport:
    """Check the log and every metadata.json of a state directory. Raises `conflict` while a daemon uses it."""
    with contextlib.closing(open_log(state_dir)) as log:
        problems = log.verify() + segments.verify(state_dir, log.log_id)
        if not problems:
            root = f"{state_dir}/sandboxes"
            problems = metadata_files.ahead_of(root, log.log_id, log.head)
            state = fold(log)
            problems += metadata_files.check(root, state, log.log_id)
            problems += state_cache.difference(state_dir, log, state)
        return report(log, problems)


def _require_undoubted(log: EventLog, state_dir: str) -> None:
    """Refuse any change beside a log that lost its end: the loss must be investigated first."""
    problems = log.doubts + metadata_files.ahead_of(f"{state_dir}/sandboxes", log.log_id, log.head)
    if problems:
        raise DaemonError("storage_unavailable", problems[0])


def report(log: EventLog, problems: list[str]) -> VerifyReport:
    """Return the report of a check, with the log's extent."""
    return VerifyReport(
        ok=not problems,
        events=log.reader.count(),
        first_position=log.first_position,
        last_position=log.head,
        problems=problems,
    )


def compact(state_dir: str, age_s: float) -> CompactReport:
    """Archive events of objects that ended longer ago than `age_s`. Raises `conflict` while a daemon uses the log."""
    with contextlib.closing(open_log(state_dir)) as log:
        _require_undoubted(log, state_dir)
        return trio.run(_compact, log, state_dir, 0 if age_s == math.inf else now_us() - int(age_s * 1e6))


async def _compact(log: EventLog, state_dir: str, before_us: int) -> CompactReport:
    state = fold(log)

    def follow(recorded: Sequence[Recorded]) -> None:
        for fact in recorded:
            assert fact.event is not None
            state.apply(fact.event, fact)

    async def forget(sandboxes: Sequence[str]) -> None:
        folders = [f"{state_dir}/{kind}/{name}" for name in sandboxes for kind in ("sandboxes", OUTPUT_TIMES)]
        await in_thread(_remove, folders)

    async def forget_processes(sandbox_id: str, process_ids: Sequence[str]) -> None:
        await in_thread(_remove_output, state_dir, sandbox_id, process_ids)

    log.on_commit.append(follow)
    failed: SandkeepError | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        try:
            compaction = Compaction(log, state, forget, forget_processes)
            report = await compaction.run(before_us, Meta(client="sandkeep-store"))
        except SandkeepError as error:  # as it is, not in a group of one
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return report


def _remove(folders: Sequence[str]) -> None:
    """Remove directories with `rm`: a tree made inside a sandbox may be deeper than Python can recurse."""
    if folders:
        subprocess.run(["rm", "-rf", "--one-file-system", "--", *folders], check=False)


def _remove_output(state_dir: str, sandbox_id: str, process_ids: Sequence[str]) -> None:
    """Remove the journals of processes, by names that the code inside cannot point elsewhere, and their times."""
    for process_id in process_ids:
        with contextlib.suppress(OSError):
            os.unlink(f"{state_dir}/{OUTPUT_TIMES}/{sandbox_id}/{process_id}")
    try:
        directory = os.open(
            f"{state_dir}/sandboxes/{sandbox_id}/out/p", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except OSError:  # there are none
        return
    with closing_fd(directory):
        for process_id in process_ids:
            for part in ("stdout", "stderr", "pid"):
                with contextlib.suppress(OSError):  # the code inside may have put anything there
                    os.unlink(f"{process_id}.{part}", dir_fd=directory)


def rebuild(state_dir: str) -> RebuildReport:
    """Write every metadata.json of a state directory anew from its log. Raises `conflict` while a daemon uses it."""
    with contextlib.closing(open_log(state_dir)) as log:
        _require_undoubted(log, state_dir)
        state = fold(log)
        documents = {name: document(sandbox, log.log_id) for name, sandbox in state.sandboxes.items()}
        return metadata_files.rebuild(f"{state_dir}/sandboxes", documents, state.position)
