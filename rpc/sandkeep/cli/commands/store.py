"""`store`: check the event log, and rebuild data computed from it. Through the daemon, or without one."""

import click

from sandkeep.cli.commands.daemon_process import execute
from sandkeep.cli.display.output import echo, json_line, note, plain
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import Frontend, command, common, non_empty
from sandkeep.cli.words import DIRECTORY
from sandkeep.settings.daemon import RETAIN, STATE_DIR

state_dir_option = click.option(
    "--state-dir",
    type=DIRECTORY,
    metavar="DIR",
    help="Work on this state directory, without a daemon (none may run on it).",
)


def _offline(front: Frontend, action: str, state_dir: str, *more: str) -> None:
    execute("sandkeep-store", [action, "--state-dir", state_dir, *(["--json"] if front.as_json else []), *more])


@command(examples=["sandkeep store verify", "sandkeep store verify --state-dir /var/lib/sandkeep"])
@state_dir_option
@common()
def verify(front: Frontend, state_dir: str | None) -> int:
    """Check the event log and every metadata.json. Exits with 1 when there are problems."""
    if state_dir:
        _offline(front, "verify", state_dir)
    with progress("checking the event log") as display, front.client() as client:
        report = client.store.verify(progress=display)
    if front.as_json:
        json_line(report)
    else:
        for problem in report.problems:
            note(f"sandkeep: {plain(problem)}")
        verdict = "sound" if report.ok else "NOT SOUND"
        echo(f"{verdict}: {report.events} events, {report.first_position} to {report.last_position}")
    return 0 if report.ok else 1


@command(examples=["sandkeep store rebuild"])
@state_dir_option
@common()
def rebuild(front: Frontend, state_dir: str | None) -> None:
    """Rebuild every metadata.json from the event log."""
    if state_dir:
        _offline(front, "rebuild", state_dir)
    with progress("writing every metadata.json") as display, front.client() as client:
        report = client.store.rebuild(progress=display)
    if front.as_json:
        return json_line(report)
    counts = f"{report.written} written, {report.unchanged} unchanged, {report.removed} removed"
    return echo(f"{counts}, at position {report.position}")


@command(examples=["sandkeep store compact", "sandkeep store compact --older-than 7d"])
@click.option("--older-than", metavar="AGE", help="Minimum time since the end, such as 7d (default: SANDKEEP_RETAIN).")
@state_dir_option
@common()
def compact(front: Frontend, older_than: str | None, state_dir: str | None) -> None:
    """Archive events of objects that ended long ago, and remove their output."""
    if state_dir:
        _offline(front, "compact", state_dir, *(["--older-than", older_than] if older_than else []))
    try:
        age_s = RETAIN.parse(older_than) if older_than else None
    except ValueError as error:
        raise click.BadParameter(f"{older_than!r}: {error}", param_hint="'--older-than'") from None
    with progress("archiving") as display, front.client() as client:
        report = client.store.compact(**non_empty(older_than_s=age_s), progress=display)
    if front.as_json:
        return json_line(report)
    what = f"{report.events} events of {report.sandboxes} sandboxes and {report.images} images archived"
    return echo(f"{what} in {len(report.segments)} segments; no gaps from position {report.first_position} on")


@command(examples=["sandkeep store repair --state-dir /var/lib/sandkeep"])
@click.option("--state-dir", type=DIRECTORY, metavar="DIR", help="The state directory (default: SANDKEEP_STATE_DIR).")
@click.option("--yes", is_flag=True, help="Repair it (default: only report the losses).")
@common()
def repair(front: Frontend, state_dir: str | None, yes: bool) -> None:
    """Repair a damaged event log while no daemon runs. Reports the losses; the damaged files are kept."""
    _offline(front, "repair", state_dir or STATE_DIR(), *(["--yes"] if yes else []))


@command(examples=["sandkeep store redact 4711"])
@click.argument("position", type=click.IntRange(min=1))
@common()
def redact(front: Frontend, position: int) -> None:
    """Remove a caller's data in an event from the log and the archive, for good.

    The event stays in the log, with its type and position; `sandkeep events` shows positions.
    """
    with progress("redacting") as display, front.client() as client:
        report = client.store.redact(position, progress=display)
    if front.as_json:
        return json_line(report)
    return echo(f"{report.type} of {report.stream} redacted in {', '.join(report.places) or 'nothing'}")
