"""The store looked after without a daemon, or by one: folded, checked, and its documents written anew."""

import os

from sandkeep.errors import SetupError
from sandkeep.model import RebuildReport, VerifyReport
from sandkeep_store import folded, metadata_files
from sandkeep_store.log import EventLog
from sandkeep_store.views.metadata import document
from sandkeep_store.views.state import State

LOG_NAME = "events.db"


def fold(log: EventLog) -> State:
    """The state that the whole log tells. Blocks. Raises what `EventLog.fold` raises."""
    state = State()
    log.fold(state)
    return state


def open_log(state_dir: str) -> EventLog:
    """The log of a state directory that no daemon uses. Raises `not_configured` when there is none."""
    path = f"{state_dir}/{LOG_NAME}"
    if not os.path.isfile(path):
        raise SetupError("not_configured", f"{state_dir} holds no event log: name the directory of a daemon's state")
    return EventLog.open(path)


def verify(state_dir: str) -> VerifyReport:
    """Check the log and every metadata.json of a state directory. Raises `conflict` while a daemon uses it."""
    log = open_log(state_dir)
    try:
        problems = log.verify()
        if not problems:
            root = f"{state_dir}/sandboxes"
            problems = metadata_files.ahead_of(root, log.log_id, log.head)
            state = fold(log)
            problems += metadata_files.check(root, state, log.log_id)
            problems += folded.difference(state_dir, log, state)
        return report(log, problems)
    finally:
        log.close()


def report(log: EventLog, problems: list[str]) -> VerifyReport:
    """What a check found, with the log's extent."""
    return VerifyReport(
        ok=not problems,
        events=log.head - log.first_position + 1,
        first_position=log.first_position,
        last_position=log.head,
        problems=problems,
    )


def rebuild(state_dir: str) -> RebuildReport:
    """Write every metadata.json of a state directory anew from its log. Raises `conflict` while a daemon uses it."""
    log = open_log(state_dir)
    try:
        state = fold(log)
        documents = {name: document(sandbox, log.log_id) for name, sandbox in state.sandboxes.items()}
        return metadata_files.rebuild(f"{state_dir}/sandboxes", documents, state.position)
    finally:
        log.close()
