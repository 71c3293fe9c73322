"""Containers of images without a shell: everything goes through the engine, and the view says so.

`bare` is an image that has none; `tools` is one that has, of which that is not said, so that more can be tried in it.
"""

import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from tests.conformance.conftest import World, run, sh, start
from tests.engine import PrivateEngine

from sandkeep.errors import SandkeepError
from sandkeep.ids import PROCESS, new_id
from sandkeepd.hostprocess import Identity
from sandkeepd.keeper import files
from sandkeepd.keeper.processes import LOST_WITH_SANDBOX
from sandkeepd.providers import docker_engine, docker_idle, docker_pids
from sandkeepd.providers.base import Exit, Filing, Instance, Launch, Piping, Reviving, Terminal, Terminals
from sandkeepd.providers.docker_carrying import FORGOTTEN
from sandkeepd.providers.docker_exec import ExecInstance

pytestmark = [
    pytest.mark.needs("docker", "root"),
    pytest.mark.skipif(docker_idle.program() is None, reason="for this machine there is no first program"),
]

USER = (1234, 1234)


@pytest.fixture
async def world(dockerd: Any, tmp_path: Path) -> AsyncIterator[World]:
    async with opened(dockerd, tmp_path) as made:
        try:
            yield made
        finally:
            await made.close()


@asynccontextmanager
async def opened(engine: Any, tmp_path: Path, earlier: World | None = None) -> AsyncIterator[World]:
    """A provider over the private engine, for images that are said to have no shell; perhaps after an `earlier` one."""
    made = World("docker", tmp_path / "state", tmp_path, engine)
    if earlier is not None:
        made.log_id, made.plans, made.handles = earlier.log_id, earlier.plans, earlier.handles
    made.details = details(engine, engine.bare())
    async with AsyncExitStack() as stack:
        await made.open(stack)
        yield made


def details(engine: Any, image: str) -> dict[str, Any]:
    found = engine.get(f"/images/{image}/json")["Id"]
    return {"docker_image_id": found, "docker_image_tag": image, "user": USER, "why": "sh was not found"}


async def tools(world: World, **fields: Any) -> ExecInstance:
    world.details = details(world.engine, world.engine.tools())
    return made(await world.sandbox(**fields))


def made(instance: Instance) -> ExecInstance:
    assert isinstance(instance, ExecInstance)
    return instance


async def test_commands_in_an_image_that_has_nothing(world: World) -> None:
    instance = made(await world.sandbox())
    assert await run(instance, "/bin/echo", "a b", "c") == (0, b"a b c\n", b"")
    assert await run(instance, "false") == (1, b"", b"")
    code, stdout, stderr = await run(instance, "cat", "/etc/group", "/nothing")
    assert (code, stdout.splitlines()[0]) == (1, b"root:x:0:")
    assert b"/nothing" in stderr
    assert (await run(instance, "id", "-u"))[1] == b"1234\n"


async def test_it_has_no_shell_and_nobody_can_tell_what_stands_for_one(world: World) -> None:
    instance = made(await world.sandbox())
    code, stdout, stderr = await run(instance, "sh", "-c", "exit 3")
    assert (code, stdout, b'"sh"' in stderr) == (127, b"", True)
    assert (await run(instance, "/bin/none"))[0] == 127
    assert (await run(instance, "/etc/group"))[0] == 126
    assert (await run(instance, "echo", working_dir="/none"))[0] == 126
    shown = world.engine.container_of(instance.sandbox_id)
    assert shown["Config"]["Entrypoint"] == ["/run/sandkeep/in/.idle"]
    assert [m["Destination"] for m in shown["Mounts"] if "sandkeep" in m["Destination"]] == ["/run/sandkeep/in"]


async def test_the_view_says_what_is_weaker(world: World) -> None:
    instance = await world.sandbox()
    assert any("no shell" in note and "slower" in note for note in instance.isolation.notes)
    assert not isinstance(instance, Terminals)
    assert not isinstance(instance, Piping)
    assert isinstance(instance, Filing)


async def test_what_is_left_behind_is_reaped_by_the_first_program(world: World) -> None:
    instance = await tools(world)
    script = "for n in 1 2 3; do (setsid sh -c 'echo $$; exec sleep 0.2' &) done; sleep 0.5"
    left = [int(word) for word in (await sh(instance, script)).split()]
    assert len(left) == 3
    first = instance.handle["first"]["pid"]
    with trio.fail_after(20):
        while _children(first):
            await trio.lowlevel.checkpoint()
    assert len((await sh(instance, "ls -d /proc/[0-9]* | wc -l")).split()) == 1


def _children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


async def test_a_number_that_is_another_process_by_now_is_not_believed(world: World) -> None:
    instance = made(await world.sandbox())
    first = msgspec.convert(instance.handle["first"], Identity)
    assert docker_pids.identify_in(first, first.pid) == first
    assert docker_pids.identify_in(first, os.getpid()) is None
    assert docker_pids.identify_in(first, 0) is None


async def test_environment_working_directory_and_odd_words(world: World) -> None:
    instance = await tools(world, env={"A": "spec", "B": "spec"})
    words = ["", " ", "'\"", "a=b", "é\n", "$HOME"]
    script = 'printf "<%s>" "$@"; pwd; echo "$A$B"'
    process = await run(instance, "sh", "-c", script, "sh", *words, env={"B": "own"}, working_dir="/tmp")
    assert process == (0, ("".join(f"<{word}>" for word in words) + "/tmp\nspecown\n").encode(), b"")


async def test_streams_apart_and_read_while_they_grow(world: World) -> None:
    instance = await tools(world)
    process_id = await start(instance, "sh", "-c", "echo out; echo err >&2; read x; echo $x; exit 7", stdin=True)
    with trio.fail_after(20):
        while not (instance.read(process_id, "stdout", 0, 99).data and instance.read(process_id, "stderr", 0, 99).data):
            await instance.wait_output(process_id, 4, 0)
        assert instance.read(process_id, "stderr", 0, 99).data == b"err\n"
        assert await instance.write_stdin(process_id, b"more\n", eof=True) == 5
        await instance.wait_output(process_id, 4, 4)
        assert (await instance.wait(process_id)).exit_code == 7
    assert instance.read(process_id, "stdout", 4, 99).data == b"more\n"
    instance.forget(process_id)
    assert instance.read(process_id, "stdout", 0, 3).data == b"out"


async def test_input_given_at_once_and_input_that_is_none(world: World) -> None:
    instance = made(await world.sandbox())
    data = os.urandom(3_000_000)
    assert await run(instance, "cat", stdin=data) == (0, data, b"")
    assert await run(instance, "cat", stdin=b"") == (0, b"", b"")
    assert await run(instance, "cat") == (0, b"", b"")
    process_id = await start(instance, "sleep", "1000")
    with pytest.raises(SandkeepError, match="takes no input"):
        await instance.write_stdin(process_id, b"x", eof=False)


async def test_input_that_is_not_read_waits_and_says_how_much_was_taken(world: World) -> None:
    instance = made(await world.sandbox())
    process_id = await start(instance, "sleep", "1000", stdin=True)
    taken = 0

    def note(by_now: int, trying: int) -> None:
        nonlocal taken
        taken = by_now

    async with trio.open_nursery() as nursery:

        async def write() -> None:
            with pytest.raises(SandkeepError, match=r"ended after \d+ bytes of input"):
                await instance.write_stdin(process_id, bytes(50_000_000), eof=True, note=note)

        nursery.start_soon(write)
        with trio.fail_after(20):
            while taken == 0:
                await trio.lowlevel.checkpoint()
        await instance.signal(process_id, signal.SIGKILL)
    assert 0 < taken < 50_000_000


async def test_signals_reach_the_group(world: World) -> None:
    instance = await tools(world)
    script = "trap 'echo got; exit 4' USR1; sh -c 'echo up; exec sleep 1000' & wait; wait"
    process_id = await start(instance, "sh", "-c", script)
    with trio.fail_after(20):
        await instance.wait_output(process_id, 2, 0)
        assert not await instance.was_signalled(process_id, 17)
        await instance.signal(process_id, signal.SIGUSR1, order=17)
        assert (await instance.wait(process_id)).exit_code == 4
        assert await instance.was_signalled(process_id, 17)
        await instance.signal(process_id, signal.SIGKILL)  # which is no error
        stubborn = await start(instance, "sh", "-c", "trap '' TERM; echo up; sleep 1000; sleep 1000")
        await instance.wait_output(stubborn, 2, 0)
        await instance.signal(stubborn, signal.SIGTERM)
        await instance.signal(stubborn, signal.SIGKILL)
        assert instance.exit_of(stubborn) == Exit(exit_code=137)
        while "sleep" in await sh(instance, "cat /proc/[0-9]*/comm"):
            await trio.lowlevel.checkpoint()


async def test_much_output_is_never_held(world: World) -> None:
    instance = made(await world.sandbox())
    most = 0
    size = 50 * 1024 * 1024
    process_id = await start(instance, "head", "-c", str(size), "/dev/zero")
    with trio.fail_after(60):
        while instance.exit_of(process_id) is None:
            await instance.wait_output(process_id, instance.read(process_id, "stdout", 0, 0).size, 0)
            most = max(most, _resident())
    assert instance.read(process_id, "stdout", 0, 0).size == size
    assert most < _resident() + 20 * 1024 * 1024


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def test_output_beyond_the_limit_ends_its_writer(world: World) -> None:
    instance = made(await world.sandbox(disk_bytes=16 * 1024 * 1024))
    process_id = await start(instance, "yes")
    with trio.fail_after(60):
        assert (await instance.wait(process_id)).exit_code == 128 + signal.SIGXFSZ
    chunk = instance.read(process_id, "stdout", 0, 4)
    assert (chunk.data, chunk.size <= 16 * 1024 * 1024) == (b"y\ny\n", True)
    assert "cut" in (chunk.note or "")


@pytest.mark.soak
async def test_what_outlives_a_process_does_not_hold_its_end(world: World) -> None:
    instance = await tools(world)
    process_id = await start(instance, "sh", "-c", "sleep 1000 & echo $!; exit 3")
    with trio.fail_after(30):
        assert (await instance.wait(process_id)).exit_code == 3
    left = instance.read(process_id, "stdout", 0, 9).data.decode().strip()
    assert await sh(instance, f"cat /proc/{left}/comm") == "sleep\n"


@pytest.mark.soak
async def test_a_process_without_streams_runs_on(world: World) -> None:
    instance = await tools(world)
    script = "exec </dev/null >/dev/null 2>&1; until [ -e go ]; do sleep 0.01; done; exit 9"
    process_id = await start(instance, "sh", "-c", script)
    await sh(instance, "sleep 0.3; touch go")
    with trio.fail_after(20):
        assert (await instance.wait(process_id)).exit_code == 9


@pytest.mark.soak
async def test_helper_commands_leave_nothing(world: World) -> None:
    instance = await tools(world)
    assert await instance.run_command(["sh", "-c", "cat; echo e >&2; exit 2"], b"in") == (2, b"in", b"e\n")
    _, stdout, _ = await instance.run_command(["head", "-c", "100000", "/dev/zero"], most_bytes=10)
    assert stdout == bytes(10)
    with trio.move_on_after(1):
        await instance.run_command(["sleep", "1000"])
    assert "sleep" not in await sh(instance, "cat /proc/[0-9]*/comm")
    out = world.state / "sandboxes" / instance.sandbox_id / "out"
    assert [name for name in os.listdir(out / "p") if not name.startswith(PROCESS)] == []
    assert [name for name in os.listdir(out / "execs") if not name.startswith(PROCESS)] == []


async def test_what_cannot_be(world: World) -> None:
    instance = made(await world.sandbox())
    launch = Launch(process_id=new_id(PROCESS), command=["echo"], secrets={"S": "x"})
    with pytest.raises(SandkeepError, match="no shell"):
        await instance.launch(launch)
    launch = Launch(process_id=new_id(PROCESS), command=["echo"], terminal=Terminal(rows=24, cols=80, session="t"))
    with pytest.raises(SandkeepError, match="no shell"):
        await instance.launch(launch)
    with pytest.raises(SandkeepError, match="no shell"):
        await world.sandbox(secrets={"S": "x"})
    process_id = await start(instance, "echo")
    with pytest.raises(SandkeepError, match="started before"):
        await instance.launch(Launch(process_id=process_id, command=["echo"]))
    with pytest.raises(SandkeepError, match="NUL"):
        await instance.launch(Launch(process_id=new_id(PROCESS), command=["a\0b"]))
    with pytest.raises(SandkeepError, match="no process"):
        await instance.wait("prc_unknown")


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["new", "/tmp/new"])
async def test_files_are_read_and_written_as_its_user(world: World, path: str) -> None:
    instance = await tools(world)
    await instance.write_file(path, b"data")
    assert await instance.read_file(path) == b"data"
    assert (
        await sh(instance, f"stat -c '%u %g %a' {path}; ls -A {os.path.dirname(path) or '.'}") == "1234 1234 644\nnew\n"
    )
    await files.write_whole(instance, path, b"more", mode=0o600)
    await files.write_whole(instance, path, b"most")
    assert await sh(instance, f"stat -c %a {path}; cat {path}") == "600\nmost"
    piece = await files.read_piece(instance, path, 1, 2)
    assert (piece.data, piece.size_bytes, piece.mode, piece.eof) == (b"os", 4, 0o600, False)


async def test_large_files_and_what_the_kernel_shows(world: World) -> None:
    instance = made(await world.sandbox(disk_bytes=8 * 1024 * 1024))
    data = os.urandom(5_000_000)
    await instance.write_file("large", data)
    assert await instance.read_file("large") == data
    with pytest.raises(SandkeepError, match="larger than a file"):
        await instance.write_file("large", bytes(9_000_000))
    assert b"idle" in await instance.read_file("/proc/1/comm")
    assert (await files.read_piece(instance, "/proc/1/comm", 0, 100)).eof


async def test_links_are_followed_inside_and_nowhere_else(world: World) -> None:
    instance = await tools(world)
    secret = Path(world.state) / "secret"
    secret.write_text("the host's")
    await sh(
        instance,
        f"mkdir sub; ln -s sub/far near; ln -s ../../../../..{secret} up; ln -s {secret} out; ln -s round round;"
        "ln -s /proc/1/root/etc/group magic; ln -s /etc/group group",
    )
    await instance.write_file("near", b"through")
    assert await sh(instance, "cat sub/far; readlink near") == "throughsub/far\n"
    assert (await instance.read_file("group")).startswith(b"root:")
    for name in ("up", "out", str(secret), f"/../../..{secret}"):
        with pytest.raises(SandkeepError, match="no such file"):
            await instance.read_file(name)
    for name in ("round", "magic"):
        with pytest.raises(SandkeepError, match="circle"):
            await instance.read_file(name)
    with pytest.raises(SandkeepError):
        await instance.write_file("out", b"x")
    assert secret.read_text() == "the host's"


async def test_what_its_user_may_not_do(world: World) -> None:
    world.details = details(world.engine, world.engine.tools())
    instance = made(await world.sandbox(user="4321:4321"))
    for path in ("/etc/new", "/new"):
        with pytest.raises(SandkeepError, match=r"cannot be written|may not"):
            await instance.write_file(path, b"x")
    await sh(instance, "mkfifo pipe; mkdir closed; echo x >closed/file; echo y >secret; chmod 0 closed secret")
    for path in ("closed/file", "secret"):
        with pytest.raises(SandkeepError, match="may not"):
            await instance.read_file(path)
    with pytest.raises(SandkeepError, match="may not"):
        await instance.write_file("secret", b"")
    for path in ("pipe", "closed", "/dev/zero"):
        with pytest.raises(SandkeepError, match="not a regular file"):
            await instance.read_file(path)
        with pytest.raises(SandkeepError, match="not a regular file"):
            await instance.write_file(path, b"")
    assert await sh(instance, "ls -A") == "closed\npipe\nsecret\n"


async def test_root_inside_has_no_more_rights_than_inside(world: World) -> None:
    world.details = {**details(world.engine, world.engine.tools()), "user": (0, 0)}
    instance = made(await world.sandbox())
    await sh(instance, "mkdir /tmp/mine; echo >/tmp/mine/file; chmod 0 /tmp/mine/file; [ ! -r /tmp/mine/file ]")
    with pytest.raises(SandkeepError, match="may not"):
        await instance.read_file("/tmp/mine/file")


async def test_directories_are_made_and_unmade(world: World) -> None:
    instance = await tools(world)
    await files.write_whole(instance, "a/b/c/file", b"x", parents=True)
    assert await sh(instance, "stat -c '%a %u %n' a a/b a/b/c") == "755 1234 a\n755 1234 a/b\n755 1234 a/b/c\n"
    await sh(instance, "mkdir no; chmod 555 no")
    with pytest.raises(SandkeepError, match="may not"):
        await files.write_whole(instance, "no/x/file", b"x", parents=True)
    with pytest.raises(SandkeepError, match="not a regular file"):
        await files.write_whole(instance, "new/dir/..", b"x", parents=True)
    with pytest.raises(SandkeepError, match="too long"):
        await files.write_whole(instance, f"new/dir/{'x' * 300}", b"x", parents=True)
    assert await sh(instance, "ls -A") == "a\nno\n"


async def test_directories_are_listed_in_pages(world: World) -> None:
    instance = await tools(world)
    await sh(
        instance, "mkdir d; cd d; echo 12345 >file; ln -s to link; mkfifo pipe; mkdir sub; echo >$(printf 'z\\377')"
    )
    found = await files.list_directory(instance, "d", b"", 3)
    assert [(e.name, e.type, e.target) for e in found.entries] == [
        ("file", "file", None), ("link", "symlink", "to"), ("pipe", "fifo", None)
    ]  # fmt: skip
    assert (found.entries[0].size_bytes, found.entries[0].mode, found.last) == (6, 0o644, b"pipe")
    rest = await files.list_directory(instance, "d", b"pipe", 3)
    assert [(e.type, e.name_bytes) for e in rest.entries] == [("directory", None), ("file", b"z\xff")]
    assert rest.last is None
    with pytest.raises(SandkeepError, match="no such directory"):
        await files.list_directory(instance, "d/file", b"", 3)


# -- the engine --------------------------------------------------------------------------------------------------------


async def test_what_stands_still_waits(world: World) -> None:
    instance = made(await world.sandbox())
    process_id = await start(instance, "cat", stdin=True)
    await instance.suspend()
    assert instance.is_paused()
    assert not await instance.is_alive()
    with trio.move_on_after(0.3) as waiting:
        await instance.signal(process_id, signal.SIGTERM)
    assert waiting.cancelled_caught
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, instance, "echo")
            nursery.start_soon(instance.read_file, "/etc/group")
            await trio.testing.wait_all_tasks_blocked(0.1)
            await instance.resume()
        await instance.signal(process_id, signal.SIGTERM)
        assert (await instance.wait(process_id)).exit_code == 143


async def test_while_the_engine_is_down_and_after_it(tmp_path: Path) -> None:
    """With live-restore containers go on, and so do their processes; but nobody hears them any more."""
    engine = PrivateEngine(tempfile.mkdtemp(prefix="skt-engine-"))
    try:
        engine.start()
        async with opened(engine, tmp_path) as world:
            instance = await tools(world)
            script = "echo before; until [ -e go ]; do sleep 0.01; done; exit 6"
            process_id, second = [await start(instance, "sh", "-c", script) for _ in range(2)]
            await instance.wait_output(process_id, 6, 0)
            await trio.to_thread.run_sync(engine.stop)
            with pytest.raises(SandkeepError, match="is not running"):
                await start(instance, "echo")
            assert instance.exit_of(process_id) is None
            assert await instance.read_file("/etc/passwd")
            with trio.fail_after(40):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(instance.signal, process_id, signal.SIGKILL)
                    await trio.to_thread.run_sync(engine.start)
                how = await instance.wait(process_id)
                assert (how.exit_code, how.message) == (None, FORGOTTEN)
                assert "lost" in (instance.read(process_id, "stdout", 0, 9).note or "")
                assert await sh(instance, "touch go; echo again") == "again\n"
                assert (await instance.wait(second)).exit_code is None
            await world.close()
    finally:
        await trio.to_thread.run_sync(engine.clear)


async def test_an_engine_that_hangs_is_told_and_nothing_else_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "ANSWER_S", 1)
    instance = made(await world.sandbox())
    process_id = await start(instance, "sleep", "1000")
    world.engine.send(signal.SIGSTOP)
    try:
        with pytest.raises(SandkeepError, match="does not answer"):
            await start(instance, "echo")
        assert (await instance.read_file("/etc/group")).startswith(b"root")
        with trio.move_on_after(0.1):
            await instance.signal(process_id, signal.SIGTERM)
        assert instance.exit_of(process_id) is None
    finally:
        world.engine.send(signal.SIGCONT)
    with trio.fail_after(40):
        assert (await instance.wait(process_id)).exit_code == 143


async def test_started_anew_after_it_ended(world: World) -> None:
    instance = made(await world.sandbox())
    lost = await start(instance, "sleep", "1000")
    await instance.write_file("kept", b"here")
    world.engine.ask("POST", f"/containers/sandbox-{instance.sandbox_id}/kill")
    with trio.fail_after(20):
        await instance.ended()
    assert instance.exit_of(lost) == Exit(exit_code=None, message=LOST_WITH_SANDBOX)
    sandbox_id, plan = instance.sandbox_id, world.plans[instance.sandbox_id]
    assert isinstance(world.provider, Reviving)
    again = made(await world.provider.revive(sandbox_id, "", world.spec(), {}, plan, instance.handle))
    world.handles[sandbox_id] = again.handle
    assert await run(again, "cat", "kept") == (0, b"here", b"")
    with pytest.raises(SandkeepError, match="started before"):
        await again.launch(Launch(process_id=lost, command=["echo"]))


# -- adoption ----------------------------------------------------------------------------------------------------------


async def test_adopting_goes_on_where_it_was(dockerd: Any, tmp_path: Path) -> None:
    async with opened(dockerd, tmp_path) as first:
        instance = await tools(first)
        sandbox_id = instance.sandbox_id
        ended = await start(instance, "sh", "-c", "echo done; exit 5")
        await instance.wait(ended)
        running = await start(instance, "sh", "-c", "echo before; until [ -e go ]; do sleep 0.01; done; exit 6")
        unseen = await start(instance, "sh", "-c", "until [ -e went ]; do sleep 0.01; done; exit 8")
        reader = await start(instance, "cat", stdin=True)
        await instance.wait_output(running, 6, 0)
        await instance.signal(running, signal.SIGCONT, order=9)
        pid = await instance.find(running)
    container = f"sandbox-{sandbox_id}"
    _exec_outside(dockerd, container, "touch", "/workspace/went")
    async with opened(dockerd, tmp_path, first) as second:
        spec = second.spec()
        instance = made(
            await second.provider.adopt(
                sandbox_id, spec, second.plans[sandbox_id], instance.isolation, second.handles[sandbox_id]
            )
        )
        try:
            with trio.fail_after(30):
                assert await instance.find(running) == pid
                assert await instance.find("prc_unknown") is None
                assert (await instance.wait(ended)).exit_code == 5
                assert instance.read(ended, "stdout", 0, 9).note is None
                assert (await instance.wait(unseen)).exit_code == 8
                assert await instance.was_signalled(running, 9)
                assert not await instance.was_signalled(running, 10)
                assert "lost" in (instance.read(running, "stdout", 0, 9).note or "")
                assert (await instance.wait(reader)).exit_code == 0
                await sh(instance, "touch go")
                assert (await instance.wait(running)).exit_code == 6
            instance.forget(running)
            assert "lost" in (second.provider.read_ended(sandbox_id, running, "stdout", 0, 9).note or "")
        finally:
            await second.close()


def _exec_outside(engine: Any, container: str, *command: str) -> None:
    import json

    _, body = engine.ask("POST", f"/containers/{container}/exec", {"Cmd": list(command), "User": "1234"})
    status, body = engine.ask("POST", f"/exec/{json.loads(body)['Id']}/start", {"Detach": True})
    assert status == 200, body


async def test_a_container_that_ends_takes_its_processes_along(world: World) -> None:
    instance = made(await world.sandbox())
    process_id = await start(instance, "sleep", "1000")
    world.engine.ask("DELETE", f"/containers/sandbox-{instance.sandbox_id}?force=1")
    with trio.fail_after(20):
        assert (await instance.wait(process_id)).exit_code is None
        await instance.ended()
    with pytest.raises(SandkeepError, match="has ended"):
        await start(instance, "echo")
    with pytest.raises(SandkeepError, match="has ended"):
        await instance.read_file("/etc/group")
