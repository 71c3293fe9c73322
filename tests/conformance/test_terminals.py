"""Terminals over every provider: started, journalled, typed into, looked at by several, and ended in every way."""

import fcntl
import os
import shlex
import shutil
import signal
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from tests.conformance.conftest import KUBERNETES, World, sh, start
from tests.support.expect import DEADLINE_S

from sandkeep.errors import ProviderError, SetupError, StateError
from sandkeep.ids import PROCESS, new_id
from sandkeepd.contract.processes import Exit, Launch, Terminal
from sandkeepd.keeper import client, terminal
from sandkeepd.keeper.client import KeeperInstance

pytestmark = pytest.mark.needs("tmux")

once = pytest.mark.parametrize("world", ["local" if shutil.which("bwrap") else "none"], indirect=True)
"""For what is the same wherever a keeper runs: with the strongest isolation that can be had, not with every kind."""

each_way = pytest.mark.parametrize(
    "world",
    ["local", pytest.param("gvisor", marks=pytest.mark.needs("runsc")), KUBERNETES],
    indirect=True,
)
"""For what depends on whether the daemon can write to the FIFOs of a terminal's script: here, beside it, elsewhere."""

BASH = "bash"
RAW = "stty raw -echo; "


async def open_tty(instance: Any, script: str, *, rows: int = 24, cols: int = 80, **fields: Any) -> str:
    """Start a script in a terminal, where commands of tmux find its server however long the socket's path is."""
    fields = {"working_dir": instance._shared.journals, **fields}
    process_id = new_id(PROCESS)
    wanted = Terminal(rows=rows, cols=cols, session="named")
    await instance.launch(Launch(process_id=process_id, command=["sh", "-c", script], terminal=wanted, **fields))
    return process_id


async def finish(instance: Any, process_id: str) -> Exit:
    with trio.fail_after(DEADLINE_S):
        how: Exit = await instance.wait(process_id)
    return how


def written(instance: Any, process_id: str) -> bytes:
    data: bytes = instance.read(process_id, "stdout", 0, 1 << 26).data
    return data


async def run_tty(instance: Any, script: str, **fields: Any) -> tuple[int | None, bytes]:
    """Run a script in a terminal to its end: its exit code, and the journal."""
    process_id = await open_tty(instance, script, **fields)
    how = await finish(instance, process_id)
    instance.forget(process_id)
    return how.exit_code, written(instance, process_id)


async def shows(instance: Any, process_id: str, wanted: bytes) -> None:
    """Wait until the process has written that."""
    with trio.fail_after(DEADLINE_S):
        while wanted not in (data := written(instance, process_id)):
            assert instance.exit_of(process_id) is None, data
            await instance.wait_output(process_id, len(data), 1 << 30)


async def sees(fd: int, wanted: bytes) -> bytes:
    """Read from a viewer's terminal until that is there."""
    data = b""
    with trio.move_on_after(DEADLINE_S):
        while wanted not in data:
            await trio.lowlevel.wait_readable(fd)
            try:
                data += os.read(fd, 65536)
            except OSError:
                raise AssertionError(data) from None
    assert wanted in data
    return data


async def gone(fd: int) -> bytes:
    """Read what is left on a viewer's terminal until the viewer has gone."""
    data = b""
    with trio.fail_after(DEADLINE_S):
        while True:
            await trio.lowlevel.wait_readable(fd)
            try:
                data += os.read(fd, 65536)
            except OSError:
                return data


async def written_to(instance: Any, path: str) -> str:
    """What somebody has written to a file inside, once there is something."""
    look = f"for _ in $(seq 3000); do [ -s {path} ] && exec cat {path}; sleep 0.02; done"
    return await sh(instance, f"{look}; ls -lda {path} {os.path.dirname(path)}; exit 1")


@contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def leftovers(instance: KeeperInstance, *process_ids: str) -> list[str]:
    """What lies in the shared directories of these processes and of helpers, journals aside."""
    names = [name for name in instance._shared.names() if name.startswith((*process_ids, terminal.VIEWER))]
    return names + [
        name
        for name in instance._shared.out.names("p")
        if not name.startswith("prc_") or name in [f"{one}.tmux" for one in process_ids]
    ]


async def tidy(instance: KeeperInstance, *process_ids: str) -> None:
    """Wait until nothing of viewers and helpers is left."""
    with trio.fail_after(DEADLINE_S):
        while leftovers(instance, *process_ids):
            await sh(instance, "true")


@once
@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill $$", 143), ("kill -9 $$", 137), ("kill -INT $$", 130), ("exit 255", 255)],
)
async def test_exit_codes(world: World, script: str, code: int) -> None:
    instance = await world.sandbox()
    assert await run_tty(instance, script) == (code, b"")
    assert leftovers(instance) == []


async def test_what_the_process_sees(world: World) -> None:
    instance = await world.sandbox(secrets={"SHARED": "of all"}, env={"PLAIN": "1"})
    script = '''printf "%s|" "$TERM" "$(stty size)" "$SHARED" "$OWN" "$PLAIN" "$MINE" "$PWD" "$how"; cd "$JOURNALS"
        tmux display -p "#S"'''
    fields = {
        "secrets": {"OWN": "a\nb'\"$(id)", "how": "x"},
        "env": {"MINE": "é", "JOURNALS": instance._shared.journals},
        "working_dir": "/tmp",
    }
    code, out = await run_tty(instance, script, rows=30, cols=101, **fields)
    kind, *rest = out.decode().split("|")
    assert code == 0
    assert kind in ("tmux-256color", "screen-256color", "screen")
    assert rest == ["30 101", "of all", "a\r\nb'\"$(id)", "1", "é", "/tmp", "x", "named\r\n"]


async def test_words_of_any_bytes(world: World) -> None:
    """What a shell, tmux's parser or its formats could take for something else."""
    instance = await world.sandbox()
    words = ["", ";", "a;", "\\;", "#{pid}", "#(id)", "%H", "$HOME", "`id`", "'\"\n\t\\", "-x", "é\udcff"]
    process_id = new_id(PROCESS)
    wanted = Terminal(rows=24, cols=200, session="named")
    printer = ["env", "printf", "%s\\0", *words]
    await instance.launch(Launch(process_id=process_id, command=printer, terminal=wanted))
    assert (await finish(instance, process_id)).exit_code == 0
    expected = "\0".join([*words, ""]).replace("\n", "\r\n").encode("utf-8", "surrogateescape")
    assert written(instance, process_id) == expected


@once
async def test_the_journal_is_exact(world: World) -> None:
    """Every byte as the terminal got it: raw they are all the same, and cooked a newline is two."""
    instance = await world.sandbox()
    every = "".join(f"\\{value:03o}" for value in range(256))
    assert await run_tty(instance, f"{RAW} printf '{every}'") == (0, bytes(range(256)))
    assert (await run_tty(instance, "printf 'one\\ntwo\\r\\n\\033[31m\\n'"))[1] == b"one\r\ntwo\r\r\n\x1b[31m\r\n"
    code, out = await run_tty(instance, f"{RAW} yes 0123456789abcde | head -c 10000000")
    assert (code, len(out), out == b"0123456789abcde\n" * 625_000) == (0, 10_000_000, True)


@once
async def test_first_and_last_bytes_of_instant_programs(world: World) -> None:
    instance = await world.sandbox()
    for number in range(30):
        assert await run_tty(instance, f"echo first; echo last; exit {number}") == (number, b"first\r\nlast\r\n")
    assert leftovers(instance) == []


@once
async def test_many_at_once(world: World) -> None:
    instance = await world.sandbox()

    async def one(number: int) -> None:
        assert await run_tty(instance, f"echo {number}; exit {number}") == (number, f"{number}\r\n".encode())

    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(one, number)


@once
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGKILL])
async def test_signals_end_the_process_and_its_group(world: World, number: signal.Signals) -> None:
    instance = await world.sandbox()
    process_id = await open_tty(instance, "sleep 1000 & echo up; wait; exit 9")
    await shows(instance, process_id, b"up")
    await instance.signal(process_id, number)
    assert (await finish(instance, process_id)).exit_code == 128 + number
    instance.forget(process_id)
    assert leftovers(instance, process_id) == []


@once
async def test_a_signal_comes_once_and_what_handles_it_keeps_its_terminal(world: World) -> None:
    instance = await world.sandbox()
    script = 'trap "echo HUP" HUP; trap "echo USR1; exit 5" USR1; echo up; while :; do read -r line; done'
    process_id = await open_tty(instance, script)
    await shows(instance, process_id, b"up")
    await instance.signal(process_id, signal.SIGHUP)
    await shows(instance, process_id, b"HUP")
    await instance.signal(process_id, signal.SIGUSR1)
    assert (await finish(instance, process_id)).exit_code == 5
    assert written(instance, process_id) == b"up\r\nHUP\r\nUSR1\r\n"


@once
async def test_a_shell_that_leads_a_group_of_its_own_is_reached(world: World) -> None:
    instance = await world.sandbox()
    process_id = await open_tty(instance, f"exec {BASH} --norc -i")
    await instance.type_into(process_id, b"trap 'echo GOT' USR2; trap '' HUP; echo $((20+3))\n", eof=False)
    await shows(instance, process_id, b"23\r\n")
    await instance.signal(process_id, signal.SIGUSR2)
    await instance.type_into(process_id, b"\n", eof=False)  # it looks after signals between lines
    await shows(instance, process_id, b"GOT\r\n")
    await instance.signal(process_id, signal.SIGKILL)
    assert (await finish(instance, process_id)).exit_code == 137


async def test_typing_is_exact_and_ends_input(world: World) -> None:
    instance = await world.sandbox()
    process_id = await open_tty(instance, f"{RAW} printf up; head -c 256 | od -An -v -tu1")
    await shows(instance, process_id, b"up")
    assert await instance.type_into(process_id, bytes(range(256)), eof=False) == 256
    assert (await finish(instance, process_id)).exit_code == 0
    assert [int(word) for word in written(instance, process_id).removeprefix(b"up").split()] == list(range(256))
    process_id = await open_tty(instance, "stty -echo; echo up; cat; echo end")
    await shows(instance, process_id, b"up")
    if world.kind == "gvisor":  # its terminals hand over half a line, but know of no end
        await instance.type_into(process_id, b"line\nhalf", eof=True)
        await shows(instance, process_id, b"up\r\nline\r\nhalf")
        return
    await instance.type_into(process_id, b"line\nhalf", eof=True)
    assert (await finish(instance, process_id)).exit_code == 0
    assert written(instance, process_id) == b"up\r\nline\r\nhalfend\r\n"
    with pytest.raises(StateError, match="not_ready"):
        await instance.type_into(process_id, b"more", eof=False)


async def test_viewers_come_and_go(world: World) -> None:
    """Several at once, each with its size; what one types all see; the last that types decides how large it is."""
    instance = await world.sandbox()
    process_id = await open_tty(
        instance, "trap 'stty size' WINCH; echo up; while :; do read -r line && echo \"<$line>\"; done"
    )
    await shows(instance, process_id, b"up")
    with closing(await instance.open_terminal(process_id, rows=30, cols=100, term="xterm-256color")) as one:
        assert not os.get_blocking(one)
        await sees(one, b"up")
        await shows(instance, process_id, b"30 100\r\n")
        with closing(await instance.open_terminal(process_id, rows=20, cols=70, term="no-such-terminal")) as two:
            await sees(two, b"up")
            os.write(two, b"from two\r")
            await sees(one, b"<from two>")
            await shows(instance, process_id, b"20 70\r\n")
            fcntl.ioctl(two, termios.TIOCSWINSZ, struct.pack("HHHH", 21, 71, 0, 0))
            await shows(instance, process_id, b"21 71\r\n")
            with closing(
                await instance.open_terminal(process_id, rows=9, cols=40, term="xterm", read_only=True)
            ) as watching:
                await sees(watching, b"21 71")  # earlier lines may be above its nine
                os.write(watching, b"ignored\r")
                os.write(two, b"\x02d")  # tmux's own key for detaching
                await gone(two)
        os.write(one, b"last\r")
        await sees(one, b"<last>")
        assert b"ignored" not in written(instance, process_id)
        await instance.signal(process_id, signal.SIGKILL)
        assert b"exited" in await gone(one)
    with pytest.raises(StateError, match="has ended"):
        await instance.open_terminal(process_id, rows=9, cols=40, term="xterm")
    instance.forget(process_id)
    await tidy(instance, process_id)


EARLY = """
own=$(tty)
echo up
while :; do
    for place in /dev/pts/[0-9]*; do [ "$place" = "$own" ] || printf early >"$place"; done 2>/dev/null
    sleep 0.05
done &
while read -r line; do echo "<$line>"; done
"""
"""Opens and closes the terminals of all viewers, again and again."""


@once
async def test_code_inside_cannot_end_a_viewer_before_it_shows_anything(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*given: Any, **options: Any) -> list[str]:
        return ["sh", "-c", 'sleep 1; exec "$@"', "sh", *viewer_argv(*given, **options)]

    viewer_argv = terminal.viewer_argv
    monkeypatch.setattr(terminal, "viewer_argv", late)
    instance = await world.sandbox()
    process_id = await open_tty(instance, EARLY)
    await shows(instance, process_id, b"up")
    with closing(await instance.open_terminal(process_id, rows=24, cols=80, term="xterm")) as fd:
        await sees(fd, b"early")
        os.write(fd, b"typed\r")
        await sees(fd, b"<typed>")
        os.write(fd, b"\x02d")
        await gone(fd)
    await instance.signal(process_id, signal.SIGKILL)
    await instance.wait(process_id)


@once
async def test_a_size_without_a_viewer(world: World) -> None:
    instance = await world.sandbox()
    process_id = await open_tty(instance, "trap 'stty size; exit 7' WINCH; echo up; while :; do sleep 0.05; done")
    await shows(instance, process_id, b"up")
    await instance.resize_terminal(process_id, rows=50, cols=132)
    assert (await finish(instance, process_id)).exit_code == 7
    assert written(instance, process_id) == b"up\r\n50 132\r\n"


SERVER = "server=${TMUX#*,} && server=${server%,*}; "


@once
async def test_a_tmux_that_is_killed_hangs_up(world: World) -> None:
    """As a terminal that is closed does; how the process takes that is how it ended."""
    instance = await world.sandbox()
    assert (await run_tty(instance, f"{SERVER} kill -9 $server; exec sleep 1000"))[0] == 129
    assert (await run_tty(instance, f"trap 'exit 6' HUP; {SERVER} kill -9 $server; while :; do sleep 0.05; done"))[
        0
    ] == 6
    assert (await run_tty(instance, "tmux kill-server; exec sleep 1000"))[0] == 129
    goes_on = f"trap '' HUP; {SERVER} kill -9 $server; sleep 0.3; exit 4"  # no end is told in this time
    assert (await run_tty(instance, goes_on))[0] == 4
    assert leftovers(instance) == []


@once
async def test_a_journal_that_is_turned_off_is_no_end(world: World) -> None:
    instance = await world.sandbox()
    is_seen = "until grep -q seen *.stdout; do sleep 0.01; done"
    code, out = await run_tty(instance, f"echo seen; {is_seen}; tmux pipe-pane; echo unseen; exit 8")
    assert (code, out) == (8, b"seen\r\n")


@once
async def test_more_windows_do_not_outlive_the_process(world: World) -> None:
    instance = await world.sandbox()
    begun = "until grep -qx sleep /proc/[0-9]*/comm && grep -qx cat /proc/[0-9]*/comm; do :; done 2>/dev/null"
    process_id = await open_tty(instance, f"tmux new-window sleep 1000; tmux split-window cat; {begun}; exit 2")
    assert (await finish(instance, process_id)).exit_code == 2
    instance.forget(process_id)
    assert leftovers(instance, process_id) == []


@once
async def test_all_killed_from_inside(world: World) -> None:
    if world.kind != "local":
        pytest.skip("where nothing isolates, that is everything")
    instance = await world.sandbox()
    process_id = await open_tty(instance, "echo up; sleep 1000")
    await shows(instance, process_id, b"up")
    with closing(await instance.open_terminal(process_id, rows=24, cols=80, term="xterm")) as fd:
        await start(instance, "sh", "-c", "kill -9 -1")
        await gone(fd)
    while instance.exit_of(process_id) is None:
        instance.sweep()
        await sh(instance, "true")
    how = await finish(instance, process_id)
    assert how.exit_code is None
    assert "killed what watched" in (how.message or "")
    instance.forget(process_id)
    await tidy(instance, process_id)
    assert await run_tty(instance, "exit 3") == (3, b"")


@once
async def test_what_watches_is_killed(world: World) -> None:
    """Then the process is, too, and nobody pretends to know how it ended."""
    instance = await world.sandbox()
    process_id = await open_tty(instance, "trap '' HUP; echo up; exec sleep 1000")
    await shows(instance, process_id, b"up")
    told = f"*{process_id}.told"
    script = f'for fd in /proc/[0-9]*/fd/7; do case $(readlink "$fd") in {told}) echo "$fd";; esac; done'
    found = (await sh(instance, script)).split("/")
    await sh(instance, f"kill -9 {found[2]}")
    how = await finish(instance, process_id)
    assert how.exit_code is None
    with trio.fail_after(DEADLINE_S):
        await sh(instance, f"while kill -0 {await instance.find(process_id)} 2>/dev/null; do :; done")
    instance.forget(process_id)


async def test_a_viewer_is_inside(world: World) -> None:
    """What a tmux server has its clients execute is executed where the code is anyway."""
    instance = await world.sandbox()
    process_id = await open_tty(instance, "echo up; cat")
    await shows(instance, process_id, b"up")
    mark = f"{(await sh(instance, 'pwd')).strip()}/{process_id}"
    with closing(await instance.open_terminal(process_id, rows=24, cols=80, term="xterm")) as fd:
        await sees(fd, b"up")
        socket = terminal.socket(instance._shared.sockets, process_id)
        enter = f"cd {shlex.quote(instance._shared.journals)}"
        await sh(instance, f"{enter} && tmux -S {socket} detach-client -E 'id -u >{mark}' -s named")
        await gone(fd)
    assert await written_to(instance, mark) == await sh(instance, "id -u")
    if world.kind == "local":
        assert not os.path.exists(mark)


@once
@pytest.mark.parametrize("trick", [": ", "ln -s /etc/passwd", "touch", "kill -STOP"])
async def test_a_socket_that_was_replaced(world: World, trick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attaching fails, and not late; nobody else is hurt."""
    instance = await world.sandbox()
    process_id = await open_tty(instance, f"{SERVER} echo $server.; cat")
    await shows(instance, process_id, b".")
    place = f"{instance._shared.sockets}/{process_id}.tmux"
    server = written(instance, process_id).decode().split(".")[0]
    await sh(instance, f"kill -STOP {server}" if "STOP" in trick else f"mv {place} {place}.moved; {trick} {place}")
    monkeypatch.setattr(terminal, "DEADLINE_S", 0.2)
    with pytest.raises((ProviderError, StateError), match="terminal"):
        await instance.open_terminal(process_id, rows=24, cols=80, term="xterm")
    monkeypatch.undo()
    await sh(instance, f"kill -CONT {server}" if "STOP" in trick else f"rm -f {place}; mv {place}.moved {place}")
    with closing(await instance.open_terminal(process_id, rows=24, cols=80, term="xterm")) as fd:
        await sees(fd, server.encode())
    await instance.signal(process_id, signal.SIGKILL)
    await finish(instance, process_id)
    instance.forget(process_id)
    await tidy(instance, process_id)


async def test_an_image_without_tmux(world: World) -> None:
    instance = await world.sandbox(secrets={"PATH": "/nowhere"})
    with pytest.raises(SetupError, match="no tmux in the sandbox's image"):
        await open_tty(instance, "true")
    assert leftovers(instance) == []


async def test_a_journal_without_room_is_no_end(world: World) -> None:
    """What is written there is lost; the process goes on, and its end is told."""
    if world.kind in ("plain", "gvisor", "kubernetes", "modal"):
        pytest.skip("it has no limits; or what it prints is all that is on its disk, and more ends it")
    instance = await world.measured(1 << 20)
    process_id = await open_tty(instance, f"{RAW} head -c 3000000 /dev/zero; exit 5")
    assert (await finish(instance, process_id)).exit_code == 5
    assert len(written(instance, process_id)) == 1 << 20


@once
async def test_the_first_end_counts(world: World) -> None:
    """Code inside that speaks in the place of what waits for the process hurts itself, and nothing waits for ever."""
    instance = await world.sandbox()
    script = (
        "for word in 'run 1.1' 'run -1.-1' 'run x.y' 'exit 999' 'exit 7' closed; do echo $word >$TOLD; done; sleep 0.2"
    )
    place = f"{os.path.dirname(os.path.dirname(instance._shared.journals))}/in"
    process_id = new_id(PROCESS)
    wanted = Terminal(rows=24, cols=80, session="named")
    words = ["sh", "-c", f"TOLD={shlex.quote(place)}/{process_id}.told; {script}; exit 6"]
    await instance.launch(Launch(process_id=process_id, command=words, terminal=wanted))
    how = await finish(instance, process_id)
    assert how.exit_code in (6, 7, None)
    assert await run_tty(instance, "exit 3") == (3, b"")


@once
async def test_others_that_have_the_terminal_open_delay_no_end(world: World) -> None:
    instance = await world.sandbox()
    process_id = await open_tty(instance, f"{RAW} trap '' HUP; sleep 1000 & seq 1 20000; exit 4")
    assert (await finish(instance, process_id)).exit_code == 4
    assert written(instance, process_id) == "".join(f"{number}\n" for number in range(1, 20_001)).encode()


@once
async def test_a_slow_server_loses_nothing(world: World) -> None:
    """What is written while tmux does not read, right before the end, is in the journal."""
    instance = await world.sandbox()
    stopped = "until grep -q stopped /proc/$server/status; do :; done"
    wake = f"(trap '' HUP; {stopped}; sleep 0.3; kill -CONT $server) >/dev/null 2>&1 </dev/null &"
    for holder in ("", "trap '' HUP; sleep 1000 &"):
        script = f"{RAW} {SERVER} {holder} {wake} kill -STOP $server; seq 1 5000; exit 4"
        code, out = await run_tty(instance, script)
        assert (code, out) == (4, "".join(f"{number}\n" for number in range(1, 5001)).encode())


@each_way
async def test_a_server_that_hangs_delays_an_end_but_prevents_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tmux does for minutes when a viewer claims to have a billion characters; and nothing of it stays."""
    monkeypatch.setattr(terminal, "PANE", terminal.PANE.replace(b"sleep 30", b"sleep 0.2"))
    monkeypatch.setattr(client, "STUCK_S", 0.1)
    monkeypatch.setattr(terminal, "DEADLINE_S", 0.3)
    instance = await world.sandbox()
    assert await run_tty(instance, f"{SERVER} kill -STOP $server; exit 4") == (4, b"")
    process_id = await open_tty(instance, f"{SERVER} echo $server.; cat")
    await shows(instance, process_id, b".")
    server = written(instance, process_id).decode().split(".")[0]
    await sh(instance, f"kill -STOP {server}")
    with pytest.raises(ProviderError, match="does not answer"):
        await instance.resize_terminal(process_id, rows=3, cols=3)
    await instance.signal(process_id, signal.SIGKILL)
    assert (await finish(instance, process_id)).exit_code == 137
    with trio.fail_after(DEADLINE_S):
        await sh(instance, f"while kill -0 {server} 2>/dev/null; do :; done")
    instance.forget(process_id)
    await tidy(instance, process_id)
