"""When the cached fold is used and written: at the start, now and then, and when the daemon stops.

What a start did not fold it did not look at either. So that damage is told all the same, and not first by whoever reads
there, the rows are checked afterwards, a few at a time.
"""

import logging
from typing import Final

import trio

from sandkeep.errors import DaemonError
from sandkeep_store import folded
from sandkeep_store.codec import UnknownEvent
from sandkeep_store.log import EventLog
from sandkeep_store.views.state import State
from sandkeepd.core import Core

logger = logging.getLogger("sandkeepd")

LOOK_EVERY_S: Final = 60.0
WORTH_EVENTS: Final = 20_000
"""Folding as many events takes some hundredths of a second. A cached fold saves more than that, or there is none."""

CHECK_AFTER_S: Final = 10.0
CHECKED_AT_ONCE: Final = 500
CHECK_PAUSE_S: Final = 0.01


def fold_rest(state: State, log: EventLog, state_dir: str) -> None:
    """Move a state, new or cached, on to the log's last event, and cache it if that was much to do. Blocks.

    Raises as `EventLog.scan` does; the state then stands at the event before.
    """
    start = state.position
    if start:
        folded.catch_up(state, log)
    else:
        log.fold(state)
    if state.position - start >= WORTH_EVENTS:
        _save(state, log, state_dir)


def save_last(state: State, log: EventLog, state_dir: str) -> None:
    """Cache a state that does not change any more, when the daemon stops. Blocks."""
    if state.position - log.first_position >= WORTH_EVENTS:
        _save(state, log, state_dir)


def _save(state: State, log: EventLog, state_dir: str) -> None:
    """Nothing depends on it, so a full disk is only logged."""
    try:
        folded.save(state_dir, state, log)
    except (OSError, DaemonError) as error:
        logger.warning("the cached fold is not written", extra={"why": str(error)})


async def check(core: Core, upto: int) -> None:
    """Check the events up to a position, in slices of a few milliseconds. Damage is a problem that stops all changes,
    as at a start.
    """
    position = 0
    try:
        while position < upto:
            position = await trio.to_thread.run_sync(core.log.check, position, upto, CHECKED_AT_ONCE)
            await trio.sleep(CHECK_PAUSE_S)
    except DaemonError as damage:
        logger.error("nothing will be changed until this is mended", extra={"problem": damage.message})
        core.problems.append(damage.message)


async def check_later(core: Core) -> None:
    """Check what the start took from the cached fold, once the start is over."""
    await trio.sleep(CHECK_AFTER_S)
    await check(core, core.state.cached_upto)


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
        await trio.to_thread.run_sync(_refresh, core.log, core.log.directory)


def _refresh(log: EventLog, state_dir: str) -> None:
    try:
        state = folded.load(state_dir, log) or State()
        fold_rest(state, log, state_dir)
    except (DaemonError, UnknownEvent) as error:
        logger.warning("the cached fold is not written", extra={"why": str(error)})
