"""The one thread that writes the event log: it takes all pending appends, commits once, and answers each.

Under load a commit costs as much as its fsync, for one append or two hundred; so appends are batched. The thread checks
an append against the revisions, where nothing can come between the check and the commit, and drops one that fails its
check while its neighbours are committed.

When the disk fails
    All pending appends are refused with `storage_unavailable` and one sentence, `failure` holds the reason, and the
    next appends are tried again, so that the log recovers by itself. On a full disk, the reserve is released for
    appends that are `essential`; until it can be held again, no others are taken. After any other failure every
    connection is closed and the log is written to a new file first: SQLite and the kernel may disagree about its
    content; see `Database.reopen`.
"""

import contextlib
import errno
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from sandkeep import failpoints
from sandkeep.errors import DaemonError, SandkeepError, StateError
from sandkeep_store.eventlog.ballast import Ballast
from sandkeep_store.eventlog.eventsourcing_recorder import Draft, IntegrityError, LogRecorder, PersistenceError
from sandkeep_store.eventlog.row import Recorded, Row

MAX_WAITING: Final = 4096
"""Maximum number of queued appends; further callers wait."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Append(Struct, gc=False):
    """A caller's events until its answer, which is `recorded` or `error`. `waiter` is the caller's own.

    One without events asks for nothing but the answer: it touches no disk. Or it brings `work` of its own, which has
    the database for itself and must be short, since appends wait meanwhile.
    """

    drafts: Sequence[Draft]
    essential: bool
    waiter: Any
    taken: bool = False
    withdrawn: bool = False
    work: Callable[[], Any] | None = None
    result: Any = None
    recorded: list[Recorded] = []
    error: SandkeepError | None = None


class Writer:
    """Group commit. `serve` is the thread's body; everything else is for the threads that bring appends."""

    def __init__(self, recorder: LogRecorder, reserve: Ballast, directory: str) -> None:
        self.failure: str | None = None
        self._recorder = recorder
        self._reserve = reserve
        self._directory = directory
        self._distrusted = False
        self._waiting: deque[Append] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._stopping = False

    # -- for those who bring appends ------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """True if the queue of appends is full."""
        return len(self._waiting) >= MAX_WAITING

    def put(self, append: Append) -> None:
        """Queue `append` for the next batch."""
        with self._lock:
            if self._stopping:
                raise DaemonError("storage_unavailable", "the event log is closed: the daemon is stopping")
            self._waiting.append(append)
            if len(self._waiting) == 1:
                self._changed.notify()

    def withdraw(self, append: Append) -> bool:
        """Take `append` back. False when it is too late, and only the answer will tell whether it is in the log."""
        with self._lock:
            append.withdrawn = not append.taken
            return append.withdrawn

    def stop(self) -> None:
        """Make `serve` return after the pending appends are answered; refuse later ones."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    # -- the thread -----------------------------------------------------------------------------------------------

    def serve(self, deliver: Callable[[Sequence[Append]], None]) -> None:
        """Commit batch after batch until `stop`; pass each to `deliver` with its answers.

        On any error, all pending appends are answered.
        """
        batch: list[Append] = []
        try:
            while batch := self._take():
                self._carry_out(batch)
                self._work(batch)
                deliver(batch)
        except BaseException:
            self.stop()
            left = batch + self._take()
            _refuse(
                left, DaemonError("internal", "the event log's writer failed: see the daemon's log, and start it again")
            )
            deliver(left)
            raise

    def _take(self) -> list[Append]:
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                batch = [append for append in self._waiting if not append.withdrawn]
                self._waiting.clear()
                for append in batch:
                    append.taken = True
                if batch or self._stopping:
                    return batch

    def _carry_out(self, batch: Sequence[Append]) -> None:
        batch = [append for append in batch if append.drafts]
        if not batch:
            return
        try:
            self._commit(batch)
        except PersistenceError as error:
            full = _is_full(error)
            self._distrusted = self._distrusted or not full
            self._fail(batch, str(error), full=full)
        except OSError as error:
            self._fail(batch, str(error.strerror), full=error.errno in _FULL)
        except SandkeepError as error:
            self.failure = error.message
            _refuse(batch, error)

    def _work(self, batch: Sequence[Append]) -> None:
        for append in batch:
            if append.work is None:
                continue
            try:
                self._mend()
                append.result = append.work()
            except PersistenceError as error:
                self._distrusted = self._distrusted or not _is_full(error)
                append.error = _failed(str(error))
            except OSError as error:
                append.error = _failed(str(error.strerror))
            except SandkeepError as error:
                append.error = error

    def _commit(self, batch: Sequence[Append]) -> None:
        """Commit the appends that pass their checks. Raises `PersistenceError` or OSError if nothing was committed."""
        self._recorder.require_in_place()
        self._mend()
        self._reserve.hold()
        try:
            self._insert(batch, trusting=True)
        except IntegrityError:
            # A stream that was said to be new is there. One by one, so that only the append concerned is refused.
            for append in batch:
                self._insert_alone(append)
        self.failure = None

    def probe(self) -> None:
        """See whether the log can be written again. For `work`."""
        try:
            self._recorder.require_in_place()
            self._mend()
            self._reserve.hold()
            self._recorder.touch()
        except OSError as error:
            if error.errno not in _FULL:
                self.failure = self._unwritable(str(error.strerror))
        except PersistenceError as error:
            self._distrusted = self._distrusted or not _is_full(error)
        else:
            self.failure = None

    def _mend(self) -> None:
        if self._distrusted or self._recorder.suspect:
            self._recorder.reopen()
            self._distrusted = False

    def _insert_alone(self, append: Append) -> None:
        try:
            self._insert([append])
        except IntegrityError:
            append.error = StateError(
                "conflict", "the object changed meanwhile: look at it again and repeat the command"
            )

    def _insert(self, batch: Sequence[Append], *, trusting: bool = False) -> None:
        """Commit the appends that pass their checks; with `trusting`, a stream declared new is not looked up."""
        accepted = self._check(batch, trusting=trusting)
        if not accepted:
            return
        _reach(accepted, failpoints.BEFORE)
        rows = iter(self._recorder.insert([append.drafts for append in accepted], time_us=time.time_ns() // 1000))
        _reach(accepted, failpoints.AFTER)
        for append in accepted:
            append.error = None
            append.recorded = [_recorded(draft, next(rows)) for draft in append.drafts]

    def _check(self, batch: Sequence[Append], *, trusting: bool) -> list[Append]:
        """Give every event its revision; leave out the appends that expected others than there are."""
        names = set()
        for append in batch:
            for draft in append.drafts:
                if trusting and draft.expected_revision == 0:
                    self._recorder.assume_new(draft.stream)
                names.add(draft.stream)
                if draft.sandbox:
                    names.add(draft.sandbox)
        self._recorder.know(names)
        revisions: dict[str, int] = {}
        return [append for append in batch if self._number(append, revisions)]

    def _number(self, append: Append, revisions: dict[str, int]) -> bool:
        """Number the events of one append after those before it in the batch; nothing of a refused one counts."""
        own = revisions if len(append.drafts) == 1 else dict[str, int]()
        for draft in append.drafts:
            stream = draft.stream
            at = own.get(stream) or revisions.get(stream) or self._recorder.revision(stream)
            if draft.expected_revision is not None and draft.expected_revision != at:
                append.error = _changed(stream, at, draft.expected_revision)
                return False
            own[stream] = draft.revision = at + 1
        if own is not revisions:
            revisions.update(own)
        return True

    # -- failing --------------------------------------------------------------------------------------------------

    def _fail(self, batch: Sequence[Append], reason: str, *, full: bool) -> None:
        self.failure = f"the disk is full: free space on {self._directory}" if full else self._unwritable(reason)
        _refuse(batch, DaemonError("storage_unavailable", self.failure))
        essential = [append for append in batch if append.essential and not append.recorded]
        if essential:
            self._rescue(essential, full=full)

    def _unwritable(self, reason: str) -> str:
        sentence = (
            f"the event log cannot be written ({reason}): repair the disk or the permissions of {self._directory}"
        )
        damaged = "malformed" in reason
        return f"{sentence}; if it is damaged, run `sandkeep store repair` without a daemon" if damaged else sentence

    def _rescue(self, essential: Sequence[Append], *, full: bool) -> None:
        """Retry essential appends once, on a full disk with the reserved space. `failure` stays as it is."""
        with contextlib.suppress(PersistenceError, SandkeepError, OSError):
            self._recorder.require_in_place()
            if full:
                self._reserve.release()
            self._mend()
            self._insert(essential)


def _reach(batch: Sequence[Append], side: str) -> None:
    if failpoints.armed:
        for append in batch:
            for draft in append.drafts:
                failpoints.reach(f"{draft.type}:{side}")


def _refuse(batch: Sequence[Append], error: SandkeepError) -> None:
    """Give each unanswered append an error object of its own: each is raised in another task."""
    for append in batch:
        if not append.recorded:
            append.error = type(error)(error.code, error.message, **error.data)


def _failed(why: str) -> DaemonError:
    """Return the error for an append to a log that cannot be written."""
    return DaemonError(
        "storage_unavailable", f"the event log cannot be written ({why}): repair the disk, and try again"
    )


def _is_full(error: PersistenceError) -> bool:
    cause = error.__cause__
    return isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def _changed(stream: str, revision: int, expected: int) -> StateError:
    sentence = (
        f"{stream} is there already: choose another id"
        if expected == 0
        else f"{stream} changed meanwhile (revision {revision}, not {expected}): look at it and repeat the command"
    )
    return StateError("conflict", sentence, stream=stream, revision=revision)


def _recorded(draft: Draft, row: Row) -> Recorded:
    position, _, revision, _, type, version, time_us, data, meta, _, more, _ = row
    return Recorded(
        position, time_us, draft.stream, revision, draft.sandbox, draft.event, type, version, data, meta, more
    )
