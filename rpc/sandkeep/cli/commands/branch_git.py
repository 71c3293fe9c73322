"""Commits to git after a branch was committed to a directory, with the user's own git and configuration.

Exactly the paths of the branch are committed; whatever else is changed in the index or the work tree stays as it was.
"""

import os
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from sandkeep.cli.display.paths import quote_bytes
from sandkeep.errors import CallerError, SetupError, StateError

_OF_A_REPOSITORY: Final = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE", "GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS",
    "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS",
)  # fmt: skip
"""Variables that name a repository, as hooks of another one have them; or that change the meaning of paths."""

_IN_PROGRESS: Final = {
    "MERGE_HEAD": "merge", "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert",
}  # fmt: skip
_NONE_IGNORED: Final = 1
_FROM_STDIN: Final = ("--pathspec-from-file=-", "--pathspec-file-nul")
_NO_BARE: Final = ("-c", "safe.bareRepository=explicit")
_LITERAL: Final = b":(top,literal)"
"""Before each path. GIT_LITERAL_PATHSPECS would do the same, but the user's hooks would inherit it."""


class GitCommit(Struct, frozen=True, kw_only=True):
    """A commit that was made, or none if there was nothing to commit; and the paths that git ignores."""

    commit: str | None
    branch: str | None
    ignored: list[bytes]


class WorkTree:
    """A git work tree, and the directory in it to which a branch is committed."""

    def __init__(self, directory: str) -> None:
        """Raises `invalid` if the directory is in no work tree or git knows no identity, `not_ready` during a merge,
        and `not_supported` without git.
        """
        if not os.path.isdir(directory):
            raise CallerError(
                "invalid", f"{directory} is not a directory: give one in a git work tree, or leave out --git"
            )
        inside = _git(directory, *_NO_BARE, "rev-parse", "--is-inside-work-tree")
        if inside.returncode != 0 or inside.stdout != b"true\n":
            message = f"{directory} is not in a git work tree: run `git init` there, or leave out --git"
            raise CallerError("invalid", _with_text(message, inside))
        self.directory = directory
        # From here on git runs at the top, where it finds `.git` first: a directory that a sandbox fills might look
        # like a bare repository, whose configuration git would obey.
        self._top = os.fsdecode(_line(_git(directory, *_NO_BARE, "rev-parse", "--show-toplevel")))
        self._prefix = _line(_git(directory, *_NO_BARE, "rev-parse", "--show-prefix"))
        if not os.path.lexists(f"{self._top}/.git"):
            raise CallerError(
                "invalid", f"{self._top} has no .git of its own: leave out --git, and commit with git then"
            )
        self._require_identity()
        self._require_rest()

    def _require_identity(self) -> None:
        found = self._run("var", "GIT_COMMITTER_IDENT")
        if found.returncode != 0:
            raise CallerError(
                "invalid", _with_text("git does not know who commits: set user.name and user.email", found)
            )

    def _require_rest(self) -> None:
        for name, doing in _IN_PROGRESS.items():
            if self._run("rev-parse", "--quiet", "--verify", name).returncode == 0:
                message = f"a {doing} is in progress in {self._top}: finish it first, or leave out --git"
                raise StateError("not_ready", message)

    def require_own_hooks(self, paths: Iterable[bytes]) -> None:
        """Raise `invalid` if a branch changes hooks that git would run here at once, with the caller's rights. That is
        so where `core.hooksPath` is in the work tree.
        """
        place = os.path.join(self._top, os.fsdecode(_line(self._run("rev-parse", "--git-path", "hooks"))))
        hooks = os.path.relpath(os.path.realpath(place), os.path.realpath(self._top))
        if os.path.basename(hooks) == "_":  # as husky has it, which runs what is beside that
            hooks = os.path.dirname(hooks)
        beneath = os.fsencode(hooks) + b"/"
        for path in paths:
            if (self._prefix + path + b"/").startswith(beneath):
                message = f"the branch changes {quote_bytes(path)}, a hook that git would run: leave out --git"
                raise CallerError("invalid", f"{message}, look at it, and commit with git then")

    @contextmanager
    def on_branch(self, name: str | None) -> Iterator[None]:
        """Switch to a new branch for a block, and stay there; if the block fails, switch back and delete the branch."""
        if name is None:
            yield
            return
        symbolic = self._run("symbolic-ref", "--quiet", "HEAD")
        head = self._run("rev-parse", "--quiet", "--verify", "HEAD")
        _require(self._run("switch", "--quiet", "--create", name), f"git cannot make the branch {name!r}")
        try:
            yield
        except BaseException:
            self._go_back(name, symbolic.stdout.strip(), head.stdout.strip())
            raise

    def _go_back(self, name: str, reference: bytes, commit: bytes) -> None:
        """Set HEAD as it was: the commit is the same, so that index and files stay."""
        if reference:
            self._run("symbolic-ref", "HEAD", os.fsdecode(reference))
        else:
            self._run("update-ref", "--no-deref", "HEAD", os.fsdecode(commit))
            self._run("switch", "--quiet", "--detach", os.fsdecode(commit))
        if commit:
            self._run("branch", "--quiet", "-D", name)

    def commit(self, paths: Iterable[bytes], message: str, author: str | None) -> GitCommit:
        """Commit these paths, relative to the directory, with whatever is there now. Raises `not_ready`, with what git
        says.
        """
        written = [path for path in (self._prefix + path for path in paths) if self._is_file_or_gone(path)]
        tracked = self._tracked() if written else set()
        ignored = self._ignored([path for path in written if path not in tracked])
        added = [path for path in written if path not in ignored and (path in tracked or self._exists(path))]
        staged = self._stage(added) if added else []
        made = None
        if staged:
            self._commit(staged, message, author)
            made = os.fsdecode(_line(self._run("rev-parse", "HEAD")))
        return GitCommit(commit=made, branch=self._branch(), ignored=[path[len(self._prefix) :] for path in ignored])

    def _commit(self, staged: Sequence[bytes], message: str, author: str | None) -> None:
        options = [f"--message={message}", *([f"--author={author}"] if author is not None else [])]
        done = self._run("commit", "--quiet", "--only", *options, *_FROM_STDIN, stdin=_pathspecs(staged))
        _require(done, "git commit failed" + self._advice())

    def _stage(self, paths: Sequence[bytes]) -> list[bytes]:
        """Add paths to the index; return those in which it differs from HEAD."""
        done = self._run("add", "--all", *_FROM_STDIN, stdin=_pathspecs(paths))
        _require(done, "git add failed" + self._advice())
        listed = self._run(
            "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=all"
        )
        _require(listed, "git status failed" + self._advice())
        different = {line[3:] for line in listed.stdout.split(b"\0") if line[:1] not in (b" ", b"?", b"!", b"")}
        return [path for path in paths if path in different]

    def _advice(self) -> str:
        return f"; the files are in {self.directory} already, and `git commit` there would add them"

    def _tracked(self) -> set[bytes]:
        listed = self._run("ls-files", "-z")
        _require(listed, "git ls-files failed" + self._advice())
        return set(listed.stdout.split(b"\0"))

    def _ignored(self, paths: Sequence[bytes]) -> list[bytes]:
        """Return those of some untracked paths that git ignores."""
        if not paths:
            return []
        # This command knows no literal pathspecs: `./` keeps a colon from being magic.
        done = self._run("check-ignore", "-z", "--stdin", stdin=b"\0".join(b"./" + path for path in paths))
        if done.returncode != _NONE_IGNORED:
            _require(done, "git check-ignore failed" + self._advice())
        found = {path.removeprefix(b"./") for path in done.stdout.split(b"\0")}
        return [path for path in paths if path in found]

    def _is_file_or_gone(self, path: bytes) -> bool:
        """Return False for directories, which git does not record, and for what is beneath a link or a file now."""
        parts = path.split(b"/")
        place = os.fsencode(self._top)
        for index, part in enumerate(parts):
            place += b"/" + part
            try:
                is_directory = stat.S_ISDIR(os.lstat(place).st_mode)
            except OSError:
                return True
            if index < len(parts) - 1 and not is_directory:
                return False
        return not is_directory

    def _exists(self, path: bytes) -> bool:
        return os.path.lexists(os.fsencode(self._top) + b"/" + path)

    def _branch(self) -> str | None:
        found = self._run("symbolic-ref", "--quiet", "--short", "HEAD").stdout.strip()
        return found.decode(errors="replace") or None

    def _run(self, *argv: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return _git(self._top, *argv, stdin=stdin)


def _require(done: "subprocess.CompletedProcess[bytes]", failed: str) -> None:
    if done.returncode != 0:
        raise StateError("not_ready", _with_text(failed, done))


def _line(done: "subprocess.CompletedProcess[bytes]") -> bytes:
    _require(done, "git failed")
    return done.stdout.removesuffix(b"\n")


def _git(directory: str, *argv: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run git to its end, whatever that is. Raises `not_supported` without git."""
    command = ["git", "-C", directory, *argv]
    try:
        return subprocess.run(command, input=stdin, capture_output=True, env=_environment(), check=False)
    except FileNotFoundError:
        raise SetupError("not_supported", "git is not installed: install it, or leave out --git") from None


def _environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_A_REPOSITORY}


def _pathspecs(paths: Iterable[bytes]) -> bytes:
    return b"\0".join(_LITERAL + path for path in paths)


def _with_text(message: str, done: "subprocess.CompletedProcess[bytes]") -> str:
    """Add git's own words, on lines of their own."""
    text = (done.stderr + done.stdout).decode(errors="replace").strip()
    return f"{message}\n{text}" if text else message
