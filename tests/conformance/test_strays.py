"""What no event owns: removed when it is of the daemon's own log, of whatever kind; left and told when of another."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.conformance.conftest import UID_BASE, World, directory, no_progress, start
from tests.support.expect import until, until_async
from tests.support.ledgers import Owning

from sandkeep.errors import ProviderError
from sandkeep.ids import new_id
from sandkeep.model import SandboxSpec
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.ledger import Swept
from sandkeepd.contract.processes import Terminal
from sandkeepd.host import processes
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.cgroups.groups import Hierarchies, Limits
from sandkeepd.providers.local.provider import LocalProvider, open_local
from sandkeepd.providers.local.strays import Strays

ROOT = os.geteuid() == 0
OTHER = new_id("log")


def told(swept: Swept, what: str) -> bool:
    return any(what in sentence for sentence in swept.foreign)


def first_process(kind: str, instance: Any) -> int | None:
    """A pidfd of a sandbox's first process; None where that runs on another machine."""
    if kind in ("kubernetes", "modal"):
        return None
    return os.dup(instance.pidfd) if kind == "gvisor" else os.pidfd_open(instance.handle["first"]["pid"])


@pytest.mark.needs("tmux")
async def test_what_is_owned_stays_and_what_is_not_goes(world: World) -> None:
    kept, stray = await world.sandbox(), await world.sandbox()
    await start(stray, "sh", "-c", "setsid sleep 1000 & exec sleep 1000")
    await start(stray, "cat", terminal=Terminal(rows=24, cols=80, session="shell"))
    ended = first_process(world.kind, stray)
    swept = await world.provider.clean_up(Owning([kept.sandbox_id], [world.image_id]))
    assert swept.removed == [f"sandbox {stray.sandbox_id}"]
    if ended is not None:
        assert processes.has_ended(ended, 60)
        os.close(ended)

    def bearers() -> list[tuple[str, ...]]:
        return [(*v.values(),) for _, v in processes.find_by_variables(["SANDKEEP_SANDBOX"], None)]

    await until_async(lambda: (stray.sandbox_id,) not in bearers())  # without isolation a tmux ends by itself
    assert await kept.is_alive()
    assert await world.provider.found() == ([kept.sandbox_id], world.images)
    swept = await world.provider.clean_up(Owning([kept.sandbox_id], []))
    assert swept.removed == [f"image {image_id}" for image_id in world.images]


async def test_sandboxes_and_images_of_another_log_are_left(world: World) -> None:
    """Also one of the same name, as callers may give two."""
    theirs = await world.sandbox()
    another = World(
        world.kind, world.state, world.source, world.engine, kubeconfig=world.kubeconfig, account=world.account
    )
    async with AsyncExitStack() as stack:
        await another.open(stack)
        swept = await another.provider.clean_up(Owning())
        assert swept.removed == []
        assert told(swept, theirs.sandbox_id)
        assert all(told(swept, image_id) for image_id in world.images)
        if world.kind in ("local", "none"):
            assert told(swept, f"sandbox {theirs.sandbox_id} of log {world.log_id}: pid ")
    assert await theirs.is_alive()
    assert await world.provider.found() == ([theirs.sandbox_id], world.images)


# -- each kind, planted -----------------------------------------------------------------------------------------------


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    state = str(tmp_path / "state")
    async with open_local(state, uid_base=UID_BASE, disk_limit=1 << 30, log_id=new_id("log")) as provider:
        provider.layout.prepare()
        yield provider


def plant_directory(local: LocalProvider, log_id: str, sandbox_id: str) -> Callable[[], bool]:
    """What a daemon that died at the first step of a creation leaves."""
    directory = Path(local.layout.sandbox(sandbox_id))
    for name in ("in", "upper", "out/p"):
        (directory / name).mkdir(parents=True)
    (directory / "in" / ".log").write_text(f"{log_id}\n")
    return directory.exists


def plant_image(local: LocalProvider, log_id: str, image_id: str) -> Callable[[], bool]:
    directory = Path(local.layout.image(image_id))
    (directory / "root").mkdir(parents=True)
    (directory / "log").write_text(f"{log_id}\n")
    return directory.exists


def variables(log_id: str, sandbox_id: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "SANDKEEP_SANDBOX": sandbox_id, "SANDKEEP_LOG": log_id}


SYSTEM = [word for name in ("usr", "bin", "lib", "lib64") for word in ("--ro-bind-try", f"/{name}", f"/{name}")]
"""What a shell needs. With the whole root come the mounts of other tests, and bwrap fails if one of them goes."""


def plant_namespace(local: LocalProvider, log_id: str, sandbox_id: str) -> Callable[[], bool]:
    """A process in namespaces of its own, of which nothing else is left: no directory, no control group."""
    unshare = ["bwrap", "--unshare-all", "--as-pid-1", "--die-with-parent", *SYSTEM, "--proc", "/proc"]
    child = subprocess.Popen(
        [*unshare, "sh", "-c", "echo; exec sleep 1000"],
        env=variables(log_id, sandbox_id),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    PLANTED.append(child)
    return lambda: child.poll() is None


def plant_tmux(local: LocalProvider, log_id: str, sandbox_id: str) -> Callable[[], bool]:
    """A tmux server outside of namespaces, as a sandbox without isolation has them."""
    socket = f"./tmux-{sandbox_id}"  # as the whole path may be longer than an address can be
    command = ["tmux", "-f", "/dev/null", "-S", socket, "new-session", "-d", "-P", "-F", "#{pid}", "sleep 1000"]
    env, place = variables(log_id, sandbox_id), local.layout.state_dir
    pid = int(subprocess.run(command, env=env, cwd=place, check=True, capture_output=True).stdout)
    server = os.pidfd_open(pid)
    PLANTED.append(server)
    return lambda: not processes.has_ended(server)


def plant_group(local: LocalProvider, log_id: str, sandbox_id: str) -> Callable[[], bool]:
    """A control group with a process in it that says nothing of itself."""
    hierarchies = Hierarchies(log_id=log_id)
    groups = hierarchies.plan(sandbox_id, Limits(pids=10))
    hierarchies.create(groups, Limits(pids=10))
    GROUPS.append(groups)

    def begin() -> "subprocess.Popen[bytes]":
        hierarchies.join_thread(groups)
        return subprocess.Popen([*hierarchies.wrapper(groups), "sleep", "1000"], env={"PATH": os.environ["PATH"]})

    child = processes.in_fresh_thread(begin)
    PLANTED.append(child)
    until(lambda: cgroups.members(groups) == [child.pid])
    return lambda: os.path.exists(groups["pids"]) and child.poll() is None


def plant_mount(local: LocalProvider, log_id: str, sandbox_id: str) -> Callable[[], bool]:
    """Somebody looked at a sandbox's files by a mount in the host's own namespace."""
    plant_directory(local, log_id, sandbox_id)
    place = f"{local.layout.sandbox(sandbox_id)}/upper"
    subprocess.run(["mount", "-t", "tmpfs", "planted", place], check=True)
    MOUNTS.append(place)
    return lambda: os.path.ismount(place)


PLANTED: list[Any] = []
GROUPS: list[dict[str, str]] = []
MOUNTS: list[str] = []


@pytest.fixture(autouse=True)
def clear() -> Any:
    yield
    for planted in PLANTED:
        if isinstance(planted, int):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(planted, signal.SIGKILL)
            os.close(planted)
        else:
            planted.kill()
            planted.wait()
    for place in MOUNTS:
        subprocess.run(["umount", place], check=False, stderr=subprocess.DEVNULL)
    for groups in GROUPS:
        cgroups.remove(groups)
    for planted in (PLANTED, GROUPS, MOUNTS):
        planted.clear()


KINDS = {
    "directory": plant_directory,
    "image": plant_image,
    "namespace": plant_namespace,
    "tmux": plant_tmux,
    "group": plant_group,
    "mount": plant_mount,
}
NEEDS_ROOT = ("group", "mount")


@pytest.mark.needs("bwrap", "tmux")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if ROOT or kind not in NEEDS_ROOT])
async def test_each_kind_is_told_apart(local: LocalProvider, kind: str) -> None:
    ours, theirs = new_id("sbx"), new_id("sbx")
    here = {name: KINDS[kind](local, log, name) for name, log in ((ours, local.log_id), (theirs, OTHER))}
    assert here[ours]()
    assert here[theirs]()
    swept = await local.clean_up(Owning([], []))
    assert any(ours in what for what in swept.removed)
    assert told(swept, theirs)
    assert not here[ours]()
    assert here[theirs]()
    again = await local.clean_up(Owning([], []))
    assert not any(ours in what for what in (*again.removed, *again.foreign))
    assert told(again, theirs)


@pytest.mark.parametrize("world", ["local"], indirect=True)
async def test_what_a_sandbox_says_of_itself_is_not_believed(world: World) -> None:
    """The code inside sets what variables it likes: nobody else's sandbox ends of it, and nothing is told of it."""
    victim, enemy = await world.sandbox(), await world.sandbox()
    forged = {"SANDKEEP_LOG": OTHER, "SANDKEEP_SANDBOX": "made-up"}
    liar = await start(enemy, "sh", "-c", "echo up; exec sleep 1000", env=forged)
    while not enemy.read(liar, "stdout", 0, 10).data:
        await enemy.wait_output(liar, 0, 0)
    both = [victim.sandbox_id, enemy.sandbox_id]
    swept = await world.provider.clean_up(Owning(both, [world.image_id]))
    assert swept.removed == []
    assert not told(swept, "made-up")
    assert enemy.exit_of(liar) is None
    assert await victim.is_alive()


@pytest.mark.skipif(not ROOT, reason="a user's daemon looks at its user's processes alone")
@pytest.mark.parametrize("ids", [("--reuid", "4242"), ("--ruid", "4242")], ids=["a program", "a set-uid program"])
async def test_what_another_user_says_of_a_process_is_not_believed(local: LocalProvider, ids: tuple[str, ...]) -> None:
    """Any user can start programs, also as root, with our variables: root's daemon would kill them, or never be done
    with those that start faster than it kills.
    """
    command = ["setpriv", *ids, "sleep", "1000"]
    liar = subprocess.Popen(command, env=variables(local.log_id, "made-up"), start_new_session=True)
    PLANTED.append(liar)
    until(lambda: b"sleep" in Path(f"/proc/{liar.pid}/cmdline").read_bytes().split(b"\0")[:1])
    swept = await local.clean_up(Owning([], []))
    assert not any("made-up" in what for what in (*swept.removed, *swept.foreign))
    assert liar.poll() is None


async def test_a_new_sandbox_waits_for_what_is_left_of_its_id(local: LocalProvider, tmp_path: Path) -> None:
    """Callers give ids, also ones of which something is being removed at that moment."""
    (tmp_path / "source").mkdir()
    caller = Caller(uid=os.geteuid(), gid=os.getegid())
    await local.images.make("img_1", directory(tmp_path / "source"), caller, no_progress)
    plant_directory(local, local.log_id, "box")
    for number in range(3000):
        Path(local.layout.sandbox("box"), "upper", str(number)).touch()
    plan = local.plan("box", "img_1", SandboxSpec(), caller, [], details={}, owner="uid:0")
    await local.abilities()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(local.clean_up, Owning([], ["img_1"]))
        while "box" not in local._removals and nursery.child_tasks:
            await trio.sleep(0)
        instance = await local.create("box", "img_1", SandboxSpec(), {}, plan)
    assert await instance.is_alive()
    await local.terminate("box", plan, instance.handle)
    await local.cleared("box")


async def test_one_that_cannot_be_removed_keeps_no_other(local: LocalProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plant_directory(local, local.log_id, "first")
    second = plant_directory(local, local.log_id, "second")
    kill = Strays.kill

    def fail(strays: Strays, sandbox_id: str) -> None:
        if sandbox_id == "first":
            raise ProviderError("provider_unavailable", "it stays")
        kill(strays, sandbox_id)

    with monkeypatch.context() as patched:
        patched.setattr(Strays, "kill", fail)
        with pytest.raises(ProviderError):
            await local.clean_up(Owning())
    assert (first(), second()) == (True, False)
    assert (await local.clean_up(Owning())).removed == ["sandbox first"]
