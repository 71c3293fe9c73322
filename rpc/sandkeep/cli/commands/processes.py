"""Processes: list, show their output, signal, wait."""

import shlex
from functools import partial
from typing import Final

import click
from msgspec.structs import replace

from sandkeep.cli.attach.journals import STREAMS
from sandkeep.cli.attach.session import Descriptors, Reader, Stamped, exit_code, explain_limits
from sandkeep.cli.display.output import LIMITS_MET, age, json_line, note, plain, status
from sandkeep.cli.exit_codes import OWN_FAILURE, TIMED_OUT
from sandkeep.cli.options import Duration, Frontend, Time, command, common
from sandkeep.cli.words import PROCESS, RUNNING, SANDBOX, SIGNAL
from sandkeep.model import Process, ProcessOutput

_SINCE: Final = Time(", or --offset for a byte")


@command(examples=["sandkeep ps", "sandkeep ps $BOX --all"])
@click.argument("sandbox", required=False, type=SANDBOX, metavar="[SANDBOX]")
@click.option("--all", "-a", "everything", is_flag=True, help="Include processes that ended.")
@common()
def ps(front: Frontend, sandbox: str | None, everything: bool) -> None:
    """List the processes of one sandbox, or of all sandboxes."""
    columns = ("SANDBOX", "NAME", status(), "AGE", "COMMAND")
    first = 1 if sandbox is not None else 0
    front.list("process.list", columns[first:], lambda p: _row(p)[first:], sandbox_id=sandbox, all=everything)


def _row(p: Process) -> tuple[object, ...]:
    return p.sandbox_id, p.name, _status(p), age(p.started_at or p.requested_at), shlex.join(p.command)


def _status(process: Process) -> str:
    if process.status == "exited" and process.limits_met:
        limits = ", ".join(LIMITS_MET.get(limit, limit) for limit in process.limits_met)
        return limits if process.exit_code else f"exited 0, {limits}"
    return f"exited {process.exit_code}" if process.status == "exited" else process.status


def _print_json(output: ProcessOutput, stream: str | None) -> None:
    if stream:
        output = replace(output, **{other: b"" for other in STREAMS if other != stream})
    if output.stdout or output.stderr or output.ended:
        json_line(output)


@command(
    examples=[
        "sandkeep logs $BOX server --tail 20 --follow",
        "sandkeep logs $BOX server --timestamps --since 10m",
        "sandkeep logs $BOX build --stream stderr >errors",
        "sandkeep logs $BOX build --offset 1048576",
    ]
)
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.argument("name", type=PROCESS, metavar="NAME")
@click.option("--follow", "-f", is_flag=True, help="Follow the output until the process ends.")
@click.option("--since", type=_SINCE, metavar="TIME", help="Start at output of this time, such as 10m (ago).")
@click.option("--tail", "-n", type=click.IntRange(0), metavar="N", help="Start at the last N lines of each stream.")
@click.option("--offset", type=click.IntRange(0), metavar="BYTES", help="Start at this byte of each stream.")
@click.option("--stream", type=click.Choice(STREAMS), help="Show only this stream.")
@click.option("--timestamps", "-t", is_flag=True, help="Begin each line with the time at which it came.")
@common()
def logs(
    front: Frontend,
    sandbox: str,
    name: str,
    follow: bool,
    since: str | None,
    tail: int | None,
    offset: int | None,
    stream: str | None,
    timestamps: bool,
) -> None:
    """Show a process's output: its stdout on stdout, its stderr on stderr, byte for byte.

    With --json: one document for each piece, with its offsets, and with --timestamps its times; bytes in base64. The
    daemon looks at output about ten times a second, so times are that exact. They are UTC.
    """
    given = [f"--{word}" for word, value in (("since", since), ("tail", tail), ("offset", offset)) if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} cannot be combined: both say where to start")
    streams = (stream,) if stream else STREAMS
    with Reader(front, sandbox, name) as reader:
        at = (offset or 0, offset or 0)
        if since is not None:
            at = reader.since(since)
        elif tail is not None:
            at = reader.last_lines(tail)
        if front.as_json:
            reader.follow(partial(_print_json, stream=stream), *at, follow=follow, times=timestamps)
        elif timestamps:
            reader.follow(Stamped(streams), *at, follow=follow, times=True)
            if follow:
                explain_limits(reader.process())
        else:
            _show(reader, Descriptors(streams), at, follow=follow)


def _show(reader: Reader, sink: Descriptors, at: tuple[int, int], *, follow: bool) -> None:
    """Copy the present output from the journals themselves; follow later output through the daemon."""
    copied = reader.catch_up(sink, *at)
    if follow or copied is None:
        reader.follow(sink, *(copied or at), follow=follow)
        if follow:
            explain_limits(reader.process())
    else:
        reader.remark(*copied)


@command(examples=["sandkeep kill $BOX server", "sandkeep kill $BOX server --signal HUP"])
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.argument("name", type=RUNNING, metavar="NAME")
@click.option(
    "--signal",
    "-s",
    "signal_name",
    type=SIGNAL,
    metavar="SIGNAL",
    default="TERM",
    show_default=True,
    help="Name or number of the signal.",
)
@common()
def kill(front: Frontend, sandbox: str, name: str, signal_name: str) -> None:
    """Send a signal to a process and its group."""
    with front.client() as client:
        process = client.process.signal(sandbox, name, signal=signal_name.upper())
    if front.as_json:
        json_line(process)


@command(examples=["sandkeep wait $BOX build", "sandkeep wait $BOX build --timeout 5m"])
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.argument("name", type=PROCESS, metavar="NAME")
@click.option("--timeout", "timeout_s", type=Duration(), metavar="TIME", help="Maximum time to wait; it keeps running.")
@common(OWN_FAILURE)
def wait(front: Frontend, sandbox: str, name: str, timeout_s: float | None) -> int:
    """Wait until a process exits, and exit with its code.

    Exits with 124 when the wait or the process timed out, and with 125 when the process's exit code is unknown.
    """
    from sandkeep.errors import StateError

    try:
        with Reader(front, sandbox, name) as reader:
            process = reader.wait(timeout_s)
    except StateError as error:
        if error.code != "timeout":
            raise
        note(f"sandkeep: {plain(error.message)}")
        return TIMED_OUT
    if front.as_json:
        json_line(process)
    return exit_code(process, process)
