"""Time travel: restore a sandbox as it was at a moment of its history."""

from collections.abc import Iterator
from typing import Any

import click

from sandkeep.cli.display.output import echo, json_line, note, plain
from sandkeep.cli.display.progress import progress
from sandkeep.cli.display.timeline import elapsed
from sandkeep.cli.options import (
    At,
    Frontend,
    command,
    common,
    env_option,
    label_option,
    non_empty,
    sandbox_name_option,
    secret_option,
)
from sandkeep.cli.words import SANDBOX
from sandkeep.model import RestoredAt


@command(
    examples=[
        "OLD=$(sandkeep restore $BOX --at 17)",
        "sandkeep restore $BOX --at 10m",
        "sandkeep restore $BOX --at 2026-11-22T09:00:00Z --label why=it-worked-then",
    ]
)
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.option(
    "--at",
    type=At(),
    required=True,
    metavar="POSITION|TIME",
    help="A position from `sandkeep history`, a time ago such as 10m, or one such as 2026-11-22T09:00:00Z.",
)
@sandbox_name_option
@env_option
@secret_option
@label_option
@common()
def restore(front: Frontend, sandbox: str, at: dict[str, Any], **options: Any) -> None:
    """Create a sandbox as SANDBOX was at a moment, and print its id.

    The newest snapshot or checkpoint at or before that moment is used, and reported on stderr with its distance from
    it. SANDBOX itself is not changed, and may have ended.
    """
    with progress("restoring") as display, front.client() as client:
        made = client.sandbox.restore_at(sandbox, progress=display, **at, **non_empty(**options))
    if front.as_json:
        return json_line(made)
    for line in describe_source(made):
        note(f"sandkeep: {line}")
    return echo(made.sandbox.sandbox_id)


def describe_source(made: RestoredAt) -> Iterator[str]:
    """Yield lines about the source of a new sandbox, and its distance from the requested moment."""
    moment = made.moment
    name = f" ({plain(moment.name)})" if moment.name else ""
    yield f"from {moment.kind} {moment.source_id}{name}, of position {moment.position}"
    yield f"of {moment.time}, {_distance(made)}"
    if moment.partial:
        yield f"that {moment.kind} lacks files, as it was created with --include or --exclude"


def _distance(made: RestoredAt) -> str:
    passed = elapsed(made.distance_s) + (" s" if made.distance_s < 3600 else "")
    if made.events_between is None:
        return f"{passed} before the requested moment; some of the events between may be archived"
    if made.events_between == 0:
        return "and nothing happened in the sandbox between that and the requested moment"
    events = "1 event" if made.events_between == 1 else f"{made.events_between} events"
    return f"{events} and {passed} before the requested moment"
