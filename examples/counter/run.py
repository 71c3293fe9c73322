"""A counter that lives on in checkpoints: it goes on counting in new sandboxes, from where each checkpoint was made.

    python examples/counter/run.py [INTERVAL_S]

It says what it sees, phase by phase, and exits with 1 as soon as that is not what was promised.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sandkeep.blocking
from sandkeep.blocking import Client
from sandkeep.model import Checkpoint

HERE = Path(__file__).parent
INTERVAL_S = 0.5
"""From one number to the next. A checkpoint at about 10 has ten of these to be made in."""

EARLY, LATE = "test-snapshot-10", "test-snapshot-20"
FROM_EARLY, FROM_LATE = range(10, 20), range(20, 1_000_000)
Numbers = Sequence[tuple[int, float]]
"""What the counter has printed, and when."""


def main(interval_s: float) -> None:
    """All phases. Whatever they make is removed, also when one of them fails."""
    with sandkeep.blocking.connect(client="counter") as client, ExitStack() as made:
        image_id = client.image.create(str(HERE), provider="gvisor").image_id
        made.callback(client.image.remove, image_id)
        made.callback(remove_checkpoints, client, image_id)
        box = phase_1(client, image_id, interval_s)
        phase_2(client, box)
        phase_3(client, box)
        phase_4(client, box)
        phase_5(client, box)


def remove_checkpoints(client: Client, image_id: str) -> None:
    """Remove those that were made here."""
    for checkpoint in client.checkpoint.list().checkpoints:
        if checkpoint.image_id == image_id:
            client.checkpoint.delete(checkpoint.checkpoint_id)


def phase_1(client: Client, image_id: str, interval_s: float) -> str:
    """A counter, kept twice while it goes on; then its sandbox ends. Answer which sandbox it was."""
    print("phase 1: a counter is kept at about 10 and at about 20, and its sandbox is terminated")
    box = client.sandbox.create(image_id, provider="gvisor").sandbox_id
    with terminating(client, [box]):
        client.process.launch(box, ["python3", "counter.py", str(interval_s)], name="counter")
        keep(client, box, EARLY, at=10)
        keep(client, box, LATE, at=20)
        last = counted(client, box)[-1][0]
        without_a_gap(count_until(client, box, last + 2))
    return box


def phase_2(client: Client, box: str) -> None:
    """The most recent checkpoint, which is the last in the list, as that begins with the oldest."""
    print("phase 2: the most recent checkpoint, in a new sandbox")
    restore(client, client.checkpoint.list(sandbox_id=box).checkpoints[-1], FROM_LATE)


def phase_3(client: Client, box: str) -> None:
    """A checkpoint by its name, after one that is more recent."""
    print(f"phase 3: {EARLY}")
    restore(client, named(client, box, EARLY), FROM_EARLY)


def phase_4(client: Client, box: str) -> None:
    """Each once more, for two sandboxes at once."""
    print("phase 4: either one again, twice at once")
    restore(client, named(client, box, LATE), FROM_LATE, count=2)
    restore(client, named(client, box, EARLY), FROM_EARLY, count=2)


def phase_5(client: Client, box: str) -> None:
    """Each without the other. The late one is made once more for that, of what was brought back from the early one."""
    print("phase 5: either one, after the other was deleted")
    early = named(client, box, EARLY)
    client.checkpoint.delete(named(client, box, LATE).checkpoint_id)
    restore(client, early, FROM_EARLY)
    again = client.checkpoint.restore(early.checkpoint_id).sandboxes[0].sandbox_id
    with terminating(client, [again]):
        late = keep(client, again, LATE, at=20)
    client.checkpoint.delete(early.checkpoint_id)
    restore(client, late, FROM_LATE)


# -- checkpoints ------------------------------------------------------------------------------------------------------


def keep(client: Client, box: str, name: str, at: int) -> Checkpoint:
    """Make a checkpoint when the counter has come that far; it goes on counting."""
    count_until(client, box, at)
    made = client.checkpoint.create(box, name=name, leave_running=True)
    print(f"  {name} is made; the sandbox was frozen for {made.pause_ms:.0f} ms", flush=True)
    return made


def named(client: Client, box: str, name: str) -> Checkpoint:
    """The checkpoint of that name."""
    (found,) = client.checkpoint.list(sandbox_id=box, name=name).checkpoints
    return found


def restore(client: Client, checkpoint: Checkpoint, promised: range, count: int = 1) -> None:
    """Bring it back into new sandboxes, and see that the counter goes on in each with a number that was promised."""
    asked_at = time.time()
    restored = client.checkpoint.restore(checkpoint.checkpoint_id, count=count)
    boxes = [sandbox.sandbox_id for sandbox in restored.sandboxes]
    with terminating(client, boxes):
        for box in boxes:
            goes_on(client, box, asked_at, promised)


def goes_on(client: Client, box: str, asked_at: float, promised: range) -> None:
    """The first number that is printed there is one of those that were promised, and none was left out before it."""
    last = counted(client, box)[-1][0]
    numbers = count_until(client, box, last + 2)
    here = [number for number, printed_at in numbers if printed_at > asked_at]
    print(f"  {box} goes on with {', '.join(map(str, here))}", flush=True)
    require(here[0] in promised, f"the first one is not in {promised.start} to {promised.stop - 1}")
    without_a_gap(numbers)


@contextmanager
def terminating(client: Client, boxes: Sequence[str]) -> Iterator[None]:
    """Terminate sandboxes in the end."""
    try:
        yield
    finally:
        for box in boxes:
            client.sandbox.terminate(box)


# -- what the counter prints ------------------------------------------------------------------------------------------


def counted(client: Client, box: str) -> Numbers:
    """All that the counter of a sandbox has printed by now, what it had printed before a checkpoint included."""
    return count_until(client, box, 1)


def count_until(client: Client, box: str, number: int) -> Numbers:
    """The same, once the counter has come to a number."""
    said = b""
    for piece in client.read_output(box, "counter"):
        said += piece.stdout
        numbers = parse(said)
        if numbers and numbers[-1][0] >= number:
            return numbers
    raise SystemExit(f"the counter of {box} ended:\n{said.decode()}")


def parse(said: bytes) -> Numbers:
    """The lines that are complete."""
    pairs = [line.split() for line in said[: said.rfind(b"\n") + 1].splitlines()]
    return [(int(number), float(printed_at)) for number, printed_at in pairs]


def without_a_gap(numbers: Numbers) -> None:
    """Nothing was left out or printed twice, from the beginning of the first sandbox."""
    found = [number for number, _ in numbers]
    require(found == list(range(1, len(found) + 1)), f"not every number once, and in turn: {found}")


def require(holds: bool, otherwise: str) -> None:
    """End with 1 unless it holds."""
    if not holds:
        raise SystemExit(f"not as promised: {otherwise}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else INTERVAL_S)
