"""Marking of output with the time as it comes, ten times a second at most for each process."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import trio

from sandkeep.protocol.clock import now_us
from sandkeep_store.views.processes import ProcessState
from sandkeepd.contract.instance import Instance
from sandkeepd.host.fairness import yield_to_loop
from sandkeepd.sandboxes.output_times import Mark, OutputTimes

T = TypeVar("T")

logger: Final = logging.getLogger("sandkeepd")

LEAST_REST_S: Final = 0.1
MARKS_A_SECOND: Final = 200
"""Maximum marks of all processes together in a second, so that many busy ones do not keep the daemon busy."""


class OutputMarker:
    """Marks the output of all processes. A mark that cannot be written is lost, and later output is marked."""

    def __init__(self, times: OutputTimes) -> None:
        self._times = times
        self._resting = 0
        self._limiter = trio.CapacityLimiter(2)  # its own: a disk that hangs holds up nothing else
        self._failed = False

    async def run(self, instance: Instance, process: ProcessState) -> None:
        """Mark output until the process has ended: what came unseen first, and then what comes. What comes after the
        last mark has the time of the end.
        """
        process_id = process.process_id
        mark = await self._catch_up(instance, process)
        while instance.exit_of(process_id) is None:
            sizes = instance.sizes(process_id)
            if sizes == mark[1:]:
                await instance.wait_output(process_id, *sizes)
                await yield_to_loop()
                sizes = instance.sizes(process_id)
            if instance.exit_of(process_id) is not None:
                return
            if sizes[0] < mark.stdout or sizes[1] < mark.stderr:  # the code inside cut a journal
                mark = await self._catch_up(instance, process)
            elif sizes != mark[1:]:
                mark = Mark(max(mark.at_us, now_us()), *sizes)
                await self._in_thread(partial(self._times.append, process.sandbox_id, process_id, [mark]))
            await self._rest(instance, process_id)

    async def _catch_up(self, instance: Instance, process: ProcessState) -> Mark:
        out, err = (instance.read(process.process_id, stream, 0, 0) for stream in ("stdout", "stderr"))
        started_us = process.started_us or process.requested_us
        mark = await self._in_thread(
            partial(self._times.catch_up, process.sandbox_id, process.process_id, started_us, out, err)
        )
        return mark or Mark(started_us, out.size, err.size)

    async def _rest(self, instance: Instance, process_id: str) -> None:
        """Wait until the next mark may be made, or the end of the process."""
        self._resting += 1
        try:
            with trio.move_on_after(max(LEAST_REST_S, self._resting / MARKS_A_SECOND)):
                await instance.wait(process_id)
        finally:
            self._resting -= 1

    async def _in_thread(self, work: Callable[[], T]) -> T | None:
        """Run file operations in a thread: they can wait for the disk. A failure is logged, once until they work."""
        try:
            done = await trio.to_thread.run_sync(work, limiter=self._limiter)
        except OSError as error:
            if not self._failed:
                self._failed = True
                logger.warning("times of output are not kept", extra={"why": error.strerror or str(error)})
            return None
        self._failed = False
        return done
