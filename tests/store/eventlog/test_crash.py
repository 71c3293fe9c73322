"""A process that appends is killed at any instant: what it was told is written is there, whole, and in its place."""

import random
import subprocess
import sys
from pathlib import Path

from sandkeep_store.eventlog.log import EventLog, Recorded

ROUNDS = 10

# Says on a line of its own what was acknowledged: the append's name and its first position.
_APPENDS = """
import sys, trio
from sandkeep.events import Meta, ProcessStarted
from sandkeep_store.eventlog.log import EventLog, NewEvent

async def keep_appending(log, task):
    for number in range(10**9):
        size = 1 + (task + number) % 4
        name = f"{sys.argv[2]}.{task}.{number}.{size}"
        events = [NewEvent(f"prc_{name}", ProcessStarted(pid=at)) for at in range(size)]
        recorded = await log.append(events, Meta(command_id=name))
        print(name, recorded[0].position, flush=True)

async def main():
    log = EventLog.open(sys.argv[1])
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for task in range(8):
            nursery.start_soon(keep_appending, log, task)

trio.run(main)
"""


def test_killed_at_any_instant_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    path = str(tmp_path / "events.db")
    acknowledged: dict[str, int] = {}
    instants = random.Random(20261121)
    for number in range(ROUNDS):
        acknowledged.update(_append_and_kill(path, number, lines=instants.randrange(1, 300)))
        _check(path, acknowledged)


def _append_and_kill(path: str, round_number: int, lines: int) -> dict[str, int]:
    """Kill the child after it said some lines; answer all that it said before it was dead."""
    command = [sys.executable, "-c", _APPENDS, path, str(round_number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        said += child.stdout.readlines()
    return {words[0]: int(words[1]) for words in map(str.split, said) if len(words) == 2 and said}


def _check(path: str, acknowledged: dict[str, int]) -> None:
    log = EventLog.open(path)
    seen: list[Recorded] = []
    log.scan(seen.append)
    assert log.verify() == []
    log.close()
    assert [event.position for event in seen] == list(range(1, len(seen) + 1))
    by_stream: dict[str, list[Recorded]] = {}
    for event in seen:
        by_stream.setdefault(event.stream.removeprefix("prc_"), []).append(event)
    for name, position in acknowledged.items():
        assert by_stream[name][0].position == position
    for name, events in by_stream.items():
        size = int(name.rpartition(".")[2])
        assert [event.more for event in events] == list(range(size - 1, -1, -1)), f"half of {name} is there"
