"""Logs as they come about, made quickly: random lives of sandboxes and processes, written as the writer would."""

import random
from collections.abc import Iterable, Iterator

from sandkeep import events, model
from sandkeep.events import DAEMON_STREAM, Event, Meta
from sandkeep_store.eventlog.codec import CODEC
from sandkeep_store.eventlog.database import Database
from sandkeep_store.eventlog.eventsourcing_recorder import Draft, LogRecorder
from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.views.processes import RECENT_NAMED, RECENT_UNNAMED
from sandkeep_store.views.state import State

START_US = 1_700_000_000_000_000
EVERY_US = 1_000_000
META = CODEC.encode_meta(Meta(owner="uid:0"))
BOXES = 6
"""Sandboxes that are there at once in a tangle."""

Append = list[tuple[str, str | None, Event]]
"""Stream, sandbox and event of each."""


def write(path: str, appends: Iterable[Append], *, every_us: int = EVERY_US) -> None:
    """Add appends to the log at `path`, each a commit's share; the event at position n has time START_US + n ticks."""
    database = Database(path)
    database.writer.execute("PRAGMA synchronous = OFF")
    recorder = LogRecorder(database)
    for append in appends:
        recorder.know({name for stream, box, _ in append for name in (stream, box) if name})
        at: dict[str, int] = {}
        drafts = []
        for stream, box, event in append:
            at[stream] = at.get(stream, recorder.revision(stream)) + 1
            data = CODEC.encode(event)
            drafts.append(Draft(stream, at[stream], box, event.type, event.version, data, META))
        recorder.insert([drafts], time_us=START_US + (recorder.head + 1) * every_us)
    database.close()


def requested(owner: str = "uid:7", **more: object) -> events.SandboxCreateRequested:
    return events.SandboxCreateRequested(owner=owner, image_id="img_1", provider="fake", spec=model.SandboxSpec())


def created() -> events.SandboxCreated:
    return events.SandboxCreated(isolation=model.Isolation(mechanism="fake", files="copy"), handle={"pid": [3, None]})


def launch(box: str, name: str | None = None) -> events.ProcessLaunchRequested:
    return events.ProcessLaunchRequested(sandbox_id=box, name=name, command=["sh", "-c", "true"], env=["A"])


def execution(box: str, process: str, name: str | None = None) -> list[Append]:
    """A command from its launch to its end."""
    ended = events.ProcessExited(exit_code=0, stdout_bytes=1, stderr_bytes=2)
    return [[(process, box, launch(box, name))], [(process, box, events.ProcessStarted(pid=5)), (process, box, ended)]]


def ending(box: str) -> list[Append]:
    reason = "requested"
    asked = events.SandboxTerminateRequested(reason=reason)
    return [[(box, box, asked)], [(box, box, events.SandboxTerminated(reason=reason))]]


PAUSES = (
    events.SandboxSuspendRequested(), events.SandboxSuspended(), events.SandboxResumeRequested(),
    events.SandboxResumeFailed(code="internal", message="no"), events.SandboxResumed(outside=True),
)  # fmt: skip


def tangle(seed: int, steps: int = 600) -> Iterator[Append]:
    """Sandboxes of every fate with processes of every fate, all at once, some of them with more than a view shows."""
    chance = random.Random(seed)
    numbers = iter(range(10**6))
    yield [(DAEMON_STREAM, None, events.DaemonStarted(software="1", pid=1, uid=0, boot_id="b"))]
    asked = events.ImageCreateRequested(owner="uid:7", provider="fake", kind="directory", source="/src")
    yield [("img_1", None, asked)]
    yield [("img_1", None, events.ImageCreated(digest="sha256:0", size_bytes=1, file_count=1))]
    open_boxes: list[str] = []
    running: list[tuple[str, str]] = []  # process, sandbox
    names: dict[str, str | None] = {}
    locks = lives_of_locks(seed)
    for step in range(steps):
        yield from next(locks)
        if len(open_boxes) < BOXES:
            box = f"sbx_{step}"
            yield [(box, box, requested())]
            if chance.random() < 0.1:
                yield [(box, box, events.SandboxCreateFailed(code="internal", message="no"))]
                continue
            yield [(box, box, created())]
            open_boxes.append(box)
        box = open_boxes[min(chance.randrange(len(open_boxes)), chance.randrange(len(open_boxes)))]
        what = chance.random()
        if what < 0.45:
            number = next(numbers)
            process = f"prc_{number}"
            names[process] = f"job-{number}" if chance.random() < 0.4 else None
            yield [(process, box, launch(box, names[process]))]
            if chance.random() < 0.1:
                yield [(process, box, events.ProcessLaunchFailed(code="not_ready", message="no"))]
            else:
                yield [(process, box, events.ProcessStarted(pid=number))]
                running.append((process, box))
        elif what < 0.9 and running:
            process, of = running.pop(chance.randrange(len(running)))
            yield [(process, of, _word(chance))]
            if chance.random() < 0.1:
                yield [(process, of, events.ProcessSignalled(signal="TERM"))]
        elif what < 0.95:
            yield [(f"{box}/files", box, events.SandboxFileWritten(path="/f", kind="file", size_bytes=1))]
        elif what < 0.97:
            yield from _leave(chance, box, running)
            running = [pair for pair in running if pair[1] != box]
            open_boxes.remove(box)
        elif what < 0.98:
            yield [(box, box, events.SandboxAdopted())]
            here = {process: names[process] for process, of in running if of == box}
            yield from life_of_checkpoint(chance, box, next(numbers), here)
        elif what < 0.99:
            yield from [[(box, box, event)] for event in PAUSES[: chance.randrange(1, len(PAUSES) + 1)]]


LOCK_ENDS = (
    [events.LockAcquired(fence=7), events.LockReleaseRequested(), events.LockReleased()],
    [events.LockAcquired(fence=8), events.LockLost(reason="taken", message="gone")],
    [events.LockAcquired(fence=9), events.LockReleaseRequested(), events.LockExpired(message="late")],
    [events.LockContended(code="lock_contended", message="held", held_by="x", expires_at="t", waiting=None)],
    [events.LockAcquireFailed(code="internal", message="no", interrupted=True)],
    [events.LockAcquired(fence=10)],
    [],
)


PLACE = model.Place(where="state", base="/archives", path="sandbox_checkpoints/x", uri="/archives/x")


def life_of_checkpoint(
    chance: random.Random, box: str, number: int, running: dict[str, str | None]
) -> Iterator[Append]:
    """A checkpoint that may be restored into the same sandbox, and be deleted or not."""
    name, restore = f"ckp_{number}", f"frk_{number}"
    asked = events.CheckpointCreateRequested(
        owner="uid:7", sandbox_id=box, image_id="img_1", provider="fake", spec=model.SandboxSpec(), place=PLACE,
        leave_running=True,
    )  # fmt: skip
    yield [(name, box, asked)]
    if chance.random() < 0.2:
        yield [(name, box, events.CheckpointFailed(code="internal", message="no"))]
        return
    file = model.CheckpointFile(name="checkpoint.img", digest="sha256:0", size_bytes=number)
    yield [(name, box, events.CheckpointStored(files=[file], processes=len(running), pause_ms=1.0))]
    wanted = events.CheckpointRestoreRequested(owner="uid:7", checkpoint_id=name, sandbox_ids=[f"sbx_r{number}"])
    failed = events.CheckpointRestoreFailed(code="internal", message="no")
    yield [(restore, box, wanted)]
    yield [(restore, box, chance.choice((events.CheckpointRestored(), failed)))]
    for process, called in list(running.items())[: chance.randrange(3)]:
        again = launch(box, called)
        back = events.ProcessRestored(checkpoint_id=name, restored_from=process, requested=again, pid=number)
        yield [(process, box, back)]
        other = events.ProcessRestored(checkpoint_id=name, restored_from="prc_x", requested=launch(box), pid=number)
        yield [(f"{process}_{number}", box, other)]
        yield [(f"{process}_{number}", box, events.ProcessExited(exit_code=0, stdout_bytes=1, stderr_bytes=2))]
    if chance.random() < 0.6:
        yield [(name, box, events.CheckpointDeleteRequested())]
        if chance.random() < 0.8:
            yield [(name, box, events.CheckpointDeleted())]


def lock(number: int, *then: Event) -> list[Append]:
    """An acquisition and what came of it."""
    stream = f"lck_{number}"
    wanted = events.LockAcquireRequested(owner="uid:7", name=f"box{number % 3}", where="/locks", owner_id=f"o{number}")
    return [[(stream, None, event)] for event in (wanted, *then)]


def lives_of_locks(seed: int) -> Iterator[list[Append]]:
    """Now and then something happens to a lock."""
    chance, number = random.Random(seed + 1), 0
    while True:
        number += 1
        steal = events.LockStealRequested(owner="uid:0", name="box0", where="/locks")
        stolen = chance.choice((events.LockStolen(), events.LockStealFailed(code="internal", message="no")))
        stealing: list[Append] = [[(f"lck_s{number}", None, steal)], [(f"lck_s{number}", None, stolen)]]
        for append in [*lock(number, *chance.choice(LOCK_ENDS)), *(stealing if chance.random() < 0.1 else [])]:
            yield [append]
            for _ in range(chance.randrange(10)):
                yield []


def crowded(box: str, seed: int) -> Iterator[Append]:
    """A sandbox in which more commands ended than its view shows, some at the same time."""
    chance = random.Random(seed)
    yield [(box, box, requested())]
    yield [(box, box, created())]
    numbers = [*range(RECENT_NAMED + 10), *range(-RECENT_UNNAMED - 10, 0)]
    chance.shuffle(numbers)
    for number, other in zip(numbers[::2], numbers[1::2], strict=False):
        first, second = (execution(box, f"prc_{box}_{n}", f"job-{n}" if n >= 0 else None) for n in (number, other))
        yield from [first[0], *second, *first[1:]]


def _word(chance: random.Random) -> Event:
    return chance.choice(
        (
            events.ProcessExited(exit_code=chance.randrange(3), stdout_bytes=1, stderr_bytes=0),
            events.ProcessExited(exit_code=0, stdout_bytes=1, stderr_bytes=0),
            events.ProcessTimedOut(timeout_s=1.5),
            events.ProcessLost(message="gone"),
        )
    )


def _leave(chance: random.Random, box: str, running: list[tuple[str, str]]) -> Iterator[Append]:
    last = [(process, of, events.ProcessLost(message="its sandbox ended")) for process, of in running if of == box]
    if chance.random() < 0.2:
        yield [*last, (box, box, events.SandboxFailed(message="by itself"))]
    else:
        first, (second,) = ending(box)
        yield first
        yield [*last, second]


def applied(log: EventLog, upto: int | None = None) -> State:
    """The state by the plainest way: every event applied, one after the other."""
    state = State()
    log.scan(lambda fact: state.apply(fact.event, fact), 0, upto)
    return state
