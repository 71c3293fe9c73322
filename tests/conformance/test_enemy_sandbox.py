"""Code inside a sandbox that does its worst: to the host, to who waits for it, and to who must end it."""

import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.conformance.conftest import KUBERNETES, UID_BASE, World, run, sh, start
from tests.support.expect import DEADLINE_S, until_async
from tests.support.patience import patient

from sandkeep.errors import ProviderError, SandkeepError, StateError
from sandkeep.ids import PROCESS, new_id
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.processes import Chunk, Launch, Terminal
from sandkeepd.host import processes as hostprocess
from sandkeepd.keeper import allowance, channel, client, copies, files, helpers, journal, processes
from sandkeepd.keeper.client import KeeperInstance
from sandkeepd.providers.common import disk_usage, disk_watch, keeper_provider, layout, piped
from sandkeepd.providers.common.disk_watch import DiskWatch
from sandkeepd.providers.local.provider import LocalInstance, LocalProvider, open_local

ROOT = os.geteuid() == 0
DOCKER = pytest.param("docker", marks=pytest.mark.needs("docker"))
GVISOR = pytest.param("gvisor", marks=pytest.mark.needs("runsc"))


def kinds(*more: Any) -> pytest.MarkDecorator:
    """Run a test in a local sandbox, and in those of `more`."""
    local = pytest.param("local", marks=pytest.mark.needs("bwrap"))
    return pytest.mark.parametrize("world", [local, *more], indirect=True)


EVERYWHERE = kinds(DOCKER, GVISOR, KUBERNETES)
AT_HAND = kinds(DOCKER, GVISOR)
"""For what is done to files that the daemon reads, or by stopping all. Of a pod's files it has its own copies, and what
sends them is stopped, too: then the daemon hears nothing more of that sandbox.
"""
DAEMONS_OWN = kinds()
"""For what the daemon does by itself, the same for all, and for what only the local provider does."""


@pytest.fixture
def unswept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the provider from asking keepers, now and then, after ends that were not told."""
    monkeypatch.setattr(keeper_provider, "SWEEP_PERIOD_S", 1e9)


# -- those who wait for a process must not wait for ever ---------------------------------------------------------------


@pytest.mark.usefixtures("unswept")
@kinds(DOCKER)
@pytest.mark.parametrize(
    "mischief",
    [
        ": >/run/sandkeep/out/exits",
        "echo $NAME +4194000 >>/run/sandkeep/out/exits",
        "rm /run/sandkeep/out/p/$NAME.*",
        "(kill -STOP -1)",
        "trap '' TERM INT HUP; (exec setsid kill -KILL -1)",
    ],
)
async def test_a_kill_reaches_a_process_that_hides_from_it(
    world: World, monkeypatch: pytest.MonkeyPatch, mischief: str
) -> None:
    monkeypatch.setattr(client, "KILL_DEADLINE_S", 2 * DEADLINE_S)
    instance = await world.sandbox()
    process_id = new_id(PROCESS)
    begin = "until [ -e /run/sandkeep/out/p/begin ]; do sleep 0.01; done"
    script = f"{begin}; echo >go; {mischief}; exec sleep 1000"
    launch = Launch(process_id=process_id, command=["sh", "-c", script], env={"NAME": process_id})
    await instance.launch(launch)
    (world.state / "sandboxes" / instance.sandbox_id / "out" / "p" / "begin").touch()  # that it began is known by now
    await _settled(instance, process_id)
    with trio.fail_after(DEADLINE_S):
        await instance.signal(process_id, 9)
        await instance.wait(process_id)
        assert (await run(instance, "sh", "-c", "ls go"))[0] == 0
    running = await sh(instance, "cat /proc/[0-9]*/cmdline 2>/dev/null; true")
    assert "sleep\0001000" not in running
    assert "/run/sandkeep/in" in running  # the keeper's own words are seen


async def _settled(instance: object, process_id: str) -> None:
    """Wait until the process has become what its script ends in, as the host sees it, or is stopped, or is gone."""
    assert isinstance(instance, KeeperInstance)
    with trio.fail_after(patient(60)):
        while instance.exit_of(process_id) is None:
            pids = _pids(instance)
            if len(pids) == 1 or any(_command(pid) == b"sleep\x001000\x00" or _stopped(pid) for pid in pids):
                return
            await trio.lowlevel.checkpoint()


def _pids(instance: KeeperInstance) -> list[int]:
    namespace = os.readlink(f"/proc/{instance.handle['first']['pid']}/ns/pid")
    return hostprocess.pids_where(lambda pid: os.readlink(f"/proc/{pid}/ns/pid") == namespace)


def _command(pid: int) -> bytes:
    return _told(pid, "cmdline")


def _stopped(pid: int) -> bool:
    return b"State:\tT" in _told(pid, "status")


def _told(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


@pytest.mark.usefixtures("unswept")
@AT_HAND
async def test_a_killed_process_whose_end_cannot_be_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper's next line ends one that the code inside began, and the daemon does not ask before its deadline.

    That line has to be the one of the end: it is spoilt, and the one after it would not be. So it is the script's turn
    only when the keeper has told of the start.
    """
    monkeypatch.setattr(channel, "LOOK_S", 1e9)
    instance = await world.measured(1 << 20)
    go = new_id("go")
    script = f"until [ -e /run/sandkeep/out/p/{go} ]; do sleep 0.01; done; truncate -s 1M /run/sandkeep/out/exits"
    process_id = await start(instance, "sh", "-c", f"{script}; echo; exec sleep 1000")
    (world.state / "sandboxes" / instance.sandbox_id / "out" / "p" / go).touch()
    await instance.wait_output(process_id, 0, 0)
    monkeypatch.setattr(client, "KILL_DEADLINE_S", 0.2)
    with trio.fail_after(patient(60)):
        await instance.signal(process_id, 9)
        how = await instance.wait(process_id)
    assert (how.exit_code, how.message) == (None, client.LOST_END)


TTY = Terminal(rows=24, cols=80, session="t")


@pytest.mark.usefixtures("unswept")
@EVERYWHERE
async def test_that_all_was_killed_is_known_soon(world: World) -> None:
    """Without another word to the sandbox. Of a terminal nobody is left who knows how its process ended."""
    instance = await world.sandbox()
    begun = [await start(instance, "sh", "-c", "echo; exec sleep 1000", terminal=tty) for tty in (None, TTY)]
    for process_id in begun:
        await instance.wait_output(process_id, 0, 0)
    await start(instance, "sh", "-c", "kill -9 -1")
    with trio.fail_after(DEADLINE_S):
        ends = [await instance.wait(process_id) for process_id in begun]
    assert [(how.exit_code, how.message) for how in ends] == [(137, None), (None, processes.LOST_WATCHER)]


@pytest.mark.usefixtures("unswept")
@AT_HAND
async def test_an_exit_is_known_although_what_told_of_it_was_spoilt(world: World) -> None:
    instance = await world.sandbox()
    assert isinstance(instance, KeeperInstance)
    for terminal in (None, TTY):
        for spoilt in (b"", b"x" * 500 + b"\n"):
            await _spoil_an_exit(world, instance, terminal, spoilt)


async def _spoil_an_exit(world: World, instance: KeeperInstance, terminal: Terminal | None, spoilt: bytes) -> None:
    exits = world.state / "sandboxes" / instance.sandbox_id / "out" / "exits"
    go = new_id("go")
    script = f"until [ -e /run/sandkeep/out/p/{go} ]; do sleep 0.01; done; exit 7"
    process_id = await start(instance, "sh", "-c", script, terminal=terminal)
    instance._channel._stop_watching()  # the daemon comes too late
    (exits.parent / "p" / go).touch()
    await until_async(lambda: f"{process_id} 7\n".encode() in exits.read_bytes())
    exits.write_bytes(spoilt)
    instance._channel._resume_watching()
    with trio.fail_after(DEADLINE_S):
        assert (await instance.wait(process_id)).exit_code == 7


@pytest.mark.usefixtures("unswept")
@AT_HAND
@pytest.mark.parametrize("spoilt", [b"", b"x" * 500 + b"\n"])
@pytest.mark.parametrize("script", ["exit 7", "exec sleep 1000"])
async def test_a_start_is_known_although_what_told_of_it_was_spoilt(world: World, spoilt: bytes, script: str) -> None:
    """Both its start and its end can be in what the daemon has not read."""
    instance = await world.sandbox()
    assert isinstance(instance, KeeperInstance)
    exits = world.state / "sandboxes" / instance.sandbox_id / "out" / "exits"
    await instance.wait(await start(instance, "true"))  # a file as short as what was read tells of no loss
    size = exits.stat().st_size
    instance._channel._stop_watching()  # the daemon comes too late
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, instance, "sh", "-c", script)
            await until_async(lambda: exits.stat().st_size > size)
            exits.write_bytes(spoilt)
            instance._channel._resume_watching()


@EVERYWHERE
async def test_answers_that_never_end_do_not_hold_the_daemon(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = await world.sandbox()
    assert isinstance(instance, KeeperInstance)
    rounds = 0

    def more() -> bool:
        nonlocal rounds
        rounds += 1
        assert rounds <= journal.MAX_ROUNDS
        return True

    instance._channel._stop_watching()  # only those shall read that are looked at here
    monkeypatch.setattr(instance._channel, "_read_answers", more)
    await instance.remember_earlier()
    rounds = 0
    await world.terminate(instance.sandbox_id)
    assert rounds == journal.MAX_ROUNDS


@DAEMONS_OWN
async def test_one_that_speaks_without_end_has_its_share_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowance, "SHARE", 0.001)
    instance = await world.sandbox()
    assert isinstance(instance, KeeperInstance)
    await start(instance, "sh", "-c", "while :; do yes 'a 1' | head -c 1M >>/run/sandkeep/out/exits; done")
    await until_async(lambda: instance._channel._watch is None)  # it is not listened to


async def for_ever(attempt: Callable[[], Awaitable[Any]]) -> None:
    while True:
        await attempt()


@AT_HAND
async def test_a_file_whose_reader_is_stopped_or_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that reads is held by the code inside, as by a FIFO that comes after it has looked for a file."""
    instance = await world.sandbox()
    monkeypatch.setattr(files, "DEADLINE_S", 0.5)
    monkeypatch.setattr(helpers, "CLEAN_UP_S", 0.5)
    holder = await start(instance, "sh", "-c", "while :; do kill -STOP -1; echo; done")
    await instance.wait_output(holder, 0, 0)
    for attempt in (lambda: instance.read_piece("file", 0, 99), lambda: instance.write_whole("new", b"data")):
        with trio.fail_after(patient(60)), pytest.raises(ProviderError, match="no answer from the sandbox"):
            await for_ever(attempt)  # it may be done between two of the signals
    directory = world.state / "sandboxes" / instance.sandbox_id
    found = [name for part in ("in", "out/p") for name in os.listdir(directory / part) if name.startswith("hlp")]
    assert found == []


@DAEMONS_OWN
async def test_a_helper_that_does_not_go_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "CLEAN_UP_S", 0.2)
    instance = await world.sandbox()
    script = "trap '' TERM; : >deaf; while :; do sleep 0.01; done"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(instance.run_command, ["sh", "-c", script])
        await sh(instance, "until [ -e deaf ]; do sleep 0.01; done")
        nursery.cancel_scope.cancel()
    running = await sh(instance, "cat /proc/[0-9]*/cmdline 2>/dev/null; true")
    assert "/run/sandkeep/in" in running  # the keeper's own words are seen
    assert "deaf" not in running


@AT_HAND
async def test_a_stopped_helper_takes_back_what_it_began(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DEADLINE_S", 2.0)
    instance = await world.sandbox()
    stopping = "until ls -a | grep -q .sandkeep-hlp; do :; done; kill -STOP -1; echo stopped; exec sleep 1000"
    enemy = await start(instance, "sh", "-c", stopping)
    with trio.fail_after(patient(60)):
        while not instance.read(enemy, "stdout", 0, 1).data:
            with suppress(ProviderError):
                await instance.write_whole("new", b"x" * (16 << 20))
    await instance.signal(enemy, 9)
    assert ".sandkeep" not in await sh(instance, "ls -a")


@EVERYWHERE
async def test_a_copy_that_takes_long_to_remove_is_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper of an interrupted copy is killed in the midst of its removal, which goes on."""
    for module in (helpers, piped):
        monkeypatch.setattr(module, "CLEAN_UP_S", patient(1.0))
    instance = await world.sandbox(env={"PATH": "bin:/usr/bin:/bin"})
    slow = '#!/bin/sh\n: >begun; until [ -e go ]; do sleep 0.01; done\nexec /bin/rm "$@"\n'
    await instance.write_whole("rm", slow.encode())
    await sh(instance, "mkdir bin; chmod +x rm; mv rm bin")
    async with copies.copying(instance, "new", incoming=True, form="whole"):
        while ".sandkeep" not in await sh(instance, "ls -a"):
            await trio.sleep(0.01)
    running = await sh(instance, "cat /proc/[0-9]*/cmdline 2>/dev/null; true")
    left = await sh(instance, "ls -a")
    assert "begun" in left
    assert ".sandkeep" in left
    assert "receive" not in running
    await sh(instance, ": >go")
    with trio.fail_after(patient(30)):
        while ".sandkeep" in await sh(instance, "ls -a"):
            await trio.sleep(0.01)


@kinds(DOCKER)  # elsewhere it is not suspended before the copy is over
@pytest.mark.needs("freezer")
async def test_a_copy_that_is_interrupted_while_all_stands_still(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to undo it is not killed before it could."""
    monkeypatch.setattr(helpers, "CLEAN_UP_S", 0.2)
    instance = await world.sandbox()
    assert instance.pauses is not None
    async with copies.copying(instance, "new", incoming=True, form="whole"):
        while ".sandkeep" not in await sh(instance, "ls -a"):
            await trio.sleep(0.01)
        await instance.pauses.suspend()
    await instance.pauses.resume()
    with trio.fail_after(patient(30)):
        while ".sandkeep" in await sh(instance, "ls -a"):
            await trio.sleep(0.01)


# -- those who read must not be led astray, nor wait for ever ----------------------------------------------------------


OTHERS = ["mkfifo $J", "mkdir $J", "ln -s /etc/passwd $J", "ln -s $J $J", "truncate -s 0 $J", "ln -s /dev/zero $J", ":"]


@EVERYWHERE
async def test_a_journal_that_becomes_something_else_between_two_reads(world: World) -> None:
    """By every way to read there is, while the process runs and when its sandbox is gone; then it is a file again."""
    instance = await world.sandbox()
    changed = []
    with trio.fail_after(patient(90)):
        for other in OTHERS:
            changed.append(await _changing_journal(world, instance, other))
    await world.terminate(instance.sandbox_id)
    for process_id in changed:
        keeper_provider = world.provider.read_ended(instance.sandbox_id, process_id, "stdout", 0, 100)
        assert keeper_provider.data == b"first\nsecond\n"


async def _changing_journal(world: World, instance: Instance, other: str) -> str:
    place = f"{world.inside}/out/p"
    change = f"read go; J={place}/$NAME.stdout; mv $J {place}/kept; {other}; echo >&2; read go; rm -rf $J; "
    script = f"set -e; echo first; {change} mv {place}/kept $J; echo second; echo >&2; read go"
    process_id = new_id(PROCESS)
    launch = Launch(process_id=process_id, command=["sh", "-c", script], env={"NAME": process_id}, stdin=True)
    await instance.launch(launch)
    while not (first := instance.read(process_id, "stdout", 0, 100)).data:
        await instance.wait_output(process_id, 0, 0)
    offset = len(first.data)

    async def step(number: int) -> None:
        await instance.write_stdin(process_id, b"go\n", eof=False)
        while instance.read(process_id, "stderr", 0, 10).size < number:
            assert instance.exit_of(process_id) is None, other
            await instance.wait_output(process_id, 1 << 60, number - 1)

    await step(1)
    found = instance.read(process_id, "stdout", offset, 100)
    assert found.data == b""
    has_copy = world.is_elsewhere
    assert found.note or found.size == 0 or has_copy
    with suppress(StateError):  # what is no file is not handed out
        fd = world.provider.open_journal(instance.sandbox_id, process_id, "stdout", os.geteuid())
        assert os.pread(fd, 100, 0) == (b"first\n" if has_copy else b"")
        os.close(fd)
    await step(2)
    # A copy of the one journal may come before that of the other.
    await until_async(lambda: instance.read(process_id, "stdout", offset, 100).data == b"second\n")
    await instance.write_stdin(process_id, b"go\n", eof=False)
    assert (await instance.wait(process_id)).exit_code == 0
    return process_id


@EVERYWHERE
async def test_what_a_helper_says_is_read_within_bounds(world: World) -> None:
    """The code inside makes the journals of helpers as long as a file may be, and no more of them is read."""
    instance = await world.measured(64 << 20)
    assert isinstance(instance, KeeperInstance)
    read, longest = instance.read, 0

    def measured(process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
        nonlocal longest
        longest = max(longest, max_bytes)
        return read(process_id, stream, offset, max_bytes)

    instance.read = measured  # type: ignore[method-assign]
    await start(instance, "sh", "-c", f"while :; do truncate -s 64M {world.inside}/out/p/hlp_*; done 2>/dev/null")
    for _ in range(5):
        with suppress(SandkeepError):
            await instance.read_piece("file", 0, 1000)
    assert 0 < longest <= helpers.HELPER_OUTPUT_BYTES


@DAEMONS_OWN
async def test_a_copy_whose_helper_is_stopped_before_it_begins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = await world.sandbox()
    assert isinstance(instance, KeeperInstance)
    monkeypatch.setattr(helpers, "REQUEST_DEADLINE_S", 1.0)
    with trio.fail_after(patient(30)), pytest.raises(ProviderError, match="did not answer"):
        await instance.run_piped(["sh", "-c", "kill -STOP $$"], incoming=False).__aenter__()
    assert not [name for name in instance._shared.names() if name.startswith("hlp")]


@EVERYWHERE
async def test_what_an_adopted_sandbox_tells_of_others_is_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "EARLIER_S", 0.0)
    instance = await world.sandbox()
    assert isinstance(instance, KeeperInstance)
    await sh(instance, f"for n in 1 2 3; do echo prc_$n +7; echo prc_$n 0; done >>{world.inside}/out/exits")
    await instance.remember_earlier()
    with trio.fail_after(patient(60)):
        while instance._channel._earlier._answers:
            await trio.lowlevel.checkpoint()
    await sh(instance, f"echo prc_x 0 >>{world.inside}/out/exits")
    assert instance._channel._earlier._answers == {}


# -- what is the host's -----------------------------------------------------------------------------------------------


@kinds(DOCKER)
async def test_attempts_on_the_host(world: World) -> None:
    instance = await world.sandbox()
    for attempt in (
        "mknod node c 1 3",
        "mknod node b 8 0",
        *(["mknod node c 0 0"] if world.kind == "local" else []),  # the kernel lets anybody: only an overlay refuses
        "echo x >/proc/sysrq-trigger",
        "echo x >/proc/sys/kernel/core_pattern",
        "ln /usr/bin/true true",
        "ln /run/sandkeep/in/.keeper keeper",
        "chown 0 file",
        "unshare -Urm mount -o remount,rw,bind /usr",
        "unshare -Urm mount -o remount,rw,bind /",
        "unshare -Urm umount -l /usr",
        "unshare -Urm umount -l /workspace",
        "unshare -Urm mount -t sysfs sysfs /tmp",
        "chroot /proc/1/root true",
        *(["echo 'run x none' >/run/sandkeep/in/.control", "echo x >/proc/1/fd/3"] if ROOT else []),
    ):
        code, stdout, _ = await run(instance, "sh", "-c", attempt)
        assert code not in (0, 126, 127), (attempt, code, stdout)  # it was tried, and refused
    assert await instance.is_alive()


@DAEMONS_OWN
async def test_the_image_stays_whatever_is_done_to_its_copy(world: World) -> None:
    instance = await world.sandbox()
    root = world.state / "images" / world.image_id / "root"
    before = {path: (path.lstat().st_mode, path.lstat().st_uid, path.lstat().st_mtime_ns) for path in root.rglob("*")}
    await sh(
        instance,
        "set -e; chmod 4777 file sub; truncate -s 1 file; mv sub other; ln file second; rm link;"
        "touch -t 200001010000 file; chmod 777 .; for n in other/inner; do : >$n; done",
    )
    after = {path: (path.lstat().st_mode, path.lstat().st_uid, path.lstat().st_mtime_ns) for path in root.rglob("*")}
    assert after == before
    assert (root / "file").read_text() == "from the image\n"


# -- what it may use --------------------------------------------------------------------------------------------------


@DAEMONS_OWN
async def test_removed_files_that_are_open_count(world: World) -> None:
    assert isinstance(world.provider, LocalProvider)
    instance = await world.measured(1 << 20)
    assert isinstance(instance, LocalInstance)
    script = "for n in 1 2 3; do (exec 9>$n; rm $n; head -c 500K /dev/zero >&9; echo; exec sleep 1000) & done; wait"
    process_id = await start(instance, "sh", "-c", script)
    while (written := instance.read(process_id, "stdout", 0, 10).data) != b"\n\n\n":
        await instance.wait_output(process_id, len(written), 0)
    # A process that is just becoming `sleep` cannot be looked into.
    await until_async(lambda: world.provider._occupied_bytes(instance) > 1 << 20)


@DAEMONS_OWN
@pytest.mark.parametrize(
    "script",
    [
        "i=0; while [ $i -lt 300 ]; do : >$i; i=$((i + 1)); done",
        "mkdir closed; for i in 1 2 3; do head -c 500K /dev/zero >closed/$i; done; chmod 0 closed",
    ],
    ids=["entries", "closed"],
)
async def test_what_it_wrote_is_found_however_it_is_hidden(world: World, script: str) -> None:
    assert isinstance(world.provider, LocalProvider)
    instance = await world.measured(1 << 20)
    assert isinstance(instance, LocalInstance)
    await sh(instance, script)
    assert world.provider._occupied_bytes(instance) > 1 << 20


@DAEMONS_OWN
@pytest.mark.needs("freezer")
async def test_those_that_take_long_to_look_at_delay_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(world.provider, LocalProvider)
    large = {(await world.sandbox()).sandbox_id for _ in range(disk_watch.AT_ONCE + 1)}
    small = await world.measured(1 << 20)
    for sandbox_id in large:
        world.provider.instances[sandbox_id].measure_s = 2 * disk_watch.MAX_LOOK_S
    watch = DiskWatch(dict(world.provider.instances), world.provider._occupied_bytes)
    monkeypatch.setattr(world.provider.disks, "_instances", {})  # its own look is not to come to the rescue
    looked, go_on, under_way = trio.Event(), threading.Event(), list[str]()
    occupied, token = disk_usage.occupied_bytes, trio.lowlevel.current_trio_token()

    def slow(paths: list[str], *rest: Any, **more: Any) -> int:
        if any(sandbox_id in str(paths[0]) for sandbox_id in large):
            under_way.append(str(paths[0]))
            if len(under_way) == disk_watch.AT_ONCE:
                token.run_sync_soon(looked.set)
            go_on.wait(patient(60))
        return occupied(paths, *rest, **more)

    monkeypatch.setattr(disk_watch, "PERIOD_S", 0.01)
    monkeypatch.setattr(disk_usage, "occupied_bytes", slow)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await looked.wait()
            await start(small, "sh", "-c", "for n in 1 2 3; do head -c 500K /dev/zero >$n; done")
            with trio.fail_after(patient(30)):
                assert small.pauses is not None
                await small.pauses.pause_changed(False)
            go_on.set()
            nursery.cancel_scope.cancel()
    finally:
        go_on.set()


# -- who must end it --------------------------------------------------------------------------------------------------


@DAEMONS_OWN
async def test_a_stray_that_no_event_owns_is_ended(world: World) -> None:
    """As at a start: another daemon's, of which neither plan nor handle is known."""
    instance = await world.sandbox()
    await start(instance, "sh", "-c", "setsid sleep 1000 & exec env -i sleep 1000")
    first, groups = instance.handle["first"]["pid"], world.plans[instance.sandbox_id]["cgroups"]
    pidfd = os.pidfd_open(first)
    async with open_local(str(world.state), uid_base=UID_BASE, disk_limit=1 << 30, log_id=world.log_id) as other:
        await other.abilities()
        await other.discard(instance.sandbox_id, {})
        assert hostprocess.has_ended(pidfd)
        assert await other.found() == ([], [world.image_id])
        await other.discard(instance.sandbox_id, {})
        await other.discard("sbx_never", {})
    os.close(pidfd)
    assert not [group for group in groups.values() if os.path.exists(group)]
    assert set(os.listdir(world.state / "sandboxes" / instance.sandbox_id)) <= {"out"}


@DAEMONS_OWN
async def test_a_sandbox_that_cannot_be_adopted_does_not_run_on(world: World) -> None:
    """A user's own daemon cannot read what the code inside has closed; root's can."""
    instance = await world.sandbox()
    await sh(instance, "chmod 0 /run/sandkeep/out/exits")
    pidfd = os.pidfd_open(instance.handle["first"]["pid"])
    plan = world.plans[instance.sandbox_id]
    async with open_local(str(world.state), uid_base=UID_BASE, disk_limit=1 << 30, log_id=world.log_id) as other:
        adopted = await other.adopt(instance.sandbox_id, world.spec(), plan, instance.isolation, instance.handle)
        assert (adopted is None) == hostprocess.has_ended(pidfd) == (not ROOT)
    os.close(pidfd)


@DAEMONS_OWN
async def test_a_tree_of_any_depth_goes_with_its_sandbox(world: World) -> None:
    instance = await world.sandbox()
    chain = "d/" * 1000
    script = f"i=0; while [ $i -lt 5 ]; do mkdir -p ./{chain}; cd -P ./{chain} || exit 1; i=$((i + 1)); done"
    await sh(instance, script)
    await world.terminate(instance.sandbox_id)
    assert (await world.provider.found())[0] == []
    assert os.listdir(world.state / "trash") == []


@EVERYWHERE
@pytest.mark.parametrize("many", [5, 100])
async def test_nothing_but_journals_stays_among_the_journals(
    world: World, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(layout, "MANY", 50)
    instance = await world.sandbox()
    process_id = await start(
        instance,
        "sh",
        "-c",
        f"set -e; cd {world.inside}/out/p; mkdir -p d/d; mkfifo fifo; ln -s /etc/passwd link; chmod 0 d;"
        'mkdir $NAME.stdout; i=0; while [ $i -lt "$1" ]; do : >junk$i; : >"\n$i"; i=$((i + 1)); done; echo said',
        "sh",
        str(many),
        env={"NAME": new_id(PROCESS)},
    )
    assert (await instance.wait(process_id)).exit_code == 0
    await world.terminate(instance.sandbox_id)
    left = os.listdir(world.state / "sandboxes" / instance.sandbox_id / "out" / "p")
    assert sorted(left) == [f"{process_id}.stderr", f"{process_id}.stdout"]


@DAEMONS_OWN
@pytest.mark.parametrize("other", [": >junk", f"ln -s /etc/passwd {PROCESS}_{26 * '0'}.stdout"], ids=["file", "link"])
async def test_nothing_but_journals_stays_of_a_few_files(world: World, other: str) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "sh", "-c", f"cd /run/sandkeep/out/p && {other}")
    assert (await instance.wait(process_id)).exit_code == 0
    await world.terminate(instance.sandbox_id)
    left = os.listdir(world.state / "sandboxes" / instance.sandbox_id / "out" / "p")
    assert sorted(left) == [f"{process_id}.stderr", f"{process_id}.stdout"]
