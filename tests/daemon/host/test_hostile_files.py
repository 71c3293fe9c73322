"""Files that hostile code owns: what is opened of them leads nowhere else, and can be read, or written, and no more."""

import errno
import fcntl
import gc
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.boxes import at_most
from tests.support.users import NOBODY, as_user

from sandkeepd.host.hostile_files import HostileRoot, HostileTree, NotAFileError, read_only


@pytest.fixture
def tree(tmp_path: Path) -> HostileTree:
    (tmp_path / "box" / "out").mkdir(parents=True)
    (tmp_path / "box" / "out" / "file").write_text("content")
    (tmp_path / "secret").write_text("secret")
    return HostileRoot(str(tmp_path)).tree("box")


def _refused(tree: HostileTree, path: str, flags: int = os.O_RDONLY) -> int:
    with pytest.raises(OSError) as refused:
        os.close(tree.open(path, flags))
    assert refused.value.errno is not None
    return refused.value.errno


def test_what_is_there_is_read_and_written(tree: HostileTree, tmp_path: Path) -> None:
    fd = tree.open_regular("out/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(fd, b"1")
    os.close(fd)
    with open(tree.open_regular("out/file")) as file:
        assert file.read() == "content"
    assert (tmp_path / "box" / "out" / "new").read_text() == "1"
    assert sorted(tree.names("out")) == sorted(tree.below("out").names()) == ["file", "new"]
    assert tree.exists("out/new")
    tree.unlink("out/new")
    assert not tree.exists("out/new")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "file", "/proc/self/root"])
def test_no_link_is_followed(tree: HostileTree, tmp_path: Path, target: str) -> None:
    (tmp_path / "box" / "out" / "link").symlink_to(target)
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_PATH | os.O_DIRECTORY):
        assert _refused(tree, "out/link", flags) in (errno.ELOOP, errno.ENOTDIR)
    assert stat.S_ISLNK(tree.stat("out/link").st_mode)
    tree.unlink("out/link")
    assert not os.path.lexists(tmp_path / "box" / "out" / "link")


def test_no_directory_that_became_a_link(tree: HostileTree, tmp_path: Path) -> None:
    (tmp_path / "box" / "out").rename(tmp_path / "box" / "before")
    (tmp_path / "box" / "out").symlink_to(tmp_path / "box" / "before")
    assert _refused(tree, "out/file") == _refused(tree.below("out"), "file") == errno.ELOOP
    for change in (lambda: tree.unlink("out/file"), lambda: tree.make_fifo("out/fifo", None)):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            change()
    assert os.listdir(tmp_path / "box" / "before") == ["file"]


def test_nothing_leads_out(tree: HostileTree) -> None:
    for path in ("../../secret", "/etc/passwd"):
        assert _refused(tree, path) in (errno.EXDEV, errno.ENOENT), path


def test_what_is_no_file_or_no_fifo(tree: HostileTree) -> None:
    tree.make_fifo("fifo", None)
    for path in ("fifo", "out"):
        with at_most(40), pytest.raises(NotAFileError):
            tree.open_regular(path)  # nobody has the other end, and it does not wait
    with pytest.raises((NotAFileError, OSError)):
        tree.open_fifo("out/file")
    os.close(tree.open_fifo("fifo"))


def test_a_lease_holds_nobody_up(tree: HostileTree, tmp_path: Path) -> None:
    """Whoever owns a file can have the kernel say for 45 s that it would block."""
    owner = os.open(tmp_path / "box" / "out" / "file", os.O_RDONLY)
    fcntl.fcntl(owner, fcntl.F_SETSIG, signal.SIGURG)  # which does nothing
    fcntl.fcntl(owner, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    try:
        with at_most(40), pytest.raises(BlockingIOError):
            tree.open_regular("out/file")
    finally:
        os.close(owner)
    os.close(tree.open_regular("out/file"))


@pytest.mark.needs("root")
def test_what_is_opened_for_reading_stays_so(tree: HostileTree, tmp_path: Path) -> None:
    (tmp_path / "box" / "out" / "file").chmod(0o6777)
    assert tree.is_confined
    fd, opened = tree.open_regular("out/file"), os.open("/proc/self/fd", os.O_PATH)
    for change in (
        lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR),
        lambda: os.fchmod(fd, 0o755),
        lambda: os.utime(fd),
        lambda: os.setxattr(fd, "user.x", b"y"),
        lambda: os.link(str(fd), tmp_path / "kept", src_dir_fd=opened),
    ):
        with pytest.raises(OSError) as refused:
            change()
        assert refused.value.errno in (errno.EROFS, errno.EXDEV)
    os.close(fd)
    os.close(opened)


@pytest.mark.needs("root")
def test_what_is_opened_for_writing_is_not_run_either(tree: HostileTree, tmp_path: Path) -> None:
    program = tmp_path / "box" / "out" / "program"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o6755)
    fd = tree.open_regular("out/program", os.O_WRONLY)
    with pytest.raises(PermissionError):
        subprocess.run([f"/proc/self/fd/{fd}"], pass_fds=[fd], check=False)
    os.close(fd)


@pytest.mark.needs("root")
def test_a_fifo_takes_what_is_written_and_keeps_its_mode(tree: HostileTree) -> None:
    tree.make_fifo("fifo", (NOBODY, NOBODY))
    fd = tree.open_fifo("fifo")
    assert os.write(fd, b"line") == 4
    with pytest.raises(OSError) as refused:
        os.fchmod(fd, 0o666)
    assert refused.value.errno == errno.EROFS
    assert (os.fstat(fd).st_uid, stat.S_IMODE(os.fstat(fd).st_mode)) == (NOBODY, 0o600)
    os.close(fd)


@pytest.mark.needs("root")
@pytest.mark.parametrize("flags", [os.O_CREAT, os.O_TMPFILE], ids=["named", "nameless"])
def test_a_file_of_the_daemons_is_read_by_others_and_no_more(tmp_path: Path, flags: int) -> None:
    """Whatever mode it has, as on a share that gives all the same."""
    original = os.open(tmp_path / "archive" if flags == os.O_CREAT else tmp_path, os.O_RDWR | flags)
    os.fchmod(original, 0o6777)
    os.write(original, Path("/bin/true").read_bytes())
    given = read_only(original)
    assert os.pread(given, 4, 0) == b"\x7fELF"
    for attempt in (
        lambda: os.write(given, b"x"),
        lambda: os.open(f"/proc/self/fd/{given}", os.O_RDWR),
        lambda: os.fchmod(given, 0o755),
    ):
        with pytest.raises(OSError, match=r"Read-only|Bad file"):
            attempt()
    os.close(original)
    with pytest.raises(PermissionError):
        subprocess.run([f"/proc/self/fd/{given}"], pass_fds=[given], check=False)
    os.close(given)


@pytest.mark.needs("root")
def test_a_mount_that_is_made_later(tree: HostileTree, tmp_path: Path) -> None:
    """Who has a tree goes on in it; who asks anew gets what is there now."""
    root = HostileRoot(str(tmp_path))
    before = root.tree("box")
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)
    try:
        assert before.names("out") == ["file"]
        (tmp_path / "box").mkdir()
        (tmp_path / "box" / "other").write_text("new")
        after = root.tree("box")
        assert after.names() == ["other"]
        (tmp_path / "box" / "other").chmod(0o6777)
        fd = after.open_regular("other")
        with pytest.raises(OSError, match="Read-only"):
            os.fchmod(fd, 0o755)
        os.close(fd)
        del after, root
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
    assert before.names("out") == ["file"]


def test_a_root_that_is_not_there_yet(tmp_path: Path) -> None:
    root = HostileRoot(str(tmp_path / "later"))
    with pytest.raises(FileNotFoundError):
        root.tree().open("file", os.O_RDONLY)
    assert not root.tree("box").exists(".")
    (tmp_path / "later").mkdir()
    tree = root.tree("box")
    assert not tree.exists(".")
    (tmp_path / "later" / "box").mkdir()
    assert tree.exists(".")


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """Nothing that earlier tests left is collected meanwhile, with the descriptors that it has."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage")
def test_descriptors_go_with_the_last_tree(tmp_path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    root = HostileRoot(str(tmp_path))
    tree = root.tree("box").below("out")
    assert count() == before + 2
    del root
    assert count() == before + 2
    del tree
    assert count() == before


@pytest.mark.needs("root")
def test_who_is_not_root_makes_no_mounts_and_follows_no_link(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_mode & 0o005 != 0o005 and path.name:
            path.chmod(path.stat().st_mode | 0o005)
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")

    def look() -> tuple[bool, int, int]:
        tree = HostileRoot(str(tmp_path)).tree()
        return tree.is_confined, os.fstat(tree.open_regular("file")).st_size, _refused(tree, "link")

    assert as_user(NOBODY, look) == (False, 7, errno.ELOOP)


@pytest.mark.needs("root")
def test_root_without_the_right_to_mount_hands_out_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    look = (
        "import sys; from sandkeepd.host.hostile_files import HostileRoot; tree = HostileRoot(sys.argv[1]).tree();"
        "print(open(tree.open_regular('file')).read(), tree.is_confined)"
    )
    argv = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", look, str(tmp_path)]
    assert subprocess.run(argv, capture_output=True, check=True).stdout == b"content False\n"
