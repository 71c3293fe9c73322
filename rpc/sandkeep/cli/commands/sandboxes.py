"""Sandboxes: create, list, show, suspend, resume, terminate."""

import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from sandkeep.blocking import Client
from sandkeep.cli.confirmation import confirm, require_terminal
from sandkeep.cli.display.output import (
    Column,
    age,
    cut_middle,
    echo,
    facts,
    identifier,
    json_line,
    moment,
    note,
    size,
    span,
    status,
    table,
    when,
)
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import (
    At,
    Duration,
    Frontend,
    Size,
    command,
    common,
    non_empty,
    sandbox_name_option,
    sandbox_options,
    secret_option,
)
from sandkeep.cli.selection import Selection, selection_options
from sandkeep.cli.words import IMAGE, PROVIDER, SANDBOX
from sandkeep.clients.pages import every
from sandkeep.errors import CallerError
from sandkeep.ids import looks_like_id
from sandkeep.model import Image, Sandbox, SandboxAt, SandboxSpec


@command(
    examples=[
        "sandkeep create $IMG",
        "BOX=$(sandkeep create $IMG --memory 512M --pids 64 --disk 2G)",
        "sandkeep create $IMG --network bridge --volume cache:/var/cache",
        "sandkeep create python:3.12 --writable-root --network bridge",
        "sandkeep create $IMG --name tests --env CI=1 --secret TOKEN --idle-timeout 10m",
    ]
)
@click.argument("image", type=IMAGE, metavar="IMAGE")
@sandbox_name_option
@click.option("--provider", type=PROVIDER, metavar="NAME", help="Provider to run on (default: the image's).")
@click.option(
    "--isolation", type=click.Choice(["default", "none"]), help="Isolation; `none` is for administrators only."
)
@sandbox_options
@click.option(
    "--writable-root",
    is_flag=True,
    help="Let programs be installed into the system (apt, pip); for Docker sandboxes.",
)
@click.option(
    "--shared", "gcs_sandbox_id", metavar="ID", help="Share it with other daemons, under this id; it is its name."
)
@click.option("--handoff", "enable_handoff", is_flag=True, help="Hand it over to a daemon that attaches to it.")
@click.option(
    "--checkpoint-at-idle",
    "enable_checkpoint_at_idle",
    is_flag=True,
    help="When it is idle, save it and give it up, instead of terminating it.",
)
@common()
def create(front: Frontend, image: str, *, writable_root: bool, **spec: Any) -> None:
    """Create and start a sandbox from IMAGE, and print its id.

    The token by which other daemons attach to a shared sandbox is printed to stderr, and is in the JSON.
    """
    given = non_empty(**spec, writable_root=writable_root or None)
    try:
        with progress("starting a sandbox") as display, front.client() as client:
            sandbox = client.sandbox.create(image, progress=display, **given)
    except CallerError as error:
        raise _no_image(error, image) from None
    if front.as_json:
        return json_line(sandbox)
    if sandbox.sandbox_token:
        note(f"token: {sandbox.sandbox_token}")
    return echo(sandbox.sandbox_id)


def _no_image(error: CallerError, image: str) -> CallerError:
    """Return the error, or for a reference or directory instead of an image the one that says how to make that."""
    if not ("image_id" in error.data or error.data.get("field") == "image_id") or looks_like_id(image):
        return error
    is_source = any(sign in image for sign in ":/@") or image in (".", "..")
    if error.code != "not_found" and not is_source:
        return error
    ways = f"see `sandkeep image ls`, or make it with `sandkeep image create {shlex.quote(image)}`"
    data = error.data if error.code == "not_found" else {}
    return CallerError("not_found", f"there is no image {image!r} ({ways})", **data)


@command(
    name="attach-shared",
    examples=["sandkeep attach-shared sandbox-1f2e --token - <token", "sandkeep attach-shared sandbox-1f2e --token T"],
)
@click.argument("name", metavar="ID")
@click.option("--token", required=True, metavar="TOKEN", help="Token of the sandbox; `-` reads it from stdin.")
@click.option(
    "--timeout", "timeout_s", type=Duration(), metavar="TIME", help="Maximum time to wait for its daemon (default: 2m)."
)
@secret_option
@click.option(
    "--allow-host", is_flag=True, help="Accept the host's network or directories, or no isolation. For administrators."
)
@common()
def attach_shared(
    front: Frontend, name: str, token: str, timeout_s: float | None, secrets: dict[str, str], *, allow_host: bool
) -> None:
    """Attach a sandbox that another daemon shares, as it was saved last, and print its id here.

    While the other daemon has it, this waits for that one to hand it over.
    """
    if token == "-":  # noqa: S105 - the sign for stdin
        token = sys.stdin.readline().strip()
    given = non_empty(timeout_s=timeout_s, secrets=secrets, allow_host=allow_host or None)
    with progress(f"attaching {name}") as display, front.client() as client:
        sandbox = client.sandbox.attach_shared(name, token, progress=display, **given)
    return json_line(sandbox) if front.as_json else echo(sandbox.sandbox_id)


@command(examples=["sandkeep detach $BOX"])
@click.argument("sandboxes", nargs=-1, required=True, type=SANDBOX, metavar="SANDBOX...")
@common()
def detach(front: Frontend, sandboxes: tuple[str, ...]) -> None:
    """Save shared sandboxes where other daemons find them, give them up, and print their ids."""
    front.for_each("detaching", "sandbox.detach", sandboxes)


@command(
    examples=[
        "sandkeep ls",
        "sandkeep ls --label team=web --filter status=running",
        "sandkeep ls --all --json | jq -r '.[].sandbox_id'",
    ]
)
@click.option("--all", "-a", "everything", is_flag=True, help="Include sandboxes that ended.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the ids.")
@selection_options
@common()
def ls(
    front: Frontend, everything: bool, quiet: bool, labels: dict[str, str], filters: tuple[tuple[str, str], ...]
) -> None:
    """List sandboxes. AGE is the time since their creation, LEFT the time until their maximum lifetime. IMAGE and
    PARENT are names where these have any.

    Filters with different keys must all match; of several values for one key, any. A name may contain * and ?.
    """
    with front.client() as client:
        found = Selection(labels, filters, everything).find(client)
        images = {} if quiet or front.as_json or not found else _image_names(client)
    if quiet:
        for sandbox in found:
            echo(sandbox.sandbox_id)
        return None
    if front.as_json:
        return json_line(found)
    return _table(found, images)


def _image_names(client: Client) -> dict[str, str]:
    """Return the words by which `create` takes images besides their ids, by id: a name, or the reference."""
    images: Iterable[Image] = every(client.image.list)
    return {i.image_id: i.names[0] if i.names else i.source for i in images if i.names or i.kind == "reference"}


def _table(found: list[Sandbox], images: Mapping[str, str]) -> None:
    """Print sandboxes as a table, with `images` by their names, and other sandboxes by theirs. A column of which no
    sandbox has anything is left out.
    """
    named = {s.sandbox_id: s.name for s in found if s.name and not s.ended_at}
    name = Column("NAME", least=12, shorten=cut_middle)  # the id is there, whole
    labels, parent = Column("LABELS", least=6, spare=True), identifier("PARENT")
    left = Column("LEFT", least=4, spare=True)
    cells: list[tuple[str | Column, list[object]]] = [
        ("SANDBOX", [s.sandbox_id for s in found]),
        (name, [s.name or "" for s in found]),
        (status(), [s.status + _remark(s) for s in found]),
        ("AGE", [age(s.created_at) for s in found]),
        (left, [_left(s) if s.expires_at else "" for s in found]),
        (labels, [_pairs(s.spec.labels) for s in found]),
        (identifier("IMAGE", least=5), [images.get(s.image_id or "", s.image_id) for s in found]),
        (parent, [named.get(s.forked_from or "") or s.forked_from or s.restored_from or "" for s in found]),
        (Column("PROCS", least=4, spare=True), [s.running_processes for s in found]),
    ]
    optional = (name, left, labels, parent)
    shown = [(title, column) for title, column in cells if title not in optional or any(column)]
    table([title for title, _ in shown], zip(*(column for _, column in shown), strict=True))


def _pairs(values: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in values.items())


def _left(sandbox: Sandbox) -> str:
    return "-" if sandbox.expires_at is None else span(moment(sandbox.expires_at) - time.time())


def _remark(sandbox: Sandbox) -> str:
    """Return a short mark for a sandbox that has a note."""
    if not sandbox.note:
        return ""
    return ", waits" if sandbox.status == "stopping" else ", not adopted"


@command(examples=["sandkeep get $BOX", "sandkeep get $BOX --json | jq .spec", "sandkeep get $BOX --at 17"])
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.option(
    "--at",
    type=At(),
    metavar="POSITION|TIME",
    help="Show it as it was after this event of `sandkeep history`, or at this time, such as 10m (ago).",
)
@common()
def get(front: Frontend, sandbox: str, at: dict[str, Any] | None) -> None:
    """Show a sandbox; with --at as it was at a position, with its processes and snapshots."""
    with front.client() as client:
        if at is not None:
            return _show_at(front, client.event.state_at(sandbox, _position(client, sandbox, **at)))
        found = client.sandbox.get(sandbox)
    return json_line(found) if front.as_json else facts(_describe(found))


def _position(client: Client, sandbox: str, position: int | str = 0, time: str = "") -> int | str:
    """Return the position of the sandbox's last event at or before a time; a given position as it is."""
    if not time:
        return position
    from sandkeep.cli.commands.events import all_events

    history = all_events(client.sandbox.history, sandbox)
    before = [event.position for event in history if moment(event.time) <= moment(time)]
    if not before:
        first = f": it begins at {history[0].time}" if history else ""
        raise CallerError("not_found", f"{sandbox} did not exist yet at {time}{first}")
    return before[-1]


def _show_at(front: Frontend, found: SandboxAt) -> None:
    if front.as_json:
        return json_line(found)
    left_out = f"{found.left_out} more processes or snapshots are not shown" if found.left_out else None
    return facts(
        [
            ("at", f"position {found.position}, {when(found.time)}"),
            *_describe(found.sandbox),
            *(("runs", f"{p.name}: {shlex.join(p.command)}") for p in found.processes if p.ended_at is None),
            *(("snapshots", " ".join(filter(None, [s.snapshot_id, s.status, s.name]))) for s in found.snapshots),
            *(("checkpoints", " ".join(filter(None, [c.checkpoint_id, c.status, c.name]))) for c in found.checkpoints),
            ("note", found.note),
            ("note", left_out),
        ]
    )


def _describe(sandbox: Sandbox) -> list[tuple[str, object]]:
    isolation = sandbox.isolation
    reason = sandbox.terminated_reason or sandbox.suspended_reason
    return [
        ("sandbox", sandbox.sandbox_id),
        ("name", sandbox.name),
        ("status", " ".join(filter(None, [sandbox.status, reason and f"({reason})"]))),
        ("error", sandbox.error),
        ("note", sandbox.note),
        ("image", sandbox.image_id),
        ("forked from", sandbox.forked_from),
        ("restored from", sandbox.restored_from),
        ("snapshot", sandbox.latest_snapshot_id),
        ("provider", sandbox.provider),
        ("owner", sandbox.owner),
        ("created", when(sandbox.created_at)),
        ("ended", when(sandbox.ended_at)),
        ("ends", f"{sandbox.expires_at}, in {_left(sandbox)}" if sandbox.expires_at else ""),
        ("processes", f"{sandbox.running_processes} running, {sandbox.exec_count} unnamed so far"),
        ("limits met", ", ".join(f"{limit} by {count}" for limit, count in sandbox.limits_met.items())),
        *describe_spec(sandbox.spec),
        ("moved to", None if sandbox.moved_to is None else ", ".join(sandbox.moved_to) or "another daemon"),
        ("secrets", ", ".join(sandbox.secrets)),
        *(
            []
            if isolation is None
            else [("isolation", isolation.mechanism), ("files", isolation.files), ("host uid", isolation.host_uid)]
        ),
        *(
            []
            if isolation is None
            else [("limit", describe_limit(name, how)) for name, how in isolation.limits.items()]
        ),
        *([] if isolation is None else [("note", text) for text in isolation.notes]),
    ]


def describe_limit(name: str, how: str) -> str:
    """Return the enforcement of a limit, as a fact: code inside can exceed an approximate one."""
    return f"{name}, {how}" if how == "approximate" else f"{name} by {how}"


def describe_spec(spec: SandboxSpec) -> list[tuple[str, object]]:
    """Return the requested properties of a sandbox as facts."""
    return [
        ("cpus", spec.cpus),
        ("memory", spec.memory_bytes and size(spec.memory_bytes)),
        ("pids", spec.pids),
        ("disk", spec.disk_bytes and size(spec.disk_bytes)),
        ("network", spec.network),
        ("root", "writable" if spec.writable_root else None),
        *(("volume", f"{v.source} at {v.target}{' (read-only)' if v.read_only else ''}") for v in spec.volumes),
        ("shared as", spec.shared and spec.shared.gcs_sandbox_id),
        ("env", ", ".join(f"{key}={value}" for key, value in spec.env.items())),
        ("labels", ", ".join(f"{key}={value}" for key, value in spec.labels.items())),
    ]


@command(
    examples=["sandkeep rm $BOX", "sandkeep rm tests other", "sandkeep rm --label run=17", "sandkeep rm --all --yes"]
)
@click.argument("sandboxes", nargs=-1, type=SANDBOX, metavar="[SANDBOX...]")
@click.option("--all", "-a", "everything", is_flag=True, help="Terminate all your sandboxes.")
@selection_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@common()
def rm(
    front: Frontend,
    sandboxes: tuple[str, ...],
    everything: bool,
    labels: dict[str, str],
    filters: tuple[tuple[str, str], ...],
    yes: bool,
) -> None:
    """Terminate sandboxes, with all their processes, and print their ids. Logs and history stay readable.

    --all, --label and --filter choose among your own, also for an administrator. They leave out sandboxes of sessions:
    use `session close`. They ask for confirmation; without a terminal they need --yes.
    """
    chosen = [word for word, given in (("--all", everything), ("--label", labels), ("--filter", filters)) if given]
    if bool(sandboxes) == bool(chosen):
        both = f", not SANDBOX and {chosen[0]}" if chosen else ""
        raise click.UsageError(f"give SANDBOX..., or --all, --label or --filter{both}")
    if not sandboxes:
        require_terminal(yes)
        sandboxes = _own(front, Selection(labels, filters))
        if sandboxes and not yes:
            confirm(f"Terminate {_count(sandboxes)}?")
        note(f"sandkeep: terminating {_count(sandboxes)}")
    front.for_each("terminating", "sandbox.terminate", sandboxes)


def _count(sandboxes: Sequence[str]) -> str:
    return "1 sandbox" if len(sandboxes) == 1 else f"{len(sandboxes) or 'no'} sandboxes"


def _own(front: Frontend, selection: Selection) -> tuple[str, ...]:
    """Return the ids of the caller's own sandboxes that match: administrators see everybody's. Those of sessions are
    left out, and reported on stderr: their sessions end them, after a snapshot.
    """
    with front.client() as client:
        owner = client.daemon.status().owner
        own = [sandbox for sandbox in selection.find(client) if sandbox.owner == owner]
    sessions = [sandbox.spec.session_id for sandbox in own if sandbox.spec.session_id is not None]
    if sessions:
        kept, which = "1 sandbox of a session", f"{sessions[0]}`"
        if len(sessions) > 1:
            kept, which = f"{len(sessions)} sandboxes of sessions", "SESSION...` (see `sandkeep session ls`)"
        note(f"sandkeep: {kept} not included: end with `sandkeep session close {which}")
    return tuple(sandbox.sandbox_id for sandbox in own if sandbox.spec.session_id is None)


@command(examples=["sandkeep update $BOX --memory 1G --cpus 2", "sandkeep update $BOX --disk 4G"])
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.option("--cpus", type=float, metavar="N", help="New CPU limit, in cores.")
@click.option("--memory", "memory_bytes", type=Size(), metavar="SIZE", help="New memory limit, such as 512M.")
@click.option("--pids", type=int, metavar="N", help="New maximum number of processes.")
@click.option("--disk", "disk_bytes", type=Size(), metavar="SIZE", help="New size of its own disk, such as 4G.")
@click.option(
    "--network",
    type=click.Choice(["none", "host", "bridge"]),
    help="Refused: a sandbox keeps its first network.",
)
@common()
def update(front: Frontend, sandbox: str, **limits: Any) -> None:
    """Change limits of a sandbox, while it runs, and print its id. A disk of its own can only grow."""
    given = non_empty(**limits)
    if not given:
        raise click.UsageError("give a limit to change: --cpus, --memory, --pids or --disk")
    front.for_each("updating", "sandbox.update", (sandbox,), **given)


@command(examples=["sandkeep suspend $BOX", "sandkeep suspend tests other"])
@click.argument("sandboxes", nargs=-1, required=True, type=SANDBOX, metavar="SANDBOX...")
@common()
def suspend(front: Frontend, sandboxes: tuple[str, ...]) -> None:
    """Freeze sandboxes, and print their ids. Use `resume` to continue them."""
    front.for_each("suspending", "sandbox.suspend", sandboxes)


@command(examples=["sandkeep resume $BOX", "sandkeep resume $BOX --secret TOKEN"])
@click.argument("sandboxes", nargs=-1, required=True, type=SANDBOX, metavar="SANDBOX...")
@secret_option
@common()
def resume(front: Frontend, sandboxes: tuple[str, ...], secrets: dict[str, str]) -> None:
    """Resume suspended sandboxes, and print their ids. Lost and failed ones are restarted from their files, if their
    provider supports it; give their secrets again then.
    """
    front.for_each("resuming", "sandbox.resume", sandboxes, secrets=secrets)
