"""``sandkeepd``: the daemon in the foreground."""

import argparse
import faulthandler
import gc
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from typing import Final

from sandkeep.errors import SandkeepError
from sandkeep.protocol.printable import lines
from sandkeep.settings import daemon
from sandkeep.system import extras, start_failure

STOP_S: Final = 20.0
"""Seconds that a stop may take: a third less than systemd waits before it kills."""

OPEN_FILES: Final = 65536
"""The same value as in the systemd units."""


def main() -> None:
    """Parse the few options, which stand for settings, and be the daemon. Exits with 1 and a sentence when that cannot
    be.
    """
    _open_missing_streams()
    parser = argparse.ArgumentParser(prog="sandkeepd", description="The Sandkeep daemon, in the foreground.")
    parser.add_argument("--state-dir", metavar="DIR", help=f"where to keep everything ({daemon.STATE_DIR.name})")
    parser.add_argument("--socket", metavar="PATH", help=f"the Unix socket to listen on ({daemon.SOCKET.name})")
    parser.add_argument("--log-level", metavar="LEVEL", help=f"debug, info, warning or error ({daemon.LOG_LEVEL.name})")
    options = parser.parse_args()
    for name, value in (
        (daemon.STATE_DIR.name, options.state_dir and os.path.abspath(options.state_dir)),
        (daemon.SOCKET.name, options.socket and os.path.abspath(options.socket)),
        (daemon.LOG_LEVEL.name, options.log_level),
    ):
        if value:
            os.environ[name] = value
    managed = bool(os.environ.get("NOTIFY_SOCKET"))
    try:
        _run()
    except (SandkeepError, ModuleNotFoundError) as raised:
        error = raised if isinstance(raised, SandkeepError) else extras.incomplete_by(raised)
        if error is None:
            raise
        print(f"sandkeepd: {lines(error.message)}", file=sys.stderr)  # noqa: T201  # it cannot start
        if managed:  # who starts it by hand has just read it
            with suppress(SandkeepError):
                start_failure.leave(daemon.SOCKET(), error.message)
        sys.exit(1)


def _open_missing_streams() -> None:
    """Open /dev/null for closed standard streams, so that no other file gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest number
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _run() -> None:
    gc.disable()  # imports make many objects and no garbage: looking for it takes a fifth of the start
    import trio

    from sandkeepd.app import daemon as app
    from sandkeepd.app import logging, systemd
    from sandkeepd.app.settings import check_settings
    from sandkeepd.host import mounts, processes
    from sandkeepd.host.cgroups import placement

    gc.enable()
    os.umask(0o022)  # sandboxes read files made for them under uids of their own, in a directory with mode 0700
    faulthandler.enable()  # a watchdog ends the daemon by SIGABRT; where it hung is then in its log
    faulthandler.register(signal.SIGUSR1)  # the same on request, also for a daemon that hangs
    logging.set_up(daemon.LOG_LEVEL())
    check_settings()
    _raise_limit_of_open_files()
    processes.raise_priority()
    mounts.leave_host_namespace()
    manager = systemd.take_environment()
    manager.on_stopping = _limit_stop
    placement.settle()
    try:
        trio.run(app.run, app.config_from_settings(), manager)
    except BaseExceptionGroup as group:
        raise _sole_error(group) or group from None


def _limit_stop() -> None:
    """End this process in any case once it has been stopping for `STOP_S`."""
    timer = threading.Timer(STOP_S, _end_now)
    timer.daemon = True
    timer.start()


def _end_now() -> None:
    """End as by SIGKILL, which loses nothing: some thread waits for a disk, or a program, that does not answer."""
    faulthandler.dump_traceback()
    sys.stderr.write(
        f"sandkeepd: work does not end within {STOP_S:.0f} s of the stop: the next daemon goes on with it\n"
    )
    os._exit(1)


def _raise_limit_of_open_files() -> None:
    """Shells and service managers start with 1024 at most, which some hundred clients and sandboxes need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


def _sole_error(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The error that a start failed with, out of the nurseries that it came through; None for a defect."""
    ours, others = group.split((SandkeepError, ModuleNotFoundError))
    if ours is None or others is not None:
        return None
    inner: BaseException = ours
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner


if __name__ == "__main__":
    main()
