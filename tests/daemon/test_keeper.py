"""The keeper in each shell that is here, its requests, and how its answers and journals are read."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from sandkeep.errors import CallerError, StateError
from sandkeep.model import SandboxSpec
from sandkeepd.keeper import KEEPER_SOURCE, journal, requests
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers import fake
from sandkeepd.providers.base import Caller, ImageRequest, Launch, Terminal

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


def plain(source: Path) -> ImageRequest:
    return ImageRequest(kind="directory", source=str(source))


async def quiet(sentence: str) -> None:
    del sentence


@pytest.mark.needs("tmux")
@pytest.mark.parametrize("shell", SHELLS)
async def test_the_keeper_in_this_shell(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that differs between shells: jobs, signals, traps, reading lines, and what is in a variable."""
    words = ["busybox", "sh"] if shell == "busybox" else [shell]
    if shell == "bash":
        words.append("--posix")
    spawn = fake.spawn
    monkeypatch.setattr(fake, "spawn", lambda argv, **rest: spawn([*words, *argv[1:]], **rest))
    (tmp_path / "source").mkdir()
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(fake.open_fake(str(tmp_path / "state")))
        await provider.import_image(
            "img_1", plain(tmp_path / "source"), Caller(uid=os.geteuid(), gid=os.getegid()), quiet
        )
        nasty = " é\n\\'\"$(id)`id` \t" + "Á" * 3000 + "\n"
        instance = await provider.create("sbx_1", "img_1", SandboxSpec(), {"SHARED": nasty}, {})
        try:
            await _exercise(instance, nasty)
        finally:
            await provider.terminate("sbx_1", {}, instance.handle)


async def _exercise(instance: fake.FakeInstance, nasty: str) -> None:
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


async def _exercise_terminals(instance: fake.FakeInstance, nasty: str) -> None:
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


async def _one(instance: fake.FakeInstance, number: int) -> None:
    await instance.launch(Launch(process_id=f"n{number}", command=["sh", "-c", f"exit {number}"]))
    assert (await instance.wait(f"n{number}")).exit_code == number


async def test_a_keeper_that_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for room, up to a deadline, and nobody else waits with them."""
    import signal

    from sandkeep.errors import ProviderError
    from sandkeepd.keeper import talk

    monkeypatch.setattr(talk, "REQUEST_DEADLINE_S", 0.05)
    (tmp_path / "source").mkdir()
    async with fake.open_fake(str(tmp_path / "state")) as provider:
        await provider.import_image(
            "img_1", plain(tmp_path / "source"), Caller(uid=os.geteuid(), gid=os.getegid()), quiet
        )
        instance = await provider.create("sbx_1", "img_1", SandboxSpec(), {}, {})
        try:
            os.kill(instance.identity.pid, signal.SIGSTOP)
            assert not await instance.is_alive()
            with pytest.raises(ProviderError, match="provider_unavailable"):
                await instance.launch(Launch(process_id="p1", command=["true"], secrets={"S": "x" * 65_000}))
            os.kill(instance.identity.pid, signal.SIGCONT)
            monkeypatch.setattr(talk, "REQUEST_DEADLINE_S", 30)
            await instance.launch(Launch(process_id="p2", command=["true"]))
            assert (await instance.wait("p2")).exit_code == 0
        finally:
            await provider.terminate("sbx_1", {}, instance.handle)
        with pytest.raises(StateError, match="not_ready"):
            await instance.signal("p2", 9) or await instance.launch(Launch(process_id="p3", command=["true"]))


def test_request_lines_fit_and_stay_lines() -> None:
    value = "a\nb'c" * 5000
    lines = list(requests.secret_requests("prc_1", {"NAME": value}))
    assert all(
        len(line) <= requests.MAX_REQUEST_BYTES and line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines
    )
    text = b"".join(line.removeprefix(b"secret prc_1 ").rstrip(b"\n") for line in lines)
    assert text.startswith(b"export NAME='a'\"$4\"'b'\\''c")
    with pytest.raises(CallerError, match="invalid"):
        list(requests.secret_requests("prc_1", {"A;id": "x"}))


def test_a_script_that_no_kernel_would_start() -> None:
    with pytest.raises(CallerError, match="too long"):
        requests.script(["env"], ["x" * 1_100_000, "y" * 1_100_000], {}, None)
    with pytest.raises(CallerError, match="UTF-8"):
        requests.script(["env"], ["\ud800"], {}, None)


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
    reader = journal.ExitsReader(str(tmp_path))
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
    chunk = journal.read_journal(str(tmp_path), "x", "stdout", 0, 100)
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
                    with trio.fail_after(20):
                        await first.wait()
                        await second.wait()
                    watcher.remove(watch, first.set)
                    watcher.remove(watch, first.set)
                assert watcher._callbacks == {watch: [first.set]} or watcher._callbacks == {}
            nursery.cancel_scope.cancel()


# -- the script by itself ---------------------------------------------------------------------------------------------


class Bare:
    """A keeper in one of the shells, without a daemon."""

    def __init__(self, shell: str, root: Path) -> None:
        words = ["busybox", "sh"] if shell == "busybox" else [shell]
        self.inside, self.out = root / "in", root / "out"
        self.inside.mkdir()
        (self.out / "p").mkdir(parents=True)
        os.mkfifo(root / "requests")
        self._requests = os.open(root / "requests", os.O_RDWR)
        command = [*words, str(KEEPER_SOURCE), str(self.inside), str(self.out)]
        self.process = subprocess.Popen(command, stdin=self._requests, stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        os.close(self._requests)

    def tell(self, *lines: str) -> None:
        """Send requests."""
        os.write(self._requests, "".join(f"{line}\n" for line in lines).encode())

    def run(self, name: str, script: str) -> None:
        """Ask for a process."""
        (self.inside / name).write_text(script)
        self.tell(f"run {name} none")

    def said(self) -> list[str]:
        """All answers so far."""
        return (self.out / "exits").read_text().splitlines()

    def until(self, done: Callable[[list[str]], object]) -> list[str]:
        """The answers, once they are as they should be."""
        deadline = time.monotonic() + 20
        while not done(self.said()):
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.002)
        return self.said()


@pytest.fixture(params=SHELLS)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bare]:
    keeper = Bare(request.param, tmp_path)
    yield keeper
    keeper.close()


def test_what_an_ended_process_left_behind_stays(bare: Bare) -> None:
    """Its watcher has told its end and gone, and the keeper hears of a sweep before it hears of that."""
    go, left = bare.out / "go", bare.out / "left"
    bare.run("p1", f"sleep 1000 & echo $! >{left}; until [ -e {go} ]; do sleep 0.01; done; exit 3")
    bare.until(lambda said: left.exists() and left.read_text().endswith("\n"))
    os.kill(bare.process.pid, signal.SIGSTOP)
    bare.tell("sweep -")
    go.touch()
    bare.until(lambda said: "p1 3" in said)
    pid = int(left.read_text())
    try:
        os.kill(bare.process.pid, signal.SIGCONT)
        bare.tell("sweep -", "check p1")
        said = bare.until(lambda said: said.count("p1 3") == 2)  # the second time as it was asked
        assert "p1 lost" not in said
        assert Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    finally:
        os.kill(pid, signal.SIGKILL)


def test_how_any_of_the_last_ended_is_known(bare: Bare) -> None:
    names = [f"p{number}" for number in range(130)]
    for name in names:
        bare.run(name, "exit 5")
    bare.until(lambda said: sum(line.endswith(" 5") for line in said) == len(names))
    bare.until(lambda said: bare.tell("check p0") or "p0 live" not in said[-1:])
    bare.tell(f"ask - {' '.join(names)}", "check end")
    said = bare.until(lambda said: "end none" in said)
    assert [line for line in said if line.endswith(" none")] == ["end none"]


def test_what_is_killed_before_its_pid_is_known_does_not_run_on(bare: Bare) -> None:
    mark = f"10{os.getpid()}"
    names = [f"p{number}" for number in range(50)]
    for name in names:
        (bare.inside / name).write_text(f"exec sleep {mark}")
        bare.tell(f"run {name} none", f"kill {name} 9")
    bare.until(lambda said: {name for name in names if f"{name} 137" in said or f"{name} lost" in said} == set(names))
    assert subprocess.run(["pgrep", "-f", f"sleep {mark}"], stdout=subprocess.DEVNULL, check=False).returncode == 1


@pytest.mark.parametrize(
    "more",
    [{}, {"stdin": b"in"}, {"stdin": True}, {"command": ["sh", "-c", ": " + "x" * 10_000]}],
    ids=["none", "a file", "a pipe", "a long command"],
)
async def test_of_what_started_a_process_nothing_is_left(tmp_path: Path, more: dict[str, object]) -> None:
    (tmp_path / "source").mkdir()
    async with fake.open_fake(str(tmp_path / "state")) as provider:
        await provider.import_image(
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
