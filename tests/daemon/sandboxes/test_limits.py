"""A limit that was met is told: by the command that met it, and by `get`, `ps`, `history` and `stats`. And it is
changed while the sandbox runs.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.boxes import Box, new_box
from tests.support.expect import refused, until
from tests.support.patience import patient

from sandkeep import failpoints
from sandkeep.errors import SandkeepError
from sandkeep.ids import new_id
from sandkeepd.providers.common.disks import Disks
from sandkeepd.providers.common.layout import Layout

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("bwrap")]

MIB = 1 << 20
SIZE = 32 * MIB
LARGER = 80 * MIB
PIDS = 24

FULL = "the sandbox's disk limit of 32 MB is reached: remove files, or `sandkeep update --disk`"
CROWDED = f"processes could not be started: the sandbox's limit is {PIDS}"
LATE = "it reached its time limit of 0.2 s"

FILL = "cat /dev/zero >big"
FORK = """import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
try:
    while os.fork(): pass
    time.sleep(1000)
except BlockingIOError:
    print("crowded", flush=True)
    signal.sigwait([signal.SIGUSR1])
    sys.exit(3)
"""


def features(client: Any) -> dict[str, Any]:
    [local] = [one for one in client.daemon.capabilities().providers if one.provider == "local"]
    return dict(local.features)


@pytest.fixture
def box(shared_daemon: RunningDaemon, image: str) -> Iterator[Box]:
    with new_box(shared_daemon, image, disk_bytes=SIZE, pids=PIDS) as made:
        yield made


def stats_of(box: Box) -> Any:
    return box.client.sandbox.stats(sandbox_id=box.id).sandboxes[0]


def test_a_full_disk_is_told(box: Box) -> None:
    assert not box.client.sandbox.get(box.id).note
    assert stats_of(box).disk_bytes < stats_of(box).disk_limit_bytes == SIZE
    done = box.daemon.cli("exec", box.id, "--", "sh", "-c", FILL)
    assert done.returncode == 1
    assert done.stderr.decode().endswith(f"sandkeep: {FULL}\n")
    failed = box.client.sandbox.exec(box.id, ["false"])
    assert (failed.exit_code, failed.limits_met, failed.error) == (1, ["disk"], FULL)
    assert box.client.sandbox.exec(box.id, ["true"]).error is None
    box.client.process.launch(box.id, ["false"], name="named")
    for command in (["wait"], ["logs", "--follow"]):
        assert box.daemon.cli(*command, box.id, "named").stderr.decode() == f"sandkeep: {FULL}\n"
    assert box.client.process.get(box.id, "named").limits_met == ["disk"]
    found = box.client.sandbox.get(box.id)
    assert found.note == "its disk is full: remove files, or `sandkeep update --disk`"
    assert found.limits_met == {"disk": 3}
    shown = box.daemon.cli("get", box.id).stdout.decode()
    assert "its disk is full" in shown
    assert "disk by 3" in shown
    assert b"disk limit" in box.daemon.cli("ps", box.id, "--all").stdout
    assert b"exit 1  disk limit" in box.daemon.cli("history", box.id).stdout
    assert SIZE - MIB < stats_of(box).disk_bytes <= SIZE
    assert b"32 MB/32 MB" in box.daemon.cli("stats", box.id, "--once").stdout
    assert f"}} {SIZE}\n" in box.daemon.cli("stats", box.id, "--prometheus").stdout.decode()
    assert json.loads(box.daemon.cli("stats", box.id, "--json").stdout)[0]["disk_limit_bytes"] == SIZE
    box.sh("rm big")
    assert box.client.sandbox.get(box.id).note is None
    assert box.client.sandbox.exec(box.id, ["false"]).error is None


def test_a_disk_that_became_full_is_told_although_the_program_did_not_mind(box: Box) -> None:
    done = box.daemon.cli("exec", box.id, "--", "sh", "-c", f"{FILL}; exit 0")
    assert done.returncode == 0
    assert b"it exited with 0, but the sandbox's disk became full while it ran" in done.stderr
    assert done.stderr.count(b"sandkeep:") == 1
    (ended,) = box.client.process.list(box.id, all=True).processes
    assert (ended.limits_met, ended.error, ended.exit_code) == (["disk"], None, 0)
    assert b"exited 0, disk limit" in box.daemon.cli("ps", box.id, "--all").stdout
    assert b"exit 0  disk limit" in box.daemon.cli("history", box.id).stdout
    assert box.client.sandbox.get(box.id).limits_met == {"disk": 1}
    later = box.daemon.cli("exec", box.id, "--", "true")  # the disk was full before, and it wrote nothing
    assert (later.returncode, later.stderr) == (0, b"")


def test_the_limit_of_processes_is_told(box: Box) -> None:
    if features(box.client)["limit_pids"].why:
        pytest.skip("no pids control group")
    box.client.process.launch(box.id, ["python3", "-c", FORK], name="forks")
    until(lambda: box.client.process.read(box.id, "forks").stdout)
    assert box.client.sandbox.get(box.id).note == f"it has {PIDS} processes, which is its limit: end some"
    assert stats_of(box).pids_refused == 1
    box.client.process.signal(box.id, "forks", signal="USR1")
    told = box.daemon.cli("wait", box.id, "forks")
    assert (told.returncode, told.stderr.decode()) == (3, f"sandkeep: {CROWDED}\n")
    ended = box.client.process.get(box.id, "forks")
    assert (ended.limits_met, ended.error) == (["pids"], CROWDED)
    assert b"exit 3  process limit" in box.daemon.cli("history", box.id).stdout
    assert box.client.sandbox.get(box.id).limits_met == {"pids": 1}


def test_the_time_limit_is_told(box: Box) -> None:
    done = box.client.sandbox.exec(box.id, ["sleep", "1000"], timeout_s=0.2)
    assert (done.limits_met, done.error, done.timed_out) == (["time"], LATE, True)
    assert box.client.sandbox.get(box.id).limits_met == {"time": 1}
    told = box.daemon.cli("exec", box.id, "--timeout", "200ms", "--", "sleep", "1000")
    assert (told.returncode, told.stderr.decode()) == (124, f"sandkeep: {LATE}\n")
    box.client.process.launch(box.id, ["sleep", "1000"], name="late", timeout_s=0.2)
    told = box.daemon.cli("wait", box.id, "late")
    assert (told.returncode, told.stderr.decode()) == (124, f"sandkeep: {LATE}\n")
    assert box.client.sandbox.get(box.id).limits_met == {"time": 3}
    assert stats_of(box).timeouts == 3
    assert b"exit 124  time limit" in box.daemon.cli("history", box.id).stdout


def test_another_failure_is_not_that(box: Box) -> None:
    done = box.client.sandbox.exec(box.id, ["false"])
    assert (done.exit_code, done.limits_met, done.error) == (1, [], None)
    assert box.client.sandbox.get(box.id).limits_met == {}


def test_an_approximate_limit_is_no_explicit_one(shared_daemon: RunningDaemon, image: str) -> None:
    with new_box(shared_daemon, image) as box:
        message = refused("not_supported", box.client.sandbox.update, box.id, disk_bytes=64 * MIB).message
        assert "its limit is approximate" in message
        found = box.client.sandbox.get(box.id)
        assert (found.spec.disk_bytes, found.isolation.limits["disk"]) == (None, "approximate")
        assert b" disk, approximate\n" in box.daemon.cli("get", box.id).stdout
        assert "the default limit is approximate" in features(box.client)["limit_disk"].why


def test_a_disk_does_not_shrink(box: Box) -> None:
    refused("not_supported", box.client.sandbox.update, box.id, disk_bytes=SIZE // 2)
    assert box.client.sandbox.get(box.id).spec.disk_bytes == SIZE


def test_where_disks_cannot_grow_that_is_said(box: Box) -> None:
    grows = features(box.client)["grow_disk"]
    if grows.works:
        pytest.skip("they can")
    error = refused("not_supported", box.client.sandbox.update, box.id, disk_bytes=LARGER)
    assert grows.why in error.message
    assert os.stat(Path(box.daemon.state_dir, "disks", box.id)).st_size == SIZE


def test_what_was_reserved_and_never_recorded_is_returned(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    layout.prepare()
    disks, image = Disks(layout), Path(layout.disk("sbx_1"))
    disks.make("sbx_1", SIZE)
    try:
        Path(layout.sandbox("sbx_1"), "file").write_bytes(bytes(MIB))
        refused("storage_unavailable", disks.reserve, "sbx_1", 1 << 50)
        assert image.stat().st_size == SIZE
        disks.reserve("sbx_1", LARGER)
        assert image.stat().st_blocks * 512 >= LARGER
        disks.fit("sbx_1", SIZE)
        assert image.stat().st_size == SIZE
        disks.fit("sbx_1", SIZE // 2)  # no file system is cut off
        assert image.stat().st_size == SIZE
        hole = ["fallocate", "--punch-hole", "--offset", str(SIZE - MIB), "--length", str(MIB), str(image)]
        subprocess.run(hole, check=True)  # as the kernel clears the tables of inodes of a disk that has grown
        disks.fit("sbx_1", SIZE)
        assert image.stat().st_blocks * 512 >= SIZE
        assert Path(layout.sandbox("sbx_1"), "file").read_bytes() == bytes(MIB)
    finally:
        disks.release("sbx_1")


@pytest.mark.parametrize("point", ["update.reserved", "update.recorded", "update.applied"])
def test_a_death_while_a_limit_is_changed(new_daemon: Callable[[], RunningDaemon], tmp_path: Path, point: str) -> None:
    daemon, command_id = new_daemon(), new_id("cmd")
    daemon.start(**{failpoints.SETTING: point})
    with daemon.connect(patience_s=1) as client:
        box = client.sandbox.create(client.image.create(str(tmp_path)).image_id).sandbox_id
        with suppress(SandkeepError):
            client.sandbox.update(box, pids=PIDS, command_id=command_id)
    assert daemon.process is not None
    daemon.process.wait(patient(60))
    daemon.start()
    with daemon.connect() as client:
        client.sandbox.exec(box, ["true"])  # it is adopted
        recorded = None if point == "update.reserved" else PIDS
        assert client.sandbox.get(box).spec.pids == recorded
        client.sandbox.update(box, pids=PIDS, command_id=command_id)
        assert client.sandbox.get(box).spec.pids == stats_of(Box(daemon, client, box)).pids_limit == PIDS
        client.sandbox.terminate(box)


# -- growing, which takes a capability that not every machine's root has ---------------------------------------------


def needs_growth(client: Any) -> None:
    grows = features(client)["grow_disk"]
    if not grows.works:
        pytest.skip(grows.why)


def test_a_disk_grows_under_its_writer(box: Box) -> None:
    needs_growth(box.client)
    enough = f'[ "$(stat -c %s log)" -gt {LARGER - 24 * MIB} ]'  # the larger disk does not become full
    write = "head -c 1M /dev/urandom >>log 2>/dev/null; sync log"
    writes = f"until [ -e stop ] || {enough}; do {write}; done; sha256sum <log"
    writer = box.client.process.launch(box.id, ["sh", "-c", writes]).process_id
    until(lambda: box.client.sandbox.get(box.id).note)
    command_id = new_id("cmd")
    for _ in range(2):
        updated = box.client.sandbox.update(box.id, disk_bytes=LARGER, command_id=command_id)
        assert updated.spec.disk_bytes == LARGER
    assert box.client.sandbox.get(box.id).note is None
    until(lambda: int(box.sh("stat -c %s log")) > SIZE)
    box.write("stop", b"")
    assert box.client.process.wait(box.id, writer).exit_code == 0
    assert box.daemon.cli("logs", box.id, writer).stdout == box.sh("sha256sum <log")
    assert stats_of(box).disk_limit_bytes == LARGER
    logged = int(box.sh("stat -c %s log"))
    box.client.sandbox.exec(box.id, ["sh", "-c", FILL])
    assert int(box.sh("rm log; stat -c %s big")) + logged > LARGER - 8 * MIB
    box.sh("rm big")
    [fork] = box.client.sandbox.fork(box.id).sandboxes
    assert fork.spec.disk_bytes == LARGER
    assert os.stat(Path(box.daemon.state_dir, "disks", fork.sandbox_id)).st_size == LARGER
    box.client.sandbox.terminate(fork.sandbox_id)
    refused("storage_unavailable", box.client.sandbox.update, box.id, disk_bytes=1 << 50)
    assert os.stat(Path(box.daemon.state_dir, "disks", box.id)).st_size == LARGER


@pytest.mark.parametrize("point", ["update.reserved", "update.recorded", "disk.extended", "update.applied"])
def test_a_death_at_every_step(new_daemon: Callable[[], RunningDaemon], tmp_path: Path, point: str) -> None:
    daemon = new_daemon()
    daemon.start(**{failpoints.SETTING: point})
    command_id = new_id("cmd")
    with daemon.connect(patience_s=1) as client:
        needs_growth(client)
        box = client.sandbox.create(client.image.create(str(tmp_path)).image_id, disk_bytes=SIZE).sandbox_id
        client.sandbox.exec(box, ["sh", "-c", FILL])
        with suppress(SandkeepError):
            client.sandbox.update(box, disk_bytes=LARGER, command_id=command_id)
    assert daemon.process is not None
    daemon.process.wait(patient(60))
    daemon.start()
    recorded = SIZE if point == "update.reserved" else LARGER
    image = Path(daemon.state_dir, "disks", box)
    with daemon.connect() as client:
        client.sandbox.exec(box, ["true"])  # it is adopted
        assert client.sandbox.get(box).spec.disk_bytes == image.stat().st_size == recorded
        assert client.sandbox.get(box).note == (FULL_NOTE if recorded == SIZE else None)
        client.sandbox.update(box, disk_bytes=LARGER, command_id=command_id)
        assert client.sandbox.exec(box, ["sh", "-c", "head -c 40M /dev/zero >more"]).exit_code == 0
        client.sandbox.terminate(box)


FULL_NOTE = "its disk is full: remove files, or `sandkeep update --disk`"
