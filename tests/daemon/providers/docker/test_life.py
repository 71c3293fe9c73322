"""The life of Docker sandboxes, on a real engine with a real daemon: stopped, killed, cut off from each other."""

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import PrivateEngine
from tests.support.expect import refused, until
from tests.support.patience import patient

from sandkeep.errors import SandkeepError

pytestmark = [pytest.mark.needs("docker"), pytest.mark.needs("busybox")]

PATIENCE_S = patient(60.0)
COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"


@pytest.fixture(scope="module")
def lasting() -> Iterator[PrivateEngine]:
    """An engine with `live-restore`."""
    yield from _engine(live_restore=True)


@pytest.fixture(scope="module")
def fragile() -> Iterator[PrivateEngine]:
    """An engine that takes its containers along."""
    yield from _engine(live_restore=False)


def _engine(*, live_restore: bool) -> Iterator[PrivateEngine]:
    engine = PrivateEngine(tempfile.mkdtemp(prefix="skt-life-"), live_restore=live_restore)
    engine.start()
    try:
        yield engine
    finally:
        engine.clear()


class World:
    """A daemon with an engine of its own, and a sandbox."""

    def __init__(self, daemon: Any, engine: PrivateEngine) -> None:
        self.daemon = daemon
        self.engine = engine
        daemon.env["DOCKER_HOST"] = engine.host
        daemon.start()
        with daemon.connect() as client:
            self.image = client.image.create(engine.busybox(), provider="docker").image_id

    def box(self, name: str = "box", **options: Any) -> str:
        with self.daemon.connect() as client:
            return str(client.sandbox.create(self.image, name=name, **options).sandbox_id)

    def id_of(self, box: str = "box") -> str:
        with self.daemon.connect() as client:
            return str(client.sandbox.get(box).sandbox_id)

    def status(self, box: str = "box") -> str:
        with self.daemon.connect() as client:
            return str(client.sandbox.get(box).status)

    def run(self, command: str, box: str = "box") -> str:
        with self.daemon.connect() as client:
            return bytes(client.sandbox.exec(box, command).stdout).decode()

    def launch(self, name: str, command: str, **options: Any) -> None:
        with self.daemon.connect() as client:
            client.process.launch("box", name=name, command=command, **options)
            if command == COUNT:
                client.process.read("box", name, wait_s=60)  # it has begun

    def count(self) -> None:
        """Start a process that writes and writes, and see that it does."""
        self.launch("count", COUNT)
        until(lambda: self.written("count") > 0)

    def wait(self, name: str) -> Any:
        with self.daemon.connect() as client:
            return client.process.wait("box", name, timeout_s=PATIENCE_S)

    def written(self, name: str) -> int:
        with self.daemon.connect() as client:
            return sum(len(piece.stdout) for piece in client.read_output("box", name, follow=False))

    def last(self, box: str = "box") -> Any:
        with self.daemon.connect() as client:
            return client.sandbox.history(box).events[-1]

    def types(self, box: str = "box") -> list[str]:
        with self.daemon.connect() as client:
            return [event.type for event in client.sandbox.history(box).events]

    def refused(self, code: str, work: Callable[[Any], Any]) -> str:
        with self.daemon.connect() as client:
            return refused(code, work, client).message

    def outside(self, what: str, box: str = "box") -> None:
        """Somebody else has the engine do something with the container."""
        status, body = self.engine.ask("POST", f"/containers/sandbox-{self.id_of(box)}/{what}")
        assert status < 300, body

    def cli(self, *words: str, **env: str) -> None:
        """Run a command of `sandkeep` that prints the sandbox's id."""
        sandbox_id = self.id_of(words[1])
        done = self.daemon.cli(*words, env=env)
        assert (done.returncode, done.stdout.decode()) == (0, f"{sandbox_id}\n"), done.stderr.decode()

    def until_status(self, status: str, box: str = "box") -> None:
        """Wait until a sandbox is that."""
        until(lambda: self.status(box) == status, seen=lambda: (self.last(box), self.types(box)))

    def nothing_left(self) -> None:
        """No container or volume of this daemon's is there."""
        with self.daemon.connect() as client:
            label = f"sandkeep.log={client.daemon.status().log_id}"
        until(lambda: not self.engine.containers(label), seen=lambda: self.engine.containers(label))


@pytest.fixture
def world(new_daemon: Callable[[], Any], lasting: PrivateEngine) -> Iterator[World]:
    yield from _world(new_daemon(), lasting)


@pytest.fixture
def frail(new_daemon: Callable[[], Any], fragile: PrivateEngine) -> Iterator[World]:
    yield from _world(new_daemon(), fragile)


def _world(daemon: Any, engine: PrivateEngine) -> Iterator[World]:
    try:
        yield World(daemon, engine)
    finally:
        if engine.process is None:
            engine.start()
        engine.send(signal.SIGCONT)


# -- suspended --------------------------------------------------------------------------------------------------------


def test_suspended_and_resumed_by_the_command_line(world: World) -> None:
    """Also across a daemon's death; and a time limit that passes meanwhile is kept afterwards."""
    world.box()
    world.count()
    world.launch("short", "sleep 1000", timeout_s=0.3)
    world.cli("suspend", "box")
    assert world.engine.container_of(world.id_of("box"))["State"]["Paused"]
    written = world.written("count")
    assert "is suspended: resume it" in world.refused("not_ready", lambda client: client.sandbox.exec("box", "true"))
    world.daemon.kill()
    world.daemon.start()
    until(lambda: _note(world) is None)
    assert (world.status(), world.written("count")) == ("suspended", written)
    world.cli("resume", "box")
    view = world.wait("short")
    assert (view.status, view.exit_code, view.timed_out) == ("exited", 124, True)
    until(lambda: world.written("count") > written)
    assert world.run("echo hi") == "hi\n"


def _note(world: World, box: str = "box") -> str | None:
    with world.daemon.connect() as client:
        note: str | None = client.sandbox.get(box).note
        return note


def test_paused_from_outside(world: World) -> None:
    world.box()
    world.outside("pause")
    world.until_status("suspended")
    assert (world.last().type, world.last().data["outside"]) == ("sandbox.suspended", True)
    world.outside("unpause")
    world.until_status("running")
    assert (world.last().type, world.last().data["outside"]) == ("sandbox.resumed", True)
    sandbox_id = world.id_of()
    world.daemon.kill()
    assert world.engine.ask("POST", f"/containers/sandbox-{sandbox_id}/pause")[0] < 300
    world.daemon.start()
    world.until_status("suspended")
    world.cli("rm", "box")
    world.nothing_left()


# -- ended by others --------------------------------------------------------------------------------------------------


def test_removed_from_outside(world: World) -> None:
    world.box()
    world.count()
    assert world.engine.ask("DELETE", f"/containers/sandbox-{world.id_of()}?force=1&v=1")[0] == 204
    world.until_status("lost")
    with world.daemon.connect() as client:
        assert "removed outside" in client.sandbox.get("box").error
    assert world.wait("count").status == "lost"
    assert world.written("count") > 0
    assert "its files with it" in world.refused("not_ready", lambda client: client.sandbox.resume("box"))
    assert world.status() == "lost"
    world.cli("rm", "box")
    world.nothing_left()


def test_stopped_from_outside_and_started_anew(world: World) -> None:
    world.box(secrets={"TOKEN": "first"})
    world.run("echo kept >/workspace/file")
    world.count()
    world.outside("stop?t=0")
    world.until_status("failed")
    assert world.wait("count").status == "lost"
    assert b"[secret_missing]" in world.daemon.cli("resume", "box").stderr
    world.cli("resume", "box", "--secret", "TOKEN", TOKEN="second")
    assert world.run("cat /workspace/file; echo $TOKEN") == "kept\nsecond\n"
    assert world.written("count") > 0
    assert "second" not in str(world.engine.container_of(world.id_of("box")))
    world.outside("restart?t=0")  # that it runs then is nobody's order
    world.until_status("failed")
    world.cli("rm", "box")
    world.nothing_left()


# -- engines that hang, stop, and come again --------------------------------------------------------------------------


def everything_else_works(world: World) -> None:
    """What needs no engine: with a sandbox in which `count` runs."""
    assert world.run("echo hi") == "hi\n"
    before = world.written("count")
    until(lambda: world.written("count") > before)
    with world.daemon.connect() as client:
        client.sandbox.write_file("box", path="/workspace/file", data=b"content")
        assert client.sandbox.read_file("box", path="/workspace/file").data == b"content"
        client.process.launch("box", name=None, command="exit 3")
        assert client.process.get("box", "count").status == "running"


def told_at_once(world: World, box: str) -> None:
    """What needs an engine is refused, and an end is ordered."""
    world.refused("provider_unavailable", lambda client: client.sandbox.suspend("box"))
    world.refused("provider_unavailable", lambda client: client.sandbox.create(world.image, name="new"))
    assert world.status("new") == "failed"
    for _ in range(2):
        message = world.refused("provider_unavailable", lambda client: client.sandbox.terminate(box))
        assert "the termination of sandbox doomed is on record" in message
    assert (world.status(box), _note(world, box)) == ("stopping", message)
    with world.daemon.connect() as client:
        found = {provider.provider: provider.works for provider in client.daemon.capabilities().providers}
    assert found["docker"] is False


def test_an_engine_that_hangs(world: World) -> None:
    world.box()
    world.box("doomed")
    world.count()
    world.engine.send(signal.SIGSTOP)
    told_at_once(world, "doomed")
    everything_else_works(world)
    world.engine.send(signal.SIGCONT)
    world.until_status("stopped", "doomed")
    world.cli("suspend", "box")
    world.cli("rm", "box")
    world.nothing_left()


@pytest.mark.soak
@pytest.mark.parametrize("delay_s", [0.02, 0.1, 0.2])
def test_an_engine_that_hangs_while_a_sandbox_is_made(world: World, delay_s: float) -> None:
    """Nobody waits for what it may do later, and nothing stays of it."""
    told: list[str] = []

    def create() -> None:
        try:
            world.box("half")
            told.append("half")
        except SandkeepError as error:
            told.append(error.code)

    making = threading.Thread(target=create)
    making.start()
    time.sleep(delay_s)  # whatever it is doing then
    world.engine.send(signal.SIGSTOP)
    making.join(PATIENCE_S)
    assert told in (["half"], ["provider_unavailable"])
    world.engine.send(signal.SIGCONT)
    if told == ["half"]:
        assert world.run("echo hi", "half") == "hi\n"
        world.cli("rm", "half")
    else:
        until(lambda: not list(Path(world.daemon.state_dir).glob("sandboxes/*/in")))
    world.nothing_left()


def test_an_engine_that_is_restarted_under_sandboxes_that_stay(world: World) -> None:
    """And a daemon that dies and comes again meanwhile."""
    for box in ("box", "doomed", "still"):
        world.box(box)
    world.count()
    world.cli("suspend", "still")
    world.engine.stop()
    everything_else_works(world)
    told_at_once(world, "doomed")
    world.daemon.kill()
    world.daemon.start()
    everything_else_works(world)
    world.refused("provider_unavailable", lambda client: client.sandbox.resume("still"))
    assert world.status("still") == "suspended"
    world.refused("provider_unavailable", lambda client: client.sandbox.terminate("still"))
    world.engine.start()
    for box in ("doomed", "still"):
        world.until_status("stopped", box)
    everything_else_works(world)
    assert "sandbox.lost" not in world.types()
    world.outside("pause")
    world.until_status("suspended")
    world.cli("resume", "box")
    world.engine.stop(signal.SIGKILL)
    everything_else_works(world)
    world.engine.start()
    world.cli("suspend", "box")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.soak)])
def test_an_engine_that_takes_its_containers_along(frail: World, number: int) -> None:
    frail.box()
    frail.count()
    frail.run("echo kept >/workspace/file")
    frail.engine.stop(number)
    if number == signal.SIGTERM:
        frail.until_status("lost")
        frail.refused("provider_unavailable", lambda client: client.sandbox.resume("box"))
        assert frail.status() == "lost"
    frail.engine.start()
    frail.until_status("lost")
    frail.cli("resume", "box")
    assert frail.run("cat /workspace/file") == "kept\n"
    assert frail.wait("count").status == "lost"
    assert frail.written("count") > 0
    frail.cli("rm", "box")
    frail.nothing_left()


@pytest.mark.soak
@pytest.mark.parametrize("first", ["engine", "daemon"])
def test_both_down_and_up(world: World, first: str) -> None:
    world.box()
    world.count()
    world.daemon.kill()
    world.engine.stop()
    _start_both(world, first)
    everything_else_works(world)
    world.cli("suspend", "box")


@pytest.mark.soak
@pytest.mark.parametrize("first", ["engine", "daemon"])
def test_both_down_and_up_and_the_containers_gone(frail: World, first: str) -> None:
    frail.box()
    frail.run("echo kept >/workspace/file")
    frail.daemon.kill()
    frail.engine.stop()
    _start_both(frail, first)
    frail.until_status("lost")
    frail.cli("resume", "box")
    assert frail.run("cat /workspace/file") == "kept\n"


def _start_both(world: World, first: str) -> None:
    for each in (first, "daemon" if first == "engine" else "engine"):
        world.engine.start() if each == "engine" else world.daemon.start()


# -- names ------------------------------------------------------------------------------------------------------------


def make(world: World, name: str, labels: dict[str, str], command: str = "sleep 1000") -> str:
    """A container that is not made by Sandkeep, running."""
    body = {"Image": world.engine.busybox(), "Cmd": ["sh", "-c", command], "Labels": labels}
    status, answer = world.engine.ask("POST", f"/containers/create?name={name}", body)
    assert status == 201, answer
    status, answer = world.engine.ask("POST", f"/containers/{name}/start")
    assert status == 204, answer
    return name


def test_a_name_that_is_somebody_elses(world: World) -> None:
    """A container is called by its sandbox's id, so that no name that a caller chooses meets another container."""
    make(world, "sandbox-taken", {})
    try:
        made = world.box("taken")
        assert world.engine.container_of(made)["State"]["Running"]
        world.cli("rm", "taken")
        assert world.engine.container_of("taken")["State"]["Running"]
    finally:
        world.engine.ask("DELETE", "/containers/sandbox-taken?force=1")
