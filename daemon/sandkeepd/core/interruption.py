"""Work in progress on a subject, which the subject's end interrupts."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Interruptible:
    """Work that can be interrupted. `why` is the reason for its waiting, if known."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.finished = trio.Event()
        self.why: str | None = None

    async def interrupt(self) -> None:
        """Cancel the work, and wait for its end."""
        self.scope.cancel()
        await self.finished.wait()


class UnderWay:
    """The work that is under way, by its subject's stream."""

    def __init__(self) -> None:
        self._work: dict[str, list[Interruptible]] = {}

    def register(self, stream: str, work: Interruptible) -> None:
        """Register work that is about to begin, to be interruptible. It must be entered by `running`."""
        self._work.setdefault(stream, []).append(work)

    @contextmanager
    def running(self, stream: str, work: Interruptible) -> Iterator[None]:
        """Register the work for the length of a block; a block that is interrupted just ends."""
        if work not in self._work.get(stream, ()):
            self.register(stream, work)
        try:
            with work.scope:
                yield
        finally:
            work.finished.set()
            self._work[stream].remove(work)
            if not self._work[stream]:
                del self._work[stream]

    async def interrupt(self, stream: str) -> None:
        """Cancel all work on a subject, and wait for its end."""
        for work in list(self._work.get(stream, ())):
            await work.interrupt()
