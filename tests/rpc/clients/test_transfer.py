"""`cp` and `sandkeep.transfer`: what arrives, what an archive from a sandbox cannot do here, and what kills leave."""

import io
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import disks
from tests.support.boxes import Box, archive, at_most, new_box
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.users import NOBODY, as_user, command_as

from sandkeep import transfer
from sandkeep.cli.commands.cp import parse_location
from sandkeep.cli.display.progress import PATIENCE_S
from sandkeep.demo import traces
from sandkeep.errors import CallerError, SandkeepError
from sandkeep.ids import new_id
from sandkeep.system import confined, ignore

pytestmark = pytest.mark.needs("bwrap")
ONCE_MORE_S = 600.0
"""How long the run as an ordinary user may take."""


@pytest.fixture(autouse=True)
def bound(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test waits for ever."""
    with at_most(120 + ONCE_MORE_S if "users_own" in request.node.name else 120):
        yield


@pytest.fixture(scope="module")
def image(shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("project")
    (root / "hello").write_text("hello\n")
    (root / "bin").mkdir()
    (root / "bin" / "tar").write_text(
        '#!/bin/sh\n[ -e /workspace/evil ] || exec /usr/bin/tar "$@"\n. /workspace/evil\n'
    )
    (root / "bin" / "tar").chmod(0o755)
    with shared_daemon.connect() as client:
        return str(client.image.create(str(root)).image_id)


@pytest.fixture(scope="module")
def shared_box(shared_daemon: Any, image: str) -> Iterator[Box]:
    """Its `tar` is the one of the workspace, which is a plain one unless `evil` says what it shall do."""
    with new_box(shared_daemon, image, env={"PATH": "/workspace/bin:/usr/bin:/bin"}) as made:
        yield made


@pytest.fixture
def box(shared_box: Box) -> Iterator[Box]:
    yield shared_box
    shared_box.sh("rm -f evil")
    until(shared_box.is_tidy, seen=shared_box.left)
    shared_box.sh("chmod -R u+rwx .; find . -mindepth 1 -maxdepth 1 ! -name bin -exec rm -rf {} +; echo hello >hello")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A place on this machine where no stage may be left."""
    made = tmp_path / "here"
    made.mkdir()
    yield made
    until(lambda: not stages(made))


def stages(folder: Path) -> list[str]:
    return [name for _, names, _ in os.walk(folder) for name in names if name.startswith(".sandkeep-")]


def cp(box: Box, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    done: subprocess.CompletedProcess[bytes] = box.daemon.cli("cp", *words, **options)
    return done


def copied(box: Box, *words: str, **options: Any) -> Any:
    """What a copy that went well answers."""
    done = cp(box, *words, "--json", **options)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def snapshot(top: bytes) -> dict[bytes, tuple[Any, ...]]:
    """All there is to a tree: types, modes, times, contents, targets, holes, and which names are one file."""
    found: dict[bytes, tuple[Any, ...]] = {}
    inodes: dict[int, bytes] = {}
    for folder, names, files in os.walk(top):
        for path in sorted([folder, *(os.path.join(folder, name) for name in [*names, *files])]):
            name, info = os.path.relpath(path, top), os.lstat(path)
            kind, mode = stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode)
            if stat.S_ISLNK(kind):
                found[name] = (kind, os.readlink(path))
                continue
            one = inodes.setdefault(info.st_ino, name)
            holes = stat.S_ISREG(kind) and info.st_blocks * 1024 < info.st_size
            content = Path(os.fsdecode(path)).read_bytes() if stat.S_ISREG(kind) else b""
            found[name] = (kind, mode, int(info.st_mtime), content, one, holes)
    return found


# -- what arrives -----------------------------------------------------------------------------------------------------

NAMES = (
    st.binary(min_size=1, max_size=40)
    .map(lambda raw: raw.translate(None, b"/\0"))
    .filter(lambda name: name not in (b"", b".", b".."))
)
TARGETS = st.binary(min_size=1, max_size=60).map(lambda raw: raw.replace(b"\0", b"0"))
TIMES = st.integers(0, 2**32)
FILES = st.tuples(st.just("file"), st.binary(max_size=3000), st.integers(0, 0o777).map(lambda m: m | 0o400), TIMES)
LEAVES = st.one_of(
    FILES,
    st.tuples(st.just("link"), TARGETS),
    st.tuples(st.just("sparse"), st.integers(100_000, 5_000_000), TIMES),
    st.tuples(st.just("fifo")),
    st.tuples(st.just("same")),
)
TREES = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=6),
    lambda inner: st.dictionaries(NAMES, st.one_of(LEAVES, inner), max_size=4),
    max_leaves=12,
)


def make(top: bytes, tree: dict[bytes, Any], first: list[bytes]) -> None:
    os.mkdir(top)
    for name, entry in tree.items():
        path = os.path.join(top, name)
        if isinstance(entry, dict):
            make(path, entry, first)
            continue
        what, *rest = entry
        if what == "link":
            os.symlink(rest[0], path)
        elif what == "fifo":
            os.mkfifo(path)
        elif what == "same" and first:
            os.link(first[0], path)
        elif what == "sparse":
            with open(path, "wb") as file:
                file.truncate(rest[0])
            os.utime(path, (rest[1], rest[1]))
        elif what == "file":
            Path(os.fsdecode(path)).write_bytes(rest[0])
            os.chmod(path, rest[1])
            os.utime(path, (rest[2], rest[2]))
            first.append(path)
    os.utime(top, (1_234_567, 1_234_567))


@given(name=NAMES, tree=TREES)
@settings(max_examples=25, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_tree_goes_in_and_comes_out_as_it_was(box: Box, name: bytes, tree: dict[bytes, Any]) -> None:
    there = new_id("dir")
    with tempfile.TemporaryDirectory() as scratch:
        source = os.path.join(os.fsencode(scratch), b"in", name)
        target = os.path.join(os.fsencode(scratch), b"back")
        os.mkdir(os.path.dirname(source))
        make(source, tree, [])
        went = transfer.copy_in(box.client, source, box.id, there)
        came = transfer.copy_out(box.client, box.id, f"{there}/.", target)
        assert snapshot(target) == snapshot(source)
        assert went.files == came.files == sum(1 for _ in _entries(source))


def _entries(top: bytes) -> Iterator[bytes]:
    yield top
    for folder, names, files in os.walk(top):
        yield from (os.path.join(folder, name) for name in [*names, *files])


def test_a_file_goes_in_and_out_by_the_command(box: Box, here: Path) -> None:
    (here / "file").write_text("data")
    (here / "file").chmod(0o640)
    answer = copied(box, str(here / "file"), f"{box.id}:new")
    assert answer == {"path": "/workspace/new", "files": 1, "size_bytes": 4}
    assert box.sh("cat new; stat -c %a new") == b"data640\n"
    answer = copied(box, f"{box.id}:/workspace/new", "back", cwd=here)
    assert answer == {"path": "back", "files": 1, "size_bytes": 4}
    assert (here / "back").read_text() == "data"


def test_piped_it_says_nothing(box: Box, here: Path) -> None:
    for words in ((f"{box.id}:hello", str(here)), (str(here / "hello"), f"{box.id}:")):
        done = cp(box, *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_where_a_copy_goes_here(box: Box, here: Path) -> None:
    box.sh("mkdir -p tree/sub; echo inner >tree/sub/inner; ln -s hello link")
    (here / "there").mkdir()
    (here / "tothere").symlink_to("there")
    for source, target, made in (
        ("hello", "new", "new"), ("hello", "there", "there/hello"), ("hello", "there/", "there/hello"),
        ("hello", "tothere", "there/hello"), ("tree", "copy", "copy/sub/inner"),
        ("tree", "there", "there/tree/sub/inner"), ("tree/.", "there", "there/sub/inner"),
        ("tree/", "more/", "more/sub/inner"), ("link", "link", "link"),
        ("tree/.", "fresh", "fresh/sub/inner"),
    ):  # fmt: skip
        copied(box, f"{box.id}:{source}", str(here / target) if not target.endswith("/") else f"{here}/{target}")
        assert (here / made).is_symlink() or (here / made).read_text() in ("hello\n", "inner\n"), (source, target)
    assert (here / "link").readlink() == Path("hello")


@pytest.mark.parametrize(("source", "target", "code"), [
    ("B:nowhere", "x", "not_found"), ("B:hello", "no/where", "not_found"), ("B:hello", "missing/", "not_found"),
    ("nowhere", "B:x", "not_found"), ("file", "B:no/where", "not_found"), ("file/", "B:x", "not_found"),
    ("file", "B:/usr/x", "permission_denied"), ("B:hello", "file/x", "not_found"), ("B:hello", "/proc/x", "not_found"),
])  # fmt: skip
def test_what_cannot_be_copied_is_told_in_a_sentence(box: Box, here: Path, source: str, target: str, code: str) -> None:
    (here / "file").write_text("here")
    words = [word.replace("B:", f"{box.id}:") for word in (source, target)]
    done = cp(box, *words, "--json", cwd=here)
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["code"] == code, error
    assert os.listdir(here) == ["file"]


def test_a_copy_into_what_is_copied_ends(box: Box) -> None:
    box.sh("mkdir -p tree/sub; echo data >tree/file")
    assert copied(box, f"{box.id}:tree/.", f"{box.id}:tree/sub/copy")["files"] == 3
    assert box.sh("cd tree; find | sort") == b".\n./file\n./sub\n./sub/copy\n./sub/copy/file\n./sub/copy/sub\n"


def test_patterns_leave_out_what_a_dockerignore_would(box: Box, here: Path) -> None:
    """And a sandbox can be named in any way."""
    for name in ("a.py", "a.pyc", "build/x", "build/keep/y", "sub/build/z", "line\nend", "blank ", "keep me", ".git/c"):
        (here / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "tree" / name).touch()
    patterns = ["*.pyc", "/build", "!build/keep", "line?end", "blank*"]
    expected = ["./a.py", "./build/keep/y", "./keep me", "./sub/build/z"]
    handle = box.client.sandboxes.get(box.id)
    for sandbox, source, where in ((handle, "tree", "tree"), (box.id[:-4], "tree/.", "merged")):
        transfer.copy_in(box.client, f"{here}/{source}", sandbox, where, exclude=[".git"], patterns=patterns)
        assert box.sh(f"cd {where}; find . -type f | sort").decode().splitlines() == expected
    words = [word for pattern in [*patterns, ".git"] for word in ("--ignore", pattern)]
    copied(box, f"{here}/tree", f"{box.id}:typed", *words)
    assert box.sh("cd typed; find . -type f | sort").decode().splitlines() == expected
    with pytest.raises(CallerError, match="patterns: line 1"):
        transfer.copy_in(box.client, here / "tree", handle, "never", patterns=["[a"])


def test_patterns_apply_beyond_a_directory_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "closed", "m", "z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret").touch()
    (tmp_path / "closed").chmod(0)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # a user who may not enter what is above it can read it from here

    def walk() -> list[bytes]:
        return sorted(ignore.unwanted(ignore.patterns("**/secret"), "."))

    assert (as_user(NOBODY, walk) if os.geteuid() == 0 else walk()) == [b"a/secret", b"m/secret", b"z/secret"]


def test_nothing_is_copied_if_patterns_cannot_be_applied(box: Box, here: Path) -> None:
    """The paths of a tree are too long to be looked at, but not for `tar`."""
    (here / "tree").mkdir()
    with ExitStack() as opened:
        at = os.open(here / "tree", os.O_RDONLY)
        opened.callback(os.close, at)
        for _ in range(18):
            os.mkdir("d" * 250, dir_fd=at)
            at = os.open("d" * 250, os.O_RDONLY, dir_fd=at)
            opened.callback(os.close, at)
        os.close(os.open("secret", os.O_CREAT | os.O_WRONLY, dir_fd=at))

    def copy() -> object:
        return transfer.copy_in(box.client, here / "tree", box.id, "new", patterns=["**/secret"])

    error = refused("provider_unavailable", copy)
    assert "nothing was copied" in error.message
    assert box.sh("ls -A") == b"bin\nhello\n"


def test_a_wrong_line_is_a_usage_error(box: Box) -> None:
    assert cp(box, f"{box.id}:x", ".", "--ignore", "y").returncode == 2
    for words in (("a", "b"), ("", f"{box.id}:x"), (f"{box.id}:x", "")):
        assert cp(box, *words).returncode == 2
    assert parse_location("sbx_1:path") == ("sbx_1", "path")
    assert parse_location("sbx_1:") == ("sbx_1", ".")
    assert parse_location("./with:colon") is None
    assert parse_location("/abs:x") is None


def test_an_archive_through_stdin_and_stdout(box: Box, here: Path) -> None:
    tree = archive(("tree", None), ("tree/file", b"data"), ("another", b"more"))
    assert copied(box, "-", f"{box.id}:made", input=tree)["files"] == 4
    done = cp(box, f"{box.id}:made", "-")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        assert sorted(tar.getnames()) == ["./made", "./made/another", "./made/tree", "./made/tree/file"]
    assert cp(box, "-", f"{box.id}:other", input=tree[:1100]).returncode == 1
    assert b"other" not in box.sh("ls")


def test_an_archive_on_stdout_shows_no_progress(box: Box) -> None:
    """Whatever reads it may write to the same terminal. Here nobody reads it, until it would have been shown."""
    box.sh("head -c 1000000 /dev/zero >large")
    screen, terminal = os.openpty()
    argv = [*box.daemon.command, "cp", f"{box.id}:large", "-"]
    env = {**box.daemon.env, "TERM": "xterm"}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=terminal) as command:
        os.close(terminal)
        assert command.stdout is not None
        assert command.stdout.read(1)
        assert select.select([screen], [], [], 3 * PATIENCE_S)[0] == []
        assert len(command.stdout.read()) > 1_000_000
    os.close(screen)
    assert command.returncode == 0


def test_from_one_sandbox_to_another(shared_daemon: Any, box: Box, image: str) -> None:
    box.sh("mkdir -p tree/empty; echo data >tree/file; truncate -s 3M tree/holes")
    with new_box(shared_daemon, image) as other:
        copied(box, f"{box.id}:tree", f"{other.id}:copy")
        copied(box, f"{box.id}:tree/.", f"{other.id}:.")
        assert (
            other.sh("cd copy; cat file; ls; stat -c %b holes; cat ../file") == b"data\nempty\nfile\nholes\n0\ndata\n"
        )
        assert cp(box, f"{box.id}:nowhere", f"{other.id}:x").returncode == 1
        until(other.is_tidy)


def test_trees_are_merged_here_and_a_conflict_changes_nothing(box: Box, here: Path) -> None:
    box.sh("mkdir -p tree/sub tree/new; echo new >tree/file; echo more >tree/sub/more")
    (here / "tree" / "sub").mkdir(parents=True)
    (here / "tree").chmod(0o700)
    (here / "tree" / "file").write_text("old")
    os.link(here / "tree" / "file", here / "other")
    (here / "tree" / "sub" / "kept").write_text("kept")
    copied(box, f"{box.id}:tree", str(here))
    assert sorted(os.listdir(here / "tree")) == ["file", "new", "sub"]
    assert sorted(os.listdir(here / "tree" / "sub")) == ["kept", "more"]
    assert ((here / "tree" / "file").read_text(), (here / "other").read_text()) == ("new\n", "old")
    assert stat.S_IMODE((here / "tree").stat().st_mode) == 0o700
    for blocked in ("file", "new"):
        shutil.rmtree(here / "tree")
        (here / "tree" / "sub").mkdir(parents=True)
        if blocked == "file":
            (here / "tree" / "file").mkdir()
        else:
            (here / "tree" / "new").symlink_to("sub")
        done = cp(box, f"{box.id}:tree", str(here), "--json")
        assert json.loads(done.stdout)["error"]["code"] == "conflict"
        assert os.listdir(here / "tree" / "sub") == []
    (here / "hello").mkdir()
    assert json.loads(cp(box, f"{box.id}:hello", str(here), "--json").stdout)["error"]["code"] == "conflict"


def test_a_tree_that_cannot_be_read_is_not_copied_in_part(box: Box, here: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (here / "tree").mkdir()
    (here / "tree" / "closed").touch(mode=0)
    done = cp(box, str(here / "tree"), f"{box.id}:", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "permission_denied"
    assert b"tree" not in box.sh("ls")


# -- archives that are attacks ----------------------------------------------------------------------------------------


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644, **more: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = kind, link, mode, 1_000_000
    for field, value in more.items():
        setattr(info, field, value)
    return info


DIRECTORY, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
WRITE = {"size": 4}


def attacks(outside: str) -> dict[str, list[tarfile.TarInfo]]:
    """Archives by what they try. `outside` is a directory that they must not reach; it holds a file `secret`."""
    top = member("t", DIRECTORY, mode=0o755)
    up = "../" * 12
    return {
        "a path that goes up": [top, member("t/../../../escape", **WRITE), member("../escape", **WRITE)],
        "an absolute path": [top, member(f"{outside}/escape", **WRITE)],
        "through a link": [top, member("t/l", LINK, outside), member("t/l/escape", **WRITE)],
        "through a relative link": [top, member("t/l", LINK, up + outside[1:]), member("t/l/escape", **WRITE)],
        "through a link at the top": [member("t", LINK, outside), member("t/escape", **WRITE)],
        "through two links": [
            top, member("t/a", LINK, "b"), member("t/b", LINK, outside), member("t/a/escape", **WRITE),
        ],
        "through the parent": [
            top, member("t/up", LINK, ".."), member("t/up/up2", LINK, ".."), member("t/up2/escape", **WRITE),
        ],
        "a directory that becomes a link": [
            top, member("t/d", DIRECTORY), member("t/d", LINK, outside), member("t/d/escape", **WRITE),
        ],
        "a file that becomes a link": [top, member("t/secret", LINK, f"{outside}/secret"), member("t/secret", **WRITE)],
        "a hard link to outside": [top, member("t/h", HARD, f"{outside}/secret"), member("t/h", **WRITE)],
        "a hard link that goes up": [top, member("t/h", HARD, up + outside[1:] + "/secret"), member("t/h", **WRITE)],
        "a hard link through a link": [
            top, member("t/l", LINK, outside), member("t/h", HARD, "t/l/secret"), member("t/h", **WRITE),
        ],
        "a mode through a link": [top, member("t/l", LINK, outside), member("t/l", DIRECTORY, mode=0o777)],
        "set-uid": [top, member("t/s", mode=0o6755, uid=0, gid=0, **WRITE), member("t/g", DIRECTORY, mode=0o2777)],
        "owners": [top, member("t/o", uid=4321, gid=4321, uname="daemon", **WRITE)],
        "devices": [top, member("t/null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666)],
        "a disk": [top, member("t/disk", tarfile.BLKTYPE, devmajor=254, devminor=0, mode=0o666)],
        "a whiteout": [top, member("t/white", tarfile.CHRTYPE, devmajor=0, devminor=0)],
        "more than one": [top, member("u", **WRITE)],
        "a file of exabytes": [top, member("t/huge", size=2**59)],
        "a long name that is absolute": [top, member(f"{outside}/{'long/' * 60}escape", **WRITE)],
        "a pax path that is absolute": [top, member("t/x", pax_headers={"path": f"{outside}/escape"}, **WRITE)],
        "a pax path that goes up": [top, member("t/x", pax_headers={"path": f"t/{up}{outside[1:]}/escape"}, **WRITE)],
        "a pax link to outside": [
            top, member("t/h", HARD, "t/x", pax_headers={"linkpath": f"{outside}/secret"}), member("t/h", **WRITE),
        ],
        "a sparse name that is absolute": [
            top, member("t/x", pax_headers={
                "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": f"{outside}/escape",
                "GNU.sparse.size": "4", "GNU.sparse.map": "0,4",
            }, **WRITE),
        ],
        "a sparse map beyond all": [
            top, member("t/x", pax_headers={
                "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(2**63 - 1),
                "GNU.sparse.map": f"0,1,{2**63 - 9},8", "GNU.sparse.numblocks": "2",
            }, **WRITE),
        ],
        "attributes": [
            top, member("t/x", pax_headers={
                "SCHILY.xattr.security.capability": "x", "SCHILY.acl.access": "user::rwx", "RHT.security.selinux": "x",
            }, **WRITE),
        ],
        "a volume and a rest of another": [
            member("t", b"V"), top, member("t/x", b"M", **WRITE), member("../escape", b"M", **WRITE),
        ],
        "directories that are renamed": [top, member("t/d", b"D", size=4), member(f"{outside}/d", b"D", size=4)],
        "types that nobody knows": [top, member("t/x", b"Z", **WRITE), member(f"{outside}/escape", b"Z", **WRITE)],
        "names that are options": [
            member("--checkpoint-action=exec=touch escape", **WRITE), member("-I sh", DIRECTORY), top,
        ],
    }  # fmt: skip


@pytest.fixture(params=sorted(attacks("/")))
def attack(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def hostile(box: Box, data: bytes, and_then: str = "exit 0") -> None:
    """Have the sandbox's tar write these bytes, whatever it is asked for."""
    box.write("evil.tar", data)
    box.write("evil", f"case $1 in --version) echo 'GNU tar';; *) cat /workspace/evil.tar; {and_then};; esac".encode())


def test_an_archive_of_an_attacker_reaches_nothing(box: Box, here: Path, tmp_path: Path, attack: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "secret").write_text("secret")
    (outside / "secret").chmod(0o604)
    before = snapshot(os.fsencode(outside)), os.listdir(tmp_path)
    hostile(box, archive(*attacks(str(outside))[attack], contents=b"EVIL"))
    box.sh("mkdir -p t")
    told = []
    for source in ("t", "t/."):
        try:
            transfer.copy_out(box.client, box.id, source, here / "target")
        except SandkeepError as error:
            told.append(error.message)
    assert all("the sandbox's archive" in words or "the archive has" in words for words in told), "it did not arrive"
    assert (snapshot(os.fsencode(outside)), os.listdir(tmp_path)) == before
    assert set(os.listdir(here)) <= {"target"}
    for folder, names, files in os.walk(here):
        for name in [*names, *files]:
            info = os.lstat(os.path.join(folder, name))
            assert info.st_mode & 0o6000 == 0
            assert stat.S_IFMT(info.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
            assert (info.st_uid, info.st_gid) == (os.geteuid(), os.getegid())


@pytest.mark.parametrize("attempt", [
    "echo x >{outside}/new", "echo x >>{outside}/secret", "rm {outside}/secret", "mkdir {outside}/new",
    "ln -s x {outside}/new", "mv {inside}/file {outside}/new", "ln {inside}/file {outside}/new",
    "ln -s {outside} {inside}/l && echo x >{inside}/l/new", "mknod {inside}/null c 1 3", "mknod {inside}/white c 0 0",
    "ln {outside}/secret {inside}/hard && echo x >{inside}/hard",
])  # fmt: skip
def test_what_unpacks_can_write_in_one_place_only(here: Path, tmp_path: Path, attempt: str) -> None:
    """Beside tar's own care, the kernel's: whatever tar could be brought to do."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (here / "file").touch()
    script = attempt.format(outside=outside, inside=here)
    with open(os.devnull, "r+b") as nothing:
        program = confined.start(["sh", "-c", script], os.fsencode(here), stdin=nothing, stdout=nothing, stderr=nothing)
    assert program.wait() != 0
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert "white" not in os.listdir(here)


def test_what_unpacks_has_no_capabilities_and_its_starter_keeps_his(here: Path) -> None:
    def status() -> str:
        return Path("/proc/thread-self/status").read_text()

    before = status()
    with open(os.devnull, "r+b") as nothing, tempfile.TemporaryFile() as out:
        program = confined.start(
            ["sh", "-c", "grep -E 'Cap(Eff|Prm|Bnd)|NoNew' /proc/self/status; echo x >in"], os.fsencode(here),
            stdin=nothing, stdout=out, stderr=nothing, cwd=here,
        )  # fmt: skip
        assert program.wait() == 0
        out.seek(0)
        values = dict(line.split(":\t") for line in out.read().decode().splitlines())
    assert int(values["CapEff"], 16) == int(values["CapPrm"], 16) == 0
    assert values["NoNewPrivs"] == "1"
    same = [line for line in before.splitlines() if line.startswith(("Cap", "NoNew"))]
    assert same == [line for line in status().splitlines() if line.startswith(("Cap", "NoNew"))]


def test_an_archive_that_looks_whole_is_not_believed(box: Box, here: Path) -> None:
    """The sandbox's tar ends its archive well, and fails."""
    hostile(box, archive(("t", None), ("t/file", b"half of it")), "echo 'tar: t/other: Permission denied' >&2; exit 2")
    error = refused("permission_denied", transfer.copy_out, box.client, box.id, "hello", here / "target")
    assert "t/other" in error.message
    assert os.listdir(here) == []


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.fspath(path))


def test_a_tree_of_any_depth_is_copied_or_refused(box: Box, here: Path) -> None:
    box.sh("mkdir -p $(printf 'd/%.0s' $(seq 512)) $(printf 'e/%.0s' $(seq 600))")
    assert transfer.copy_out(box.client, box.id, "d", here).files == 512
    assert "too deeply" in refused("invalid", transfer.copy_out, box.client, box.id, "d", here).message
    refused("tree_too_deep", transfer.copy_out, box.client, box.id, "e", here)
    assert os.listdir(here) == ["d"]


def test_a_device_is_not_copied_and_a_read_only_place_is_named(box: Box, here: Path) -> None:
    done = cp(box, f"{box.id}:/dev/zero", str(here / "zero"))
    why = "it is a device or a socket, and only files, directories, links and FIFOs are copied [invalid]"
    assert (done.returncode, done.stderr.decode()) == (1, f"sandkeep: '/dev/zero': {why}\n")
    done = cp(box, str(here), f"{box.id}:/usr/here")
    assert done.stderr.decode() == "sandkeep: '/usr/here': the file system there is read-only [permission_denied]\n"


@pytest.mark.parametrize("make", [os.mkfifo, bind])
def test_what_leads_to_something_is_not_replaced(box: Box, here: Path, make: Callable[[Path], None]) -> None:
    """As root, a copy to a device would be the end of it for the whole machine."""
    box.sh("mkdir tree; echo data >tree/special")
    for source, target in (("hello", "special"), ("tree/.", "."), ("tree/special", ".")):
        with suppress(FileNotFoundError):
            (here / "special").unlink()
        make(here / "special")
        refused("conflict", transfer.copy_out, box.client, box.id, source, here / target)
        assert not (here / "special").is_file()
    assert os.listdir(here) == ["special"]


def test_a_fifo_replaces_a_fifo(box: Box, here: Path) -> None:
    box.sh("mkdir tree; mkfifo tree/fifo")
    for _ in range(2):
        transfer.copy_out(box.client, box.id, "tree/.", here)
        transfer.copy_in(box.client, here, box.id, "back")
    assert (here / "fifo").is_fifo()
    assert box.sh("cd back/here; [ -p fifo ] && ls") == b"fifo\n"


def test_a_disk_that_is_full_inside_is_told(shared_daemon: Any, box: Box, image: str, here: Path) -> None:
    """Whoever writes here finds the pipe closed; why it is, the sandbox tells."""
    (here / "large").write_bytes(bytes(range(256)) * 10_000)
    with tarfile.open(here / "large.tar", "w") as tar:
        tar.add(here / "large", "large")
    transfer.copy_in(box.client, here / "large", box.id, "large")
    with new_box(shared_daemon, image, disk_bytes=1024**2) as small, open(here / "large.tar", "rb") as stream:
        for copy in (
            lambda: transfer.copy_in(box.client, here / "large", small.id, "new"),
            lambda: transfer.receive_archive(box.client, stream.fileno(), small.id, "new"),
            lambda: transfer.copy_across(box.client, box.id, "large", small.id, "new"),
        ):
            refused("disk_limit", copy)
        assert b"new" not in small.sh("ls")


def test_a_disk_that_is_full_here_is_told_and_nothing_is_left(box: Box, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        box.sh("mkdir tree; head -c 3000000 /dev/zero >tree/big")
        done = cp(box, f"{box.id}:tree", str(small), "--json")
        assert "no space left" in json.loads(done.stdout)["error"]["message"]
        until(lambda: os.listdir(small) == [])
    finally:
        disks.umount(str(small))


# -- programs that fail, here -----------------------------------------------------------------------------------------


@pytest.fixture
def killed_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that copy here say something that could be all of an archive, and are killed."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "half.tar").write_bytes(archive(("tree", None), ("tree/first", b"1"))[:1536])
    for name in ("tar", "cat"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/half.tar; kill -9 $$\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")


@pytest.mark.usefixtures("killed_in_the_middle")
def test_half_a_copy_does_not_count(box: Box, here: Path) -> None:
    (here / "file").touch()
    with open(here / "file", "rb") as nothing:
        for copy in (
            lambda: transfer.copy_in(box.client, here, box.id, "made"),
            lambda: transfer.receive_archive(box.client, nothing.fileno(), box.id, "made"),
            lambda: transfer.copy_across(box.client, box.id, "hello", box.id, "made"),
        ):
            refused("provider_unavailable", copy)
    assert b"made" not in box.sh("ls")


# -- kills ------------------------------------------------------------------------------------------------------------


@contextmanager
def running(box: Box, *words: str, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    program = subprocess.Popen(
        [*box.daemon.command, "cp", *words], env=box.daemon.env, stderr=subprocess.PIPE, **options
    )
    with program:
        try:
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_killed_while_it_copies_in_leaves_nothing(box: Box, number: int) -> None:
    with running(box, "-", f"{box.id}:tree", stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        program.stdin.write(archive(("file", bytes(100_000)))[:60_000])
        program.stdin.flush()
        until(box.staged)
        program.send_signal(number)
        program.wait()
    until(box.is_tidy)
    assert box.sh("ls") == b"bin\nhello\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_killed_while_it_copies_out_leaves_nothing(box: Box, here: Path, number: int) -> None:
    hostile(box, archive(("t", None), ("t/a", b"1"), ("t/b", bytes(300_000)))[:200_000], "sleep 1000")
    with running(box, f"{box.id}:hello", str(here)) as program:
        until(lambda: [name for _, _, names in os.walk(here) for name in names if name == "b"])
        program.send_signal(number)
        program.wait()
    until(box.is_tidy)
    until(lambda: os.listdir(here) == [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_command_can_be_ended_while_nobody_inside_reads(box: Box, here: Path, number: int) -> None:
    (here / "large").write_bytes(bytes(5_000_000))
    box.write("evil", b"case $1 in --version) echo GNU;; *) sleep 1000;; esac")
    with running(box, str(here), f"{box.id}:new") as program:
        until(box.staged)
        program.send_signal(number)
        program.wait()
    until(lambda: not traces.processes(str(here)))
    until(box.is_tidy)
    assert b"new" not in box.sh("ls")


def test_a_helper_that_does_not_hear_at_once_is_told_again(box: Box) -> None:
    """As when the signal comes while a shell starts a program: the program goes on, and the shell waits for it."""
    box.write("evil", b"case $1 in --version) echo GNU;; *) trap : TERM; sleep 1000; trap - TERM; sleep 1000;; esac")
    with box.copying_in():
        until(box.staged)
    until(box.is_tidy)


def test_a_sandbox_that_ends_ends_the_command(shared_daemon: Any, image: str, here: Path) -> None:
    (here / "large").write_bytes(bytes(5_000_000))
    for words in ((str(here), "BOX:new"), ("BOX:bin", f"{here}/out")):
        with new_box(shared_daemon, image, env={"PATH": "/workspace/bin:/usr/bin:/bin"}) as box:
            box.write("evil", b"case $1 in --version) echo GNU;; *) touch begun; sleep 1000;; esac")
            with running(box, *(word.replace("BOX", box.id) for word in words)) as program:
                until(lambda box=box: b"begun" in box.sh("find . -name begun"))
                box.client.sandbox.terminate(box.id)
                assert program.wait() == 1
                assert program.stderr is not None
                assert b"not_ready" in program.stderr.read()
    assert os.listdir(here) == ["large"]


def test_nothing_is_written_any_more_for_a_command_that_was_killed(shared_daemon: Any, image: str, here: Path) -> None:
    """The code inside holds the pipe open, and goes on to feed it. It waits for it before anything else goes on."""
    feed = """
    until [ -p "$f" ]; do for f in /run/sandkeep/in/hlp_*.data; do :; done; done
    exec 9<>"$f"; touch fed; until [ -e go ]; do sleep 0.01; done; exec head -c 300G /dev/zero >&9
    """
    wait = "printf '%s\\n' '#!/bin/sh' 'until [ -e /workspace/fed ]; do sleep 0.01; done; exec /bin/sh \"$@\"'"
    endless = archive(("t", None), member("t/endless", size=2**40), contents=bytes(1024))
    with new_box(shared_daemon, image, env={"PATH": "/workspace/bin:/usr/bin:/bin"}) as box:
        hostile(box, endless, "touch /workspace/go; sleep 1000")
        until(box.is_tidy)  # the feeder takes the first pipe that it finds
        box.sh(f"{wait} >bin/wait; chmod +x bin/wait; mv bin/wait bin/sh")
        box.client.process.launch(box.id, ["/bin/sh", "-c", feed], name="feeder")
        with running(box, f"{box.id}:hello", str(here / "target")) as program:
            until(lambda: [name for _, _, names in os.walk(here) for name in names])
            program.kill()
            program.wait()
        until(lambda: not traces.processes(str(here)))
        until(lambda: os.listdir(here) == [])


def test_a_daemon_that_is_killed_ends_the_command_and_leaves_nothing(
    new_daemon: Callable[[], Any], tmp_path: Path, here: Path
) -> None:
    daemon = new_daemon()
    daemon.start()
    daemon.env["SANDKEEP_PATIENCE"] = "0.2"
    (tmp_path / "image").mkdir()
    with daemon.connect() as client:
        image = client.image.create(str(tmp_path / "image")).image_id
        box = Box(daemon, client, client.sandbox.create(image, env={"PATH": "/workspace/bin:/usr/bin:/bin"}).sandbox_id)
        box.sh("mkdir bin; printf '%s\\n' '#!/bin/sh' '. /workspace/evil' >bin/tar; chmod +x bin/tar")
        hostile(box, archive(("t", None), ("t/b", bytes(300_000)))[:200_000], "sleep 1000")
        with running(box, f"{box.id}:bin", str(here)) as program:
            until(lambda: [name for _, _, names in os.walk(here) for name in names if name == "b"])
            daemon.kill()
            assert program.wait(patient(60)) == 1
            assert program.stderr is not None
            assert b"not_ready" in program.stderr.read()
        assert os.listdir(here) == []
    daemon.start()
    with daemon.connect() as client:
        until(Box(daemon, client, box.id).is_tidy)


# -- once more, as an ordinary user -----------------------------------------------------------------------------------


@pytest.mark.needs("root")
@pytest.mark.skipif(os.geteuid() != 0, reason="this is the run as an ordinary user")
def test_the_same_with_a_users_own_daemon() -> None:
    uid = 30_125
    these = "every_tree or cannot_be_read or capabilities or place_only or (attacker and (link or device or uid))"
    with tempfile.TemporaryDirectory(prefix="sandkeep-user-") as base:
        os.chown(base, uid, uid)
        suite = [
            sys.executable, "-B", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--basetemp",
            f"{base}/tmp", "-k", these, __file__,
        ]  # fmt: skip
        done = subprocess.run(
            command_as(uid, suite), cwd=Path(__file__).parents[3], env={**os.environ, "HOME": base},
            capture_output=True, text=True, check=False, timeout=ONCE_MORE_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
