"""The composition root: everything that a daemon consists of is built here, and nothing anywhere else.

The nursery tree, with what ends each task::

    run
    ├── log.run                       the writer of the event log; ended last, when nobody can append any more
    └── tasks                      ended when all of the below have ended
        ├── files.run                 writes metadata.json, debounced
        ├── publishing.run            the same for other daemons, of sandboxes whose lock is held
        ├── sharing.keeping.run       looks after shared sandboxes; one task each that has something to be done
        ├── upkeep.recover            tries a log that failed again, until it can be written
        ├── retention.run             moves what ended long ago into the archive
        ├── GarbageCollector.run      deletes the snapshots that retention lets go
        ├── OutputLimit.run                keeps the output of each sandbox within its bounds
        ├── caching.run, check_later  writes the cached fold now and then; looks at what it spared the start
        ├── reconciler.run            once, at start
        ├── reaper.run                idle and lifetime limits of sandboxes
        ├── sessions.reaper.run       the same of sessions
        ├── leases.run                one task a lock that is held, which renews it
        ├── one task a running sandbox (Runtimes._keep)
        │   └── one task a running process (ProcessSupervisor.carry, follow, adopt)
        ├── OutputMarker._tick        while processes print: notes the times of their output
        ├── one task an image or sandbox being made or ended
        └── api
            ├── serve                 accepts; one task a connection, one a call that waits
            ├── StreamServer.serve    one a listener; accepts; two tasks a websocket, one that reads and one that talks
            ├── HttpServer.serve      one a listener, if SANDKEEP_HTTP is set; one task a connection, one a request
            ├── watchdog, keep_status tell the service manager, if there is one, how it goes
            └── signals               SIGTERM and SIGINT end the api, and so the daemon; SIGHUP reloads

Stopping: no connection is accepted any more, calls that change something get a moment to end, tasks are cancelled
(what runs in sandboxes goes on), documents that are out of date are written, and ``daemon.stopped`` is the last event.
"""

import errno
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import trio
from msgspec import Struct
from trio import TaskStatus

from sandkeep import events, failpoints
from sandkeep.errors import DaemonError, SandkeepError, SetupError, StateError
from sandkeep.events import DAEMON_STREAM, Meta
from sandkeep.settings import daemon
from sandkeep.system import start_failure
from sandkeep.version import VERSION
from sandkeep_store import metadata_files
from sandkeep_store.eventlog.codec import UnknownEvent
from sandkeep_store.eventlog.log import EventLog, NewEvent
from sandkeep_store.metadata_files import MetadataFiles
from sandkeep_store.threads import in_thread
from sandkeep_store.upkeep import offline, state_cache
from sandkeep_store.views.state import State
from sandkeepd.api.server import serve
from sandkeepd.app import handlers
from sandkeepd.app.file_services import SnapshotServices
from sandkeepd.app.listeners import Listeners, opened
from sandkeepd.app.reconcile import Reconciler
from sandkeepd.app.socket_activation import address_of
from sandkeepd.app.status import Software
from sandkeepd.app.systemd import Manager
from sandkeepd.contract.provider import Provider
from sandkeepd.core import access
from sandkeepd.core.core import Core
from sandkeepd.eventlog import state_cache as caching
from sandkeepd.eventlog import verify
from sandkeepd.eventlog.retention import Retention
from sandkeepd.host.instance_lock import lock_file
from sandkeepd.host.processes import boot_id
from sandkeepd.http.keys import Keys
from sandkeepd.locks.leases import Leases
from sandkeepd.locks.publish import Publisher
from sandkeepd.providers.registry import open_providers
from sandkeepd.sandboxes import reaper
from sandkeepd.sandboxes.files import Files
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.output_limit import OutputLimit
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.prune import Prune
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.serving.holdings import Holdings
from sandkeepd.sessions.activity import Activity
from sandkeepd.sessions.sessions import Sessions
from sandkeepd.sharing.sharing import Sharing
from sandkeepd.stream.access import Access
from sandkeepd.stream.cloud_run import CloudRun
from sandkeepd.stream.endpoints import endpoints
from sandkeepd.stream.identity import Identity
from sandkeepd.stream.server import StreamServer
from sandkeepd.stream.tokens import Tokens

if TYPE_CHECKING:
    from sandkeepd.http.server import HttpServer

logger = logging.getLogger("sandkeepd")

STOP_PATIENCE_S = 5.0
CALLS_PATIENCE_S = 3.0
"""Seconds calls that change something may go on when the daemon stops; the process of an ``exec`` outlives them."""


class Config(Struct, frozen=True, kw_only=True):
    """The directories and addresses of a daemon."""

    state_dir: str
    socket: str
    stream: tuple[str, ...] = ()
    http: tuple[str, ...] = ()


def config_from_settings() -> Config:
    """Return the configuration from the environment, with defaults."""
    return Config(state_dir=daemon.STATE_DIR(), socket=daemon.SOCKET(), stream=daemon.STREAM(), http=daemon.HTTP())


async def run(
    config: Config, manager: Manager | None = None, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run the daemon until SIGTERM, SIGINT, ``daemon.shutdown``, or cancellation.

    `manager` is the service manager that started it; the sockets that it passed are served instead of new ones.

    Error handling: a failed start raises a SandkeepError with a sentence for the administrator. A log with unknown or
    damaged events does not stop the daemon: it answers reads and refuses changes.
    """
    manager = manager or Manager()
    with ExitStack() as stack:
        # First: it fails and leaves nothing behind.
        listeners = stack.enter_context(opened(config.socket, config.stream, manager.passed, config.http))
        prepare_state_dir(config.state_dir)
        stack.enter_context(lock_file(f"{config.state_dir}/daemon.lock", _in_use(config.state_dir)))
        log = EventLog.open(f"{config.state_dir}/{offline.LOG_NAME}")
        try:
            _ = log.command_key  # now, where it may block
            state, problems = fold(log, config.state_dir, manager)
            failpoints.reach("start.folded")
            async with running_log(log), open_providers(config.state_dir, log_id=log.log_id) as providers:
                await _run_parts(config, log, state, problems, providers, listeners, manager, task_status)
        finally:
            log.close()


async def _run_parts(
    config: Config,
    log: EventLog,
    state: State,
    problems: list[str],
    providers: dict[str, Provider],
    listeners: Listeners,
    manager: Manager,
    task_status: TaskStatus[None],
) -> None:
    files = MetadataFiles(f"{config.state_dir}/sandboxes", state, log.log_id)
    async with trio.open_nursery() as tasks:
        core = Core(log, state, files, providers, tasks)
        core.problems += problems
        images = Images(core)
        sandboxes = Sandboxes(core, images)
        processes = Processes(core, sandboxes.runtimes)
        services = SnapshotServices(core, images, sandboxes, processes, config.state_dir)
        sessions = Sessions(core, images, sandboxes, services.snapshots, services.restores)
        output_limit = OutputLimit(core)
        prune = Prune(core, images, output_limit)
        operations = (*sessions.operations, prune.removal)
        reconciler = Reconciler(core, sandboxes.runtimes, processes, services, operations)
        stopping = trio.Event()
        software = Software(core, config.state_dir, os.fsdecode(listeners.api.getsockname()), stopping)
        tokens, keys = Tokens(config.state_dir), Keys(config.state_dir)
        software.adopting = sandboxes.runtimes.adopting
        software.stream = [listener.address for listener in listeners.stream]
        software.http = [address_of(listener, "tcp") for listener in listeners.http]
        secure = any(listener.is_secure for listener in listeners.stream)
        identity = Identity.of(config.state_dir) if secure else None
        stream_access = Access(software.stream, tokens, identity.pin if identity else None)
        retention = Retention(core, sandboxes.runtimes)
        leases = Leases(core)
        services.archives.fence = leases.fence
        publishing = Publisher(core, leases)
        services.archives.publish = publishing.publish
        publishing.addresses = stream_access.published(daemon.STREAM_ADVERTISED())
        sharing = Sharing(
            core, leases, publishing, images, sandboxes, services.snapshots, services.restores, services.checkpoints,
            services.layers, config.state_dir,
        )  # fmt: skip
        dispatch = handlers.dispatch(
            core,
            images,
            sandboxes,
            processes,
            software,
            stream_access,
            retention,
            prune,
            services,
            sharing,
            sessions,
            keys,
        )
        holdings = Holdings(daemon.CLIENT_MEMORY())
        cloud_run = CloudRun(
            core, dispatch, processes, sessions.activity, Files(core, sandboxes.runtimes), publishing.read,
            config.state_dir,
        )  # fmt: skip
        sharing.handover.before_save = cloud_run.end_execution
        served = endpoints(core, dispatch, processes, sessions.activity, cloud_run)
        stream = StreamServer(
            served, tokens, daemon.STREAM_ORIGINS(), holdings=holdings, advertised=daemon.STREAM_ADVERTISED()
        )
        http = _gateway(core, dispatch, keys, sessions.activity, holdings) if listeners.http else None
        if not problems:
            reconciler.announce()
            await _record_start(core)
            for sandbox_id in state.sandboxes:
                files.mark(sandbox_id)
            tasks.start_soon(reconciler.run, software.serving)
            await tasks.start(leases.run)
            tasks.start_soon(publishing.run)
            tasks.start_soon(sharing.keeping.run)
            tasks.start_soon(reaper.run, core, sandboxes.termination)
            tasks.start_soon(sessions.reaper.run)
            tasks.start_soon(files.run)
            tasks.start_soon(retention.run)
            tasks.start_soon(services.gc.run)
            tasks.start_soon(output_limit.run)
            tasks.start_soon(caching.run, core)
            tasks.start_soon(caching.check_later, core)
            tasks.start_soon(verify.recover, core)
        reason = await _serve_until_stopped(
            listeners, dispatch, stream, http, identity, software, stopping, manager, holdings, task_status
        )
        await sharing.keeping.shut_down()
        tasks.cancel_scope.cancel()
    failpoints.reach("stop.carriers_ended")
    await _record_stop(core, reason, config.state_dir)
    async with trio.open_nursery() as closing:  # at once: one whose node hangs delays no other
        for runtime in sandboxes.runtimes.by_id.values():
            closing.start_soon(runtime.instance.aclose)


async def _serve_until_stopped(
    listeners: Listeners,
    dispatch: handlers.Dispatch,
    stream: StreamServer,
    http: "HttpServer | None",
    identity: Identity | None,
    software: Software,
    stopping: trio.Event,
    manager: Manager,
    holdings: Holdings,
    task_status: TaskStatus[None],
) -> str:
    reason = "shutdown"
    core = software.core

    async def watch_signals() -> None:
        nonlocal reason
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGHUP and not os.isatty(2):  # a terminal that goes takes its daemon along
                    _reload(software, manager)
                else:
                    reason = signal.Signals(number).name
                    stopping.set()

    async with trio.open_nursery() as api:
        api.start_soon(watch_signals)
        software.server = await api.start(
            partial(serve, listeners.api, dispatch, grace_s=CALLS_PATIENCE_S, holdings=holdings)
        )
        for listener in listeners.stream:
            tls = identity.context if identity and listener.is_secure else None
            await api.start(stream.serve, listener.socket, tls)
        if http is not None:
            for http_listener in listeners.http:
                await api.start(http.serve, http_listener)
        logger.info(
            "ready",
            extra={"socket": software.socket, "state_dir": software.state_dir, "position": core.log.head},
        )
        start_failure.clear(software.socket)
        manager.ready(software.summary())
        failpoints.reach("start.ready")
        api.start_soon(manager.watchdog, core.log.answers)
        api.start_soon(manager.keep_status, software.summary, core.log)
        software.serving.set()
        task_status.started()
        await stopping.wait()
        failpoints.reach("stop.asked")
        logger.info("stopping", extra={"reason": reason})
        manager.stopping(reason)
        api.cancel_scope.cancel()
    return reason


def _gateway(
    core: Core, dispatch: handlers.Dispatch, keys: Keys, activity: Activity, holdings: Holdings
) -> "HttpServer":
    """Make the HTTP gateway. Its libraries are imported here, so that they cost nothing while it is off."""
    from sandkeepd.http.gateway import Gateway
    from sandkeepd.http.routes import ROWS
    from sandkeepd.http.server import HttpServer

    return HttpServer(Gateway(core, dispatch, keys, activity, ROWS).app, holdings=holdings)


def _reload(software: Software, manager: Manager) -> None:
    """Forget cached facts of the machine: groups by name. Settings are read on each use anyway, and those of the
    environment need a restart, which costs no sandbox.
    """
    manager.reloading()
    access.forget_groups()
    logger.info("reloaded")
    manager.ready(software.summary())


@asynccontextmanager
async def running_log(log: EventLog) -> AsyncIterator[None]:
    """Run the log's writer during a block; at its end, commit pending appends and stop."""
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


async def _record_stop(core: Core, reason: str, state_dir: str) -> None:
    with trio.move_on_after(STOP_PATIENCE_S) as scope:
        scope.shield = True
        try:
            if not core.problems:
                stopped = NewEvent(DAEMON_STREAM, events.DaemonStopped(reason=reason))
                await core.log.append([stopped], Meta(pid=os.getpid()))
                await core.files.flush()
                await in_thread(caching.save_final, core.state, core.log, state_dir)
        except SandkeepError as error:
            logger.warning("the stop is not on record", extra={"why": error.message})


def fold(log: EventLog, state_dir: str, manager: Manager | None = None) -> tuple[State, list[str]]:
    """Return the state of the log, and the problems of the log, if any: then changes are refused."""
    state = State()
    manager = manager or Manager()
    problems = []
    gc.disable()  # the fold makes no garbage, so collections are wasted time
    try:
        with manager.starting(lambda: state.position):
            state = state_cache.load(state_dir, log) or state
            caching.check_end(state, log)
            caching.fold_new_events(state, log, state_dir)
    except UnknownEvent as unknown:
        problems.append(str(unknown))
    except DaemonError as damage:
        problems.append(damage.message)
    else:
        problems += log.doubts
        problems += metadata_files.ahead_of(f"{state_dir}/sandboxes", log.log_id, log.head)
    finally:
        gc.freeze()
        gc.enable()
    for problem in problems:
        logger.error("nothing will be changed until this is mended", extra={"problem": problem})
    return state, problems


def _in_use(state_dir: str) -> StateError:
    return StateError("conflict", f"another daemon uses this state directory ({state_dir}): stop it or use another one")


def prepare_state_dir(path: str) -> None:
    """Make the state directory, with mode 0700. Raises `not_configured` with the remedy."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        owner = os.stat(path).st_uid
        if owner != os.geteuid():
            raise SetupError(
                "not_configured", f"{path} belongs to uid {owner}: run as that user, or set {daemon.STATE_DIR.name}"
            )
        os.chmod(path, 0o700)
        probe = f"{path}/.probe"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with suppress(FileNotFoundError):  # of two daemons that start at once
            os.unlink(probe)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and os.path.exists(f"{path}/{offline.LOG_NAME}"):
            return  # reads work, and so does ending sandboxes, which may free space
        hint = (
            "free space there" if error.errno == errno.ENOSPC else f"make it writable, or set {daemon.STATE_DIR.name}"
        )
        raise SetupError(
            "not_configured", f"the state directory {path} cannot be used ({error.strerror}): {hint}"
        ) from None
