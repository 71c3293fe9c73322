"""The composition root: everything that a daemon consists of is built here, and nothing anywhere else.

The nursery tree, with what ends each task::

    run
    ├── log.run                       the writer of the event log; ended last, when nobody can append any more
    └── carriers                      ended when all of the below have ended
        ├── files.run                 writes metadata.json, debounced
        ├── reconciler.run            once, at start
        ├── reaper.run                idle and lifetime limits
        ├── one task a running sandbox (Sandboxes._keep)
        │   └── one task a running process (Processes._carry, follow, adopt)
        ├── one task an image or sandbox being made or ended
        └── api
            ├── serve                 accepts; one task a connection, one a call that waits
            └── signals               SIGTERM and SIGINT end the api, and so the daemon

Stopping: no connection is accepted any more, calls that change something get a moment to end, carriers are cancelled
(what runs in sandboxes goes on), documents that are out of date are written, and ``daemon.stopped`` is the last event.
"""

import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio
from msgspec import Struct
from trio import TaskStatus

from sandkeep import events, settings
from sandkeep.errors import DaemonError, SandkeepError, SetupError
from sandkeep.events import DAEMON_STREAM, Meta
from sandkeep.version import VERSION
from sandkeep_store import metadata_files, offline
from sandkeep_store.codec import UnknownEvent
from sandkeep_store.log import EventLog, NewEvent
from sandkeep_store.metadata_files import MetadataFiles
from sandkeep_store.views.state import State
from sandkeepd import reaper, table
from sandkeepd.api.listener import listening
from sandkeepd.api.server import serve
from sandkeepd.core import Core
from sandkeepd.hostprocess import boot_id
from sandkeepd.images import Images
from sandkeepd.processes import Processes
from sandkeepd.providers.base import Provider
from sandkeepd.providers.registry import open_providers
from sandkeepd.reconcile import Reconciler
from sandkeepd.sandboxes import Sandboxes
from sandkeepd.status import Software

logger = logging.getLogger("sandkeepd")

STOP_PATIENCE_S = 5.0
CALLS_PATIENCE_S = 3.0
"""How long calls that change something may go on when the daemon stops; what an ``exec`` waits for outlives them."""


class Config(Struct, frozen=True, kw_only=True):
    """Where a daemon works."""

    state_dir: str
    socket: str


def config_from_settings() -> Config:
    """What the environment says, or the defaults."""
    return Config(state_dir=settings.STATE_DIR(), socket=settings.SOCKET())


async def run(config: Config, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Be the daemon until SIGTERM, SIGINT, ``daemon.shutdown``, or cancellation.

    Error handling: what makes a start impossible is a SandkeepError with a sentence for the administrator. A log that
    holds something unknown or damaged does not stop the daemon: it answers reads and refuses to change anything.
    """
    with listening(config.socket, *who_may_connect()) as listener:  # first, as it can fail and leaves nothing behind
        prepare_state_dir(config.state_dir)
        log = EventLog.open(f"{config.state_dir}/{offline.LOG_NAME}")
        try:
            state, problems = fold(log, config.state_dir)
            async with running_log(log), open_providers(config.state_dir) as providers:
                await _run_parts(config, log, state, problems, providers, listener, task_status)
        finally:
            log.close()


async def _run_parts(
    config: Config,
    log: EventLog,
    state: State,
    problems: list[str],
    providers: dict[str, Provider],
    listener: socket.socket,
    task_status: TaskStatus[None],
) -> None:
    files = MetadataFiles(f"{config.state_dir}/sandboxes", state, log.log_id)
    async with trio.open_nursery() as carriers:
        core = Core(log, state, files, providers, carriers)
        core.problems += problems
        images = Images(core)
        sandboxes = Sandboxes(core, images)
        processes = Processes(core, sandboxes)
        reconciler = Reconciler(core, images, sandboxes, processes)
        stopping = trio.Event()
        software = Software(core, config.state_dir, config.socket, stopping)
        dispatch = table.dispatch(core, images, sandboxes, processes, software)
        if not problems:
            reconciler.announce()
            await _record_start(core)
            for sandbox_id in state.sandboxes:
                files.mark(sandbox_id)
            carriers.start_soon(reconciler.run)
            carriers.start_soon(reaper.run, core, sandboxes)
            carriers.start_soon(files.run)
        reason = await _serve_until_stopped(listener, dispatch, software, stopping, task_status)
        carriers.cancel_scope.cancel()
    await _record_stop(core, reason)
    for runtime in sandboxes.runtimes.values():
        await runtime.instance.aclose()


async def _serve_until_stopped(
    listener: socket.socket,
    dispatch: table.Dispatch,
    software: Software,
    stopping: trio.Event,
    task_status: TaskStatus[None],
) -> str:
    reason = "shutdown"

    async def watch_signals() -> None:
        nonlocal reason
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                reason = signal.Signals(number).name
                stopping.set()

    async with trio.open_nursery() as api:
        api.start_soon(watch_signals)
        software.server = await api.start(partial(serve, listener, dispatch, grace_s=CALLS_PATIENCE_S))
        logger.info(
            "ready",
            extra={"socket": software.socket, "state_dir": software.state_dir, "position": software.core.log.head},
        )
        task_status.started()
        await stopping.wait()
        logger.info("stopping", extra={"reason": reason})
        api.cancel_scope.cancel()
    return reason


@asynccontextmanager
async def running_log(log: EventLog) -> AsyncIterator[None]:
    """Have the log's writer run; on the way out it commits what it took and stops."""
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        yield
        nursery.cancel_scope.cancel()


async def _record_start(core: Core) -> None:
    event = events.DaemonStarted(software=VERSION, pid=os.getpid(), uid=os.geteuid(), boot_id=boot_id())
    try:
        await core.log.append([NewEvent(DAEMON_STREAM, event)], Meta(pid=os.getpid()))
    except DaemonError as error:  # reads, and ending sandboxes, go on all the same
        logger.warning("the start is not on record", extra={"why": error.message})


async def _record_stop(core: Core, reason: str) -> None:
    with trio.move_on_after(STOP_PATIENCE_S) as scope:
        scope.shield = True
        try:
            if not core.problems:
                stopped = NewEvent(DAEMON_STREAM, events.DaemonStopped(reason=reason))
                await core.log.append([stopped], Meta(pid=os.getpid()))
                await core.files.flush()
        except SandkeepError as error:
            logger.warning("the stop is not on record", extra={"why": error.message})


def fold(log: EventLog, state_dir: str) -> tuple[State, list[str]]:
    """The state that the log tells, and what is wrong with the log, if anything: then nothing may be changed."""
    state = State()
    problems = []
    gc.disable()  # the fold only makes what stays, so looking for garbage among it is time lost
    try:
        offline.fold(log, state)
    except UnknownEvent as unknown:
        problems.append(str(unknown))
    except DaemonError as damage:
        problems.append(damage.message)
    else:
        problems += metadata_files.ahead_of(f"{state_dir}/sandboxes", log.log_id, log.head)
    finally:
        gc.freeze()
        gc.enable()
    for problem in problems:
        logger.error("nothing will be changed until this is mended", extra={"problem": problem})
    return state, problems


def prepare_state_dir(path: str) -> None:
    """Make the state directory, for its owner's eyes only. Raises `not_configured` with what to do."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        owner = os.stat(path).st_uid
        if owner != os.geteuid():
            raise SetupError(
                "not_configured", f"{path} belongs to uid {owner}: run as that user, or set {settings.STATE_DIR.name}"
            )
        os.chmod(path, 0o700)
        probe = f"{path}/.probe"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.unlink(probe)
    except OSError as error:
        hint = (
            "free space there" if error.errno == errno.ENOSPC else f"make it writable, or set {settings.STATE_DIR.name}"
        )
        raise SetupError(
            "not_configured", f"the state directory {path} cannot be used ({error.strerror}): {hint}"
        ) from None


def who_may_connect() -> tuple[int, str | None]:
    """The socket's mode and group.

    A root daemon tells users apart by the credentials that the kernel gives, so all may connect unless a group is
    named. A user's daemon runs everything as that user, so nobody else may.
    """
    if os.geteuid() != 0:
        return 0o600, None
    group = settings.SOCKET_GROUP()
    return (0o660, group) if group else (0o666, None)
