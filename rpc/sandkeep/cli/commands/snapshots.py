"""Snapshots and forks: store the files of a sandbox, restore, export and import them, and fork sandboxes."""

import os
import sys
from typing import Any

import click

from sandkeep.cli.display.output import Column, age, echo, identifier, json_line, note, of_total, size, status, when
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import (
    Frontend,
    bucket_option,
    command,
    common,
    env_option,
    image_name_option,
    label_option,
    labelled_option,
    name_option,
    named_option,
    non_empty,
    sandbox_name_option,
    secret_option,
)
from sandkeep.cli.words import FILE, IMAGE, SANDBOX, SNAPSHOT
from sandkeep.model import Snapshot
from sandkeep.protocol.methods import MAX_FORKS

_STREAM = "-"


@command(
    examples=[
        "SNP=$(sandkeep snapshot create $BOX --name before-upgrade)",
        "sandkeep snapshot create $BOX --incremental --label kind=nightly",
        "sandkeep snapshot create $BOX --include src --exclude src/node_modules",
    ]
)
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@name_option
@click.option("--include", multiple=True, metavar="PATH", help="Take only this path (repeatable).")
@click.option("--exclude", multiple=True, metavar="PATH", help="Leave this path out (repeatable).")
@click.option(
    "--zstd",
    "format",
    flag_value="tar.zst",
    help="Compress with zstd: smaller and faster to restore, but fewer tools read it.",
)
@click.option(
    "--incremental", is_flag=True, help="Store only the differences from the last snapshot, or from the image."
)
@click.option(
    "--parent", "parent_id", type=SNAPSHOT, metavar="SNAPSHOT", help="Store the differences from this snapshot."
)
@bucket_option
@label_option
@common()
def create(front: Frontend, sandbox: str, **options: Any) -> None:
    """Snapshot the files of SANDBOX, and print the snapshot's id.

    For a local sandbox these are the files in /workspace. The sandbox is frozen for a moment, and then keeps running.
    """
    with progress("taking a snapshot") as display, front.client() as client:
        snapshot = client.snapshot.create(sandbox, progress=display, **non_empty(**options))
    return _made(front, snapshot)


def _made(front: Frontend, snapshot: Snapshot) -> None:
    """Print a new snapshot's id; its note goes to stderr."""
    if front.as_json:
        return json_line(snapshot)
    if snapshot.note:
        note(f"sandkeep: {snapshot.note}")
    return echo(snapshot.snapshot_id)


@command(examples=["sandkeep snapshot ls", "sandkeep snapshot ls $BOX --json | jq -r '.[-1].snapshot_id'"])
@click.argument("sandbox_id", type=SANDBOX, metavar="[SANDBOX]", required=False)
@named_option
@click.option("--all", "-a", is_flag=True, help="Include failed and deleted snapshots.")
@labelled_option
@common()
def ls(front: Frontend, **query: Any) -> None:
    """List snapshots, of SANDBOX or of all sandboxes."""
    kind, name = Column("KIND", least=4, spare=True), Column("NAME", least=6, spare=True)
    columns = ("SNAPSHOT", name, status(), "AGE", "SIZE", kind, identifier("SANDBOX"))
    front.list("snapshot.list", columns, _row, **non_empty(**query))


def _row(s: Snapshot) -> tuple[object, ...]:
    return s.snapshot_id, s.name or "", s.status, age(s.created_at), size(s.size_bytes), s.kind, s.sandbox_id or ""


@command(examples=["sandkeep snapshot get $SNP"])
@click.argument("snapshot", type=SNAPSHOT, metavar="SNAPSHOT")
@common()
def get(front: Frontend, snapshot: str) -> None:
    """Show a snapshot."""
    front.show("snapshot.get", snapshot, _describe)


def _describe(snapshot: Snapshot) -> list[tuple[str, object]]:
    stored = snapshot.digest is not None
    return [
        ("snapshot", snapshot.snapshot_id),
        ("name", snapshot.name),
        ("status", snapshot.status),
        ("error", snapshot.error),
        ("note", snapshot.note),
        ("kind", snapshot.kind + (", imported" if snapshot.imported else "")),
        ("parent", snapshot.parent_id),
        ("sandbox", snapshot.sandbox_id),
        ("image", snapshot.image_id),
        ("owner", snapshot.owner),
        ("created", when(snapshot.created_at)),
        *(("place", place.uri) for place in snapshot.places),
        ("format", snapshot.format),
        ("size", f"{size(snapshot.size_bytes)}, of {size(snapshot.content_bytes)} in files" if stored else None),
        ("root", snapshot.root),
        ("members", snapshot.member_count if stored else None),
        ("digest", snapshot.digest),
        ("frozen for", f"{snapshot.pause_ms:.0f} ms" if snapshot.pause_ms is not None else None),
        *(("changed", f"{count} ({why})") for why, count in snapshot.remarks.items()),
        ("include", ", ".join(snapshot.include)),
        ("exclude", ", ".join(snapshot.exclude)),
        ("labels", ", ".join(f"{key}={value}" for key, value in snapshot.labels.items())),
    ]


@command(examples=["sandkeep snapshot rm $SNP"])
@click.argument("snapshots", nargs=-1, required=True, type=SNAPSHOT, metavar="SNAPSHOT...")
@common()
def rm(front: Frontend, snapshots: tuple[str, ...]) -> None:
    """Delete snapshots, and print their ids. Incremental snapshots that build on them stay complete."""
    front.for_each("deleting", "snapshot.delete", snapshots)


@command(examples=["sandkeep snapshot gc --dry-run", "sandkeep snapshot gc"])
@click.option("--dry-run", is_flag=True, help="Only report what would be deleted.")
@common()
def gc(front: Frontend, dry_run: bool) -> None:
    """Delete expired snapshots and orphaned archives. For administrators."""
    with progress("looking for garbage") as display, front.client() as client:
        report = client.snapshot.gc(dry_run=dry_run, progress=display)
    if front.as_json:
        return json_line(report)
    for line in (*report.snapshots, *report.archives):
        echo(line)
    for line in report.left:
        note(f"sandkeep: left {line}")
    note(f"sandkeep: {size(report.freed_bytes)} {'would be' if dry_run else 'were'} freed")
    return None


@command(examples=["sandkeep snapshot export $SNP work.tar.gz", "sandkeep snapshot export $SNP - | tar -tz"])
@click.argument("snapshot", type=SNAPSHOT, metavar="SNAPSHOT")
@click.argument("file", type=FILE, metavar="FILE")
@common()
def export(front: Frontend, snapshot: str, file: str) -> None:
    """Export SNAPSHOT to FILE as a tar archive. A single - is stdout."""
    from sandkeep import archives

    with progress("exporting") as display, front.client() as client:
        total = client.snapshot.get(snapshot).size_bytes

        def moved(count: int) -> None:
            display(f"exporting: {of_total(count, total)}")

        if file == _STREAM:
            archives.export_into(client, snapshot, sys.stdout.fileno(), progress=moved)
            return
        exported = archives.export_to(client, snapshot, file, progress=moved)
    if front.as_json:
        json_line(exported)


@command(
    "import",
    examples=[
        "SNP=$(sandkeep snapshot import work.tar.gz --name theirs)",
        "SNP=$(sandkeep snapshot import gs://our-archives/work.tar.gz)",
        "sandkeep snapshot import work.tar.gz --owner key:ci",
    ],
)
@click.argument("file", type=FILE, metavar="FILE")
@name_option
@click.option("--digest", metavar="sha256:HEX", help="Expected digest of FILE.")
@click.option(
    "--image",
    "image_id",
    type=IMAGE,
    metavar="IMAGE",
    help="Image whose settings restored sandboxes use; required for Docker.",
)
@click.option(
    "--files",
    type=click.Choice(["workspace", "root"]),
    help="Files in the archive, if its names do not tell: a workspace, or a whole root file system.",
)
@click.option("--owner", metavar="OWNER", help="Import it for another owner, such as key:ci. For administrators.")
@bucket_option
@label_option
@common()
def import_(front: Frontend, file: str, **options: Any) -> None:
    """Import the archive FILE as a snapshot, and print its id: a .tar, .tar.gz or .tar.zst of the files of a workspace,
    or, with --image of a Docker image, of all files of a container. A directory workspace/ or
    workspaces/ above all files is stripped.

    FILE may be gs://BUCKET/OBJECT or s3://BUCKET/KEY, which is read with your own credentials. The archive is checked
    first: a damaged one, or one with paths outside of these files, is refused.
    """
    from sandkeep import archives

    total = os.path.getsize(file) if os.path.isfile(file) else None
    with progress("importing") as display, front.client() as client:
        snapshot = archives.import_from(
            client, file, progress=lambda count: display(f"importing: {of_total(count, total)}"), **non_empty(**options)
        )
    return _made(front, snapshot)


@command(
    examples=[
        "BOX=$(sandkeep snapshot restore $SNP)",
        "sandkeep snapshot restore $SNP --over $BOX --end-processes",
    ]
)
@click.argument("snapshot", type=SNAPSHOT, metavar="SNAPSHOT")
@sandbox_name_option
@click.option("--over", type=SANDBOX, metavar="SANDBOX", help="Replace the files of this sandbox instead.")
@click.option("--end-processes", is_flag=True, help="With --over: end the sandbox's processes.")
@env_option
@secret_option
@label_option
@common()
def restore(
    front: Frontend, snapshot: str, over: str | None, end_processes: bool, secrets: Any, **options: Any
) -> None:
    """Create and start a sandbox from SNAPSHOT, and print its id.

    With --over the files of an existing sandbox are replaced. That restarts it, and ends its processes.
    """
    options = non_empty(**options)
    if over and options:
        raise click.UsageError("--over cannot be combined with --name, --env or --label")
    if end_processes and not over:
        raise click.UsageError("--end-processes needs --over SANDBOX, whose processes it ends")
    with progress("restoring") as display, front.client() as client:
        if over:
            sandbox = client.sandbox.restore(
                over, snapshot_id=snapshot, end_processes=end_processes, secrets=secrets, progress=display
            )
        else:
            sandbox = client.snapshot.restore(snapshot, progress=display, **options, **non_empty(secrets=secrets))
    return json_line(sandbox) if front.as_json else echo(sandbox.sandbox_id)


@command(examples=["IMG=$(sandkeep snapshot promote $SNP)", "sandkeep snapshot promote $SNP --name py:3.12"])
@click.argument("snapshot", type=SNAPSHOT, metavar="SNAPSHOT")
@image_name_option
@label_option
@common()
def promote(front: Frontend, snapshot: str, **options: Any) -> None:
    """Create an image from SNAPSHOT, and print the image's id."""
    with progress("creating an image") as display, front.client() as client:
        image = client.snapshot.promote(snapshot, progress=display, **non_empty(**options))
    return json_line(image) if front.as_json else echo(image.image_id)


@command(
    examples=[
        "sandkeep fork $BOX",
        "sandkeep fork $BOX --name left --name right",
        "for b in $(sandkeep fork $BOX --count 8); do sandkeep exec $b -- make; done",
    ]
)
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.option("--count", type=click.IntRange(1, MAX_FORKS), metavar="N", help="Number of forks (default: 1).")
@click.option(
    "--name", "names", multiple=True, metavar="NAME", help="Name of a fork, unique among yours (repeatable: one each)."
)
@secret_option
@label_option
@common()
def fork(front: Frontend, sandbox: str, count: int | None, names: tuple[str, ...], **options: Any) -> None:
    """Create sandboxes with the present files of SANDBOX, and print their ids.

    The forks and SANDBOX are independent from then on. Processes are not forked; secrets have to be given again.
    """
    if names and count not in (None, len(names)):
        raise click.UsageError(f"{len(names)} --name for --count {count}: give one for each fork, or leave out --count")
    options = non_empty(**options, names=[*names] or None, count=count or len(names) or 1)
    with progress("forking") as display, front.client() as client:
        forked = client.sandbox.fork(sandbox, progress=display, **options)
    if front.as_json:
        return json_line(forked)
    for made in forked.sandboxes:
        echo(made.sandbox_id)
    return None
