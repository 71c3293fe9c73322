"""What happened: the events of all that the caller owns, and the history of one sandbox."""

from collections.abc import Iterator

import click

from sandkeep.blocking import Client
from sandkeep.cli.options import SANDBOX, Frontend, common
from sandkeep.cli.output import cut, json_line, moment, paint, terminal_width
from sandkeep.cli.timeline import Names, clock, history_line, line
from sandkeep.model import Event


@click.command()
@click.option("--after", metavar="TOKEN", help="Only those after this token; `now` for none of the past.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new ones as they come.")
@click.option("--sandbox", type=SANDBOX, metavar="SANDBOX", help="Only those of one sandbox and its processes.")
@click.option(
    "--type", "kind", metavar="TYPE", help="Only this type, such as process.exited, or this first word of it."
)
@common()
def events(front: Frontend, after: str | None, follow: bool, sandbox: str | None, kind: str | None) -> None:
    """What happened, in the order it was committed."""
    with front.client() as client:
        found = client.follow_events(after, sandbox_id=sandbox, type=kind, follow=follow)
        if front.as_json and not follow:
            return json_line(list(found))
        names = Names()
        for event in found:
            json_line(event) if front.as_json else print(cut(line(event, names), terminal_width()), flush=follow)
    return None


@click.command()
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@common()
def history(front: Frontend, sandbox: str) -> None:
    """The life of one sandbox and of its processes, event by event."""
    with front.client() as client:
        found = list(_history(client, sandbox))
    if front.as_json:
        return json_line(found)
    if found:
        print(paint(f"{sandbox}, from {found[0].time[:10]} {clock(found[0])} UTC", "bold"))
    return show_history(found)


def show_history(found: list[Event]) -> None:
    """Print events as a timeline in seconds from the first."""
    names = Names()
    for event in found:
        print(cut(history_line(event, moment(event.time) - moment(found[0].time), names), terminal_width()))


def _history(client: Client, sandbox: str) -> Iterator[Event]:
    after: str | None = None
    while True:
        page = client.sandbox.history(sandbox, after=after)
        yield from page.events
        if page.caught_up:
            return
        after = page.next
