"""Control groups: what is planned where, for both versions, and that it holds."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.expect import until

from sandkeep.errors import ProviderError, StateError
from sandkeepd.host.cgroups import groups, usage
from sandkeepd.host.cgroups.groups import Hierarchies, Limits
from sandkeepd.host.processes import in_fresh_thread

LIMITS = Limits(pids=10, memory_bytes=1 << 20, cpus=0.5)


def version_1(root: Path) -> Hierarchies:
    for name in ("pids", "memory", "cpu", "cpuacct", "blkio"):
        (root / name / "own").mkdir(parents=True)
        (root / name / "own" / "tasks").touch()
    membership = "5:blkio:/own\n4:memory:/own\n3:pids:/own\n2:cpuacct:/own\n1:cpu:/own\n0::/\n"
    return Hierarchies(str(root), membership)


def version_2(root: Path, enabled: str = "cpu memory pids") -> Hierarchies:
    (root / "own").mkdir(parents=True)
    (root / "own" / "cgroup.subtree_control").write_text(enabled)
    return Hierarchies(str(root), "0::/own\n")


def test_a_plan_changes_nothing_and_names_only_what_is_needed(tmp_path: Path) -> None:
    hierarchies = version_1(tmp_path)
    plan = hierarchies.plan("sbx_1", Limits(pids=10))
    counting = ("pids", "memory", "cpuacct", "blkio")
    assert plan == {name: f"{tmp_path}/{name}/own/sandkeep/sbx_1" for name in counting}
    assert not os.path.exists(f"{tmp_path}/pids/own/sandkeep")
    assert hierarchies.plan("sbx_1", LIMITS)["cpu"] == f"{tmp_path}/cpu/own/sandkeep/sbx_1"
    assert version_2(tmp_path / "2").plan("sbx_1", LIMITS) == dict.fromkeys(
        ("pids", "memory", "cpu"), f"{tmp_path}/2/own/sandkeep/sbx_1"
    )


def test_what_is_written_in_version_1(tmp_path: Path) -> None:
    hierarchies = version_1(tmp_path)
    plan = hierarchies.plan("sbx_1", LIMITS)
    hierarchies.create(plan, LIMITS)
    assert Path(plan["pids"], "pids.max").read_text() == "10"
    assert Path(plan["memory"], "memory.limit_in_bytes").read_text() == str(1 << 20)
    assert Path(plan["cpu"], "cpu.cfs_quota_us").read_text() == "50000"
    assert hierarchies.wrapper(plan) == []


def test_what_is_written_in_version_2(tmp_path: Path) -> None:
    hierarchies = version_2(tmp_path)
    plan = hierarchies.plan("sbx_1", LIMITS)
    hierarchies.create(plan, LIMITS)
    directory = plan["cpu"]
    assert Path(directory, "pids.max").read_text() == "10"
    assert Path(directory, "memory.max").read_text() == str(1 << 20)
    assert Path(directory, "cpu.max").read_text() == "50000 100000"
    subprocess.run([*hierarchies.wrapper(plan), "true"], check=True)
    assert Path(directory, "cgroup.procs").read_text() == "0\n"


@pytest.mark.parametrize("make", [version_1, version_2])
def test_limits_that_are_changed(tmp_path: Path, make: Callable[[Path], Hierarchies]) -> None:
    hierarchies = make(tmp_path)
    before = Limits(pids=10)
    plan = hierarchies.plan("sbx_1", before)
    hierarchies.create(plan, before)
    written = Path(plan["pids"], "pids.max").stat().st_mtime_ns
    for directory in set(plan.values()):
        Path(directory, "cgroup.procs").write_text("")
    after = hierarchies.plan("sbx_1", LIMITS)
    hierarchies.change(after, LIMITS)
    file = "cpu.cfs_quota_us" if make is version_1 else "cpu.max"
    assert Path(after["cpu"], file).read_text().split()[0] == "50000"
    file = "memory.limit_in_bytes" if make is version_1 else "memory.max"
    assert Path(after["memory"], file).read_text() == str(1 << 20)
    assert Path(after["pids"], "pids.max").stat().st_mtime_ns == written  # it was in force


def test_memory_that_processes_need(tmp_path: Path) -> None:
    stat = tmp_path / "memory.stat"
    for text in ("anon 600\nfile 9000\nshmem 500\n", "cache 9000\ntotal_rss 600\ntotal_shmem 500\ntotal_cache 9\n"):
        stat.write_text(text)
        assert usage.occupied_memory({"memory": str(tmp_path)}) == 1100
        groups.require_enough_memory({"memory": str(tmp_path)}, 1100)
        with pytest.raises(StateError, match="in_use"):
            groups.require_enough_memory({"memory": str(tmp_path)}, 1099)
    groups.require_enough_memory({}, 1)


def test_controllers_that_were_not_delegated(tmp_path: Path) -> None:
    hierarchies = version_2(tmp_path, "pids")
    assert hierarchies.has("pids")
    assert not hierarchies.has("cpu")
    assert list(hierarchies.plan("sbx_1", LIMITS)) == ["pids"]
    assert hierarchies.uncounted() == ["memory"]
    assert version_1(tmp_path / "1").uncounted() == []
    nowhere = Hierarchies(str(tmp_path / "none"), "3:pids:/\n0::/\n")
    assert not nowhere.has("pids")
    assert nowhere.uncounted() == ["cpu time", "memory", "processes"]


def test_a_group_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "REMOVE_DEADLINE_S", 0.0)  # a plain directory with files in it is never removed
    hierarchies = version_1(tmp_path)
    plan = hierarchies.plan("sbx_1", LIMITS)
    (tmp_path / "cpu" / "own" / "sandkeep").write_text("in the way")
    with pytest.raises(ProviderError, match="provider_unavailable"):
        hierarchies.create(plan, Limits(pids=10, memory_bytes=1 << 20, cpus=0.5))


def test_a_group_that_would_only_count_is_done_without(tmp_path: Path) -> None:
    hierarchies = version_1(tmp_path)
    plan = hierarchies.plan("sbx_1", LIMITS)
    (tmp_path / "blkio" / "own" / "sandkeep").write_text("in the way")
    made = hierarchies.create(plan, LIMITS)
    assert plan.keys() - made.keys() == {"blkio"}
    in_fresh_thread(lambda: hierarchies.join_thread(made))
    assert Path(made["cpuacct"], "tasks").read_text().isdigit()


@pytest.mark.parametrize("joined", [False, True])
def test_controllers_that_share_a_hierarchy_have_one_group(tmp_path: Path, joined: bool) -> None:
    """As systemd mounts them: under one name of both, with a link for each."""
    name = "cpu,cpuacct" if joined else "cpuacct"
    (tmp_path / name / "own").mkdir(parents=True)
    (tmp_path / name / "own" / "tasks").touch()
    if joined:
        for link in ("cpu", "cpuacct"):
            (tmp_path / link).symlink_to(name)
    hierarchies = Hierarchies(str(tmp_path), f"1:{name}:/own\n")
    plan = hierarchies.plan("sbx_1", LIMITS)
    assert set(plan.values()) == {f"{tmp_path}/{name}/own/sandkeep/sbx_1"}
    hierarchies.create(plan, LIMITS)
    assert [os.path.basename(path) for path in hierarchies.found()] == ["sbx_1"]
    assert Path(plan["cpuacct"], "cpu.cfs_quota_us").exists() is joined


# -- groups that somebody else made -----------------------------------------------------------------------------------


def made_tree(root: Path, *directories: str, controllers: str = "") -> None:
    for directory in directories:
        (root / directory).mkdir(parents=True)
        if controllers:
            (root / directory / "cgroup.controllers").write_text(controllers)


def test_where_a_containers_first_process_is_in_version_1(tmp_path: Path) -> None:
    made_tree(tmp_path, "cpu,cpuacct/docker/c1", "memory/docker/c1", "pids/docker/c1", "blkio")
    for link in ("cpu", "cpuacct"):
        (tmp_path / link).symlink_to("cpu,cpuacct")
    text = "5:blkio:/\n4:memory:/docker/c1\n3:pids:/docker/c1\n2:cpu,cpuacct:/docker/c1\n1:name=systemd:/docker/c1\n"
    assert groups.groups_of_pid(1, str(tmp_path), text) == {
        "pids": f"{tmp_path}/pids/docker/c1",
        "memory": f"{tmp_path}/memory/docker/c1",
        "cpu": f"{tmp_path}/cpu,cpuacct/docker/c1",
        "cpuacct": f"{tmp_path}/cpu,cpuacct/docker/c1",
    }


def test_where_it_is_in_version_2(tmp_path: Path) -> None:
    made_tree(tmp_path, "system.slice/docker-c1.scope", controllers="cpuset cpu io memory pids")
    found = groups.groups_of_pid(1, str(tmp_path), "0::/system.slice/docker-c1.scope\n")
    assert found == dict.fromkeys(("pids", "memory", "cpu", "io"), f"{tmp_path}/system.slice/docker-c1.scope")


def test_where_it_is_when_both_are_mounted(tmp_path: Path) -> None:
    made_tree(tmp_path, "memory/docker/c1")
    made_tree(tmp_path, "unified/docker/c1", controllers="pids memory")
    assert groups.groups_of_pid(1, str(tmp_path), "4:memory:/docker/c1\n0::/docker/c1\n") == {
        "memory": f"{tmp_path}/memory/docker/c1",
        "pids": f"{tmp_path}/unified/docker/c1",
    }


@pytest.mark.parametrize(
    "path",
    ["/", "/../..", "/docker/../..", "/none", "/docker/c1 (deleted)"],
    ids=["root", "out", "up", "gone", "ended"],
)
def test_groups_that_are_not_the_containers_own_are_not_taken_for_such(tmp_path: Path, path: str) -> None:
    made_tree(tmp_path, "root/memory/docker")
    (tmp_path / "root" / "cgroup.controllers").write_text("memory")
    assert groups.groups_of_pid(1, f"{tmp_path}/root", f"4:memory:{path}\n0::{path}\n") == {}


def test_of_a_process_that_has_gone_or_is_in_our_own_groups() -> None:
    assert groups.groups_of_pid(2**22 + 1) == {}
    assert groups.groups_of_pid(os.getpid()) == {}


def test_removing_what_is_not_there(tmp_path: Path) -> None:
    groups.remove({"pids": str(tmp_path / "none")})
    assert groups.members({"pids": str(tmp_path / "none")}) == []
    assert not groups.ran_out_of_memory({})


@pytest.mark.needs("root")
def test_a_real_group_holds_what_a_thread_starts() -> None:
    hierarchies = Hierarchies()
    if not hierarchies.has("pids"):
        pytest.skip("no writable pids control group")
    plan = hierarchies.plan(f"sbx_test{os.getpid()}", Limits(pids=5))
    hierarchies.create(plan, Limits(pids=5))

    def inside() -> "subprocess.Popen[bytes]":
        hierarchies.join_thread(plan)
        return subprocess.Popen([*hierarchies.wrapper(plan), "sleep", "1000"])

    sleeper = in_fresh_thread(inside)
    try:
        until(lambda: groups.members(plan) == [sleeper.pid])
    finally:
        sleeper.kill()
        sleeper.wait()
        groups.remove(plan)
    assert not os.path.exists(plan["pids"])
