"""What every provider with layers keeps: what a sandbox began with, and what it has now, can be compared."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.conftest import World, no_progress, sh
from tests.support.kubernetes.images import TOOLS

from sandkeep.ids import new_id
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.images import ImageRequest
from sandkeepd.contract.snapshots import Source
from sandkeepd.providers.common.views import shown

REFERRED = {"kubernetes", "modal"}
"""The kinds whose sandboxes are made of a container image, whose workspace is empty."""


async def bare(world: World) -> None:
    """Have sandboxes that begin with an empty workspace."""
    world.files, world.shared = {}, False
    if world.kind in REFERRED:
        wanted = ImageRequest(kind="reference", source=TOOLS, published=None)
    else:
        empty = world.state.parent / "empty"
        empty.mkdir(mode=0o755)
        base = None if world.engine is None else world.engine.guest()
        wanted = ImageRequest(kind="directory", source=str(empty), base=base, published=None)
    world.image_id = new_id("img")
    caller = Caller(uid=os.geteuid(), gid=os.getegid())
    world.details = (await world.provider.images.make(world.image_id, wanted, caller, no_progress)).details


async def files_of(world: World, plan: Mapping[str, Any]) -> list[str]:
    assert world.provider.layers is not None
    found = await world.provider.layers.workspace(plan, world.image_id)
    with shown(*found.roots, above=str(world.state)) as root:
        return sorted(os.listdir(root))


@pytest.mark.parametrize("begins_empty", [False, True], ids=["files", "empty"])
async def test_the_files_at_the_beginning_and_now(world: World, begins_empty: bool, tmp_path: Path) -> None:
    layers = world.provider.layers
    if layers is None or layers.no_forks is not None:
        pytest.skip("it keeps no files")
    if begins_empty:
        await bare(world)
    instance = await world.sandbox()
    began = (await sh(instance, "ls")).split()
    await sh(instance, "echo new >made")
    plan, point = world.plans[instance.sandbox_id], new_id("frk")
    source = Source(
        sandbox_id=instance.sandbox_id, image_id=world.image_id, plan=plan, handle=world.handles[instance.sandbox_id]
    )
    kept = await layers.freeze(point, source)
    try:
        assert (began == []) == begins_empty
        assert await files_of(world, {**plan, **kept.files}) == sorted([*began, "made"])
        if not (world.kind == "modal" and began):  # the files of whose images are at Modal alone
            assert await files_of(world, plan) == began
    finally:
        await layers.discard_layers([point])
