"""`diff`: the files in which a sandbox differs from its beginning, or from another."""

import sys
from collections.abc import Iterator
from typing import Any, Final

import click

from sandkeep.blocking import Client
from sandkeep.cli.display import changes
from sandkeep.cli.display.output import echo, json_line, note, terminal_width
from sandkeep.cli.display.progress import progress
from sandkeep.cli.exit_codes import OWN_FAILURE, REFUSED
from sandkeep.cli.options import Command, Frontend, Refusal, common
from sandkeep.cli.words import COMPARED, SANDBOX
from sandkeep.errors import SandkeepError
from sandkeep.model import Diff
from sandkeep.protocol.methods import MAX_CHANGES

_END: Final = "--"


class PathsCommand(Command):
    """A command that takes everything after ``--`` as `paths`, also without the optional arguments before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the paths off before the rest is parsed."""
        end = args.index(_END) if _END in args else len(args)
        paths = args[end + 1 :]
        rest = super().parse_args(ctx, args[:end])
        ctx.params["paths"] = (*(ctx.params.get("paths") or ()), *paths)
        return rest


@click.command(
    cls=PathsCommand,
    examples=[
        "sandkeep diff $BOX",
        "sandkeep diff $BOX --stat -- src",
        "sandkeep diff $BOX -u >changes.patch",
        "sandkeep diff before-tests $BOX",
        "sandkeep branch diff one two",
    ],
)
@click.argument("sandbox", type=SANDBOX, metavar="SANDBOX")
@click.argument("other", type=COMPARED, metavar="[OTHER]", required=False)
@click.argument("paths", nargs=-1, type=click.UNPROCESSED, metavar="[-- PATH...]")
@click.option("--stat", "form", flag_value="stat", help="Show the number of added and removed lines of each file.")
@click.option("--unified", "-u", "form", flag_value="unified", help="Show the changed lines, as a patch.")
@click.option("--name-only", "form", flag_value="names", help="Show only the paths.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there are differences, and with 125 on errors.")
@common()
def diff(
    front: Frontend, sandbox: str, other: str | None, paths: tuple[str, ...], form: str | None, *, exit_code: bool
) -> int:
    """Show which files SANDBOX added (A), changed (M) and deleted (D) since it was created. With PATHs, only those at
    or below them, in the workspace.

    With OTHER: show the changes from SANDBOX to OTHER, as `git diff A B` does; what only OTHER has was added. One of
    the two is a sandbox, and the other a sandbox, snapshot or image.

    Paths with control characters are quoted as git does. In patches such characters are replaced; --json has the text
    as it is. On a terminal long paths are shortened, except by --name-only.
    """
    asked: dict[str, Any] = {"unified": form == "unified", "lines": form == "stat"}
    if form != "unified":  # the limit of paths, rather than the one of text, would cut it
        asked["limit"] = MAX_CHANGES
    try:
        with progress("comparing") as display, front.client() as client:
            found = _compare(client, sandbox, other, paths=[*paths], progress=display, **asked)
    except SandkeepError as error:
        raise Refusal(front.explain(error), OWN_FAILURE if exit_code else REFUSED, front.as_json) from None
    _show(front, found, form)
    return REFUSED if exit_code and found.added + found.changed + found.deleted else 0


def _compare(client: Client, sandbox: str, other: str | None, **asked: Any) -> Diff:
    """Return the differences from the first to the second, either of which may be no sandbox."""
    if other is None:
        alone: Diff = client.sandbox.diff(sandbox, **asked)
        return alone
    try:
        found: Diff = client.sandbox.diff(other, base=sandbox, **asked)
    except SandkeepError as error:
        if error.code != "not_found":
            raise
        if error.data.get("field") == "base":
            raise _about_first(error) from None
        found = client.sandbox.diff(sandbox, base=other, reverse=True, **asked)
    return found


def _about_first(error: SandkeepError) -> SandkeepError:
    """Return the error about the method's `base` as one about the first argument, which was given for it."""
    return type(error)(error.code, f"SANDBOX: {error.message.partition(': ')[2]}", **{**error.data, "field": "sandbox"})


def _show(front: Frontend, found: Diff, form: str | None) -> None:
    if front.as_json:
        return json_line(found)
    for line in _lines(found, form):
        echo(line)
    sys.stdout.flush()
    if form == "unified" and changes.is_altered(found.unified or "") and not sys.stdout.isatty():
        note("sandkeep: control characters were replaced in the patch: --json has the text as it is")
    if found.truncated:
        note("sandkeep: the list was cut: give PATHs to see the rest")
    return None


def _lines(found: Diff, form: str | None) -> Iterator[str]:
    if form == "unified":
        return changes.patch_lines(found.unified) if found.unified else iter(())
    if form == "stat":
        return changes.stat_lines(found, terminal_width()) if found.files else iter(())
    if form == "names":
        return changes.names(found.files)
    return (changes.change_line(file, terminal_width()) for file in found.files)
