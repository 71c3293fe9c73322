"""Sandboxes: make, list, show, end."""

from typing import Any

import click

from sandkeep.cli.display.output import Column, age, facts, identifier, json_line, size, status, table, when
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import (
    IMAGE,
    INSIDE,
    PROVIDER,
    SANDBOX,
    At,
    Frontend,
    Mount,
    Size,
    command,
    common,
    env_option,
    given,
    label_option,
    sandbox_name_option,
    secret_option,
)
from sandkeep.model import Sandbox, SandboxAt, SandboxSpec


@command(
    examples=[
        "sandkeep create $IMG",
        "BOX=$(sandkeep create $IMG --memory 512M --pids 64 --disk 2G)",
        "sandkeep create $IMG --network bridge --volume cache:/var/cache",
        "sandkeep create $IMG --name tests --env CI=1 --secret TOKEN --idle-timeout 600",
    ]
)
@click.argument("image", type=IMAGE, metavar="IMAGE")
@sandbox_name_option
@click.option("--provider", type=PROVIDER, metavar="NAME", help="Who runs it; the image's own provider otherwise.")
@click.option("--cpus", type=float, metavar="N", help="How many processors it may use.")
@click.option("--memory", "memory_bytes", type=Size(), metavar="SIZE", help="Memory, such as 512M.")
@click.option("--pids", type=int, metavar="N", help="How many processes it may have.")
@click.option("--disk", "disk_bytes", type=Size(), metavar="SIZE", help="How much it may write, such as 2G.")
@click.option("--network", type=click.Choice(["none", "host", "bridge"]), help="What it reaches; none unless given.")
@click.option(
    "--volume",
    "volumes",
    type=Mount(),
    multiple=True,
    metavar="SOURCE:PLACE[:ro]",
    help="A volume of yours by its name, or, for administrators, a directory of the host, at PLACE inside.",
)
@click.option("--user", metavar="UID[:GID]", help="Who its processes are, inside.")
@click.option("--read-only", is_flag=True, help="It cannot change its files.")
@click.option("--cwd", "working_dir", type=INSIDE, metavar="DIR", help="Where its processes start.")
@click.option(
    "--isolation", type=click.Choice(["default", "none"]), help="`none` runs it unisolated, for administrators."
)
@click.option(
    "--idle-timeout", "idle_timeout_s", type=float, metavar="SECONDS", help="End it when nothing ran for that long."
)
@click.option("--max-lifetime", "max_lifetime_s", type=float, metavar="SECONDS", help="End it at that age.")
@env_option
@secret_option
@label_option
@common()
def create(front: Frontend, image: str, env: Any, secret: Any, label: Any, volumes: Any, **spec: Any) -> None:
    """Make a sandbox from IMAGE, start it and print its id."""
    options = given(env=dict(env), secrets=dict(secret), labels=dict(label), volumes=list(volumes), **spec)
    with progress("starting a sandbox") as told, front.client() as client:
        sandbox = client.sandbox.create(image, progress=told, **options)
    return json_line(sandbox) if front.as_json else print(sandbox.sandbox_id)


@command(examples=["sandkeep ls", "sandkeep ls --all --json | jq -r '.[].sandbox_id'"])
@click.option("--all", "-a", "everything", is_flag=True, help="Also those that ended.")
@common()
def ls(front: Frontend, everything: bool) -> None:
    """List sandboxes."""
    from sandkeep.clients.pages import every

    with front.client() as client:
        found: list[Sandbox] = every(client.sandbox.list, "sandboxes", all=everything)
    if front.as_json:
        return json_line(found)
    named = any(s.name for s in found)
    rows = [
        (
            s.sandbox_id,
            *([s.name or ""] if named else []),
            s.status + _remark(s),
            age(s.created_at),
            s.running_processes,
            s.image_id,
        )
        for s in found
    ]
    columns: list[str | Column] = [status(), "AGE", Column("RUNS", least=4, spare=True), identifier("IMAGE")]
    return table(("SANDBOX", *(["NAME"] if named else []), *columns), rows)


def _remark(sandbox: Sandbox) -> str:
    """Return a short mark for a sandbox that has a note."""
    if not sandbox.note:
        return ""
    return ", waits" if sandbox.status == "stopping" else ", not adopted"


@command(examples=["sandkeep get $BOX", "sandkeep get $BOX --json | jq .spec", "sandkeep get $BOX --at 17"])
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.option(
    "--at", type=At(times=False), metavar="POSITION", help="As it was after this event, by `sandkeep history`."
)
@common()
def get(front: Frontend, sandbox: str, at: dict[str, Any] | None) -> None:
    """Show a sandbox. With --at, its state at a position, with its processes and snapshots then."""
    with front.client() as client:
        if at is not None:
            return _show_at(front, client.event.state_at(sandbox, **at))
        found = client.sandbox.get(sandbox)
    return json_line(found) if front.as_json else facts(_describe(found))


def _show_at(front: Frontend, found: SandboxAt) -> None:
    if front.as_json:
        return json_line(found)
    import shlex

    left_out = f"{found.left_out} processes or snapshots are left out" if found.left_out else None
    return facts(
        [
            ("at", f"position {found.position}, {when(found.time)}"),
            *_describe(found.sandbox),
            *(("runs", f"{p.name}: {shlex.join(p.command)}") for p in found.processes if p.ended_at is None),
            *(("kept", " ".join(filter(None, [s.snapshot_id, s.status, s.name]))) for s in found.snapshots),
            *(("kept", " ".join(filter(None, [c.checkpoint_id, c.status, c.name]))) for c in found.checkpoints),
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
        ("processes", f"{sandbox.running_processes} running, {sandbox.exec_count} unnamed so far"),
        *_describe_spec(sandbox.spec),
        ("secrets", ", ".join(sandbox.secrets)),
        *(
            []
            if isolation is None
            else [("isolation", isolation.mechanism), ("files", isolation.files), ("host uid", isolation.host_uid)]
        ),
        *([] if isolation is None else [("limit", f"{name} by {how}") for name, how in isolation.limits.items()]),
        *([] if isolation is None else [("note", text) for text in isolation.notes]),
    ]


def _describe_spec(spec: SandboxSpec) -> list[tuple[str, object]]:
    return [
        ("cpus", spec.cpus),
        ("memory", spec.memory_bytes and size(spec.memory_bytes)),
        ("pids", spec.pids),
        ("disk", spec.disk_bytes and size(spec.disk_bytes)),
        ("network", spec.network),
        *(("volume", f"{v.source} at {v.target}{' (read-only)' if v.read_only else ''}") for v in spec.volumes),
        ("env", ", ".join(f"{key}={value}" for key, value in spec.env.items())),
        ("labels", ", ".join(f"{key}={value}" for key, value in spec.labels.items())),
    ]


@command(examples=["sandkeep rm $BOX", "sandkeep rm tests other"])
@click.argument("sandboxes", nargs=-1, required=True, type=SANDBOX, metavar="SANDBOX...")
@common()
def rm(front: Frontend, sandboxes: tuple[str, ...]) -> None:
    """End sandboxes, with all that runs in them, and print their ids. Logs and history stay readable."""
    with front.client() as client:
        for sandbox in sandboxes:
            with progress(f"ending {sandbox}") as told:
                ended = client.sandbox.terminate(sandbox, progress=told)
            json_line(ended) if front.as_json else print(ended.sandbox_id, flush=True)


@command(examples=["sandkeep suspend $BOX", "sandkeep suspend tests other"])
@click.argument("sandboxes", nargs=-1, required=True, type=SANDBOX, metavar="SANDBOX...")
@common()
def suspend(front: Frontend, sandboxes: tuple[str, ...]) -> None:
    """Freeze sandboxes, and print their ids. `resume` thaws them."""
    with front.client() as client:
        for sandbox in sandboxes:
            with progress(f"suspending {sandbox}") as told:
                suspended = client.sandbox.suspend(sandbox, progress=told)
            json_line(suspended) if front.as_json else print(suspended.sandbox_id, flush=True)


@command(examples=["sandkeep resume $BOX", "sandkeep resume $BOX --secret TOKEN"])
@click.argument("sandboxes", nargs=-1, required=True, type=SANDBOX, metavar="SANDBOX...")
@secret_option
@common()
def resume(front: Frontend, sandboxes: tuple[str, ...], secret: Any) -> None:
    """Resume suspended sandboxes, and print their ids. A lost or failed one is restarted from its files, where its
    provider can do that; give its secrets again then.
    """
    with front.client() as client:
        for sandbox in sandboxes:
            with progress(f"resuming {sandbox}") as told:
                resumed = client.sandbox.resume(sandbox, secrets=dict(secret), progress=told)
            json_line(resumed) if front.as_json else print(resumed.sandbox_id, flush=True)
