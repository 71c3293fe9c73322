"""The daemon's own mount namespace: mounts of the host go on to appear in it, and its own stay out of the host's."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.patience import patient

pytestmark = pytest.mark.needs("root")

LATER = """
import os, subprocess, sys
from sandkeepd.host import mounts
later, own = sys.argv[1:]
begin, begun = os.pipe()
go, gone = os.pipe()
child = os.fork()
if not child:
    mounts.leave_host_namespace()
    mounts.mount("own", own, "tmpfs", 0)
    os.write(begun, b"x")
    os.read(go, 1)
    assert os.listdir(later) == ["file"], os.listdir(later)
    os.write(begun, b"x")
    os.read(go, 1)
    assert not os.listdir(later)
    os._exit(0)
os.close(begun)
os.read(begin, 1)
mounts.mount("later", later, "tmpfs", 0)
open(f"{later}/file", "w").close()
os.write(gone, b"x")
os.read(begin, 1)
subprocess.run(["umount", later], check=True)
os.write(gone, b"x")
assert os.waitpid(child, 0)[1] == 0
assert mounts.below(own) == []
"""

ELSEWHERE = """
import os, sys
from sandkeepd.host import mounts
os.chroot(sys.argv[1])
mounts.leave_host_namespace()
"""


@pytest.mark.parametrize("propagation", ["private", "shared", "slave"])
def test_later_mounts_of_the_host_are_seen(tmp_path: Path, propagation: str) -> None:
    """Else an image would be made of the empty directory beneath."""
    places = [tmp_path / "later", tmp_path / "own"]
    for place in places:
        place.mkdir()
    enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount --make-rshared /; exec "$@"', "sh"]
    if propagation != "shared":
        enter = ["unshare", "--mount", "--propagation", propagation]
    subprocess.run([*enter, sys.executable, "-c", LATER, *map(str, places)], check=True, timeout=patient(60))


def test_it_does_without_where_the_root_is_no_mount(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path)], check=True, timeout=patient(60))
