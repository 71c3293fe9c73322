"""A daemon, a neighbour that is served, and hostile programs let loose beside it, in sandboxes of one provider."""

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.support.boxes import at_most
from tests.support.expect import until
from tests.support.hostile import Burden, Enemy, Traces, keeper_of_pod, remains, traces_of
from tests.support.kubernetes.images import TOOLS
from tests.support.patience import patient

from sandkeep.errors import SandkeepError
from sandkeepd.providers.common.inside import INSIDE
from sandkeepd.providers.docker.engine import AT_ONCE
from sandkeepd.providers.kubernetes.manifests import DIRECTORY

MEMORY_BUDGET = 48 << 20
"""How much more memory than without it one enemy may cost the daemon, with all who read from it."""

SECRET = b"of the host\n"

LIMITS: dict[str, dict[str, Any]] = {
    "local": {"pids": 48, "disk_bytes": 32 << 20},
    "docker": {"pids": 48, "disk_bytes": 32 << 20},
    "gvisor": {"memory_bytes": 192 << 20},  # whose own threads would count as processes
    "kubernetes": {},  # our double of a cluster enforces none
}


class House:
    """The daemon, an image, and a neighbour with a process that runs. `user` is whose the enemies are, inside."""

    def __init__(
        self, daemon: Any, client: Any, kind: str = "local", engine: Any = None, user: str | None = None
    ) -> None:
        self.daemon = daemon
        self.client = client
        self.kind = kind
        self.engine = engine
        self.user = {} if user is None else {"user": user}
        self.image = self._image()
        self.neighbour = client.sandbox.create(self.image, **self.user).sandbox_id
        client.process.launch(self.neighbour, name="steady", command="echo up; exec sleep 1000")
        self.check_neighbour()
        self.began = Burden(daemon.process.pid)
        self.canary = os.path.join(daemon.root, "canary")
        with open(self.canary, "wb") as file:
            file.write(SECRET)

    def _image(self) -> str:
        if self.kind == "kubernetes":
            return str(self.client.image.create(TOOLS, provider=self.kind).image_id)
        source = tempfile.mkdtemp(dir=self.daemon.root)
        os.chmod(source, 0o755)
        with open(f"{source}/file", "w") as file:
            file.write("from the image\n")
        base = {"base": self.engine.hostile()} if self.kind == "docker" else {}
        return str(self.client.image.create(source, provider=self.kind, **base).image_id)

    def let_loose(self, enemy: Enemy, **options: Any) -> "Box":
        """Start an enemy in a sandbox of its own. It waits for `go`."""
        given = {**LIMITS[self.kind], **self.user, **options, **enemy.options}
        made = self.client.sandbox.create(self.image, **given)
        how: dict[str, Any] = {"tty": True} if enemy.tty else {"stdin": True}
        env = {"CANARY": self.canary}
        program = [word.replace(INSIDE, DIRECTORY) if self.kind == "kubernetes" else word for word in enemy.program]
        self.client.process.launch(made.sandbox_id, name="enemy", command=program, env=env, **how)
        uid = made.isolation.host_uid if self.kind == "local" else None
        return Box(made.sandbox_id, traces_of(made.sandbox_id, uid if uid != os.geteuid() else None))

    def go(self, box: str) -> None:
        """Let it begin, and wait until the harm is being done."""
        place = f"/proc/{self.daemon.process.pid}/root{self.daemon.state_dir}/sandboxes/{box}/out/p"  # disks, too
        if self.kind == "kubernetes":  # the nodes of our double are this machine
            place = f"/proc/{keeper_of_pod(box)}/root{DIRECTORY}/out/p"
        os.close(os.open(f"{place}/go", os.O_CREAT | os.O_EXCL))
        until(lambda: os.path.lexists(f"{place}/busy"))

    def check_neighbour(self) -> None:
        """The other sandbox does what is asked of it."""
        done = self.client.sandbox.exec(self.neighbour, command="echo fine")
        assert (done.exit_code, done.stdout) == (0, b"fine\n")
        assert self.client.process.read(self.neighbour, "steady", wait_s=30).stdout == b"up\n"
        assert self.client.process.get(self.neighbour, "steady").status == "running"

    def more_descriptors(self) -> list[str]:
        """What the daemon has open since this began. Its connections to an engine come and go, a few at a time."""
        more = self.began.more_descriptors()
        if (self.engine is None and self.kind != "kubernetes") or self.began.more_sockets() > AT_ONCE:
            return more
        return [what for what in more if not what.startswith("socket:")]

    def check_gone(self, box: "Box") -> None:
        """Nothing is left of an enemy's sandbox that has ended."""

        def left() -> list[str]:
            return remains(self.daemon.state_dir, box.id, box.traces, self.engine)

        if self.kind == "kubernetes":  # a node reaps what ran in a pod after it has said that the pod is gone
            until(lambda: not left())
        assert not left(), left()

    def end_all(self, boxes: "list[Box]") -> None:
        """End them all at once, and see that nothing is left."""

        def end(box: Box) -> Any:
            with self.daemon.connect() as client:
                return client.sandbox.terminate(box.id).status

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(end, boxes)) <= {"stopped", "failed"}
        for box in boxes:
            self.check_gone(box)


class Box(NamedTuple):
    """An enemy's sandbox."""

    id: str
    traces: Traces


class Dealings:
    """Dealings of others with an enemy's sandbox at the same time, each with a client of their own."""

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
        return [future.result(patient(30)) for future in self.begun]


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
    loose = house.let_loose(enemy)
    box = loose.id
    with ThreadPoolExecutor(8) as pool:
        dealings = Dealings(house, box, pool)
        try:
            dealings.begin(follow)
            dealings.begin(lambda client, box: client.process.wait(box, "enemy"))
            house.go(box)
            yield box, dealings
        finally:
            with at_most(60):
                ended = house.client.sandbox.terminate(box)
    with at_most(60):
        answers = dealings.results()
    assert ended.status in ("stopped", "failed")
    assert not any(SECRET in words(answer) for answer in answers), answers
    house.check_gone(loose)
    try:
        until(lambda: not house.more_descriptors())
    except AssertionError:
        left = house.more_descriptors()
        assert not left, left
    assert burden.bytes_more() < MEMORY_BUDGET


def attack(house: House, enemy: Enemy) -> None:
    """Run an enemy while others deal with it, and see that the neighbour is served."""
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
