"""Limits of memory, CPUs and processes are changed while a sandbox runs, as it is typed."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.boxes import Box, group_of, new_box
from tests.support.expect import refused, until
from tests.support.inside import inside
from tests.support.patience import patient

from sandkeep import failpoints
from sandkeep.errors import SandkeepError, StateError
from sandkeep.ids import new_id
from sandkeepd.contract.resizing import LimitChange, Resizing
from sandkeepd.host.cgroups.groups import needs_more

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("bwrap")]

MIB = 1 << 20
HELD = "import sys; held = bytearray(b'x') * (96 << 20); print('holds', flush=True); sys.stdin.read()"


def require_groups(client: Any) -> None:
    [found] = [one for one in client.daemon.capabilities().providers if one.provider == "local"]
    for limit in ("limit_memory", "limit_cpus", "limit_pids"):
        if why := found.features[limit].why:
            pytest.skip(why)


@pytest.fixture
def box(shared_daemon: RunningDaemon, client: Any, image: str) -> Iterator[Box]:
    require_groups(client)
    with new_box(shared_daemon, image) as made:
        yield made


def limits_of(client: Any, box: str) -> tuple[Any, Any, Any]:
    """The limits as the kernel has them."""
    found = client.sandbox.stats(sandbox_id=box).sandboxes[0]
    return found.memory_limit_bytes, found.cpus_limit, found.pids_limit


def test_limits_are_changed_while_it_runs(box: Box) -> None:
    runs = box.client.process.launch(box.id, ["sleep", "1000"]).process_id
    words = ("--memory", "256M", "--cpus", "0.5", "--pids", "40")
    done = box.daemon.cli("update", box.id, *words)
    assert (done.returncode, done.stdout.decode()) == (0, f"{box.id}\n"), done.stderr
    assert limits_of(box.client, box.id) == (256 * MIB, 0.5, 40)
    found = box.client.sandbox.get(box.id)
    assert (found.spec.memory_bytes, found.spec.cpus, found.spec.pids) == (256 * MIB, 0.5, 40)
    assert {name: found.isolation.limits[name] for name in ("memory", "cpus", "pids")} == dict.fromkeys(
        ("memory", "cpus", "pids"), "cgroup"
    )
    assert box.client.process.get(box.id, runs).status == "running"
    # One alone leaves the others as they are; forks have all.
    assert box.daemon.cli("update", box.id, "--memory", "128M").returncode == 0
    assert limits_of(box.client, box.id) == (128 * MIB, 0.5, 40)
    [fork] = box.client.sandbox.fork(box.id).sandboxes
    assert limits_of(box.client, fork.sandbox_id) == (128 * MIB, 0.5, 40)
    box.client.sandbox.terminate(fork.sandbox_id)
    assert b"memory limit" in box.daemon.cli("history", box.id).stdout


def test_every_process_gets_a_cpu_limit_that_is_new(box: Box) -> None:
    """Also those that run already, and their children, where they have to move into a group."""
    box.client.process.launch(box.id, ["sh", "-c", "while :; do sleep 0.01; done"], name="forks")
    assert box.daemon.cli("update", box.id, "--cpus", "0.25").returncode == 0
    instance = box.client.sandbox.get(box.id)
    assert instance.spec.cpus == 0.25
    inside = box.sh("cat /proc/self/cgroup /proc/1/cgroup").decode()
    groups = [line for line in inside.splitlines() if "cpu" in line.split(":")[1].split(",")]
    assert not groups or all(box.id in line for line in groups)  # version 2 has one group for all
    assert limits_of(box.client, box.id)[1] == 0.25


def test_memory_below_what_is_used_is_refused_and_kills_nothing(box: Box) -> None:
    before = box.client.sandbox.get(box.id).spec
    box.client.process.launch(box.id, ["python3", "-c", HELD], name="holds", stdin=True)
    until(lambda: b"holds" in box.client.process.read(box.id, "holds").stdout, patient(60))
    done = box.daemon.cli("update", box.id, "--memory", "32M")
    assert done.returncode == 1
    assert b"end some, or choose a higher limit" in done.stderr
    assert box.client.process.get(box.id, "holds").status == "running"
    assert box.client.sandbox.get(box.id).spec == before
    assert box.daemon.cli("update", box.id, "--memory", "512M").returncode == 0


def test_the_limit_of_processes_goes_down_and_is_told(box: Box) -> None:
    for number in range(12):
        box.client.process.launch(box.id, ["sleep", "1000"], name=f"p{number}")
    assert box.client.sandbox.get(box.id).note is None
    assert box.daemon.cli("update", box.id, "--pids", "8").returncode == 0
    assert "which is its limit" in (box.client.sandbox.get(box.id).note or "")
    assert box.daemon.cli("update", box.id, "--pids", "100").returncode == 0
    assert box.client.sandbox.get(box.id).note is None
    box.sh("true")


def test_what_is_refused_says_why(box: Box) -> None:
    done = box.daemon.cli("update", box.id)
    assert done.returncode == 2
    assert b"give a limit to change" in done.stderr
    done = box.daemon.cli("update", box.id, "--network", "none")
    assert done.returncode == 1
    assert b"create another from that" in done.stderr
    refused("invalid", box.client.sandbox.update, box.id)
    refused("invalid", box.client.sandbox.update, box.id, memory_bytes=1)


@pytest.mark.parametrize("point", ["update.reserved", "update.recorded", "update.applied"])
def test_a_death_while_limits_are_changed(new_daemon: Callable[[], RunningDaemon], tmp_path: Path, point: str) -> None:
    daemon, command_id = new_daemon(), new_id("cmd")
    asked = {"memory_bytes": 256 * MIB, "cpus": 0.5, "pids": 40}
    daemon.start(**{failpoints.SETTING: point})
    with daemon.connect(patience_s=1) as client:
        require_groups(client)
        box = client.sandbox.create(client.image.create(str(tmp_path)).image_id, memory_bytes=64 * MIB).sandbox_id
        before = limits_of(client, box)
        with suppress(SandkeepError):
            client.sandbox.update(box, **asked, command_id=command_id)
    assert daemon.process is not None
    daemon.process.wait(patient(60))
    daemon.start()
    with daemon.connect() as client:
        client.sandbox.exec(box, ["true"])  # it is adopted
        expected = before if point == "update.reserved" else (256 * MIB, 0.5, 40)
        assert limits_of(client, box) == expected
        client.sandbox.update(box, **asked, command_id=command_id)
        assert limits_of(client, box) == (256 * MIB, 0.5, 40)
        client.sandbox.terminate(box)


def test_nothing_is_written_at_an_adoption_without_need(
    new_daemon: Callable[[], RunningDaemon], tmp_path: Path
) -> None:
    """A value that differs stays in a sandbox whose limits were never changed: nobody looks."""
    daemon = new_daemon()
    daemon.start()
    with daemon.connect() as client:
        require_groups(client)
        image = client.image.create(str(tmp_path)).image_id
        boxes = [client.sandbox.create(image, pids=50).sandbox_id for _ in range(2)]
        client.sandbox.update(boxes[0], pids=60)
        limits = {box: group_of(box) / "pids.max" for box in boxes}
    daemon.stop()
    for limit in limits.values():
        limit.write_text("70")
    daemon.start()
    with daemon.connect() as client:
        for box in boxes:
            client.sandbox.exec(box, ["true"])
        assert [limits[box].read_text() for box in boxes] == ["60\n", "70\n"]
        for box in boxes:
            client.sandbox.terminate(box)


class RefusingResizing(Resizing):
    """Applies nothing above a limit, as version 1 of control groups, when its check came too early."""

    def __init__(self) -> None:
        self.applied: list[int | None] = []

    async def reserve(self, sandbox_id: str, plan: dict[str, Any], change: LimitChange) -> dict[str, Any]:
        return {**plan, "memory_bytes": change.memory_bytes}

    async def apply(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        if plan.get("memory_bytes") == 32 * MIB:
            raise needs_more(32 * MIB)
        self.applied.append(plan.get("memory_bytes"))


async def test_a_limit_that_cannot_be_put_in_force_is_taken_back(state_dir: str, source: str) -> None:
    async with inside(state_dir) as world:
        world.provider.resizing = resizing = RefusingResizing()
        image_id = await world.image(source)
        await world.call("sandbox.create", image_id=image_id, name="box", memory_bytes=64 * MIB)
        with pytest.raises(StateError, match="in_use"):
            await world.call("sandbox.update", sandbox_id=world.id_of(), memory_bytes=32 * MIB, cpus=1.5)
        found = await world.call("sandbox.get", sandbox_id=world.id_of())
        assert (found.spec.memory_bytes, found.spec.cpus, found.status) == (64 * MIB, None, "running")
        assert (await world.types(world.id_of())).count("sandbox.updated") == 2
        await world.call("sandbox.update", sandbox_id=world.id_of(), memory_bytes=128 * MIB)
        assert resizing.applied[-1] == 128 * MIB
