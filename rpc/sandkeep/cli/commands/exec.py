"""`exec` and `run`: start a process and, unless detached, follow it to its end.

Both launch and then follow the journal, so output streams as it comes and a signal always has a target. That is two
short requests more than `sandbox.exec` takes; beside the start of this command itself they do not show.
"""

import os
from typing import Any

import click

from sandkeep.cli.attach.session import attach
from sandkeep.cli.display.output import echo, json_line
from sandkeep.cli.exit_codes import OWN_FAILURE
from sandkeep.cli.options import (
    Frontend,
    command,
    common,
    cwd_option,
    env_option,
    non_empty,
    secret_option,
    timeout_option,
)
from sandkeep.cli.program import ProgramCommand
from sandkeep.cli.words import PROCESS, SANDBOX
from sandkeep.errors import CallerError
from sandkeep.model import Process


def _launch(front: Frontend, sandbox: str, command: tuple[str, ...], **options: Any) -> Process:
    with front.client() as client:
        process = client.process.launch(sandbox, list(command), **non_empty(**options))
    assert isinstance(process, Process)
    return process


@command(
    "exec",
    cls=ProgramCommand,
    examples=[
        "sandkeep exec $BOX -- make test",
        "sandkeep exec -it $BOX -- bash",
        "sandkeep exec $BOX --timeout 90s --env CI=1 --secret TOKEN -- ./deploy",
        "tar c src | sandkeep exec $BOX --interactive --cwd /tmp -- tar x",
    ],
)
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--interactive", "-i", is_flag=True, help="Pass standard input to the command.")
@click.option("--tty", "-t", is_flag=True, help="Run it in a terminal, shown on yours.")
@timeout_option
@env_option
@secret_option
@cwd_option
@common(OWN_FAILURE)
def exec_(front: Frontend, sandbox: str, command: tuple[str, ...], interactive: bool, tty: bool, **options: Any) -> int:
    """Run COMMAND in SANDBOX, stream its output, and wait for its end.

    Exits with the command's own code; 124 on timeout; 125 when Sandkeep itself failed. Ctrl-C sends INT to the
    command and its children, Ctrl-\\ sends QUIT; a second Ctrl-C kills them. With --tty they are keys of its terminal,
    and C-b d detaches. With --json: one document at the end, output in base64.
    """
    if tty:
        if not (front.as_json or (os.isatty(0) and os.isatty(1))):
            raise CallerError(
                "invalid", "--tty needs a terminal: leave it out, or use `sandkeep run --tty` in a script"
            )
        return _on_terminal(front, sandbox, command, detach=False, **options)
    process = _launch(front, sandbox, command, stdin=interactive, **options)
    return attach(front, process, interactive=interactive, kill_when_unread=True)


@command(
    cls=ProgramCommand,
    examples=[
        "sandkeep run $BOX server --detach -- python3 -m http.server",
        "sandkeep run $BOX top --tty -- top",
        "sandkeep run $BOX work --timeout 1h30m -- ./work",
    ],
)
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.argument("name", type=PROCESS, metavar="NAME")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--tty", "-t", is_flag=True, help="Run it in a terminal, and attach to that.")
@click.option("--detach", "-d", is_flag=True, help="Run it in the background.")
@click.option("--interactive", "-i", is_flag=True, help="Pass standard input to the command.")
@timeout_option
@env_option
@secret_option
@cwd_option
@common(OWN_FAILURE)
def run(
    front: Frontend, sandbox: str, command: tuple[str, ...], tty: bool, detach: bool, interactive: bool, **options: Any
) -> int:
    """Start COMMAND in SANDBOX as a process called NAME, and follow it as `exec` does; Ctrl-\\ detaches.

    With --tty it runs in a terminal of the size of yours, shown as `attach` does; its output is in `logs`. With
    --detach it runs in the background and its process id is printed: see `ps`, `attach`, `logs`, `kill` and `wait`.
    """
    if detach and interactive and not tty:
        raise click.UsageError("--detach and --interactive cannot be combined: a detached process has no input")
    if tty:
        return _on_terminal(front, sandbox, command, detach=detach, **options)
    process = _launch(front, sandbox, command, stdin=interactive, **options)
    return _print_id(front, process) if detach else attach(front, process, interactive=interactive)


def _on_terminal(front: Frontend, sandbox: str, command: tuple[str, ...], *, detach: bool, **options: Any) -> int:
    from sandkeep.cli.attach.terminal import OwnTerminal
    from sandkeep.cli.commands.shell import show_from_start

    own = OwnTerminal()
    process = _launch(front, sandbox, command, **options, **own.request())
    return _print_id(front, process) if detach else show_from_start(front, process, own)


def _print_id(front: Frontend, process: Process) -> int:
    json_line(process) if front.as_json else echo(process.process_id)
    return 0
