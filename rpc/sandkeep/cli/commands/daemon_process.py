"""The daemon's process: run it in the foreground or in the background, and stop it."""

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from itertools import chain
from typing import Final, NoReturn

import click

from sandkeep.blocking import Client, connect
from sandkeep.cli.display.output import echo, note
from sandkeep.cli.options import Frontend, Refusal, command
from sandkeep.cli.words import DIRECTORY, FILE
from sandkeep.errors import DaemonError, SandkeepError, StateError
from sandkeep.settings.daemon import STATE_DIR

_MODULES: Final = {"sandkeepd": "sandkeepd.main", "sandkeep-store": "sandkeep_store.main"}

START_S: Final = 600.0
"""Maximum seconds until a daemon answers: one with a long event log reads that first."""

STOP_S: Final = 120.0
"""Maximum seconds until a daemon has ended."""

POLL_S: Final = 0.05
LOG_NAME: Final = "daemon.log"
_TAIL_BYTES: Final = 4096


def execute(script: str, arguments: list[str]) -> NoReturn:
    """Become another console script of this installation."""
    sys.stdout.flush()
    argv = program(script)
    os.execv(argv[0], [*argv, *arguments])  # noqa: S606  # no shell is wanted


def program(script: str) -> list[str]:
    """Return the command line of another console script of this installation."""
    path = os.path.join(os.path.dirname(sys.executable), script)
    return [path] if os.access(path, os.X_OK) else [sys.executable, "-m", _MODULES[script]]


@command(
    examples=[
        "sandkeep daemon",
        "sandkeep daemon --detach",
        "sandkeep daemon --state-dir ~/boxes --socket /tmp/sandkeep.sock",
        "sandkeep daemon stop",
    ]
)
@click.argument("action", type=click.Choice(["stop"]), required=False)
@click.option("--detach", "-d", is_flag=True, help="Run it in the background: return when it answers.")
@click.option("--state-dir", type=DIRECTORY, metavar="DIR", help="State directory (default: SANDKEEP_STATE_DIR).")
@click.option("--socket", type=FILE, metavar="PATH", help="Unix socket to listen on (default: SANDKEEP_SOCKET).")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: SANDKEEP_LOG_LEVEL).")
@click.pass_context
def daemon(ctx: click.Context, /, action: str | None, *, detach: bool, **given: str | None) -> None:
    """Run the daemon in the foreground, or stop the one that runs.

    With --detach it runs in the background, and its messages go to daemon.log in the state directory. `stop` asks the
    daemon to stop, and returns when it has ended; sandboxes go on.
    """
    given["socket"] = socket = given["socket"] or ctx.find_root().params.get("socket")
    try:
        if action == "stop":
            if detach or given["state_dir"] or given["log_level"]:
                raise click.UsageError("stop takes no option but --socket")
            return _stop(Frontend(socket, as_json=False))
        options = {f"--{name.replace('_', '-')}": value for name, value in given.items() if value}
        arguments = [*chain.from_iterable(options.items())]
        if not detach:
            execute("sandkeepd", arguments)
        return _detach(arguments, given["state_dir"] or STATE_DIR(), socket)
    except SandkeepError as error:
        raise Refusal(error) from None


def _detach(arguments: list[str], state_dir: str, socket: str | None) -> None:
    """Start the daemon in a session of its own, wait until it answers, and print its pid."""
    path = os.path.join(os.path.abspath(state_dir), LOG_NAME)
    with open(_open_log(path), "rb") as log:
        start = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [*program("sandkeepd"), *arguments],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            _wait_until_it_answers(process, socket)
        except BaseException:
            if process.poll() is None:
                process.terminate()
                process.wait(STOP_S)
            log.seek(max(start, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            note(log.read().decode(errors="replace").rstrip())
            raise
    echo(str(process.pid))
    note(f"sandkeep: the daemon runs in the background; its log is {path}")


def _open_log(path: str) -> int:
    """Open the file of the daemon's messages, for reading and appending. Raises `storage_unavailable`."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}: set SANDKEEP_STATE_DIR, or give --state-dir"
        raise DaemonError("storage_unavailable", message) from None


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", socket: str | None) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StateError("not_ready", f"the daemon did not start: exit code {process.returncode}")
        with suppress(SandkeepError), connect(socket, patience_s=0) as client:
            if client.daemon.status().pid == process.pid:
                return
        time.sleep(POLL_S)
    raise StateError("timeout", f"the daemon did not answer within {START_S:g} s")


def _stop(front: Frontend) -> None:
    """Ask the daemon to stop, and wait until its process has ended."""
    with _running(front) as client:
        pid = client.daemon.status().pid
        process = _open_process(pid)
        try:
            client.daemon.shutdown()
            ended = _has_ended(process) if process is not None else _is_silent(front)
        finally:
            if process is not None:
                os.close(process)
    if not ended:
        message = f"the daemon, process {pid}, has not ended within {STOP_S:g} s: see its log"
        raise StateError("timeout", message)


def _running(front: Frontend) -> Client:
    """Connect to the daemon. Raises `not_ready` if there is none."""
    try:
        return front.client()
    except StateError as error:
        if error.code != "not_ready":
            raise
        message = f"nothing to stop: no daemon is listening on {error.data.get('socket')}"
        raise StateError("not_ready", message, **error.data) from None


def _open_process(pid: int) -> int | None:
    """Return a descriptor of a process; None where it cannot be seen, as from another PID namespace."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _has_ended(process: int) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(STOP_S * 1000))


def _is_silent(front: Frontend) -> bool:
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline:
        try:
            connect(front.socket, patience_s=0).close()
        except SandkeepError:
            return True
        time.sleep(POLL_S)
    return False
