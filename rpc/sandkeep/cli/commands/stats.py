"""`stats`: resource usage of running sandboxes, as a live table, as one table, in JSON, and for Prometheus."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import click

from sandkeep.blocking import Client
from sandkeep.cli.display.output import Column, cut_middle, json_line, moment, note, size, span, table, table_lines
from sandkeep.cli.options import Duration, Frontend, command, common
from sandkeep.cli.words import SANDBOX
from sandkeep.clients.pages import every
from sandkeep.errors import CallerError, StateError
from sandkeep.model import SandboxStats

Rates = Mapping[str, float]
"""By sandbox, how many cpus it kept busy since the sample before; nothing of one that was not there then."""

COLUMNS: Final = (
    Column("SANDBOX", least=13, shorten=cut_middle),
    Column("CPU"),
    Column("TIME", least=6, spare=True),
    Column("MEMORY"),
    Column("PIDS"),
    Column("DISK", spare=True),
    Column("READ", least=7, spare=True),
    Column("WRITTEN", least=7, spare=True),
    Column("KILLS", least=5, spare=True),
    Column("AGE", least=4, spare=True),
    Column("LEFT", least=4, spare=True),
)

SORTS: Final[dict[str, Callable[[SandboxStats, Rates], float]]] = {
    "cpu": lambda found, rates: rates.get(found.sandbox_id, 0.0),
    "time": lambda found, _: found.cpu_s or 0.0,
    "memory": lambda found, _: found.memory_bytes or 0,
    "pids": lambda found, _: found.pids or 0,
    "disk": lambda found, _: found.disk_bytes or 0,
    "left": lambda found, _: 1 / max(left, 1e-6) if (left := _left_s(found)) is not None else 0.0,
    "io": lambda found, _: (found.io_read_bytes or 0) + (found.io_written_bytes or 0),
}
"""Sort keys of the table, largest first, of the time left the shortest; equal rows stay in order of creation."""

INTERVAL_S: Final = 1.0


@command(
    examples=[
        "sandkeep stats",
        "sandkeep stats $BOX --interval 5s --sort memory",
        "sandkeep stats --once",
        "sandkeep stats --prometheus >/var/lib/node_exporter/sandkeep.prom",
    ]
)
@click.argument("sandboxes", nargs=-1, type=SANDBOX, metavar="[SANDBOX]...")
@click.option(
    "--interval",
    type=Duration(0.1, 3600),
    metavar="TIME",
    default=INTERVAL_S,
    help="Time between samples (default: 1s).",
)
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option(
    "--sort",
    type=click.Choice([*SORTS]),
    help="Sort key: largest first, or least time left (default: cpu; with --once time).",
)
@click.option("--prometheus", is_flag=True, help="Print Prometheus' text format.")
@common()
def stats(
    front: Frontend, sandboxes: tuple[str, ...], interval: float, once: bool, sort: str | None, prometheus: bool
) -> int | None:
    """Show the resource usage of running sandboxes: all of yours, or those named.

    On a terminal the table is refreshed until q or Ctrl-C; elsewhere, and with --once, it is printed once, with `-` for
    unknown values. CPU is the load of one cpu, TIME the CPU time; MEMORY excludes the page cache; DISK is the last
    measurement; KILLS are OOM kills; AGE is the time since its creation, LEFT the time until its maximum lifetime. The
    sandbox of a session goes by the session's id.
    """
    if prometheus and front.as_json:
        raise click.UsageError("--prometheus and --json cannot be combined")
    with front.client() as client:
        found = _ask(client, sandboxes)
        if front.as_json:
            json_line(found)
        elif prometheus:
            from sandkeep.cli.display.prometheus import exposition

            sys.stdout.buffer.write(exposition(found).encode())
        elif once or not _is_screen():
            table(COLUMNS, _rows(found, {}, sort or "time"))
        else:
            return _watch(client, sandboxes, found, interval, sort or "cpu")
    return None


def _is_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _ask(client: Client, sandboxes: Sequence[str]) -> list[SandboxStats]:
    if not sandboxes:
        return every(client.sandbox.stats)
    return [one for sandbox in dict.fromkeys(sandboxes) for one in client.sandbox.stats(sandbox_id=sandbox).sandboxes]


def _watch(
    client: Client, sandboxes: Sequence[str], found: list[SandboxStats], interval: float, sort: str
) -> int | None:
    """Show the table until the user ends it, or none of the named sandboxes is left."""
    from sandkeep.cli.attach.live import Live
    from sandkeep.cli.attach.terminal import SignalledError

    rates: Rates = {}
    try:
        with Live() as live:
            while found or not sandboxes:
                rows = _rows(found, rates, sort)
                if live.show(partial(table_lines, COLUMNS, rows), interval):
                    return None
                before, found = found, _ask_for_running(client, sandboxes)
                rates = busy(before, found, rates)
    except SignalledError as signalled:
        return 128 + signalled.number
    note("sandkeep: " + ("the sandbox has ended" if len(sandboxes) == 1 else "the sandboxes have ended"))
    return None


def _ask_for_running(client: Client, sandboxes: Sequence[str]) -> list[SandboxStats]:
    """The same, without those that have ended since."""
    if not sandboxes:
        return _ask(client, ())
    found = []
    for sandbox in sandboxes:
        try:
            found += _ask(client, [sandbox])
        except (StateError, CallerError) as error:
            if error.code not in ("not_ready", "not_found"):
                raise
    return found


def busy(before: Sequence[SandboxStats], now: Sequence[SandboxStats], earlier: Rates) -> Rates:
    """The rates between two samples; of two at the same instant those of `earlier`."""
    known = {found.sandbox_id: found for found in before}
    rates: dict[str, float] = {}
    for found in now:
        last = known.get(found.sandbox_id)
        if last is None or last.cpu_s is None or found.cpu_s is None:
            continue
        passed = moment(found.sampled_at) - moment(last.sampled_at)
        if passed > 0:
            rates[found.sandbox_id] = max(0.0, found.cpu_s - last.cpu_s) / passed
        elif found.sandbox_id in earlier:
            rates[found.sandbox_id] = earlier[found.sandbox_id]
    return rates


def _rows(found: Sequence[SandboxStats], rates: Rates, sort: str) -> list[Sequence[object]]:
    measure = SORTS[sort]
    return [_row(one, rates.get(one.sandbox_id)) for one in sorted(found, key=lambda one: -measure(one, rates))]


def _row(found: SandboxStats, rate: float | None) -> Sequence[object]:
    return (
        found.name or found.sandbox_id,
        _of(_per_cent(rate), _per_cent(found.cpus_limit)),
        "-" if found.cpu_s is None else f"{found.cpu_s:.1f}s",
        _of(size(found.memory_bytes), size(found.memory_limit_bytes)),
        _of(_count(found.pids), _count(found.pids_limit)),
        _of(size(found.disk_bytes), size(found.disk_limit_bytes)),
        size(found.io_read_bytes),
        size(found.io_written_bytes),
        _count(found.oom_kills),
        *_age_and_left(found),
    )


def _age_and_left(found: SandboxStats) -> tuple[str, str]:
    """Return its age, and the time until its maximum lifetime, at the time of the sample."""
    passed = "-" if found.created_at is None else span(moment(found.sampled_at) - moment(found.created_at))
    return passed, "-" if (left := _left_s(found)) is None else span(left)


def _left_s(found: SandboxStats) -> float | None:
    """Return the seconds until its longest life is over, at the time of the sample."""
    return None if found.expires_at is None else moment(found.expires_at) - moment(found.sampled_at)


def _of(used: str, limit: str) -> str:
    """Format the usage, with the limit if there is one."""
    return used if limit == "-" else f"{used}/{limit}"


def _per_cent(cpus: float | None) -> str:
    return "-" if cpus is None else f"{100 * cpus:.0f}%"


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)
