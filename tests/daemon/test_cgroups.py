"""Control groups: what is planned where, for both versions, and that it holds."""

import os
import subprocess
from pathlib import Path

import pytest

from sandkeep.errors import ProviderError
from sandkeepd import cgroups
from sandkeepd.cgroups import Hierarchies, Limits
from sandkeepd.hostprocess import in_fresh_thread

LIMITS = Limits(pids=10, memory_bytes=1 << 20, cpus=0.5)


def version_1(root: Path) -> Hierarchies:
    for name in ("pids", "memory", "cpu"):
        (root / name / "own").mkdir(parents=True)
        (root / name / "own" / "tasks").touch()
    return Hierarchies(str(root), "4:memory:/own\n3:pids:/own\n2:cpu,cpuacct:/own\n1:name=systemd:/own\n0::/\n")


def version_2(root: Path, enabled: str = "cpu memory pids") -> Hierarchies:
    (root / "own").mkdir(parents=True)
    (root / "own" / "cgroup.subtree_control").write_text(enabled)
    return Hierarchies(str(root), "0::/own\n")


def test_a_plan_changes_nothing_and_names_only_what_is_needed(tmp_path: Path) -> None:
    hierarchies = version_1(tmp_path)
    plan = hierarchies.plan("sbx_1", Limits(pids=10))
    assert plan == {"pids": f"{tmp_path}/pids/own/sandkeep/sbx_1"}
    assert not os.path.exists(f"{tmp_path}/pids/own/sandkeep")
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


def test_controllers_that_were_not_delegated(tmp_path: Path) -> None:
    hierarchies = version_2(tmp_path, "pids")
    assert hierarchies.has("pids")
    assert not hierarchies.has("cpu")
    assert list(hierarchies.plan("sbx_1", LIMITS)) == ["pids"]
    assert not Hierarchies(str(tmp_path / "none"), "3:pids:/\n0::/\n").has("pids")


def test_a_group_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    hierarchies = version_1(tmp_path)
    plan = hierarchies.plan("sbx_1", LIMITS)
    (tmp_path / "cpu" / "own" / "sandkeep").write_text("in the way")
    with pytest.raises(ProviderError, match="provider_unavailable"):
        hierarchies.create(plan, Limits(pids=10, memory_bytes=1 << 20, cpus=0.5))


def test_removing_what_is_not_there(tmp_path: Path) -> None:
    cgroups.remove({"pids": str(tmp_path / "none")})
    assert cgroups.members({"pids": str(tmp_path / "none")}) == []
    assert not cgroups.ran_out_of_memory({})


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
        assert cgroups.members(plan) == [sleeper.pid]
    finally:
        sleeper.kill()
        sleeper.wait()
        cgroups.remove(plan)
    assert not os.path.exists(plan["pids"])
