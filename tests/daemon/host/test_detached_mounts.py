"""Detached mounts: what is opened below one can be read, or written, and nothing else."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sandkeep.system.openat2 import open_beneath
from sandkeepd.host import mounts

pytestmark = pytest.mark.needs("root")

READ_ONLY = mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
WRITABLE = READ_ONLY & ~mounts.MS_RDONLY
STRANGER = 54_321


def _open_tree(place: Path, flags: int) -> int:
    directory = os.open(place, os.O_PATH | os.O_DIRECTORY)
    try:
        return mounts.detached(directory, flags)
    finally:
        os.close(directory)


def _planted(place: Path) -> int:
    """A program that everybody may run, with its owner's rights, and write to; opened below a read-only clone."""
    program = place / "journal"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o6777)
    tree = _open_tree(place, READ_ONLY)
    try:
        return open_beneath(tree, "journal", os.O_RDONLY)
    finally:
        os.close(tree)


TRIES = """
import os, sys
fd, what, uid = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)  # here and not before: the interpreter may lie where others may not look
try:
    if what == "run": os.execv(f"/proc/self/fd/{fd}", ["true"])
    elif what == "write": os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    elif what == "chmod": os.fchmod(fd, 0o755)
    elif what == "read": os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
except OSError as error:
    sys.exit(error.errno)
sys.exit(0)
"""


def _try(fd: int, what: str, uid: int) -> int:
    return subprocess.run([sys.executable, "-c", TRIES, str(fd), what, str(uid)], pass_fds=[fd]).returncode


@pytest.mark.parametrize(("what", "number"), [("run", 13), ("write", 30), ("chmod", 30), ("read", 0)])
@pytest.mark.parametrize("uid", [0, STRANGER])
def test_who_is_handed_a_descriptor_can_read_and_nothing_else(tmp_path: Path, what: str, number: int, uid: int) -> None:
    fd = _planted(tmp_path)
    try:
        assert _try(fd, what, uid) == number
    finally:
        os.close(fd)


def test_the_same_without_a_mount_would_run(tmp_path: Path) -> None:
    """That the file is fit for what the others refuse: else they could not fail."""
    os.close(_planted(tmp_path))
    plain = os.open(tmp_path / "journal", os.O_RDONLY)
    for what in ("run", "write", "chmod"):
        assert _try(plain, what, STRANGER if what != "chmod" else 0) == 0
    os.close(plain)


def test_a_writable_clone_is_the_same_directory(tmp_path: Path) -> None:
    tree = _open_tree(tmp_path, WRITABLE)
    os.close(open_beneath(tree, "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.close(tree)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_nothing_leads_out(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside").mkdir()
    for name, target in (("link", "../outside"), ("absolute", "/etc"), ("magic", "/proc/self/root")):
        (tmp_path / "inside" / name).symlink_to(target)
    directory = os.open(tmp_path / "inside", os.O_PATH | os.O_DIRECTORY)
    for path in ("link", "absolute", "magic", "link/file", "../outside", "/etc/passwd", "./../inside"):
        with pytest.raises(OSError) as refused:
            open_beneath(directory, path, os.O_RDONLY)
        assert refused.value.strerror in ("Too many levels of symbolic links", "Invalid cross-device link"), path
    os.close(directory)
