"""Sandboxes with a disk of their own: the limit is exact, the writer is told, and nothing of it is lost or left."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support import disks
from tests.support.boxes import Box, new_box
from tests.support.counting import counting
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.users import NOBODY, as_client, command_as

from sandkeep import failpoints
from sandkeep.errors import DaemonError, ProviderError, SandkeepError
from sandkeepd.host import mounts
from sandkeepd.host.hostile_files import HostileRoot
from sandkeepd.host.processes import in_fresh_thread
from sandkeepd.keeper.output_reserve import OutputReserve
from sandkeepd.providers.common.disks import Disks
from sandkeepd.providers.common.layout import Layout
from sandkeepd.providers.common.tree_copies import copy_tree

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("bwrap")]

MIB = 1 << 20
SIZE = 64 * MIB

WRITING = """
import array, mmap, os, socket, sys
def full(name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    try:
        while True: os.write(fd, bytes(1 << 16))
    except OSError as error: return fd, error.errno
"""

WAYS = {
    "one file": "number = full('big')[1]",
    "many files": "for n in range(20): os.write(os.open(f'{n}', os.O_WRONLY | os.O_CREAT), bytes(1 << 20))\n"
    "number = full('last')[1]",
    "unlinked": "fd, _ = full('big'); os.unlink('big'); number = full('other')[1]",
    "passed on": "a, b = socket.socketpair(); fd, _ = full('big'); os.unlink('big')\n"
    "a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))]); os.close(fd)\n"
    "number = full('other')[1]; b.close()",
    "in flight": "a, b = socket.socketpair(); number = 0\n"
    "for _ in range(20):\n"
    "    fd = os.open('f', os.O_RDWR | os.O_CREAT); os.unlink('f')\n"
    "    try:\n"
    "        for _ in range(256): os.write(fd, bytes(1 << 16))\n"
    "    except OSError as error: number = error.errno; break\n"
    "    a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))]); os.close(fd)\n"
    "b.close()",
    "mapped": "fd, _ = full('big'); m = mmap.mmap(fd, 1 << 20); os.unlink('big'); os.close(fd)\n"
    "number = full('other')[1]; m.close()",
    "its own output": "number = full('/run/sandkeep/out/p/x')[1]; os.unlink('/run/sandkeep/out/p/x')",
}
FILL = "head -c 1G /dev/zero >big"
"""To the last blocks: the kernel takes a larger piece as a whole or not at all."""

CLEARING = """
for name in os.listdir('.'): os.unlink(name)
os.closerange(3, 99)
print(number)
"""


@pytest.fixture(scope="module")
def box(shared_daemon: RunningDaemon, image: str) -> Iterator[Box]:
    with new_box(shared_daemon, image, disk_bytes=SIZE) as made:
        yield made


def image_of(box: Box) -> Path:
    return Path(box.daemon.state_dir, "disks", box.id)


def loops(path: Path) -> str:
    """The loop devices of a file, also if it was removed."""
    found = subprocess.run(["losetup", "--list", "--noheadings", "-O", "BACK-FILE"], capture_output=True, text=True)
    return "".join(line for line in found.stdout.splitlines() if line.startswith(str(path)))


def freed(path: Path) -> None:
    """Wait until the kernel has freed the loop devices of a file; a failure names the processes that see them."""
    until(lambda: not loops(path), seen=lambda: _holders(path))


def _holders(path: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if bytes(path) in (process / "mountinfo").read_bytes():
                found.append((process / "cmdline").read_bytes()[:100].decode(errors="replace"))
    return found


@pytest.mark.parametrize("way", WAYS)
def test_the_limit_is_exact_and_the_writer_is_told(box: Box, way: str) -> None:
    before = os.stat(image_of(box)).st_blocks
    done = box.client.sandbox.exec(box.id, ["python3", "-c", WRITING + WAYS[way] + CLEARING])
    assert done.stdout == b"28\n", done  # ENOSPC
    assert os.stat(image_of(box)).st_blocks == before
    box.sh("echo fine >file; cat file; rm file")
    assert box.client.sandbox.get(box.id).status == "running"


def test_everything_that_was_promised_is_allocated(box: Box) -> None:
    found = os.stat(image_of(box))
    assert found.st_size == SIZE
    assert found.st_blocks * 512 >= SIZE
    assert box.client.sandbox.get(box.id).isolation.limits["disk"] == "file system"


def test_on_a_full_disk_commands_run_and_their_ends_are_recorded(box: Box) -> None:
    box.client.sandbox.exec(box.id, ["sh", "-c", "cat /dev/zero >big"])
    for number in range(100):  # more names than one block of the directory holds, and more output than is reserved
        done = box.client.sandbox.exec(box.id, ["sh", "-c", f"cat; exit {number}"], stdin=b"fine")
        assert (done.exit_code, done.stdout) == (number, b"fine")
    box.sh("rm big")


def test_on_a_full_disk_output_is_seen(box: Box) -> None:
    box.sh(f"{FILL} || :")
    assert box.sh("ls") == b"big\n"
    failed = box.client.sandbox.exec(box.id, ["ls", "nothing"])
    assert failed.exit_code == 2
    assert b"nothing" in failed.stderr
    longest = box.client.sandbox.exec(box.id, ["seq", "100000"])
    assert longest.exit_code == 1
    assert len(longest.stdout) >= 64 << 10
    assert b"".join(b"%d\n" % n for n in range(1, 100001)).startswith(longest.stdout)
    assert b"space" in longest.stderr
    assert box.listing().entries[0].name == "big"
    until(box.is_tidy)
    box.sh("rm big")


def test_what_a_process_leaves_running_keeps_its_room(box: Box) -> None:
    box.sh(f"{FILL} || :")
    left = "(until [ -e now ]; do sleep 0.02; done; seq 5000; : >then) & echo first"
    done = box.client.sandbox.exec(box.id, ["sh", "-c", left])
    assert done.stdout == b"first\n"
    box.sh(": >now; until [ -e then ]; do sleep 0.02; done")
    written = box.client.process.read(box.id, done.process_id).stdout
    assert written == b"first\n" + b"".join(b"%d\n" % n for n in range(1, 5001))
    box.sh("rm big now then")


def test_what_an_earlier_daemon_has_lent_is_given_back(tmp_path: Path) -> None:
    made = Layout(str(tmp_path))
    made.prepare()
    Disks(made).make("sbx_1", SIZE)
    out = HostileRoot(made.sandbox("sbx_1")).tree("out")
    try:
        OutputReserve(out, None).lend("prc_1")
        journal = out.stat("p/prc_1.stdout")
        assert (journal.st_size, journal.st_blocks * 512) == (0, 64 << 10)
        later = OutputReserve(out, None)
        later.lend("prc_2")
        assert out.stat("p/prc_1.stdout").st_blocks == 0
        later.end("prc_2")
        assert out.stat("p/prc_2.stdout").st_blocks == 0
    finally:
        Disks(made).release("sbx_1")


def test_files_can_be_removed_when_the_inodes_are_used_up(box: Box) -> None:
    making = "n=0; while : >many/$n; do n=$((n+1)); done"
    for _ in range(3):
        box.client.sandbox.exec(box.id, ["sh", "-c", f"mkdir -p many; {making}"])
    assert box.client.sandbox.get(box.id).status == "running"
    box.sh("rm -rf many; echo fine >file; rm file")


def test_one_without_inodes_is_copied_and_suspended(box: Box) -> None:
    box.client.sandbox.exec(box.id, ["sh", "-c", "n=0; while : >$n; do n=$((n+1)); done"])
    snapshots = [box.client.snapshot.create(box.id, incremental=is_incremental) for is_incremental in (False, True)]
    [fork] = box.client.sandbox.fork(box.id).sandboxes
    assert Box(box.daemon, box.client, fork.sandbox_id).sh("ls | wc -l") == box.sh("ls | wc -l")
    box.client.sandbox.terminate(fork.sandbox_id)
    for made in snapshots:
        assert made.status == "ready"
    box.client.sandbox.suspend(box.id)
    box.client.sandbox.resume(box.id)
    box.sh("rm -f -- *")


def test_more_than_the_host_has_is_refused_and_leaves_nothing(shared_daemon: RunningDaemon, image: str) -> None:
    before = os.listdir(f"{shared_daemon.state_dir}/disks")
    with shared_daemon.connect() as client:
        refused("storage_unavailable", client.sandbox.create, image, disk_bytes=1 << 50)
    assert os.listdir(f"{shared_daemon.state_dir}/disks") == before


def test_the_smallest_has_room(shared_daemon: RunningDaemon, image: str) -> None:
    with new_box(shared_daemon, image, disk_bytes=MIB) as small:
        small.sh("head -c 600K /dev/zero >file; sync")
        assert small.client.sandbox.exec(small.id, ["sh", "-c", "cat /dev/zero >big"]).exit_code == 1
        small.sh("rm big file")


def test_forks_snapshots_and_restores(box: Box) -> None:
    box.sh("echo one >kept; head -c 5M /dev/zero >five")
    [fork] = box.client.sandbox.fork(box.id).sandboxes
    other = Box(box.daemon, box.client, fork.sandbox_id)
    assert other.sh("cat kept; stat -c %s five") == b"one\n5242880\n"
    assert other.client.sandbox.exec(other.id, ["sh", "-c", "cat /dev/zero >big"]).exit_code != 0
    snapshot = box.client.snapshot.create(box.id).snapshot_id
    box.sh("rm -f kept five; echo two >kept")
    box.client.sandbox.restore(box.id, snapshot_id=snapshot)
    assert box.sh("cat kept; stat -c %s five") == b"one\n5242880\n"
    box.client.sandbox.terminate(other.id)
    box.sh("rm -f kept five")


def test_a_restore_on_a_full_disk_can_be_written(box: Box) -> None:
    """The kernel has no room for the overlay's work directory, and would let it be read alone."""
    box.sh(f"echo kept >kept; {FILL} || :")
    snapshot = box.client.snapshot.create(box.id).snapshot_id
    box.sh("rm kept")
    box.client.sandbox.restore(box.id, snapshot_id=snapshot)
    box.sh("cat kept && rm kept && cat /dev/zero >again || :; rm again && rm big")


def test_the_output_of_an_ended_one_stays_and_its_disk_goes(shared_daemon: RunningDaemon, image: str) -> None:
    with new_box(shared_daemon, image, disk_bytes=SIZE) as box:
        done = box.client.sandbox.exec(box.id, ["sh", "-c", "seq 100000"])
        path = image_of(box)
        assert loops(path)
    assert not path.exists()
    freed(path)
    assert shared_daemon.cli("logs", box.id, done.process_id).stdout == b"".join(b"%d\n" % n for n in range(1, 100001))
    assert os.listdir(f"{shared_daemon.state_dir}/sandboxes/{box.id}").sort() is None


HOSTILE_OUTPUT = """
import os, socket
os.chdir('/run/sandkeep/out/p')
os.mkfifo('fifo')
os.symlink('/dev/full', 'link')
os.symlink('/nowhere', 'prc_01arz3ndektsv4rrffq69g5fav.stdout')
os.mkdir('prc_01arz3ndektsv4rrffq69g5faw.stdout')
socket.socket(socket.AF_UNIX).bind('socket')
with open('../exits', 'ab') as file: file.truncate(1 << 40)
"""


def test_hostile_output_does_not_keep_the_disk(shared_daemon: RunningDaemon, image: str) -> None:
    with new_box(shared_daemon, image, disk_bytes=SIZE) as box:
        done = box.client.sandbox.exec(box.id, ["echo", "fine"])
        box.sh('ulimit -f unlimited 2>/dev/null; python3 -c "$1" || :', HOSTILE_OUTPUT)
        path = image_of(box)
    assert not path.exists()
    freed(path)
    assert shared_daemon.cli("logs", box.id, done.process_id).stdout == b"fine\n"
    left = Path(shared_daemon.state_dir, "sandboxes", box.id, "out", "p")
    assert all(file.is_file() and not file.is_symlink() for file in left.iterdir())


def test_it_outlives_the_daemon_and_its_own_end(running_daemon: RunningDaemon, tmp_path: Path) -> None:
    with running_daemon.connect() as client:
        image = client.image.create(str(tmp_path)).image_id
        box = Box(running_daemon, client, client.sandbox.create(image, disk_bytes=SIZE).sandbox_id)
        process = client.process.launch(box.id, ["sh", "-c", counting("now", pause_s=0.01)])
        until(lambda: client.process.read(box.id, process.process_id).stdout)
    running_daemon.kill()
    running_daemon.start()
    with running_daemon.connect() as client:
        box = Box(running_daemon, client, box.id)
        first = int(box.sh("cat now"))
        until(lambda: int(box.sh("cat now")) > first + 1)
        assert running_daemon.cli("logs", box.id, process.process_id).stdout.startswith(b"1\n2\n")
        kill_first(client, box.id)
        until(lambda: client.sandbox.get(box.id).status == "failed")
    running_daemon.stop()
    freed(image_of(box))  # as after a reboot: only the image is there
    running_daemon.start()
    with running_daemon.connect() as client:
        box = Box(running_daemon, client, box.id)
        assert running_daemon.cli("logs", box.id, process.process_id).stdout.startswith(b"1\n2\n")
        client.sandbox.resume(box.id)
        assert int(box.sh("cat now")) > first
        assert box.client.sandbox.exec(box.id, ["sh", "-c", "cat /dev/zero >big"]).exit_code == 1
        client.sandbox.terminate(box.id)
    freed(image_of(box))


@pytest.mark.parametrize("point", ["disk.allocated", "disk.mounted", "disk.emptied"])
def test_a_death_at_every_step(new_daemon: Callable[[], RunningDaemon], tmp_path: Path, point: str) -> None:
    daemon = new_daemon()
    daemon.start(**{failpoints.SETTING: point})
    with daemon.connect(patience_s=1) as client:
        image = client.image.create(str(tmp_path)).image_id
        with suppress(SandkeepError):
            made = client.sandbox.create(image, name="it", disk_bytes=SIZE)
            done = client.sandbox.exec(made.sandbox_id, ["echo", "fine"])
            client.sandbox.terminate(made.sandbox_id)
    assert daemon.process is not None
    daemon.process.wait(patient(60))
    daemon.start()
    disks_dir = Path(daemon.state_dir, "disks")
    until(
        lambda: not os.listdir(disks_dir) and not loops(disks_dir),
        seen=lambda: (os.listdir(disks_dir), loops(disks_dir)),
    )
    if point == "disk.emptied":
        assert daemon.cli("logs", made.sandbox_id, done.process_id).stdout == b"fine\n"


def kill_first(client: Any, sandbox_id: str) -> None:
    handles = [event.data["handle"] for event in client.sandbox.history(sandbox_id).events if "handle" in event.data]
    os.kill(handles[-1]["first"]["pid"], 9)


def damage(path: Path) -> bytes:
    """Overwrite the superblock of an image; return what was there."""
    with path.open("r+b") as file:
        before = file.read(4096)
        file.seek(0)
        file.write(bytes(4096))
    return before


def test_a_disk_that_could_not_be_mounted_at_the_start(running_daemon: RunningDaemon, tmp_path: Path) -> None:
    """It is not taken for one without files, and one that stays damaged can be ended."""
    with running_daemon.connect() as client:
        image = client.image.create(str(tmp_path)).image_id
        box = Box(running_daemon, client, client.sandbox.create(image, disk_bytes=SIZE).sandbox_id)
        box.sh("echo fine >kept; sync")
        kill_first(client, box.id)
        until(lambda: client.sandbox.get(box.id).status == "failed")
    running_daemon.stop()
    freed(image_of(box))
    before = damage(image_of(box))
    running_daemon.start()
    with running_daemon.connect() as client:
        box = Box(running_daemon, client, box.id)
        refused("provider_unavailable", client.sandbox.resume, box.id)
        with image_of(box).open("r+b") as file:
            file.write(before)
        client.sandbox.resume(box.id)
        assert box.sh("cat kept") == b"fine\n"
        kill_first(client, box.id)
        until(lambda: client.sandbox.get(box.id).status == "failed")
    running_daemon.stop()
    freed(image_of(box))
    damage(image_of(box))
    running_daemon.start()
    with running_daemon.connect() as client:
        client.sandbox.terminate(box.id)
    assert not image_of(box).exists()


def test_the_output_waits_for_a_loop_device(tmp_path: Path) -> None:
    made = Layout(str(tmp_path))
    made.prepare()
    Disks(made).make("sbx_1", SIZE)
    Path(made.sandbox("sbx_1"), "out", "exits").write_text("fine")
    mounts.unmount(made.sandbox("sbx_1"))
    freed(Path(made.disk("sbx_1")))

    def without_loop_devices() -> None:
        mounts.enter_private_namespace()
        mounts.mount("none", "/dev", "tmpfs", 0)
        os.mknod("/dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        with pytest.raises(ProviderError, match="mount"):
            Disks(made).release("sbx_1")

    in_fresh_thread(without_loop_devices)
    Disks(made).release("sbx_1")
    assert Path(made.sandbox("sbx_1"), "out", "exits").read_text() == "fine"
    freed(Path(made.disk("sbx_1")))


def test_the_output_is_no_trash_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that starts empties the trash while it ends sandboxes."""
    made = Layout(str(tmp_path))
    made.prepare()
    Disks(made).make("sbx_1", SIZE)
    Path(made.sandbox("sbx_1"), "out", "exits").write_text("fine")

    def copy(source: str, target: str) -> None:
        copy_tree(source, target)
        made.delete(made.left_in_trash())

    monkeypatch.setattr("sandkeepd.providers.common.disks.copy_tree", copy)
    Disks(made).release("sbx_1")
    assert Path(made.sandbox("sbx_1"), "out", "exits").read_text() == "fine"
    assert os.listdir(tmp_path / "disks") == []


@pytest.mark.parametrize(
    "who", ["local", "without isolation", "a user's", pytest.param("gvisor", marks=pytest.mark.needs("runsc"))]
)
def test_a_running_sandbox_keeps_no_disk_that_the_host_unmounts(
    new_daemon: Callable[[], RunningDaemon], tmp_path: Path, who: str
) -> None:
    """Nor sees one that is mounted later, if it is isolated."""
    daemon = new_daemon()
    isolation = "none" if who == "without isolation" else "default"
    provider = "gvisor" if who == "gvisor" else "local"
    source = Path(daemon.root, "source")
    source.mkdir()
    if who == "a user's":
        for path in (daemon.root, source):
            os.chown(path, NOBODY, NOBODY)
        daemon.program = command_as(NOBODY, daemon.program)
    (tmp_path / "at").mkdir()
    with disks.ext4(str(tmp_path), str(tmp_path / "at"), "8M"):
        daemon.start()
        uid = NOBODY if who == "a user's" else 0
        image = as_client(daemon, uid, lambda client: client.image.create(str(source), provider=provider).image_id)
        with daemon.connect() as client:
            box = Box(daemon, client, client.sandbox.create(image, provider=provider, isolation=isolation).sandbox_id)
            box.sh("true")
            disks.umount(str(tmp_path / "at"))
            freed(tmp_path / "image")
            disks.mount("--bind", "/usr/src", "/usr/src")
            try:
                seen = b" /usr/src " in box.sh("cat /proc/self/mounts")
                assert seen == (isolation == "none")
            finally:
                subprocess.run(["umount", "--lazy", "/usr/src"], check=True)
            client.sandbox.terminate(box.id)


@pytest.fixture
def on_small_host(new_daemon: Callable[[], RunningDaemon], tmp_path: Path) -> Iterator[tuple[Box, Path]]:
    """A sandbox on a host whose disk has 256 MiB, and the path of a file that fills that."""
    for name in ("image", "disk", "empty"):
        (tmp_path / name).mkdir()
    with disks.ext4(str(tmp_path / "image"), str(tmp_path / "disk"), "256M") as host:
        daemon = new_daemon()
        daemon.env["SANDKEEP_STATE_DIR"] = daemon.state_dir = f"{host.at}/state"
        daemon.start()
        with daemon.connect() as client:
            image = client.image.create(str(tmp_path / "empty")).image_id
            box = client.sandbox.create(image, disk_bytes=SIZE).sandbox_id
            yield Box(daemon, client, box), Path(host.at, "filler")
        daemon.clear()


def test_nothing_is_lost_on_a_host_whose_disk_is_full(on_small_host: tuple[Box, Path]) -> None:
    """The bytes of a sparse image are lost then: what was promised is there."""
    box, filler = on_small_host
    script = "until [ -e go ]; do sleep 0.01; done; head -c 40M /dev/urandom >data; sync data; sha256sum <data"
    process = box.client.process.launch(box.id, ["sh", "-c", f"{script}; sync .; cat /dev/zero >more"]).process_id
    first = box.client.sandbox.history(box.id).events[1].data["handle"]["first"]["pid"]
    disks.fill(filler)
    Path(f"/proc/{first}/root/workspace/go").touch()  # no call is answered while the log cannot grow
    until(lambda: os.path.exists(f"/proc/{first}/root/workspace/more"))
    filler.unlink()
    assert until(lambda: _exit_code(box.client, box.id, process)) == 1
    digest = box.daemon.cli("logs", box.id, process).stdout
    Path("/proc/sys/vm/drop_caches").write_text("1\n")
    assert digest == box.sh("rm more; sha256sum <data")
    box.client.sandbox.terminate(box.id)


def test_one_can_be_ended_on_a_host_whose_disk_is_full(on_small_host: tuple[Box, Path]) -> None:
    """Its output takes the room of its files."""
    box, filler = on_small_host
    box.sh("head -c 30M /dev/urandom >data")
    process = box.client.sandbox.exec(box.id, ["head", "-c", "8M", "/dev/zero"]).process_id
    disks.fill(filler)
    box.client.sandbox.terminate(box.id)
    assert not image_of(box).exists()
    filler.unlink()
    assert box.daemon.cli("logs", box.id, process).stdout == bytes(8 * MIB)


def _exit_code(client: Any, sandbox_id: str, process_id: str) -> int | None:
    with suppress(DaemonError):  # the log is tried again in a while, and who waits is told so meanwhile
        code: int = client.process.wait(sandbox_id, process_id).exit_code
        return code
    return None
