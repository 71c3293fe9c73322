"""The daemon is killed at random moments while clients have it work. They see a pause, and nothing else."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.crash.story import Story, check, events_of
from tests.support.patience import patient
from tests.support.soak import times

from sandkeep.errors import StateError

pytestmark = pytest.mark.needs("bwrap")

KILLS, KILLS_SOAK = 25, times(1000)
PATIENCE_S = patient(300.0)
CLIENTS = 3
LONGEST_LIFE_S = 0.4
LINES = b"".join(b"%d\n" % number for number in range(100))
COUNT = "i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); done; exit 5"


class Load:
    """A client's thread. `made` are the sandboxes that it was told of, `failure` what it did not expect."""

    def __init__(self, daemon: RunningDaemon, image: str, going: Callable[[], bool]) -> None:
        self.made: list[str] = []
        self.failure: BaseException | None = None
        self._image, self._going = image, going
        # Now, as nobody waits for a daemon that he has never met; and with patience for one call over many lives.
        self._client = daemon.connect(patience_s=PATIENCE_S)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._client as client:
                while self._going():
                    self._once(client)
        except BaseException as failure:  # it is raised in the test
            self.failure = failure

    def _once(self, client: Any) -> None:
        box = client.sandbox.create(self._image).sandbox_id
        self.made.append(box)
        client.process.launch(box, name="count", command=COUNT)
        client.process.launch(box, name="cat", command=["cat"], stdin=True)
        doubted = b""
        for turn in range(3):
            doubted += self._type(client, box, b"%d\n" % turn, eof=turn == 2)
            done = client.sandbox.exec(box, f"echo {turn} >>ran; echo out; echo err >&2; exit {turn}")
            assert (done.exit_code, done.stdout, done.stderr) == (turn, b"out\n", b"err\n")
        assert client.process.wait(box, "count").exit_code == 5
        assert client.process.wait(box, "cat").exit_code == 0
        assert b"".join(piece.stdout for piece in client.read_output(box, "count")) == LINES
        typed = b"".join(piece.stdout for piece in client.read_output(box, "cat"))
        assert without(typed, doubted) == without(b"0\n1\n2\n", doubted)
        assert len(set(typed.split())) == len(typed.split())  # nothing twice
        assert client.sandbox.read_file(box, path="ran").data == b"0\n1\n2\n"
        client.sandbox.terminate(box)

    def _type(self, client: Any, box: str, line: bytes, *, eof: bool) -> bytes:
        """Write a line, and answer it if it is in doubt: a daemon that died in the microseconds between writing it and
        putting that down says so, and writes it no second time.
        """
        try:
            client.process.write_stdin(box, name="cat", data=line, eof=eof)
        except StateError as error:
            if "uncertain_bytes" not in error.data:
                raise
            if eof:
                with suppress(StateError):  # it may have ended
                    self._type(client, box, b"", eof=True)
            return line
        return b""


def without(text: bytes, lines: bytes) -> list[bytes]:
    """The lines of a text but for some."""
    return [line for line in text.split() if line not in lines.split()]


def under_fire(daemon: RunningDaemon, source: Path, kills: int) -> None:
    """Have clients work, and kill the daemon that often."""
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    print(f"seed {seed}")
    daemon.start()
    with daemon.connect() as client:
        image = client.image.create(str(source)).image_id
    going = threading.Event()
    loads = [Load(daemon, image, lambda: not going.is_set()) for _ in range(CLIENTS)]
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0, LONGEST_LIFE_S))
            daemon.kill()
            daemon.start()
            assert [load.failure for load in loads if load.failure] == []
    finally:
        going.set()
        for load in loads:
            load.thread.join(patient(60))
    assert [load.failure for load in loads if load.failure] == []
    assert [load for load in loads if not load.made] == []
    with daemon.connect() as client:
        client.image.remove(image)
    daemon.stop()
    check(Story(daemon))
    created = {fact.stream for fact in events_of(daemon.state_dir) if fact.type == "sandbox.created"}
    assert {box for load in loads for box in load.made} == created


@pytest.fixture
def daemon(new_daemon: Callable[[], RunningDaemon]) -> RunningDaemon:
    return new_daemon()


@pytest.mark.parametrize("kills", [KILLS, pytest.param(KILLS_SOAK, marks=pytest.mark.soak)])
def test_killed_at_any_moment(daemon: RunningDaemon, tmp_path: Path, kills: int) -> None:
    under_fire(daemon, tmp_path, kills)
