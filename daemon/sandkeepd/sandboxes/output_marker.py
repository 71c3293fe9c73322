"""Marking of output with the time as it comes.

The task of each process waits until its journals grow, and marks that. From then on the process is *busy*: one task for
all busy processes looks at their journals ten times a second, and writes all marks at once. A process of which it finds
nothing new is not busy any more: it costs nothing until its journals grow again.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import trio

from sandkeep.protocol.clock import now_us
from sandkeep_store.threads import Threads
from sandkeep_store.views.processes import ProcessState
from sandkeepd.contract.instance import Instance
from sandkeepd.core.core import Core
from sandkeepd.host.fairness import yield_to_loop
from sandkeepd.sandboxes.output_times import UNKNOWN_US, Mark, OutputTimes

T = TypeVar("T")

logger: Final = logging.getLogger("sandkeepd")

TICK_S: Final = 0.1
LOOKS_A_SECOND: Final = 500
"""Maximum looks at all busy processes together in a second: of more than fifty, each is looked at less often."""

_AT_ONCE: Final = 8
"""Looks in one round of the event loop."""


class _Followed:
    """A running process and its last mark. `is_cut`: a journal was found to be shorter than that."""

    def __init__(self, instance: Instance, process: ProcessState, mark: Mark) -> None:
        self.instance = instance
        self.process = process
        self.mark = mark
        self.is_cut = False
        self.busy = trio.CancelScope()

    @property
    def key(self) -> tuple[str, str]:
        """The ids of its sandbox and of itself."""
        return self.process.sandbox_id, self.process.process_id


class OutputMarker:
    """Marks the output of all processes. A mark that cannot be written is lost, and later output is marked."""

    def __init__(self, core: Core, times: OutputTimes) -> None:
        self._core = core
        self._times = times
        self._busy: dict[tuple[str, str], _Followed] = {}
        self._pending: dict[tuple[str, str], list[Mark]] = {}
        self._ticking = False
        self._in_own_thread = Threads(1)  # a disk that hangs holds up nothing else
        self._failed = False

    async def run(self, instance: Instance, process: ProcessState) -> None:
        """Mark output until the process has ended: what came unseen first, and then what comes. What comes after the
        last mark has the time of the end. A failure, as without a free descriptor, costs the other marks alone.
        """
        try:
            await self._mark(instance, process)
        except Exception as error:  # noqa: BLE001 - whatever it is: the process has to be followed to its end
            self._note_failure(error)
            await instance.wait(process.process_id)

    async def _mark(self, instance: Instance, process: ProcessState) -> None:
        process_id = process.process_id
        followed = _Followed(instance, process, await self._catch_up(instance, process))
        while instance.exit_of(process_id) is None:
            if not followed.is_cut:
                await instance.wait_output(process_id, *followed.mark[1:])
                await yield_to_loop()
                if instance.exit_of(process_id) is not None:
                    return
                self._look(followed)
            if followed.is_cut:
                self._pending.pop(followed.key, None)
                followed.mark = await self._catch_up(instance, process)
                followed.is_cut = False
            # Also after nothing: the code inside can modify without end what stays as long.
            await self._be_busy(followed)

    def _look(self, followed: _Followed) -> bool:
        """Mark output that has come; return True if there was some."""
        last, sizes = followed.mark, followed.instance.sizes(followed.process.process_id)
        followed.is_cut = sizes[0] < last.stdout or sizes[1] < last.stderr  # by the code inside
        if followed.is_cut or sizes == last[1:]:
            return False
        followed.mark = Mark(max(last.at_us, now_us()), *sizes)
        self._pending.setdefault(followed.key, []).append(followed.mark)
        return True

    async def _be_busy(self, followed: _Followed) -> None:
        """Let `_tick` mark the output, until it finds nothing new, or the process has ended."""
        followed.busy = trio.CancelScope()
        self._busy[followed.key] = followed
        if not self._ticking:
            self._ticking = True
            self._core.start_task(self._tick, "marking output")
        try:
            with followed.busy:
                await followed.instance.wait(followed.process.process_id)
        finally:
            self._busy.pop(followed.key, None)

    async def _tick(self) -> None:
        """Write marks, and look at busy processes, until there are none of both."""
        try:
            while self._busy or self._pending:
                pending, self._pending = self._pending, {}
                if pending:
                    await self._in_thread(partial(self._append, pending))
                await trio.sleep(max(TICK_S, len(self._busy) / LOOKS_A_SECOND))
                for number, (key, followed) in enumerate(list(self._busy.items())):
                    if number % _AT_ONCE == _AT_ONCE - 1:
                        await trio.lowlevel.checkpoint()
                    if self._busy.get(key) is followed and not self._look(followed):
                        del self._busy[key]
                        followed.busy.cancel()
        finally:
            self._ticking = False

    def _append(self, pending: dict[tuple[str, str], list[Mark]]) -> None:
        failed: OSError | None = None
        for key, marks in pending.items():
            try:
                self._times.append(*key, marks)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    async def _catch_up(self, instance: Instance, process: ProcessState) -> Mark:
        out, err = (instance.read(process.process_id, stream, 0, 0) for stream in ("stdout", "stderr"))
        began_us = process.started_us or process.requested_us
        if process.started_us == process.requested_us:  # restored, with what it wrote before its checkpoint
            began_us = UNKNOWN_US
        mark = await self._in_thread(
            partial(self._times.catch_up, process.sandbox_id, process.process_id, began_us, out, err)
        )
        return mark or Mark(began_us, out.size, err.size)

    async def _in_thread(self, work: Callable[[], T]) -> T | None:
        """Run file operations in a thread: they can wait for the disk. A failure is logged, once until they work."""
        try:
            done = await self._in_own_thread(work)
        except OSError as error:
            self._note_failure(error)
            return None
        self._failed = False
        return done

    def _note_failure(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            why = getattr(error, "strerror", None) or str(error)
            logger.warning("times of output are not kept", extra={"why": why})
