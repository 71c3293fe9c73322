"""Artifacts: files that were exported from sandboxes, which outlive them."""

import shutil
import sys
from typing import Any

import click

from sandkeep.cli.display.output import Column, age, echo, identifier, json_line, size, status, when
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import Frontend, command, common, non_empty
from sandkeep.cli.words import ARTIFACT, SANDBOX, SESSION
from sandkeep.model import Artifact

_CHUNK_BYTES = 1 << 20


@command(examples=["sandkeep artifact create $BOX results", "sandkeep artifact create $BOX plot --type image/png"])
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.argument("path", metavar="PATH")
@click.option("--name", metavar="NAME", help="The name of the file (default: PATH's last part).")
@click.option("--type", "media_type", metavar="TYPE", help="Its media type (default: guessed by the name).")
@common()
def create(front: Frontend, sandbox: str, path: str, **options: Any) -> None:
    """Export a file of SANDBOX, or a directory as a .tar.gz, to the daemon, and print the artifact's id."""
    with progress("exporting") as display, front.client() as client:
        made = client.artifact.export(sandbox, path, progress=display, **non_empty(**options))
    return json_line(made) if front.as_json else echo(made.artifact_id)


@command(examples=["sandkeep artifact cat $ART >results.tar.gz"])
@click.argument("artifact", type=ARTIFACT, metavar="ARTIFACT")
@common()
def cat(front: Frontend, artifact: str) -> None:
    """Write the bytes of an artifact to stdout."""
    with front.client() as client, client.with_descriptors("artifact.open", artifact) as handed:
        [descriptor] = handed.receive()
        with open(descriptor, "rb", buffering=0) as file:
            shutil.copyfileobj(file, sys.stdout.buffer, _CHUNK_BYTES)
        handed.answer()


@command(examples=["sandkeep artifact ls", "sandkeep artifact ls --session $SES --json | jq -r '.[].artifact_id'"])
@click.argument("sandbox_id", type=SANDBOX, metavar="[SANDBOX]", required=False)
@click.option("--session", "session_id", type=SESSION, metavar="SESSION", help="Only those of this session.")
@click.option("--all", "-a", is_flag=True, help="Include failed and removed artifacts.")
@common()
def ls(front: Frontend, **query: Any) -> None:
    """List artifacts, of SANDBOX or of all sandboxes."""
    name, source = Column("NAME", least=6, spare=True), identifier("FROM")
    columns = (identifier("ARTIFACT"), name, status(), "AGE", "SIZE", source)
    front.list("artifact.list", columns, _row, **non_empty(**query))


def _row(a: Artifact) -> tuple[object, ...]:
    return a.artifact_id, a.name, a.status, age(a.created_at), size(a.size_bytes), a.session_id or a.sandbox_id


@command(examples=["sandkeep artifact get $ART"])
@click.argument("artifact", type=ARTIFACT, metavar="ARTIFACT")
@common()
def get(front: Frontend, artifact: str) -> None:
    """Show an artifact."""
    front.show("artifact.get", artifact, _describe)


def _describe(artifact: Artifact) -> list[tuple[str, object]]:
    return [
        ("artifact", artifact.artifact_id),
        ("status", artifact.status),
        ("error", artifact.error),
        ("name", artifact.name),
        ("type", artifact.media_type),
        ("size", size(artifact.size_bytes)),
        ("digest", artifact.digest),
        ("path", artifact.path),
        ("sandbox", artifact.sandbox_id),
        ("session", artifact.session_id),
        ("owner", artifact.owner),
        ("created", when(artifact.created_at)),
        ("download", artifact.download_url),
    ]


@command(examples=["sandkeep artifact rm $ART"])
@click.argument("artifacts", nargs=-1, required=True, type=ARTIFACT, metavar="ARTIFACT...")
@common()
def rm(front: Frontend, artifacts: tuple[str, ...]) -> None:
    """Remove artifacts, and print their ids."""
    front.for_each("removing", "artifact.remove", artifacts)
