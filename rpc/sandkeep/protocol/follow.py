"""Cursors for following events and output by long polls. No I/O."""

from collections import deque
from collections.abc import Generator
from typing import Any, Final

from sandkeep.model import Event, EventPage, ProcessOutput
from sandkeep.protocol.methods import METHODS, Method

Query = tuple[Method, tuple[Any, ...], dict[str, Any]]
"""A call to make, whose result the generator that yields it gets."""

POLL_S: Final = 30.0
"""Seconds that one request waits at the daemon for something new."""


NOW: Final = "now"
"""The token of the present end of the log."""


class EventCursor:
    """The position of a reader of events. `token` is that of the last event returned: continue with ``after=token``."""

    def __init__(self, after: str | None, sandbox_id: str | None, type: str | None, follow: bool) -> None:
        self.token = after
        self._filters = {"sandbox_id": sandbox_id, "type": type}
        self._wait_s = POLL_S if follow else 0.0
        self._page: deque[Event] = deque()
        self._page_end: str | None = None
        self._caught_up = False

    def read(self) -> Generator[Query, Any, Event | None]:
        """Return the next event; None at the end."""
        while (event := self._next_event()) is None:
            query = self._next_query()
            if query is None:
                return None
            self.advance((yield METHODS["event.list"], (), query))
        return event

    def _next_query(self) -> dict[str, Any] | None:
        if self._caught_up and not self._wait_s:
            return None
        wait_s = 0.0 if self.token == NOW else self._wait_s  # a token first, to go on from if the daemon is restarted
        return {"after": self.token, "wait_s": wait_s, **self._filters}

    def advance(self, page: EventPage) -> None:
        """Take a page of the answer."""
        self._page.extend(page.events)
        self._page_end = page.next
        self._caught_up = page.caught_up
        if not page.events:
            self.token = page.next

    def _next_event(self) -> Event | None:
        if not self._page:
            return None
        event = self._page.popleft()
        # At the end of a page the daemon's own token is further on: filtered events need not be read again.
        self.token = f"{(self._page_end or '').rpartition(':')[0]}:{event.position}" if self._page else self._page_end
        return event


class OutputCursor:
    """The position of a reader of a process's output.

    `name` is to be read: the process's id once it is known, as its name can become another's when it has ended. Without
    `follow` the output is read that is there at the first answer: a process may write more quickly than it is read.
    `times` and `since` are those of `process.read`.
    """

    def __init__(
        self, name: str, stdout_offset: int, stderr_offset: int, follow: bool, times: bool = False,
        since: str | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self._query: dict[str, Any] | None = {"stdout_offset": stdout_offset, "stderr_offset": stderr_offset}
        if since is not None:
            self._query["since"] = since
        self._constant = {"wait_s": POLL_S if follow else 0.0, **({"times": True} if times else {})}
        self._follow = follow
        self._ends: tuple[int | None, int | None] | None = None

    def read(self, sandbox_id: str) -> Generator[Query, Any, ProcessOutput | None]:
        """Return the next piece that has news; None at the end."""
        while query := self.next_query():
            piece: ProcessOutput = yield METHODS["process.read"], (sandbox_id, self.name), query
            if self.advance(piece):
                return piece
        return None

    def next_query(self) -> dict[str, Any] | None:
        """Return the parameters of the next `process.read`; None at the end."""
        return self._query and {**self._query, **self._constant}

    def advance(self, piece: ProcessOutput) -> bool:
        """Take an answer; return True if it has news."""
        self.name = piece.process_id
        has_data = bool(piece.stdout or piece.stderr)
        self._ends = self._ends or (piece.stdout_bytes, piece.stderr_bytes)
        over = piece.ended or not (self._follow or (has_data and self._is_before_end(piece)))
        self._query = (
            None if over else {"stdout_offset": piece.next_stdout_offset, "stderr_offset": piece.next_stderr_offset}
        )
        return has_data or piece.ended or piece.note is not None

    def _is_before_end(self, piece: ProcessOutput) -> bool:
        after = piece.next_stdout_offset, piece.next_stderr_offset
        return any(end is None or at < end for at, end in zip(after, self._ends or (), strict=True))

    def move_to(self, stdout_offset: int, stderr_offset: int) -> None:
        """Continue from these offsets, after earlier output was read in another way."""
        if self._query is not None:
            self._query = {"stdout_offset": stdout_offset, "stderr_offset": stderr_offset}
