"""The daemon itself: run it, ask how it is, call any of its methods."""

import os
import sys
from typing import Any, NoReturn

import click

from sandkeep.cli.options import Frontend, common
from sandkeep.cli.output import age, facts, json_line, paint, plain, size, terminal_width
from sandkeep.errors import SetupError


def execute(script: str, arguments: list[str]) -> NoReturn:
    """Become another console script of this installation. Raises `not_supported` when it is not there."""
    import shutil

    beside = os.path.join(os.path.dirname(sys.executable), script)
    path = beside if os.access(beside, os.X_OK) else shutil.which(script)
    if path is None:
        raise SetupError("not_supported", f"{script} is not installed here: install sandkeep[daemon]")
    sys.stdout.flush()
    os.execv(path, [script, *arguments])  # noqa: S606  # no shell is wanted


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def daemon(ctx: click.Context, arguments: tuple[str, ...]) -> NoReturn:
    """Run the daemon in the foreground: the same as sandkeepd, with its options."""
    from sandkeep.cli.options import Refusal

    socket = ctx.find_root().params.get("socket")
    try:
        execute("sandkeepd", [*(["--socket", socket] if socket else []), *arguments])
    except SetupError as error:
        raise Refusal(error) from None


@click.command()
@common()
def status(front: Frontend) -> int:
    """How the daemon is and what it looks after. Exits with 1 when it is not healthy."""
    with front.client() as client:
        state = client.daemon.status()
    if front.as_json:
        json_line(state)
        return 0 if state.healthy else 1
    facts(
        [
            ("daemon", f"sandkeep {state.version}, pid {state.pid}, up {age(state.started_at)}"),
            ("healthy", "yes" if state.healthy else "no"),
            *(("problem", problem) for problem in state.problems),
            ("state", state.state_dir),
            ("socket", state.socket),
            ("log", f"{state.log_id}, {state.position} events"),
            ("sandboxes", _counts(state.sandboxes)),
            ("images", _counts(state.images)),
            ("processes", f"{state.running_processes} running"),
            ("memory", size(state.resident_bytes)),
            ("you are", state.owner + (", an administrator" if state.admin else "")),
        ]
    )
    return 0 if state.healthy else 1


def _counts(by_status: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in by_status.items() if count) or "none"


@click.command()
@common()
def capabilities(front: Frontend) -> None:
    """What works on this machine, provider by provider, and why something does not."""
    with front.client() as client:
        found = client.daemon.capabilities()
    if front.as_json:
        return json_line(found)
    for provider in found.providers:
        _show_capability(provider.provider, provider.works, provider.why, indent="")
        for name, feature in provider.features.items():
            _show_capability(name, feature.works, feature.why, indent="  ")
    return None


def _show_capability(name: str, works: bool, why: str | None, indent: str) -> None:
    import textwrap

    word = paint("yes", "green") if works else paint("no ", "red")
    room = max(20, (terminal_width() or 80) - 24)
    first, *rest = textwrap.wrap(plain(why or ""), room) or [""]
    print(f"{(indent + plain(name)).ljust(18)}  {word}  {first}".rstrip())
    for line in rest:
        print(" " * 24 + line)


@click.command()
@click.argument("method")
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
        raise click.BadParameter(f"that is not JSON: {error}", param_hint="JSON") from None
    if not isinstance(value, dict):
        raise click.BadParameter("give the parameters by name, as one JSON object", param_hint="JSON")
    return value
