"""Supervision of processes: one task each, from its start to the record of its exit; it enforces the time limit."""

import logging
import math
from signal import Signals

import trio

from sandkeep import events
from sandkeep.errors import StateError
from sandkeep.protocol.clock import now_us
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.threads import in_thread
from sandkeep_store.views.processes import ProcessState
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.processes import Exit
from sandkeepd.core.core import Core
from sandkeepd.core.retry import retry_until_done
from sandkeepd.host.fairness import yield_to_loop
from sandkeepd.sandboxes.oom import KILLED
from sandkeepd.sandboxes.output_marker import OutputMarker
from sandkeepd.sandboxes.output_times import OutputTimes
from sandkeepd.sandboxes.process_ends import shown_code
from sandkeepd.sandboxes.runtimes import Runtime, Runtimes

logger = logging.getLogger("sandkeepd")

GRACE_S = 0.1
"""Seconds the start of an ``exec`` waits for its end, so that both go on record in one append. The output of a process
that ends sooner is not marked with times, and has that of the end.
"""


class ProcessSupervisor:
    """Supervises processes, newly launched ones and those of an earlier daemon."""

    def __init__(self, core: Core, runtimes: Runtimes, times: OutputTimes) -> None:
        self._core = core
        self._runtimes = runtimes
        self._marker = OutputMarker(core, times)

    async def early_end(self, instance: Instance, process: ProcessState, *, awaits: bool) -> Exit | None:
        """The end of a process that was just started, if it has come already, or in a moment if that is awaited."""
        exited = instance.exit_of(process.process_id)
        if exited is not None or not awaits:
            return exited
        return await _wait(instance, process.process_id, min(GRACE_S, process.requested.timeout_s or GRACE_S))

    async def follow(self, runtime: Runtime, process: ProcessState, intent: Recorded | None) -> None:
        """Wait for the end of a process that is on record as started; kill it when its time is up."""
        instance = runtime.instance
        exited = await self._until_end(instance, process, adopted=intent is None)
        if exited is None:
            await self._runtimes.awake(process.sandbox_id)  # a frozen process cannot be killed, nor report its end
            exited = instance.exit_of(process.process_id) or await self._time_out(instance, process, intent)
        await self._record(process, await self.end_event(runtime, process, exited), cause=intent)
        instance.forget(process.process_id)

    async def _until_end(self, instance: Instance, process: ProcessState, *, adopted: bool) -> Exit | None:
        """Wait for the end, and mark output meanwhile; return None when the time is up."""
        if not adopted:
            exited = await _wait(instance, process.process_id, min(GRACE_S, _time_left(process)))
            if exited is not None:
                return exited
        with trio.move_on_after(_time_left(process)):
            await self._marker.run(instance, process)
            await yield_to_loop()
        return instance.exit_of(process.process_id)

    async def _time_out(self, instance: Instance, process: ProcessState, intent: Recorded | None) -> Exit:
        assert process.requested.timeout_s is not None
        if not process.timed_out:
            await self._record(process, events.ProcessTimedOut(timeout_s=process.requested.timeout_s), cause=intent)
        await instance.signal(process.process_id, Signals.SIGKILL)
        return await instance.wait(process.process_id)

    async def adopt(self, runtime: Runtime, process: ProcessState, found: trio.Event) -> None:
        """Take over a process of an earlier daemon: one that was started, or that nobody knows whether it was.

        `found` is set once the instance knows it, or it is certain that it will not.
        """
        try:
            pid = await self._find(runtime, process, found)
        except StateError:
            return  # the sandbox has ended, and its own task records the ends of its processes
        if pid is None:
            await self._record(process, _never_seen(process))
            return
        if runtime.instance.exit_of(process.process_id) is None:
            runtime.limits.begin(process.process_id)
        if process.status == "starting":
            await self._record(process, events.ProcessStarted(pid=pid))
        await self.follow(runtime, process, None)

    async def _find(self, runtime: Runtime, process: ProcessState, asked: trio.Event) -> int | None:
        """Ask a sandbox for a process's pid, retrying until it answers.

        Raises `not_ready` when the sandbox has ended, which another task records.
        """

        async def find() -> int | None:
            try:
                return await runtime.instance.find(process.process_id)
            finally:
                asked.set()

        return await retry_until_done(find, f"adopting {process.process_id}", passing=(StateError,))

    async def end_event(self, runtime: Runtime, process: ProcessState, exited: Exit) -> events.Event:
        """The event of the end of a process, whose output is complete, and on the disk if it is durable."""
        instance, process_id = runtime.instance, process.process_id
        if process.requested.durable:
            await self._sync(instance, process_id)
        await instance.measure_disk()
        if exited.exit_code == KILLED:
            await instance.measure_memory()
        met = runtime.limits.met(process, exited.exit_code)
        if exited.exit_code is None:
            return events.ProcessLost(message=exited.message or "nobody saw how the process ended")
        stdout_bytes, stderr_bytes = instance.sizes(process_id)
        return events.ProcessExited(
            exit_code=shown_code(process, exited.exit_code), stdout_bytes=stdout_bytes, stderr_bytes=stderr_bytes,
            oom_killed="memory" in met, limits_met=met,
        )  # fmt: skip

    async def _sync(self, instance: Instance, process_id: str) -> None:
        """Fsync the journals. A failure may be permanent, and is only logged, so that the end can be recorded."""
        try:
            await in_thread(instance.sync, process_id)
        except OSError as error:
            why = error.strerror or str(error)
            logger.error("its output may not survive a power cut", extra={"process_id": process_id, "why": why})

    async def _record(self, process: ProcessState, fact: events.Event, cause: Recorded | None = None) -> None:
        await self._core.record([NewEvent(process.process_id, fact, process.sandbox_id)], cause)


def _never_seen(process: ProcessState) -> events.Event:
    """Return the event of a process that its adopted sandbox does not know."""
    if process.status == "starting":
        message = "the daemon stopped before the process was started: launch it again"
        return events.ProcessLaunchFailed(code="not_ready", message=message, interrupted=True)
    return events.ProcessLost(message="the sandbox has no record of the process any more")


async def _wait(instance: Instance, process_id: str, seconds: float) -> Exit | None:
    """Return the process's exit, or None if it still runs after so many seconds."""
    known = instance.exit_of(process_id)
    if known is not None:  # it had ended before anybody waited, however little time is left
        return known
    with trio.move_on_after(seconds):
        exited = await instance.wait(process_id)
        await yield_to_loop()
        return exited
    return instance.exit_of(process_id)


def _time_left(process: ProcessState) -> float:
    limit = process.requested.timeout_s
    if limit is None or process.started_us is None:
        return math.inf
    gone = max(0.0, (now_us() - process.started_us) / 1e6)  # a clock that was put back gives nobody more time
    return max(0.0, limit - gone)
