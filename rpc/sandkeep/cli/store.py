"""The event log: check it, and compute again what is computed from it. Through the daemon, or without one."""

import click

from sandkeep.cli.daemon import execute
from sandkeep.cli.options import Frontend, common
from sandkeep.cli.output import json_line, note, plain

state_dir_option = click.option(
    "--state-dir", metavar="DIR", help="Without a daemon, which must not run: work on this state directory."
)


def _offline(front: Frontend, action: str, state_dir: str) -> None:
    execute("sandkeep-store", [action, "--state-dir", state_dir, *(["--json"] if front.as_json else [])])


@click.command()
@state_dir_option
@common()
def verify(front: Frontend, state_dir: str | None) -> int:
    """Check the event log and every metadata.json. Exits with 1 when something is wrong."""
    if state_dir:
        _offline(front, "verify", state_dir)
    with front.client() as client:
        report = client.store.verify()
    if front.as_json:
        json_line(report)
    else:
        for problem in report.problems:
            note(f"sandkeep: {plain(problem)}")
        verdict = "sound" if report.ok else "NOT SOUND"
        print(f"{verdict}: {report.events} events, {report.first_position} to {report.last_position}")
    return 0 if report.ok else 1


@click.command()
@state_dir_option
@common()
def rebuild(front: Frontend, state_dir: str | None) -> None:
    """Write every metadata.json anew from the event log."""
    if state_dir:
        _offline(front, "rebuild", state_dir)
    with front.client() as client:
        report = client.store.rebuild()
    if front.as_json:
        return json_line(report)
    counts = f"{report.written} written, {report.unchanged} unchanged, {report.removed} removed"
    return print(f"{counts}, at position {report.position}")
