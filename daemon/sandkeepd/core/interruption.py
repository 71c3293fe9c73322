"""Work that is under way with a subject, and that the subject's end interrupts."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Interruptible:
    """Some work that can be interrupted. `why` says what it waits for, when that is known."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.finished = trio.Event()
        self.why: str | None = None

    async def interrupt(self) -> None:
        """Have it end, and wait until it has."""
        self.scope.cancel()
        await self.finished.wait()


class UnderWay:
    """The work that is under way, by its subject's stream."""

    def __init__(self) -> None:
        self._work: dict[str, list[Interruptible]] = {}

    def note(self, stream: str, work: Interruptible) -> None:
        """Have what is about to begin be interrupted from now on. It must be entered by `running`."""
        self._work.setdefault(stream, []).append(work)

    @contextmanager
    def running(self, stream: str, work: Interruptible) -> Iterator[None]:
        """For the length of a block the work is done; a block that is interrupted just ends."""
        if work not in self._work.get(stream, ()):
            self.note(stream, work)
        try:
            with work.scope:
                yield
        finally:
            work.finished.set()
            self._work[stream].remove(work)
            if not self._work[stream]:
                del self._work[stream]

    async def interrupt(self, stream: str) -> None:
        """Have all of it end that is under way with a subject, and wait until it has."""
        for work in list(self._work.get(stream, ())):
            await work.interrupt()
