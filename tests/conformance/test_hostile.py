"""Enemies inside: whatever one does, it hurts its own sandbox only, that can always be ended, and nothing is left.

All in one real daemon: a neighbour is served while each does its worst, and others wait for it, read from it and write
to it. See `tests.hostile` for the enemies.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.boxes import at_most, until
from tests.hostile import ENEMIES, LIMITS, Burden, Enemy, remains

from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("bwrap")

MEMORY_BUDGET = 48 << 20
"""How much more memory than without it one enemy may cost the daemon, with all who read from it."""

SECRET = b"of the host\n"


class House:
    """The daemon, an image, and a neighbour with a process that runs."""

    def __init__(self, daemon: Any, client: Any, source: str) -> None:
        self.daemon = daemon
        self.client = client
        self.image = client.image.create(source).image_id
        self.neighbour = client.sandbox.create(self.image).sandbox_id
        client.process.launch(self.neighbour, name="steady", command="echo up; exec sleep 1000")
        self.canary = os.path.join(daemon.root, "canary")
        with open(self.canary, "wb") as file:
            file.write(SECRET)

    def check_neighbour(self) -> None:
        """The other sandbox does what is asked of it."""
        done = self.client.sandbox.exec(self.neighbour, command="echo fine")
        assert (done.exit_code, done.stdout) == (0, b"fine\n")
        assert self.client.process.read(self.neighbour, "steady").stdout == b"up\n"
        assert self.client.process.get(self.neighbour, "steady").status == "running"


@pytest.fixture(scope="module")
def house(shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    source = tmp_path_factory.mktemp("source")
    (source / "file").write_text("from the image\n")
    with shared_daemon.connect() as client:
        made = House(shared_daemon, client, str(source))
        made.check_neighbour()
        yield made
        client.sandbox.terminate(made.neighbour)


class Dealings:
    """What others have to do with an enemy's sandbox at the same time, each with a client of their own."""

    def __init__(self, house: House, box: str, pool: ThreadPoolExecutor) -> None:
        self._house = house
        self._box = box
        self._pool = pool
        self.begun: list[Future[Any]] = []

    def begin(self, work: Callable[[Any, str], Any]) -> None:
        self.begun.append(self._pool.submit(self._deal, work))

    def _deal(self, work: Callable[[Any, str], Any]) -> Any:
        with self._house.daemon.connect() as client:
            try:
                return work(client, self._box)
            except SandkeepError as error:
                return error

    def results(self) -> list[Any]:
        """What became of all of it, by now."""
        return [future.result(30) for future in self.begun]


def follow(client: Any, box: str) -> bytes:
    """Everything that the enemy writes, as it comes; of very much the beginning."""
    found = bytearray()
    for piece in client.read_output(box, "enemy", follow=True):
        found += piece.stdout[: 1 << 20] + piece.stderr[: 1 << 20]
        if len(found) > 4 << 20:
            break
    return bytes(found)


def take_journals(client: Any, box: str) -> bytes:
    """Both journals as descriptors. What is no file is not handed out."""
    with client.with_descriptors("process.open_output", box, "enemy") as call:
        descriptors = call.receive()
        call.answer()
    try:
        return b"".join(os.pread(fd, 1 << 16, 0) for fd in descriptors)  # nothing that could be waited for
    finally:
        for fd in descriptors:
            os.close(fd)


def words(answer: Any) -> bytes:
    """All bytes of an answer that came from the sandbox."""
    if isinstance(answer, bytes):
        return answer
    if isinstance(answer, SandkeepError):
        return str(answer).encode()
    return b"".join(getattr(answer, name, b"") or b"" for name in ("stdout", "stderr", "data"))


@contextmanager
def fought(house: House, enemy: Enemy) -> Iterator[tuple[str, Dealings]]:
    """The enemy at work, with those who have to do with it. It is ended after the block, and looked after."""
    burden = Burden(house.daemon.process.pid)
    made = house.client.sandbox.create(house.image, **{**LIMITS, **enemy.options})
    box, uid = made.sandbox_id, made.isolation.host_uid
    with ThreadPoolExecutor(8) as pool:
        dealings = Dealings(house, box, pool)
        try:
            env = {"CANARY": house.canary}
            house.client.process.launch(box, name="enemy", command=enemy.program, env=env, stdin=True)
            place = f"{house.daemon.state_dir}/sandboxes/{box}/out/p"
            dealings.begin(follow)
            dealings.begin(lambda client, box: client.process.wait(box, "enemy"))
            os.close(os.open(f"{place}/go", os.O_CREAT | os.O_EXCL))
            until(lambda: os.path.lexists(f"{place}/busy"), 20)
            yield box, dealings
        finally:
            with at_most(60):
                ended = house.client.sandbox.terminate(box)
    with at_most(60):
        answers = dealings.results()
    assert ended.status in ("stopped", "failed")
    assert not any(SECRET in words(answer) for answer in answers), answers
    assert remains(house.daemon.state_dir, box, uid) == []
    until(lambda: not burden.more_descriptors(), 10)
    assert burden.bytes_more() < MEMORY_BUDGET


@pytest.mark.parametrize("enemy", ENEMIES, ids=lambda enemy: enemy.name.replace(" ", "-"))
def test_an_enemy_hurts_itself_only(house: House, enemy: Enemy) -> None:
    if enemy.is_snake and not shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin"):
        pytest.skip("there is no python3 that sandboxes see")
    with fought(house, enemy) as (box, dealings):
        dealings.begin(lambda client, box: client.sandbox.exec(box, command="echo one; echo two >&2"))
        dealings.begin(lambda client, box: client.sandbox.read_file(box, path="file", max_bytes=1000))
        dealings.begin(lambda client, box: client.sandbox.list_dir(box, path="/run/sandkeep/out/p", limit=100))
        dealings.begin(lambda client, box: client.process.write_stdin(box, "enemy", data=b"x" * 200_000))
        with at_most(60):
            house.check_neighbour()
            for _ in range(5):
                for look in (take_journals, lambda client, box: client.process.read(box, "enemy", max_bytes=1 << 16)):
                    answer = dealings._deal(look)
                    assert SECRET not in words(answer)
            assert house.client.sandbox.get(box).sandbox_id == box
            house.check_neighbour()
