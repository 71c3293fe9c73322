"""What the local provider alone promises: what the code inside sees, whose its files are, and what holds its limits."""

import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import trio
from tests.conformance.conftest import UID_BASE, World, run, sh, start
from tests.support.expect import DEADLINE_S

from sandkeep.errors import ProviderError, SetupError, StateError
from sandkeep.ids import SANDBOX, new_id
from sandkeep.model import SandboxSpec
from sandkeepd.contract.caller import Caller
from sandkeepd.host.cgroups.groups import Hierarchies
from sandkeepd.providers.local.plan import Planner
from sandkeepd.providers.local.provider import LocalInstance, LocalProvider, open_local

ROOT = os.geteuid() == 0
pytestmark = pytest.mark.needs("bwrap")


only_local = pytest.mark.parametrize("world", ["local"], indirect=True)


@only_local
async def test_what_the_code_sees_of_the_host(world: World) -> None:
    instance = await world.sandbox()
    top = set((await sh(instance, "ls -A /")).split())
    assert top <= {
        "bin",
        "dev",
        "etc",
        "home",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "run",
        "sbin",
        "tmp",
        "usr",
        "var",
        "workspace",
    }
    etc = set((await sh(instance, "ls -A /etc")).split())
    assert etc <= {"alternatives", "group", "hosts", "ld.so.cache", "nsswitch.conf", "passwd", "resolv.conf", "ssl"}
    assert (await sh(instance, "ls -A /etc/ssl /home /run /run/sandkeep; ls -A /tmp /home/sandbox")).split() == [
        "/etc/ssl:", *(["certs"] if os.path.isdir("/etc/ssl/certs") else []), "/home:", "sandbox", "/run:", "sandkeep",
        "/run/sandkeep:", "in", "out", "/home/sandbox:", "/tmp:",
    ]  # fmt: skip
    assert await sh(instance, "cat /etc/resolv.conf; hostname") == instance.sandbox_id[:63] + "\n"


@only_local
async def test_the_mount_table_names_nothing_that_can_be_written_but_its_own(world: World) -> None:
    instance = await world.sandbox()
    writable = set()
    for line in (await sh(instance, "cat /proc/self/mountinfo")).splitlines():
        fields = line.split()
        options = set(fields[5].split(","))
        assert "nosuid" in options, line
        if "rw" in options:
            writable.add(fields[4])
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts", "shm", "console")}
    expected = {
        "/workspace",
        "/run/sandkeep/out",
        "/run/sandkeep/out/p",
        "/run/sandkeep/out/exits",
        "/tmp",
        "/home/sandbox",
        "/proc",
    }
    assert writable <= expected | devices
    for place in ("/", "/etc", "/usr", "/dev", "/run/sandkeep/in", "/var"):
        code, _, _ = await run(instance, "sh", "-c", f": >{place}/new")
        assert code == 2, place


@only_local
async def test_processes_network_and_rights_are_its_own(world: World) -> None:
    instance = await world.sandbox()
    pids = (await sh(instance, "cd /proc; echo [0-9]*")).split()
    assert pids == ["1", "2"]  # the keeper, and this shell
    assert (await sh(instance, "ls /sys/class/net 2>/dev/null; cut -d: -f1 /proc/net/dev | tail -n +3")).split() == [
        "lo"
    ]
    status = await sh(instance, "cat /proc/self/status")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{name}:\t0000000000000000" in status, name
    assert "NoNewPrivs:\t1" in status
    assert await sh(instance, "id -u; id -g; id -G; id -un; echo $HOME; ulimit -c") == (
        "1000\n1000\n1000\nsandbox\n/home/sandbox\n0\n"
    )


@only_local
async def test_no_namespaces_within_namespaces(world: World) -> None:
    """There it could mount what shows the host, such as its control groups."""
    instance = await world.sandbox()
    code, _, said = await instance.run_command(["unshare", "--user", "--map-root-user", "true"])
    assert code != 0
    assert b"unshare" in said


@only_local
async def test_what_lies_in_memory_has_a_limit_of_its_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKEEP_SCRATCH_LIMIT", "48M")
    instance = await world.sandbox(memory_bytes=64 * 1024**2)
    sizes = (await sh(instance, "df -B1 --output=size /tmp /dev/shm ~ | tail -n +2")).split()
    expected = 48 if Hierarchies().has("memory") else 16  # MiB
    assert [int(size) for size in sizes] == [expected * 1024**2] * 3


def test_without_control_groups_what_lies_in_memory_leaves_a_quarter_to_processes() -> None:
    planner = Planner(Hierarchies(membership=""), disk_limit=1024**3, root=True)
    caller = Caller(uid=0, gid=0, groups=())
    spec = SandboxSpec(memory_bytes=64 * 1024**2)
    assert planner.decide("sbx", spec, caller).scratch_bytes == 16 * 1024**2
    assert planner.decide("sbx", SandboxSpec(), caller).scratch_bytes == 1024**3


@only_local
async def test_a_user_of_ones_own_choice(world: World) -> None:
    instance = await world.sandbox(user="0")
    assert await sh(instance, "id -u; id -un; : >own; stat -c %u own") == "0\nroot\n0\n"
    other = await world.sandbox(user="7:8")
    assert await sh(other, "id -u; id -g; whoami") == "7\n8\nsandbox\n"


@only_local
async def test_whose_its_files_are_on_the_host(world: World) -> None:
    instance = await world.sandbox()
    await sh(instance, "echo x >own; cp /bin/true suid; chmod 4755 suid; echo y >>file; mkdir dir")
    upper = world.state / "sandboxes" / instance.sandbox_id / "upper"
    owners = {path.lstat().st_uid for path in upper.rglob("*")}
    assert owners == {instance.isolation.host_uid}
    assert 0 not in owners
    if ROOT:
        assert UID_BASE < (instance.isolation.host_uid or 0) < UID_BASE + 65_536
    image = world.state / "images" / world.image_id / "root"
    assert (image / "file").read_text() == "from the image\n"
    assert {path.lstat().st_uid for path in image.rglob("*")} == {UID_BASE if ROOT else os.geteuid()}


@only_local
async def test_the_daemons_own_mounts_do_not_change(world: World) -> None:
    """Others on this machine may mount what they like meanwhile; ours would be here."""
    before = Path("/proc/self/mountinfo").read_text().splitlines()
    await world.sandbox()
    more = set(Path("/proc/self/mountinfo").read_text().splitlines()) - set(before)
    places = (" /mnt", " /tmp ", " sandkeep ", str(world.state))
    assert [line for line in more if any(place in line for place in places)] == []
    assert (world.state.stat().st_mode & 0o777) == 0o700


@only_local
async def test_the_code_cannot_replace_what_the_daemon_watches(world: World) -> None:
    instance = await world.sandbox()
    for attempt in (
        "rm -f exits",
        "mv exits other",
        "mv p q",
        "rmdir p",
        "ln -s x y",
        ": >../in/.keeper",
        "rm -f ../in/.control",
    ):
        code, _, _ = await run(instance, "sh", "-c", attempt, working_dir="/run/sandkeep/out")
        assert code not in (0, 126, 127), attempt
    assert await instance.is_alive()


@only_local
async def test_a_read_only_workspace(world: World) -> None:
    instance = await world.sandbox(read_only=True)
    assert (await run(instance, "sh", "-c", ": >new"))[0] == 2
    assert await sh(instance, "cat file; : >/tmp/new") == "from the image\n"


@only_local
async def test_the_hosts_network_on_request(world: World) -> None:
    instance = await world.sandbox(network="host")
    mine = {name for _, name in socket.if_nameindex()}
    assert set((await sh(instance, "cut -d: -f1 /proc/net/dev | tail -n +3")).split()) == mine


@only_local
async def test_the_limit_on_processes(world: World) -> None:
    """Full to the last place, so that not even the keeper can fork; it must live and say so."""
    instance = await world.sandbox(pids=40)
    script = "while command eval 'sleep 1000 &' 2>/dev/null; do :; done; echo full; wait"
    process_id = await start(instance, "dash" if shutil.which("dash") else "sh", "-c", script)
    await instance.wait_output(process_id, 0, 0)
    for _ in range(3):
        with pytest.raises(ProviderError, match="provider_unavailable"):
            await start(instance, "true")
    assert await instance.is_alive()
    await instance.signal(process_id, 9)
    assert (await instance.wait(process_id)).exit_code == 137
    assert (await run(instance, "true"))[0] == 0


@only_local
@pytest.mark.needs("root")
async def test_limits_that_control_groups_hold(world: World) -> None:
    assert isinstance(world.provider, LocalProvider)
    features = (await world.provider.capabilities()).features
    if not features["limit_memory"].works or features["limit_memory"].why:
        pytest.skip("no memory control group")
    instance = await world.sandbox(memory_bytes=64 << 20, cpus=0.5)
    assert instance.isolation.limits["memory"] == instance.isolation.limits["cpus"] == "cgroup"
    code, _, _ = await run(instance, "sh", "-c", "head -c 200M /dev/zero | tail -c 200M >/dev/null; exit $?")
    assert code == 137
    assert await instance.is_alive()
    groups = world.plans[instance.sandbox_id]["cgroups"]
    assert all(os.path.isdir(path) for path in groups.values())
    await world.terminate(instance.sandbox_id)
    assert not any(os.path.exists(path) for path in groups.values())


@only_local
async def test_a_file_larger_than_the_disk_limit(world: World) -> None:
    instance = await world.measured(1 << 20)
    assert (await run(instance, "sh", "-c", "head -c 2M /dev/zero >big"))[0] == 153  # SIGXFSZ
    assert os.path.getsize(world.state / "sandboxes" / instance.sandbox_id / "upper" / "big") == 1 << 20


@only_local
@pytest.mark.needs("freezer")
async def test_many_files_over_the_disk_limit_suspend_the_sandbox(world: World) -> None:
    assert isinstance(world.provider, LocalProvider)
    instance = await world.measured(1 << 20)
    assert isinstance(instance, LocalInstance)
    await world.provider.disks.check(instance)
    await sh(instance, "for i in 1 2 3; do head -c 500K /dev/zero >$i; done")
    await world.provider.disks.check(instance)
    assert instance.pauses is not None
    assert instance.pauses.is_paused()
    assert "limit of 1.0 MB" in str(instance.pauses.reason)
    await instance.pauses.resume()
    await world.provider.disks.check(instance)
    assert not instance.pauses.is_paused()  # it may remove files now
    await sh(instance, "echo more >4")
    await world.provider.disks.check(instance)
    assert instance.pauses.is_paused()
    await instance.pauses.resume()
    await sh(instance, "rm 1 2 3")
    await world.provider.disks.check(instance)
    assert (instance.pauses.is_paused(), instance.pauses.reason) == (False, None)


@only_local
async def test_a_sandbox_killed_from_outside(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "sleep", "1000")
    os.kill(instance.handle["first"]["pid"], 9)
    with trio.fail_after(DEADLINE_S):
        assert await instance.ended()
        assert (await instance.wait(process_id)).message
    with pytest.raises(StateError, match="not_ready"):
        await instance.write_whole("x", b"")


@only_local
async def test_another_process_with_the_same_pid_is_not_adopted(world: World) -> None:
    instance = await world.sandbox()
    handle = {**instance.handle, "first": {**instance.handle["first"], "started": 1}}
    plan = world.plans[instance.sandbox_id]
    assert await world.provider.adopt(instance.sandbox_id, world.spec(), plan, instance.isolation, handle) is None
    other_boot = {**instance.handle, "first": {**instance.handle["first"], "boot_id": "another"}}
    assert await world.provider.adopt(instance.sandbox_id, world.spec(), plan, instance.isolation, other_boot) is None
    assert await instance.is_alive()


@only_local
async def test_a_daemon_without_descriptors_takes_no_sandbox_for_gone(world: World) -> None:
    """Nor ends it, as it does with one whose answers the code inside has made unreadable."""
    instance = await world.sandbox()
    earlier = (world.spec(), world.plans[instance.sandbox_id], instance.isolation, instance.handle)
    async with open_local(str(world.state), uid_base=UID_BASE, disk_limit=1 << 30, log_id=world.log_id) as other:
        await other.abilities()
        for left in range(3):  # for its pidfd, its start, its answers
            with few_descriptors(left), pytest.raises(ProviderError):
                await other.adopt(instance.sandbox_id, *earlier)
        assert await other.adopt(instance.sandbox_id, *earlier) is not None
    assert await instance.is_alive()


@contextmanager
def few_descriptors(left: int) -> Iterator[None]:
    """Have the process be out of descriptors but for so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]  # not all in a row, where others are open
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(left):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)


@only_local
async def test_without_bubblewrap_it_says_what_to_install(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SetupError, match="install"):
        world.plan(new_id(SANDBOX))


@only_local
@pytest.mark.needs("root")
async def test_every_sandbox_has_a_uid_of_its_own(world: World) -> None:
    taken: list[dict[str, object]] = []
    for _ in range(300):
        taken.append(world.plan(new_id(SANDBOX), taken=taken))
    assert len({plan["uid"] for plan in taken}) == 300
    assert len({world.plan("same")["uid"] for _ in range(20)}) == 20, "what a caller chooses decides nothing"


@pytest.mark.parametrize("files", ["overlay", "reflink", "copy"])
async def test_each_way_from_an_image_to_a_sandbox(tmp_path: Path, source: Path, files: str) -> None:
    """The view says which way was taken, and all ways give the same."""
    import msgspec

    from sandkeep.model import Capability

    world = World("local", tmp_path / "state", source)
    async with AsyncExitStack() as stack:
        await world.open(stack)
        provider = world.provider
        assert isinstance(provider, LocalProvider)
        found = await provider.abilities()
        if files == "overlay" and not found.overlay.works:
            pytest.skip(found.overlay.why or "")
        no, yes = Capability(works=False, why="switched off"), Capability(works=True)
        if files != "overlay":
            provider._abilities = msgspec.structs.replace(found, overlay=no, reflink=yes if files == "reflink" else no)
        await world.import_image()
        try:
            instance = await world.sandbox()
            assert instance.isolation.files == files
            assert bool(instance.isolation.notes) == (files != "overlay" or not ROOT)
            await sh(instance, "echo mine >file; chmod 700 sub; rm sub/inner; cat file")
        finally:
            await world.close()
    assert (tmp_path / "state" / "images" / world.image_id / "root" / "file").read_text() == "from the image\n"


async def test_a_state_directory_with_an_odd_name(tmp_path: Path, source: Path) -> None:
    world = World("local", tmp_path / "a, b:c\\d'e \"$x", source)
    async with AsyncExitStack() as stack:
        await world.open(stack)
        await world.import_image()
        try:
            assert await sh(await world.sandbox(), "cat file; echo x >file; cat file") == "from the image\nx\n"
        finally:
            await world.close()


async def test_the_state_directory_under_the_place_of_the_mounts(source: Path) -> None:
    """`/mnt` is where a sandbox's mounts are built: what lies there must still be found."""
    if not ROOT:
        pytest.skip("only root can write there")
    state = Path("/mnt") / f"sandkeep-test-{os.getpid()}"
    world = World("local", state, source)
    try:
        async with AsyncExitStack() as stack:
            await world.open(stack)
            await world.import_image()
            try:
                assert await sh(await world.sandbox(), "cat file") == "from the image\n"
            finally:
                await world.close()
    finally:
        subprocess.run(["rm", "-rf", str(state)], check=True)


@only_local
async def test_trees_that_python_could_not_remove(world: World) -> None:
    instance = await world.sandbox()
    chain = "d/" * 1900
    await sh(instance, f"for top in a b c; do mkdir -p $top/{chain}; done; mv a b/{chain}; mv b c/{chain}")
    await sh(instance, "mkdir closed && : >closed/x && chmod 0 closed")
    await world.terminate(instance.sandbox_id)
    assert (await world.provider.found())[0] == []
    assert os.listdir(world.state / "trash") == []


@pytest.mark.parametrize("world", ["none"], indirect=True)
async def test_without_isolation_it_is_the_caller_and_says_so(world: World) -> None:
    instance = await world.sandbox()
    assert instance.isolation.mechanism == "none"
    assert "nothing isolates" in " ".join(instance.isolation.notes)
    assert (await sh(instance, "id -u")).strip() == str(world.caller.uid)
    with pytest.raises(SetupError, match="not_supported"):
        world.plan(new_id(SANDBOX), read_only=True)


@pytest.mark.parametrize("world", ["none"], indirect=True)
async def test_without_isolation_all_that_was_started_is_ended(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "sh", "-c", "setsid sleep 98765 & echo $!; exec sleep 1000")
    await instance.wait_output(process_id, 0, 0)
    escaped = int(instance.read(process_id, "stdout", 0, 100).data)
    await world.terminate(instance.sandbox_id)
    assert not os.path.exists(f"/proc/{escaped}/cwd") or os.readlink(f"/proc/{escaped}/exe") == ""


def test_an_image_id_that_is_a_path(tmp_path: Path) -> None:
    from sandkeep.errors import CallerError
    from sandkeepd.providers.common.layout import Layout

    layout = Layout(str(tmp_path))
    for name in ("..", "a/b", "", ".hidden", "x" * 65):
        with pytest.raises(CallerError, match="invalid"):
            layout.image(name)
        with pytest.raises(CallerError, match="invalid"):
            layout.sandbox(name)
