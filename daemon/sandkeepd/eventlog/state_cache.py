"""Use of the cached fold: it is loaded at the start, and written now and then, and at the stop.

A start does not read events that it does not fold. So that damage is reported before a reader meets it, these rows are
checked afterwards, a few at a time.
"""

import logging
from typing import Final

import trio

from sandkeep.errors import DaemonError
from sandkeep_store.eventlog.codec import UnknownEvent
from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.threads import in_thread
from sandkeep_store.upkeep import state_cache
from sandkeep_store.views.state import State
from sandkeepd.core.core import Core

logger = logging.getLogger("sandkeepd")

LOOK_EVERY_S: Final = 60.0
WORTH_EVENTS: Final = 20_000
"""Folding as many events takes some hundredths of a second. A cached fold saves more than that, or there is none."""

END_EVENTS: Final = 1000
"""Number of last events that every start checks, with any cache."""

CHECK_AFTER_S: Final = 10.0
CHECKED_AT_ONCE: Final = 500
CHECK_PAUSE_S: Final = 0.01


def fold_new_events(state: State, log: EventLog, state_dir: str) -> None:
    """Move a state, new or cached, on to the log's last event, and cache it if that was much to do. Blocks.

    Raises as `EventLog.scan` does; the state then stands at the event before.
    """
    start = state.position
    if start:
        state_cache.catch_up(state, log)
    else:
        log.fold(state)
    if state.position - start >= WORTH_EVENTS:
        _save(state, log, state_dir)


def check_end(state: State, log: EventLog) -> None:
    """Check the last events, which a failed disk harms first, also with a cached fold. Raises `storage_unavailable`."""
    log.reader.check(max(0, log.head - END_EVENTS), min(log.head, state.position), END_EVENTS)


def save_final(state: State, log: EventLog, state_dir: str) -> None:
    """Cache a state that does not change any more, when the daemon stops. Blocks."""
    if state.position - log.first_position >= WORTH_EVENTS:
        _save(state, log, state_dir)


def _save(state: State, log: EventLog, state_dir: str) -> None:
    """Nothing depends on it, so a full disk is only logged."""
    try:
        state_cache.save(state_dir, state, log)
    except (OSError, DaemonError) as error:
        logger.warning("the cached fold is not written", extra={"why": str(error)})


async def check(core: Core, upto: int) -> None:
    """Check events up to a position, in slices of milliseconds. Damage stops all changes, as at a start."""
    position = 0
    try:
        while position < upto:
            position = await in_thread(core.log.reader.check, position, upto, CHECKED_AT_ONCE)
            await trio.sleep(CHECK_PAUSE_S)
    except DaemonError as damage:
        _stop_changes(core, damage.message)


def _stop_changes(core: Core, problem: str) -> None:
    logger.error("nothing will be changed until this is mended", extra={"problem": problem})
    core.problems.append(problem)


async def check_later(core: Core) -> None:
    """After the start, check events taken from the cached fold, and the file's structure. Damage as for `check`."""
    await trio.sleep(CHECK_AFTER_S)
    await check(core, core.state.cached_upto)
    try:
        problems = await in_thread(core.log.reader.check_structure, _is_cancelled)
    except DaemonError as unreadable:
        problems = [unreadable.message]
    for problem in problems:
        _stop_changes(core, problem)


def _is_cancelled() -> bool:
    """Return True if the task that waits for this thread was cancelled."""
    try:
        trio.from_thread.check_cancelled()
    except trio.Cancelled:
        return True
    return False


async def run(core: Core) -> None:
    """Bring the cached fold up to date whenever there is much that it has not seen, until cancelled."""
    saved = core.log.head
    while True:
        await trio.sleep(LOOK_EVERY_S)
        if core.log.head - saved >= WORTH_EVENTS:
            saved = core.log.head
            await refresh(core)


async def refresh(core: Core) -> None:
    """Bring the cached fold up to date, apart from the daemon's own state, which moves on meanwhile."""
    async with core.caching:
        await in_thread(_refresh, core.log, core.log.directory)


def _refresh(log: EventLog, state_dir: str) -> None:
    try:
        state = state_cache.load(state_dir, log) or State()
        fold_new_events(state, log, state_dir)
    except (DaemonError, UnknownEvent) as error:
        logger.warning("the cached fold is not written", extra={"why": str(error)})
