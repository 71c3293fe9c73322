"""The daemon's reports about itself, and calls of any of its methods."""

import re
import sys
import time
from typing import Any, Final

import click

from sandkeep.blocking import Client
from sandkeep.cli.display.layout import Column
from sandkeep.cli.display.output import (
    age,
    echo,
    facts,
    json_line,
    note,
    paint,
    plain,
    size,
    table,
    terminal_width,
    wrap,
)
from sandkeep.cli.options import Duration, Frontend, command, common
from sandkeep.cli.words import METHOD
from sandkeep.errors import StateError

WAIT_S: Final = 60.0
WAIT_MOST_S: Final = 86_400.0
POLL_S: Final = 0.05


@command(examples=["sandkeep status", "sandkeep status --wait", "sandkeep status --json | jq .healthy"])
@click.option(
    "--wait",
    "wait_s",
    type=Duration(0, WAIT_MOST_S),
    is_flag=False,
    flag_value=WAIT_S,
    metavar="[TIME]",
    help="Wait for a daemon that does not answer yet, for TIME (default: 60s).",
)
@common()
def status(front: Frontend, wait_s: float | None) -> int:
    """Show the daemon's status. Exits with 1 when it is not healthy, or does not answer."""
    with _client(front, wait_s or 0.0) as client:
        state = client.daemon.status()
    if front.as_json:
        json_line(state)
        return 0 if state.healthy else 1
    facts(
        [
            ("healthy", "yes" if state.healthy else "NO"),
            *(("problem", problem) for problem in state.problems),
            ("sandboxes", _counts(state.sandboxes)),
            *([("not adopted", f"{state.not_adopted} sandboxes have not answered yet")] if state.not_adopted else []),
            ("processes", f"{state.running_processes} running"),
            ("images", _counts(state.images)),
            ("daemon", f"sandkeep {state.version}, pid {state.pid}, up {age(state.started_at)}"),
            ("memory", size(state.resident_bytes)),
            ("you are", state.owner + (", an administrator" if state.admin else "")),
            ("socket", state.socket),
            *(("http", address) for address in state.http),
            ("state", state.state_dir),
            ("log", f"{state.log_id}, {state.position} events"),
            ("leftovers", _leftovers(state.foreign)),
        ]
    )
    return 0 if state.healthy else 1


def _client(front: Frontend, wait_s: float) -> Client:
    """Return a connection, once a daemon listens. Raises `not_ready` if none does in time."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return front.client()
        except StateError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(POLL_S)


def _leftovers(foreign: list[str]) -> str:
    """Summarize the objects of other logs on this machine in one line."""
    if not foreign:
        return ""
    more = re.fullmatch(r"and (\d+) more", foreign[-1])
    count = len(foreign) - 1 + int(more[1]) if more else len(foreign)
    objects = "1 object" if count == 1 else f"{count} objects"
    return f"{objects} of other logs (`foreign` of --json): remove them by hand, unless a daemon still uses them"


def _counts(by_status: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in by_status.items() if count) or "none"


@command(examples=["sandkeep capabilities"])
@common()
def capabilities(front: Frontend) -> None:
    """Show the features of each provider on this machine, and the reasons for missing ones."""
    with front.client() as client:
        found = client.daemon.capabilities()
    if front.as_json:
        return json_line(found)
    shown: list[tuple[str, bool, str | None]] = []
    for provider in found.providers:
        shown.append((provider.provider, provider.works, provider.why))
        features = provider.features if provider.works else {}
        shown += [(f"  {name}", feature.works, feature.why) for name, feature in features.items()]
    shown += [(name, service.works, service.why) for name, service in found.buckets.items()]
    names = max((len(plain(name)) for name, _, _ in shown), default=0)
    for name, works, why in shown:
        _show_capability(plain(name).ljust(names), works, why)
    return None


@command(examples=["sandkeep quota", "sudo sandkeep quota --owner uid:1000"])
@click.option("--owner", metavar="OWNER", help="Show the quotas of another owner, such as uid:1000 (administrators).")
@common()
def quota(front: Frontend, owner: str | None) -> None:
    """Show your quotas and their usage."""
    with front.client() as client:
        found = client.quota.get(owner=owner)
    if front.as_json:
        return json_line(found)

    def shown(amount: int | None, unit: str) -> str:
        if amount is None:
            return "unlimited"
        return str(amount) if unit == "count" else size(amount)

    rows = [
        (each.quota, shown(each.used, each.unit), shown(each.limit, each.unit), each.frees) for each in found.quotas
    ]
    table(["QUOTA", "USED", "LIMIT", Column("FREED BY", least=20, wraps=True)], rows)
    if found.exempt:
        note("you are an administrator: your usage is counted, but not limited")
    return None


def _show_capability(name: str, works: bool, why: str | None) -> None:
    word = paint("yes", "green") if works else paint("no ", "red")
    indent = len(name) + 7
    room = terminal_width()
    first, *rest = wrap(plain(why or ""), room and room - indent)
    echo(f"{name}  {word}  {first}".rstrip())
    for line in rest:
        echo(" " * indent + line)


@command(
    examples=[
        "sandkeep rpc daemon.ping",
        'sandkeep rpc sandbox.get \'{"sandbox_id": "tests"}\'',
        "sandkeep rpc rpc.discover | jq -r '.methods[].name'",
    ]
)
@click.argument("method", type=METHOD)
@click.argument("params", required=False, metavar="[JSON]")
@common()
def rpc(front: Frontend, method: str, params: str | None) -> None:
    """Call METHOD and print its raw result as JSON.

    JSON holds the parameters, by name; `-` reads it from standard input. `sandkeep rpc rpc.discover`
    describes every method.
    """
    arguments = _parameters(params)
    with front.client() as client:
        json_line(client.call(method, arguments))


def _parameters(text: str | None) -> dict[str, Any]:
    import msgspec

    try:
        value = msgspec.json.decode(sys.stdin.read() if text == "-" else text or "{}")
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="JSON") from None
    if not isinstance(value, dict):
        raise click.BadParameter("give the parameters by name, as one JSON object", param_hint="JSON")
    return value
