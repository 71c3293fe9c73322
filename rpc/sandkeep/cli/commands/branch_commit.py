"""Commits of branches to directories of this machine, and the origin of each path."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import to_builtins

from sandkeep.blocking import Client
from sandkeep.cli.display import changes
from sandkeep.cli.display.output import Column, echo, json_line, note, paint, plain, table
from sandkeep.cli.display.paths import quote, quote_bytes
from sandkeep.cli.display.progress import progress
from sandkeep.cli.exit_codes import REFUSED
from sandkeep.cli.options import Frontend, absolute_path, command, common
from sandkeep.cli.words import DIRECTORY, PROVENANCE, SANDBOX
from sandkeep.clients.pages import every
from sandkeep.errors import SandkeepError, error_from
from sandkeep.ids import COMMIT, MERGE
from sandkeep.model import Commit, CommitPath, CommitPlan, Provenance
from sandkeep.protocol.methods import MAX_CHANGES

if TYPE_CHECKING:
    from sandkeep.cli.commands.branch_git import GitCommit, WorkTree

_WRITTEN: Final = ("apply", "host_changed")
_STATUS_COLOURS: Final = {"apply": "green", "host_changed": "red", "blocked": "red", "forbidden": "yellow"}


@command(
    examples=[
        "sandkeep branch commit $BOX . --dry-run",
        "sandkeep branch commit $BOX ~/project",
        "sandkeep branch commit $BOX . --git -m 'Fix the parser' --git-branch fix",
    ]
)
@click.argument("branch", type=SANDBOX, metavar="BRANCH")
@click.argument("directory", type=DIRECTORY, metavar="DIRECTORY")
@click.option("--dry-run", is_flag=True, help="Only show what would be done at each path.")
@click.option("--force", is_flag=True, help="Also replace what was changed in DIRECTORY meanwhile.")
@click.option("--git", "with_git", is_flag=True, help="Then commit these paths, and no others, with git.")
@click.option("--message", "-m", metavar="MESSAGE", help="With --git: the message of the commit.")
@click.option("--author", metavar="AUTHOR", help="With --git: the author, such as 'Name <mail@example.org>'.")
@click.option("--git-branch", metavar="NAME", help="With --git: commit on a new branch NAME, and stay on it.")
@common()
def commit(
    front: Frontend, branch: str, directory: str, *, dry_run: bool, force: bool, with_git: bool, message: str | None,
    author: str | None, git_branch: str | None,
) -> int:  # fmt: skip
    """Apply the changes of BRANCH since its image to DIRECTORY, all or none, and print each path and the commit's id.

    It is refused if files that BRANCH changed were also changed in DIRECTORY. With --dry-run nothing is changed, and
    the exit code is 1 if the commit would be refused.

    With --git, DIRECTORY is in a git work tree. Your other changes there, staged or not, stay as they are. Hooks run as
    in any commit of yours, and may run files of the branch: review it first.
    """
    _check(with_git=with_git, message=message, author=author, git_branch=git_branch, dry_run=dry_run)
    target = _absolute(directory)
    tree = _work_tree(target) if with_git else None
    with front.client() as client:
        plan = _plan(client, branch, target, **({"limit": MAX_CHANGES} if tree is not None else {}))
        if tree is not None:
            tree.require_own_hooks(_bytes_of(each) for each in plan.paths)
        if dry_run:
            return _show_plan(front, plan, force=force)
        if tree is None:
            return _show(front, plan, _commit(client, branch, target, force=force), None)
        with tree.on_branch(git_branch):
            done = _commit(client, branch, target, force=force)
            paths = [_bytes_of(each) for each in every(client.branch.blame, commit_id=done.commit_id)]
            made = tree.commit(paths, message or "", author)
    return _show(front, plan, done, made)


def _check(*, with_git: bool, message: str | None, author: str | None, git_branch: str | None, dry_run: bool) -> None:
    given = {"--message": message, "--author": author, "--git-branch": git_branch}
    if not with_git:
        for name, value in given.items():
            if value is not None:
                raise click.UsageError(f"{name} needs --git")
    elif not (message or "").strip() and not dry_run:
        raise click.UsageError("--git needs --message MESSAGE")


def _absolute(directory: str) -> str:
    if not directory:
        raise click.BadParameter("empty: give . for the working directory", param_hint="DIRECTORY")
    return absolute_path(directory, "DIRECTORY")


def _work_tree(directory: str) -> "WorkTree":
    from sandkeep.cli.commands.branch_git import WorkTree

    return WorkTree(directory)


def _plan(client: Client, branch: str, target: str, **more: int) -> CommitPlan:
    with progress("comparing") as display:
        return client.branch.plan(branch, target=target, progress=display, **more)


def _commit(client: Client, branch: str, target: str, *, force: bool) -> Commit:
    try:
        with progress("committing") as display:
            return client.branch.commit(branch, target=target, force=force, progress=display)
    except SandkeepError as error:
        if error.code != "host_changed":
            raise
        message = f"{error.message}\n--dry-run shows all paths; --force replaces what was changed there"
        raise error_from(error.code, message, error.data) from None


def _show_plan(front: Frontend, plan: CommitPlan, *, force: bool) -> int:
    is_refused = bool(plan.counts.get("blocked")) or (bool(plan.counts.get("host_changed")) and not force)
    if front.as_json:
        json_line(plan)
        return REFUSED if is_refused else 0
    columns = max((len(plain(each.status)) for each in plan.paths), default=0)
    for each in plan.paths:
        shown = paint(plain(each.status).ljust(columns), _STATUS_COLOURS.get(each.status, "dim"))
        why = f"  ({plain(each.why).replace('_', ' ')})" if each.why else ""
        echo(f"{shown}  {changes.letter(each.change)}  {quote(each.path, each.path_bytes)}{why}")
    _note_cut(plan)
    if not plan.paths:
        note(f"sandkeep: nothing to commit to {plain(plan.target)}")
    return REFUSED if is_refused else 0


def _note_cut(plan: CommitPlan) -> None:
    left = sum(plan.counts.values()) - len(plan.paths)
    if left > 0:
        note(f"sandkeep: {left} more paths are not shown")


def _show(front: Frontend, plan: CommitPlan, done: Commit, made: "GitCommit | None") -> int:
    if front.as_json:
        document: dict[str, Any] = to_builtins(done)
        if made is not None:
            document["git"] = {"commit": made.commit, "branch": made.branch}
        json_line(document)
    else:
        _show_done(plan, done)
    if made is not None:
        _show_git(made, as_json=front.as_json)
    return 0


def _show_done(plan: CommitPlan, done: Commit) -> None:
    written = [(each.change, each.path, each.path_bytes) for each in plan.paths if each.status in _WRITTEN]
    for line in changes.path_lines(sorted(written, key=lambda each: each[2] or each[1].encode())):
        echo(line)
    _note_cut(plan)
    echo(done.commit_id, flush=True)
    if forbidden := plan.counts.get("forbidden", 0):
        paths = "1 path" if forbidden == 1 else f"{forbidden} paths"
        note(f"sandkeep: left out {paths} that git would obey, in .git or a bare repository: --dry-run shows which")
    elif not written:
        note(f"sandkeep: nothing to commit: {plain(done.target)} has all changes of the branch already")


def _show_git(made: "GitCommit", *, as_json: bool) -> None:
    for path in made.ignored:
        note(f"sandkeep: git ignores {quote_bytes(path)}, which is not in its commit")
    if made.commit is None:
        note("sandkeep: nothing to commit for git: it has all that was committed to the directory")
    elif not as_json:
        echo(f"git {made.commit[:12]}" + (f" on {plain(made.branch)}" if made.branch else ""))


def _bytes_of(each: Provenance | CommitPath) -> bytes:
    return each.path_bytes if each.path_bytes is not None else each.path.encode()


@command(
    examples=[
        "sandkeep branch blame merged",
        "sandkeep branch blame $MRG src",
    ]
)
@click.argument("origin", type=PROVENANCE, metavar="BRANCH|MERGE|COMMIT")
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@common()
def blame(front: Frontend, origin: str, paths: tuple[str, ...]) -> None:
    """Show which branch each changed path of a merge, a commit or a branch came from; of PATHs, only those at or below
    them.
    """
    kind = {MERGE: "merge_id", COMMIT: "commit_id"}.get(origin.partition("_")[0] if "_" in origin else "", "sandbox_id")
    with progress("comparing"), front.client() as client:
        found: list[Provenance] = every(client.branch.blame, **{kind: origin}, paths=[*paths])
    return json_line(found) if front.as_json else _print_origins(found)


def _print_origins(found: Iterable[Provenance]) -> None:
    rows = [
        (
            changes.LETTERS.get(each.change, "?"),
            quote(each.path, each.path_bytes),
            each.how,
            ", ".join(each.branches),
            each.merge_id or "",
        )
        for each in found
    ]
    merged = any(row[-1] for row in rows)
    columns: list[str | Column] = ["", "PATH", "HOW", Column("BRANCHES", least=8)]
    table(
        [*columns, *([Column("MERGE", spare=True, least=13)] if merged else [])],
        rows if merged else [row[:-1] for row in rows],
    )
