"""Sessions: make them ready, list, show, keep alive and close them, and export their files."""

import os
import sys
import time
from typing import Any, Final

import click

from sandkeep.cli.commands.events import all_events, show_history
from sandkeep.cli.commands.sandboxes import describe_spec
from sandkeep.cli.display.output import Column, echo, identifier, json_line, moment, note, span, status, when
from sandkeep.cli.display.output import size as shown_size
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import Frontend, command, common, non_empty, sandbox_options
from sandkeep.cli.words import FILE, IMAGE_OR_REFERENCE, SESSION, SNAPSHOT
from sandkeep.model import Session, SessionEnsured

_STREAM: Final = "-"


@command(
    examples=[
        "SES=$(sandkeep session ensure --image $IMG)",
        "sandkeep session ensure build-42 --image python:3.12 --memory 512M",
        "sandkeep session ensure build-42 --idle-timeout 600 --max-lifetime 3600",
        "sandkeep session ensure build-42 --restore $SNP",
    ]
)
@click.argument("session_id", type=SESSION, metavar="[SESSION]", required=False)
@click.option(
    "--image",
    type=IMAGE_OR_REFERENCE,
    metavar="IMAGE",
    help="Image's id or name, or the reference of a container image. A new session needs it.",
)
@click.option(
    "--restore",
    "restore_snapshot_id",
    type=SNAPSHOT,
    metavar="SNAPSHOT",
    help="Begin with the files of this snapshot (default: the session's latest).",
)
@click.option("--mode", type=click.Choice(["docker", "k8s"]), help="Where a new session lives: k8s is a cluster.")
@click.option("--fresh", is_flag=True, help="Begin with the files of the image alone.")
@sandbox_options
@common()
def ensure(front: Frontend, session_id: str | None, fresh: bool, read_only: bool, **options: Any) -> None:
    """Make a session ready, and print its id: find it, create it, or bring it back with its files.

    A session that is ready stays as it is. Otherwise options that are left out keep the values of the last time. When a
    limit of time ends it, its files are saved in a snapshot.
    """
    if fresh and options["restore_snapshot_id"]:
        raise click.UsageError("--fresh and --restore cannot be combined")
    asked = non_empty(id=session_id, fresh=fresh or None, read_only=read_only or None, **options)
    with progress("making the session ready") as display, front.client() as client:
        ensured = client.session.ensure(progress=display, **asked)
    if front.as_json:
        return json_line(ensured)
    note(f"sandkeep: {_outcome(ensured)}")
    if not ensured.created and (fresh or options["restore_snapshot_id"]):
        word = "--fresh" if fresh else "--restore"
        note(f"sandkeep: {word} had no effect: first end the sandbox with `sandkeep session close {session_id}`")
    if ensured.session.note:
        note(f"sandkeep: {ensured.session.note}")
    return echo(ensured.session.session_id)


def _outcome(ensured: SessionEnsured) -> str:
    session = ensured.session
    if not ensured.created:
        return f"session {session.session_id} was found ready"
    files = f"snapshot {ensured.restored_from}" if ensured.restored_from else "its image"
    verb = "created" if session.starts == 1 else "brought back"
    return f"session {session.session_id} was {verb}, with the files of {files}"


@command(examples=["sandkeep session ls", "sandkeep session ls --all --json | jq -r '.[].session_id'"])
@click.option("--all", "-a", "everything", is_flag=True, help="Include sessions that failed or ended.")
@common()
def ls(front: Frontend, everything: bool) -> None:
    """List sessions. IDLE is the time since the last use, and its limit; LEFT the time until its maximum lifetime."""
    idle, left = Column("IDLE", least=4, spare=True), Column("LEFT", least=4, spare=True)
    columns = ("SESSION", status(), identifier("SANDBOX"), idle, left, identifier("SNAPSHOT"))
    front.list("session.list", columns, _row, all=everything)


def _row(s: Session) -> tuple[object, ...]:
    return s.session_id, s.status, s.sandbox_id or "", _idle(s), _left(s), s.latest_snapshot_id or ""


def _idle(session: Session) -> str:
    if session.status != "ready" or session.last_activity_at is None:
        return "-"
    idle, limit = span(time.time() - moment(session.last_activity_at)), session.spec.idle_timeout_s
    return idle if limit is None else f"{idle}/{span(limit)}"


def _left(session: Session) -> str:
    if session.status != "ready" or session.expires_at is None:
        return "-"
    return span(moment(session.expires_at) - time.time())


@command(examples=["sandkeep session get build-42", "sandkeep session get $SES --json | jq .snapshot_ids"])
@click.argument("session", type=SESSION, metavar="SESSION")
@common()
def get(front: Frontend, session: str) -> None:
    """Show a session."""
    front.show("session.get", session, _describe)


def _describe(session: Session) -> list[tuple[str, object]]:
    spec, reason = session.spec, session.terminated_reason
    return [
        ("session", session.session_id),
        ("key", session.key),
        ("status", " ".join(filter(None, [session.status, reason and f"({reason})"]))),
        ("error", session.error),
        ("note", session.note),
        ("image", spec.image),
        ("sandbox", session.sandbox_id),
        ("ref", session.ref),
        ("provider", session.provider),
        ("workspace", session.workspace_path),
        ("owner", session.owner),
        ("created", when(session.created_at)),
        ("ready since", when(session.started_at)),
        ("ended", when(session.ended_at)),
        ("starts", session.starts),
        ("idle", _idle(session)),
        ("left", _left(session)),
        ("heartbeat", when(session.last_heartbeat_at)),
        ("restored from", session.restored_from),
        *(("snapshots", snapshot) for snapshot in session.snapshot_ids),
        *describe_spec(spec.sandbox),
        ("metadata", ", ".join(f"{key}={value}" for key, value in spec.metadata.items())),
    ]


@command(examples=["sandkeep session heartbeat build-42"])
@click.argument("sessions", nargs=-1, required=True, type=SESSION, metavar="SESSION...")
@common()
def heartbeat(front: Frontend, sessions: tuple[str, ...]) -> None:
    """Keep sessions from being idle, and print their ids. That brings back none that has ended."""
    front.for_each("keeping", "session.heartbeat", sessions)


@command(examples=["sandkeep session close build-42", "sandkeep session close $SES --no-snapshot"])
@click.argument("sessions", nargs=-1, required=True, type=SESSION, metavar="SESSION...")
@click.option("--no-snapshot", is_flag=True, help="Give up the files that are in no snapshot.")
@common()
def close(front: Frontend, sessions: tuple[str, ...], no_snapshot: bool) -> None:
    """End the sandboxes of sessions, after a snapshot, and print the sessions' ids.

    If the snapshot fails, the sandbox goes on. The next use of the session brings it back with the files of its latest
    snapshot.
    """
    front.for_each("closing", "session.close", sessions, snapshot=not no_snapshot)


@command(examples=["sandkeep session history build-42", "sandkeep session history $SES --json | jq -r '.[].type'"])
@click.argument("session", type=SESSION, metavar="SESSION")
@common()
def history(front: Frontend, session: str) -> None:
    """Show the events of a session: each time that it was made ready, and ended. `history` shows those of a sandbox."""
    with front.client() as client:
        found = all_events(client.session.history, session)
    return json_line(found) if front.as_json else show_history(found)


@command(
    examples=[
        "sandkeep session export $SES report.pdf",
        "sandkeep session export $SES results -o results.tar.gz",
        "sandkeep session export $SES results -o - | tar -tz",
    ]
)
@click.argument("session", type=SESSION, metavar="SESSION")
@click.argument("path", metavar="PATH")
@click.option(
    "--output",
    "-o",
    type=FILE,
    metavar="FILE",
    help="The file to write; - is stdout (default: PATH's last part, of a directory with .tar.gz after it).",
)
@common()
def export(front: Frontend, session: str, path: str, output: str | None) -> None:
    """Write a file of SESSION, or a directory as a .tar.gz, and print where it is.

    A relative PATH starts at the sandbox's working directory. An existing FILE is replaced once all of PATH is there.
    """
    from sandkeep import archives, transfer

    with progress("exporting") as display, front.client() as client:
        is_directory = transfer.is_directory(client, session, path)
        output = output or _default_name(path, is_directory)
        send = transfer.send_compressed if is_directory else transfer.send_file
        if output == _STREAM:
            send(client, session, path, sys.stdout.fileno())
            return
        with archives.new_file(output) as descriptor:
            send(client, session, path, descriptor, progress=lambda count: display(f"exporting: {shown_size(count)}"))
    written = os.path.realpath(output)
    json_line({"path": written, "size_bytes": os.path.getsize(written)}) if front.as_json else echo(output)


def _default_name(path: str, is_directory: bool) -> str:
    """Return the name of the file to write. Raises a usage error if the path has none."""
    name = os.path.basename(os.path.normpath(path))
    if name in ("", ".", ".."):
        raise click.UsageError("PATH has no name: give a FILE with --output")
    return f"./{name}.tar.gz" if is_directory else f"./{name}"
