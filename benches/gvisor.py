"""gVisor sandboxes through a real daemon, beside `runsc` by hand on the same files, in turns with it.

Where memory is saved, a Python process holds it, of random bytes: nothing of that can be left out.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from benches import fair
from benches.daemon import daemon, seconds
from benches.pack import row
from benches.runsc import Raw, raw
from benches.snapshots import at_most
from benches.table import Row, show

from sandkeepd.providers.gvisor import runsc

CREATES = 15
EXECS = 40
ROUNDS = {1: 7, 64: 7, 256: 9}
"""How often a process is saved that holds so many MB."""

SETTLE_S = 0.3
"""How long is waited before anything is measured: the end of a kernel that had much memory takes a while."""

MANY, MANY_ROUNDS = 8, 4
KEPT, KEPT_ROUNDS = (1, 10, 50), 5
HOLD = """import os, sys, time
held = [os.urandom(1 << 20) for _ in range(int(sys.argv[1]))]
print("ready", flush=True)
time.sleep(1e6)"""


class Held:
    """A sandbox of ours whose process holds memory, that is saved and brought back again and again."""

    def __init__(self, client: Any, image_id: str, megabytes: int) -> None:
        self._client = client
        self.box = client.sandbox.create(image_id, provider="gvisor").sandbox_id
        client.process.launch(self.box, ["python3", "-c", HOLD, str(megabytes)], name="holder")
        next(client.read_output(self.box, "holder"))

    def stood_still(self) -> float:
        """How long it stands still for a checkpoint."""
        made = self._client.checkpoint.create(self.box, leave_running=True)
        self._client.checkpoint.delete(made.checkpoint_id)
        return float(made.pause_ms / 1e3)

    def save(self) -> float:
        begun = seconds(self._save)
        self._client.sandbox.terminate(self.box)
        return begun

    def _save(self) -> None:
        self.checkpoint = self._client.checkpoint.create(self.box)

    def restore(self, count: int = 1) -> float:
        return seconds(lambda: self._bring_back(count))

    def _bring_back(self, count: int) -> None:
        made = self._client.checkpoint.restore(self.checkpoint.checkpoint_id, count=count)
        self.made = [sandbox.sandbox_id for sandbox in made.sandboxes]
        self.box = self.made[0]

    def forget(self) -> None:
        self._client.checkpoint.delete(self.checkpoint.checkpoint_id)

    def end(self) -> None:
        for box in self.made:
            self._client.sandbox.terminate(box)


class HeldRaw:
    """The same by hand."""

    def __init__(self, by_hand: Raw, root: str, megabytes: int) -> None:
        self._by_hand = by_hand
        self._place = by_hand.bundle(["python3", "-c", HOLD, str(megabytes)])
        self._image = f"{root}/saved-{megabytes}"
        self.made = [by_hand.start(self._place)]

    def save(self) -> float:
        return self._by_hand.checkpoint(self.made[0], self._image)

    def restore(self, count: int = 1) -> float:
        took, self.made = self._by_hand.restore(self._place, self._image, count)
        return took

    def forget(self) -> None:
        subprocess.run(["rm", "-r", self._image], check=True)

    def end(self) -> None:
        for container in self.made:
            self._by_hand.delete(container)


def in_turn(first: bool, mine: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]:
    """What both answer; what came before does not come to the disk meanwhile, nor has a kernel its end then."""
    took = {}
    for work in (mine, floor) if first else (floor, mine):
        os.sync()
        time.sleep(SETTLE_S)
        took[work] = work()
    return took[mine], took[floor]


# -- what starts ------------------------------------------------------------------------------------------------------


def create_row(client: Any, image_id: str, by_hand: Raw) -> Row:
    """From nothing to the first output. The first of each does not count: a daemon loads what it needs for that."""
    place = by_hand.bundle(["sh", "-c", "echo hello"])
    pairs = []
    for turn in range(CREATES + 1):
        boxes: list[str] = []

        def mine(boxes: list[str] = boxes) -> float:
            return seconds(lambda: boxes.append(created(client, image_id)))

        pairs.append(in_turn(turn % 2 == 0, mine, lambda: by_hand.first_output(place)))
        client.sandbox.terminate(boxes[0])
    return row("gVisor: a new sandbox, to the first output", "runsc run", pairs[1:], *at_most(1.2))


def created(client: Any, image_id: str) -> str:
    box: str = client.sandbox.create(image_id, provider="gvisor").sandbox_id
    assert client.sandbox.exec(box, ["sh", "-c", "echo hello"]).stdout == b"hello\n"
    return box


def exec_row(client: Any, image_id: str, by_hand: Raw) -> Row:
    box = client.sandbox.create(image_id, provider="gvisor").sandbox_id
    container = by_hand.start(by_hand.bundle(["sh", "-c", "echo ready; exec sleep 1000"]))
    pairs = [
        (seconds(lambda: client.sandbox.exec(box, ["/bin/true"])), by_hand.exec(container, "/bin/true"))
        for _ in range(EXECS)
    ]
    client.sandbox.terminate(box)
    by_hand.delete(container)
    return row("gVisor: sandbox.exec /bin/true", "runsc exec", pairs, *at_most(0.6))


# -- what is saved ----------------------------------------------------------------------------------------------------


def saving_rows(client: Any, image_id: str, by_hand: Raw, root: str, megabytes: int) -> Iterator[Row]:
    """Saved and brought back, each time in another sandbox."""
    ours, bare = Held(client, image_id, megabytes), HeldRaw(by_hand, root, megabytes)
    pauses, saves, restores = [], [], []
    for turn in range(ROUNDS[megabytes]):
        os.sync()
        pause = ours.stood_still()
        saves.append(in_turn(turn % 2 == 0, ours.save, bare.save))
        restores.append(in_turn(turn % 2 == 0, ours.restore, bare.restore))
        pauses.append((pause, saves[-1][1] + restores[-1][1]))
        ours.forget()
        bare.forget()
    ours.end()
    bare.end()
    what = f"{megabytes} MB held"
    yield row(f"gVisor: checkpoint, {what}", "runsc checkpoint", saves, *at_most(1.25))
    yield row(f"gVisor: restore into a new sandbox, {what}", "runsc restore", restores, *at_most(1.25))
    both = "runsc checkpoint and restore"
    yield row(f"gVisor: pause of a checkpoint that leaves it running, {what}", both, pauses, *at_most(1.25))


def many_row(client: Any, image_id: str, by_hand: Raw, root: str) -> Row:
    ours, bare = Held(client, image_id, 1), HeldRaw(by_hand, root, 1)
    ours.save()
    bare.save()
    pairs = []
    for turn in range(MANY_ROUNDS):
        works = [lambda: ours.restore(MANY), lambda: bare.restore(MANY)]
        pairs.append(in_turn(turn % 2 == 0, works[0], works[1]))
        ours.end()
        bare.end()
    ours.forget()
    bare.forget()
    return row(f"gVisor: {MANY} restores of a checkpoint at once", "runsc restore", pairs, *at_most(1.3))


# -- what is kept -----------------------------------------------------------------------------------------------------


def kept_rows() -> Iterator[Row]:
    """A daemon for each number, so that these can take turns."""
    with ExitStack() as running:
        boxes = {}
        for count in KEPT:
            client, root = running.enter_context(daemon())
            box = Held(client, an_image(client, root), 1).box
            keep(client, box, count)
            boxes[count] = (client, box)
        took = {count: list[float]() for count in KEPT}
        for turn in range(KEPT_ROUNDS):
            for count in KEPT[:: 1 if turn % 2 else -1]:
                took[count].append(one_more(*boxes[count]))
    for count in KEPT[1:]:
        pairs = list(zip(took[count], took[KEPT[0]], strict=True))
        yield row(f"gVisor: a checkpoint of a sandbox with {count}", f"with {KEPT[0]}", pairs, *at_most(1.15))


def keep(client: Any, box: str, count: int) -> None:
    """Make so many checkpoints; of a sandbox that stands still that is done soon."""
    client.sandbox.suspend(box)
    for _ in range(count):
        client.checkpoint.create(box)
    client.sandbox.resume(box)


def one_more(client: Any, box: str) -> float:
    made = []
    os.sync()
    took = seconds(lambda: made.append(client.checkpoint.create(box, leave_running=True)))
    client.checkpoint.delete(made[0].checkpoint_id)
    return took


def an_image(client: Any, root: str) -> str:
    os.makedirs(f"{root}/files")
    with open(f"{root}/files/file", "w") as file:
        file.write("of the project\n")
    image_id: str = client.image.create(f"{root}/files", provider="gvisor").image_id
    return image_id


@fair.conditions()
def run() -> Sequence[Row]:
    if runsc.program() is None or os.geteuid():
        return [Row("gVisor: needs root, and runsc", "-", "-", "-", "-", False)]
    with daemon() as (client, root):
        image_id = an_image(client, root)
        files = f"{root}/state/images/{image_id}/root"
        with raw(f"{root}/raw", files, os.stat(files).st_uid) as by_hand:
            rows = [create_row(client, image_id, by_hand), exec_row(client, image_id, by_hand)]
            for megabytes in ROUNDS:
                rows += saving_rows(client, image_id, by_hand, root, megabytes)
            rows.append(many_row(client, image_id, by_hand, root))
    return [*rows, *kept_rows()]


if __name__ == "__main__":
    show(run())
