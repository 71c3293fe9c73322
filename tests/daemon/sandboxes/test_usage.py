"""What is read from control groups, of both versions; that nothing made up is told; and what a real sandbox uses."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.conftest import RunningDaemon
from tests.support.boxes import Box, new_box
from tests.support.expect import refused, until
from tests.support.inside import inside
from tests.support.patience import patient
from tests.support.users import NOBODY, as_user

from sandkeep.blocking import connect
from sandkeep.model import SandboxStats
from sandkeep.settings.daemon import MEMORY_LIMIT
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.cgroups import usage
from sandkeepd.host.cgroups.usage import Usage, measure, oom_kills

MIB = 1 << 20
TICK = os.sysconf("SC_CLK_TCK")


def features(client: Any) -> dict[str, Any]:
    """What the local provider can do here."""
    [local] = [one for one in client.daemon.capabilities().providers if one.provider == "local"]
    return dict(local.features)


def files(directory: Path, **contents: str) -> str:
    """A group of such files; in their names a dot is written as two underscores."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (directory / name.replace("__", ".")).write_text(text)
    return str(directory)


def group_v1(root: Path) -> dict[str, str]:
    return {
        "pids": files(root / "pids", pids__current="3\n", pids__max="512\n", pids__events="max 4\n"),
        "cpu": files(root / "cpu", cpu__cfs_quota_us="150000\n", cpu__cfs_period_us="100000\n"),
        "cpuacct": files(root / "cpuacct", cpuacct__usage="2500000000\n", cpuacct__stat="user 150\nsystem 90\n"),
        "memory": files(
            root / "memory",
            memory__usage_in_bytes=f"{10 * MIB}\n",
            memory__max_usage_in_bytes=f"{12 * MIB}\n",
            memory__limit_in_bytes=f"{64 * MIB}\n",
            memory__stat=f"cache 5\ninactive_file 1\ntotal_inactive_file {3 * MIB}\n",
            memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        ),
        "blkio": files(
            root / "blkio",
            blkio__throttle__io_service_bytes_recursive="8:0 Read 4096\n8:0 Write 100\n8:0 Sync 4196\n"
            "8:0 Async 0\n8:0 Total 4196\n8:16 Read 1\n8:16 Write 0\n8:16 Total 1\nTotal 4197\n",
        ),
    }


def group_v2(root: Path) -> dict[str, str]:
    directory = files(
        root / "group",
        cgroup__controllers="cpu io memory pids\n",
        cpu__stat="usage_usec 2500000\nuser_usec 1500000\nsystem_usec 900000\nnr_periods 0\n",
        cpu__max="150000 100000\n",
        memory__current=f"{10 * MIB}\n",
        memory__peak=f"{12 * MIB}\n",
        memory__max=f"{64 * MIB}\n",
        memory__stat=f"anon 5\ninactive_file {3 * MIB}\n",
        memory__events="low 0\nhigh 0\nmax 5\noom 2\noom_kill 2\noom_group_kill 0\n",
        pids__current="3\n",
        pids__max="512\n",
        pids__events="max 4\n",
        io__stat="8:0 rbytes=4096 wbytes=100 rios=1 wios=1 dbytes=7 dios=1\n8:16 rbytes=1 wbytes=0 rios=1\n8:32 \n",
    )
    return dict.fromkeys(("pids", "memory", "cpu", "io"), directory)


ALL = Usage(
    cpu_s=2.5, cpu_user_s=1.5, cpu_system_s=0.9, cpus_limit=1.5, memory_bytes=7 * MIB, memory_peak_bytes=12 * MIB,
    memory_limit_bytes=64 * MIB, pids=3, pids_limit=512, pids_refused=4,
    io_read_bytes=4097, io_written_bytes=100, oom_kills=2,
)  # fmt: skip


def test_all_that_version_1_tells(tmp_path: Path) -> None:
    groups = group_v1(tmp_path)
    files(tmp_path / "cpuacct", cpuacct__stat=f"user {3 * TICK // 2}\nsystem {9 * TICK // 10}\n")
    assert measure(groups) == ALL
    assert oom_kills(groups) == 2


def test_all_that_version_2_tells(tmp_path: Path) -> None:
    groups = group_v2(tmp_path)
    assert measure(groups) == ALL
    assert oom_kills(groups) == 2


def test_controllers_of_version_1_in_one_directory(tmp_path: Path) -> None:
    groups = group_v1(tmp_path)
    for name in os.listdir(groups["cpu"]):
        os.rename(f"{groups['cpu']}/{name}", f"{groups['cpuacct']}/{name}")
    found = measure(groups | {"cpu": groups["cpuacct"]})
    assert found is not None
    assert (found.cpu_s, found.cpus_limit) == (2.5, 1.5)


def test_both_versions_at_once(tmp_path: Path) -> None:
    """Some controllers are still in hierarchies of version 1; what the group of version 2 does not tell changes
    nothing.
    """
    old = group_v1(tmp_path)
    new = files(tmp_path / "unified", cgroup__controllers="pids\n", pids__current="4\n", pids__max="max\n")
    found = measure({"pids": new, "memory": old["memory"], "cpuacct": old["cpuacct"]})
    assert found is not None
    assert (found.pids, found.pids_limit, found.cpu_s, found.memory_bytes) == (4, None, 2.5, 7 * MIB)


def test_no_limit_is_none(tmp_path: Path) -> None:
    old, new = group_v1(tmp_path / "1"), group_v2(tmp_path / "2")
    files(Path(old["cpu"]), cpu__cfs_quota_us="-1\n")
    files(Path(old["memory"]), memory__limit_in_bytes="9223372036854771712\n")
    files(Path(new["cpu"]), cpu__max="max 100000\n", memory__max="max\n", pids__max="max\n")
    files(Path(old["pids"]), pids__max="max\n")
    for found in (measure(old), measure(new)):
        assert found is not None
        assert (found.cpus_limit, found.memory_limit_bytes, found.pids_limit) == (None, None, None)
        assert found.memory_bytes == 7 * MIB


def test_more_in_the_cache_than_in_use_is_nothing_and_not_less(tmp_path: Path) -> None:
    """The two files were not written in the same instant."""
    groups = group_v2(tmp_path)
    files(Path(groups["memory"]), memory__stat=f"inactive_file {11 * MIB}\n")
    found = measure(groups)
    assert found is not None
    assert found.memory_bytes == 0


# -- what is not told -------------------------------------------------------------------------------------------------


def test_of_groups_that_nobody_has_everything_is_unknown() -> None:
    assert measure({}) == Usage()
    assert oom_kills({}) is None


def test_of_groups_that_have_gone_there_is_no_sample(tmp_path: Path) -> None:
    assert measure({"pids": f"{tmp_path}/none", "memory": f"{tmp_path}/none"}) is None


@pytest.mark.parametrize("make", [group_v1, group_v2])
def test_a_file_that_is_missing_makes_one_value_unknown_and_no_other(
    tmp_path: Path, make: Callable[[Path], dict[str, str]]
) -> None:
    groups = make(tmp_path)
    whole = measure(groups)
    assert whole is not None
    for directory in sorted(set(groups.values())):
        for name in sorted(os.listdir(directory)):
            if name == "cgroup.controllers":
                continue
            os.rename(f"{directory}/{name}", tmp_path / "away")
            found = measure(groups)
            os.rename(tmp_path / "away", f"{directory}/{name}")
            assert found is not None
            lost = [field for field in Usage.__struct_fields__ if getattr(found, field) is None]
            changed = [field for field in Usage.__struct_fields__ if getattr(found, field) != getattr(whole, field)]
            assert changed == (lost or ["memory_bytes"])  # without its `memory.stat` nobody knows what can be reclaimed
            assert len(changed) <= 3


@pytest.mark.parametrize(
    "text", ["", "\n", "-5\n", "1e9\n", "0x10\n", "٣\n", "7" * 30, "\x00" * 100, "max\n", "1 2 3\n"], ids=repr
)
@pytest.mark.parametrize("make", [group_v1, group_v2])
def test_what_is_no_number_is_not_believed(tmp_path: Path, make: Callable[[Path], dict[str, str]], text: str) -> None:
    groups = make(tmp_path)
    for directory in set(groups.values()):
        for name in os.listdir(directory):
            if name != "cgroup.controllers":
                Path(directory, name).write_text(text)
    found = measure(groups)
    assert found is not None
    silent = {"io_read_bytes": 0, "io_written_bytes": 0} if make is group_v2 else {}  # no line for any disk
    assert found == Usage(**silent)


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    groups = group_v2(tmp_path)
    Path(groups["io"], "io.stat").unlink()
    os.mkfifo(Path(groups["io"], "io.stat"))
    Path(groups["memory"], "memory.stat").unlink()
    Path(groups["memory"], "memory.stat").symlink_to("/dev/zero")
    Path(groups["memory"], "memory.current").write_text("7\n" * usage.MOST_BYTES)
    found = measure(groups)
    assert found is not None
    assert found.memory_bytes is None
    assert found.pids == 3


def test_disks_that_version_1_does_not_count_are_told_by_the_processes(tmp_path: Path) -> None:
    groups = group_v1(tmp_path)
    Path(groups["blkio"], "blkio.throttle.io_service_bytes_recursive").write_text("Total 0\n")
    found = measure(groups)
    assert found is not None
    assert found.io_read_bytes is None
    files(Path(groups["pids"]), cgroup__procs=f"{os.getpid()}\n{2**22 + 1}\n")  # the second has just ended
    found = measure(groups)
    assert found is not None
    assert found.io_written_bytes is not None
    files(Path(groups["pids"]), cgroup__procs=f"{os.getpid()}\n" * (usage.MOST_PROCESSES + 1))
    found = measure(groups)
    assert found is not None
    assert found.io_written_bytes is None


# -- real sandboxes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def box(shared_daemon: RunningDaemon, client: Any, image: str) -> Iterator[Box]:
    limits = features(client)
    if not all(limits[f"limit_{name}"].works and not limits[f"limit_{name}"].why for name in ("memory", "pids")):
        pytest.skip("no writable control groups")
    with new_box(shared_daemon, image, memory_bytes=128 * MIB, pids=100, cpus=1.5) as made:
        yield made


def stats(box: Box) -> SandboxStats:
    [found] = box.client.sandbox.stats(sandbox_id=box.id).sandboxes
    assert isinstance(found, SandboxStats)
    return found


@pytest.mark.needs("bwrap", "root")
def test_a_real_sandbox_and_its_limits(box: Box) -> None:
    found = stats(box)
    assert (found.cpus_limit, found.memory_limit_bytes, found.pids_limit) == (1.5, 128 * MIB, 100)
    assert (found.provider, found.owner, found.running_processes) == ("local", "uid:0", 0)
    assert found.pids is not None
    assert found.pids >= 2  # bubblewrap's first process and the keeper
    assert found.sampled_at.endswith("Z")


@pytest.mark.needs("bwrap", "root")
def test_what_is_done_inside_is_counted(box: Box) -> None:
    before = stats(box)
    box.client.process.launch(box.id, ["sh", "-c", "while :; do :; done"], name="spin")
    until(lambda: (stats(box).cpu_s or 0) > (before.cpu_s or 0) + 0.2)
    until(lambda: stats(box).pids == (before.pids or 0) + 1)
    assert stats(box).running_processes == 1
    box.client.process.signal(box.id, "spin", signal="KILL")
    box.client.process.wait(box.id, "spin")
    # What goes by the cache may be written by the kernel's own threads, and is nobody's then.
    box.sh(f"head -c {20 * MIB} /dev/zero >file; dd if=/dev/zero of=direct bs=1M count=20 oflag=direct")
    until(lambda: (stats(box).io_written_bytes or 0) >= (before.io_written_bytes or 0) + 20 * MIB)
    written = stats(box)
    assert (written.memory_bytes or 0) < (written.memory_peak_bytes or 0)  # the file is in the cache
    assert (written.memory_peak_bytes or 0) >= 20 * MIB


@pytest.mark.needs("bwrap", "root")
def test_counts_never_become_less_while_processes_come_and_go(box: Box) -> None:
    """What is summed up from processes may miss one that ends in that instant."""
    script = "i=0; while [ $i -lt 60 ]; do head -c 100000 /dev/zero >f$i; i=$((i+1)); done"

    def work() -> None:
        with box.daemon.connect() as client:
            client.sandbox.exec(box.id, ["sh", "-c", script])

    worker = threading.Thread(target=work)
    worker.start()
    samples = [stats(box)]
    while worker.is_alive():
        samples.append(stats(box))
    worker.join()
    for name in ("cpu_s", "io_read_bytes", "io_written_bytes", "oom_kills", "memory_peak_bytes"):
        counts = [getattr(sample, name) for sample in samples]
        assert counts == sorted(counts)


@pytest.mark.needs("bwrap", "root")
def test_all_of_the_callers_sandboxes_page_by_page(box: Box, shared_daemon: RunningDaemon, image: str) -> None:
    with new_box(shared_daemon, image) as second, new_box(shared_daemon, image) as third:
        first = box.client.sandbox.stats(limit=2)
        rest = box.client.sandbox.stats(limit=2, after=first.next)
        assert [found.sandbox_id for found in first.sandboxes + rest.sandboxes] == [box.id, second.id, third.id]
        assert rest.next is None
        assert (rest.sandboxes[0].memory_limit_bytes, rest.sandboxes[0].cpus_limit) == (MEMORY_LIMIT({}), None)
        socket = shared_daemon.socket

        def somebody() -> int:
            with connect(socket) as client:
                refused("not_found", client.sandbox.stats, sandbox_id=third.id)
                return len(client.sandbox.stats().sandboxes)

        os.chmod(socket, 0o666)
        assert as_user(NOBODY, somebody) == 0
    refused("not_ready", box.client.sandbox.stats, sandbox_id=third.id)
    refused("not_found", box.client.sandbox.stats, sandbox_id="sbx_none")
    assert [found.sandbox_id for found in box.client.sandbox.stats().sandboxes] == [box.id]


@pytest.mark.needs("bwrap", "root")
def test_one_that_ends_meanwhile_is_left_out(box: Box, shared_daemon: RunningDaemon, image: str) -> None:
    """Its first process is killed from outside: the list is made while the daemon finds out."""
    with shared_daemon.connect() as client:
        made = client.sandbox.create(image).sandbox_id
        log_id = client.daemon.status().log_id
        groups = {"pids": f"/sys/fs/cgroup/pids/sandkeep/{log_id}.{made}"}
        for pid in cgroups.members(groups):
            with suppress(ProcessLookupError):  # with the first of a namespace all others end
                os.kill(pid, 9)
        until(lambda: [found.sandbox_id for found in client.sandbox.stats().sandboxes] == [box.id])
        client.sandbox.terminate(made)


async def test_a_provider_that_cannot_measure_makes_nothing_up(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        made = await daemon.call("sandbox.create", image_id=image_id)
        await daemon.call("process.launch", sandbox_id=made.sandbox_id, command=["sleep", "100"], name="rest")
        with trio.fail_after(patient(60)):
            [found] = (await daemon.call("sandbox.stats")).sandboxes
        assert found == SandboxStats(
            sandbox_id=made.sandbox_id,
            provider="fake",
            owner="uid:0",
            sampled_at=found.sampled_at,
            created_at=made.created_at,
            running_processes=1,
        )
        await daemon.call("sandbox.terminate", sandbox_id=made.sandbox_id)
        assert (await daemon.call("sandbox.stats")).sandboxes == []
