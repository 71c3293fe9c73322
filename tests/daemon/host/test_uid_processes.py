"""All processes of one uid are found and ended, whatever they do, and nobody else's."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.expect import until

from sandkeepd.host import processes
from sandkeepd.host.cgroups import freezer, placement
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.cgroups.groups import Hierarchies, Limits
from sandkeepd.host.uids import processes as uid_processes

pytestmark = pytest.mark.needs("root")

ENEMY, NEIGHBOUR, ALONE = (million * 1_000_000 + os.getpid() for million in (1899, 1898, 1897))
"""Outside of every range of sandboxes, and another for each run of the tests."""


BECOME = """
import ctypes, os, signal, threading, time
os.chdir("/")
os.setgroups([])
os.setresgid({uid}, {uid}, {uid})
os.setresuid({uid}, {uid}, {uid})
"""


@pytest.fixture
def begin() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts Python code as a user; it is begun when it has written a line."""
    begun: list[subprocess.Popen[bytes]] = []

    def make(code: str, uid: int = ENEMY) -> "subprocess.Popen[bytes]":
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BECOME.format(uid=uid) + code],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        begun.append(child)
        assert child.stdout is not None
        assert child.stdout.readline()
        return child

    yield make
    for child in begun:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    for uid in (ENEMY, NEIGHBOUR, ALONE):
        uid_processes.kill_all_of(uid)


READY = "os.write(1, b'.\\n')\n"
STAY = f"{READY}time.sleep(1000)"

ENEMIES = {
    "stays": STAY,
    "a daemon": f"os.fork() and os._exit(0)\nos.setsid()\nos.fork() and os._exit(0)\n{STAY}",
    "ignores all": f"[signal.signal(n, signal.SIG_IGN) for n in range(1, 32) if n not in (9, 19)]\n{STAY}",
    "stopped": f"{READY}os.kill(os.getpid(), signal.SIGSTOP)",
    "a tree": f"for _ in range(6): os.fork()\n{STAY}",
    "forks for ever": f"{READY}\nwhile True:\n    if os.fork(): time.sleep(0.0005); os._exit(0)",
    "kills all others": (
        f"{READY}\nwhile True:\n    try: os.kill(-1, 9)\n    except ProcessLookupError: pass"
    ),
    "stops all others": (
        f"{READY}\nwhile True:\n    try: os.kill(-1, signal.SIGSTOP)\n    except ProcessLookupError: pass"
    ),
    "another namespace": (
        f"{READY}os.execvp('unshare', ['unshare', '-Ur', '--pid', '--fork', '--mount-proc', 'sleep', '1000'])"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENEMIES)
def test_whatever_they_do(begin: Callable[..., "subprocess.Popen[bytes]"], name: str) -> None:
    neighbour = begin(STAY, NEIGHBOUR)
    enemy = begin(ENEMIES[name])
    assert uid_processes.has_any(ENEMY)
    assert uid_processes.kill_all_of(ENEMY)
    assert enemy.stdout is not None
    open_end = select.poll()  # all of them have the other end of the pipe, also those that nobody would see in /proc
    open_end.register(enemy.stdout, 0)
    assert [what for _, what in open_end.poll(60_000)] == [select.POLLHUP]
    assert neighbour.poll() is None
    assert uid_processes.pids_of(NEIGHBOUR) == [neighbour.pid]


def test_one_whose_first_thread_has_ended_is_a_process(begin: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    code = "threading.Thread(target=lambda: (os.write(1, b'.\\n'), time.sleep(1000))).start()"
    child = begin(f"{code}\nctypes.CDLL(None).pthread_exit(None)")
    stat = Path(f"/proc/{child.pid}/stat")
    until(lambda: stat.read_bytes().rpartition(b") ")[2][:1] == b"Z")  # it looks like what is left of a process
    assert processes.identify(child.pid) is not None
    assert uid_processes.pids_of(ENEMY) == [child.pid]
    assert uid_processes.kill_all_of(ENEMY)
    assert processes.identify(child.pid) is None


def test_what_is_left_of_one_until_its_parent_asks_does_not_count(
    begin: Callable[..., "subprocess.Popen[bytes]"],
) -> None:
    child = begin(STAY, ALONE)
    pidfd = os.pidfd_open(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    assert processes.has_ended(pidfd, 60)
    os.close(pidfd)
    assert uid_processes.has_any(ALONE), "nobody has asked after it"
    assert uid_processes.pids_of(ALONE) == []
    assert uid_processes.kill_all_of(ALONE)
    child.wait()
    assert not uid_processes.has_any(ALONE)


def test_each_of_the_four_uids_counts(begin: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    for ids in ((ENEMY, 0, 0), (0, ENEMY, 0), (0, 0, ENEMY)):
        child = begin(f"os.setresuid{ids}\n{STAY}", uid=0)
        assert uid_processes.pids_of(ENEMY) == [child.pid], ids
        child.kill()
        child.wait()


@pytest.mark.needs("freezer")
def test_what_cannot_be_ended_is_not_taken_for_ended(begin: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    """The kernel delivers no signal to what stands still in a freezer of version 1."""
    hierarchies = Hierarchies()
    groups = hierarchies.plan(f"skt-frozen-{os.getpid()}", Limits(pids=10))
    if not os.path.isdir(os.path.dirname(os.path.dirname(groups.get("freezer", "")))):
        pytest.skip("what stands still in version 2 is killed at once")
    hierarchies.create(groups, Limits(pids=10))
    child = begin(STAY)
    try:
        with open(f"{groups['freezer']}/cgroup.procs", "w") as file:
            file.write(str(child.pid))
        switch = freezer.switch_of(groups)
        assert switch is not None
        placement.write(switch.file, switch.freeze)
        freezer.wait_until(lambda: freezer.are_frozen(groups))
        assert not uid_processes.kill_all_of(ENEMY, 0.2)
        assert uid_processes.pids_of(ENEMY) == [child.pid]
    finally:
        freezer.thaw(groups)
        child.kill()
        child.wait()
        cgroups.remove(groups)
    assert uid_processes.kill_all_of(ENEMY)


def test_root_and_nobody_in_particular_are_refused() -> None:
    for uid in (0, -1):
        with pytest.raises(ValueError, match="no sandbox"):
            uid_processes.kill_all_of(uid)
