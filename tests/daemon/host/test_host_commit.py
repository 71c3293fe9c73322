"""Commits to the host: all changes of a branch or none, with the caller's rights, and never over the host's own."""

import contextlib
import ctypes
import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import trio
from tests.support import disks
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.users import as_user, command_as

from sandkeep.errors import CallerError, DaemonError, ProviderError, SandkeepError, StateError
from sandkeep.system.descriptors import closing_fd
from sandkeep.system.trees import remove_tree
from sandkeepd.contract.caller import Caller
from sandkeepd.host import spawn
from sandkeepd.host.host_commit import client, names, rights
from sandkeepd.host.host_commit.changes import Change, Entry
from sandkeepd.host.host_commit.journal import Journal
from sandkeepd.host.host_commit.tree import look, set_permissions

ME = Caller(uid=os.geteuid(), gid=os.getegid())
ALICE = Caller(uid=40_011, gid=40_011)
BOB = Caller(uid=40_012, gid=40_012)
COMMIT = "cmt_1"
STAGING = names.STAGING_PREFIX.decode() + COMMIT


class Branch:
    """A list of changes with their contents. Entries are given as bytes (a file), None, "dir" or ("link", target)."""

    def __init__(self, directory: Path) -> None:
        self.changes: list[Change] = []
        self._file = open(directory / "contents", "w+b")  # noqa: SIM115 - `close` does
        self.fd = os.open(directory / "contents", os.O_RDONLY)

    def entry(self, content: object, mode: int | None) -> Entry | None:
        match content:
            case None:
                return None
            case bytes():
                offset = self._file.seek(0, os.SEEK_END)
                self._file.write(content)
                self._file.flush()
                sha256 = hashlib.sha256(content).hexdigest()
                mode = 0o644 if mode is None else mode
                return Entry(kind="file", mode=mode, size=len(content), sha256=sha256, offset=offset)
            case ("link", target):
                return Entry(kind="symlink", target=os.fsencode(target))
            case _:
                return Entry(kind="directory", mode=0o755 if mode is None else mode)

    def __call__(
        self,
        path: str | bytes,
        old: object,
        new: object,
        *,
        old_mode: int | None = None,
        new_mode: int | None = None,
    ) -> "Branch":
        self.changes.append(
            Change(path=os.fsencode(path), old=self.entry(old, old_mode), new=self.entry(new, new_mode or old_mode))
        )
        return self

    def close(self) -> None:
        self._file.close()
        os.close(self.fd)


@pytest.fixture
def branch(tmp_path: Path) -> Iterator[Branch]:
    made = Branch(tmp_path)
    yield made
    made.close()


@pytest.fixture
def home() -> Iterator[Path]:
    """A target that other users can reach, in memory: there an fsync takes no time."""
    with _reachable("/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        yield directory


@pytest.fixture
def home_on_disk() -> Iterator[Path]:
    """The same on the disk of temporary files."""
    with _reachable(None) as directory:
        yield directory


@contextlib.contextmanager
def _reachable(place: str | None) -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="skt-commit-", dir=place))
    try:
        top.chmod(0o755)
        home = top / "home"
        home.mkdir()
        home.chmod(0o755)
        yield home
    finally:
        remove_tree(str(top))


def write(path: Path, content: bytes = b"", mode: int = 0o644) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def give(path: Path, caller: Caller) -> None:
    subprocess.run(["chown", "-hR", f"{caller.uid}:{caller.gid}", str(path)], check=True)


def picture(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a directory: kinds, modes and contents."""
    result: dict[str, tuple[object, ...]] = {}
    for directory, directories, files in os.walk(top):
        for name in [*directories, *files]:
            path = Path(directory, name)
            info = path.lstat()
            content: object = None
            if stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(info.st_mode):
                content = path.read_bytes()
            result[str(path.relative_to(top))] = (oct(info.st_mode), content)
    return result


def statuses(report: client.Report) -> dict[str, str]:
    return {os.fsdecode(each.path): f"{each.status}:{each.why}".rstrip(":") for each in report.paths}


def check(home: Path, branch: Branch, caller: Caller = ME, force: Sequence[bytes] | None = ()) -> dict[str, str]:
    return statuses(client.check(str(home), caller, branch.changes, force=force))


def journal_of(home: Path, commit: str = COMMIT) -> Path:
    """The journal of a commit, where the target's user cannot reach it."""
    return home.parent / f"journal-{commit}"


@contextlib.contextmanager
def open_journal(home: Path, commit: str = COMMIT, *, new: bool = False) -> Iterator[int]:
    fd = os.open(journal_of(home, commit), os.O_RDWR | os.O_CREAT | (os.O_TRUNC if new else 0), 0o600)
    with closing_fd(fd):
        yield fd


def state_of(home: Path) -> str | None:
    with open_journal(home) as journal:
        return Journal(journal).settled_state()


def apply(home: Path, branch: Branch, caller: Caller = ME, *, commit: str = COMMIT, **more: object) -> client.Report:
    with open_journal(home, commit, new=True) as journal:
        return client.apply(str(home), caller, commit, branch.changes, branch.fd, journal, **more)  # type: ignore[arg-type]


def undo(home: Path, caller: Caller = ME, *, commit: str = COMMIT, **more: object) -> client.Undone:
    with open_journal(home, commit) as journal:
        return client.undo(str(home), caller, commit, journal, **more)  # type: ignore[arg-type]


def refused(home: Path, branch: Branch, caller: Caller = ME, **more: object) -> SandkeepError:
    """The error of a commit that must change nothing."""
    before = picture(home)
    with pytest.raises(SandkeepError) as caught:
        apply(home, branch, caller, **more)
    assert picture(home) == before
    return caught.value


# -- comparison -------------------------------------------------------------------------------------------------------


def test_every_status_of_a_file(home: Path, branch: Branch) -> None:
    for name in ("edited", "gone", "edited-there", "deleted-there", "mode"):
        write(home / name, b"base")
    write(home / "same", b"branch")
    write(home / "new-there", b"other")
    write(home / "new-same", b"branch")
    write(home / "edited-there", b"host!")
    write(home / "deleted-there", b"host")
    (home / "is-directory").mkdir()
    (home / "is-link").symlink_to("edited")
    os.mkfifo(home / "is-fifo")
    for name in ("edited", "same", "edited-there", "missing", "is-directory", "is-link", "is-fifo"):
        branch(name, b"base", b"branch")
    for name in ("gone", "gone-already", "deleted-there"):
        branch(name, b"base", None)
    for name in ("new", "new-there", "new-same"):
        branch(name, None, b"branch")
    branch("edited/below", None, b"x")
    branch.changes.pop()
    assert check(home, branch) == {
        "edited": "apply",
        "same": "same",
        "edited-there": "host_changed:content",
        "missing": "host_changed:missing",
        "is-directory": "host_changed:kind",
        "is-link": "host_changed:kind",
        "is-fifo": "host_changed:kind",
        "gone": "apply",
        "gone-already": "same",
        "deleted-there": "host_changed:content",
        "new": "apply",
        "new-there": "host_changed:exists",
        "new-same": "same",
    }


def test_a_mode_counts_only_if_the_branch_changes_it(home: Path, branch: Branch) -> None:
    for name in ("edited", "chmod", "chmod-there", "chmod-alike", "removed"):
        write(home / name, b"base", 0o600)
    (home / "chmod").chmod(0o644)
    (home / "chmod-alike").chmod(0o755)
    branch("edited", b"base", b"branch")
    branch("removed", b"base", None)
    for name in ("chmod", "chmod-there", "chmod-alike"):
        branch(name, b"base", b"base", old_mode=0o644, new_mode=0o755)
    found = check(home, branch)
    assert found == {
        "edited": "apply",
        "removed": "apply",
        "chmod": "apply",
        "chmod-there": "host_changed:mode",
        "chmod-alike": "same",
    }
    branch.changes = [change for change in branch.changes if change.path != b"chmod-there"]
    inode = (home / "chmod").stat().st_ino
    apply(home, branch)
    assert (home / "edited").read_bytes() == b"branch"
    assert stat.S_IMODE((home / "edited").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "chmod").stat().st_mode) == 0o755
    assert (home / "chmod").stat().st_ino == inode


def test_an_edit_with_a_mode_sets_both(home: Path, branch: Branch) -> None:
    write(home / "tool", b"base", 0o644)
    branch("tool", b"base", b"branch", old_mode=0o644, new_mode=0o6755)
    branch("new", None, b"new", new_mode=0o4750)
    apply(home, branch)
    assert stat.S_IMODE((home / "tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((home / "new").stat().st_mode) == 0o750


def test_directories(home: Path, branch: Branch) -> None:
    for name in ("empty", "emptied", "kept", "outer/inner", "there", "closed"):
        (home / name).mkdir(parents=True)
    for name in ("emptied/a", "kept/a", "kept/mine", "outer/inner/a"):
        write(home / name, b"base")
    for name in ("empty", "emptied", "kept", "outer", "outer/inner"):
        branch(name, "dir", None)
    for name in ("emptied/a", "kept/a", "outer/inner/a"):
        branch(name, b"base", None)
    branch("there", None, "dir", new_mode=0o700)
    branch("made/below/c", None, b"c")
    branch("made/below", None, "dir", new_mode=0o555)
    branch("made", None, "dir", new_mode=0o750)
    branch("closed", "dir", "dir", old_mode=0o755, new_mode=0o500)
    branch("closed/x", None, b"x")
    expected = dict.fromkeys((os.fsdecode(change.path) for change in branch.changes), "apply")
    expected |= {"kept": "kept:not_empty", "there": "same"}
    assert check(home, branch) == expected
    report = apply(home, branch)
    assert statuses(report) == expected
    assert report.counts == {"apply": 12, "kept": 1, "same": 1}
    assert picture(home) == {
        "kept": ("0o40755", None),
        "kept/mine": ("0o100644", b"base"),
        "there": ("0o40755", None),
        "made": ("0o40750", None),
        "made/below": ("0o40555", None),
        "made/below/c": ("0o100644", b"c"),
        "closed": ("0o40500", None),
        "closed/x": ("0o100644", b"x"),
    }


def test_kinds_replace_each_other(home: Path, branch: Branch) -> None:
    (home / "directory").mkdir()
    write(home / "directory" / "a", b"base")
    (home / "directory2").mkdir()
    write(home / "file", b"base")
    write(home / "file2", b"base")
    (home / "link").symlink_to("file")
    (home / "link2").symlink_to("/etc")
    (home / "link3").symlink_to("old")
    branch("directory", "dir", b"now a file")
    branch("directory/a", b"base", None)
    branch("directory2", "dir", ("link", "/nowhere"))
    branch("file", b"base", "dir", new_mode=0o711)
    branch("file/a", None, b"below")
    branch("file2", b"base", ("link", "../x"))
    branch("link", ("link", "file"), b"now a file", new_mode=0o600)
    branch("link2", ("link", "/etc"), "dir")
    branch("link2/passwd", None, b"mine")
    branch("link3", ("link", "old"), ("link", b"new\xff"))
    assert set(check(home, branch).values()) == {"apply"}
    apply(home, branch)
    assert picture(home) == {
        "directory": ("0o100644", b"now a file"),
        "directory2": ("0o120777", "/nowhere"),
        "file": ("0o40711", None),
        "file/a": ("0o100644", b"below"),
        "file2": ("0o120777", "../x"),
        "link": ("0o100600", b"now a file"),
        "link2": ("0o40755", None),
        "link2/passwd": ("0o100644", b"mine"),
        "link3": ("0o120777", os.fsdecode(b"new\xff")),
    }


def test_a_directory_with_files_of_the_host_is_not_replaced_even_by_force(home: Path, branch: Branch) -> None:
    (home / "d").mkdir()
    write(home / "d" / "mine", b"mine")
    branch("d", "dir", b"a file")
    assert check(home, branch) == {"d": "blocked:not_empty"}
    assert refused(home, branch, force=None).code == "host_changed"


def test_force_overwrites_the_named_paths_only(home: Path, branch: Branch) -> None:
    write(home / "a", b"host")
    write(home / "b", b"host")
    os.mkfifo(home / "pipe")
    (home / "d").mkdir()
    branch("a", b"base", b"branch")("b", b"base", None)("pipe", None, b"branch")("d", b"base", b"branch")
    branch("removed/by/host", b"base", b"branch")
    error = refused(home, branch, force=[b"a"])
    assert isinstance(error, StateError)
    assert error.code == "host_changed"
    assert {each["path"]: each["why"] for each in error.data["paths"]} == {
        "a": "content", "b": "content", "pipe": "exists", "d": "kind", "removed/by/host": "missing",
    }  # fmt: skip
    apply(home, branch, force=[change.path for change in branch.changes])
    assert picture(home) == {
        "a": ("0o100644", b"branch"),
        "pipe": ("0o100644", b"branch"),
        "d": ("0o100644", b"branch"),
        "removed": ("0o40755", None),
        "removed/by": ("0o40755", None),
        "removed/by/host": ("0o100644", b"branch"),
    }


def test_a_file_is_never_half_there_for_readers(home: Path, branch: Branch) -> None:
    write(home / "file", b"base")
    branch("file", b"base", b"branch")
    seen = set()
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            seen.add((home / "file").read_bytes())  # FileNotFoundError fails the test, as a warning

    reader = threading.Thread(target=read)
    reader.start()
    try:
        apply(home, branch)
    finally:
        ended.set()
        reader.join()
    assert seen <= {b"base", b"branch"}


def test_any_bytes_in_a_name(home: Path, branch: Branch) -> None:
    named = [b"new\nline", b"\xff\xfe", "é𝄞".encode(), b"-rf", b" ", b"\x01\x7f", b"x" * 255, b"...", b'"\\']
    for name in named:
        branch(name, None, name)
        branch(b"d/" + name, None, b"link")
        branch.changes[-1] = Change(path=b"d/" + name, old=None, new=Entry(kind="symlink", target=name))
    branch("d", None, "dir")
    apply(home, branch)
    for name in named:
        with open(os.fsencode(home) + b"/" + name, "rb") as file:
            assert file.read() == name
        assert os.readlink(os.fsencode(home) + b"/d/" + name) == name


def test_attributes_of_an_edited_file_stay(home: Path, branch: Branch) -> None:
    write(home / "file", b"base")
    try:
        os.setxattr(home / "file", "user.note", b"mine")
    except OSError:
        pytest.skip("no user attributes on this file system")
    branch("file", b"base", b"branch")
    apply(home, branch)
    assert os.getxattr(home / "file", "user.note") == b"mine"


# -- refusals ---------------------------------------------------------------------------------------------------------


FORBIDDEN = [
    (b".git", "git"),
    (b".GIT", "git"),
    (b".git/hooks/x", "git"),
    (b"a/.git/config", "git"),
    (b"a/.Git", "git"),
    (b".git.", "git"),
    (b".git /x", "git"),
    (b"GIT~1/config", "git"),
    (b".git::$INDEX_ALLOCATION/x", "git"),
    (".g\u200cit/x".encode(), "git"),
    (".\ufeffgit".encode(), "git"),
    (b"..", "dots"),
    (b"a/../../x", "dots"),
    (b"./x", "dots"),
    (b"/etc/x", "absolute"),
    (b"", "empty"),
    (b"a//b", "empty"),
    (b"a/", "empty"),
    (b".sandkeep-commit-x/journal", "staging"),
    (b"a/.Sandkeep-Commit-x", "staging"),
]


def test_forbidden_paths(home: Path, branch: Branch) -> None:
    write(home / "fine", b"base")
    branch("fine", b"base", b"branch")
    for path, _ in FORBIDDEN:
        branch(path, None, "dir")
    expected = {os.fsdecode(path): f"forbidden:{why}" for path, why in FORBIDDEN}
    assert check(home, branch, force=None) == {"fine": "apply", **expected}
    error = refused(home, branch, force=None)
    assert (error.code, error.data["field"]) == ("invalid", "paths")
    assert {(each["path"], each["why"]) for each in error.data["paths"]} == {
        (path.decode(), why) for path, why in FORBIDDEN
    }


@pytest.mark.parametrize("path", [b".GIT/hooks/x", b"../x"])
def test_one_forbidden_path_stops_a_commit(home: Path, branch: Branch, path: bytes) -> None:
    write(home / "fine", b"base")
    branch("fine", b"base", b"branch")(path, None, b"evil")
    assert refused(home, branch, force=None).code == "invalid"


def test_no_bare_repository_comes_with_the_directories_above_forced_paths(home: Path, branch: Branch) -> None:
    """They are in the branch's base, and the host has removed them: a commit makes them again."""
    for path in ("sub/HEAD", "sub/config", "sub/objects/x", "sub/refs/x"):
        branch(path, None, b"x")
    error = refused(home, branch, force=None)
    assert {each["why"] for each in error.data["paths"]} == {"git"}
    assert os.listdir(home) == []


def test_names_that_only_look_like_git_are_fine(home: Path, branch: Branch) -> None:
    for name in (".gitignore", ".github", "git", "a.git", ".git-x", "..git"):
        branch(name, None, b"x")
    assert set(check(home, branch).values()) == {"apply"}


@pytest.mark.parametrize("inner", [".git", "x/.GIT/hooks"])
def test_a_target_inside_a_git_directory(home: Path, branch: Branch, inner: str) -> None:
    (home / inner).mkdir(parents=True)
    (home / "link").symlink_to(inner)
    branch("x", None, b"x")
    assert refused(home / "link", branch).data["field"] == "target"


def test_targets_that_are_none(home: Path, branch: Branch) -> None:
    write(home / "file")
    branch("x", None, b"x")
    for target in ("relative", str(home / "missing"), str(home / "file"), str(home / "file" / "x"), "/a\0b"):
        for call in (
            lambda target=target: client.check(target, ME, branch.changes),
            lambda target=target: client.apply(target, ME, COMMIT, branch.changes, branch.fd, branch.fd),
            lambda target=target: client.undo(target, ME, COMMIT, branch.fd),
        ):
            with pytest.raises(CallerError) as caught:
                call()
            assert (caught.value.code, caught.value.data["field"]) == ("invalid", "target")


def test_the_path_of_the_target_may_have_links(home: Path, branch: Branch) -> None:
    (home / "real").mkdir()
    (home / "link").symlink_to("real")
    branch("x", None, b"x")
    apply(home / "link", branch)
    assert (home / "real" / "x").read_bytes() == b"x"


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("as_root", "whose"),
    [
        pytest.param(False, ALICE.uid, id="mallory's"),
        pytest.param(False, BOB.uid, id="the caller's"),
        pytest.param(False, 0, id="root's"),
        pytest.param(True, ALICE.uid, id="mallory's for root"),
        pytest.param(True, BOB.uid, id="another's for root", marks=pytest.mark.soak),
        pytest.param(True, 0, id="root's for root"),
    ],
)
def test_no_link_is_followed_where_somebody_else_may_write(
    home: Path, branch: Branch, whose: int, as_root: bool
) -> None:
    """He puts it in the place of the target, or of a directory above it; or it is one that was committed there."""
    caller, victim = ME if as_root else BOB, home.with_name("victim")
    (victim / "sub" / "T").mkdir(parents=True)
    give(victim, caller)
    give(home, ALICE)
    (home / "real" / "T").mkdir(parents=True)
    (home / "link").symlink_to(victim / "sub")
    (home / "real" / "link").symlink_to(victim / "sub")
    for path in ("link", "real", "real/link"):
        os.chown(home / path, whose, whose, follow_symlinks=False)
    branch("x", None, b"x")
    for mode in (0o755, 0o777, 0o1777):
        home.chmod(mode)
        for path in ("link/T", "link", "real/link/T", "real/../link/T", "real/../../victim/sub/T"):
            error = refused(home / path, branch, caller)
            assert (error.code, error.data["field"]) == ("invalid", "target")
            assert "link" in error.message
    assert os.listdir(victim / "sub" / "T") == []


@pytest.mark.needs("root")
@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777])
def test_a_link_where_anybody_may_write(home: Path, branch: Branch, mode: int) -> None:
    """In a directory such as ``/tmp`` the caller's own links are followed, which nobody else can replace."""
    (home / "real").mkdir()
    (home / "link").symlink_to("real")
    (home / "evil").symlink_to("real")
    give(home / "evil", ALICE)
    home.chmod(mode)
    branch("x", None, b"x")
    assert "link" in refused(home / "evil", branch).message
    if mode & stat.S_ISVTX:
        apply(home / "link", branch)
    else:
        assert "link" in refused(home / "link", branch).message
    assert (home / "real" / "x").exists() == (mode == 0o1777)


@pytest.mark.parametrize("force", [(), None])
def test_links_in_the_target_lead_nowhere(home: Path, branch: Branch, force: object) -> None:
    outside = home.parent / "outside"
    outside.mkdir()
    write(outside / "a", b"base")
    (home / "link").symlink_to(outside)
    write(home / "file", b"base")
    branch("link/a", b"base", b"branch")("link/b", None, b"new")("link/c/d", None, b"new")("file/a", None, b"new")
    branch("link/a2", b"base", None)
    assert check(home, branch) == {
        "link/a": "blocked:link",
        "link/a2": "blocked:link",
        "link/b": "blocked:link",
        "link/c/d": "blocked:link",
        "file/a": "blocked:not_a_directory",
    }
    assert refused(home, branch, force=force).code == "host_changed"
    assert picture(outside) == {"a": ("0o100644", b"base")}


def test_what_is_no_commit(home: Path, branch: Branch) -> None:
    branch("a", None, b"x")("a/b", None, b"y")
    assert refused(home, branch).code == "invalid"
    branch.changes.clear()
    branch("a", None, b"x")("a", None, b"y")
    assert refused(home, branch).code == "invalid"
    for target in ("", "a\0b", "x" * 4096):
        branch.changes.clear()
        branch("a", None, ("link", target))
        assert refused(home, branch).code == "invalid"


def test_names_that_are_too_long(home: Path, branch: Branch) -> None:
    branch("x" * 256, None, b"x")("/".join(["y" * 200] * 22), None, b"x")
    assert set(check(home, branch).values()) == {"blocked:name"}
    assert refused(home, branch).code == "host_changed"


def test_contents_that_are_not_as_requested(home: Path, tmp_path: Path, branch: Branch) -> None:
    write(home / "a", b"base")
    branch("a", b"base", b"branch")("b", None, b"other")
    with open(tmp_path / "contents", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    assert refused(home, branch).code == "internal"
    with open(tmp_path / "contents", "r+b") as file:
        file.truncate(3)
    assert refused(home, branch).code == "internal"


def test_contents_must_be_read_only(home: Path, branch: Branch) -> None:
    with tempfile.TemporaryFile() as file, pytest.raises(ValueError, match="reading"):
        client.apply(str(home), ME, COMMIT, branch.changes, file.fileno(), file.fileno())


# -- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.needs("root")
def test_a_user_without_rights_changes_nothing(home: Path, branch: Branch) -> None:
    give(home, ALICE)
    branch("x", None, b"x")
    assert refused(home, branch, BOB).code == "permission_denied"
    home.chmod(0o700)
    with pytest.raises(CallerError) as caught:
        client.check(str(home), BOB, branch.changes)
    assert caught.value.code == "permission_denied"
    assert refused(home, branch, BOB).code == "permission_denied"
    with pytest.raises(CallerError):
        undo(home, BOB)


@pytest.mark.needs("root")
def test_a_users_commit_belongs_to_him(home: Path, branch: Branch) -> None:
    write(home / "a", b"base")
    give(home, ALICE)
    branch("a", b"base", b"branch")("d", None, "dir")("d/b", None, b"b")("l", None, ("link", "x"))
    apply(home, branch, ALICE)
    for name in ("a", "d", "d/b", "l"):
        assert ((home / name).lstat().st_uid, (home / name).lstat().st_gid) == (ALICE.uid, ALICE.gid)


@pytest.mark.needs("root")
def test_root_leaves_an_edited_file_to_its_owner(home: Path, branch: Branch) -> None:
    write(home / "a", b"base")
    (home / "l").symlink_to("x")
    give(home, ALICE)
    branch("a", b"base", b"branch")("l", ("link", "x"), ("link", "y"))
    apply(home, branch)
    assert (home / "a").stat().st_uid == ALICE.uid
    assert (home / "l").lstat().st_uid == ALICE.uid


@pytest.mark.needs("root")
def test_files_of_others_in_a_users_directory(home: Path, branch: Branch) -> None:
    for name in ("roots", "chmod", "secret"):
        write(home / name, b"base", 0o600 if name == "secret" else 0o644)
    (home / "closed").mkdir()
    write(home / "closed" / "a", b"base")
    (home / "sticky").mkdir()
    write(home / "sticky" / "a", b"base")
    (home / "sticky").chmod(0o1777)
    os.chown(home, ALICE.uid, ALICE.gid)
    branch("roots", b"base", b"branch")("secret", b"base", b"branch")("closed/a", b"base", b"branch")
    branch("chmod", b"base", b"base", new_mode=0o777, old_mode=0o644)
    branch("closed/b", None, b"b")("sticky/a", b"base", None)
    assert check(home, branch, ALICE) == {
        "roots": "blocked:owner",
        "secret": "blocked:permission",
        "closed/a": "blocked:permission",
        "closed/b": "blocked:permission",
        "chmod": "blocked:owner",
        "sticky/a": "blocked:owner",
    }
    assert refused(home, branch, ALICE, force=None).code == "permission_denied"


@pytest.mark.needs("root")
def test_groups_give_rights(home: Path, branch: Branch) -> None:
    os.chown(home, 0, 40_020)
    home.chmod(0o770)
    branch("x", None, b"x")
    assert refused(home, branch, ALICE).code == "permission_denied"
    apply(home, branch, Caller(uid=ALICE.uid, gid=ALICE.gid, groups=(40_020,)))
    assert (home / "x").stat().st_uid == ALICE.uid


def _inherit_every_capability() -> None:
    """Make all permitted capabilities inheritable, as a daemon's manager can."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    data[2], data[5] = data[1], data[4]
    assert libc.capset(header, data) == 0


@pytest.mark.needs("root")
def test_the_program_has_nothing_but_the_callers_rights() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            _inherit_every_capability()
            rights.become(ALICE.uid, ALICE.gid, [7])
            with open("/proc/self/status", "rb") as file:
                os.write(writing, file.read())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="ascii") as file:
        found = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
    os.waitpid(child, 0)
    assert found["Uid"].split() == [str(ALICE.uid)] * 4
    assert found["Gid"].split() == [str(ALICE.gid)] * 4
    assert found["Groups"].split() == ["7"]
    assert found["NoNewPrivs"].split() == ["1"]
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(found[name], 16) == 0, name


@pytest.mark.needs("root")
def test_a_users_daemon_acts_for_him_only(home: Path, branch: Branch) -> None:
    give(home, ALICE)
    branch("x", None, b"x")

    def work() -> str:
        try:
            client.check(str(home), BOB, branch.changes)
        except CallerError as error:
            return error.code
        return "no error"

    assert as_user(ALICE.uid, work) == "permission_denied"


USERS_DAEMON = """
import os, sys
from tests.daemon.host.test_host_commit import Branch, Caller, apply, check, Path
home = Path(sys.argv[1])
branch = Branch(Path(sys.argv[2]))
branch("a", b"base", b"branch")("d", None, "dir", new_mode=0o500)("d/x", None, b"x")
me = Caller(uid=os.geteuid(), gid=os.getegid())
assert apply(home, branch, me).counts == {"apply": 3}
assert set(check(home, branch, me).values()) == {"same"}
branch.close()
"""


@pytest.mark.needs("root")
def test_a_users_daemon_commits_as_him(home: Path) -> None:
    write(home / "a", b"base")
    scratch = home.parent / "scratch"
    scratch.mkdir()
    for each in (home, scratch):
        give(each, ALICE)
    os.chown(home.parent, ALICE.uid, ALICE.gid)  # of the journal
    argv = [sys.executable, "-B", "-c", USERS_DAEMON, str(home), str(scratch)]
    subprocess.run(command_as(ALICE.uid, argv), check=True, cwd=Path(__file__).parents[3], timeout=patient(60))
    assert picture(home) == {
        "a": ("0o100644", b"branch"),
        "d": ("0o40500", None),
        "d/x": ("0o100644", b"x"),
    }


@pytest.mark.needs("root")
def test_undo_takes_no_orders_from_a_journal_of_somebody_else(home: Path, branch: Branch) -> None:
    write(home / "a", b"base")
    give(home, ALICE)
    branch("a", b"base", b"branch")
    with pytest.raises(ProviderError):
        apply(home, branch, ALICE, failpoints=["kill:move:1"])
    with pytest.raises(StateError) as caught:
        undo(home, ME)
    assert caught.value.code == "host_changed"
    undo(home, ALICE)
    assert (home / "a").read_bytes() == b"base"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b'{"result": "checked", "items": [[5, "apply", ""]]}',
        b'{"result": "checked", "items": [[-1, "apply", ""]]}',
        b'{"result": "checked", "items": [[0, "evil", ""]]}',
        b'{"result": "checked", "more": 1}',
        b'{"result": "\xff"}',
        b"[" * 100_000,
        b'{"result": "checked", "message": "' + b"x" * (17 << 20),
    ],
)
def test_an_answer_that_was_tampered_with(
    home: Path, branch: Branch, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    written = write(home / "answer", answer)
    branch("x", None, b"x")
    _instead(monkeypatch, ["cat", str(written)])
    with pytest.raises(ProviderError) as caught:
        client.check(str(home), ME, branch.changes)
    assert caught.value.code == "provider_unavailable"


def test_kept_paths_are_not_believed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("../x", "/etc", "\\u1234", "x" * 5000):
        written = write(home / "answer", b'{"result": "undone", "kept": [["%s", "", null]]}' % path.encode())
        with monkeypatch.context() as patch:
            _instead(patch, ["cat", str(written)])
            with pytest.raises(ProviderError):
                undo(home)


def _instead(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    """Have another program answer."""
    start = spawn.start
    monkeypatch.setattr(client.spawn, "start", lambda _, *rest: start(argv, *rest))


# -- all or nothing ---------------------------------------------------------------------------------------------------


def various(home: Path, branch: Branch) -> None:
    """A tree and a branch with a step of every sort."""
    for name in ("d/sub", "gone", "becomes-file", "mode", "opens"):
        (home / name).mkdir(parents=True)
    for name in ("d/edited", "d/sub/removed", "gone/a", "becomes-file/a", "becomes-dir", "chmod", "becomes-link"):
        write(home / name, f"base of {name}".encode(), 0o640)
    (home / "link").symlink_to("old")
    (home / "opens").chmod(0o555)
    branch("d/edited", b"base of d/edited", b"branch")
    branch("d/sub/removed", b"base of d/sub/removed", None)
    branch("gone", "dir", None)("gone/a", b"base of gone/a", None)
    branch("becomes-file", "dir", b"file")("becomes-file/a", b"base of becomes-file/a", None)
    branch("becomes-dir", b"base of becomes-dir", "dir")("becomes-dir/x", None, b"x", new_mode=0o400)
    branch("becomes-link", b"base of becomes-link", ("link", "/nowhere"))
    branch("chmod", b"base of chmod", b"base of chmod", old_mode=0o640, new_mode=0o700)
    branch("mode", "dir", "dir", old_mode=0o755, new_mode=0o500)
    branch("opens", "dir", "dir", old_mode=0o555, new_mode=0o755)("opens/y", None, b"y")
    branch("new", None, "dir", new_mode=0o500)("new/er", None, "dir", new_mode=0o500)("new/er/z", None, b"z")
    branch("link", ("link", "old"), ("link", "new"))


STEPS = 20
POINTS = [
    *(f"kill:staging:{n}" for n in (1, 4)),
    "kill:copying:2",
    "kill:staged:1",
    "kill:journal:1",
    *(f"kill:move:{n}" for n in range(1, STEPS + 1)),
    "kill:moved:1",
    "kill:flushed:1",
    "kill:complete:1",
    *(f"kill:cleanup:{n}" for n in (1, 4, 8)),
]

MORE = [f"kill:move:{n}" for n in range(2, STEPS, 2)]
"""Of every other step the soak dies: each kind of change has a step before it and one after it."""


@pytest.mark.parametrize(
    ("point", "as_alice"),
    [
        *(pytest.param(point, False, marks=[pytest.mark.soak] * (point in MORE)) for point in POINTS),
        *(pytest.param(point, True, marks=pytest.mark.needs("root")) for point in POINTS[::5]),
    ],
)
def test_killed_at_any_step_it_is_all_or_nothing(home: Path, branch: Branch, point: str, as_alice: bool) -> None:
    caller = ALICE if as_alice else ME
    various(home, branch)
    if as_alice:
        give(home, ALICE)
    before = picture(home)
    with pytest.raises(ProviderError) as caught:
        apply(home, branch, caller, failpoints=[point])
    assert caught.value.code == "provider_unavailable"
    assert (home / STAGING).exists()
    late = "complete" in point or "cleanup" in point
    if as_alice:
        with pytest.raises(StateError) as unfinished:
            apply(home, branch, caller, commit="cmt_2")
        assert (unfinished.value.code, unfinished.value.data["unfinished"]) == ("conflict", COMMIT)
    for again in (f"kill:rollback:{3 if 'move' in point else 1}", "kill:cleanup:2"):
        with contextlib.suppress(ProviderError):  # where undoing gets so far
            undo(home, caller, failpoints=[again])
    result = undo(home, caller)
    assert (result.kept, result.leftover) == ([], False)
    assert not (home / STAGING).exists()
    if late:
        assert set(check(home, branch, caller).values()) == {"same"}
        return
    assert picture(home) == before
    if as_alice:
        apply(home, branch, caller)
        assert set(check(home, branch, caller).values()) == {"same"}
        assert undo(home, caller).outcome == "none"


def test_the_points_cover_every_step(home: Path, branch: Branch) -> None:
    various(home, branch)
    with pytest.raises(ProviderError):
        apply(home, branch, failpoints=[f"kill:move:{STEPS}"])
    undo(home)
    apply(home, branch, failpoints=[f"kill:move:{STEPS + 1}"])


def test_undo_tells_how_a_commit_ended(home: Path, branch: Branch) -> None:
    various(home, branch)
    with pytest.raises(ProviderError):
        apply(home, branch, failpoints=["kill:move:3"])
    assert undo(home).outcome == "undone"
    assert state_of(home) == "undone"
    with pytest.raises(ProviderError):
        apply(home, branch, failpoints=["kill:complete:1"])
    assert state_of(home) == "complete"
    assert undo(home).outcome == "complete"
    assert undo(home).outcome == "none"
    assert state_of(home) == "complete"


def test_all_or_nothing_on_a_disk(home_on_disk: Path, branch: Branch) -> None:
    various(home_on_disk, branch)
    before = picture(home_on_disk)
    for point in ("journal:1", "move:9", f"move:{STEPS}"):
        with pytest.raises(ProviderError):
            apply(home_on_disk, branch, failpoints=[f"kill:{point}"])
        assert undo(home_on_disk).kept == []
        assert picture(home_on_disk) == before
    apply(home_on_disk, branch)
    assert set(check(home_on_disk, branch).values()) == {"same"}


@pytest.mark.parametrize("point", ["staging:3", "copying:2", "staged:1", "journal:1", "move:1", "move:12", "flushed:1"])
@pytest.mark.parametrize("action", ["full", "terminate"])
def test_an_error_or_sigterm_takes_everything_back(home: Path, branch: Branch, action: str, point: str) -> None:
    various(home, branch)
    error = refused(home, branch, failpoints=[f"{action}:{point}"])
    assert error.code == ("storage_unavailable" if action == "full" else "provider_unavailable")


@pytest.mark.parametrize("again", ["rollback:1", "rollback:9", "undone:1", "cleanup:1"])
def test_killed_while_it_rolls_back(home: Path, branch: Branch, again: str) -> None:
    various(home, branch)
    before = picture(home)
    with pytest.raises(ProviderError):
        apply(home, branch, failpoints=["full:move:12", f"kill:{again}"])
    assert undo(home).kept == []
    assert picture(home) == before


def test_edits_of_the_host_after_a_crash_survive(home: Path, branch: Branch) -> None:
    for name in ("edited", "edited-in-place", "deleted", "removed", "plain"):
        write(home / name, b"base")
        branch(name, b"base", None if name == "removed" else b"branch")
    branch("made", None, "dir")("made/new", None, b"new")("made/other", None, b"other")
    with pytest.raises(ProviderError):
        apply(home, branch, failpoints=["kill:moved:1"])
    write(home / "mine", b"mine")
    os.replace(home / "mine", home / "edited")
    write(home / "edited-in-place", b"BRANCH")
    (home / "deleted").unlink()
    write(home / "removed", b"again")
    write(home / "made" / "new", b"edited")
    for _ in range(2):
        result = undo(home)
        kept = {os.fsdecode(each.path): each for each in result.kept}
        assert {path: each.why for path, each in kept.items() if each.backup} == {
            "edited": "content", "edited-in-place": "content", "deleted": "missing", "removed": "exists",
        }  # fmt: skip
        assert {path for path, each in kept.items() if not each.backup} == {"made", "made/new"}
        assert result.leftover
        for each in kept.values():
            if each.backup:
                assert (home / os.fsdecode(each.backup)).read_bytes() == b"base"
        found = {path: content for path, (_, content) in picture(home).items() if not path.startswith(STAGING)}
        assert found == {
            "edited": b"mine",
            "edited-in-place": b"BRANCH",
            "removed": b"again",
            "plain": b"base",
            "made": None,
            "made/new": b"edited",
        }
    assert undo(home, discard=True).leftover is False
    assert not (home / STAGING).exists()


@contextlib.contextmanager
def stopped_at(home: Path, branch: Branch, point: str, **more: object) -> Iterator[list[object]]:
    """Run a commit up to a point; its result or error is there after the block, in which the host changes things."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(apply(home, branch, failpoints=[f"stop:{point}"], **more))
        except SandkeepError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    stopped = until(_stopped_child)
    try:
        yield outcome
    finally:
        os.kill(stopped, signal.SIGCONT)
        thread.join()


def _stopped_child() -> int | None:
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for pid in Path(f"/proc/self/task/{task}/children").read_text(encoding="ascii").split():
                if b") T " in Path(f"/proc/{pid}/stat").read_bytes():
                    return int(pid)
    return None


def _edit(path: Path) -> None:
    write(path, b"host")


def _edit_with_its_old_time(path: Path) -> None:
    before = path.stat().st_mtime_ns
    path.write_bytes(b"host")
    os.utime(path, ns=(before, before))


def _replace(path: Path) -> None:
    os.replace(write(path.with_name("temporary"), b"base"), path)


def _to_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("change", [_edit, _edit_with_its_old_time, _replace, _to_link, Path.unlink])
@pytest.mark.parametrize("name", ["edited", "removed"])
def test_a_change_of_the_host_during_the_commit_stops_it(
    home: Path, branch: Branch, name: str, change: Callable[[Path], None]
) -> None:
    for each in ("first", "edited", "removed"):
        write(home / each, b"base")
    branch("a", None, b"new")("first", b"base", b"branch")("edited", b"base", b"branch")("removed", b"base", None)
    with stopped_at(home, branch, "journal:1") as outcome:
        change(home / name)
        expected = {path: seen for path, seen in picture(home).items() if not path.startswith(STAGING)}
    assert isinstance(outcome[0], StateError)
    assert outcome[0].code == "host_changed"
    assert [each["path"] for each in outcome[0].data["paths"]] == [name]
    assert picture(home) == expected


def test_a_file_that_appears_during_the_commit_stops_it(home: Path, branch: Branch) -> None:
    write(home / "first", b"base")
    branch("first", b"base", b"branch")("new", None, b"branch")
    with stopped_at(home, branch, "journal:1") as outcome:
        write(home / "new", b"host")
    assert isinstance(outcome[0], StateError)
    assert picture(home) == {"first": ("0o100644", b"base"), "new": ("0o100644", b"host")}


def test_a_file_that_appears_in_a_deleted_directory_stays_with_it(home: Path, branch: Branch) -> None:
    (home / "d").mkdir()
    write(home / "d" / "a", b"base")
    branch("d", "dir", None)("d/a", b"base", None)
    with stopped_at(home, branch, "journal:1") as outcome:
        write(home / "d" / "mine", b"mine")
    assert isinstance(outcome[0], client.Report)
    assert statuses(outcome[0]) == {"d": "kept:not_empty", "d/a": "apply"}
    assert picture(home) == {"d": ("0o40755", None), "d/mine": ("0o100644", b"mine")}


def test_a_write_through_an_open_file_stops_the_commit(home: Path, branch: Branch) -> None:
    write(home / "edited", b"base")
    branch("edited", b"base", b"branch")
    with open(home / "edited", "r+b", buffering=0) as file, stopped_at(home, branch, "moved:1") as outcome:
        file.write(b"host")
    assert isinstance(outcome[0], StateError)
    assert picture(home) == {"edited": ("0o100644", b"host")}


def test_a_file_that_appears_in_a_directory_about_to_be_removed_goes_back(home: Path, branch: Branch) -> None:
    (home / "d").mkdir()
    branch("d", "dir", None)
    fd = os.open(home / "d", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with stopped_at(home, branch, "complete:1") as outcome:
            os.close(os.open("mine", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd))
    finally:
        os.close(fd)
    assert isinstance(outcome[0], client.Report)
    assert list(picture(home)) == ["d", "d/mine"]


def test_two_commits_do_not_interleave(home: Path, branch: Branch) -> None:
    write(home / "a", b"base")
    branch("a", b"base", b"branch")
    with stopped_at(home, branch, "move:1") as outcome:
        for call in (
            lambda: apply(home, branch, commit="cmt_2"),
            lambda: undo(home),
        ):
            with pytest.raises(StateError) as caught:
                call()
            assert caught.value.code == "conflict"
            assert "unfinished" not in caught.value.data
    assert isinstance(outcome[0], client.Report)
    assert picture(home) == {"a": ("0o100644", b"branch")}


def test_a_commit_that_began_at_the_same_moment_is_not_overtaken(home: Path, branch: Branch) -> None:
    """Both have seen no staging directory; each sees the other's once it has made its own."""
    write(home / "a", b"base")
    branch("a", b"base", b"branch")
    other = home / f"{STAGING}0"
    with stopped_at(home, branch, "surveyed:1") as outcome:
        other.mkdir()
    assert isinstance(outcome[0], StateError)
    assert outcome[0].code == "conflict"
    other.rmdir()
    assert picture(home) == {"a": ("0o100644", b"base")}


@pytest.mark.parametrize("back", [False, True])
def test_a_directory_swapped_for_a_link_leads_nowhere(home: Path, branch: Branch, back: bool) -> None:
    outside = home.parent / "outside"
    outside.mkdir()
    (home / "d").mkdir()
    for number in range(20):
        write(home / "d" / f"f{number}", b"base")
        write(outside / f"f{number}", b"base")
        branch(f"d/f{number}", b"base", None if number % 2 else b"branch")
    before = picture(outside)
    with stopped_at(home, branch, "move:7") as outcome:
        os.rename(home / "d", home / "aside")
        (home / "d").symlink_to(outside)
    assert isinstance(outcome[0], StateError)
    assert picture(outside) == before
    if back:
        (home / "d").unlink()
        os.rename(home / "aside", home / "d")
        assert undo(home).kept == []
        assert {content for _, content in picture(home / "d").values()} == {b"base"}
        assert len(picture(home / "d")) == 20
    else:
        assert {each.why for each in undo(home).kept} == {"link"}
        assert picture(outside) == before


SWAP = """
import os, sys
from sandkeepd.host.host_commit.tree import exchange
home = os.open(sys.argv[1], os.O_RDONLY)
while True:
    exchange(home, b"d", home, b"link")
"""


def test_racing_with_somebody_who_swaps_directories(home: Path, branch: Branch) -> None:
    outside = home.parent / "outside"
    (outside / "d").mkdir(parents=True)
    (home / "d").mkdir()
    for number in range(50):
        write(home / "d" / f"f{number}", b"base")
        write(outside / f"f{number}", b"base")
        branch(f"d/f{number}", b"base", None if number % 2 else b"branch")
    before = picture(outside)
    (home / "link").symlink_to(outside)
    swapping = subprocess.Popen(
        [sys.executable, "-c", SWAP, str(home)],
    )
    commits = [f"cmt_race{number}" for number in range(12)]
    try:
        for commit in commits:
            with contextlib.suppress(SandkeepError):
                apply(home, branch, commit=commit)
            with contextlib.suppress(SandkeepError):
                undo(home, commit=commit)
    finally:
        swapping.kill()
        swapping.wait()
    if (home / "d").is_symlink():
        (home / "d").unlink()
        (home / "link").rename(home / "d")
    for commit in commits:
        assert undo(home, commit=commit).kept == []
    assert picture(outside) == before
    assert set(check(home, branch).values()) in ({"apply"}, {"same"})


def test_cancellation_takes_everything_back(home: Path, branch: Branch) -> None:
    for number in range(300):
        write(home / f"f{number}", b"base")
        branch(f"f{number}", b"base", b"branch")
    before = picture(home)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                trio.to_thread.run_sync,
                lambda: apply(home, branch, failpoints=["stop:move:100"]),
            )
            await trio.to_thread.run_sync(lambda: until(_stopped_child))
            nursery.cancel_scope.cancel()

    trio.run(main)
    undo(home)
    assert picture(home) == before


def test_a_timeout_takes_everything_back(home: Path, branch: Branch) -> None:
    write(home / "a", b"base")
    branch("a", b"base", b"branch")
    before = picture(home)
    with pytest.raises(StateError) as caught:
        apply(home, branch, failpoints=["stop:moved:1"], timeout_s=0.5)
    assert caught.value.code == "timeout"
    assert undo(home).outcome == "none"
    assert picture(home) == before


def test_the_death_of_the_daemon_takes_everything_back(home: Path, branch: Branch) -> None:
    write(home / "a", b"base")
    branch("a", b"base", b"branch")
    before = picture(home)
    daemon = os.fork()
    if daemon == 0:
        with contextlib.suppress(BaseException):
            apply(home, branch, failpoints=["stop:moved:1"])
        os._exit(0)
    program = until(lambda: _child_of(daemon))
    os.kill(daemon, signal.SIGKILL)
    os.waitpid(daemon, 0)
    os.kill(program, signal.SIGCONT)
    until(lambda: not (home / STAGING).exists())
    assert picture(home) == before


def _child_of(parent: int) -> int | None:
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b") T " in Path(f"/proc/{pid}/stat").read_bytes():
                return int(pid)
    return None


def test_a_damaged_journal_is_told(home: Path, branch: Branch) -> None:
    write(home / "a", b"base")
    branch("a", b"base", b"branch")
    with pytest.raises(ProviderError):
        apply(home, branch, failpoints=["kill:move:1"])
    journal = journal_of(home)
    good = journal.read_bytes()
    head = good[: good.index(b"}\n") + 2]
    forged = good.partition(b"[")[2].replace(b'"path": "a"', b'"path": "../a"')
    digest = hashlib.sha256(b"[" + forged).hexdigest().encode()
    for content in (
        b"x", b"applying\n[]", head, good[:-20], good.replace(b'"slot": 1', b'"slot": 2'),
        good.replace(b'"version": 2', b'"version": 1'), b"%s%s\n[%s" % (head, digest, forged),
    ):  # fmt: skip
        journal.write_bytes(content)
        with pytest.raises(DaemonError) as caught:
            undo(home)
        assert caught.value.code == "internal"
    journal.write_bytes(good)
    assert undo(home).outcome == "undone"
    assert (home / "a").read_bytes() == b"base"


# -- disks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(home: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0755", "tmpfs", str(home)], check=True)
    yield home
    disks.umount(str(home))


@pytest.mark.needs("root")
def test_a_full_disk_changes_nothing(small_disk: Path, branch: Branch) -> None:
    write(small_disk / "a", b"base")
    branch("a", b"base", b"branch")("b", None, b"x" * 2_000_000)
    error = refused(small_disk, branch)
    assert isinstance(error, DaemonError)
    assert error.code == "storage_unavailable"


@pytest.mark.needs("root")
def test_other_disks_in_the_target_are_left_alone(home: Path, branch: Branch) -> None:
    for name in ("disk", "bind", "source"):
        (home / name).mkdir()
    write(home / "source" / "a", b"base")
    write(home / "first", b"base")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(home / "disk")], check=True)
    subprocess.run(["mount", "--bind", str(home / "source"), str(home / "bind")], check=True)
    try:
        branch("first", b"base", b"branch")("disk/x", None, b"x")
        assert check(home, branch)["disk/x"] == "blocked:other_filesystem"
        branch.changes.pop()
        branch("bind/a", b"base", b"branch")
        error = refused(home, branch)
        assert error.code == "host_changed"
        assert [each["why"] for each in error.data["paths"]] == ["other_filesystem"]
        branch.changes.pop()
        branch("disk", "dir", None)
        assert check(home, branch)["disk"] == "blocked:other_filesystem"
    finally:
        disks.umount(str(home / "disk"))
        disks.umount(str(home / "bind"))


def test_five_thousand_files(home: Path, branch: Branch) -> None:
    for number in range(100):
        (home / f"d{number}").mkdir()
    for number in range(5_000):
        path = f"d{number % 100}/f{number}"
        if number % 2:
            write(home / path, b"base")
        branch(path, b"base" if number % 2 else None, None if number % 5 == 0 and number % 2 else b"%d" % number)
    before = picture(home)
    with pytest.raises(ProviderError):
        apply(home, branch, failpoints=["kill:move:4000"])
    assert undo(home).kept == []
    assert picture(home) == before
    report = apply(home, branch)
    assert report.counts == {"apply": 5_000}
    assert set(client.check(str(home), ME, branch.changes).counts) == {"same"}


def test_more_paths_than_are_named(home: Path, branch: Branch) -> None:
    write(home / "z", b"host")
    entry = branch.entry(b"x", None)
    branch.changes = [Change(path=b"f%d" % number, old=None, new=entry) for number in range(10_500)]
    branch("z", b"base", b"branch")
    report = client.check(str(home), ME, branch.changes)
    assert report.counts == {"apply": 10_500, "host_changed": 1}
    assert len(report.paths) == 10_000
    assert report.paths[0].path == b"z"


def test_errno_of_a_file_system_without_exchange() -> None:
    assert client._system_error(errno.EINVAL, "/x", {}).data["field"] == "target"


# -- recovery state ---------------------------------------------------------------------------------------------------


def cut_off(home: Path, branch: Branch, point: str = "moved:1") -> None:
    with pytest.raises(ProviderError):
        apply(home, branch, failpoints=[f"kill:{point}"])


def left_alone(home: Path) -> StateError:
    """The error of an undo that must change nothing."""
    before = picture(home.parent)
    with pytest.raises(StateError) as caught:
        undo(home)
    assert caught.value.code == "host_changed"
    assert picture(home.parent) == before
    return caught.value


def test_no_journal_is_read_in_the_target(home: Path, branch: Branch) -> None:
    write(home / "a", b"base")
    branch("a", b"base", b"branch")
    cut_off(home, branch)
    for name in ("journal", "complete", "undone"):
        write(home / STAGING / name, journal_of(home).read_bytes())
    journal_of(home).unlink()
    assert undo(home).outcome == "none"
    assert (home / "a").read_bytes() == b"branch"
    with pytest.raises(StateError) as caught:
        apply(home, branch, commit="cmt_2")
    assert caught.value.code == "conflict"
    assert f"{home}/{STAGING}" in caught.value.message


@pytest.mark.parametrize("name", [b"x", b".sandkeep-commit-", b".sandkeep-commit-\x9b\n\xff", b".sandkeep-commit-../x"])
def test_a_staging_directory_of_nobody_is_named(home: Path, branch: Branch, name: bytes) -> None:
    branch("a", None, b"branch")
    path = os.fsencode(home) + b"/" + name.replace(b"/", b"|")
    os.mkdir(path)
    if name == b"x":
        apply(home, branch)
        return
    error = refused(home, branch)
    assert error.code == "conflict"
    assert error.message.isprintable()
    assert ".sandkeep-commit-" in error.message


def test_a_staging_directory_by_another_name_is_not_undone(home: Path, branch: Branch) -> None:
    various(home, branch)
    before = picture(home)
    cut_off(home, branch)
    os.rename(home / STAGING, home / f"{STAGING}2")
    assert STAGING in left_alone(home).message
    assert state_of(home) == "applying"
    os.rename(home / f"{STAGING}2", home / STAGING)
    assert undo(home).kept == []
    assert picture(home) == before


@pytest.mark.parametrize("point", ["staged:1", "moved:1", "complete:1"])
def test_a_directory_in_the_place_of_the_staging_directory_is_left_alone(
    home: Path, branch: Branch, point: str
) -> None:
    write(home / "a", b"base")
    branch("a", b"base", b"branch")
    cut_off(home, branch, point)
    os.rename(home / STAGING, home / "aside")
    (home / STAGING / "slots").mkdir(parents=True, mode=0o700)
    (home / STAGING).chmod(0o700)
    write(home / STAGING / "slots" / "1", b"evil")
    left_alone(home)


def test_a_backup_that_was_replaced_is_not_put_back(home: Path, branch: Branch) -> None:
    for name in ("edited", "removed"):
        write(home / name, b"base")
        branch(name, b"base", b"branch" if name == "edited" else None)
    cut_off(home, branch)
    for slot in (home / STAGING / "slots").iterdir():
        os.replace(write(home / "evil", b"evil"), slot)
    kept = {os.fsdecode(each.path): each.why for each in undo(home).kept}
    assert kept == {"edited": "backup_missing", "removed": "backup_missing"}
    assert (home / "edited").read_bytes() == b"branch"
    assert not (home / "removed").exists()


@pytest.mark.parametrize("kind", ["directory", "link", "moved"])
def test_another_directory_by_the_path_of_the_target_is_left_alone(home: Path, branch: Branch, kind: str) -> None:
    various(home, branch)
    before = picture(home)
    cut_off(home, branch)
    aside = home.with_name("aside")
    os.rename(home, aside)
    victim = home if kind == "directory" else home.with_name("victim")
    if kind == "moved":
        victim.mkdir()
        os.rename(aside / STAGING, victim / STAGING)
    else:
        (victim / STAGING / "slots").mkdir(parents=True, mode=0o700)
    write(victim / "chmod", b"base of chmod", 0o700)
    if victim != home:
        home.symlink_to(victim)
    assert COMMIT in left_alone(home).message
    if kind == "moved":
        os.rename(victim / STAGING, aside / STAGING)
    if victim != home:
        home.unlink()
    else:
        remove_tree(str(home))
    os.rename(aside, home)
    assert undo(home).kept == []
    assert picture(home) == before


@pytest.mark.needs("root")
def test_nobody_else_links_into_a_staging_directory(home: Path, branch: Branch) -> None:
    write(home / "a", b"base")
    branch("a", b"base", b"branch")
    cut_off(home, branch)
    give(home / "a", ALICE)
    home.chmod(0o777)

    def work() -> str:
        for call in (lambda: os.link(home / "a", home / STAGING / "slots" / "9"), lambda: os.listdir(home / STAGING)):
            with pytest.raises(PermissionError):
                call()
        return ""

    as_user(ALICE.uid, work)


def test_a_used_journal_is_not_used_again(home: Path, branch: Branch) -> None:
    branch("a", None, b"branch")
    apply(home, branch)
    content = journal_of(home).read_bytes()
    (home / "a").unlink()
    with open_journal(home) as journal, pytest.raises(DaemonError):
        client.apply(str(home), ME, COMMIT, branch.changes, branch.fd, journal)
    assert picture(home) == {}
    assert journal_of(home).read_bytes() == content


@pytest.mark.needs("root")
@pytest.mark.parametrize("files", [1, 100])
def test_a_journal_on_a_full_disk_changes_nothing(home: Path, branch: Branch, files: int) -> None:
    """With a file there is no room for its beginning, with a hundred for its steps."""
    for number in range(files):
        write(home / f"f{number}", b"base")
        branch(f"f{number}", b"base", b"branch")
    before = picture(home)
    disk = home.with_name("disk")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(disk)], check=True)
    try:
        if files == 1:
            write(disk / "full", b"x" * 4096)
        with closing_fd(os.open(disk / "journal", os.O_RDWR | os.O_CREAT)) as journal:
            with pytest.raises(DaemonError) as caught:
                client.apply(str(home), ME, COMMIT, branch.changes, branch.fd, journal)
            assert caught.value.code == "storage_unavailable"
            assert "state directory" in caught.value.message
            assert client.undo(str(home), ME, COMMIT, journal).outcome == "none"
    finally:
        disks.umount(str(disk))
    assert picture(home) == before


# -- bits that give rights --------------------------------------------------------------------------------------------


SPECIAL = 0o4755


@pytest.mark.parametrize("point", ["", "journal:1", "move:1", "moved:1"])
def test_a_set_uid_file_loses_that_with_a_change_of_its_mode(home: Path, branch: Branch, point: str) -> None:
    """And it is as it was, the same file, if the commit is taken back."""
    write(home / "tool", b"base", SPECIAL)
    inode = (home / "tool").stat().st_ino
    branch("tool", b"base", b"base", old_mode=0o755, new_mode=0o777)
    assert check(home, branch) == {"tool": "apply"}
    if not point:
        apply(home, branch)
        assert stat.S_IMODE((home / "tool").stat().st_mode) == 0o777
        return
    cut_off(home, branch, point)
    assert undo(home).kept == []
    info = (home / "tool").stat()
    assert (stat.S_IMODE(info.st_mode), info.st_ino) == (SPECIAL, inode)


def test_a_change_of_a_mode_touches_no_other_name_of_the_file(home: Path, branch: Branch) -> None:
    outside = write(home.parent / "outside", b"base")
    os.link(outside, home / "linked")
    branch("linked", b"base", b"base", old_mode=0o644, new_mode=0o777)
    apply(home, branch)
    assert stat.S_IMODE((home / "linked").stat().st_mode) == 0o777
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644


@pytest.mark.parametrize("point", ["", "moved:1"])
def test_a_directory_keeps_the_bits_that_it_has(home: Path, branch: Branch, point: str) -> None:
    for name, mode in (("shared", 0o2755), ("sticky", 0o1755)):
        (home / name).mkdir()
        (home / name).chmod(mode)
        branch(name, "dir", "dir", old_mode=0o755, new_mode=0o6775)
    if point:
        cut_off(home, branch, point)
        undo(home)
    else:
        apply(home, branch)
    permissions = 0o755 if point else 0o775
    assert stat.S_IMODE((home / "shared").stat().st_mode) == 0o2000 | permissions
    assert stat.S_IMODE((home / "sticky").stat().st_mode) == 0o1000 | permissions


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1755, 0o700])
def test_undo_changes_no_mode_that_the_host_has_set_since(home: Path, branch: Branch, mode: int) -> None:
    write(home / "tool", b"base", 0o644)
    branch("tool", b"base", b"base", old_mode=0o644, new_mode=0o755)
    cut_off(home, branch)
    (home / "tool").chmod(mode)
    undo(home)
    assert stat.S_IMODE((home / "tool").stat().st_mode) == mode


def test_undo_opens_no_file_that_the_host_has_written_since(home: Path, branch: Branch) -> None:
    write(home / "key", b"base", 0o644)
    branch("key", b"base", b"base", old_mode=0o644, new_mode=0o600)
    cut_off(home, branch)
    (home / "key").write_bytes(b"secret")
    assert [(each.path, each.why) for each in undo(home).kept] == [(b"key", "content")]
    assert stat.S_IMODE((home / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize("planned", [0o4755, 0o2755, 0o6777])
def test_no_step_sets_a_bit_that_gives_rights(home: Path, planned: int) -> None:
    """Not even one that a journal would have."""
    path = write(home / "tool", b"base", 0o644)
    with closing_fd(os.open(home, os.O_RDONLY)) as directory:
        seen = look(directory, b"tool")
        assert seen is not None
        assert set_permissions(directory, b"tool", seen, planned)
    assert stat.S_IMODE(path.stat().st_mode) == planned & 0o777
