"""Merges of branches: merge, list, show and resolve conflicts, give up."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
from msgspec.structs import replace

from sandkeep.blocking import Client
from sandkeep.cli.display.conflicts import conflict_lines, dropped_lines, unpainted
from sandkeep.cli.display.output import Column, age, echo, json_line, note, paint, status
from sandkeep.cli.display.paths import quote_bytes
from sandkeep.cli.display.progress import progress
from sandkeep.cli.exit_codes import REFUSED
from sandkeep.cli.options import (
    Frontend,
    command,
    common,
    label_option,
    non_empty,
    sandbox_name_option,
    secret_option,
)
from sandkeep.cli.words import CONFLICT, CONFLICT_FILE, DECISION, MERGE, SANDBOX, SIDE
from sandkeep.clients.pages import every
from sandkeep.errors import CallerError
from sandkeep.ids import SANDBOX as SANDBOX_PREFIX
from sandkeep.model import Conflict, ConflictSide, Merge, Merged, Resolution
from sandkeep.protocol.methods import MAX_WRITE_BYTES

BASE: Final = "base"
_MOST_SHOWN: Final = 50
_MOST_LINES: Final = 6
_MOST_DECISIONS: Final = 10_000
_OURS: Final = "ours:"


class PathAndWord(click.ParamType[tuple[str, str]]):
    """``PATH=WORD``, split at the last ``=``: a sandbox chooses the path, and the caller the word."""

    name = "decision"

    def __init__(self, word: str, completed: click.ParamType[str] = DECISION) -> None:
        self._word = word
        self._completed = completed

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the decisions that begin so."""
        return self._completed.shell_complete(ctx, param, incomplete)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Take it apart."""
        if isinstance(value, tuple):
            return value
        path, equals, word = value.rpartition("=")
        if not (path and equals and word):
            self.fail(f"{value!r} is not PATH={self._word}", param, ctx)
        return path, word


class HunkAndBranch(click.ParamType[tuple[str, int, str]]):
    """``PATH:LINE=BRANCH``, split at the last ``=`` and at the last ``:`` before it."""

    name = "hunk"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int, str]:
        """Take it apart."""
        if isinstance(value, tuple):
            return value
        place, _, branch = value.rpartition("=")
        path, _, line = place.rpartition(":")
        if not (path and branch and line.isascii() and line.isdecimal() and 0 < int(line) < 1 << 31):
            self.fail(f"{value!r} is not PATH:LINE=BRANCH", param, ctx)
        return path, int(line), branch


class Policy(click.ParamType[dict[str, str]]):
    """A policy for conflicts: ``fail``, ``union``, ``markers`` or ``ours:BRANCH``."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        """Return the parameters of the call."""
        if isinstance(value, dict):
            return value
        if value.startswith(_OURS) and value != _OURS:
            return {"policy": "ours", "ours": value.removeprefix(_OURS)}
        if value not in ("fail", "union", "markers"):
            self.fail(f"{value!r} is not fail, union, markers or ours:BRANCH", param, ctx)
        return {"policy": value}

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the policies that begin so."""
        from click.shell_completion import CompletionItem

        known = ["fail", "union", "markers", *(_OURS + branch for branch in ctx.params.get("branches") or ())]
        return [CompletionItem(policy) for policy in known if policy.startswith(incomplete)]


@command(
    examples=[
        "BOX=$(sandkeep branch merge one two --name merged)",
        "sandkeep branch merge one two --policy ours:one",
        "sandkeep branch merge one two --take package-lock.json=two",
    ]
)
@click.argument("branches", nargs=-1, required=True, type=SANDBOX, metavar="BRANCH...")
@sandbox_name_option
@click.option(
    "--policy",
    type=Policy(),
    metavar="POLICY",
    help="For conflicts: fail (default), union, markers, or ours:BRANCH.",
)
@click.option(
    "--take",
    "takes",
    multiple=True,
    type=PathAndWord("BRANCH"),
    metavar="PATH=BRANCH",
    help="Take PATH, and all below it, from this branch (repeatable).",
)
@click.option(
    "--workspace-only",
    is_flag=True,
    help="Leave out what branches with a writable root changed outside of their workspaces.",
)
@secret_option
@label_option
@common()
def merge(
    front: Frontend, branches: tuple[str, ...], policy: Any, takes: Any, workspace_only: bool, **options: Any
) -> int:
    """Merge branches over what they have in common into a new sandbox, and print its id.

    Where branches changed the same thing differently there are conflicts: then no sandbox is made yet, the conflicts
    are shown on stderr, the id of the merge is printed, and the exit code is 1. See `branch resolve`.

    With the policy `union` all versions of lines follow one another, with `markers` they are marked as git does, and
    with ours:BRANCH that branch wins.
    """
    options = non_empty(**options, **(policy or {}), takes=dict(takes), workspace_only=workspace_only or None)
    with front.client() as client:
        with progress("merging") as display:
            merged = client.branch.merge([*branches], progress=display, **options)
        return _answer(front, client, merged)


def _answer(front: Frontend, client: Client, merged: Merged) -> int:
    """Print the sandbox of a merge, or its conflicts. Returns the exit code."""
    code = 0 if merged.sandbox is not None else REFUSED
    if front.as_json:
        if merged.merge.conflicts > len(merged.conflicts):
            merged = replace(merged, conflicts=every(client.branch.conflicts, merge_id=merged.merge.merge_id))
        json_line(merged)
    elif merged.sandbox is not None:
        echo(merged.sandbox.sandbox_id, flush=True)
    else:
        echo(merged.merge.merge_id, flush=True)
        _explain(merged)
    if not front.as_json:
        for line in dropped_lines(merged, _MOST_SHOWN):
            note(line)
    return code


def _explain(merged: Merged) -> None:
    """Show the first conflicts on stderr, and what to do."""
    count, merge_id = merged.merge.conflicts, merged.merge.merge_id
    brush = paint if sys.stderr.isatty() else unpainted
    for conflict in merged.conflicts[:_MOST_SHOWN]:
        for line in conflict_lines(conflict, _MOST_LINES, brush):
            note(line)
    if count > _MOST_SHOWN:
        note(f"({count - _MOST_SHOWN} more: see `sandkeep branch conflicts {merge_id}`)")
    note(f"sandkeep: {count} conflict{'' if count == 1 else 's'}, and no sandbox was made yet [merge_conflict]")
    note(f"  decide each:  sandkeep branch resolve {merge_id} PATH=BRANCH  (or --delete PATH, --file PATH=FILE)")
    note(f"  by the hunk:  sandkeep branch resolve {merge_id} --hunk PATH:LINE=BRANCH")
    note(f"  all at once:  sandkeep branch resolve {merge_id} --rest BRANCH")
    note(f"  give it up:   sandkeep branch abandon {merge_id}")


@command(examples=["sandkeep branch merges", "sandkeep branch merges --json | jq -r '.[].merge_id'"])
@click.option("--all", "-a", "everything", is_flag=True, help="Include merges that failed or were given up.")
@common()
def merges(front: Frontend, everything: bool) -> None:
    """List merges."""
    columns = ("MERGE", status(), "AGE", "CONFLICTS", Column("INTO", least=6, spare=True), "BRANCHES")
    front.list("branch.merges", columns, _row, all=everything)


def _row(m: Merge) -> tuple[object, ...]:
    return m.merge_id, m.status, age(m.created_at), m.conflicts, m.name or m.sandbox_id or "", ", ".join(m.branches)


@command(examples=["sandkeep branch conflicts $MRG", "sandkeep branch conflicts $MRG --json | jq -r '.[].path'"])
@click.argument("merge", type=MERGE, metavar="MERGE")
@common()
def conflicts(front: Frontend, merge: str) -> None:
    """Show the conflicts of a merge that are left: each path, the version of each branch, and the differing lines."""
    with front.client() as client:
        found: list[Conflict] = every(client.branch.conflicts, merge_id=merge)
    if front.as_json:
        return json_line(found)
    for conflict in found:
        for line in conflict_lines(conflict):
            echo(line)
    return None


@command(
    examples=[
        "sandkeep branch resolve $MRG src/a.py=one src/b.py=base --rest two",
        "sandkeep branch resolve $MRG --hunk src/a.py:12=one --hunk src/a.py:40=two",
        "sandkeep branch resolve $MRG --whole package-lock.json=two",
        "sandkeep branch resolve $MRG --delete old.txt --file README.md=merged.md",
    ]
)
@click.argument("merge", type=MERGE, metavar="MERGE")
@click.argument("takes", nargs=-1, type=PathAndWord("BRANCH"), metavar="[PATH=BRANCH...]")
@click.option(
    "--hunk",
    "hunks",
    multiple=True,
    type=HunkAndBranch(),
    metavar="PATH:LINE=BRANCH",
    help="Decide the hunk at LINE of PATH alone (repeatable).",
)
@click.option(
    "--whole",
    "wholes",
    multiple=True,
    type=PathAndWord("BRANCH"),
    metavar="PATH=BRANCH",
    help="Take all of PATH from BRANCH, and drop clean edits of others, which are listed (repeatable).",
)
@click.option("--delete", "deletions", multiple=True, type=CONFLICT, metavar="PATH", help="Delete PATH (repeatable).")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=PathAndWord("FILE", CONFLICT_FILE),
    metavar="PATH=FILE",
    help="Make PATH a file with the content of FILE here (repeatable).",
)
@click.option("--rest", type=SIDE, metavar="BRANCH", help="Take all other conflicts of this branch from it.")
@secret_option
@common()
def resolve(
    front: Frontend, merge: str, takes: Any, hunks: Any, wholes: Any, deletions: tuple[str, ...], files: Any,
    rest: str | None, secrets: Any,
) -> int:  # fmt: skip
    """Decide conflicts of MERGE: take each conflicting hunk of PATH from BRANCH, or from `base`, the common base.

    Edits that do not conflict stay, of all branches; `--whole` drops them. Binary files, links and modes are taken from
    BRANCH. A file that one branch edited and another deleted is kept with all edits, or deleted, as BRANCH has it.
    Where a file conflicts with a directory, or names differ in case alone, PATH and all below it are taken from BRANCH.
    What is dropped is listed on stderr.

    With the last conflict the sandbox is made, and its id is printed. While there are others, these are shown on
    stderr, the id of the merge is printed, and the exit code is 1.
    """
    if not (takes or hunks or wholes or deletions or files or rest):
        raise click.UsageError("nothing to decide: give PATH=BRANCH, --hunk, --whole, --delete, --file or --rest")
    with front.client() as client:
        labels = _Labels(client, merge)
        decisions = [
            *(_decision(path, take=labels.of(branch)) for path, branch in takes),
            *(_decision(path, take=labels.of(branch), line=line) for path, line, branch in hunks),
            *(_decision(path, take=labels.of(branch), whole=True) for path, branch in wholes),
            *(_decision(path, delete=True) for path in deletions),
            *(_decision(path, data=_content(file)) for path, file in files),
        ]
        if rest is not None:
            others: list[Conflict] = every(client.branch.conflicts, merge_id=merge)
            decisions += _of_the_rest(others, labels.of(rest), decisions)
        with progress("resolving") as display:
            for batch in _batches(decisions):
                merged = client.branch.resolve(merge, decisions=batch, secrets=secrets, progress=display)
        return _answer(front, client, merged)


class _Labels:
    """Names of branches in a merge, for ids that were given instead."""

    def __init__(self, client: Client, merge_id: str) -> None:
        self._client = client
        self._merge_id = merge_id
        self._known: Mapping[str, str] | None = None

    def of(self, branch: str) -> str:
        """Return the name that a branch has in the merge; one that is unknown is for the daemon to refuse."""
        if not branch.startswith(f"{SANDBOX_PREFIX}_"):
            return branch
        if self._known is None:
            found: list[Merge] = every(self._client.branch.merges)
            known = next((merge.branches for merge in found if merge.merge_id == self._merge_id), {})
            self._known = {sandbox_id: label for label, sandbox_id in known.items()}
        return self._known.get(branch, branch)


def _decision(path: str, **more: Any) -> Resolution:
    """Return a decision on a path as it was typed, which need not be UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return Resolution(path_bytes=os.fsencode(path), **more)
    return Resolution(path=path, **more)


def _content(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            data = opened.read(MAX_WRITE_BYTES + 1)
    except OSError as error:
        raise click.BadParameter(f"{file!r} cannot be read: {error.strerror}", param_hint="--file") from None
    if len(data) > MAX_WRITE_BYTES:
        message = f"{file!r} has more than {MAX_WRITE_BYTES >> 20} MB: take a branch, and copy it into the sandbox then"
        raise click.BadParameter(message, param_hint="--file")
    return data


def _of_the_rest(others: Iterable[Conflict], branch: str, decisions: Iterable[Resolution]) -> Iterator[Resolution]:
    """Yield decisions for a branch on all conflicts in which it takes part, and that are not decided otherwise."""
    decided = {_bytes_of(each.path, each.path_bytes) for each in decisions}
    found = [c for c in others if _takes_part(branch, c)]
    if not found:
        raise CallerError("not_found", f"branch {branch!r} is in no conflict of this merge: give one that is")
    for conflict in found:
        if _bytes_of(conflict.path, conflict.path_bytes) not in decided:
            path = None if conflict.path_bytes is not None else conflict.path
            yield Resolution(path=path, path_bytes=conflict.path_bytes, take=branch)


def _takes_part(branch: str, conflict: Conflict) -> bool:
    if conflict.hunks and not conflict.cut and branch != BASE and conflict.kind in ("content", "added"):
        return any(branch in hunk.versions for hunk in conflict.hunks)
    return any(side.branch == branch for side in conflict.sides)


def _bytes_of(path: str | None, raw: bytes | None) -> bytes:
    return raw if raw is not None else os.fsencode(path or "")


def _batches(decisions: Sequence[Resolution]) -> Iterator[list[Resolution]]:
    """Yield the decisions in as many as one call may have. An empty list is a batch: the daemon says why not."""
    batch: list[Resolution] = []
    size = 0
    for decision in decisions:
        length = len(decision.data or b"")
        if batch and (len(batch) == _MOST_DECISIONS or size + length > MAX_WRITE_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(decision)
        size += length
    yield batch


@command(
    examples=[
        "sandkeep branch show $MRG src/a.py one",
        "diff <(sandkeep branch show $MRG a one) <(sandkeep branch show $MRG a two)",
    ]
)
@click.argument("merge", type=MERGE, metavar="MERGE")
@click.argument("path", type=CONFLICT, metavar="PATH")
@click.argument("side", type=SIDE, metavar="BRANCH")
@common()
def show(front: Frontend, merge: str, path: str, side: str) -> None:
    """Write the version of PATH that BRANCH, or `base`, has in a conflict of MERGE to stdout, byte for byte."""
    with front.client() as client:
        found: list[Conflict] = every(client.branch.conflicts, merge_id=merge)
        version = _version(found, os.fsencode(path), _Labels(client, merge).of(side))
        if version.kind == "symlink":
            sys.stdout.buffer.write((version.target or "").encode())
            return
        offset, is_end = 0, False
        while not is_end:
            piece = client.branch.read_version(merge, sha256=version.sha256 or "", offset=offset)
            sys.stdout.buffer.write(piece.data)
            offset, is_end = offset + len(piece.data), piece.eof


def _version(found: Iterable[Conflict], path: bytes, branch: str) -> ConflictSide:
    conflict = next((c for c in found if _bytes_of(c.path, c.path_bytes) == path), None)
    if conflict is None:
        message = f"{quote_bytes(path)} has no conflict: see `sandkeep branch conflicts`"
        raise CallerError("not_found", message, path=path.decode(errors="replace"))
    version = next((side for side in conflict.sides if side.branch == branch), None)
    if version is None:
        names = ", ".join(side.branch for side in conflict.sides)
        raise CallerError("not_found", f"branch {branch!r} is not in this conflict: give one of {names}")
    if version.kind not in ("file", "symlink"):
        message = f"{branch} has {'nothing' if version.kind is None else f'a {version.kind}'} there, and no content"
        raise CallerError("not_found", f"{message}: see `sandkeep branch conflicts`")
    return version


@command(examples=["sandkeep branch abandon $MRG"])
@click.argument("merges", nargs=-1, required=True, type=MERGE, metavar="MERGE...")
@common()
def abandon(front: Frontend, merges: tuple[str, ...]) -> None:
    """Give up merges that have conflicts, and print their ids. The branches stay as they are."""
    with front.client() as client:
        for merge_id in merges:
            with progress(f"giving up {merge_id}") as display:
                ended = client.branch.abandon(merge_id, progress=display)
            json_line(ended) if front.as_json else echo(ended.merge_id, flush=True)
