"""`events`, of all that the caller owns, and `history`, of one sandbox."""

from collections.abc import Callable

import click

from sandkeep.cli.display.output import echo, json_line, moment, note, paint, plain, terminal_width
from sandkeep.cli.display.timeline import Names, clock, day, history_line, line
from sandkeep.cli.options import Frontend, Time, command, common
from sandkeep.cli.words import EVENT_TYPE, SANDBOX
from sandkeep.model import Event, EventPage


@command(
    examples=[
        "sandkeep events --follow",
        "sandkeep events --sandbox $BOX --type process.exited",
        "sandkeep events --since 10m --json | jq -r .type",
        "sandkeep events --after now --follow --json",
    ]
)
@click.option("--after", metavar="TOKEN", help="Start after this token; `now` skips past events.")
@click.option("--since", type=Time(), metavar="TIME", help="Start at this time, such as 10m (ago).")
@click.option("--follow", "-f", is_flag=True, help="Follow new events.")
@click.option("--sandbox", type=SANDBOX, metavar="SANDBOX", help="Only events of this sandbox and its processes.")
@click.option(
    "--type",
    "kind",
    type=EVENT_TYPE,
    metavar="TYPE",
    help="Only this type, such as process.exited, or all with this first word.",
)
@common()
def events(
    front: Frontend, after: str | None, since: str | None, follow: bool, sandbox: str | None, kind: str | None
) -> None:
    """Show events, in commit order. With --json: one document a line."""
    if after is not None and since is not None:
        raise click.UsageError("--after and --since cannot be combined: both say where to start")
    if kind:
        _warn_if_unknown(kind)
    with front.client() as client:
        found = client.follow_events(after or since, sandbox_id=sandbox, type=kind, follow=follow)
        show = json_line if front.as_json else _Lines(flush=follow).show
        for event in found:
            show(event)


def _warn_if_unknown(kind: str) -> None:
    """Warn about an unknown event type, which may be mistyped, or of a newer daemon."""
    from difflib import get_close_matches

    from sandkeep.events import EVENTS

    if kind in {*EVENTS, *(known.partition(".")[0] for known in EVENTS)}:
        return
    near = get_close_matches(kind, EVENTS, n=1)
    note(f"sandkeep: {plain(kind)} is not a known event type" + (f": did you mean {near[0]}?" if near else ""))


class _Lines:
    """Events as lines; on a terminal, each day begins with its date."""

    def __init__(self, *, flush: bool) -> None:
        self._names = Names()
        self._flush = flush
        self._day = ""

    def show(self, event: Event) -> None:
        room = terminal_width()
        if room and day(event) != self._day:
            self._day = day(event)
            echo(paint(f"{self._day} UTC", "bold"))
        echo(line(event, self._names, room), flush=self._flush)


@command(examples=["sandkeep history $BOX", "sandkeep history $BOX --json | jq -r '.[].type'"])
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@common()
def history(front: Frontend, sandbox: str) -> None:
    """Show the events of one sandbox and its processes.

    A filled diamond marks a snapshot or checkpoint: give the position before it to `restore --at`. An empty one marks
    one that was deleted.
    """
    with front.client() as client:
        found = all_events(client.sandbox.history, sandbox)
    if front.as_json:
        return json_line(found)
    if found:
        echo(paint(f"{plain(sandbox)}, from {day(found[0])} {clock(found[0])} UTC", "bold"))
    return show_history(found)


def show_history(found: list[Event]) -> None:
    """Print events as a timeline in seconds from the first."""
    names = Names()
    room = terminal_width()
    for event in found:
        echo(history_line(event, moment(event.time) - moment(found[0].time), names, room))


def all_events(history: Callable[..., EventPage], subject: str) -> list[Event]:
    """Return all pages of a history."""
    found: list[Event] = []
    after: str | None = None
    while True:
        page = history(subject, after=after)
        found += page.events
        if page.caught_up:
            return found
        after = page.next
