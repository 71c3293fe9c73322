"""Branches: create sandboxes with a common base, show their lineage, and terminate them."""

import os
import sys
from typing import Any

import click

from sandkeep.cli.display import lineage
from sandkeep.cli.display.output import Column, age, echo, identifier, json_line, status, table
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import Frontend, absolute_path, command, common, label_option, non_empty, secret_option
from sandkeep.cli.words import BRANCH_SOURCE, PROVIDER, SANDBOX
from sandkeep.clients.pages import every
from sandkeep.ids import IMAGE, SNAPSHOT
from sandkeep.model import Branch, Merge
from sandkeep.protocol.methods import MAX_FORKS


@command(
    examples=[
        "sandkeep branch create . one two three",
        "sandkeep branch create ~/project --count 8 --ignore node_modules",
        "sandkeep branch create $BOX left right",
    ]
)
@click.argument("source", type=BRANCH_SOURCE, metavar="SOURCE")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--count", type=click.IntRange(1, MAX_FORKS), metavar="N", help="Number of branches (default: 1).")
@click.option("--ignore", multiple=True, metavar="NAME", help="Leave files of this name out (repeatable).")
@click.option(
    "--provider",
    type=PROVIDER,
    metavar="NAME",
    help="Provider to run on (default: `local` for a plain directory, else `docker`).",
)
@secret_option
@label_option
@common()
def create(
    front: Frontend, source: str, names: tuple[str, ...], count: int | None, ignore: Any, provider: Any, **options: Any
) -> None:
    """Create sandboxes that begin with the same files, one for each NAME, and print their names or ids.

    SOURCE is a directory, an image, a snapshot, or a sandbox, of which they get the present files. A word with a slash
    is a directory. One without, such as `project`, is refused if a directory has that name: give ./project.
    """
    begin = _source(source)
    if "source" not in begin and (ignore or provider):
        raise click.UsageError("--ignore and --provider are for a SOURCE that is a directory")
    if names and count not in (None, len(names)):
        raise click.UsageError(f"--count {count} does not fit to {len(names)} names: leave it out")
    options = non_empty(**options, ignore=[*ignore], provider=provider, names=[*names])
    with progress("creating branches") as display, front.client() as client:
        made = client.branch.create(**begin, count=count or len(names) or 1, progress=display, **options)
    if front.as_json:
        return json_line(made)
    for sandbox in made.sandboxes:
        echo(sandbox.name or sandbox.sandbox_id)
    return None


def _source(word: str) -> dict[str, Any]:
    """Return the parameter that a word is meant for."""
    if not word:
        raise click.BadParameter("empty: give a directory, an image, a snapshot or a sandbox", param_hint="SOURCE")
    if "/" in word or word.startswith("~") or word in (".", ".."):
        return {"source": absolute_path(word, "SOURCE")}
    if os.path.isdir(word):
        message = (
            f"{word!r} is a directory here, and could be the name of a sandbox: "
            f"give ./{word} for the directory, or the sandbox's id"
        )
        raise click.BadParameter(message, param_hint="SOURCE")
    kinds = {IMAGE: "image_id", SNAPSHOT: "snapshot_id"}
    return {kinds.get(word.partition("_")[0] if "_" in word else "", "sandbox_id"): word}


@command(examples=["sandkeep branch ls", "sandkeep branch ls --json | jq -r '.[].sandbox_id'"])
@click.option("--all", "-a", "everything", is_flag=True, help="Include sandboxes that ended.")
@common()
def ls(front: Frontend, everything: bool) -> None:
    """Show sandboxes as a tree: the image at the root, each sandbox below that with which it began. A merge is below
    what all its parents have in common; one with conflicts is there with its id.

    Sandboxes that ended are shown where others came from them.
    """
    with front.client() as client:
        found: list[Branch] = every(client.branch.list, all=everything)
        if front.as_json:
            return json_line(found)
        known = {branch.sandbox_id for branch in found}
        if any(parent not in known for branch in found for parent in branch.parents):
            found = lineage.closure(found, every(client.branch.list, all=True))
        pending: list[Merge] = [m for m in every(client.branch.merges) if m.status in ("conflicted", "resolving")]
    named = any(branch.name for branch in found)
    rows = [
        (row.label, row.status, age(row.created_at) if row.created_at else "", row.origin)
        + ((row.sandbox_id,) if named else ())
        for row in lineage.rows(found, pending, unicode=_is_unicode_terminal())
    ]
    columns: list[str | Column] = ["BRANCH", status(), "AGE", Column("FROM", least=8)]
    return table((*columns, *([identifier("SANDBOX")] if named else [])), rows)


def _is_unicode_terminal() -> bool:
    return sys.stdout.isatty() and "utf" in (sys.stdout.encoding or "").lower()


@command(examples=["sandkeep branch rm one two"])
@click.argument("branches", nargs=-1, required=True, type=SANDBOX, metavar="BRANCH...")
@common()
def rm(front: Frontend, branches: tuple[str, ...]) -> None:
    """Terminate branches, and print their ids. Whatever was merged or committed from them stays."""
    with front.client() as client:
        for branch in branches:
            with progress(f"terminating {branch}") as display:
                ended = client.branch.remove(branch, progress=display)
            json_line(ended) if front.as_json else echo(ended.sandbox_id, flush=True)
