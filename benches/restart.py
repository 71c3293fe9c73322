"""How long a daemon takes from its start to READY with a million events on record: with cached folds, and without.

The floor without them is what no daemon can do without: importing its own modules, and a cursor over the rows of the
log. With them it is the start with an empty log. All are measured in turns, each in a process of its own.
"""

import os
import statistics
import tempfile
from collections.abc import Iterator

from benches import fair
from benches.start import IMPORTS, cursor_seconds, start_daemon, stop, timed
from benches.table import Row, show

from sandkeep import events, ids, model
from sandkeep.events import Event, Meta
from sandkeep_store.eventlog.codec import CODEC
from sandkeep_store.eventlog.database import Database
from sandkeep_store.eventlog.eventsourcing_recorder import Draft, LogRecorder
from sandkeep_store.upkeep.state_cache import FILE_NAME

EVENTS = 1_000_000
SANDBOXES = 300
ROUNDS = 5
BATCH = 300
START_US = 1_780_000_000_000_000
ISOLATION = model.Isolation(
    mechanism="bubblewrap", files="overlay", host_uid=1_900_000_001, limits={"pids": "cgroup", "memory": "cgroup"}
)
COMMANDS = (["sh", "-c", "make test"], ["python3", "-m", "pytest", "-q", "tests/unit"], ["git", "status", "--short"])


def story(total: int, sandboxes: int) -> Iterator[list[tuple[str, str, Event]]]:
    """A plausible log, append by append: sandboxes that were made and ended, and in between commands, a few of them
    named, three events each. Every event comes with its stream and its sandbox.
    """
    boxes = [ids.new_id(ids.SANDBOX) for _ in range(sandboxes)]
    for box in boxes:
        asked = events.SandboxCreateRequested(
            owner="uid:0", image_id="img_1", provider="local", spec=model.SandboxSpec()
        )
        yield [(box, box, asked)]
        yield [(box, box, events.SandboxCreated(isolation=ISOLATION, handle={"pid": 4242}))]
    for number in range((total - 4 * sandboxes) // 3):
        box, process = boxes[number % sandboxes], ids.new_id(ids.PROCESS)
        name = f"job-{number}" if number % 20 == 0 else None
        yield [(process, box, events.ProcessLaunchRequested(sandbox_id=box, name=name, command=COMMANDS[number % 3]))]
        ended = events.ProcessExited(exit_code=number % 2, stdout_bytes=1234, stderr_bytes=0)
        yield [(process, box, events.ProcessStarted(pid=number % 30_000 + 2)), (process, box, ended)]
    for box in boxes:
        yield [(box, box, events.SandboxTerminateRequested(reason="requested"))]
        yield [(box, box, events.SandboxTerminated(reason="requested"))]


def fill(path: str, appends: Iterator[list[tuple[str, str, Event]]], every_us: int = 1000) -> None:
    """Write appends into a new log as its writer would, `BATCH` a commit, `every_us` apart."""
    database = Database(path)
    database.writer.execute("PRAGMA synchronous = OFF")
    recorder, revisions = LogRecorder(database), dict[str, int]()
    batch: list[list[Draft]] = []
    meta = CODEC.encode_meta(Meta(owner="uid:0", pid=4242, client="bench"))

    def write() -> None:
        recorder.know({name for drafts in batch for draft in drafts for name in (draft.stream, draft.sandbox or "")})
        recorder.insert(batch, time_us=START_US + recorder.head * every_us)
        batch.clear()

    for append in appends:
        drafts = []
        for stream, box, event in append:
            revisions[stream] = revisions.get(stream, 0) + 1
            drafts.append(Draft(stream, revisions[stream], box, event.type, event.version, CODEC.encode(event), meta))
        batch.append(drafts)
        if len(batch) == BATCH:
            write()
    write()
    database.close()


def measured_start(root: str) -> float:
    process, seconds = start_daemon(root)
    stop(process)
    return seconds


@fair.conditions()
def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="skb-") as root, tempfile.TemporaryDirectory(prefix="skb-") as empty:
        state = f"{root}/state"
        os.makedirs(state, mode=0o700)
        os.makedirs(f"{empty}/state", mode=0o700)
        fill(f"{state}/events.db", story(EVENTS, SANDBOXES))
        measured_start(root)  # writes every metadata.json
        rounds = []
        for _ in range(ROUNDS):
            os.unlink(f"{state}/{FILE_NAME}")
            floor = timed(IMPORTS) + 3 * cursor_seconds(f"{state}/events.db")
            whole = measured_start(root)
            rounds.append((whole, floor, measured_start(root), measured_start(empty)))
    without = statistics.median(whole / floor for whole, floor, _, _ in rounds)
    with_them = statistics.median(cached / least for _, _, cached, least in rounds)
    whole, floor, cached, least = (statistics.median(column) for column in zip(*rounds, strict=True))
    return [
        _row("without cached folds", whole, f"imports + 3 x cursor {floor * 1000:.0f} ms", without, 1),
        _row("with cached folds", cached, f"empty log {least * 1000:.0f} ms", with_them, 3),
    ]


def _row(how: str, seconds: float, floor: str, ratio: float, most: float) -> Row:
    case = f"start to READY, {EVENTS:,} events, {how}"
    return Row(case, f"{seconds * 1000:.0f} ms", floor, ratio, f"<= {most:.2f}", ratio <= most)


if __name__ == "__main__":
    show(run())
