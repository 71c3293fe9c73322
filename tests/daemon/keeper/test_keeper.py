"""The keeper, with each shell that is here for what needs one, and what is said to it and by it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support import fake_provider as fake
from tests.support.expect import until
from tests.support.patience import patient

from sandkeep.errors import CallerError, StateError
from sandkeep.model import SandboxSpec
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.images import ImageRequest
from sandkeepd.contract.processes import Launch, Terminal
from sandkeepd.host import processes
from sandkeepd.host.hostile_files import HostileRoot
from sandkeepd.host.processes import spawn
from sandkeepd.keeper import journal, program, requests
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.keeper_provider import HeldInstance

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


def plain(source: Path) -> ImageRequest:
    return ImageRequest(kind="directory", source=str(source))


async def quiet(sentence: str) -> None:
    del sentence


@pytest.mark.needs("tmux")
@pytest.mark.parametrize("shell", SHELLS)
async def test_the_keeper_with_this_shell(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs between shells in the scripts of terminals: signals, traps, reading lines, what is in a variable."""
    (tmp_path / "sh").symlink_to(shutil.which(shell) or shell)
    spawn = processes.spawn

    def with_it(argv: list[str], *, env: dict[str, str], **rest: Any) -> int:
        return spawn(argv, env={**env, "PATH": f"{tmp_path}:{env['PATH']}"}, **rest)

    monkeypatch.setattr(processes, "spawn", with_it)
    (tmp_path / "source").mkdir()
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(fake.open_fake(str(tmp_path / "state")))
        await provider.images.make(
            "img_1", plain(tmp_path / "source"), Caller(uid=os.geteuid(), gid=os.getegid()), quiet
        )
        nasty = " é\n\\'\"$(id)`id` \t" + "Á" * 3000 + "\n"
        instance = await provider.create("sbx_1", "img_1", SandboxSpec(), {"SHARED": nasty}, {})
        try:
            await _exercise(instance, nasty)
        finally:
            await provider.terminate("sbx_1", {}, instance.handle)
            await provider.cleared("sbx_1")


async def _exercise(instance: HeldInstance, nasty: str) -> None:
    script = 'printf %s "$SHARED$OWN"; exit 9'
    await instance.launch(Launch(process_id="p1", command=["sh", "-c", script], secrets={"OWN": nasty}))
    assert (await instance.wait("p1")).exit_code == 9
    assert instance.read("p1", "stdout", 0, 1 << 20).data.decode() == nasty * 2
    await instance.launch(Launch(process_id="p2", command=["cat"], stdin=True))
    await instance.write_stdin("p2", b"x" * 100_000, eof=True)
    assert (await instance.wait("p2")).exit_code == 0
    assert instance.read("p2", "stdout", 0, 0).size == 100_000
    for number, sent in enumerate((2, 3, 15, 9)):
        await instance.launch(Launch(process_id=f"s{number}", command=["sh", "-c", "echo; exec sleep 1000"]))
        await instance.wait_output(f"s{number}", 0, 0)
        await instance.signal(f"s{number}", sent)
        assert (await instance.wait(f"s{number}")).exit_code == 128 + sent
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(_one, instance, number)
    await _exercise_terminals(instance, nasty)


async def _exercise_terminals(instance: HeldInstance, nasty: str) -> None:
    wanted = Terminal(rows=24, cols=80, session="t")
    script = 'printf %s "$SHARED$OWN"; exit 9'
    secrets = {"OWN": nasty, "how": "x", "pid": "y", "word": "z"}
    await instance.launch(Launch(process_id="t1", command=["sh", "-c", script], secrets=secrets, terminal=wanted))
    assert (await instance.wait("t1")).exit_code == 9
    assert instance.read("t1", "stdout", 0, 1 << 20).data.decode().replace("\r\n", "\n") == nasty * 2
    for number, sent in enumerate((2, 3, 15, 9)):
        command = ["sh", "-c", "echo; exec sleep 1000"]
        await instance.launch(Launch(process_id=f"u{number}", command=command, terminal=wanted))
        await instance.wait_output(f"u{number}", 0, 0)
        await instance.signal(f"u{number}", sent)
        assert (await instance.wait(f"u{number}")).exit_code == 128 + sent
    await instance.launch(Launch(process_id="t2", command=["cat"], terminal=wanted))
    os.close(await instance.open_terminal("t2", rows=24, cols=80, term="xterm"))
    await instance.signal("t2", 9)
    assert (await instance.wait("t2")).exit_code == 137


async def _one(instance: HeldInstance, number: int) -> None:
    await instance.launch(Launch(process_id=f"n{number}", command=["sh", "-c", f"exit {number}"]))
    assert (await instance.wait(f"n{number}")).exit_code == number


async def test_a_keeper_that_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for room, up to a deadline, and nobody else waits with them."""
    import signal

    from sandkeep.errors import ProviderError
    from sandkeepd.keeper import channel

    (tmp_path / "source").mkdir()
    async with fake.open_fake(str(tmp_path / "state")) as provider:
        await provider.images.make(
            "img_1", plain(tmp_path / "source"), Caller(uid=os.geteuid(), gid=os.getegid()), quiet
        )
        instance = await provider.create("sbx_1", "img_1", SandboxSpec(), {}, {})
        monkeypatch.setattr(channel, "REQUEST_DEADLINE_S", 0.05)
        try:
            os.kill(instance.handle["first"]["pid"], signal.SIGSTOP)
            assert not await instance.is_alive()
            with pytest.raises(ProviderError, match="provider_unavailable"):
                await instance.launch(Launch(process_id="p1", command=["true"], secrets={"S": "x" * 65_000}))
            os.kill(instance.handle["first"]["pid"], signal.SIGCONT)
            monkeypatch.setattr(channel, "REQUEST_DEADLINE_S", 30)
            await instance.launch(Launch(process_id="p2", command=["true"]))
            assert (await instance.wait("p2")).exit_code == 0
        finally:
            await provider.terminate("sbx_1", {}, instance.handle)
            await provider.cleared("sbx_1")
        with pytest.raises(StateError, match="not_ready"):
            await instance.signal("p2", 9) or await instance.launch(Launch(process_id="p3", command=["true"]))


def test_request_lines_fit_and_stay_lines() -> None:
    value = "a\nb'c" * 5000
    lines = list(requests.secret_requests("prc_1", {"NAME": value}))
    assert all(
        len(line) <= requests.MAX_REQUEST_BYTES and line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines
    )
    text = b"".join(line.removeprefix(b"secret prc_1 ").rstrip(b"\n") for line in lines)
    assert text == b"NAME=" + rb"a\nb'c" * 5000 + b"\0"
    with pytest.raises(CallerError, match="invalid"):
        list(requests.secret_requests("prc_1", {"A;id": "x"}))


def test_a_script_that_no_kernel_would_start() -> None:
    with pytest.raises(CallerError, match="exceed 2 MiB"):
        requests.record(["x" * 1_100_000, "y" * 1_100_000], {}, None)
    with pytest.raises(CallerError, match="UTF-8"):
        requests.record(["\ud800"], {}, None)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"p",
        b"p ",
        b"p 1234",
        b"p +",
        b"p x",
        b" p 1",
        b"p 1 ",
        b"-p 1",
        b"p\0 1",
        b"../p 1",
        b"p -1",
        b"p +99999999999",
        b"p 256",
    ],
)
def test_lines_that_are_no_answers(line: bytes) -> None:
    assert journal.parse_answers(line) == []
    assert journal.parse_answers(b"a 1\n" + line + b"\nb 2") == [("a", "1"), ("b", "2")]


def test_answers() -> None:
    text = b"prc_1 +42\nprc_1 255\nprc_2 lost"
    assert journal.parse_answers(text) == [("prc_1", "+42"), ("prc_1", "255"), ("prc_2", "lost")]


def test_answers_in_pieces_and_after_garbage(tmp_path: Path) -> None:
    exits = tmp_path / "exits"
    exits.write_bytes(b"")
    reader = journal.ExitsReader(HostileRoot(str(tmp_path)).tree())
    with exits.open("ab", buffering=0) as file:
        file.write(b"a 1\nb ")
        assert reader.read() == ([("a", "1")], False)
        file.write(b"2\n" + b"z" * 300_000)
        assert reader.read()[0] == [("b", "2")]
        while reader.read()[1]:
            pass
        file.write(b"\nc 3\n")
        assert reader.read()[0] == [("c", "3")]
        os.truncate(exits, 0)
        file.write(b"d 4\n")
        assert reader.read()[0] == [("d", "4")]
        os.truncate(exits, 1 << 36)
        file.write(b"\ne 5\n")
        found, rounds, more = [], 0, True
        while more:
            answers, more = reader.read()
            found += answers
            rounds += 1
        assert found == [("e", "5")]
        assert rounds <= journal.MAX_BACKLOG_BYTES // journal.MAX_WAKE_BYTES + 2
    reader.close()


def test_a_line_without_end_is_not_kept(tmp_path: Path) -> None:
    exits = tmp_path / "exits"
    exits.write_bytes(b"a 1" * 1_000_000)
    reader = journal.ExitsReader(HostileRoot(str(tmp_path)).tree())
    with exits.open("ab") as file:
        more = True
        while more:
            answers, more = reader.read()
            assert answers == []
            assert len(reader._rest) <= journal.MAX_LINE_BYTES
        file.write(b" 1\nb 2\n")
        file.flush()
        assert reader.read()[0] == [("b", "2")]
    reader.close()


@pytest.mark.parametrize("plant", ["link", "fifo", "directory", "link to the directory"])
def test_only_files_are_opened(tmp_path: Path, plant: str) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "secret").write_text("secret")
    place = tmp_path / "p" / "x.stdout"
    if plant == "link":
        place.symlink_to(tmp_path / "secret")
    elif plant == "fifo":
        os.mkfifo(place)
    elif plant == "directory":
        place.mkdir()
    else:
        (tmp_path / "p").rmdir()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "x.stdout").write_text("secret")
        (tmp_path / "p").symlink_to(tmp_path / "elsewhere")
    chunk = journal.read_journal(HostileRoot(str(tmp_path)).tree(), "x", "stdout", 0, 100)
    assert (chunk.data, chunk.size) == (b"", 0)
    assert chunk.note is not None
    assert "replaced" in chunk.note


async def test_one_file_watched_by_several(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    first, second = trio.Event(), trio.Event()
    with Watcher() as watcher:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            with path.open("ab", buffering=0) as file:
                with watcher.watching(file.fileno(), second.set):
                    with watcher.watching(file.fileno(), lambda: None):
                        pass
                    watch = watcher.add(file.fileno(), first.set)
                    file.write(b"x")
                    with trio.fail_after(patient(60)):
                        await first.wait()
                        await second.wait()
                    watcher.remove(watch, first.set)
                    watcher.remove(watch, first.set)
                assert watcher._callbacks == {watch: [first.set]} or watcher._callbacks == {}
            nursery.cancel_scope.cancel()


# -- the program by itself --------------------------------------------------------------------------------------------


class Bare:
    """A keeper without a daemon."""

    def __init__(self, root: Path, *before: str, shares: bool = False) -> None:
        """In `root`. `before` are the words of what the keeper is started by, if anything."""
        self.inside, self.out = root / "in", root / "out"
        self.inside.mkdir()
        (self.out / "p").mkdir(parents=True)
        os.mkfifo(root / "requests")
        self._requests = os.open(root / "requests", os.O_RDWR)
        program.install(str(self.inside))
        command = [*before, *program.keeper_argv(str(self.inside), str(self.out), shares=shares)]
        self.process = subprocess.Popen(command, stdin=self._requests, stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        ended = {line.split()[0] for line in self.said() if line[-1:].isdigit() and "+" not in line}
        for name, pid in (line.split(" +") for line in self.said() if " +" in line):
            if name not in ended:
                with suppress(ProcessLookupError):
                    os.killpg(int(pid), signal.SIGKILL)
        assert self.process.stdout is not None
        self.process.stdout.close()
        os.close(self._requests)

    def send(self, data: bytes) -> None:
        """Send requests, or pieces of them."""
        os.write(self._requests, data)

    def tell(self, *lines: str) -> None:
        """Send requests."""
        self.send("".join(f"{line}\n" for line in lines).encode())

    def run(self, name: str, script: str, *, mode: str = "none", quick_ms: int = 0) -> None:
        """Ask for a process."""
        line = requests.run_record(requests.record(["sh", "-c", script], {}, None), name, mode, quick_ms)
        assert line is not None
        self.send(line)

    def nameless(self) -> list[str]:
        """The files without a name that it holds open for journals to come."""
        held = (os.readlink(fd) for fd in Path(f"/proc/{self.process.pid}/fd").iterdir())
        return [name for name in held if name.startswith(str(self.out)) and name.endswith("(deleted)")]

    def said(self) -> list[str]:
        """All answers so far."""
        return (self.out / "exits").read_text().splitlines()

    def wrote(self, name: str) -> str:
        """What a process has written."""
        return (self.out / "p" / f"{name}.stdout").read_text()

    def until(self, done: Callable[[list[str]], object]) -> list[str]:
        """The answers, once they are as they should be."""
        until(lambda: done(self.said()), seen=self.said)
        return self.said()


@pytest.fixture(params=[False, True], ids=["copies", "shares"])
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bare]:
    """One that gives what it starts a copy of its memory, and one that shares that with it."""
    keeper = Bare(tmp_path, shares=request.param)
    yield keeper
    keeper.close()


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def comm_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def test_what_an_ended_process_left_behind_stays(bare: Bare) -> None:
    """The keeper hears of a sweep before it has heard of the end."""
    go, left = bare.out / "go", bare.out / "left"
    bare.run("p1", f"sleep 1000 & echo $! >{left}; until [ -e {go} ]; do sleep 0.01; done; exit 3")
    said = bare.until(lambda said: left.exists() and left.read_text().endswith("\n") and said)
    pid = int(left.read_text())
    bare.until(lambda _: comm_of(pid) == "sleep\n")
    os.kill(bare.process.pid, signal.SIGSTOP)
    bare.tell("sweep -")
    go.touch()
    bare.until(lambda _: state_of(int(said[0].partition("+")[2])) == "Z")
    try:
        os.kill(bare.process.pid, signal.SIGCONT)
        bare.until(lambda said: "p1 3" in said)
        bare.tell("sweep -", "check p1")
        said = bare.until(lambda said: said.count("p1 3") == 2)  # the second time as it was asked
        assert "p1 lost" not in said
        assert comm_of(pid) == "sleep\n"
    finally:
        os.kill(pid, signal.SIGKILL)


def test_how_any_of_the_last_ended_is_known(bare: Bare) -> None:
    names = [f"p{number}" for number in range(400)]
    for name in names:
        bare.run(name, "exit 5")
    bare.until(lambda said: sum(line.endswith(" 5") for line in said) == len(names))
    bare.tell(f"ask - {' '.join(names)}", "check end")
    said = bare.until(lambda said: "end none" in said)
    assert [line for line in said if line.endswith(" none")] == ["end none"]
    assert sum(line.endswith(" 5") for line in said) == 2 * len(names)


def test_what_is_killed_at_once_does_not_run_on(bare: Bare) -> None:
    mark = f"10{os.getpid()}"
    names = [f"p{number}" for number in range(50)]
    for name in names:
        bare.run(name, f"exec sleep {mark}")
        bare.tell(f"kill {name} 9")
    bare.until(lambda said: {name for name in names if f"{name} 137" in said} == set(names))
    assert subprocess.run(["pgrep", "-f", f"sleep {mark}"], stdout=subprocess.DEVNULL, check=False).returncode == 1


def test_more_processes_at_once_than_there_was_room_for_at_first(bare: Bare) -> None:
    names = [f"p{number}" for number in range(800)]
    hold = bare.out / "hold"
    os.mkfifo(hold)
    for name in names:
        bare.run(name, f"exec <>{hold}; read line; exit 7")
    bare.until(lambda said: len(said) == len(names))
    bare.tell("check p0", "check p799")
    bare.until(lambda said: "p0 live" in said and "p799 live" in said)
    with hold.open("w") as file:
        file.write("go\n" * len(names))
        file.flush()
        bare.until(lambda said: sum(line.endswith(" 7") for line in said) == len(names))
    bare.run("more", "exit 3")
    bare.until(lambda said: "more 3" in said)


def test_one_that_ends_soon_is_told_of_once(bare: Bare) -> None:
    bare.run("p1", "exit 1", quick_ms=20_000)
    bare.until(lambda said: "p1 1" in said)
    bare.run("p2", "exec sleep 1000", quick_ms=20)
    said = bare.until(lambda said: any(line.startswith("p2 +") for line in said))
    assert [line.partition("+")[0] for line in said] == ["p1 ", "p1 1", "p2 "]
    bare.run("p3", "exec sleep 1000", quick_ms=20_000)
    bare.tell("check p3")
    said = bare.until(lambda said: "p3 live" in said)
    assert said[-2].startswith("p3 +")


def test_requests_in_pieces_and_garbage_between_them(bare: Bare) -> None:
    line = requests.run_record(requests.record(["printf", "%s", "a\n\\ b\\n"], {"V": "\n"}, "/"), "p1", "none", 0)
    assert line is not None
    garbage = [b"\n", b"run\n", b"run  \n", b"run ../x none 0 \n", b"run p2\n", b"run p3 none 0 /\0\n", b"kill\n"]
    garbage += [
        b"secret\n",
        b"ask\n",
        b"ask - \n",
        b"pid p1 5\n",
        b"done p1 5\n",
        b"eof p1\n",
        b"x" * 70_000 + b"\n",
        b"\0\n",
    ]
    for piece in garbage:
        for start in range(0, len(piece), 30_000):
            bare.send(piece[start : start + 30_000])
    for byte in line:
        bare.send(bytes([byte]))
    bare.until(lambda said: {"p1 0", "p3 125"} <= set(said))
    assert bare.wrote("p1") == "a\n\\ b\\n"
    assert not list(bare.out.glob("**/*x.std*"))


def test_secrets_are_for_one_although_others_start_in_between(bare: Bare) -> None:
    bare.tell("share - S=shared\0", "secret p1 A=on")
    bare.run("p2", 'echo "$S,$A"')
    bare.tell("secret p1 e\0", "secret p1 B=t\\nwo\0")
    bare.run("p1", 'echo "$S,$A,$B"')
    bare.run("p3", 'echo "$S,$A,$B"')
    bare.until(lambda said: {"p1 0", "p2 0", "p3 0"} <= set(said))
    assert [bare.wrote(name) for name in ("p1", "p2", "p3")] == ["shared,one,t\nwo\n", "shared,\n", "shared,,\n"]


def test_journals_are_made_before_they_are_needed(bare: Bare) -> None:
    """Two at a time; a process has them under its names, and none is left over."""
    bare.until(lambda _: len(bare.nameless()) == 2)
    inodes = {
        os.stat(fd).st_ino for fd in Path(f"/proc/{bare.process.pid}/fd").iterdir() if "(deleted)" in os.readlink(fd)
    }
    bare.run("p1", "echo out; echo err >&2; ls -l /proc/self/fd")
    bare.until(lambda said: "p1 0" in said)
    written = [bare.out / "p" / f"p1.{stream}" for stream in ("stdout", "stderr")]
    assert {os.stat(path).st_ino for path in written} == inodes
    assert {os.stat(path).st_mode & 0o777 for path in written} == {0o644}
    assert (bare.wrote("p1").split("\n")[0], written[1].read_text()) == ("out", "err\n")
    assert "(deleted)" not in bare.wrote("p1")
    assert str(written[0]) in bare.wrote("p1")
    for number in range(20):
        bare.run(f"q{number}", "echo x; exit 3")
    bare.until(lambda said: sum(line.endswith(" 3") for line in said) == 20)
    bare.until(lambda _: len(bare.nameless()) == 2)
    assert {bare.wrote(f"q{number}") for number in range(20)} == {"x\n"}


@pytest.mark.needs("bwrap")
def test_journals_where_no_file_can_be_given_a_name(tmp_path: Path) -> None:
    """Without /proc they are made as they are needed."""
    keeper = Bare(tmp_path, "bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--tmpfs", "/proc")
    try:
        keeper.run("p1", "echo p1")
        keeper.until(lambda said: "p1 0" in said)
        keeper.run("p2", "echo p2")
        keeper.until(lambda said: "p2 0" in said)
        assert [keeper.wrote(name) for name in ("p1", "p2")] == ["p1\n", "p2\n"]
    finally:
        keeper.close()


@pytest.mark.parametrize("plant", ["link", "fifo", "directory"])
def test_what_lies_in_the_place_of_a_journal_holds_nobody_up(bare: Bare, tmp_path: Path, plant: str) -> None:
    place = bare.out / "p" / "p1.stdout"
    if plant == "link":
        place.symlink_to(tmp_path / "elsewhere")
    elif plant == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
    bare.run("p1", "echo x")
    bare.run("p2", "echo y")
    said = bare.until(lambda said: "p2 0" in said)
    assert "p1 none" in said
    assert not (tmp_path / "elsewhere").exists()


def test_a_terminal_whose_script_goes_without_a_word(bare: Bare) -> None:
    """What it had started is ended; of one that has said its last nothing more is told."""
    (bare.inside / "t1").write_text('sleep 1000 & echo "pid t1 $!.$$" >&3; echo "t1 +$!" >&4; kill -9 $$')
    (bare.inside / "t2").write_text('echo "t2 5" >&4; echo "done t2 5" >&3')
    bare.tell("run t1 tty 0 ", "run t2 tty 0 ")
    said = bare.until(lambda said: {"t1 lost", "t2 5"} <= set(said))
    pid = int(next(line for line in said if line.startswith("t1 +")).partition("+")[2])
    bare.until(lambda _: state_of(pid) in ("Z", "gone"))
    bare.tell("check t1", "check t2")
    assert bare.until(lambda said: said.count("t2 5") == 2)[-3:] == ["t1 none", "t2 +0", "t2 5"]


def test_it_ends_when_nobody_can_ask_it_any_more(tmp_path: Path) -> None:
    keeper = Bare(tmp_path)
    command = program.keeper_argv(str(keeper.inside), str(keeper.out))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=patient(60), check=False)
    assert (done.returncode, done.stdout) == (0, b"ready\n")
    keeper.close()
    absent = str(tmp_path / "absent")
    refused = subprocess.run([command[0], absent, absent], capture_output=True, timeout=patient(60), check=False)
    assert (refused.returncode, refused.stderr) == (125, b"its answers cannot be opened\n")


@pytest.mark.parametrize(
    "more",
    [{}, {"stdin": b"in"}, {"stdin": True}, {"command": ["sh", "-c", ": " + "x" * 10_000]}],
    ids=["none", "a file", "a pipe", "a long command"],
)
async def test_of_what_started_a_process_nothing_is_left(tmp_path: Path, more: dict[str, object]) -> None:
    (tmp_path / "source").mkdir()
    async with fake.open_fake(str(tmp_path / "state")) as provider:
        await provider.images.make(
            "img_1", plain(tmp_path / "source"), Caller(uid=os.geteuid(), gid=os.getegid()), quiet
        )
        instance = await provider.create("sbx_1", "img_1", SandboxSpec(), {}, {})
        try:
            place = next((tmp_path / "state").glob("**/in"))
            before = sorted(path.name for path in place.iterdir())
            await instance.launch(Launch(**{"process_id": "p1", "command": ["true"], **more}))  # type: ignore[arg-type]
            await instance.wait("p1")
            instance.forget("p1")
            assert sorted(path.name for path in place.iterdir()) == before
        finally:
            await provider.terminate("sbx_1", {}, instance.handle)
            await provider.cleared("sbx_1")


def test_a_keeper_that_shares_its_memory_has_it_for_itself_again(bare: Bare) -> None:
    """What starts takes room for its record and its environment; secrets are those of each one."""
    statm = Path(f"/proc/{bare.process.pid}/statm")
    many = {f"V{number}": "x" * 1000 for number in range(200)}
    for number in range(20):
        (bare.inside / f"p{number}").write_bytes(requests.record(["sh", "-c", 'echo "$SECRET"'], many, "/"))
        if number == 7:
            bare.tell("secret p7 SECRET=of-7\0")
        bare.tell(f"run p{number} none 0")
        bare.until(lambda said, number=number: f"p{number} 0" in said)  # type: ignore[misc]
        if number == 7:  # when there was room for secrets, too
            before = statm.read_text()
    assert statm.read_text().split()[:2] == before.split()[:2]
    assert [number for number in range(20) if bare.wrote(f"p{number}") != "\n"] == [7]
    assert bare.wrote("p7") == "of-7\n"


@pytest.mark.parametrize("words", [["/nowhere/program"], ["nowhere"], [""]])
def test_what_cannot_be_started_ends_and_nothing_else(bare: Bare, words: list[str]) -> None:
    line = requests.run_record(requests.record(words, {}, None), "p1", "none", 0)
    assert line is not None
    bare.send(line)
    bare.tell("run p2 none 0")
    bare.until(lambda said: {"p1 127", "p2 125"} <= set(said))
    bare.run("p3", "exit 3")
    bare.until(lambda said: "p3 3" in said)


def test_many_start_at_once(bare: Bare) -> None:
    for number in range(100):
        bare.run(f"p{number}", f"echo {number}")
    bare.until(lambda said: {f"p{number} 0" for number in range(100)} <= set(said))
    assert [bare.wrote(f"p{number}") for number in range(100)] == [f"{number}\n" for number in range(100)]


# -- what moves when a command of the host has ended well -------------------------------------------------------------


def moving(tmp_path: Path, *command: str, more: Sequence[int] = ()) -> int:
    """Run something, after which `before` is called `after`; its pid. `more` become its descriptors from 3 on."""
    program.install(str(tmp_path))
    (tmp_path / "before").mkdir()
    words = program.rename_after_argv(
        str(tmp_path / program.NAME), 0o077, str(tmp_path / "before"), str(tmp_path / "after")
    )
    null = os.open(os.devnull, os.O_RDWR)
    try:
        return spawn([*words, *command], stdin=null, output=null, more=more)
    finally:
        os.close(null)


def code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_what_ended_well_is_moved(tmp_path: Path) -> None:
    assert code_of(moving(tmp_path, "sh", "-c", f"echo content >{tmp_path}/before/file")) == 0
    assert (tmp_path / "after" / "file").read_text() == "content\n"
    assert (tmp_path / "after" / "file").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "before").exists()


@pytest.mark.parametrize(
    ("command", "code"),
    [(["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["/nowhere/program"], 127), (["/"], 126)],
)
def test_what_did_not_end_well_is_not_moved(tmp_path: Path, command: list[str], code: int) -> None:
    assert code_of(moving(tmp_path, *command)) == code
    assert (tmp_path / "before").exists()
    assert not (tmp_path / "after").exists()


def test_what_cannot_be_moved_is_told(tmp_path: Path) -> None:
    (tmp_path / "after" / "full").mkdir(parents=True)
    assert code_of(moving(tmp_path, "true")) == 126
    assert (tmp_path / "before").exists()


def test_a_lock_is_held_until_it_is_moved_and_not_by_what_goes_on(tmp_path: Path) -> None:
    import fcntl

    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    script = f"cd {tmp_path}; mkfifo go; sleep 1000 & echo $! >left; echo >ready; read line <go"
    pid = moving(tmp_path, "sh", "-c", script, more=[lock])
    os.close(lock)
    until((tmp_path / "ready").exists)
    another = os.open(tmp_path / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (tmp_path / "go").write_text("\n")
    fcntl.flock(another, fcntl.LOCK_EX)
    assert (tmp_path / "after").exists()
    assert code_of(pid) == 0
    os.close(another)
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


# -- what has a kernel save itself ------------------------------------------------------------------------------------


class Kernel:
    """Stands for the kernel of a gVisor sandbox: takes one request, and answers as it is told."""

    def __init__(self, tmp_path: Path, answer: bytes) -> None:
        self.name = f"skt-{uuid.uuid4().hex}"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"\0runsc-sandbox.{self.name}\0")
        self._listening.listen()
        self._answer = answer
        self._place = tmp_path
        self.asked = b""

    def saves(self) -> "subprocess.CompletedProcess[bytes]":
        """Have it save itself, after which `saving` is called `saved`."""
        program.install(str(self._place))
        (self._place / "saving").mkdir()
        saving = [str(self._place / name) for name in ("saving/image", "saving", "saved")]
        words = program.save_argv(str(self._place / program.NAME), self.name, os.getpid(), *saving)
        with self._listening, subprocess.Popen(words, stderr=subprocess.PIPE) as process:
            kernel = self._listening.accept()[0]
            with kernel:
                self.asked, fds, _, _ = socket.recv_fds(kernel, 4096, 4)
                with open(fds[0], "wb") as image:
                    image.write(b"memory")
                for piece in (self._answer[:9], self._answer[9:]):
                    kernel.sendall(piece)
            assert process.stderr is not None
            said = process.stderr.read()
        return subprocess.CompletedProcess(words, process.returncode, stderr=said)

    def saved(self) -> bool:
        return (self._place / "saved").exists()


def test_a_kernel_that_saves_itself(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, b'{"success":true,"err":"","result":{}}')
    assert kernel.saves().returncode == 0
    assert json.loads(kernel.asked) == {
        "method": "containerManager.Checkpoint", "arg": {"key": None, "metadata": None}
    }  # fmt: skip
    assert (tmp_path / "saved" / "image").read_bytes() == b"memory"
    assert (tmp_path / "saved" / "image").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b'{"success":false,"err":"it has a \\"socket\\" open","result":null}', b'it has a \\"socket\\" open\n'),
        (b'{"success":false,"err":"', b"its kernel has ended\n"),
        (b"", b"its kernel has ended\n"),
        (b"x" * 10_000, b"its kernel has ended\n"),
    ],
)
def test_a_kernel_that_does_not(tmp_path: Path, answer: bytes, words: bytes) -> None:
    kernel = Kernel(tmp_path, answer)
    done = kernel.saves()
    assert (done.returncode, done.stderr) == (1, words)
    assert not kernel.saved()


def test_a_kernel_that_is_not_there_is_not_asked(tmp_path: Path) -> None:
    """Nor is another process, which may have taken its name."""
    program.install(str(tmp_path))
    with socket.socket(socket.AF_UNIX) as another:
        another.bind(f"\0runsc-sandbox.{tmp_path.name}\0")
        another.listen()
        for name in ("nowhere", "x" * 200, tmp_path.name):
            words = program.save_argv(
                str(tmp_path / program.NAME), name, 1, f"{tmp_path}/image", "/nowhere/saving", "/saved"
            )
            assert subprocess.run(words, check=False, capture_output=True).returncode == program.NOT_ASKED
            assert not (tmp_path / "image").exists()


def test_where_it_is_that_runs_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ours cannot be run a copy can, and one that is incomplete, or of another version, is made anew."""
    ours = Path(program.on_host("/nowhere"))
    assert os.access(ours, os.X_OK)
    (tmp_path / "ours").write_bytes(ours.read_bytes())
    monkeypatch.setattr(program, "_PROGRAM", str(tmp_path / "ours"))
    for content in (None, b"", ours.read_bytes() + b"more"):
        if content is not None:
            (tmp_path / program.NAME).write_bytes(content)
        assert program.on_host(str(tmp_path)) == str(tmp_path / program.NAME)
        assert (tmp_path / program.NAME).read_bytes() == ours.read_bytes()
        assert os.access(tmp_path / program.NAME, os.X_OK)
    before = (tmp_path / program.NAME).stat()
    program.on_host(str(tmp_path))
    assert (tmp_path / program.NAME).stat().st_ino == before.st_ino
