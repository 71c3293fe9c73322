"""Redaction: what a caller put into an event is nowhere in the state directory any more, and all else is as it was."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from tests.store.upkeep.test_compaction import Opened, bytes_of, opened
from tests.support import log_stories
from tests.support.golden import EXAMPLES, Example

from sandkeep import events, model
from sandkeep.errors import DaemonError, SandkeepError, StateError
from sandkeep.events import LOG_STREAM, Event, LogRedactRequested, Meta
from sandkeep.model import RedactReport
from sandkeep_store.eventlog.codec import CODEC
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.upkeep import offline, redaction, repair, segments, state_cache
from sandkeep_store.upkeep.redaction import Redaction, Target
from sandkeep_store.views import blanks

MARKER = "xyzzy-4711"
HOLDER = [["sh", "-c", f"echo {MARKER}-{'y' * 5000}-{MARKER}"], ["true"]]


class Redacting(Opened):
    """What redaction asks of the daemon, done as plainly as it can be."""

    async def redact(self, position: int) -> RedactReport:
        await self._record(await self._redaction().plan(position))
        return await self.finish(position)

    async def finish(self, position: int) -> RedactReport:
        outcome, _, report = await self._redaction().carry_out(position)
        await self._record(outcome)
        return report

    async def _record(self, event: events.LogRedactRequested | events.LogRedacted) -> None:
        await self.log.append([NewEvent(events.LOG_STREAM, event)], Meta())

    def _redaction(self) -> Redaction:
        return Redaction(self.log, self.state, self._forget_event)

    async def _forget_event(self, target: Target) -> None:
        state_cache.discard(self.log.directory)


def lives(boxes: int = 3) -> Iterator[log_stories.Append]:
    """Sandboxes that ended, each with commands of which every tenth holds the marker."""
    for number in range(boxes):
        box = f"sbx_{number}"
        yield [(box, box, log_stories.requested())]
        yield [(box, box, log_stories.created())]
        for turn in range(60):
            process = f"prc_{number}_{turn}"
            command = HOLDER[0] if turn % 10 == 3 else HOLDER[1]
            asked = events.ProcessLaunchRequested(sandbox_id=box, name=None, command=command)
            yield [(process, box, asked)]
            yield [(process, box, events.ProcessExited(exit_code=0, stdout_bytes=0, stderr_bytes=0))]
        if number:
            yield from log_stories.ending(box)


def with_marker(directory: Path) -> list[int]:
    """The positions of the events in the log that hold the marker."""
    found: list[Any] = []
    log = offline.open_log(str(directory))
    log.scan(found.append)
    log.close()
    return [event.position for event in found if MARKER.encode() in event.data]


def files_with(directory: Path) -> list[str]:
    """The files in which `MARKER` is, in whatever part of them."""
    found = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = f"{folder}/{name}"
            if os.path.isfile(path) and not os.path.islink(path) and MARKER.encode() in Path(path).read_bytes():
                found.append(os.path.relpath(path, directory))
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.path.name)
def test_what_is_left_of_an_event_of_any_type_is_such_an_event(example: Example) -> None:
    left = blanks.redact_data(example.data)
    assert msgspec.json.decode(left)[blanks.MARK] is True
    assert isinstance(CODEC.decode(1, example.type, example.version, left), Event)
    assert blanks.redact_data(left) == left


async def test_in_the_log(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), lives())
    wanted = with_marker(tmp_path)
    async with opened(tmp_path, Redacting) as here:
        state_cache.save(str(tmp_path), here.state, here.log)
        assert state_cache.FILE_NAME in files_with(tmp_path)
        for position in wanted:
            before = here.log.at(position)
            report = await here.redact(position)
            after = here.log.at(position)
            assert before is not None
            assert after is not None
            assert (report.position, report.type, report.places) == (position, "process.launch_requested", ["log"])
            data = msgspec.json.decode(after.data)
            assert (data["command"], data["redacted"]) == ([blanks.REDACTED], True)
            left = ("position", "time_us", "stream", "revision", "sandbox_id", "type", "version", "meta", "more")
            assert [getattr(before, name) for name in left] == [getattr(after, name) for name in left]
        # Not after the last connection is closed, which would empty the write-ahead log.
        assert files_with_other_process(tmp_path) == []
        assert here.log.verify() == []
        assert bytes_of(offline.fold(here.log), here.log) == bytes_of(here.state, here.log)
        assert MARKER.encode() not in b"".join(bytes_of(here.state, here.log))
    assert files_with(tmp_path) == []
    offline.rebuild(str(tmp_path))
    assert offline.verify(str(tmp_path)).problems == []
    assert files_with(tmp_path) == []


def files_with_other_process(directory: Path) -> list[str]:
    """The same by another process: one that opens and closes the log's file must not be this one."""
    import subprocess

    said = subprocess.run(["grep", "-rlaF", MARKER, str(directory)], capture_output=True, text=True, check=False)
    return said.stdout.splitlines()


async def test_in_the_archive_and_in_what_archiving_left_in_the_log(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), lives(6))
    wanted = with_marker(tmp_path)
    async with opened(tmp_path, Redacting) as here:
        here.log._database.writer.execute("PRAGMA secure_delete = OFF")  # as SQLite comes, but not Debian's
        await here.compact()
        places = [(await here.redact(position)).places for position in wanted]
        assert ["log"] in places  # of the sandbox that is still here
        assert any(segments.SUFFIX in name for found in places for name in found)
        assert files_with_other_process(tmp_path) == []
        lines = [
            line for name in segments.names(str(tmp_path)) for line in segments.events(f"{tmp_path}/archive/{name}")
        ]
        left = [line for line in lines if line.position in wanted]
        assert left
        assert all(msgspec.json.decode(line.data)["redacted"] for line in left)
    assert MARKER.encode() not in b"".join(bytes(line.data) for line in lines)
    offline.rebuild(str(tmp_path))
    assert offline.verify(str(tmp_path)).problems == []


async def test_twice(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), lives())
    position = with_marker(tmp_path)[0]
    async with opened(tmp_path, Redacting) as here:
        await here.redact(position)
        before = here.log.at(position)
        await here.redact(position)
        assert here.log.at(position) == before
        await here.compact()
        names = segments.names(str(tmp_path))
        await here.redact(position)
        assert segments.names(str(tmp_path)) == names


async def test_while_somebody_reads(tmp_path: Path) -> None:
    """A reader keeps the write-ahead log from being emptied; until that has been done, nothing is said to be gone."""
    log_stories.write(str(tmp_path / "events.db"), lives())
    position = with_marker(tmp_path)[0]
    reading, done = threading.Event(), threading.Event()

    def read() -> None:
        with here.log._database.reader() as connection:
            connection.execute("SELECT count(*) FROM events").fetchone()
            reading.set()
            done.wait()

    async with opened(tmp_path, Redacting) as here, trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, read)
        await trio.to_thread.run_sync(reading.wait)
        finished = trio.Event()

        async def redact() -> None:
            await here.redact(position)
            finished.set()

        try:
            nursery.start_soon(redact)
            while not here.state.log.redacting:
                await here.log.wait(here.log.head)
            for _ in range(3):  # appends are taken meanwhile
                await here.log.append([NewEvent("daemon", events.DaemonStopped(reason="test"))], Meta())
            assert not finished.is_set()
        finally:
            done.set()
        await finished.wait()
        assert os.path.getsize(tmp_path / "events.db-wal") < 64 * 1024


@pytest.mark.parametrize("step", ["log.redact", "log.wipe", "redact_segments", "forget"])
async def test_what_was_interrupted_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    log_stories.write(str(tmp_path / "events.db"), lives())
    wanted = with_marker(tmp_path)
    async with opened(tmp_path, Redacting) as here:
        await here.compact()
    position = wanted[-1]  # archived

    async def fail(*_: object) -> None:
        raise DaemonError("storage_unavailable", "the disk is full")

    def fail_at_once(*_: object) -> list[str]:
        raise DaemonError("storage_unavailable", "the disk is full")

    async with opened(tmp_path, Redacting) as here:
        with monkeypatch.context() as patch:
            if step == "redact_segments":
                patch.setattr(redaction, step, fail_at_once)
            elif step.startswith("log."):
                patch.setattr(here.log, step.removeprefix("log."), fail)
            else:
                patch.setattr(here, "_forget_event", fail)
            with pytest.raises(DaemonError):
                await here.redact(position)
    async with opened(tmp_path, Redacting) as here:
        assert here.state.log.redacting == [position]
        for left in here.state.log.redacting:
            await here.finish(left)
        assert here.state.log.redacting == []
        for other in wanted[:-1]:
            await here.redact(other)
    assert files_with(tmp_path) == []


async def test_an_event_that_is_gone_does_not_keep_a_redaction_waiting(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), lives())
    async with opened(tmp_path, Redacting) as here:
        await here.compact()
        for name in segments.names(str(tmp_path)):
            os.unlink(tmp_path / "archive" / name)
        await here.log.append([NewEvent(LOG_STREAM, LogRedactRequested(position=200))], Meta())
        assert (await here.finish(200)).places == []
        assert here.state.log.redacting == []
        assert bytes_of(offline.fold(here.log), here.log) == bytes_of(here.state, here.log)


async def test_what_runs_by_it_keeps_it(tmp_path: Path) -> None:
    box, process = "sbx_live", "prc_live"
    appends = [
        [(box, box, log_stories.requested())],
        [(box, box, log_stories.created())],
        [(process, box, log_stories.launch(box))],
    ]
    log_stories.write(str(tmp_path / "events.db"), appends)
    async with opened(tmp_path, Redacting) as here:
        for position in (1, 3):
            with pytest.raises(StateError) as refused:
                await here.redact(position)
            assert refused.value.code == "in_use"
        assert here.log.head == 3
        ended = events.ProcessExited(exit_code=0, stdout_bytes=0, stderr_bytes=0)
        await here.log.append([NewEvent(process, ended, box)], Meta())
        await here.redact(3)
        assert here.state.processes[process].view().command == [blanks.REDACTED]


async def test_of_a_bearer_of_the_same_id_nothing_is_taken(tmp_path: Path) -> None:
    spec = model.SandboxSpec(env={"A": MARKER})
    asked = events.SandboxCreateRequested(owner="uid:7", image_id="img_1", provider="fake", spec=spec)
    failed = events.SandboxCreateFailed(code="not_ready", message="interrupted", interrupted=True)
    appends: list[log_stories.Append] = [
        [("box", "box", asked)],
        [("box", "box", failed)],
        [("box", "box", asked)],
        [("box", "box", log_stories.created())],
    ]
    log_stories.write(str(tmp_path / "events.db"), appends)
    async with opened(tmp_path, Redacting) as here:
        await here.redact(1)
        assert here.state.sandboxes["box"].spec.env == {"A": MARKER}
        assert bytes_of(offline.fold(here.log), here.log) == bytes_of(here.state, here.log)


@pytest.mark.parametrize(("position", "code"), [(10**6, "not_found"), (1, "invalid")])
async def test_what_cannot_be_redacted(tmp_path: Path, position: int, code: str) -> None:
    log_stories.write(str(tmp_path / "events.db"), log_stories.tangle(1))
    async with opened(tmp_path, Redacting) as here:
        head = here.log.head
        with pytest.raises(SandkeepError) as refused:
            await here.redact(position)
        assert (refused.value.code, here.log.head) == (code, head)


async def test_copies_of_a_damaged_log_stand_in_the_way(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), lives())
    wanted = with_marker(tmp_path)
    with sqlite3.connect(tmp_path / "events.db") as db:
        db.execute("UPDATE events SET crc = crc + 1 WHERE position = 5")
    db.close()
    quarantine = repair.repair(str(tmp_path), yes=True).quarantine
    assert quarantine
    async with opened(tmp_path, Redacting) as here:
        with pytest.raises(StateError) as refused:
            await here.redact(wanted[0])
        assert (refused.value.code, here.state.log.redacting) == ("conflict", [])
        for name in os.listdir(quarantine):
            os.unlink(f"{quarantine}/{name}")
        os.rmdir(quarantine)
        for position in wanted:
            await here.redact(position)
    assert files_with(tmp_path) == []


async def test_what_killed_compactions_and_repairs_left_goes(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), lives())
    position = with_marker(tmp_path)[0]
    for left in ("archive/.000-001-abc.zst.new", "repair.work/new.db", "folded-state.new"):
        path = tmp_path / left
        path.parent.mkdir(exist_ok=True)
        path.write_text(MARKER)
    async with opened(tmp_path, Redacting) as here:
        await here.redact(position)
    assert [name for name in files_with(tmp_path) if name != "events.db"] == []
