"""Containers of images without a shell: the keeper starts processes as everywhere, files are reached from outside.

`bare` is an image that has none; `tools` is one that has, of which that is not said, so that more can be tried in it.
"""

import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from tests.conformance.conftest import World, run, sh, start
from tests.support.engine import PrivateEngine
from tests.support.expect import DEADLINE_S, until_async
from tests.support.patience import patient

from sandkeep.errors import SandkeepError
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.processes import Exit, Launch
from sandkeepd.keeper import copies
from sandkeepd.keeper.processes import LOST_WITH_SANDBOX
from sandkeepd.providers.docker.instance import ShelllessInstance

pytestmark = pytest.mark.needs("docker", "root")

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
    return {"docker_image_id": found, "docker_image_tag": image, "user": USER, "why": "its image has no shell"}


async def tools(world: World, **fields: Any) -> ShelllessInstance:
    world.details = details(world.engine, world.engine.tools())
    return made(await world.sandbox(**fields))


def made(instance: Instance) -> ShelllessInstance:
    assert isinstance(instance, ShelllessInstance)
    return instance


async def content(instance: Instance, path: str) -> bytes:
    return (await instance.read_piece(path, 0, 1 << 23)).data


async def test_commands_in_an_image_that_has_nothing(world: World) -> None:
    instance = made(await world.sandbox())
    assert await run(instance, "/bin/echo", "a b", "c") == (0, b"a b c\n", b"")
    assert await run(instance, "false") == (1, b"", b"")
    code, stdout, stderr = await run(instance, "cat", "/etc/group", "/nothing")
    assert (code, stdout.splitlines()[0]) == (1, b"root:x:0:")
    assert b"/nothing" in stderr
    assert (await run(instance, "id", "-u"))[1] == b"1234\n"


async def test_it_has_no_shell(world: World) -> None:
    instance = made(await world.sandbox())
    assert await run(instance, "sh", "-c", "exit 3") == (127, b"", b"sh: not found\n")
    assert (await run(instance, "/bin/none"))[0] == 127
    assert (await run(instance, "/etc/group"))[0] == 126
    assert (await run(instance, "echo", working_dir="/none"))[0] == 126


async def test_what_takes_a_shell_is_refused_in_words(world: World) -> None:
    instance = made(await world.sandbox())
    assert "its image has no shell, so it has no terminals and no copies of trees" in instance.isolation.notes
    assert "no shell" in (instance.no_terminals or "")
    for incoming in (True, False):
        with pytest.raises(SandkeepError, match="no shell") as caught:
            await copies.copying(instance, "/etc", incoming=incoming, form="whole").__aenter__()
        assert caught.value.code == "not_supported"


async def test_its_files_take_a_daemon_of_roots(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = made(await world.sandbox())
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(SandkeepError, match="only root's daemon") as caught:
            await instance.read_piece("/etc/group", 0, 9)
    assert caught.value.code == "not_supported"


async def test_secrets_reach_processes_and_nothing_else(world: World) -> None:
    instance = made(await world.sandbox(secrets={"SHARED": "s3cret-of-all"}, env={"SHARED": "env", "OPEN": "env"}))

    async def environment(**fields: Any) -> list[bytes]:
        code, stdout, _ = await run(instance, "cat", "/proc/self/environ", **fields)
        assert code == 0
        return stdout.split(b"\0")

    seen = await environment(secrets={"OWN": "s3cret-of-one"})
    assert {b"SHARED=s3cret-of-all", b"OWN=s3cret-of-one", b"OPEN=env"} < set(seen)
    later = await environment()
    assert b"SHARED=s3cret-of-all" in later
    assert not any(word.startswith(b"OWN=") for word in later)
    container = world.engine.container_of(instance.sandbox_id)
    places = [world.state, Path(world.engine.root, "data", "containers", container["Id"])]
    written = [file for place in places for file in place.rglob("*") if file.is_file() and not file.is_symlink()]
    told = [file for file in written if b"s3cret" in file.read_bytes()]
    assert {file.suffix for file in told} == {".stdout"}  # as `cat` was asked to write them
    assert "s3cret" not in repr(container)


async def test_what_is_left_behind_is_reaped_by_the_first_program(world: World) -> None:
    instance = await tools(world)
    leave = "for n in 1 2 3; do (setsid sh -c 'echo $$; : >left.$$; exec sleep 0.2' &) done"
    script = f"{leave}; until [ $(ls left.* 2>/dev/null | wc -l) = 3 ]; do sleep 0.01; done"
    left = [int(word) for word in (await sh(instance, script)).split()]
    assert len(left) == 3
    first = instance.handle["first"]["pid"]
    with trio.fail_after(DEADLINE_S):
        while Path(f"/proc/{first}/task/{first}/children").read_text():
            await trio.lowlevel.checkpoint()
    assert len((await sh(instance, "ls -d /proc/[0-9]* | wc -l")).split()) == 1


async def test_input_given_at_once_and_input_that_is_none(world: World) -> None:
    instance = made(await world.sandbox())
    data = os.urandom(3_000_000)
    assert await run(instance, "cat", stdin=data) == (0, data, b"")
    assert await run(instance, "cat", stdin=b"") == (0, b"", b"")
    assert await run(instance, "cat") == (0, b"", b"")
    process_id = await start(instance, "sleep", "1000")
    with pytest.raises(SandkeepError, match="is closed"):
        await instance.write_stdin(process_id, b"x", eof=False)


async def test_signals_reach_the_group(world: World) -> None:
    instance = await tools(world)
    script = "trap 'echo got; exit 4' USR1; sh -c 'echo up; exec sleep 1000' & wait; wait"
    process_id = await start(instance, "sh", "-c", script)
    with trio.fail_after(DEADLINE_S):
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
        while "sleep" in await sh(instance, "cat /proc/[0-9]*/comm 2>/dev/null; :"):
            await trio.lowlevel.checkpoint()


async def test_output_beyond_the_limit_ends_its_writer(world: World) -> None:
    instance = made(await world.measured(16 * 1024 * 1024))
    process_id = await start(instance, "yes")
    with trio.fail_after(patient(60)):
        assert (await instance.wait(process_id)).exit_code == 128 + signal.SIGXFSZ
    chunk = instance.read(process_id, "stdout", 0, 4)
    assert (chunk.data, chunk.size <= 16 * 1024 * 1024) == (b"y\ny\n", True)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["new", "/tmp/new"])
async def test_files_are_read_and_written_as_its_user(world: World, path: str) -> None:
    instance = await tools(world)
    await instance.write_whole(path, b"data")
    assert await content(instance, path) == b"data"
    assert (
        await sh(instance, f"stat -c '%u %g %a' {path}; ls -A {os.path.dirname(path) or '.'}") == "1234 1234 644\nnew\n"
    )
    await instance.write_whole(path, b"more", mode=0o600)
    await instance.write_whole(path, b"most")
    assert await sh(instance, f"stat -c %a {path}; cat {path}") == "600\nmost"
    piece = await instance.read_piece(path, 1, 2)
    assert (piece.data, piece.size_bytes, piece.mode, piece.eof) == (b"os", 4, 0o600, False)


async def test_large_files_and_what_the_kernel_shows(world: World) -> None:
    instance = made(await world.measured(8 * 1024 * 1024))
    data = os.urandom(5_000_000)
    await instance.write_whole("large", data)
    assert await content(instance, "large") == data
    with pytest.raises(SandkeepError, match="maximum size of a file"):
        await instance.write_whole("large", bytes(9_000_000))
    assert b"keeper" in await content(instance, "/proc/1/comm")
    assert (await instance.read_piece("/proc/1/comm", 0, 100)).eof


async def test_links_are_followed_inside_and_nowhere_else(world: World) -> None:
    instance = await tools(world)
    secret = Path(world.state) / "secret"
    secret.write_text("the host's")
    await sh(
        instance,
        f"mkdir sub; ln -s sub/far near; ln -s ../../../../..{secret} up; ln -s {secret} out; ln -s round round;"
        "ln -s /proc/1/root/etc/group magic; ln -s /etc/group group",
    )
    await instance.write_whole("near", b"through")
    assert await sh(instance, "cat sub/far; readlink near") == "throughsub/far\n"
    assert (await content(instance, "group")).startswith(b"root:")
    for name in ("up", "out", str(secret), f"/../../..{secret}"):
        with pytest.raises(SandkeepError, match="no such file"):
            await content(instance, name)
    for name in ("round", "magic"):
        with pytest.raises(SandkeepError, match="loop"):
            await content(instance, name)
    with pytest.raises(SandkeepError):
        await instance.write_whole("out", b"x")
    assert secret.read_text() == "the host's"


async def test_what_its_user_may_not_do(world: World) -> None:
    world.details = details(world.engine, world.engine.tools())
    instance = made(await world.sandbox(user="4321:4321"))
    for path in ("/etc/new", "/new"):
        with pytest.raises(SandkeepError, match=r"read-only|may not"):
            await instance.write_whole(path, b"x")
    await sh(instance, "mkfifo pipe; mkdir closed; echo x >closed/file; echo y >secret; chmod 0 closed secret")
    for path in ("closed/file", "secret"):
        with pytest.raises(SandkeepError, match="may not"):
            await content(instance, path)
    with pytest.raises(SandkeepError, match="may not"):
        await instance.write_whole("secret", b"")
    for path in ("pipe", "closed", "/dev/zero"):
        with pytest.raises(SandkeepError, match="not a regular file"):
            await content(instance, path)
        with pytest.raises(SandkeepError, match="not a regular file"):
            await instance.write_whole(path, b"")
    assert await sh(instance, "ls -A") == "closed\npipe\nsecret\n"


async def test_root_inside_has_no_more_rights_than_inside(world: World) -> None:
    world.details = {**details(world.engine, world.engine.tools()), "user": (0, 0)}
    instance = made(await world.sandbox())
    await sh(instance, "mkdir /tmp/mine; echo >/tmp/mine/file; chmod 0 /tmp/mine/file; [ ! -r /tmp/mine/file ]")
    with pytest.raises(SandkeepError, match="may not"):
        await content(instance, "/tmp/mine/file")


async def test_directories_are_made_and_unmade(world: World) -> None:
    instance = await tools(world)
    await instance.write_whole("a/b/c/file", b"x", parents=True)
    assert await sh(instance, "stat -c '%a %u %n' a a/b a/b/c") == "755 1234 a\n755 1234 a/b\n755 1234 a/b/c\n"
    await sh(instance, "mkdir no; chmod 555 no")
    with pytest.raises(SandkeepError, match="may not"):
        await instance.write_whole("no/x/file", b"x", parents=True)
    with pytest.raises(SandkeepError, match="not a regular file"):
        await instance.write_whole("new/dir/..", b"x", parents=True)
    with pytest.raises(SandkeepError, match="too long"):
        await instance.write_whole(f"new/dir/{'x' * 300}", b"x", parents=True)
    assert await sh(instance, "ls -A") == "a\nno\n"


async def test_directories_are_listed_in_pages(world: World) -> None:
    instance = await tools(world)
    await sh(
        instance, "mkdir d; cd d; echo 12345 >file; ln -s to link; mkfifo pipe; mkdir sub; echo >$(printf 'z\\377')"
    )
    found = await instance.list_directory("d", b"", 3)
    assert [(e.name, e.type, e.target) for e in found.entries] == [
        ("file", "file", None), ("link", "symlink", "to"), ("pipe", "fifo", None)
    ]  # fmt: skip
    assert (found.entries[0].size_bytes, found.entries[0].mode, found.last) == (6, 0o644, b"pipe")
    rest = await instance.list_directory("d", b"pipe", 3)
    assert [(e.type, e.name_bytes) for e in rest.entries] == [("directory", None), ("file", b"z\xff")]
    assert rest.last is None
    with pytest.raises(SandkeepError, match="no such directory"):
        await instance.list_directory("d/file", b"", 3)


# -- the engine --------------------------------------------------------------------------------------------------------


async def test_what_stands_still_waits(world: World) -> None:
    instance = made(await world.sandbox())
    process_id = await start(instance, "cat", stdin=True)
    assert instance.pauses is not None
    await instance.pauses.suspend()
    assert instance.pauses.is_paused()
    assert not await instance.is_alive()
    await instance.signal(process_id, signal.SIGTERM)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, instance, "echo")
            nursery.start_soon(content, instance, "/etc/group")
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert len(nursery.child_tasks) == 2
            await instance.pauses.resume()
        assert (await instance.wait(process_id)).exit_code == 143


async def test_while_the_engine_is_down(tmp_path: Path) -> None:
    """With live-restore containers go on, and all is carried out in them."""
    engine = PrivateEngine(tempfile.mkdtemp(prefix="skt-engine-"))
    try:
        engine.start()
        async with opened(engine, tmp_path) as world:
            instance = await tools(world)
            process_id = await start(instance, "cat", stdin=True)
            await trio.to_thread.run_sync(engine.stop)
            with trio.fail_after(DEADLINE_S):
                assert await sh(instance, "echo here >file; cat file") == "here\n"
                assert await content(instance, "file") == b"here\n"
                await instance.write_stdin(process_id, b"in", eof=True)
                assert await instance.wait(process_id) == Exit(exit_code=0)
                assert instance.read(process_id, "stdout", 0, 9).data == b"in"
            await trio.to_thread.run_sync(engine.start)
            await world.close()
    finally:
        await trio.to_thread.run_sync(engine.clear)


async def test_started_anew_after_it_ended(world: World) -> None:
    instance = made(await world.sandbox())
    lost = await start(instance, "sleep", "1000")
    await instance.write_whole("kept", b"here")
    world.engine.ask("POST", f"/containers/sandbox-{instance.sandbox_id}/kill")
    with trio.fail_after(DEADLINE_S):
        await instance.ended()
    assert instance.exit_of(lost) == Exit(exit_code=None, message=LOST_WITH_SANDBOX)
    sandbox_id, plan = instance.sandbox_id, world.plans[instance.sandbox_id]
    assert world.provider.revival is not None
    again = made(await world.provider.revival.revive(sandbox_id, "", world.spec(), {}, plan, instance.handle))
    world.handles[sandbox_id] = again.handle
    assert await run(again, "cat", "kept") == (0, b"here", b"")
    with pytest.raises(SandkeepError, match="started before"):
        await again.launch(Launch(process_id=lost, command=["echo"]))


# -- adoption ----------------------------------------------------------------------------------------------------------


async def test_adopting_goes_on_where_it_was(dockerd: Any, tmp_path: Path) -> None:
    async with opened(dockerd, tmp_path) as first:
        instance = await tools(first, secrets={"TOKEN": "t"})
        sandbox_id = instance.sandbox_id
        ended = await start(instance, "sh", "-c", "echo done; exit 5")
        await instance.wait(ended)
        running = await start(instance, "sh", "-c", "echo before; until [ -e go ]; do sleep 0.01; done; exit 6")
        unseen = await start(instance, "sh", "-c", "until [ -e went ]; do sleep 0.01; done; echo $TOKEN; exit 8")
        reader = await start(instance, "cat", stdin=True)
        await instance.wait_output(running, 6, 0)
        await instance.signal(running, signal.SIGCONT, order=9)
        pid = await instance.find(running)
    exits = Path(first.state, "sandboxes", sandbox_id, "out", "exits")
    Path(f"/proc/{instance.handle['first']['pid']}/root/workspace/went").touch()
    await until_async(lambda: f"{unseen} 8" in exits.read_text())
    async with opened(dockerd, tmp_path, first) as second:
        plan, handle = second.plans[sandbox_id], second.handles[sandbox_id]
        instance = made(await second.provider.adopt(sandbox_id, second.spec(), plan, instance.isolation, handle))
        try:
            with trio.fail_after(DEADLINE_S):
                assert await instance.find(running) == pid
                assert await instance.find("prc_unknown") is None
                assert (await instance.wait(ended)).exit_code == 5
                assert (await instance.wait(unseen)).exit_code == 8
                assert instance.read(unseen, "stdout", 0, 9).data == b"t\n"
                assert await instance.was_signalled(running, 9)
                assert not await instance.was_signalled(running, 10)
                assert await instance.find(reader)
                await instance.write_stdin(reader, b"still there", eof=True)
                assert (await instance.wait(reader)).exit_code == 0
                assert instance.read(reader, "stdout", 0, 99).data == b"still there"
                assert await sh(instance, "touch go; echo $TOKEN") == "t\n"
                assert (await instance.wait(running)).exit_code == 6
        finally:
            await second.close()


async def test_a_container_that_ends_takes_its_processes_along(world: World) -> None:
    instance = made(await world.sandbox())
    process_id = await start(instance, "sleep", "1000")
    world.engine.ask("DELETE", f"/containers/sandbox-{instance.sandbox_id}?force=1")
    with trio.fail_after(DEADLINE_S):
        assert (await instance.wait(process_id)).exit_code is None
        await instance.ended()
    with pytest.raises(SandkeepError, match="has ended"):
        await start(instance, "echo")
    with pytest.raises(SandkeepError, match="has ended"):
        await content(instance, "/etc/group")
