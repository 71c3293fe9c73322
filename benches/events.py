"""The event log beside raw SQLite: durable appends from many tasks, and the fold over everything at a start.

Floors: one thread that encodes the same events and commits them to the same table, as many at a time as there are
tasks, without checksums, revisions or anyone to answer; and a bare cursor over the same rows. Figure and floor are
measured in turns, and the median of the rounds is what counts.
"""

import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import msgspec
import trio
from benches import fair
from benches.table import Row, show

from sandkeep.events import Meta, ProcessExited, ProcessLaunchRequested, ProcessStarted
from sandkeep_store.eventlog.database import Database
from sandkeep_store.eventlog.log import EventLog, NewEvent, Recorded
from sandkeep_store.eventlog.row import COLUMNS

TASKS = 200
FOLLOWERS = 10
APPENDS_EACH = 30
ROUNDS = 7
SCANNED = 100_000
LAUNCH = ProcessLaunchRequested(
    sandbox_id="sbx_01jd5qk8x9v2m4n6p8r0s2t4", name=None, command=["python3", "-c", "print(1)"]
)
STARTED = ProcessStarted(pid=4242)
EXITED = ProcessExited(exit_code=0, stdout_bytes=1234, stderr_bytes=0)
META = Meta(command_id="cmd_01jd5qk8x9v2m4n6p8r0s2t4", owner="uid:0", pid=4242, client="cli")


class Fold:
    """Stands for the views: a little state for every event, before anyone is answered."""

    def __init__(self) -> None:
        self.state: dict[str, tuple[int, str]] = {}

    def __call__(self, events: Sequence[Recorded]) -> None:
        for event in events:
            self.state[event.stream] = (event.position, event.type)


async def _append(log: EventLog, numbers: Iterator[int]) -> None:
    """What `exec` appends, one at a time. Ids are ordered by time, as ours are."""
    for _ in range(APPENDS_EACH // 3):
        name = f"prc_{next(numbers):020}"
        await log.append([NewEvent(name, LAUNCH, "sbx_1", 0)], META)
        await log.append([NewEvent(name, STARTED, "sbx_1")], META)
        await log.append([NewEvent(name, EXITED, "sbx_1")], META)


async def _follow(log: EventLog, upto: int) -> None:
    position = log.head
    while position < upto:
        await log.wait(position)
        position = (await log.page(position)).position


async def _appends_per_s(path: str, first: int) -> float:
    log = EventLog.open(path)
    log.on_commit.append(Fold())
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        numbers = count(first)
        started = time.perf_counter()
        async with trio.open_nursery() as tasks:
            for _ in range(FOLLOWERS):
                tasks.start_soon(_follow, log, log.head + TASKS * APPENDS_EACH)
            for _ in range(TASKS):
                tasks.start_soon(_append, log, numbers)
        taken = time.perf_counter() - started
        nursery.cancel_scope.cancel()
    log.close()
    return TASKS * APPENDS_EACH / taken


def _raw_appends_per_s(raw: sqlite3.Connection, ours: str) -> float:
    """Encode and write what the log wrote last into a table like its own, as many a commit as there are tasks."""
    log = Database(ours)
    with log.reader() as connection:
        last = TASKS * APPENDS_EACH
        rows = connection.execute(
            f"SELECT * FROM (SELECT * FROM events ORDER BY position DESC LIMIT {last}) ORDER BY 1"
        ).fetchall()
        new = {
            r[1]: connection.execute("SELECT * FROM streams WHERE id = ?", (r[1],)).fetchone()
            for r in rows
            if r[2] == 1
        }
    log.close()
    events = {event.type: event for event in (LAUNCH, STARTED, EXITED)}
    batches = [rows[at : at + TASKS] for at in range(0, last, TASKS)]
    streams = [[new[r[1]] for r in batch if r[2] == 1] for batch in batches]
    marks = ", ".join("?" * len(COLUMNS))
    encode = msgspec.json.Encoder().encode
    started = time.perf_counter()
    for batch, named in zip(batches, streams, strict=True):
        raw.execute("BEGIN IMMEDIATE")
        raw.executemany("INSERT INTO streams VALUES (?, ?, ?)", named)
        raw.executemany(
            f"INSERT INTO events VALUES ({marks})",
            [(*row[:7], encode(events[row[4]]), encode(META), *row[9:]) for row in batch],
        )
        raw.execute("COMMIT")
    return last / (time.perf_counter() - started)


def _appending(directory: str) -> Row:
    ours, raw = os.path.join(directory, "ours.db"), Database(os.path.join(directory, "raw.db"))
    rounds = []
    for number in range(ROUNDS + 1):
        figure = trio.run(_appends_per_s, ours, number * TASKS * APPENDS_EACH)
        rounds.append((figure, _raw_appends_per_s(raw.writer, ours)))
    raw.close()
    return _row(
        f"durable appends, {TASKS} tasks, {FOLLOWERS} followers and a view", "appends/s", rounds[1:], at_least=0.5
    )


async def _fill(log: EventLog, total: int) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for first in range(0, total, 3000):
            new = []
            for number in range(first, min(total, first + 3000), 3):
                process, sandbox = f"prc_01jd5qk8x9v2{number:014}", f"sbx_01jd5qk8x9v2{number % 1000:014}"
                new += [
                    NewEvent(process, LAUNCH, sandbox),
                    NewEvent(process, ProcessStarted(pid=number), sandbox),
                    NewEvent(process, ProcessExited(exit_code=0, stdout_bytes=number, stderr_bytes=0), sandbox),
                ]
            await log.append(new[: total - first], META)
        nursery.cancel_scope.cancel()


def _scanning(directory: str) -> Row:
    path = os.path.join(directory, "scanned.db")
    log = EventLog.open(path)
    trio.run(_fill, log, SCANNED)
    rounds = []
    for _ in range(ROUNDS + 1):
        rounds.append((_rate(lambda: log.scan(lambda _: None)), _rate(lambda: _cursor(log))))
    log.close()
    return _row(f"fold over {SCANNED:,} events, decoded and checked", "events/s", rounds[1:], at_least=0.5)


def _cursor(log: EventLog) -> None:
    with log._database.reader() as connection:
        for _ in connection.execute("SELECT * FROM events ORDER BY position"):
            pass


def _rate(work: Any) -> float:
    started = time.perf_counter()
    work()
    return SCANNED / (time.perf_counter() - started)


def _row(case: str, unit: str, rounds: list[tuple[float, float]], *, at_least: float) -> Row:
    ratio = statistics.median(figure / floor for figure, floor in rounds)
    figure, floor = (statistics.median(column) for column in zip(*rounds, strict=True))
    return Row(case, f"{figure:,.0f} {unit}", f"raw SQLite {floor:,.0f}", ratio, f">= {at_least:g}", ratio >= at_least)


@fair.conditions()
def run() -> list[Row]:
    directory = tempfile.mkdtemp(prefix="sandkeep-bench-")
    try:
        return [_appending(directory), _scanning(directory)]
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    show(run())
