"""Any order of appending, racing, following, crashing, closing and reopening keeps the log's promises."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.soak import times

from sandkeep.errors import StateError
from sandkeep.events import Meta, ProcessStarted
from sandkeep_store.eventlog.log import EventLog, NewEvent, Recorded

STREAMS = st.sampled_from(["prc_a", "prc_b", "prc_c", "prc_d"])
NOBODY = Meta()


class LogMachine(RuleBasedStateMachine):
    """The model is a list: the stream and the pid of every event that was acknowledged, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="sandkeep-log-")
        self.path = os.path.join(self.directory, "events.db")
        self.model: list[tuple[str, int]] = []
        self.ends: set[int] = {0}
        self.followers: list[tuple[int, list[int]]] = []
        self.log: EventLog | None = None
        self.pid = 0

    @initialize()
    def first_start(self) -> None:
        self.log = EventLog.open(self.path)
        self.log_id = self.log.log_id

    def teardown(self) -> None:
        if self.log is not None:
            self.log.close()
        shutil.rmtree(self.directory)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def during_a_run(self, work: Callable[[EventLog], Awaitable[None]]) -> None:
        """Do `work` with the log running. A writer ends with its run, so that the file is opened anew for each."""
        log = self.log
        assert log is not None

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(log.run)
                await work(log)
                nursery.cancel_scope.cancel()

        trio.run(main)
        log.close()
        self.log = EventLog.open(self.path)

    def event(self, stream: str, expected: int | None) -> NewEvent:
        self.pid += 1
        return NewEvent(stream, ProcessStarted(pid=self.pid), None, expected)

    def revision(self, stream: str) -> int:
        return sum(name == stream for name, _ in self.model)

    def acknowledge(self, recorded: list[Recorded]) -> None:
        for event in recorded:
            assert event.position == len(self.model) + 1
            assert event.revision == self.revision(event.stream) + 1
            assert isinstance(event.event, ProcessStarted)
            self.model.append((event.stream, event.event.pid))
        self.ends.add(len(self.model))

    # -- rules --------------------------------------------------------------------------------------------------------

    @rule(streams=st.lists(STREAMS, min_size=1, max_size=4), expecting=st.booleans())
    def append(self, streams: list[str], expecting: bool) -> None:
        first = streams[0]
        new = [
            self.event(first, self.revision(first) if expecting else None),
            *(self.event(s, None) for s in streams[1:]),
        ]

        async def work(log: EventLog) -> None:
            self.acknowledge(await log.append(new, NOBODY))

        self.during_a_run(work)

    @rule(streams=st.lists(STREAMS, min_size=2, max_size=6), wrong=st.sets(st.integers(0, 5)))
    def append_at_once_some_with_a_wrong_revision(self, streams: list[str], wrong: set[int]) -> None:
        answers: list[list[Recorded]] = []

        async def one(log: EventLog, number: int, stream: str) -> None:
            new = [self.event(stream, None), self.event(stream, 10_000 if number in wrong else None)]
            try:
                answers.append(await log.append(new, NOBODY))
                assert number not in wrong
            except StateError:
                assert number in wrong

        async def work(log: EventLog) -> None:
            async with trio.open_nursery() as nursery:
                for number, stream in enumerate(streams):
                    nursery.start_soon(one, log, number, stream)

        self.during_a_run(work)
        for recorded in sorted(answers, key=lambda events: events[0].position):
            self.acknowledge(recorded)

    @rule(stream=STREAMS, racers=st.integers(2, 5))
    def race_for_a_revision(self, stream: str, racers: int) -> None:
        expected = self.revision(stream)
        won: list[list[Recorded]] = []

        async def one(log: EventLog) -> None:
            with contextlib.suppress(StateError):  # somebody else won
                won.append(await log.append([self.event(stream, expected)], NOBODY))

        async def work(log: EventLog) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(racers):
                    nursery.start_soon(one, log)

        self.during_a_run(work)
        assert len(won) == 1
        self.acknowledge(won[0])

    @rule(after=st.integers(0, 100))
    def begin_to_follow(self, after: int) -> None:
        self.followers.append((max(end for end in self.ends if end <= after), []))

    @precondition(lambda self: self.followers)
    @rule(data=st.data(), limit=st.integers(1, 5))
    def follow_one_page(self, data: st.DataObject, limit: int) -> None:
        which = data.draw(st.integers(0, len(self.followers) - 1))
        start, seen = self.followers[which]
        at = seen[-1] if seen else start

        async def read() -> None:
            assert self.log is not None
            page = await self.log.page(at, limit)
            seen.extend(event.position for event in page.events)
            assert page.position in self.ends, "an append was split"
            assert page.caught_up == (page.position == len(self.model))

        trio.run(read)
        assert seen == list(range(start + 1, start + 1 + len(seen)))

    @rule()
    def close_and_open_again(self) -> None:
        assert self.log is not None
        self.log.close()
        self.log = EventLog.open(self.path)

    @rule()
    def open_a_copy_as_after_a_crash(self) -> None:
        """What is in the files at this instant is all that a killed process leaves."""
        copy = os.path.join(self.directory, "copy")
        os.mkdir(copy)
        for name in os.listdir(self.directory):
            if name.startswith("events.db"):
                # Not with Python's own open: closing any descriptor of the file would drop the log's lock on it.
                subprocess.run(["cp", os.path.join(self.directory, name), copy], check=True)
        log = EventLog.open(os.path.join(copy, "events.db"))
        assert log.head == len(self.model)
        log.close()
        shutil.rmtree(copy)

    @invariant()
    def the_log_holds_what_was_acknowledged(self) -> None:
        if self.log is None:
            return
        seen: list[Recorded] = []
        assert self.log.scan(seen.append) == self.log.head == len(self.model)
        assert [
            (event.stream, event.event.pid) for event in seen if isinstance(event.event, ProcessStarted)
        ] == self.model
        assert self.log.log_id == self.log_id


def _runs(count: int) -> settings:
    return settings(
        max_examples=count, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


class TestLogMachine(LogMachine.TestCase):  # type: ignore[name-defined]  # hypothesis makes it
    settings = _runs(20)


@pytest.mark.soak
class TestLogMachineForLong(LogMachine.TestCase):  # type: ignore[name-defined]  # hypothesis makes it
    settings = _runs(times(400))
