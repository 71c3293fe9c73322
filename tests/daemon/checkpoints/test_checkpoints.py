"""Checkpoints of gVisor sandboxes, with a real daemon and the real runsc: what goes on, where, and what is refused."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.counting import counting
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.snapshots import sh
from tests.support.users import let_in

from sandkeep import failpoints
from sandkeep.errors import SandkeepError
from sandkeep.ids import new_id

pytestmark = pytest.mark.needs("runsc")

COUNT = counting("n", pause_s=0.05)
LATE = patient(60.0)
FILES = ("checkpoint.img", "open.names", "processes.json", "shared.tar")


class House:
    """A daemon with an image of gVisor's, and what tests do with it."""

    def __init__(self, daemon: RunningDaemon, source: Path) -> None:
        self.daemon = daemon
        self.client = daemon.connect()
        self.image = self.client.image.create(str(source), provider="gvisor").image_id

    def box(self, **options: Any) -> str:
        return str(self.client.sandbox.create(self.image, **options).sandbox_id)

    def sh(self, box: str, script: str) -> str:
        return sh(self.client, box, script)

    def counting(self, box: str, upto: int = 3) -> None:
        """Have a counter run in a sandbox, and wait until it has come so far."""
        self.client.process.launch(box, ["sh", "-c", COUNT], name="counter")
        self.comes_to(box, upto)

    def values(self, box: str, name: str = "counter") -> list[int]:
        done = bytes(self.client.process.read(box, name).stdout)
        return [int(line) for line in done.splitlines()]

    def comes_to(self, box: str, value: int) -> list[int]:
        return until(lambda: (v := self.values(box)) and v[-1] >= value and v)  # type: ignore[no-any-return]

    def goes_on(self, box: str, least: int = 2) -> list[int]:
        """Wait until the counter has printed some more; what it printed before, and what since."""
        before = len(self.values(box))
        return until(lambda: (v := self.values(box)) and len(v) >= before + least and v)  # type: ignore[no-any-return]

    def checkpoint(self, box: str, **options: Any) -> Any:
        return self.client.checkpoint.create(box, **{"leave_running": True, **options})

    def restored(self, checkpoint: Any, **options: Any) -> list[str]:
        made = self.client.checkpoint.restore(checkpoint.checkpoint_id, **options)
        assert made.checkpoint_id == checkpoint.checkpoint_id
        return [sandbox.sandbox_id for sandbox in made.sandboxes]

    def end(self, *boxes: str) -> None:
        for box in boxes:
            self.client.sandbox.terminate(box)

    def ours(self) -> list[str]:
        """What runsc runs for this daemon."""
        listed = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout
        return [line for line in listed.splitlines() if line.startswith("runsc") and self.daemon.state_dir in line]

    def close(self) -> None:
        self.client.close()


@pytest.fixture(scope="module")
def source_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    let_in(source)
    (source / "file").write_text("from the image\n")
    return source


@pytest.fixture(scope="module")
def house(shared_daemon: RunningDaemon, source_tree: Path) -> Iterator[House]:
    made = House(shared_daemon, source_tree)
    yield made
    made.close()


@pytest.fixture
def own_house(new_daemon: Callable[[], RunningDaemon], source_tree: Path) -> Iterator[Callable[..., House]]:
    """Makes houses whose daemon a test may stop, with settings of its own; ``{root}`` in them is its directory."""
    made: list[House] = []

    def make(**environment: str) -> House:
        daemon = new_daemon()
        daemon.env |= {name: value.format(root=daemon.root) for name, value in environment.items()}
        daemon.start()
        made.append(House(daemon, source_tree))
        return made[-1]

    yield make
    for one in made:
        one.close()


# -- bringing back ----------------------------------------------------------------------------------------------------


def test_any_moment_is_brought_back_in_any_order_as_often_as_one_likes(house: House) -> None:
    box = house.box()
    house.counting(box, 5)
    first = house.checkpoint(box, name="first")
    house.comes_to(box, 40)
    second = house.checkpoint(box, name="second")
    house.comes_to(box, 45)
    house.end(box)
    assert [c.name for c in house.client.checkpoint.list(sandbox_id=box).checkpoints] == ["first", "second"]
    moments: dict[str, list[int]] = {}
    for checkpoint in (second, first, second):
        [made] = house.restored(checkpoint)
        values = house.goes_on(made)
        assert values == list(range(1, len(values) + 1)), "there is a gap, or something twice"
        assert int(house.sh(made, "cat n")) >= values[-1]
        moments.setdefault(checkpoint.name, []).append(len(values))
        assert house.client.sandbox.get(made).restored_from == checkpoint.checkpoint_id
        house.end(made)
    assert all(5 <= value < 40 for value in moments["first"])
    assert all(value >= 40 for value in moments["second"])
    house.client.checkpoint.delete(second.checkpoint_id)
    [made] = house.restored(first)
    assert house.goes_on(made)
    house.end(made)
    house.client.checkpoint.delete(first.checkpoint_id)
    refused("snapshot_not_ready", house.client.checkpoint.restore, first.checkpoint_id)


def test_forks_of_a_checkpoint_go_on_each_by_itself(house: House) -> None:
    box = house.box(env={"WHO": "source"})
    house.counting(box)
    house.client.process.launch(box, ["sh", "-c", "read a; echo $WHO $a; read b; echo $b"], name="reader", stdin=True)
    house.client.process.write_stdin(box, "reader", b"before\n")
    until(lambda: bytes(house.client.process.read(box, "reader").stdout) == b"source before\n")
    reader = house.client.process.get(box, "reader").process_id
    marks = Path(house.daemon.state_dir, "output-times", box, reader)
    until(lambda: marks.exists() and marks.stat().st_size)
    [written] = house.client.process.read(box, "reader", times=True).times
    checkpoint = house.checkpoint(box, labels={"team": "blue"})
    assert checkpoint.processes == 2
    made = house.restored(checkpoint, count=3, labels={"fork": "yes"})
    for number, fork in enumerate(made):
        assert {p.name: p.status for p in house.client.process.list(sandbox_id=fork).processes} == {
            "counter": "running", "reader": "running"
        }  # fmt: skip
        house.sh(fork, f"echo {number} >mine")
        house.client.process.write_stdin(fork, "reader", b"fork %d\n" % number, eof=True)
        assert house.client.process.wait(fork, "reader").exit_code == 0
        read = house.client.process.read(fork, "reader", times=True)
        assert read.stdout == b"source before\nfork %d\n" % number
        assert read.times[0] == written  # elsewhere
        assert read.times[-1].at > checkpoint.created_at
    assert [house.sh(fork, "cat mine") for fork in made] == ["0\n", "1\n", "2\n"]
    house.client.process.write_stdin(box, "reader", b"itself\n", eof=True)
    assert house.client.process.wait(box, "reader").exit_code == 0
    ids = {house.client.process.get(one, "counter").process_id for one in (box, *made)}
    assert len(ids) == 4
    for fork in made:
        house.goes_on(fork)
        house.client.process.signal(fork, "counter", "KILL")
        assert house.client.process.wait(fork, "counter").exit_code == 137
    house.goes_on(box)
    sandbox = house.client.sandbox.get(made[0])
    assert (sandbox.forked_from, sandbox.spec.labels["fork"]) == (box, "yes")
    house.end(box, *made)
    house.client.checkpoint.delete(checkpoint.checkpoint_id)


def test_what_is_left_running_goes_on_and_its_commands_end_as_they_would(house: House) -> None:
    box = house.box()
    house.counting(box)
    process = house.client.process.launch(box, "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done; exit 7")
    checkpoint = house.checkpoint(box)
    assert checkpoint.pause_ms > 0
    assert house.client.sandbox.get(box).status == "running"
    assert house.client.process.wait(box, process.process_id).exit_code == 7
    output = house.client.process.read(box, process.process_id).stdout
    assert bytes(output) == b"".join(b"%d\n" % n for n in range(1, 9))
    values = house.goes_on(box)
    assert values == list(range(1, len(values) + 1))
    house.end(box)
    house.client.checkpoint.delete(checkpoint.checkpoint_id)


def test_one_that_does_not_go_on_is_suspended_and_does_not_need_its_checkpoint(house: House) -> None:
    box = house.box()
    house.counting(box)
    checkpoint = house.checkpoint(box, leave_running=False)
    assert (checkpoint.pause_ms, house.client.sandbox.get(box).status) == (None, "suspended")
    refused("not_ready", house.client.sandbox.exec, box, ["true"])
    still = house.checkpoint(box, leave_running=False)  # of what stands still
    house.client.checkpoint.delete(checkpoint.checkpoint_id)
    before = house.values(box)
    assert house.client.sandbox.resume(box).status == "running"
    values = house.goes_on(box)
    assert values[: len(before)] == before
    assert values == list(range(1, len(values) + 1))
    [made] = house.restored(still)
    assert house.goes_on(made)[len(before)] == before[-1] + 1
    house.end(box, made)
    house.client.checkpoint.delete(still.checkpoint_id)


def test_a_sandbox_goes_back_to_a_moment_of_its_own(house: House) -> None:
    box = house.box()
    house.counting(box, 5)
    gone = house.client.process.launch(box, "read x; echo read $x; exit 3", name="gone", stdin=True)
    checkpoint = house.checkpoint(box)
    house.client.process.write_stdin(box, "gone", b"once\n", eof=True)
    assert house.client.process.wait(box, "gone").exit_code == 3
    later = house.client.process.launch(box, ["sleep", "1000"], name="later")
    house.sh(box, "echo new >new")
    count = len(house.comes_to(box, 40))
    back = house.client.sandbox.restore(box, checkpoint_id=checkpoint.checkpoint_id)
    assert (back.status, back.restored_from) == ("running", checkpoint.checkpoint_id)
    values = house.goes_on(box)
    went_on = values[count:]
    began = next(at for at, (one, two) in enumerate(pairwise(values), 1) if two <= one)
    assert values[:began] == list(range(1, began + 1)), "the journal of before is not what it was"
    assert began >= count
    assert 5 <= values[began] < 40
    assert values[began:] == list(range(values[began], values[began] + len(values) - began))
    assert went_on
    assert house.sh(box, "ls") == "file\nn\n"
    assert house.client.process.get(box, "later").exit_code == 137
    assert later.process_id != gone.process_id
    assert house.client.process.get(box, "gone").status == "running"
    house.client.process.write_stdin(box, "gone", b"twice\n", eof=True)
    assert house.client.process.wait(box, "gone").exit_code == 3
    assert bytes(house.client.process.read(box, "gone").stdout) == b"read once\nread twice\n"
    types = [event.type for event in house.client.sandbox.history(box).events]
    assert "sandbox.restored" in types
    assert types.count("process.restored") == 2
    house.end(box)
    house.client.checkpoint.delete(checkpoint.checkpoint_id)


def test_memory_holds_secrets_that_are_in_no_file_but_the_checkpoint(house: House) -> None:
    box = house.box(secrets={"TOKEN": "hush-8c1f"})
    checkpoint = house.checkpoint(box)
    [made] = house.restored(checkpoint)
    assert house.client.sandbox.get(made).secrets == ["TOKEN"]
    assert house.sh(made, "[ $TOKEN = hush-8c$((1))f ] && echo yes") == "yes\n"
    place = Path(checkpoint.place.uri)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()}
    assert modes == dict.fromkeys(FILES, 0o600)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    for root, _, names in os.walk(house.daemon.state_dir):
        for name in names:
            path = Path(root, name)
            if name != "checkpoint.img" and path.is_file():
                assert b"hush-8c1f" not in path.read_bytes(), path
    house.end(box, made)
    house.client.checkpoint.delete(checkpoint.checkpoint_id)
    assert not place.exists()


def test_the_newest_that_was_kept_by_then_is_brought_back(house: House) -> None:
    box, client = house.box(), house.client
    house.counting(box, 3)
    first = house.checkpoint(box, name="first")
    house.comes_to(box, 40)
    between = client.sandbox.exec(box, ["true"])
    position = client.sandbox.get(box).position
    second = house.checkpoint(box, name="second")
    back = client.sandbox.restore_at(box, position=position)
    used = back.moment
    assert (used.kind, used.source_id, used.name) == ("checkpoint", first.checkpoint_id, "first")
    assert (back.events_between, back.distance_s > 0) == (3, True)  # of the command
    assert len(house.goes_on(back.sandbox.sandbox_id)) < 40
    now = client.sandbox.restore_at(box, time=client.sandbox.history(box).events[-1].time)
    assert now.moment.source_id == second.checkpoint_id
    error = refused("invalid", client.sandbox.restore_at, box, position=position, env={"A": "b"})
    assert "variables" in error.message
    then = client.event.state_at(box, position)
    assert [c.checkpoint_id for c in then.checkpoints] == [first.checkpoint_id]
    assert between.process_id in [p.process_id for p in then.processes]
    marked = {e.type: e.moment.name for e in client.sandbox.history(box).events if e.moment is not None}
    assert marked == {"checkpoint.stored": "second"}
    shown = house.daemon.cli("history", box).stdout.decode()
    assert "◆" in shown
    assert first.checkpoint_id in shown
    house.end(box, back.sandbox.sandbox_id, now.sandbox.sandbox_id)
    for checkpoint in (first, second):
        client.checkpoint.delete(checkpoint.checkpoint_id)


# -- suspending, and daemons that go away -----------------------------------------------------------------------------


def test_it_is_suspended_by_being_saved_and_outlives_the_daemon(own_house: Callable[..., House]) -> None:
    house = own_house()
    box = house.box()
    house.counting(box)
    assert house.client.sandbox.suspend(box).status == "suspended"
    until(lambda: house.ours() == [])
    before = house.values(box)
    house.daemon.kill()
    house.daemon.start()
    assert house.client.sandbox.get(box).status == "suspended"
    assert house.values(box) == before
    house.client.sandbox.resume(box)
    values = house.goes_on(box)
    assert values == list(range(1, len(values) + 1))
    house.daemon.kill()
    house.daemon.start()
    values = house.goes_on(box)
    assert values == list(range(1, len(values) + 1))
    house.sh(box, "true")
    house.client.sandbox.suspend(box)
    house.end(box)
    assert house.ours() == []
    assert os.listdir(f"{house.daemon.state_dir}/gvisor") == []


def test_a_daemon_that_is_away_misses_nothing(own_house: Callable[..., House]) -> None:
    house = own_house()
    box = house.box()
    house.counting(box)
    process = house.client.process.launch(box, "sleep 0.3; echo done; exit 5")
    house.daemon.kill()
    answers = Path(house.daemon.state_dir, "sandboxes", box, "out", "exits")
    until(lambda: f"{process.process_id} 5\n" in answers.read_text())
    house.daemon.start()
    assert house.client.process.wait(box, process.process_id).exit_code == 5
    values = house.goes_on(box)
    assert values == list(range(1, len(values) + 1))


# -- what is refused, and what fails ----------------------------------------------------------------------------------


def test_what_cannot_be_kept_is_refused_in_a_sentence(house: House, source_tree: Path) -> None:
    client = house.client
    hosts = house.box(network="host")
    error = refused("not_supported", client.checkpoint.create, hosts)
    assert "host's network" in error.message
    assert "host's network" in refused("not_supported", client.sandbox.suspend, hosts).message
    assert client.sandbox.get(hosts).status == "running"
    house.end(hosts)
    for option in ({"pids": 64}, {"network": "bridge"}, {"isolation": "none"}):
        refused("not_supported", client.sandbox.create, house.image, **option)
    local = client.image.create(str(source_tree)).image_id
    box = client.sandbox.create(local).sandbox_id
    assert "gvisor" in refused("not_supported", client.checkpoint.create, box).message
    house.end(box)
    refused("not_found", client.checkpoint.create, new_id("sbx"))
    refused("not_found", client.checkpoint.restore, new_id("ckp"))
    over = house.box()
    house.end(over)
    refused("not_ready", client.checkpoint.create, over)
    [told] = [p for p in client.daemon.capabilities().providers if p.provider == "gvisor"]
    assert told.works
    assert all(feature.why for feature in told.features.values() if not feature.works)


def test_what_was_damaged_is_not_brought_back_and_nothing_is_left(house: House) -> None:
    there = {sandbox.sandbox_id for sandbox in house.client.sandbox.list().sandboxes}
    box = house.box()
    house.counting(box)
    checkpoint = house.checkpoint(box)
    for name in FILES:
        path = Path(checkpoint.place.uri, name)
        good = path.read_bytes()
        at = len(good) // 2
        for bad in (good[:-1], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], b""):
            path.unlink()
            path.write_bytes(bad)
            refused("snapshot_corrupt", house.client.checkpoint.restore, checkpoint.checkpoint_id)
            refused("snapshot_corrupt", house.client.sandbox.restore, box, checkpoint_id=checkpoint.checkpoint_id)
            house.goes_on(box)
        path.unlink()
        refused("snapshot_missing", house.client.checkpoint.restore, checkpoint.checkpoint_id)
        path.write_bytes(good)
    [made] = house.restored(checkpoint)
    house.goes_on(made)
    assert {sandbox.sandbox_id for sandbox in house.client.sandbox.list().sandboxes} - there == {box, made}
    house.end(box, made)
    house.client.checkpoint.delete(checkpoint.checkpoint_id)


def test_what_another_machine_made_is_refused_in_a_sentence(own_house: Callable[..., House], tmp_path: Path) -> None:
    """A `runsc` of another version, which is ours under another name."""
    house = own_house()
    box = house.box()
    checkpoint = house.checkpoint(box)
    fake = tmp_path / "bin"
    fake.mkdir()
    house.daemon.stop()
    program = "import sys; import sandkeepd.providers.gvisor.runsc as r; r.version = lambda: '20991231.0'"
    house.daemon.program = [house.daemon.program[0], "-c", f"{program}; from sandkeepd.main import main; main()"]
    house.daemon.start()
    error = refused("not_supported", house.client.checkpoint.restore, checkpoint.checkpoint_id)
    assert "made by runsc" in error.message
    assert "20991231.0" in error.message
    assert house.client.sandbox.get(box).status == "running"


@pytest.mark.needs("root")
def test_a_full_disk_fails_the_checkpoint_and_not_the_sandbox(own_house: Callable[..., House], tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(small)], check=True)
    try:
        house = own_house(RUNSC_BUNDLE_DIR_BASE=str(small))
        box = house.box()
        house.counting(box)
        for order in (house.checkpoint, house.client.sandbox.suspend):
            assert "room" in refused("storage_unavailable", order, box).message
            house.goes_on(box)
        assert house.client.sandbox.get(box).status == "running"
        [failed] = house.client.checkpoint.list(all=True).checkpoints
        assert (failed.status, failed.files) == ("failed", [])
        house.end(box)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_an_image_stays_as_long_as_a_checkpoint_needs_it(house: House, source_tree: Path) -> None:
    own = house.client.image.create(str(source_tree), provider="gvisor", labels={"own": "yes"}).image_id
    box = house.client.sandbox.create(own).sandbox_id
    checkpoint = house.checkpoint(box)
    house.end(box)
    assert checkpoint.checkpoint_id in refused("in_use", house.client.image.remove, own).message
    [made] = house.restored(checkpoint)
    assert house.sh(made, "cat file") == "from the image\n"
    house.client.checkpoint.delete(checkpoint.checkpoint_id)
    refused("in_use", house.client.image.remove, own)
    house.end(made)
    house.client.image.remove(own)


def test_a_checkpoint_given_twice_is_made_once(house: House) -> None:
    box, command_id = house.box(), new_id("cmd")
    first = house.checkpoint(box, command_id=command_id)
    assert house.checkpoint(box, command_id=command_id).checkpoint_id == first.checkpoint_id
    again = new_id("cmd")
    made = house.restored(first, count=2, command_id=again)
    assert house.restored(first, count=2, command_id=again) == made
    assert len(house.client.checkpoint.list(sandbox_id=box).checkpoints) == 1
    for _ in range(2):
        deleted = house.client.checkpoint.delete(first.checkpoint_id, command_id=command_id + "d")
        assert deleted.status == "deleted"
    house.end(box, *made)


def test_a_sandbox_that_is_ended_while_it_is_kept_leaves_nothing(house: House) -> None:
    box = house.box()
    house.client.process.launch(box, ["python3", "-c", "x = bytearray(64 << 20); import time; time.sleep(1000)"])

    def keep() -> None:
        with house.daemon.connect() as other:
            try:
                other.checkpoint.create(box, leave_running=True)
            except SandkeepError:
                return

    import threading

    thread = threading.Thread(target=keep)
    thread.start()
    until(lambda: house.client.checkpoint.list(sandbox_id=box, all=True).checkpoints)
    house.end(box)
    thread.join(LATE)
    assert not thread.is_alive()
    assert house.client.sandbox.get(box).status == "stopped"
    for checkpoint in house.client.checkpoint.list(sandbox_id=box).checkpoints:
        house.client.checkpoint.delete(checkpoint.checkpoint_id)
    assert not any(box in line for line in house.ours())


# -- where it lies ----------------------------------------------------------------------------------------------------


def files_below(directory: str) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(root, name), directory) for root, _, names in os.walk(directory) for name in names
    )


def test_on_a_mount(own_house: Callable[..., House]) -> None:
    house = own_house(SANDBOX_CHECKPOINT_MOUNT_PATH="{root}/mount")
    mount = f"{house.daemon.root}/mount"
    os.mkdir(mount, 0o700)
    box = house.box()
    house.counting(box)
    checkpoint = house.checkpoint(box, archive="bucket")
    assert checkpoint.place.where == "mount"
    folder = f"sandbox_checkpoints/{checkpoint.checkpoint_id}"
    assert files_below(mount) == [f"{folder}/{name}" for name in FILES]
    assert files_below(f"{house.daemon.state_dir}/archives") == []
    [made] = house.restored(checkpoint)
    house.goes_on(made)
    assert files_below(f"{house.daemon.state_dir}/archives") == []
    house.client.checkpoint.delete(checkpoint.checkpoint_id)
    assert files_below(mount) == []
    house.end(box, made)


def die_restoring(house: House, box: str, checkpoint_id: str, asked: dict[str, Any]) -> list[Any]:
    """Kill the daemon once one sandbox of a checkpoint is made, and start it again; return those that are made."""
    house.daemon.stop()
    house.daemon.start(**{failpoints.SETTING: "sandbox.created:after"})
    with house.daemon.connect(patience_s=0) as client, pytest.raises(SandkeepError):
        client.checkpoint.restore(checkpoint_id, **asked)
    assert house.daemon.process is not None
    house.daemon.process.wait(patient(60))
    house.daemon.start()
    until(lambda: not [one for one in house.client.sandbox.list().sandboxes if one.status == "creating"])
    return [one for one in house.client.sandbox.list().sandboxes if one.sandbox_id != box]


def test_a_copy_goes_also_when_a_sandbox_cannot_be_made_after_all(own_house: Callable[..., House]) -> None:
    """The daemon dies when one of two is made, and somebody else has the name of the other by the next time."""
    house = own_house(SANDBOX_CHECKPOINT_MOUNT_PATH="{root}/mount")
    os.mkdir(f"{house.daemon.root}/mount", 0o700)
    box = house.box()
    checkpoint_id = house.checkpoint(box, archive="bucket").checkpoint_id
    for _ in range(20):
        asked = {"count": 2, "names": ["one", "two"], "command_id": new_id("cmd")}
        made, *others = die_restoring(house, box, checkpoint_id, asked)
        if not others:
            break
        house.end(made.sandbox_id, *(one.sandbox_id for one in others))  # one commit had both
    other = house.box(name="two" if made.name == "one" else "one")
    refused("conflict", house.client.checkpoint.restore, checkpoint_id, **asked)
    assert files_below(f"{house.daemon.state_dir}/archives") == []
    house.end(box, made.sandbox_id, other)
    house.client.checkpoint.delete(checkpoint_id)


@pytest.mark.needs("gcs")
def test_in_a_bucket(own_house: Callable[..., House], gcs: Any, gcs_bucket: str) -> None:
    house = own_house(SANDBOX_CHECKPOINT_BUCKET=gcs_bucket, STORAGE_EMULATOR_HOST=gcs.url)
    box = house.box()
    house.counting(box)
    checkpoint = house.checkpoint(box, leave_running=False)
    assert checkpoint.place.uri == f"gs://{gcs_bucket}/sandbox_checkpoints/{checkpoint.checkpoint_id}"
    house.client.sandbox.resume(box)
    made = house.restored(checkpoint, count=2)
    for one in made:
        house.goes_on(one)
    house.client.sandbox.restore(box, checkpoint_id=checkpoint.checkpoint_id)
    house.goes_on(box)
    document = Path(f"{house.daemon.state_dir}/sandboxes/{box}/metadata.json")
    path = f"sandbox_checkpoints/{checkpoint.checkpoint_id}/"
    until(lambda: f'"bucket": "{gcs_bucket}"' in document.read_text() and path in document.read_text())
    assert files_below(f"{house.daemon.state_dir}/archives") == []
    house.client.checkpoint.delete(checkpoint.checkpoint_id)
    refused("snapshot_not_ready", house.client.checkpoint.restore, checkpoint.checkpoint_id)
    house.end(box, *made)


def test_who_asks_for_a_bucket_and_has_none_is_told(house: House) -> None:
    box = house.box()
    error = refused("not_configured", house.client.checkpoint.create, box, archive="bucket")
    assert "SANDBOX_CHECKPOINT_BUCKET" in error.message
    assert house.client.checkpoint.list(sandbox_id=box, all=True).checkpoints == []
    house.end(box)
