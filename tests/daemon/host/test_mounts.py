"""Files that appear as another user's, by the real kernel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandkeepd.host import mounts
from sandkeepd.host.processes import in_fresh_thread
from sandkeepd.providers.local import probe

pytestmark = pytest.mark.needs("root")

OWNER = 70_000


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory of `OWNER`'s, and places to show it at."""
    (tmp_path / "files").mkdir()
    os.chown(tmp_path / "files", OWNER, OWNER)
    for number in range(2):
        (tmp_path / f"shown-{number}").mkdir()
    return tmp_path


def seen_as(files: Path, *users: int, again: bool = True) -> list[int]:
    """Whose the directory is for who mounts it for these users, one after the other."""

    def work() -> list[int]:
        mounts.enter_private_namespace()
        found = []
        for user in users:
            places = [str(files / f"shown-{number}") for number in range(2)]
            mounts.bind_mapped([(str(files / "files"), place, OWNER) for place in places], user, again=again)
            found += [os.stat(place).st_uid for place in places]
            for place in places:
                mounts.unmount(place)
        return found

    return in_fresh_thread(work)


@pytest.mark.parametrize("again", [False, True])
def test_each_sees_files_as_its_own(files: Path, again: bool) -> None:
    users = [1000, 2000, 1000, *range(3000, 3000 + 2 * mounts.MAX_CACHED_NAMESPACES), 1000]
    assert seen_as(files, *users, again=again) == [user for user in users for _ in range(2)]


def test_what_is_kept_for_the_next_is_bounded(files: Path) -> None:
    seen_as(files, *range(3000, 3000 + mounts.MAX_CACHED_NAMESPACES))
    before = len(os.listdir("/proc/self/fd"))
    seen_as(files, *range(4000, 4000 + 2 * mounts.MAX_CACHED_NAMESPACES))
    seen_as(files, 5000, 5001, again=False)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_files_of_several_users_are_shown_at_once(files: Path) -> None:
    (files / "others").mkdir()
    os.chown(files / "others", OWNER + 1, OWNER + 1)

    def work() -> list[int]:
        mounts.enter_private_namespace()
        sources = [(files / "files", OWNER), (files / "others", OWNER + 1)]
        binds = [(str(path), str(files / f"shown-{number}"), owner) for number, (path, owner) in enumerate(sources)]
        mounts.bind_mapped(binds, 1000)
        return [os.stat(place).st_uid for _, place, _ in binds]

    assert in_fresh_thread(work) == [1000, 1000]


@pytest.mark.needs("root")
def test_looking_at_what_works_leaves_no_descriptor(tmp_path: Path) -> None:
    """It would keep a mount namespace, and what is mounted there."""
    probe.probe(str(tmp_path), 300_000, True)  # the first opens what is kept for the next
    before = os.listdir("/proc/self/fd")
    probe.probe(str(tmp_path), 300_000, True)
    assert os.listdir("/proc/self/fd") == before


LEAVING = """
from sandkeepd.host import mounts
mounts.enter_private_namespace()
with open("/proc/thread-self/mountinfo") as file:
    mounts.leave_all()
    print(*(line.split()[4] for line in file))
"""


@pytest.mark.parametrize("enter", [[], ["unshare", "--user", "--map-root-user", "--mount", "--"]])
def test_all_is_left_also_in_a_user_namespace(enter: list[str]) -> None:
    """There the root directory is locked, as for a daemon in a rootless container."""
    done = subprocess.run([*enter, sys.executable, "-c", LEAVING], capture_output=True, text=True, check=True)
    assert done.stdout.split() in ([], ["/"])  # one filesystem at most, in memory
