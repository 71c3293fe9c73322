"""Starts that meet trouble: many at one instant, and ends in the middle of taking over what runs."""

import contextlib
import fcntl
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import RunningDaemon
from tests.crash.story import Story, check, events_of
from tests.support import template
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.soak import times

from sandkeep.errors import StateError
from sandkeepd.api.listener import listening

pytestmark = pytest.mark.needs("bwrap")

AT_ONCE, TURNS = 5, 100
ROUNDS, ROUNDS_SOAK = 3, times(60)
BOXES, PROCESSES = 8, 3
DEATHS, DEATHS_SOAK = 6, times(300)
LATEST_S = 0.3
"""How long after its start a daemon may live: about as long as it takes until all is adopted."""


@pytest.fixture
def daemon(new_daemon: Callable[[], RunningDaemon]) -> RunningDaemon:
    return new_daemon()


# -- at one instant ---------------------------------------------------------------------------------------------------


def test_exactly_one_of_many_starts(daemon: RunningDaemon) -> None:
    start_many(daemon, ROUNDS)


@pytest.mark.soak
def test_exactly_one_of_many_starts_each_time(daemon: RunningDaemon) -> None:
    start_many(daemon, ROUNDS_SOAK)


def start_many(daemon: RunningDaemon, rounds: int) -> None:
    """Begin daemons at one instant: on nothing, then each time on what the last left that was killed. One wins, and
    answers where it should; the others say why they do not, and harm nothing.
    """
    gate = f"{daemon.root}/gate"
    for number in range(rounds):
        one_state = number % 2 == 0  # else each has its own, and all want the one socket
        with open(gate, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            racers = [begin(daemon, gate, "" if one_state or not racer else str(racer)) for racer in range(AT_ONCE)]
        (winner,) = until(lambda racers=racers: settled(racers))  # type: ignore[misc]
        with daemon.connect() as client:
            assert client.daemon.status().pid == winner.process.pid
        for racer in racers:
            if racer is not winner:
                said = racer.said()
                assert racer.process.wait(patient(60)) == 1
                assert "another daemon uses" in said or "already listening" in said, said
                assert len(said.strip().splitlines()) == 1
        with daemon.connect() as client:  # also after they have cleared up
            assert client.daemon.status().pid == winner.process.pid
        winner.process.send_signal(signal.SIGKILL)
        winner.process.wait(patient(60))
        assert os.path.exists(daemon.socket)
    daemon.start()
    daemon.stop()
    assert not os.path.exists(daemon.socket)
    assert [name for name in os.listdir(daemon.root) if name.startswith("sock")] == []
    started = [fact for fact in events_of(daemon.state_dir) if fact.type == "daemon.started"]
    assert rounds // 2 < len(started) <= rounds + 1


@dataclass
class Racer:
    """A daemon that begins with others, and what it says."""

    process: template.Forked
    log: str

    def said(self) -> str:
        return Path(self.log).read_text()


def begin(daemon: RunningDaemon, gate: str, suffix: str) -> Racer:
    """A daemon that has imported what it needs, and goes on when nobody has the gate's lock for itself."""
    code = (
        f"import fcntl; gate = open({gate!r}); fcntl.flock(gate, fcntl.LOCK_SH); import sandkeepd.main as m; m.main()"
    )
    env = {**daemon.env, "SANDKEEP_STATE_DIR": daemon.state_dir + suffix, "SANDKEEP_LOG_LEVEL": "error"}
    with tempfile.NamedTemporaryFile(dir=daemon.root, prefix="racer-", delete=False) as log:
        process = template.start([sys.executable, "-c", code], log.fileno(), log.fileno(), env)
    return Racer(process, log.name)


def settled(racers: list[Racer]) -> list[Racer]:
    """The one that runs, once all others have ended."""
    running = [racer for racer in racers if racer.process.poll() is None]
    assert running, [racer.said() for racer in racers]
    return running if len(running) == 1 else []


def test_one_of_many_gets_a_stale_socket(places: str) -> None:
    """The same, closer: nobody takes away the socket that another has just made."""
    with tempfile.TemporaryDirectory(dir=places) as root:
        path, turn = f"{root}/sock", threading.Barrier(AT_ONCE)
        stale(path)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for _ in range(TURNS):
                won = [racer.result() for racer in [threads.submit(listen, path, turn) for _ in range(AT_ONCE)]]
                assert won.count(True) == 1
                stale(path)
        os.unlink(path)
        assert os.listdir(root) == []


def stale(path: str) -> None:
    """Leave a socket there on which nobody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(path)


def listen(path: str, turn: threading.Barrier) -> bool:
    """Whether this thread's socket is the one at `path`, once all have tried."""
    turn.wait()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(listening(path))
        except StateError:
            won = False
        else:
            won = True
        turn.wait()
        if won:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.connect(path)
        turn.wait()
    return won


# -- in the middle ----------------------------------------------------------------------------------------------------


def test_ended_again_and_again_while_it_adopts(daemon: RunningDaemon, tmp_path: Path) -> None:
    end_early(daemon, tmp_path, DEATHS)


@pytest.mark.soak
def test_ended_a_thousand_times_while_it_adopts(daemon: RunningDaemon, tmp_path: Path) -> None:
    end_early(daemon, tmp_path, DEATHS_SOAK)


def end_early(daemon: RunningDaemon, source: Path, deaths: int) -> None:
    """Kill the daemon, or stop it in good order, at any moment of its start; in the end nothing is lost or doubled."""
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    print(f"seed {seed}")
    story = Story(daemon)
    daemon.start()
    boxes = [story.ask("sandbox.create", image(story, source)).sandbox_id for _ in range(BOXES)]
    for box in boxes:
        for number in range(PROCESSES):
            story.ask("process.launch", box, name=f"p{number}", command=["cat"], stdin=True)
        story.ask("process.launch", box, name="ends", command="while [ ! -e go ]; do sleep 0.02; done; exit 4")
    daemon.kill()
    for _ in range(deaths):
        begun = spawn(daemon)
        time.sleep(chance.uniform(0, LATEST_S))
        begun.send_signal(chance.choice((signal.SIGKILL, signal.SIGTERM)))
        assert begun.wait(patient(30)) in (0, -signal.SIGKILL, -signal.SIGTERM), daemon.said()
    daemon.start()
    acknowledged, story = story.acknowledged, Story(daemon)  # whose patience begins now
    story.acknowledged = acknowledged
    for box in boxes:
        assert story.ask("sandbox.exec", box, "touch go").exit_code == 0
        assert story.look(lambda client, box=box: client.process.wait(box, "ends")).exit_code == 4
        for number in range(PROCESSES):
            story.ask("process.write_stdin", box, name=f"p{number}", data=b"%d\n" % number, eof=True)
        for number in range(PROCESSES):
            assert story.look(lambda client, box=box, n=number: client.process.wait(box, f"p{n}")).exit_code == 0
            assert story.output(box, f"p{number}") == b"%d\n" % number
        story.ask("sandbox.terminate", box)
    story.ask("image.remove", story.look(lambda client: client.image.list().images[0].image_id))
    story.stop()
    check(story)
    facts = events_of(daemon.state_dir)
    assert not [fact for fact in facts if fact.type in ("sandbox.lost", "process.lost", "sandbox.failed")]
    assert "Traceback" not in daemon.said()


def image(story: Story, source: Path) -> str:
    return str(story.ask("image.create", str(source)).image_id)


def spawn(daemon: RunningDaemon) -> template.Forked:
    with open(daemon.log, "ab") as log:
        return template.start(daemon.program, log.fileno(), log.fileno(), daemon.env)
