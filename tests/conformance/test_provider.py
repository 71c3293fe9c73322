"""What every provider keeps. `conftest.World` has the kinds; `test_ordinary_user.py` runs all for an ordinary user."""

import json
import os
import secrets as random
import signal
import stat
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from tests.conformance.conftest import KUBERNETES, World, directory, no_progress, run, sh, start
from tests.support import template
from tests.support.expect import DEADLINE_S, until_async
from tests.support.patience import patient

from sandkeep.errors import CallerError, ProviderError, SetupError, StateError
from sandkeep.ids import IMAGE, PROCESS, SANDBOX, new_id
from sandkeep.model import Isolation
from sandkeep.protocol.clock import now_us
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.processes import Launch
from sandkeepd.keeper.client import KeeperInstance
from sandkeepd.keeper.requests import MAX_REQUEST_BYTES
from sandkeepd.keeper.shared_directory import SharedDirectory
from sandkeepd.sandboxes.output_times import TICK_US

BY_THE_KEEPER = pytest.mark.parametrize(
    "world",
    [
        "plain", "local", "none", pytest.param("docker", marks=[pytest.mark.needs("docker"), pytest.mark.soak]),
        pytest.param("gvisor", marks=pytest.mark.needs("runsc")), KUBERNETES,
    ],
    indirect=True,
)  # fmt: skip
"""For what the keeper does by itself: in Docker it is the same program on the same kernel as in local sandboxes."""

NASTY = "  a'b\"c\\d$HOME`id`\n\n\té€𝄞\x01\x7f \n"


# Commands, their environment and their ends


async def test_a_process_ends_with_its_code(world: World) -> None:
    ends = {"exit 0": 0, "exit 7": 7, "kill -INT $$": 130, "kill -KILL $$": 137, "kill -TERM $$": 143, "(": 2}
    instance = await world.sandbox()
    assert {script: (await run(instance, "sh", "-c", script))[0] for script in ends} == ends


@BY_THE_KEEPER
async def test_what_cannot_be_run_ends_as_in_a_shell(world: World) -> None:
    instance = await world.sandbox()
    assert (await run(instance, "no-such-command"))[0] == 127
    assert (await run(instance, "./file"))[0] == 126
    assert (await run(instance, "true", working_dir="/no/such/directory"))[0] == 126


@BY_THE_KEEPER
async def test_words_and_variables_arrive_exactly(world: World) -> None:
    instance = await world.sandbox(env={"FROM_SPEC": NASTY, "BOTH": "spec"})
    words = [NASTY, "", "a=b", "-n", "--", "*"]
    env = {"NASTY": NASTY, "BOTH": "launch", "EMPTY": ""}
    script = 'printf "%s\\0" "$@"; exec env -0'
    _, stdout, _ = await run(instance, "sh", "-c", script, "sh", *words, env=env)
    *told, _ = stdout.decode().split("\0")
    assert told[: len(words)] == words
    seen = dict(line.split("=", 1) for line in told[len(words) :])
    assert {name: seen[name] for name in env} == env
    assert seen["FROM_SPEC"] == NASTY


@BY_THE_KEEPER
async def test_variables_that_mean_something_to_shells(world: World) -> None:
    instance = await world.sandbox()
    env = {
        "IFS": "x",
        "OPTIND": "abc",
        "PPID": "z",
        "UID": "u",
        "PS4": "$(id)",
        "ENV": "/dev/null",
        "BASH_ENV": "/dev/null",
    }
    _, stdout, _ = await run(instance, "env", "-0", env=env)
    seen = dict(line.split("=", 1) for line in stdout.decode().rstrip("\0").split("\0"))
    assert {name: seen[name] for name in env} == env


@BY_THE_KEEPER
async def test_a_command_whose_name_looks_like_a_variable(world: World) -> None:
    instance = await world.sandbox()
    await sh(instance, "printf '#!/bin/sh\\necho \"$1\"\\n' >a=b; chmod 755 a=b")
    assert (await run(instance, "./a=b", "word"))[:2] == (0, b"word\n")


@BY_THE_KEEPER
async def test_every_byte_and_both_streams_apart(world: World) -> None:
    instance = await world.sandbox()
    every = bytes(range(256)) * 64
    code, stdout, stderr = await run(instance, "sh", "-c", "cat; echo error >&2", stdin=every)
    assert (code, stdout, stderr) == (0, every, b"error\n")


async def test_a_process_starts_in_the_workspace_with_the_image_in_it(world: World) -> None:
    instance = await world.sandbox()
    assert (await sh(instance, "pwd")).strip() == instance.isolation.workspace
    assert await sh(instance, "cat file sub/inner; readlink link") == "from the image\ninner\nfile\n"
    assert (await sh(instance, "pwd", working_dir="/usr")).strip() == "/usr"
    assert (await sh(instance, "pwd", working_dir="sub")).strip() == f"{instance.isolation.workspace}/sub"


async def test_a_working_directory_of_the_sandbox(world: World) -> None:
    instance = await world.sandbox(working_dir="/usr")
    assert (await sh(instance, "pwd")).strip() == "/usr"
    assert (await sh(instance, "pwd", working_dir="bin/..")).strip() == "/usr"
    assert (await sh(instance, "pwd", working_dir="bin")).strip() == "/usr/bin"


async def test_a_relative_working_directory_begins_at_the_workspace(world: World) -> None:
    instance = await world.sandbox(working_dir="sub")
    assert (await sh(instance, "pwd; cat inner")).strip() == f"{instance.isolation.workspace}/sub\ninner"


async def test_what_a_program_is_given_besides_its_streams(world: World) -> None:
    """No descriptor of the keeper's, no ignored signal, a session and a group of its own."""
    instance = await world.sandbox()
    assert (await sh(instance, "exec ls /proc/self/fd")).split() == ["0", "1", "2", "3"]
    if world.kind == "gvisor":  # whose /proc does not tell
        ignored = "[n for n in range(1, 32) if signal.getsignal(n) == signal.SIG_IGN and n not in (13, 25)]"
        script = f"import signal; print({ignored}, list(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
        assert await sh(instance, f"exec python3 -c '{script}'") == "[] []\n"
    else:
        status = await sh(instance, "exec cat /proc/self/status")
        lines = [line for line in status.splitlines() if line[:6] in ("SigIgn", "SigBlk")]
        signals = {line[:6]: int(line.split()[1], 16) for line in lines}
        assert signals["SigIgn"] & 0x7FFF_FFFF == 0  # the C library keeps two above these to itself
        assert signals["SigBlk"] == 0
    pid, group, session = (await sh(instance, "exec sh -c 'set -- $(cat /proc/self/stat); echo $4 $5 $6'")).split()
    assert pid == group == session


@BY_THE_KEEPER
async def test_a_nul_and_a_wrong_name_are_refused(world: World) -> None:
    instance = await world.sandbox()
    for fields in (
        {"command": ["a\0b"]},
        {"command": ["true"], "env": {"A-B": "x"}},
        {"command": ["true"], "env": {"A": "\0"}},
    ):
        with pytest.raises(CallerError, match="invalid"):
            await instance.launch(Launch(process_id=new_id(PROCESS), **fields))
    with pytest.raises(CallerError, match="process_id"):
        await instance.launch(Launch(process_id="../../x", command=["true"]))
    assert (await run(instance, "true"))[0] == 0


@BY_THE_KEEPER
async def test_the_same_id_twice(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "true")
    await instance.wait(process_id)
    instance.forget(process_id)
    with pytest.raises(StateError, match="conflict"):
        await instance.launch(Launch(process_id=process_id, command=["true"]))


@BY_THE_KEEPER
async def test_hundreds_of_processes_at_once(world: World) -> None:
    many = 100 if world.kind == "gvisor" else 300  # in gVisor each start takes 20 ms of a processor
    instance = await world.sandbox()
    codes: dict[int, int | None] = {}

    async def one(number: int) -> None:
        code, stdout, _ = await run(instance, "sh", "-c", f"echo {number}; exit {number % 200}")
        assert stdout == b"%d\n" % number
        codes[number] = code

    with trio.fail_after(patient(60)):
        async with trio.open_nursery() as nursery:
            for number in range(many):
                nursery.start_soon(one, number)
    assert codes == {number: number % 200 for number in range(many)}


async def test_nothing_is_left_unreaped(world: World) -> None:
    instance = await world.sandbox()
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(run, instance, "true")
    assert await instance.is_alive()
    stats = (await sh(instance, "cat /proc/[0-9]*/stat 2>/dev/null; true")).splitlines()
    assert any(f"({name})" in stat for stat in stats for name in ("cat", "sh"))
    if world.kind not in ("none", "plain"):  # there it sees those of the whole machine
        assert [stat for stat in stats if ") Z " in stat] == []


# Signals


@BY_THE_KEEPER
async def test_a_signal_reaches_the_whole_group(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "sh", "-c", "trap '' TERM; sleep 1000 & echo ready; wait; wait")
    await instance.wait_output(process_id, 0, 0)
    await instance.signal(process_id, 15)
    assert await instance.is_alive()
    assert instance.exit_of(process_id) is None
    await instance.signal(process_id, 9)
    assert (await instance.wait(process_id)).exit_code == 137


@BY_THE_KEEPER
async def test_an_interrupt_ends_what_the_keeper_started(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "sh", "-c", "echo ready; exec sleep 1000")
    await instance.wait_output(process_id, 0, 0)
    await instance.signal(process_id, 2)
    assert (await instance.wait(process_id)).exit_code == 130
    await instance.signal(process_id, 2)  # it has ended: no error


@BY_THE_KEEPER
async def test_a_signal_at_once_is_not_lost(world: World) -> None:
    """Many at once, so that some get theirs before they have set themselves up."""
    instance = await world.sandbox()

    async def one(number: int) -> None:
        for _ in range(5):
            process_id = await start(instance, "sleep", "1000")
            await instance.signal(process_id, number)
            assert (await instance.wait(process_id)).exit_code == 128 + number

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ, signal.SIGHUP) * 3:
                nursery.start_soon(one, number)


# Input


@BY_THE_KEEPER
async def test_input_through_a_pipe(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "cat", stdin=True)
    data = random.token_bytes(300_000)
    for start_at in range(0, len(data), 100_000):
        piece = data[start_at : start_at + 100_000]
        assert await instance.write_stdin(process_id, piece, eof=start_at == 200_000) == len(piece)
    assert (await instance.wait(process_id)).exit_code == 0
    assert instance.read(process_id, "stdout", 0, 1 << 20).data == data
    with pytest.raises(StateError, match="not_ready"):
        await instance.write_stdin(process_id, b"more", eof=False)


@BY_THE_KEEPER
async def test_the_end_of_input_comes_after_the_input(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "sh", "-c", "read -r go; cat", stdin=True)
    await instance.write_stdin(process_id, b"go\n" + b"x" * 60_000, eof=True)
    assert (await instance.wait(process_id)).exit_code == 0
    assert instance.read(process_id, "stdout", 0, 1 << 20).size == 60_000


@BY_THE_KEEPER
async def test_a_process_that_ends_without_reading_its_input(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "sh", "-c", "read -r one; exit 3", stdin=True)
    with trio.fail_after(DEADLINE_S), pytest.raises(StateError, match="not_ready"):
        await instance.write_stdin(process_id, b"1\n" + b"x" * 5_000_000, eof=True)
    assert (await instance.wait(process_id)).exit_code == 3


@BY_THE_KEEPER
async def test_no_input_is_empty(world: World) -> None:
    instance = await world.sandbox()
    assert await run(instance, "cat") == (0, b"", b"")
    assert await run(instance, "cat", stdin=b"") == (0, b"", b"")
    process_id = await start(instance, "sleep", "1000")
    with pytest.raises(StateError, match="not_ready"):
        await instance.write_stdin(process_id, b"x", eof=False)


# Secrets


async def test_secrets_arrive_exactly_and_only_where_they_belong(world: World) -> None:
    big = "".join(chr(33 + random.randbelow(90)) for _ in range(65_536 - len(NASTY))) + NASTY
    instance = await world.sandbox(secrets={"SHARED": NASTY, "pid": "p", "newline": "n"}, env={"SHARED": "env"})
    own = {"OWN": big, "IFS": "Q", "journal": "j", "PATH": "/usr/bin:/bin"}
    _, stdout, _ = await run(instance, "env", "-0", secrets=own, env={"OWN": "env"})
    seen = dict(line.split("=", 1) for line in stdout.decode().rstrip("\0").split("\0"))
    assert {name: seen[name] for name in own} == own
    assert (seen["SHARED"], seen["pid"], seen["newline"]) == (NASTY, "p", "n")
    _, stdout, _ = await run(instance, "env", "-0")
    later = dict(line.split("=", 1) for line in stdout.decode().rstrip("\0").split("\0"))
    assert "OWN" not in later
    assert later["SHARED"] == NASTY


async def test_secrets_of_processes_started_together_do_not_mix(world: World) -> None:
    instance = await world.sandbox()

    async def one(number: int) -> None:
        value = f"{number}" * (MAX_REQUEST_BYTES * 2 // len(f"{number}"))
        _, stdout, _ = await run(
            instance, "sh", "-c", 'printf %s "$TOKEN"', secrets={"TOKEN": value} if number % 2 else {}
        )
        assert stdout.decode() == (value if number % 2 else "")

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(one, number)


async def test_secrets_are_written_nowhere(world: World) -> None:
    secret = random.token_hex(16)
    instance = await world.sandbox(secrets={"SHARED": "s" + secret})
    process_id = await start(instance, "sleep", "1000", secrets={"OWN": "o" + secret})
    assert await instance.is_alive()
    for path in world.state.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert secret.encode() not in path.read_bytes(), path
    for process in Path("/proc").glob("[0-9]*"):
        try:
            assert secret.encode() not in (process / "cmdline").read_bytes()
        except OSError:
            continue
    assert secret not in repr(Launch(process_id=process_id, command=["x"], secrets={"OWN": secret}))
    assert secret not in repr(instance.handle)


# Journals


@BY_THE_KEEPER
async def test_a_journal_is_read_by_offset_while_it_grows(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "sh", "-c", "echo one; read -r go; echo two", stdin=True)
    await instance.wait_output(process_id, 0, 0)
    first = instance.read(process_id, "stdout", 0, 100)
    assert (first.data, first.size) == (b"one\n", 4)
    assert instance.read(process_id, "stdout", 4, 100).data == b""
    await instance.write_stdin(process_id, b"go\n", eof=True)
    with trio.fail_after(DEADLINE_S):
        while instance.read(process_id, "stdout", 0, 0).size == 4:
            await instance.wait_output(process_id, 4, 0)
    assert instance.read(process_id, "stdout", 4, 2).data == b"tw"
    await instance.wait(process_id)
    await instance.wait_output(process_id, 8, 0)  # it has ended: nothing more will come
    instance.sync(process_id)


async def test_a_journal_outlives_its_sandbox(world: World) -> None:
    instance = await world.sandbox()
    began_us = now_us()
    process_id = await start(instance, "echo", "kept")
    await instance.wait(process_id)
    assert began_us - TICK_US <= instance.read(process_id, "stdout", 0, 0).modified_us <= now_us()
    await world.terminate(instance.sandbox_id)
    chunk = world.provider.read_ended(instance.sandbox_id, process_id, "stdout", 0, 100)
    assert (chunk.data, chunk.size, chunk.note) == (b"kept\n", 5, None)
    assert world.provider.read_ended(instance.sandbox_id, "prc_other", "stdout", 0, 100).data == b""


# The code inside is hostile


async def test_what_is_planted_instead_of_a_journal_is_not_followed(world: World) -> None:
    instance = await world.sandbox()
    for plant in ("ln -s /etc/passwd", "mkfifo", "mkdir"):
        await _plant(world, instance, plant)


async def _plant(world: World, instance: Instance, plant: str) -> None:
    """Have the code inside put something in place of a journal, and read that."""
    process_id = await start(instance, "sh", "-c", "echo said; exec sleep 1000")
    with trio.fail_after(DEADLINE_S):
        while instance.read(process_id, "stdout", 0, 100).data != b"said\n":
            await instance.wait_output(process_id, 0, 0)
    journal = f"{_shared(instance).journals}/{process_id}.stdout"
    await sh(instance, f"set -e; rm {journal}; {plant} {journal}")
    host = f"{world.state}/sandboxes/{instance.sandbox_id}/out/p/{process_id}.stdout"
    if world.is_elsewhere:  # what was read is the daemon's own: nothing inside replaces it
        await sh(instance, "true")
        assert stat.S_ISREG(os.lstat(host).st_mode)
    elif world.kind == "gvisor" and plant == "mkfifo":
        assert not os.path.lexists(host)  # gVisor keeps FIFOs to itself
    else:
        assert not stat.S_ISREG(os.lstat(host).st_mode)  # it was planted, and where the daemon looks
    chunk = instance.read(process_id, "stdout", 1, 100)
    if world.is_elsewhere:
        assert (chunk.data, chunk.note) == (b"aid\n", None)
    else:
        assert chunk.data == b""
        assert chunk.note
    with trio.move_on_after(0.01):
        await instance.wait_output(process_id, 0, 0)
    instance.sync(process_id)


def _shared(instance: Instance) -> SharedDirectory:
    assert isinstance(instance, KeeperInstance)
    return instance._shared


async def test_a_journal_that_was_cut_is_told(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(
        instance, "sh", "-c", "echo something; read go; : >/proc/self/fd/1; exec sleep 1000", stdin=True
    )
    await instance.wait_output(process_id, 0, 0)
    await instance.write_stdin(process_id, b"go\n", eof=False)
    await run(instance, "true")
    if world.is_elsewhere:  # what was read is the daemon's own: nothing inside makes it shorter
        await sh(instance, f"until [ ! -s {_shared(instance).journals}/{process_id}.stdout ]; do sleep 0.01; done")
        await sh(instance, "true")
        assert instance.read(process_id, "stdout", 0, 100).data == b"something\n"
        return
    await until_async(lambda: not instance.read(process_id, "stdout", 0, 100).size)
    note = instance.read(process_id, "stdout", 10, 100).note
    assert note is not None
    assert "shorter" in note


@BY_THE_KEEPER
async def test_forged_and_garbage_answers(world: World) -> None:
    instance = await world.sandbox()
    other = new_id(PROCESS)
    garbage = b"\0\xff" * 1000 + b"\n" + b"x" * 200_000 + b"\n"
    await _spoil_answers(world, instance, garbage + f"{other} 0\nnot an answer\n{other} +99999999999\n".encode())
    assert (await run(instance, "sh", "-c", "exit 9"))[0] == 9
    with trio.fail_after(DEADLINE_S):
        assert await instance.find(other) is None
    process_id = await start(instance, "sleep", "1000")
    await _spoil_answers(world, instance, f"{process_id} 5\n{process_id} 6\n".encode())
    assert (await instance.wait(process_id)).exit_code == 5  # it hurts the one that forged it, and it stays so
    await _spoil_answers(world, instance, b"", size=0)
    assert (await run(instance, "sh", "-c", "exit 8"))[0] == 8
    await _spoil_answers(world, instance, b"\n", size=1 << 29)
    with trio.fail_after(DEADLINE_S):
        assert (await run(instance, "sh", "-c", "exit 7"))[0] == 7
    assert (await instance.wait(process_id)).exit_code == 5


async def _spoil_answers(world: World, instance: Instance, data: bytes, size: int | None = None) -> None:
    """Give the file of answers a size, and append to it: from inside where the daemon reads a copy of its own."""
    if world.is_elsewhere:
        exits = f"{os.path.dirname(_shared(instance).journals)}/exits"
        cut = "" if size is None else f"truncate -s {size} {exits}; "
        assert (await run(instance, "sh", "-c", f"{cut}cat >>{exits}", stdin=data))[0] == 0
        return
    path = world.state / "sandboxes" / instance.sandbox_id / "out" / "exits"
    if size is not None:
        os.truncate(path, size)
    with path.open("ab") as file:
        file.write(data)


async def test_what_kills_all_that_it_can_keeps_no_end_from_being_told(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "sleep", "1000")
    if world.kind in ("none", "plain"):
        pytest.skip("to kill everything would be to kill the test, too")
    if world.kind == "modal":  # the keeper is not the machine's first process there: the sandbox ends with it
        with suppress(StateError):
            await start(instance, "sh", "-c", "kill -9 -1")
        assert (await instance.ended()).kind == "failed"
        assert "ended" in ((await instance.wait(process_id)).message or "")
        return
    killer = await start(instance, "sh", "-c", "kill -9 -1; exit 3")
    assert (await instance.wait(process_id)).exit_code == 137
    assert (await instance.wait(killer)).exit_code == 3
    assert (await run(instance, "sh", "-c", "exit 4"))[0] == 4


async def test_what_a_helper_sends_is_all_there_however_late_it_is_read(world: World) -> None:
    """It is read once nothing else happens any more: where files are between, the command has ended by then."""
    instance = await world.sandbox()
    size, read, idle = 3_000_000, 0, trio.Event()

    async def receive(data: int) -> None:
        nonlocal read
        await idle.wait()
        with open(data, "rb", buffering=0) as file:
            while piece := await trio.to_thread.run_sync(file.read, 65536):
                read += len(piece)

    async with trio.open_nursery() as nursery:
        script = f"echo ready; head -c {size} /dev/zero >&3; exec 3>&-; printf done"
        async with instance.run_piped(["sh", "-c", script], incoming=False) as piped:
            nursery.start_soon(receive, piped.take_data())
            nursery.start_soon(_set_when_idle, idle)
            assert await piped.end() == "done"
    assert read == size


async def _set_when_idle(event: trio.Event) -> None:
    await trio.testing.wait_all_tasks_blocked(0.5)
    event.set()


async def test_files_are_read_and_written_inside(world: World) -> None:
    instance = await world.sandbox()
    data = bytes(range(256)) * 1000
    await instance.write_whole("sub/new", data)
    assert (await instance.read_piece("sub/new", 0, len(data) + 1)).data == data
    await instance.write_whole("sub/new", b"")
    assert (await instance.read_piece(f"{instance.isolation.workspace}/sub/new", 0, len(data) + 1)).data == b""
    await sh(instance, "chmod 755 file; ln -s file through")
    await instance.write_whole("through", b"changed")
    assert (
        await sh(instance, "cat file; stat -c %a file; readlink through; ls -A sub") == "changed755\nfile\ninner\nnew\n"
    )
    for path, code in (("none", "not_found"), ("file/x", "not_found"), ("sub", "invalid"), ("/dev/zero", "invalid")):
        with pytest.raises(CallerError) as raised:
            await instance.read_piece(path, 0, 99)
        assert raised.value.code == code, path
    if world.kind != "modal" and (os.geteuid() != 0 or world.kind != "plain"):  # nothing is denied to root
        await sh(instance, "chmod 0 sub/inner")
        with pytest.raises(CallerError, match="permission_denied"):
            await instance.read_piece("sub/inner", 0, 99)
    with pytest.raises(CallerError, match="not_found"):
        await instance.write_whole("/no/such/place", b"")


# A sandbox's life


async def test_sandboxes_do_not_share_and_the_image_stays(world: World) -> None:
    one, two = await world.sandbox(), await world.sandbox()
    await sh(one, "echo mine >file; chmod 700 sub; rm sub/inner; rmdir sub; rm link; echo new >new")
    assert await sh(two, "cat file sub/inner") == "from the image\ninner\n"
    three = await world.sandbox()
    assert await sh(three, "cat file sub/inner; ls") == "from the image\ninner\nfile\nlink\nsub\n"
    assert (world.source / "file").read_text() == "from the image\n"


async def test_terminating_twice_and_what_is_found(world: World) -> None:
    instance = await world.sandbox()
    process_id = await start(instance, "sleep", "1000")
    assert await world.provider.found() == ([instance.sandbox_id], world.images)
    await world.terminate(instance.sandbox_id)
    await world.terminate(instance.sandbox_id)
    assert await world.provider.found() == ([], world.images)
    how = await instance.wait(process_id)
    told = (None, 137) if world.kind in ("none", "plain") else (None,)  # what watches it may outlive it there
    assert how.exit_code in told
    assert await instance.ended()
    assert not await instance.is_alive()
    with pytest.raises(StateError, match="not_ready"):
        await instance.launch(Launch(process_id=new_id(PROCESS), command=["true"]))


async def test_terminating_what_was_never_made(world: World) -> None:
    sandbox_id = new_id(SANDBOX)
    plan = world.plan(sandbox_id)
    await world.provider.terminate(sandbox_id, plan, {})


async def test_terminating_without_a_handle(world: World) -> None:
    """As after a crash between the start and the record of it."""
    instance = await world.sandbox()
    await start(instance, "sleep", "1000")
    world.handles[instance.sandbox_id] = {}
    with trio.fail_after(DEADLINE_S):
        await world.terminate(instance.sandbox_id)
        await instance.ended()


async def test_an_image_that_is_not_there(world: World) -> None:
    sandbox_id, image_id = new_id(SANDBOX), new_id(IMAGE)
    plan = world.plan(sandbox_id, image_id)
    # A node looks for it in a registry, where it may come up or be out of reach: the kubelet gives the reason.
    is_pulled = world.kind == "kubernetes"
    with pytest.raises(
        ProviderError if is_pulled else CallerError, match="no-such-image" if is_pulled else "not_found"
    ):
        await world.provider.create(sandbox_id, image_id, world.spec(), {}, plan)
    assert (await world.provider.found())[0] == []


async def test_removing_an_image_twice(world: World) -> None:
    await world.provider.images.remove(world.image_id)
    await world.provider.images.remove(world.image_id)
    assert (await world.provider.found())[1] == []


async def test_an_import_that_fails_leaves_nothing(world: World) -> None:
    image_id = new_id(IMAGE)
    caller = Caller(uid=os.geteuid(), gid=os.getegid())
    refused = (SetupError, "not_supported") if world.kind == "kubernetes" else (CallerError, "invalid")
    with pytest.raises(refused[0], match=refused[1]):  # a cluster has images of references only
        await world.provider.images.make(image_id, directory(world.source / "none"), caller, no_progress)
    assert (await world.provider.found())[1] == world.images


async def test_helper_commands_that_were_left_behind_are_ended(world: World) -> None:
    """By the daemon that takes the sandbox over, which knows of them by what lies in `in`."""
    instance = await world.sandbox()
    place = world.state / "sandboxes" / instance.sandbox_id / "in"
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(instance.run_command, ["sh", "-c", ": >begun; exec sleep 1000"])
            while not (left := [name for name in os.listdir(place) if name.startswith("hlp_")]):
                await trio.lowlevel.checkpoint()
            await sh(instance, "until [ -e begun ]; do sleep 0.01; done")
            await instance.remember_earlier()  # type: ignore[attr-defined]
    assert not {*left} & {*os.listdir(place)}  # others are of the one that takes it over


async def test_what_no_machine_of_this_kind_can_hold(world: World) -> None:
    impossible = {"isolation": "none"} if world.kind in ("docker", "kubernetes", "modal") else {"network": "bridge"}
    with pytest.raises(SetupError, match="not_supported"):
        world.plan(new_id(SANDBOX), **impossible)
    assert await world.provider.found() == ([], world.images)


async def test_capabilities_name_the_provider(world: World) -> None:
    assert (await world.provider.capabilities()).provider == world.provider.name


async def test_a_cancelled_create_leaves_nothing(world: World) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await world.sandbox()
    assert scope.cancelled_caught
    assert (await world.provider.found())[0] == []


async def test_adopting_goes_on_where_it_was(world: World) -> None:
    """Another process makes a sandbox and is killed; this one takes it over."""
    child = template.run(
        [sys.executable, "-m", "tests.conformance.crashing_daemon", world.kind, str(world.state), world.image_id,
         world.log_id, json.dumps(world.details), json.dumps(world.files), world.socket or "", world.kubeconfig or "",
         msgspec.json.encode(world.account).decode()],
        dict(os.environ), patient(120),
    )  # fmt: skip
    assert child.returncode == -9, child.stderr
    told = json.loads(child.stdout)
    sandbox_id, plan, handle = told["sandbox_id"], told["plan"], told["handle"]
    world.plans[sandbox_id], world.handles[sandbox_id] = plan, handle
    isolation = msgspec.convert(told["isolation"], Isolation)
    instance = await world.provider.adopt(sandbox_id, world.spec(), plan, isolation, handle)
    assert instance is not None
    with trio.fail_after(DEADLINE_S):
        assert await instance.find(told["ended"]) is not None
        assert (await instance.wait(told["ended"])).exit_code == 6
        assert await instance.find(told["running"]) == told["pid"]
        assert instance.exit_of(told["running"]) is None
        assert await instance.find(told["never"]) is None
        await instance.write_stdin(told["running"], b"after the crash\n", eof=True)
        assert (await instance.wait(told["running"])).exit_code == 5
    assert instance.read(told["running"], "stdout", 0, 100).data == b"before\nafter the crash\n"
    assert (await run(instance, "sh", "-c", 'printf %s "$SHARED"'))[1] == b"kept"
    await world.terminate(sandbox_id)
    assert await world.provider.adopt(sandbox_id, world.spec(), plan, isolation, handle) is None
