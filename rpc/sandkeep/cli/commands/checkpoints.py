"""Checkpoints: store sandboxes with their memory and processes, and restore them."""

from typing import Any

import click

from sandkeep.cli.display.output import Column, age, echo, identifier, json_line, note, size, status, when
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import (
    Frontend,
    bucket_option,
    command,
    common,
    label_option,
    labelled_option,
    name_option,
    named_option,
    non_empty,
    sandbox_name_option,
)
from sandkeep.cli.words import CHECKPOINT, SANDBOX
from sandkeep.model import Checkpoint
from sandkeep.protocol.methods import MAX_FORKS


@command(
    examples=[
        "CKP=$(sandkeep checkpoint create $BOX --name ten --leave-running)",
        "sandkeep checkpoint create $BOX; sandkeep resume $BOX",
    ]
)
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@name_option
@click.option("--leave-running", is_flag=True, help="Keep SANDBOX running (default: suspend it).")
@bucket_option
@label_option
@common()
def create(front: Frontend, sandbox: str, **options: Any) -> None:
    """Checkpoint SANDBOX, with its memory and processes, and print the checkpoint's id."""
    with progress("checkpointing") as display, front.client() as client:
        made = client.checkpoint.create(sandbox, progress=display, **non_empty(**options))
    if made.pause_ms is not None and not front.as_json:
        note(f"sandkeep: {sandbox} was frozen for {made.pause_ms:.0f} ms")
    return json_line(made) if front.as_json else echo(made.checkpoint_id)


@command(examples=["sandkeep checkpoint ls", "sandkeep checkpoint ls $BOX --json | jq -r '.[-1].checkpoint_id'"])
@click.argument("sandbox_id", type=SANDBOX, metavar="[SANDBOX]", required=False)
@named_option
@click.option("--all", "-a", is_flag=True, help="Include failed and deleted checkpoints.")
@labelled_option
@common()
def ls(front: Frontend, **query: Any) -> None:
    """List checkpoints, of SANDBOX or of all sandboxes."""
    name = Column("NAME", least=6, spare=True)
    columns = ("CHECKPOINT", name, status(), "AGE", "SIZE", "PROCESSES", identifier("SANDBOX"))
    front.list("checkpoint.list", columns, _row, **non_empty(**query))


def _row(c: Checkpoint) -> tuple[object, ...]:
    return c.checkpoint_id, c.name or "", c.status, age(c.created_at), size(c.size_bytes), c.processes, c.sandbox_id


@command(examples=["sandkeep checkpoint get $CKP"])
@click.argument("checkpoint", type=CHECKPOINT, metavar="CHECKPOINT")
@common()
def get(front: Frontend, checkpoint: str) -> None:
    """Show a checkpoint."""
    front.show("checkpoint.get", checkpoint, _describe)


def _describe(checkpoint: Checkpoint) -> list[tuple[str, object]]:
    return [
        ("checkpoint", checkpoint.checkpoint_id),
        ("name", checkpoint.name),
        ("status", checkpoint.status),
        ("error", checkpoint.error),
        ("sandbox", checkpoint.sandbox_id),
        ("image", checkpoint.image_id),
        ("owner", checkpoint.owner),
        ("created", when(checkpoint.created_at)),
        ("place", checkpoint.place.uri),
        ("size", size(checkpoint.size_bytes)),
        ("processes", checkpoint.processes),
        ("frozen for", f"{checkpoint.pause_ms:.0f} ms" if checkpoint.pause_ms is not None else None),
        *((file.name, file.digest) for file in checkpoint.files),
        ("needs", ", ".join(f"{key} {value}" for key, value in checkpoint.facts.items())),
        ("labels", ", ".join(f"{key}={value}" for key, value in checkpoint.labels.items())),
    ]


@command(examples=["sandkeep checkpoint rm $CKP"])
@click.argument("checkpoints", nargs=-1, required=True, type=CHECKPOINT, metavar="CHECKPOINT...")
@common()
def rm(front: Frontend, checkpoints: tuple[str, ...]) -> None:
    """Delete checkpoints, and print their ids."""
    front.for_each("deleting", "checkpoint.delete", checkpoints)


@command(
    examples=[
        "BOX=$(sandkeep checkpoint restore $CKP)",
        "sandkeep checkpoint restore $CKP --count 8",
        "sandkeep checkpoint restore $CKP --over $BOX",
    ]
)
@click.argument("checkpoint", type=CHECKPOINT, metavar="CHECKPOINT")
@click.option(
    "--count", type=click.IntRange(1, MAX_FORKS), default=1, metavar="N", help="Number of sandboxes to create."
)
@sandbox_name_option
@click.option(
    "--over",
    type=SANDBOX,
    metavar="SANDBOX",
    help="Restore this sandbox, from which the checkpoint was made, in place.",
)
@label_option
@common()
def restore(front: Frontend, checkpoint: str, count: int, name: str | None, over: str | None, labels: Any) -> None:
    """Create sandboxes from CHECKPOINT, with its processes running, and print their ids.

    With --over the checkpoint's own sandbox is restored to that moment. Later output of its processes is kept.
    """
    if over and (name or labels or count > 1):
        raise click.UsageError("--over cannot be combined with --name, --count or --label")
    if name and count > 1:
        raise click.UsageError("--name cannot be combined with --count: it names one sandbox")
    with front.client() as client:
        if over:
            with progress("restoring") as display:
                sandbox = client.sandbox.restore(over, checkpoint_id=checkpoint, progress=display)
            return json_line(sandbox) if front.as_json else echo(sandbox.sandbox_id)
        options = non_empty(labels=labels, names=[name] if name else None)
        with progress("restoring") as display:
            made = client.checkpoint.restore(checkpoint, count=count, progress=display, **options)
    if front.as_json:
        return json_line(made)
    for each in made.sandboxes:
        echo(each.sandbox_id)
    return None
