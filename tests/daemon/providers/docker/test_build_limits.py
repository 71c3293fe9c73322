"""Limits of builds on a real engine, attacked by Dockerfiles: resources, time, network, and the owners' separation."""

# ruff: noqa: F811 - `world` is a fixture of another file

import grp
import json
import os
import socket
import subprocess
from contextlib import closing, suppress
from glob import glob
from pathlib import Path

import pytest
import trio
from tests.daemon.providers.docker.test_images import BUSYBOX, World, world  # noqa: F401  # a fixture
from tests.support.expect import until_async
from tests.support.ledgers import Owning
from tests.support.patience import patient

from sandkeep.ids import IMAGE, new_id
from sandkeepd.contract.caller import Caller
from sandkeepd.providers.docker import build_group
from sandkeepd.providers.docker.build_group import BuildGroup

pytestmark = pytest.mark.needs("docker")

ENDLESS = "while :; do :; done"
HOG = "x=a; while :; do x=$x$x; done"
FILL = "i=0; while [ $((i += 1)) -lt 200 ]; do sleep 1000 & done"
BOMB = "import os\nwhile 1:\n  try: os.fork()\n  except OSError: pass"


def groups(world: World) -> list[str]:
    """The control groups of this engine's builds. Those of others are beside them."""
    return glob(f"/sys/fs/cgroup/**/{build_group.TOP}/{world.log_id}.img_*", recursive=True)


# -- what a build uses ------------------------------------------------------------------------------------------------


async def test_builds_are_limited_here(world: World) -> None:
    features = (await world.provider.capabilities()).features
    assert (features["limit_builds"].works, features["limit_builds"].why) == (True, None)


async def test_a_build_has_no_more_processes_than_the_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKEEP_BUILD_PIDS", "40")
    before = world.everything()
    full = trio.Event()

    async def hear(words: str) -> None:
        if words.endswith(": it is full"):
            full.set()

    world.write(Dockerfile=f"FROM {BUSYBOX}\nRUN ({FILL}); while echo it is full; do sleep 1; done\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: world.image(progress=hear))
        with trio.fail_after(patient(60)):
            await full.wait()
        (group,) = [path for path in groups(world) if "/pids/" in path]
        assert Path(group, "pids.peak").read_text() == "40\n"
        nursery.cancel_scope.cancel()
    assert groups(world) == []
    await until_async(lambda: not set(world.everything()) - set(before))


async def test_a_lack_of_processes_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKEEP_BUILD_PIDS", "40")
    said = await world.fails("invalid", f"FROM {BUSYBOX}\nRUN {FILL}\n")
    first, *last = said.split("\n")
    assert first.endswith("with exit code 2, at its limit of 40 processes (SANDKEEP_BUILD_PIDS)")
    assert "can't fork" in last[-1]
    assert groups(world) == []


@pytest.mark.parametrize("script", [pytest.param(HOG, marks=pytest.mark.soak), f"({HOG}); exit 3"])
@pytest.mark.parametrize("grouped", [True, pytest.param(False, marks=pytest.mark.soak)])
async def test_memory_is_limited(world: World, monkeypatch: pytest.MonkeyPatch, script: str, grouped: bool) -> None:
    """Also by the engine alone, as for a user's daemon, which then cannot tell of it."""
    monkeypatch.setenv("SANDKEEP_BUILD_MEMORY", "64M")
    if not grouped:
        monkeypatch.setattr(build_group, "why_missing", lambda found, root: "it is none of root's")
    first, *_ = (await world.fails("invalid", f"FROM {BUSYBOX}\nRUN {script}\n")).split("\n")
    told = ", killed at its memory limit of 64 MiB (SANDKEEP_BUILD_MEMORY)" if grouped else ""
    assert first.endswith(f"with exit code {3 if 'exit' in script else 137}{told}")


@pytest.mark.soak
async def test_a_build_that_fails_by_itself_is_told_of_no_limit(world: World) -> None:
    said = await world.fails("invalid", f"FROM {BUSYBOX}\nRUN exit 137\n")
    assert said.endswith("exit code 137")


@pytest.mark.soak
async def test_steps_get_no_more_of_the_processors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And write no cores."""
    monkeypatch.setenv("SANDKEEP_BUILD_CPUS", "0.5")
    quota = "find /sys/fs/cgroup -maxdepth 2 -name cpu.cfs_quota_us -o -name cpu.max | xargs cat"
    said = await world.fails("invalid", f"FROM {BUSYBOX}\nRUN ulimit -c; {quota}; exit 1\n")
    assert said.split("\n")[1:] in (["0", "50000"], ["0", "50000 100000"])


# -- how long it takes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["sh", "-c", f"trap '' TERM INT; echo begun; {ENDLESS}"], ["python3", "-c", BOMB]])
async def test_the_time_of_a_build_is_limited(
    world: World, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    beginning = f"FROM {world.engine.python()}\nRUN touch /x\n"
    await world.built(beginning)  # as the machine may be busy: of the limited build only the last step takes time
    monkeypatch.setenv("SANDKEEP_BUILD_PIDS", "40")
    monkeypatch.setenv("SANDKEEP_BUILD_TIME", "5")
    peaks: list[int] = []

    async def look() -> None:
        while True:
            with suppress(FileNotFoundError):  # it was removed meanwhile
                peaks.extend(int(Path(path, "pids.peak").read_text()) for path in groups(world) if "/pids/" in path)
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        said = await world.fails("timeout", f"{beginning}RUN {json.dumps(command)}\n")
        nursery.cancel_scope.cancel()
    assert said.startswith("the build was ended at step 3/3 (line 3, RUN [")
    assert ": it took longer than 5 s (SANDKEEP_BUILD_TIME)" in said
    assert groups(world) == []
    assert max(peaks) <= 40


@pytest.mark.soak
async def test_what_a_step_leaves_in_the_background_ends_with_it(world: World) -> None:
    await world.built(f"FROM {BUSYBOX}\nRUN ({ENDLESS}) &\n")
    assert groups(world) == []


async def test_what_an_earlier_daemon_left_running_is_ended(world: World) -> None:
    group = BuildGroup(f"{world.log_id}.{new_id(IMAGE)}", "cgroupfs")
    group.open()
    with subprocess.Popen(["sleep", "1000"]) as left:
        inside = f"/sys/fs/cgroup/pids{group.parent}/container"
        os.mkdir(inside)
        Path(inside, "cgroup.procs").write_text(str(left.pid))
        await world.provider.images.clean_up(Owning())
        left.wait()
    assert groups(world) == []
    group.close()


# -- what it reaches --------------------------------------------------------------------------------------------------


async def test_without_a_network_nothing_is_reached(world: World) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        script = f'["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/{port}"]'
        said = await world.fails("invalid", f"FROM {world.engine.tools()}\nRUN {script}\n")
    assert "exit code 1, without a network (see SANDKEEP_BUILD_NETWORK)\n" in said
    assert "Connection refused" in said


async def test_builds_have_the_network_that_the_administrator_names(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDKEEP_BUILD_NETWORK", "ours")
    assert "network ours not found" in await world.fails("invalid", f"FROM {BUSYBOX}\nRUN true\n")
    monkeypatch.setenv("SANDKEEP_BUILD_NETWORK", "host")
    assert "never get the host's" in await world.fails("not_configured", f"FROM {BUSYBOX}\nRUN true\n")


async def test_only_the_classic_builder_builds(world: World) -> None:
    """BuildKit has none of the limits; a frontend would be a program of the Dockerfile's choice."""
    await world.built(f"# syntax=127.0.0.1:1/none\nFROM {BUSYBOX}\nRUN true\n")
    for line in ("RUN --network=host true", "RUN --security=insecure true", "RUN --mount=type=bind,target=/x true"):
        said = await world.fails("invalid", f"FROM {BUSYBOX}\n{line}\n")
        assert "Unknown flag" in said or "BuildKit" in said


async def test_a_base_is_for_the_platform_that_is_wanted(world: World) -> None:
    """The engine would pull another, whose triggers nobody has looked at, or take the one that it has."""
    said = await world.fails("invalid", f"FROM --platform=linux/riscv64 {BUSYBOX}\n")
    assert "not for linux/riscv64" in said
    found = world.engine.get(f"/images/{BUSYBOX}/json")
    await world.built(f"FROM --platform={found['Os']}/{found['Architecture']} {BUSYBOX}\n")


# -- whose it is ------------------------------------------------------------------------------------------------------


async def test_no_owner_gets_what_a_step_of_another_has_made(world: World) -> None:
    """Nor by the triggers of a base, which run before any label of ours."""
    made = "head -c 16 /dev/urandom >/made"
    base = world.engine.derived("test/triggers:1", f"FROM {BUSYBOX}\nONBUILD RUN {made}\n")
    for dockerfile in (f"FROM {BUSYBOX}\nRUN {made}\n", f"FROM {base}\n", f"FROM {BUSYBOX} AS a\nFROM a\nRUN {made}\n"):
        world.write(Dockerfile=dockerfile)
        layers = {}
        for owner in ("uid:1", "uid:2"):
            _, image = await world.image(owner=owner)
            layers[owner] = world.engine.get(f"/images/{image.digest}/json")["RootFS"]["Layers"]
        _, again = await world.image(owner="uid:1")
        assert not set(layers["uid:1"][1:]) & set(layers["uid:2"][1:])
        if base not in dockerfile:
            assert world.engine.get(f"/images/{again.digest}/json")["RootFS"]["Layers"] == layers["uid:1"]


@pytest.mark.parametrize("member", [True, False])
async def test_a_group_may_build(world: World, monkeypatch: pytest.MonkeyPatch, member: bool) -> None:
    group = grp.getgrall()[-1]
    monkeypatch.setenv("SANDKEEP_BUILDERS", group.gr_name)
    caller = Caller(uid=40_000, gid=40_000, groups=(group.gr_gid,) if member else ())
    if member:
        await world.fails("invalid", caller=caller, source="/nowhere")
    else:
        said = await world.fails("permission_denied", caller=caller, source="/nowhere")
        assert said.startswith(f"source: only root and the group {group.gr_name} may build from a Dockerfile")
    await world.built(f"FROM {BUSYBOX}\n")


async def test_nobody_may_build(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKEEP_BUILDERS", "none")
    said = await world.fails("permission_denied", f"FROM {BUSYBOX}\n")
    assert said == "source: nobody may build from a Dockerfile, as the administrator set SANDKEEP_BUILDERS"
    await world.image(kind="directory", base=BUSYBOX)
    await world.image(kind="reference", source=BUSYBOX)
