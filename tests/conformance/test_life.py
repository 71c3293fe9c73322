"""Sandboxes that stand still, go on, and are started anew, by every provider that can do that."""

import os
import signal
from collections.abc import Iterator

import pytest
import trio
from tests.conformance.conftest import KINDS, World, run, sh, start
from tests.support.expect import DEADLINE_S
from tests.support.kubernetes import live

from sandkeepd.contract.instance import Instance

COUNT = "while :; do n=$(date +%N); echo $n >>said; echo $n; sleep 0.01; done"
SAVED = pytest.param("kubernetes", marks=[pytest.mark.needs("root"), pytest.mark.needs("runsc")])
pytestmark = pytest.mark.parametrize("world", ["fake", *KINDS[1:-2], SAVED], indirect=True)
"""The plain provider cannot do that; the fake one is that, and can. Of a cluster's pods, gVisor's can be saved."""


@pytest.fixture(autouse=True)
def gvisor_pods(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have pods that can be saved. A snapshot takes a while to be ready, in which its pod goes on."""
    if "kubernetes" in request.node.name:
        live.require_saving()
    monkeypatch.setenv("SANDKEEP_KUBERNETES_RUNTIME_CLASS", "gvisor")
    cluster = request.getfixturevalue("kubernetes") if "kubernetes" in request.node.name else None
    if cluster is not None:
        cluster.script(snapshot_delay_s=0.3)
    yield
    if cluster is not None:
        cluster.script(snapshot_delay_s=0)


def size(instance: Instance, process_id: str) -> int:
    return instance.read(process_id, "stdout", 0, 0).size


async def test_what_is_suspended_stands_still_and_goes_on(world: World) -> None:
    instance = await world.sandbox()
    pauses = instance.pauses
    assert pauses is not None
    if pauses.no_pauses:
        pytest.skip(pauses.no_pauses)
    assert not pauses.is_paused()
    counting = await start(instance, "sh", "-c", COUNT)
    await instance.wait_output(counting, 0, 0)
    await pauses.suspend()
    written = size(instance, counting)
    await pauses.suspend()
    assert (pauses.is_paused(), size(instance, counting)) == (True, written)
    async with trio.open_nursery() as nursery:
        asked = list[tuple[int | None, bytes, bytes]]()

        @nursery.start_soon
        async def ask() -> None:
            asked.append(await run(instance, "echo", "hi"))

        await trio.testing.wait_all_tasks_blocked(0.1)
        assert asked == []  # requests wait
        for _ in range(2):
            await pauses.resume()
    assert (asked, pauses.is_paused()) == ([(0, b"hi\n", b"")], False)
    with trio.fail_after(DEADLINE_S):
        await instance.wait_output(counting, written, 0)
    for _ in range(2):
        await pauses.suspend()
        await pauses.resume()
    await instance.signal(counting, signal.SIGKILL)
    said = instance.read(counting, "stdout", 0, 1 << 20).data
    assert len(said.splitlines()) > 1
    assert (await sh(instance, "cat said")).encode().startswith(said)  # there is nothing that it will not remember


async def test_what_is_suspended_is_adopted_so_and_can_be_ended(world: World) -> None:
    instance = await world.sandbox()
    pauses = instance.pauses
    assert pauses is not None
    if pauses.no_pauses:
        pytest.skip(pauses.no_pauses)
    counting = await start(instance, "sh", "-c", COUNT)
    await pauses.suspend()
    await instance.aclose()
    plan = world.plans[instance.sandbox_id]
    other = await world.provider.adopt(instance.sandbox_id, world.spec(), plan, instance.isolation, instance.handle)
    assert other is not None
    assert other.pauses is not None
    assert other.pauses.is_paused()
    await other.pauses.resume()
    assert await other.find(counting) is not None
    assert await sh(other, "echo hi") == "hi\n"
    busy = [await start(other, "sh", "-c", "while :; do echo x; done") for _ in range(4)]
    for process_id in busy:
        await other.wait_output(process_id, 0, 0)
    await other.pauses.suspend()
    written = [size(other, process_id) for process_id in busy]
    with trio.fail_after(DEADLINE_S):
        await world.terminate(other.sandbox_id)
        await other.ended()
    if world.kind in ("local", "none"):  # what was suspended does nothing more before it ends
        sizes = [world.provider.read_ended(other.sandbox_id, name, "stdout", 0, 0).size for name in busy]
        assert sizes == written
    assert (await world.provider.found())[0] == []


async def test_what_ended_by_itself_is_started_anew_on_its_files(world: World) -> None:
    if world.kind in ("gvisor", "kubernetes", "modal"):  # its files go with it; it comes back from checkpoints
        assert world.provider.revival is None
        restart = (await world.provider.capabilities()).features.get("restart")
        assert world.kind == "gvisor" or (restart is not None and not restart.works and restart.why)
        return
    assert world.provider.revival is not None
    instance = await world.sandbox({"TOKEN": "first"})
    earlier = await start(instance, "sh", "-c", "echo $TOKEN; echo kept >kept; sleep 1000")
    await instance.wait_output(earlier, 0, 0)
    await sh(instance, "until [ -s kept ]; do sleep 0.01; done")
    for secret in ("second", "third"):
        os.kill(instance.handle["first"]["pid"], signal.SIGKILL)
        with trio.fail_after(DEADLINE_S):
            await instance.ended()
        await instance.aclose()
        plan = world.plans[instance.sandbox_id]
        instance = await world.provider.revival.revive(
            instance.sandbox_id, world.image_id, world.spec(), {"TOKEN": secret}, plan, instance.handle
        )
        world.handles[instance.sandbox_id] = instance.handle
        assert await sh(instance, "cat kept; echo $TOKEN") == f"kept\n{secret}\n"
        assert instance.read(earlier, "stdout", 0, 100).data == b"first\n"
    with trio.fail_after(DEADLINE_S):
        for _ in range(2):
            await world.provider.revival.halt(instance.sandbox_id, plan, instance.handle)
        await instance.ended()
    assert (await world.provider.found())[0] == [instance.sandbox_id]
