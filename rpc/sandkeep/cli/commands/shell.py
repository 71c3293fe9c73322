"""`attach` and `shell`: the terminal of a process on ours.

The daemon hands over the terminal and is not needed any more while it is shown: it may stop, and be started again.
"""

import os
from typing import Any, Final

import click

from sandkeep.cli.attach.last_screen import leave
from sandkeep.cli.attach.relay import detached_message
from sandkeep.cli.attach.session import AT_ONCE_S, Collector, Descriptors, Reader, exit_code, follow_running
from sandkeep.cli.attach.terminal import OwnTerminal, SignalledError
from sandkeep.cli.display.output import json_line, note
from sandkeep.cli.exit_codes import OWN_FAILURE
from sandkeep.cli.options import Frontend, command, common, cwd_option, env_option, non_empty, secret_option
from sandkeep.cli.program import ProgramCommand
from sandkeep.cli.words import RUNNING, SANDBOX
from sandkeep.errors import CallerError, SandkeepError, StateError
from sandkeep.model import Process

ENDING_S: Final = 5.0
"""Seconds to wait for a process's end on record, once its terminal has hung up."""

MAX_SHELLS: Final = 100
_DETACHED: Final = b"[detached"
_SHELL: Final = ("sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")


def show(front: Frontend, process: Process, own: OwnTerminal, *, read_only: bool = False) -> int:
    """Show a process's terminal on our own until it ends, or we detach; return the exit code."""
    return _show(front, process, own, _open(front, process, own, read_only=read_only))


def show_from_start(front: Frontend, process: Process, own: OwnTerminal) -> int:
    """Show the terminal of a process that was just launched; if it has ended already, its output."""
    try:
        master = _open(front, process, own)
    except SandkeepError:
        with Reader(front, process.sandbox_id, process.process_id) as reader:
            if _wait(reader, ENDING_S) is None:
                raise
            reader.follow(Collector() if front.as_json else Descriptors())
        return _wait_for_exit(front, process, AT_ONCE_S)
    return _show(front, process, own, master)


def _open(front: Frontend, process: Process, own: OwnTerminal, *, read_only: bool = False) -> int:
    rows, cols = own.size
    options = {"rows": rows, "cols": cols, "term": own.term, "read_only": read_only}
    of = (process.sandbox_id, process.process_id)
    with front.client() as client, client.with_descriptors("process.attach", *of, **options) as handed:
        (master,) = handed.receive()
    return int(master)


def _show(front: Frontend, process: Process, own: OwnTerminal, master: int) -> int:
    if front.as_json and not own.is_interactive:
        own.sink = os.open(os.devnull, os.O_WRONLY)  # who reads this wants the document alone
    try:
        shown = own.show(master)
    except SignalledError as signalled:
        note(detached_message(front, process))
        return 128 + signalled.number
    finally:
        os.close(master)
    # The exit of tmux only decides how long we wait.
    patience_s = AT_ONCE_S if _DETACHED in shown.last else ENDING_S
    saw_it = shown.was_typed or front.as_json or not own.is_interactive
    return _wait_for_exit(front, process, patience_s, rows=0 if saw_it else own.size[0])


def _wait_for_exit(front: Frontend, process: Process, patience_s: float, *, rows: int = 0) -> int:
    """Return the exit code after the terminal has hung up. Waits for a daemon that is being restarted.

    `rows` is the number of its last lines to leave on our screen.
    """
    with Reader(front, process.sandbox_id, process.process_id) as reader:
        ended = _wait(reader, patience_s)
        if ended is not None and rows:
            leave(reader, rows)
    if ended is None:
        note(detached_message(front, process))
        return 0
    if front.as_json:
        json_line(ended)
    return exit_code(ended, ended)


def _wait(reader: Reader, patience_s: float) -> Process | None:
    """Return the process once it has ended; None if it still runs."""
    try:
        return reader.wait(patience_s)
    except StateError as error:
        if error.code != "timeout":
            raise
        return None


@command(
    examples=[
        "sandkeep attach $BOX server",
        "sandkeep attach $BOX server --read-only",
        "echo status | sandkeep attach $BOX server --interactive --from-start",
    ]
)
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.argument("name", type=RUNNING, metavar="NAME")
@click.option("--read-only", is_flag=True, help="Show its terminal, and discard input.")
@click.option("--interactive", "-i", is_flag=True, help="Without a terminal: pass standard input to it.")
@click.option("--from-start", is_flag=True, help="Without a terminal: start with its earlier output.")
@common(OWN_FAILURE)
def attach(front: Frontend, sandbox: str, name: str, read_only: bool, interactive: bool, from_start: bool) -> int:
    """Attach to a running process, and exit with its code when it ends.

    A process that has a terminal (see `run --tty`) is shown on yours, at its size. The keys are those of tmux, which
    keeps the terminal inside the sandbox: C-b d detaches, C-b [ scrolls back, C-b C-b sends C-b to the process. Several
    clients may be attached. If you typed nothing, the last lines stay on your screen when the process ends. Piped, it
    is a terminal of 24 rows and 80 columns.

    The output of a process without a terminal is followed from now on, on stdout and stderr. Ctrl-C interrupts the
    process, a second Ctrl-C kills it, and Ctrl-\\ detaches.

    The process keeps running when you detach or are disconnected.
    """
    with front.client() as client:
        process: Process = client.process.get(sandbox, name)
    if process.tty:
        return show(front, process, OwnTerminal(), read_only=read_only)
    return follow_running(front, process, interactive=interactive, from_start=from_start)


@command(
    cls=ProgramCommand,
    examples=[
        "sandkeep shell $BOX",
        "sandkeep shell $BOX --name build --cwd /src --env CI=1",
        "sandkeep shell $BOX -- python3",
    ],
)
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("--name", metavar="NAME", help="Name of the process (default: shell, shell-2 and so on).")
@env_option
@secret_option
@cwd_option
@common(OWN_FAILURE)
def shell(front: Frontend, sandbox: str, command: tuple[str, ...], name: str | None, **options: Any) -> int:
    """Start a shell in SANDBOX, on your terminal, and exit with its code.

    It runs COMMAND, by default bash where that is installed, as a process like any other: after C-b d, or when the
    connection is lost, it keeps running, and `sandkeep attach` attaches to it again.
    """
    own = OwnTerminal()
    if not own.is_interactive:
        raise CallerError("invalid", "a shell needs a terminal: use `sandkeep exec` to run commands from a script")
    options = {**non_empty(**options), "env": {"LANG": "C.UTF-8", **options["env"]}, **own.request()}
    process = _launch(front, sandbox, name, command or _SHELL, options)
    return show_from_start(front, process, own)


def _launch(front: Frontend, sandbox: str, name: str | None, argv: tuple[str, ...], options: dict[str, Any]) -> Process:
    """Start it by the name, or by the first of ours that is free."""
    names = [name] if name else ["shell", *(f"shell-{number}" for number in range(2, MAX_SHELLS + 1))]
    with front.client() as client:
        for tried in names:
            try:
                process: Process = client.process.launch(sandbox, list(argv), name=tried, **options)
            except StateError as error:
                if error.code != "conflict" or tried == names[-1]:
                    raise
            else:
                return process
    raise AssertionError("the last name either served or raised")
