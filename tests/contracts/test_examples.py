"""The examples, run as they stand; those that promise to go on after a cut are cut off."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from examples.plain_provider import open_plain
from tests.conftest import RunningDaemon, daemon_in
from tests.support.documents import ROOT, directory
from tests.support.expect import refused_async, until
from tests.support.inside import inside
from tests.support.patience import patient

from sandkeepd.host import processes

pytestmark = pytest.mark.needs("bwrap")

EXAMPLES = ROOT / "examples"
DEADLINE_S = patient(60.0)
WORK = ["from inside", "it exited with 3", "1", "2", "3", "counter exited with 0"]


@pytest.fixture(scope="module")
def daemon(places: str) -> Iterator[RunningDaemon]:
    """One that a test may kill and start again; its stream server is on a Unix socket."""
    with daemon_in(places) as daemon:
        daemon.start()
        yield daemon


@pytest.fixture
def place(places: str) -> Iterator[Path]:
    with directory(places) as made:
        (made / "file").write_text("of the project\n")
        yield made


@pytest.fixture
def box(daemon: RunningDaemon, place: Path) -> Iterator[str]:
    with daemon.connect() as client:
        sandbox_id = client.sandbox.create(client.image.create(str(place), clean=True).image_id).sandbox_id
    yield sandbox_id
    with daemon.connect() as client:
        client.sandbox.terminate(sandbox_id)


@pytest.fixture
def start(daemon: RunningDaemon) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts programs, and ends those that are left."""
    started = []

    def begin(*words: str, **options: Any) -> "subprocess.Popen[bytes]":
        env = {**daemon.env, **options.pop("env", {})}
        started.append(subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, **options))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


# -- clients ----------------------------------------------------------------------------------------------------------


def run_client(daemon: RunningDaemon, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env={**daemon.env, **env}, capture_output=True, text=True, timeout=patient(300))


def did_the_work(daemon: RunningDaemon, done: subprocess.CompletedProcess[str]) -> None:
    first, *rest = done.stdout.splitlines()
    assert (done.returncode, first[:12], rest) == (0, "sandbox sbx_", WORK), done.stderr
    with daemon.connect() as client:
        assert client.sandbox.get(first.removeprefix("sandbox ")).status == "stopped"
        assert client.image.list().images == []


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.needs(way)) for way in ("socat", "nc", "curl")])
def test_the_client_in_shell(daemon: RunningDaemon, place: Path, way: str) -> None:
    odd = place / 'a "quoted" \\ name'
    odd.mkdir()
    did_the_work(daemon, run_client(daemon, "sh", str(EXAMPLES / "client.sh"), str(odd), VIA=way))


@pytest.mark.needs("node")
def test_the_client_in_node(daemon: RunningDaemon, place: Path) -> None:
    did_the_work(daemon, run_client(daemon, "node", str(EXAMPLES / "client.mjs"), str(place)))


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["sh", "client.sh"], marks=pytest.mark.needs("socat"), id="shell"),
        pytest.param(["node", "client.mjs"], marks=pytest.mark.needs("node"), id="node"),
    ],
)
def test_clients_say_what_is_wrong(daemon: RunningDaemon, place: Path, words: list[str]) -> None:
    program = [words[0], str(EXAMPLES / words[1])]
    refused = run_client(daemon, *program, "/proc")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "[" in refused.stderr, "the code is told"
    nobody = run_client(daemon, *program, str(place), SANDKEEP_SOCKET=str(place / "nobody"))
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert nobody.stderr


# -- those that go on -------------------------------------------------------------------------------------------------


@pytest.mark.needs("node")
def test_tailing_goes_on_where_it_was(
    daemon: RunningDaemon, box: str, place: Path, start: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    """The daemon is killed in the middle of a log; both streams arrive whole, and once."""
    script = "i=0; while read -r _; do i=$((i+1)); echo out $i; echo err $i >&2; done; exit 7"
    with daemon.connect() as client:
        client.process.launch(box, script, name="lines", stdin=True)
        client.process.write_stdin(box, "lines", data=b"\n" * 100)
    out, err = place / "out", place / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        tail = start("node", str(EXAMPLES / "tail.mjs"), box, "lines", stdout=stdout, stderr=stderr)
    until(lambda: out.read_text().endswith("out 100\n"))
    daemon.kill()
    daemon.start()
    with daemon.connect() as client:
        client.process.write_stdin(box, "lines", data=b"\n" * 100, eof=True)
    assert tail.wait(DEADLINE_S) == 7
    assert out.read_text() == "".join(f"out {i}\n" for i in range(1, 201))
    assert err.read_text() == "".join(f"err {i}\n" for i in range(1, 201))


@pytest.mark.needs("node")
def test_tailing_is_exact_over_frames_of_every_size(
    daemon: RunningDaemon, box: str, start: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    script = "for n in 1 116 117 126 65526 65527 3000000; do head -c $n /dev/urandom; sleep 0.05; done"
    with daemon.connect() as client:
        client.process.launch(box, script, name="bytes")
        tail = start("node", str(EXAMPLES / "tail.mjs"), box, "bytes", stdout=subprocess.PIPE)
        seen, _ = tail.communicate(timeout=DEADLINE_S)
        client.process.wait(box, "bytes")
        written = b"".join(piece.stdout for piece in client.read_output(box, "bytes"))
    assert hashlib.sha256(seen).digest() == hashlib.sha256(written).digest()


@pytest.mark.needs("node")
def test_tailing_what_is_not_there_says_so(daemon: RunningDaemon, box: str) -> None:
    told = run_client(daemon, "node", str(EXAMPLES / "tail.mjs"), box, "nobody")
    assert (told.returncode, told.stdout) == (125, "")
    assert "nobody" in told.stderr


def test_reacting_misses_nothing(
    daemon: RunningDaemon, box: str, place: Path, start: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    """Events happen while the program runs, while it is dead, and around a restart of the daemon; each is told once."""
    told, token = place / "told", place / "token"

    def react() -> "subprocess.Popen[bytes]":
        with told.open("ab") as out:
            return start(sys.executable, str(EXAMPLES / "react.py"), str(token), stdout=out)

    def fail(code: int) -> str:
        with daemon.connect() as client:
            return f"{client.sandbox.exec(box, f'exit {code}').process_id} exited with {code}\n"

    program = react()
    until(token.exists)
    expected = fail(1)
    until(lambda: told.read_text() == expected)
    daemon.kill()
    daemon.start()
    expected += fail(2)
    until(lambda: told.read_text() == expected)
    with daemon.connect() as client:
        until(lambda: int(token.read_text().rpartition(":")[2]) >= client.daemon.status().position)
    program.send_signal(signal.SIGKILL)
    program.wait()
    expected += fail(3)
    react()
    until(lambda: told.read_text() == expected)


# -- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.needs("runsc")
def test_the_counter_goes_on_from_each_checkpoint(daemon: RunningDaemon) -> None:
    """What is printed is what its README shows, but for what differs each time."""
    done = run_client(daemon, sys.executable, str(EXAMPLES / "counter" / "run.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    shown = (EXAMPLES / "counter" / "README.md").read_text().split("```")[1].splitlines()[2:]
    assert list(map(alike, done.stdout.splitlines())) == list(map(alike, shown))
    with daemon.connect() as client:
        assert client.checkpoint.list().checkpoints == []
        assert [image for image in client.image.list().images if image.provider == "gvisor"] == []


def alike(line: str) -> str:
    """A line without an id, a time, and the numbers that came after the first."""
    return re.sub(r"sbx_\w+|for \d+ ms|(?<=with )(\d).*", r"\1", line)


# -- branches ---------------------------------------------------------------------------------------------------------


def test_the_tournament(daemon: RunningDaemon, place: Path) -> None:
    """The output is the one in its README; the directory has the fixes, and nothing else is left."""
    here = EXAMPLES / "tournament"
    host = shutil.copytree(here / "project", place / "project", ignore=shutil.ignore_patterns("__pycache__"))
    with daemon.connect() as client:
        before = client.sandbox.list().sandboxes, client.image.list().images
        done = run_client(daemon, sys.executable, str(here / "tournament.py"), str(host))
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines() == (here / "README.md").read_text().split("```")[1].splitlines()[2:]
        assert (client.sandbox.list().sandboxes, client.image.list().images) == before
    assert sorted(os.listdir(host)) == sorted(path.name for path in (here / "project").glob("*.py"))
    suite = [sys.executable, "-B", "-m", "unittest"]
    assert subprocess.run(suite, cwd=host, capture_output=True, timeout=patient(60)).returncode == 0
    again = run_client(daemon, sys.executable, str(here / "tournament.py"), str(host))
    assert (again.returncode, again.stdout, again.stderr) == (1, "before: OK\n", "the project has nothing to fix\n")


# -- providers --------------------------------------------------------------------------------------------------------


async def test_a_daemon_with_the_plain_provider(place: Path, tmp_path: Path) -> None:
    """Of `plain_provider.py`: what it has no part for is refused. `tests/conformance` has the rest."""
    async with inside(str(tmp_path / "state"), opened=open_plain) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(str(place)), name="box")
        done = await daemon.call("sandbox.exec", sandbox_id="box", command=["cat", "file"])
        assert (done.exit_code, done.stdout) == (0, b"of the project\n")
        assert (await daemon.call("sandbox.stats")).sandboxes[0].memory_bytes is None
        for method, message in (
            ("sandbox.suspend", "the plain provider cannot suspend yet"),
            ("sandbox.fork", "the plain provider cannot fork yet"),
            ("snapshot.create", "the plain provider cannot make snapshots yet"),
            ("checkpoint.create", "the plain provider cannot save running processes"),
        ):
            refused = await refused_async("not_supported", daemon.call(method, sandbox_id="box"))
            assert message in refused.message
        sandbox = daemon.box()
        processes.kill_process(msgspec.convert(sandbox.handle["first"], processes.Identity))
        await daemon.core.settled(sandbox.sandbox_id, lambda: sandbox.status == "failed")
        await refused_async("not_ready", daemon.call("sandbox.resume", sandbox_id="box"))
        await daemon.call("sandbox.terminate", sandbox_id="box")
        assert await daemon.provider.found() == ([], [sandbox.requested.image_id])


ELSEWHERE = {"kubernetes": "test_kubernetes_examples.py"}
"""Examples that have a test file of their own."""


def test_every_example_is_run() -> None:
    here = Path(__file__).read_text()
    assert all(Path(__file__).with_name(name).exists() for name in ELSEWHERE.values())
    assert [name for name in os.listdir(EXAMPLES) if name not in here and not name.startswith("__")] == []
