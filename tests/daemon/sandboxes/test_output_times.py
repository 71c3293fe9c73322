"""Times of stored output: the marks in their files, when they are few, many, cut, torn or garbage; and a daemon's."""

import errno
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused_async, until, until_async
from tests.support.inside import Inside, inside

from sandkeep.model import MAX_OUTPUT_TIMES
from sandkeep.protocol.clock import now_us, parse_rfc3339, rfc3339
from sandkeepd.contract.processes import Chunk
from sandkeepd.keeper.client import KeeperInstance
from sandkeepd.sandboxes.output_times import TICK_US, UNKNOWN_US, Mark, Marks, OutputTimes

BOX, PROCESS = "sbx_1", "prc_1"


@pytest.fixture
def times(tmp_path: Path) -> OutputTimes:
    return OutputTimes(str(tmp_path), most=8)


def all_of(times: OutputTimes) -> list[Mark]:
    marks = times.load(BOX, PROCESS)
    return [marks[index] for index in range(len(marks))]


def journal(size: int, modified_us: int = 0) -> Chunk:
    return Chunk(offset=0, data=b"", size=size, modified_us=modified_us)


def test_marks_of_a_piece_begin_and_end_with_it() -> None:
    marks = Marks(b"".join(struct.pack("<QQQ", at, out, err) for at, out, err in [(1, 10, 0), (2, 20, 0), (3, 20, 5)]))
    assert [mark.at_us for mark in marks.of((0, 20), (0, 5), 9)] == [1, 2, 3]
    assert [mark.at_us for mark in marks.of((10, 11), (0, 0), 9)] == [2]
    assert [mark.at_us for mark in marks.of((9, 10), (0, 1), 9)] == [1, 2, 3]
    assert [mark.at_us for mark in marks.of((0, 30), (9, 9), 2)] == [1, 2]
    assert marks.of((20, 30), (0, 0), 9) == []
    assert marks.of((0, 0), (0, 0), 9) == []
    assert [marks.sizes_before(at) for at in (-1, 1, 2, 3, 4)] == [(0, 0), (0, 0), (10, 0), (20, 0), (20, 5)]


def test_many_marks_are_thinned_out(times: OutputTimes, tmp_path: Path) -> None:
    for number in range(1, 101):
        times.append(BOX, PROCESS, [Mark(number, 10 * number, number)])
        marks = all_of(times)
        assert len(marks) < 8
        assert marks[-1] == (number, 10 * number, number)
        assert marks == sorted(marks)
    assert os.listdir(tmp_path / "output-times" / BOX) == [PROCESS]
    assert (tmp_path / "output-times" / BOX / PROCESS).stat().st_mode & 0o777 == 0o600


def test_a_torn_record_is_ignored_and_overwritten(times: OutputTimes, tmp_path: Path) -> None:
    times.append(BOX, PROCESS, [Mark(1, 1, 1)])
    with (tmp_path / "output-times" / BOX / PROCESS).open("ab") as file:
        file.write(b"x" * 23)
    assert all_of(times) == [(1, 1, 1)]
    times.append(BOX, PROCESS, [Mark(2, 2, 2)])
    assert all_of(times) == [(1, 1, 1), (2, 2, 2)]


def test_unseen_output_has_the_time_of_its_journal_within_bounds(times: OutputTimes) -> None:
    assert times.catch_up(BOX, PROCESS, 1000, journal(0), journal(0, 9)) == (1000, 0, 0)
    assert all_of(times) == []
    times.catch_up(BOX, PROCESS, 1000, journal(7, 50_000), journal(3, 40_000))
    assert all_of(times) == [(40_000 + TICK_US, 0, 3), (50_000 + TICK_US, 7, 3)]
    times.catch_up(BOX, PROCESS, 1000, journal(8, 5), journal(3, 5))  # set to before the last mark
    assert all_of(times)[2:] == [(50_000 + TICK_US, 8, 3)]
    before = now_us()
    times.catch_up(BOX, PROCESS, 1000, journal(9, 2**60), journal(3, 2**60))  # and to the future
    assert before <= all_of(times)[-1].at_us <= now_us()
    times.catch_up(BOX, PROCESS, 1000, journal(7), journal(9, 60_000))  # cut, and written to
    assert [mark[1:] for mark in all_of(times)] == [(0, 3), (7, 3), (7, 9)]


def test_output_of_before_there_were_times_has_none(tmp_path: Path) -> None:
    times = OutputTimes.open(str(tmp_path))
    assert OutputTimes.open(str(tmp_path)).since_us == times.since_us > 0
    assert times.catch_up(BOX, PROCESS, times.since_us - 1, journal(7, 5), journal(0, 5)) == (UNKNOWN_US, 7, 0)
    times.append(BOX, PROCESS, [Mark(now_us(), 8, 0)])
    marks = times.load(BOX, PROCESS)
    assert [mark.at_us for mark in marks.of((6, 8), (0, 0), 9)] == [UNKNOWN_US, marks[1].at_us]
    assert marks.sizes_before(marks[1].at_us) == (0, 0)  # it may have come after that
    assert marks.sizes_before(marks[1].at_us + 1) == (8, 0)
    for wrong in ("garbage", str(2**60)):
        (tmp_path / "output-times" / ".since").write_text(wrong)
        assert times.since_us < OutputTimes.open(str(tmp_path)).since_us <= now_us()


def test_what_has_no_journals_any_more_goes(times: OutputTimes, tmp_path: Path) -> None:
    for process in ("prc_1", "prc_2", "prc_3"):
        times.append(BOX, process, [Mark(1, 1, 1)])
    (tmp_path / "output-times" / BOX / "prc_4.new").write_bytes(b"")  # a daemon died while it thinned out
    times.sweep(BOX, {"prc_1"}, lambda process: process != "prc_2")
    assert sorted(os.listdir(tmp_path / "output-times" / BOX)) == ["prc_1", "prc_2"]
    assert times.sandboxes() == [BOX]
    times.forget([BOX, "sbx_2"])
    assert times.sandboxes() == []


def test_what_is_not_ours_stays_and_does_no_harm(times: OutputTimes, tmp_path: Path) -> None:
    times.append(BOX, PROCESS, [Mark(1, 1, 1)])
    strangers = [tmp_path / "output-times" / ".nfs0001", tmp_path / "output-times" / BOX / "lost+found"]
    for path in strangers:
        path.touch()
    assert times.sandboxes() == [BOX]
    times.sweep(BOX, (), lambda _: True)
    assert all(path.exists() for path in strangers)


# -- a daemon ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "source").mkdir()
    return str(tmp_path / "source")


class Job:
    """A process with an input, and its marks."""

    def __init__(self, daemon: Inside, process: Any) -> None:
        self.daemon = daemon
        self.process_id = process.process_id
        self.sandbox_id = process.sandbox_id
        state_dir = daemon.core.log.directory
        self._times = OutputTimes(state_dir)
        self.file = Path(f"{state_dir}/output-times/{self.sandbox_id}/{self.process_id}")
        self.journal = Path(f"{state_dir}/sandboxes/{self.sandbox_id}/out/p/{self.process_id}.stdout")

    @property
    def marks(self) -> Marks:
        return self._times.load(self.sandbox_id, self.process_id)

    async def marked(self, stdout_bytes: int) -> None:
        """Wait until that much output is marked, and no more."""
        await until_async(lambda: len(self.marks) and self.marks[-1].stdout == stdout_bytes)

    async def read(self, **query: Any) -> Any:
        return await self.daemon.call("process.read", sandbox_id=self.sandbox_id, name=self.process_id, **query)

    async def write(self, data: bytes) -> None:
        name = {"sandbox_id": self.sandbox_id, "name": self.process_id}
        await self.daemon.call("process.write_stdin", **name, data=data)

    async def end(self) -> None:
        name = {"sandbox_id": self.sandbox_id, "name": self.process_id}
        await self.daemon.call("process.write_stdin", **name, eof=True)
        await self.daemon.call("process.wait", **name)


async def started(daemon: Inside, source: str, script: str) -> Job:
    box = (await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")).sandbox_id
    command = ["sh", "-c", script]
    return Job(daemon, await daemon.call("process.launch", sandbox_id=box, command=command, stdin=True))


async def test_a_journal_that_is_cut_loses_its_marks(tmp_path: Path, source: str) -> None:
    async with inside(str(tmp_path / "state")) as daemon:
        job = await started(daemon, source, "cat")
        for number in range(3):
            await job.write(b"0123456789")
            await job.marked(10 * (number + 1))
        os.truncate(job.journal, 10)  # as the code inside can
        await job.marked(10)
        await job.write(b"more")
        await job.marked(14)
        assert [mark.stdout for mark in map(job.marks.__getitem__, range(len(job.marks)))] == [10, 14]
        await job.end()
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_no_answer_has_too_many_times_and_none_is_lost(tmp_path: Path, source: str) -> None:
    count = MAX_OUTPUT_TIMES + 100
    async with inside(str(tmp_path / "state")) as daemon:
        job = await started(daemon, source, f"head -c {count} /dev/zero; read x")
        await job.marked(count)
        await job.end()
        job.file.write_bytes(b"".join(struct.pack("<QQQ", 10**15 + at, at, 0) for at in range(1, count + 1)))
        first = await job.read(times=True)
        assert (len(first.stdout), len(first.times), first.ended) == (MAX_OUTPUT_TIMES, MAX_OUTPUT_TIMES, False)
        rest = await job.read(times=True, stdout_offset=first.next_stdout_offset)
        assert (len(rest.stdout), len(rest.times), rest.ended) == (100, 100, True)
        for offset, time in enumerate(first.times + rest.times):
            assert (time.stdout_offset, parse_rfc3339(time.at)) == (offset + 1, 10**15 + offset + 1)
        since = await job.read(since=rfc3339(10**15 + 500))
        assert (since.stdout_offset, len(since.stdout)) == (499, count - 499)
        assert (await job.read()).times == []

        job.file.write_bytes(os.urandom(24_000) + b"x")
        pieces = [await job.read(times=True)]
        while not pieces[-1].ended:
            pieces.append(await job.read(times=True, stdout_offset=pieces[-1].next_stdout_offset))
        assert b"".join(piece.stdout for piece in pieces) == bytes(count)
        for piece in pieces:
            at = [time.at for time in piece.times]
            assert at == sorted(at)
            assert at[-1] <= rfc3339(now_us())
        assert (await job.read(since=rfc3339(now_us() - 10**6))).stdout_offset <= count

        # A power cut left zeros, of which one is the last mark that an answer has room for.
        sizes = [*range(6, MAX_OUTPUT_TIMES + 1), *[0] * 10, *range(MAX_OUTPUT_TIMES + 11, count), *[count] * 3000]
        job.file.write_bytes(b"".join(struct.pack("<QQQ", size, size, 0) for size in sizes))
        assert (await job.read(times=True, stdout_offset=5)).next_stdout_offset == count
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_what_asks_for_a_time_and_offsets_is_refused(tmp_path: Path, source: str) -> None:
    async with inside(str(tmp_path / "state")) as daemon:
        job = await started(daemon, source, "cat")
        both = await refused_async("invalid", job.read(since="2026-11-28T09:00:00Z", stderr_offset=1))
        assert "since: give either a time or offsets" in both.message
        other = await refused_async("invalid", job.read(since="yesterday"))
        assert "since: 'yesterday' is not a time" in other.message
        await job.end()
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_a_disk_that_takes_no_marks_costs_only_these(tmp_path: Path, source: str) -> None:
    async with inside(str(tmp_path / "state")) as daemon:
        job = await started(daemon, source, "cat")
        job.file.parent.parent.joinpath(job.sandbox_id).touch()  # where its directory would be
        await job.write(b"lost")
        await until_async(lambda: daemon.processes.supervisor._marker._failed)
        job.file.parent.unlink()
        await job.write(b" more")
        await job.marked(9)
        assert len(job.marks) == 1
        await job.end()
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_a_process_whose_output_cannot_be_watched_is_followed_to_its_end(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(KeeperInstance, "wait_output", fail)
    async with inside(str(tmp_path / "state")) as daemon:
        job = await started(daemon, source, "cat")
        await until_async(lambda: daemon.processes.supervisor._marker._failed)
        await job.end()
        await daemon.call("sandbox.terminate", sandbox_id="box")


@pytest.mark.needs("bwrap")
def test_output_of_while_no_daemon_ran_has_the_time_of_its_journal(running_daemon: Any, tmp_path: Path) -> None:
    daemon = running_daemon
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(str(tmp_path)).image_id).sandbox_id
        script = "for _ in 1 2 3; do read x; echo $x; done"
        process = client.process.launch(box, ["sh", "-c", script], name="work", stdin=True).process_id
        client.process.write_stdin(box, "work", data=b"one\n")
        times = OutputTimes(daemon.state_dir)
        until(lambda: len(times.load(box, process)))
    first = times.load(box, process)[0]
    place = f"{daemon.state_dir}/sandboxes/{box}"
    journal = f"{place}/out/p/{process}.stdout"

    def write_meanwhile(line: bytes, size: int) -> int:
        """Kill the daemon, write a line to the process, and answer when that wrote to its journal."""
        daemon.kill()
        with open(f"{place}/in/{process}.stdin", "wb") as pipe:
            pipe.write(line)
        until(lambda: os.path.getsize(journal) == size)
        return os.stat(journal).st_mtime_ns // 1000

    second_us = write_meanwhile(b"two\n", 8)
    daemon.start()
    until(lambda: len(times.load(box, process)) == 2)
    third_us = write_meanwhile(b"three\n", 14)  # with which it ends
    daemon.start()
    with daemon.connect() as client:
        ended = parse_rfc3339(client.process.wait(box, "work").ended_at)
        piece = client.process.read(box, "work", times=True)
        expected = [(first.at_us, 4), (second_us + TICK_US, 8), (third_us + TICK_US, 14)]
        assert [(parse_rfc3339(time.at), time.stdout_offset) for time in piece.times] == expected
        assert (piece.stdout, expected[2][0] < ended) == (b"one\ntwo\nthree\n", True)
        pieces = list(client.read_output(box, "work", times=True, since=piece.times[2].at, follow=False))
        assert [(got.stdout, got.times) for got in pieces] == [(b"three\n", piece.times[2:])]
