"""The host uid of a sandbox is its own: while it lives, when it ends, and for a while after that."""

import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.conformance.conftest import World, run, sh
from tests.support.ledgers import Owning
from tests.support.patience import patient

from sandkeep.errors import ProviderError
from sandkeep.ids import new_id
from sandkeepd.contract.instance import Instance
from sandkeepd.host import processes
from sandkeepd.host.cgroups import freezer, placement
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.cgroups.groups import Hierarchies, Limits
from sandkeepd.host.processes import owned_by, pids_where
from sandkeepd.host.uids.registry import Registry
from sandkeepd.providers.local.provider import LocalProvider

pytestmark = [pytest.mark.needs("bwrap", "root"), pytest.mark.parametrize("world", ["local"], indirect=True)]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """That of a machine of its own, so that the test sees all of it."""
    path = str(tmp_path / "uids")
    monkeypatch.setenv("SANDKEEP_UID_REGISTRY", path)
    return Registry(path)


@pytest.fixture
async def another(registry: Registry, world: World) -> AsyncIterator[World]:
    """A second daemon of the same machine, with the same settings."""
    second = World("local", world.state.parent / "second", world.source)
    second.state.mkdir()
    async with AsyncExitStack() as stack:
        await second.open(stack)
        await second.import_image()
        yield second
        for sandbox_id in list(second.plans):
            await second.terminate(sandbox_id)


@pytest.fixture
def escape() -> Iterator[Callable[[int], "subprocess.Popen[bytes]"]]:
    """Starts what got out of a sandbox: it has its uid, and is in no control group or namespace of the sandbox's."""
    begun = []

    def begin(uid: int) -> "subprocess.Popen[bytes]":
        begun.append(subprocess.Popen(["sleep", "1000"], user=uid, group=uid, extra_groups=[], start_new_session=True))
        return begun[-1]

    yield begin
    for child in begun:
        child.kill()
        child.wait()


async def box(world: World, sandbox_id: str) -> Instance:
    """A sandbox whose id its caller has chosen."""
    plan = world.plans[sandbox_id] = world.plan(sandbox_id)
    instance = await world.provider.create(sandbox_id, world.image_id, world.spec(), {}, plan)
    world.handles[sandbox_id] = instance.handle
    return instance


def local(world: World) -> LocalProvider:
    assert isinstance(world.provider, LocalProvider)
    return world.provider


def uid_of(world: World, sandbox_id: str) -> int:
    return int(world.plans[sandbox_id]["uid"])


async def test_nothing_of_an_ended_sandbox_can_look_at_the_next(
    registry: Registry, world: World, escape: Callable[[int], "subprocess.Popen[bytes]"]
) -> None:
    """A sandbox that has the uid of one before could be read by what the code of that one has left."""
    first = await box(world, "chosen-by-one")
    uid = uid_of(world, first.sandbox_id)
    left = escape(uid)
    await world.terminate(first.sandbox_id)
    assert left.wait(patient(60)) == -9
    assert pids_where(owned_by(uid)) == []
    found = registry.read(uid)
    assert found is not None
    assert (found.state, found.sandbox_id) == ("resting", "chosen-by-one")
    again = await box(world, "chosen-by-one")
    assert uid_of(world, again.sandbox_id) != uid
    assert await sh(again, "echo alive") == "alive\n"


async def test_what_has_escaped_goes_also_when_a_sandbox_is_halted(
    registry: Registry, world: World, escape: Callable[[int], "subprocess.Popen[bytes]"]
) -> None:
    instance = await world.sandbox()
    uid = uid_of(world, instance.sandbox_id)
    left = escape(uid)
    revival = local(world).revival
    assert revival is not None
    await revival.halt(instance.sandbox_id, world.plans[instance.sandbox_id], instance.handle)
    assert left.wait(patient(60)) == -9
    found = registry.read(uid)
    assert found is not None
    assert found.state == "claimed", "its files are kept, to be started anew"


async def test_undoing_a_creation_leaves_another_daemons_sandbox(
    registry: Registry, world: World, another: World
) -> None:
    """One that has the same id, and, as daemons had that knew no registry, the same uid."""
    theirs = await box(another, "box")
    uid = uid_of(another, "box")
    plan = {**world.plan("box"), "uid": uid, "gid": uid}
    await world.provider.terminate("box", plan, {})
    await world.provider.cleared("box")
    await world.provider.clean_up(Owning(images=None))
    assert await theirs.is_alive()
    assert await sh(theirs, "echo alive") == "alive\n"
    with pytest.raises(ProviderError, match=f"host uid {uid} of sandbox box was taken by another"):
        await world.provider.create("box", world.image_id, world.spec(), {}, plan)
    assert await theirs.is_alive()
    found = registry.read(uid)
    assert found is not None
    assert (found.state, found.log_id) == ("claimed", another.log_id)


async def test_hundreds_of_two_daemons_share_none(registry: Registry, world: World, another: World) -> None:
    uids = [one.plan(f"same{number}")["uid"] for number in range(300) for one in (world, another)]
    assert len(set(uids)) == 600
    assert {entry.state for entry in registry.entries().values()} == {"claimed", "images"}


async def test_one_of_an_earlier_version_is_claimed_when_it_is_taken_over(registry: Registry, world: World) -> None:
    instance = await world.sandbox()
    plan, uid = world.plans[instance.sandbox_id], uid_of(world, instance.sandbox_id)
    registry.remove(uid)
    async with AsyncExitStack() as stack:
        successor = World("local", world.state, world.source)
        successor.log_id = world.log_id
        await successor.open(stack)
        adopted = await successor.provider.adopt(
            instance.sandbox_id, world.spec(), plan, instance.isolation, instance.handle
        )
        assert adopted is not None
        found = registry.read(uid)
        assert found is not None
        assert (found.state, found.sandbox_id) == ("claimed", instance.sandbox_id)


async def test_a_creation_that_fails_gives_its_uid_back(registry: Registry, world: World) -> None:
    sandbox_id = new_id("sbx")
    plan = world.plan(sandbox_id)
    local(world).layout.sandbox(sandbox_id)
    Path(local(world).layout.sandbox(sandbox_id)).mkdir(parents=True)
    (Path(local(world).layout.sandbox(sandbox_id)) / "upper").write_text("in the way")
    with pytest.raises(ProviderError):
        await world.provider.create(sandbox_id, world.image_id, world.spec(), {}, plan)
    found = registry.read(plan["uid"])
    assert found is not None
    assert found.state == "resting"


async def test_a_registry_that_cannot_be_written(registry: Registry, world: World) -> None:
    """Nothing is created without a claim, and what runs ends all the same."""
    instance = await world.sandbox()
    os.rename(registry.path, f"{registry.path}.away")
    Path(registry.path).write_text("in the way")
    with pytest.raises(ProviderError, match="SANDKEEP_UID_REGISTRY"):
        world.plan(new_id("sbx"))
    pidfd = os.pidfd_open(instance.handle["first"]["pid"])
    await world.terminate(instance.sandbox_id)
    assert processes.has_ended(pidfd)
    os.close(pidfd)


@pytest.mark.needs("freezer")
async def test_what_cannot_be_ended_keeps_its_uid(
    registry: Registry,
    world: World,
    escape: Callable[[int], "subprocess.Popen[bytes]"],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The sandbox is ended, and its uid is nobody's for as long as the machine runs."""
    hierarchies = Hierarchies()
    groups = hierarchies.plan(f"skt-frozen-{os.getpid()}", Limits(pids=10))
    if "freezer" not in groups or not os.path.isdir("/sys/fs/cgroup/freezer"):
        pytest.skip("what stands still in version 2 is killed at once")
    instance = await world.sandbox()
    uid = uid_of(world, instance.sandbox_id)
    left = escape(uid)
    hierarchies.create(groups, Limits(pids=10))
    try:
        switch = freezer.switch_of(groups)
        assert switch is not None
        placement.write(f"{groups['freezer']}/cgroup.procs", str(left.pid))
        placement.write(switch.file, switch.freeze)
        freezer.wait_until(lambda: freezer.are_frozen(groups))
        await world.terminate(instance.sandbox_id)
        found = registry.read(uid)
        assert found is not None
        assert found.state == "stuck"
        assert "uid not given out again" in caplog.text
        told = (await world.provider.clean_up(Owning(images=None))).foreign
        assert [one for one in told if one.startswith(f"host uid {uid} of sandbox {instance.sandbox_id}")]
        await world.provider.terminate(instance.sandbox_id, world.plan(new_id("sbx")) | {"uid": uid, "gid": uid}, {})
        await world.provider.cleared(instance.sandbox_id)
    finally:
        freezer.thaw(groups)
        left.kill()
        left.wait()
        cgroups.remove(groups)
    found = registry.read(uid)
    assert found is not None
    assert found.state == "stuck"


async def test_without_isolation_its_callers_processes_are_not_ended(
    registry: Registry, world: World, escape: Callable[[int], "subprocess.Popen[bytes]"]
) -> None:
    """There a sandbox has its caller's uid, which is never claimed."""
    bare = await world.sandbox(isolation="none")
    shell = escape(world.caller.uid)
    await run(bare, "sleep", "0")
    await world.terminate(bare.sandbox_id)
    assert shell.poll() is None
    assert world.caller.uid not in registry.entries()
