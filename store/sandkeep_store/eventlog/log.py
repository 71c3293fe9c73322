"""The event log as the rest of the daemon sees it: append, read, wait.

Guarantees
    *Durable*: an append that returned survives the death of the process, and power loss where fsync is honest.
    *Atomic*: the events of an append are all there or none is, with neighbouring positions.
    *Ordered*: positions have no gaps, are in the order of commits, and are never used again.
    *Visible after commit*: no reader sees an event before it is committed; `on_commit` sees it first, then the append
    returns, then followers wake.

Everything but `open`, `scan`, `verify` and `close` is for the trio thread.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import msgspec
import trio

from sandkeep.errors import CallerError, DaemonError, DataError
from sandkeep.events import Event, Meta
from sandkeep.protocol.clock import now_us
from sandkeep_store.eventlog.ballast import Ballast
from sandkeep_store.eventlog.codec import CODEC, Codec, UnknownEvent
from sandkeep_store.eventlog.database import Database
from sandkeep_store.eventlog.eventless_commands import FILE_NAME as COMMANDS_NAME
from sandkeep_store.eventlog.eventless_commands import REMEMBERED_US, Commands
from sandkeep_store.eventlog.eventsourcing_recorder import Draft, LogRecorder
from sandkeep_store.eventlog.fingerprint_key import CommandKey, open_key, without_digest
from sandkeep_store.eventlog.reader import EVERYTHING, Filter, LogReader
from sandkeep_store.eventlog.ring import Ring
from sandkeep_store.eventlog.row import Recorded, Row, compacted
from sandkeep_store.eventlog.writer import Append, Writer
from sandkeep_store.threads import Threads
from sandkeep_store.views.blanks import change_fingerprint, redact_data
from sandkeep_store.views.state import State

__all__ = ["EventLog", "NewEvent", "Page", "Recorded", "UnknownEvent"]

PAGE_EVENTS: Final = 512
_READERS: Final = 4
_READER_ENDS_S: Final = 0.05


class NewEvent(NamedTuple):
    """An event to append. `sandbox_id` files it under a sandbox besides its stream.

    `expected_revision` is where the stream must be just before it: 0 = there is no such stream yet; None = anywhere.
    """

    stream: str
    event: Event
    sandbox_id: str | None = None
    expected_revision: int | None = None


class Page(NamedTuple):
    """Events in order, and the position from which to read on: everything up to it was looked at.

    `caught_up` says that there was nothing further at that moment.
    """

    events: list[Recorded]
    position: int
    caught_up: bool


class EventLog:
    """The log in one file. Open it, `scan` it, `run` it while appends are made, and close it.

    `on_commit` are callbacks that see every event before its append returns, such as views. They get the events of a
    commit, in order, on the trio thread, and must neither wait nor fail: a failure ends `run`. `commands` remembers
    commands that make no event. `reader` reads the file, in any thread.
    """

    def __init__(self, database: Database, codec: Codec = CODEC) -> None:
        self.log_id = database.log_id
        self.on_commit: list[Callable[[Sequence[Recorded]], None]] = []
        self._first_position = database.first_position
        self.commands = Commands(os.path.join(database.directory, COMMANDS_NAME))
        self._database = database
        self._codec = codec
        self.reader = LogReader(database, codec)
        recorder = LogRecorder(database)
        self._ring = Ring(recorder.head)
        reserve = Ballast(os.path.join(database.directory, "ballast"))
        with contextlib.suppress(OSError):  # a full disk is told to those who append
            reserve.hold()
        self._recorder = recorder
        self._writer = Writer(recorder, reserve, database.directory)
        self._in_reader_thread = Threads(_READERS)
        self._arrival = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._broken: BaseException | None = None
        self._done = trio.Event()

    @classmethod
    def open(cls, path: str) -> "EventLog":
        """Open or make the log in the file `path`, and lock it against every other process. Blocks.

        Raises `conflict` when another daemon holds it, and `storage_unavailable` when it cannot be opened, is damaged,
        or was written by another version of Sandkeep; the file is not changed then.
        """
        database = Database(path)
        try:
            return cls(database)
        except BaseException:
            database.close()
            raise

    @property
    def head(self) -> int:
        """The position of the last event that was committed and told of; 0 before the first."""
        return self._ring.head

    @property
    def first_position(self) -> int:
        """The position from which there are no gaps. Before it, only events of live objects remain."""
        return self._first_position

    @property
    def directory(self) -> str:
        """The directory of the log."""
        return self._database.directory

    @cached_property
    def command_key(self) -> CommandKey:
        """The key of the digests by which commands given again are known. Blocks when it is first asked for."""
        return open_key(self.directory)

    @property
    def doubts(self) -> list[str]:
        """Reasons, in sentences, not to trust the log: it lost its end, or is another log. It then takes no events."""
        return self._recorder.doubts

    @property
    def failure(self) -> str | None:
        """Reason why the log cannot be written, or could not last time, as a sentence; None while it can."""
        return self._database.displaced() or self._writer.failure

    # -- blocking ---------------------------------------------------------------------------------------------------

    def scan(self, visit: Callable[[Recorded], None], after: int = 0, upto: int | None = None) -> int:
        """Show every event after `after` to `visit`, decoded and in order, and answer the last position.

        `upto` is the last position of interest.

        Raises `UnknownEvent` for an event of a newer version, and `storage_unavailable` for one that is damaged.
        """
        return self.reader.scan(visit, after, self.head if upto is None else upto)

    def fold(self, state: State) -> None:
        """Bring a new `state` to the last event, quicker than by `scan`. For a start.

        Raises as `scan` does; the state then stands at the event before.
        """
        self.reader.fold(state, self.head)

    def verify(self) -> list[str]:
        """Check the file, every row, and every invariant of the rows. Return the problems, in sentences."""
        return self.doubts + self.reader.verify(self.head)

    def close(self) -> None:
        """Let go of the file. `run` must have returned."""
        self.commands.close()
        self._database.close()

    # -- writing ----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the writing thread until cancelled.

        Resource handling: cancelled, it commits and answers the pending appends, refuses later ones with
        `storage_unavailable`, and returns when the thread has ended. Error handling: a failing disk is reported to the
        callers of `append`, and in `failure`. An exception from `run` is a defect of the writer or of a callback in
        `on_commit`; all waiting callers are answered even then.
        """
        token = trio.lowlevel.current_trio_token()

        def deliver(batch: Sequence[Append]) -> None:
            token.run_sync_soon(self._deliver, batch)

        async def write() -> None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._writer.serve, deliver, limiter=trio.CapacityLimiter(1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            task_status.started()
            try:
                await self._done.wait()
            finally:
                self._writer.stop()
        if self._broken is not None:
            raise self._broken

    async def append(self, new: Sequence[NewEvent], meta: Meta, *, essential: bool = False) -> list[Recorded]:
        """Commit `new` as one and answer them as recorded; durable when it returns.

        An `essential` append (ending a sandbox) may use the space that is kept back for when the disk is full.
        Cancelled before it is taken into a commit, nothing is written; later, it answers as if it had not been
        cancelled.

        Raises `conflict` when a stream is not at its expected revision, `invalid` for an event that is too large,
        `storage_unavailable` when it cannot be written now. In all three cases nothing of it is in the log.
        """
        if not new:
            return []
        if self.doubts:
            raise DaemonError("storage_unavailable", self.doubts[0])
        call = await self._through_writer(self._drafts(new, meta), essential)
        if call.error is not None:
            raise call.error
        return call.recorded

    async def answers(self) -> None:
        """Return once the writing thread has answered, whether or not the disk takes anything.

        While that thread hangs, this does; the daemon is no use then, and its watchdog should know.
        """
        await self._through_writer([], essential=False)

    async def try_again(self) -> None:
        """See whether a log that could not be written can be written again; `failure` tells."""
        await self._through_writer([], essential=False, work=self._writer.probe)

    async def _through_writer(
        self, drafts: Sequence[Draft], essential: bool, work: Callable[[], Any] | None = None
    ) -> Append:
        while self._writer.full:
            await self._room.park()
        call = Append(drafts, essential, trio.lowlevel.current_task(), work=work)
        self._writer.put(call)

        def abort(_: Any) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.SUCCEEDED if self._writer.withdraw(call) else trio.lowlevel.Abort.FAILED

        await trio.lowlevel.wait_task_rescheduled(abort)
        return call

    # -- compaction -------------------------------------------------------------------------------------------------

    async def raise_first(self, position: int) -> None:
        """Say, durably and before any event goes, that there may be gaps before a position."""
        self._first_position = max(position, self._first_position)
        self._ring.forget(position - 1)
        await self._work(partial(self._recorder.raise_first, position))

    async def remove(self, positions: Sequence[int], streams: Mapping[int, str], execs: Mapping[int, int]) -> None:
        """Take events before `first_position` out, a few hundred at once, as appends wait. See `LogRecorder.remove`."""
        await self._work(partial(self._recorder.remove, positions, streams, execs))

    async def release_pages(self, most: int) -> int:
        """Give up to `most` free pages of the file back; answer how many are left free."""
        return int(await self._work(partial(self._recorder.release_pages, most)))

    def at(self, position: int) -> Recorded | None:
        """The event at a position, from the file; None when it is not there any more. Blocks."""
        found = self.reader.page(position - 1, position, 1, EVERYTHING)
        return found[0] if found else None

    async def redact(self, position: int) -> bool:
        """Remove the caller's data from an event, not the last one. Return False if it is not in the log."""
        found = await self._work(partial(self._recorder.redact, position, self._redacted))
        self._ring.forget(self.head - 1)
        return bool(found)

    def _redacted(self, row: Row) -> tuple[bytes, bytes]:
        """Return the redacted data and meta of an event. The fingerprint of its command stays for a day, keyed if it
        was not, as the command may be repeated.
        """
        keep = self.command_key.ensure_keyed if now_us() - row[6] < REMEMBERED_US else without_digest
        return redact_data(row[7]), change_fingerprint(row[8], keep)

    async def wipe(self) -> None:
        """Remove old versions of rows from the free space of the file and from the write-ahead log.

        Appends wait meanwhile, about three seconds for a million events. Raises `storage_unavailable`.
        """
        await self._work(self._recorder.wipe)
        while not await self._work(self._recorder.settle):  # noqa: ASYNC110  # some reader is in the middle of a page
            await trio.sleep(_READER_ENDS_S)

    async def _work(self, work: Callable[[], Any]) -> Any:
        call = await self._through_writer([], essential=False, work=work)
        if call.error is not None:
            raise call.error
        return call.result

    def _drafts(self, new: Sequence[NewEvent], meta: Meta) -> list[Draft]:
        encode = self._codec.encode
        more = msgspec.structs.replace(meta, command=None) if meta.command and len(new) > 1 else meta
        cause = self._codec.encode_meta(more)
        drafts = [
            Draft(stream, 0, sandbox_id, event.type, event.version, encode(event), cause, None, expected, event)
            for stream, event, sandbox_id, expected in new
        ]
        drafts[0].command_id = meta.command_id
        if more is not meta:  # a command is looked up, and redacted, in the first of its events
            drafts[0].meta = self._codec.encode_meta(meta)
        return drafts

    def _deliver(self, batch: Sequence[Append]) -> None:
        """Publish a commit, on the trio thread: to views, then to the callers of `append`, then to followers."""
        recorded = [event for append in batch for event in append.recorded]
        self._ring.extend(recorded)
        try:
            if recorded:
                for callback in self.on_commit:
                    callback(recorded)
        except BaseException as error:  # noqa: BLE001  # it is raised where it can be handled, in `run`
            self._broken = self._broken or error
            self._done.set()
        for append in batch:
            trio.lowlevel.reschedule(append.waiter)
        self._room.unpark_all()
        if recorded:
            self._arrival.unpark_all()

    # -- reading ----------------------------------------------------------------------------------------------------

    async def read(
        self,
        after: int,
        limit: int,
        *,
        stream: str | None = None,
        sandbox_id: str | None = None,
        type: str | None = None,
        upto: int | None = None,
    ) -> list[Recorded]:
        """The first events after a position: about `limit`, since no append is split. They may not be decoded.

        `type` is a whole type (``process.exited``) or its first word. `upto` is the last position of interest.
        """
        page = await self.page(after, limit, stream=stream, sandbox_id=sandbox_id, type=type, upto=upto)
        return page.events

    async def page(
        self,
        after: int,
        limit: int = PAGE_EVENTS,
        *,
        stream: str | None = None,
        sandbox_id: str | None = None,
        type: str | None = None,
        upto: int | None = None,
    ) -> Page:
        """Like `read`, and where to go on. Recent events come from memory, others from the file; nobody has a queue."""
        await trio.lowlevel.checkpoint()
        end = max(after, self.head if upto is None else min(upto, self.head))
        wanted = Filter(stream, sandbox_id, type)
        if after + 1 >= self._ring.first:
            return self._recent(after, end, limit, wanted)
        found = await self._in_reader_thread(self.reader.page, after, end, limit, wanted)
        reached = end if len(found) < limit else found[-1].position
        return Page(found, reached, reached == end)

    def _recent(self, after: int, end: int, limit: int, wanted: Filter) -> Page:
        """Return a page out of the ring, which holds the events after `after`."""
        if wanted != EVERYTHING:
            return _chosen(self._ring.between(after, end), limit, wanted, end)
        reached = end
        if end - after > limit:
            last = self._ring.at(after + limit)
            reached = min(end, last.position + last.more)
        return Page(self._ring.between(after, reached), reached, reached == end)

    async def wait(self, after: int) -> None:
        """Return once there is an event after a position."""
        if self.head > after:
            await trio.lowlevel.checkpoint()
        while self.head <= after:
            await self._arrival.park()

    async def state_at(self, sandbox_id: str, position: int) -> State:
        """Return the state of one sandbox, and the objects filed under it, as of a position, from its own events alone.

        Raises `compacted` before the first position without gaps, and else as `scan` does.
        """
        return await self._in_reader_thread(self.reader.state_at, sandbox_id, position)

    async def time_of(self, position: int) -> int:
        """Return the commit time of an event, in microseconds since 1970. Raises `compacted` if it is gone."""
        found = await self.read(position - 1, 1, upto=position)
        if not found:
            raise compacted(position, self.first_position)
        return found[0].time_us

    async def first_since(self, time_us: int) -> int:
        """Return the position of the first event that is not older than a moment; of the next one if all are."""
        return await self._in_reader_thread(self.reader.first_since, time_us)

    async def count_between(self, sandbox_id: str, after: int, upto: int, until_us: int | None = None) -> int:
        """Count the events of a sandbox after one position and up to another, and up to `until_us` if given."""
        count = partial(self.reader.count_between, sandbox_id, after, upto, until_us)
        return await self._in_reader_thread(count)

    async def find_command(self, command_id: str, owner: str) -> Recorded | None:
        """The first event that an owner's command caused, the last time it was given; None when it caused none.

        Every change is looked up so. It is one look into an index, for which a thread would take ten times as long.
        """
        known, found = self.reader.of_command_at_once(command_id, owner)
        if known:
            return found
        return await self._in_reader_thread(self.reader.of_command, command_id, owner)

    # -- positions and tokens -----------------------------------------------------------------------------------------

    def token(self, position: int) -> str:
        """Return the token with which a client resumes after `position`."""
        return f"{self.log_id}:{position}"

    def position_of(self, where: int | str, field: str) -> int:
        """The position of an event that a client names in a parameter, as a number or by a token.

        Raises `invalid` for one that there is not yet, `compacted` for one before which events are gone, and for a
        token as `parse_token` does.
        """
        position = where if isinstance(where, int) else self.parse_token(where, gaps=True, field=field)
        if not 1 <= position <= self.head:
            message = (
                f"{field}: there is no event {position}: give a position from 1 to {self.head}, where the log ends"
            )
            raise CallerError("invalid", message, field=field, head=self.head)
        if position < self.first_position:
            raise compacted(position, self.first_position)
        return position

    def parse_token(self, token: str, *, gaps: bool = False, field: str = "after") -> int:
        """Return the position of a client's token, which came as `field`; with `gaps` also one after which events are
        gone.

        Raises `invalid` for a malformed token, `wrong_log` for that of another log or of a future that this log does
        not have, and `compacted`, with the `first` position there is, when events after it are gone.
        """
        log_id, colon, digits = token.rpartition(":")
        if not colon or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
            raise CallerError(
                "invalid", f"{field}: {token[:80]!r} is not a token: give one that an earlier answer named", field=field
            )
        if log_id != self.log_id:
            raise DataError(
                "wrong_log", "the token belongs to another event log: start again without one", log_id=self.log_id
            )
        position = int(digits)
        if position > self.head:
            raise DataError(
                "wrong_log",
                f"the token is of position {position}, but the event log ends at {self.head}: start again without one",
                log_id=self.log_id,
            )
        if not gaps:
            self.require_gapless(position)
        return position

    def require_gapless(self, after: int) -> None:
        """Refuse to go on after a position, or to have done so just now, if events after it are gone: `compacted`."""
        if after + 1 < self.first_position:
            raise DataError(
                "compacted",
                f"events before position {self.first_position} were archived: read the objects again and go on there",
                first=self.first_position,
            )


def _chosen(recent: list[Recorded], limit: int, wanted: Filter, end: int) -> Page:
    """The page of the events wanted among `recent`, the events up to position `end`."""
    found: list[Recorded] = []
    whole = 0
    for event in recent:
        if len(found) >= limit and event.position > whole:
            return Page(found, event.position - 1, caught_up=False)
        if wanted.admits(event):
            found.append(event)
            whole = event.position + event.more
    return Page(found, end, caught_up=True)
