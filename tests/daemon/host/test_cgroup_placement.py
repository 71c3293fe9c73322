"""Where the daemon and its sandboxes stand among control groups, under systemd and without it.

Directories stand for version 2 where its rules do not matter; where they do, the kernel's own tree is used. The groups
of version 1 are real as well.
"""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.service import Service

from sandkeep.errors import ProviderError
from sandkeepd.host.cgroups import placement
from sandkeepd.host.cgroups.groups import Hierarchies, Limits
from sandkeepd.host.cgroups.placement import SANDBOXES_UNIT, settle

LIMITS = Limits(pids=10, memory_bytes=1 << 20, cpus=0.5)
UNIT = "/system.slice/sandkeepd.service"
ALICE = 31337
USERS_UNIT = f"/user.slice/user-{ALICE}.slice/user@{ALICE}.service/app.slice/sandkeepd.service"
USERS_PLACE = f"{USERS_UNIT[1:].rpartition('/')[0]}/{SANDBOXES_UNIT}"
SCOPE = f"/user.slice/user-{ALICE}.slice/user@{ALICE}.service/app.slice/run-r1.scope"
OURS = {"SYSTEMD_EXEC_PID": str(os.getpid())}


def group(path: Path, *, delegated: bool = False, controllers: str = "cpu memory pids") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").write_text(controllers)
    (path / "cgroup.subtree_control").touch()
    if delegated:
        os.setxattr(path, "user.delegate", b"1")
    return path


def base(root: Path, own: str) -> dict[str, str]:
    """Where a sandbox's groups would be."""
    return Hierarchies(str(root), f"0::{own}\n").plan("sbx_1", LIMITS)


def test_started_by_hand_nothing_is_moved(tmp_path: Path) -> None:
    unit = group(tmp_path / UNIT[1:], delegated=True)
    for environ in ({}, {"SYSTEMD_EXEC_PID": "1"}):  # a variable that was inherited from somebody else's unit
        settle(str(tmp_path), f"0::{UNIT}\n", environ)
    assert sorted(path.name for path in unit.iterdir()) == ["cgroup.controllers", "cgroup.subtree_control"]
    (unit / "cgroup.subtree_control").write_text("pids")
    assert base(tmp_path, UNIT) == {"pids": f"{unit}/sandkeep/sbx_1"}


def test_what_was_not_delegated_is_not_touched(tmp_path: Path) -> None:
    unit = group(tmp_path / UNIT[1:])
    settle(str(tmp_path), f"0::{UNIT}\n", OURS)
    assert not (unit / "daemon").exists()
    assert base(tmp_path, UNIT) == {}


def test_with_a_unit_that_holds_the_place(tmp_path: Path) -> None:
    unit = group(tmp_path / UNIT[1:], delegated=True)
    place = group(unit.parent / SANDBOXES_UNIT, delegated=True)
    group(place / "sandboxes")
    settle(str(tmp_path), f"0::{UNIT}\n", OURS)
    assert (unit / "daemon" / "cgroup.procs").read_text() == str(os.getpid())
    assert (unit / "cgroup.subtree_control").read_text() == ""  # so that systemd can start the unit in it again
    assert (place / "cgroup.subtree_control").read_text() == "+cpu"  # the last word written; the kernel keeps all
    assert base(tmp_path, f"{UNIT}/daemon") == dict.fromkeys(("pids", "memory", "cpu"), f"{place}/sandboxes/sbx_1")


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("uid", "controllers", "is_ours"),
    [(ALICE, "memory pids", True), (ALICE, "", False), (ALICE + 1, "memory pids", False), (0, "memory pids", False)],
)
def test_a_users_manager_marks_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, controllers: str, is_ours: bool
) -> None:
    """The owner and the controllers of the groups are the sign instead."""
    unit, place = (group(tmp_path / name, controllers=controllers) for name in (USERS_UNIT[1:], USERS_PLACE))
    for directory in (unit, place):
        (directory / "cgroup.procs").touch()
        os.chown(directory / "cgroup.procs", ALICE if uid else 0, -1)
    group(place / "sandboxes", controllers=controllers)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    settle(str(tmp_path), f"0::{USERS_UNIT}\n", OURS)
    assert (unit / "daemon" / "cgroup.procs").exists() is is_ours
    expected = {"pids": f"{place}/sandboxes/sbx_1", "memory": f"{place}/sandboxes/sbx_1"} if is_ours else {}
    assert base(tmp_path, f"{USERS_UNIT}/daemon" if is_ours else USERS_UNIT) == expected


@pytest.mark.parametrize("others", ["", "1\n"])
def test_a_scope_of_its_own_holds_the_sandboxes(tmp_path: Path, others: str) -> None:
    """Not one in which other programs run, such as a terminal's: a group with processes hands no controllers on."""
    scope = group(tmp_path / SCOPE[1:], delegated=True)
    (scope / "cgroup.procs").write_text(f"{os.getpid()}\n{others}")
    group(scope / "sandboxes")
    settle(str(tmp_path), f"0::{SCOPE}\n", {})
    assert (scope / "daemon").exists() is (not others)
    assert (scope / "cgroup.subtree_control").read_text() == ("" if others else "+cpu")
    expected = {} if others else dict.fromkeys(("pids", "memory", "cpu"), f"{scope}/sandboxes/sbx_1")
    assert base(tmp_path, SCOPE if others else f"{SCOPE}/daemon") == expected


def test_a_place_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    """Its unit was stopped: the group would be systemd's to make."""
    unit = group(tmp_path / UNIT[1:], delegated=True)
    place = group(unit.parent / SANDBOXES_UNIT, delegated=True)
    made = group(place / "sandboxes")
    settle(str(tmp_path), f"0::{UNIT}\n", OURS)
    hierarchies = Hierarchies(str(tmp_path), f"0::{UNIT}/daemon\n")
    shutil.rmtree(place)
    with pytest.raises(ProviderError, match="Delegate=yes"):
        hierarchies.create({"pids": f"{made}/sbx_1"}, LIMITS)
    assert not place.exists()


def test_started_in_a_leaf_by_systemd(tmp_path: Path) -> None:
    unit = group(tmp_path / UNIT[1:], delegated=True)
    group(unit / "daemon")
    group(unit / "sandboxes", controllers="pids")
    settle(str(tmp_path), f"0::{UNIT}/daemon\n", OURS)
    assert (unit / "cgroup.subtree_control").read_text() == "+cpu"
    assert base(tmp_path, f"{UNIT}/daemon") == {"pids": f"{unit}/sandboxes/sbx_1"}


def test_without_a_place_the_unit_stays_startable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unit = group(tmp_path / UNIT[1:], delegated=True)
    settle(str(tmp_path), f"0::{UNIT}\n", OURS)
    assert (unit / "daemon" / "cgroup.procs").exists()
    assert (unit / "cgroup.subtree_control").read_text() == ""
    assert not Hierarchies(str(tmp_path), f"0::{UNIT}/daemon\n").has("pids")
    assert "could not be restarted" in caplog.text


def test_what_cannot_be_done_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unit = group(tmp_path / UNIT[1:], delegated=True)
    (unit / "daemon").write_text("in the way")
    settle(str(tmp_path), f"0::{UNIT}\n", OURS)
    assert "could not be taken" in caplog.text


# -- the kernel's own trees -------------------------------------------------------------------------------------------

# Become the main process of a unit in these groups, then settle and say where it is.
BECOME = """
import os, sys
for directory in sys.argv[1:]:
    open(f"{directory}/cgroup.procs", "w").write(str(os.getpid()))
from sandkeepd.host.cgroups import placement
from sandkeepd.host.cgroups.groups import Hierarchies, Limits
os.environ["SYSTEMD_EXEC_PID"] = str(os.getpid())
placement.settle()
groups = placement.parse(placement.membership())
limits = Limits(pids=10, memory_bytes=1 << 20, cpus=0.5)
print(groups.get("pids"), Hierarchies().plan("sbx_1", limits).get("pids"), flush=True)
sys.stdin.read()
"""


def remove(top: Path) -> None:
    """Remove a tree of groups that nobody is in any more."""
    for directory, _, _ in os.walk(top, topdown=False):
        os.rmdir(directory)


@pytest.fixture
def own_v1_groups() -> Iterator[dict[str, Path]]:
    """A unit's groups in version 1, as systemd makes them: one in each hierarchy, and the mark in its own."""
    root, name = Path(placement.ROOT), f"skt-{os.getpid()}.service"
    if not (root / "systemd" / "cgroup.procs").exists() or not (root / "pids" / "tasks").exists():
        pytest.skip("control groups of version 1 are not mounted here")
    mounted = [hierarchy for hierarchy in placement.CONTROLLERS if (root / hierarchy).is_dir()]
    made = {hierarchy: root / hierarchy / name for hierarchy in ("systemd", *mounted)}
    for directory in made.values():
        directory.mkdir()
    os.setxattr(made["systemd"], "trusted.delegate", b"1")
    yield made
    for directory in made.values():
        remove(directory)


@pytest.mark.needs("root")
def test_a_real_unit_of_version_1_and_its_restart(own_v1_groups: dict[str, Path]) -> None:
    groups = [str(directory) for directory in own_v1_groups.values()]
    name = own_v1_groups["pids"].name
    limits = Limits(pids=10)
    for _ in range(2):  # started again, systemd puts it into the unit's group again
        daemon = subprocess.Popen(
            [sys.executable, "-c", BECOME, *groups], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with daemon:
            assert daemon.stdin is not None
            assert daemon.stdout is not None
            where, plan = daemon.stdout.readline().split()
            assert where == f"/{name}/daemon"
            assert plan == f"{own_v1_groups['pids']}/sandboxes/sbx_1"
            daemon.stdin.close()
    hierarchies = Hierarchies(membership=f"1:pids:/{name}/daemon\n")
    made = hierarchies.plan("sbx_1", limits)
    hierarchies.create(made, limits)
    assert Path(made["pids"], "pids.max").read_text() == "10\n"


@pytest.mark.needs("root", "bwrap")
def test_a_daemon_as_a_real_unit(
    own_v1_groups: dict[str, Path], new_service: Callable[[], Service], tmp_path: Path
) -> None:
    """Started, used, started again in the unit's own group, and nothing of its sandboxes left in the end."""
    service, unit = new_service(), own_v1_groups["pids"]
    service.groups = [str(directory) for directory in own_v1_groups.values()]
    service.start()
    with service.connect() as client:
        image = client.image.create(str(tmp_path)).image_id
        sandbox = client.sandbox.create(image, memory_bytes=1 << 28).sandbox_id
        log_id = client.daemon.status().log_id
        assert client.sandbox.get(sandbox).isolation.limits["pids"] == "cgroup"
        assert client.sandbox.exec(sandbox, ["true"]).exit_code == 0
    service.stop()
    service.start()
    assert service.process is not None
    assert (unit / "daemon" / "cgroup.procs").read_text().split()[0] == str(service.process.pid)
    assert (unit / "cgroup.procs").read_text() == ""
    assert (unit / "sandboxes" / f"{log_id}.{sandbox}" / "cgroup.procs").read_text() != ""
    with service.connect() as client:
        assert client.sandbox.exec(sandbox, ["true"]).exit_code == 0
        client.sandbox.terminate(sandbox)
    service.stop()
    assert [path for path in (unit / "sandboxes").iterdir() if path.is_dir()] == []


@pytest.fixture
def v2_top() -> Iterator[tuple[Path, str]]:
    """A group of version 2 for this test, and a controller that it can hand on."""
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        controllers = (
            (root / "cgroup.controllers").read_text().split() if (root / "cgroup.controllers").exists() else []
        )
        usable = [name for name in controllers if name in (*placement.CONTROLLERS, "hugetlb", "misc", "rdma")]
        if usable and os.access(root / "cgroup.subtree_control", os.W_OK):
            break
    else:
        pytest.skip("no control groups of version 2 with a controller that can be handed on")
    controller = "memory" if "memory" in usable else usable[0]
    was = (root / "cgroup.subtree_control").read_text().split()
    placement.write(str(root / "cgroup.subtree_control"), f"+{controller}")
    top = root / f"skt-{os.getpid()}"
    top.mkdir()
    placement.write(str(top / "cgroup.subtree_control"), f"+{controller}")
    yield top, controller
    remove(top)
    if controller not in was:
        placement.write(str(root / "cgroup.subtree_control"), f"-{controller}")


@pytest.mark.needs("root")
def test_why_sandboxes_are_not_below_the_daemons_unit(
    v2_top: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernel's rules: a unit that hands controllers on cannot be started again, one beside a place can."""
    top, controller = v2_top
    monkeypatch.setattr(placement, "CONTROLLERS", (controller,))
    unit, place = top / "sandkeepd.service", top / SANDBOXES_UNIT
    unit.mkdir()
    place.mkdir()
    placement._delegate_controllers(str(place))
    placement._delegate_controllers(str(unit))
    placement.write(str(unit / "sandboxes" / "cgroup.subtree_control"), f"+{controller}")
    for parent in (unit, place):
        (parent / "sandboxes" / "sbx_1").mkdir()
    assert placement.sandboxes_parent_v2(f"{unit}/daemon")[0] == f"{place}/sandboxes"
    assert controller in placement.sandboxes_parent_v2(f"{unit}/daemon")[1]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        placement.write(str(unit / "sandboxes" / "sbx_1" / "cgroup.procs"), str(process.pid))
        assert why_not(unit / "cgroup.procs", str(os.getpid())) == errno.EBUSY  # what systemd meets at the restart
        assert why_not(unit / "cgroup.subtree_control", f"-{controller}") == errno.EBUSY  # and cannot undo
        placement.write(str(place / "sandboxes" / "sbx_1" / "cgroup.procs"), str(process.pid))
        placement.write(str(unit / "sandboxes" / "cgroup.subtree_control"), f"-{controller}")
        placement.write(str(unit / "cgroup.subtree_control"), f"-{controller}")
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as main:
            assert why_not(unit / "cgroup.procs", str(main.pid)) == 0
            assert main.stdin is not None
            main.stdin.close()
        assert process.stdin is not None
        process.stdin.close()


SETTLE = """
import os, sys
from sandkeepd.host.cgroups import placement
root, scope, controller = sys.argv[1:]
placement.CONTROLLERS = (controller,)
open(f"{root}{scope}/cgroup.procs", "w").write(str(os.getpid()))
placement.settle(root, f"0::{scope}\\n", {})
print([line.rpartition(":")[2] for line in placement.membership().splitlines() if line.startswith("0::")][0])
"""


@pytest.mark.needs("root")
def test_a_real_scope_hands_its_controllers_to_sandboxes(v2_top: tuple[Path, str]) -> None:
    top, controller = v2_top
    scope = top / "run-r1.scope"
    scope.mkdir()
    os.setxattr(scope, "trusted.delegate", b"1")
    argv = [sys.executable, "-c", SETTLE, str(top.parent), f"/{top.name}/{scope.name}", controller]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(f"/{scope.name}/daemon"), done
    assert controller in (scope / "sandboxes" / "cgroup.controllers").read_text().split()


def why_not(path: Path, text: str) -> int:
    """The error of writing to one of the kernel's files; 0 when it takes it."""
    try:
        placement.write(str(path), text)
    except OSError as error:
        return error.errno or -1
    return 0
