"""Running sandboxes, supervised by the daemon.

Each has one task of its own, whose nursery owns the tasks of its processes. That task ends when the sandbox does: by
itself, or because it is being terminated, which stops the task first. A stopping daemon cancels it, and the sandbox
goes on.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import trio

from sandkeep import events
from sandkeep.errors import DaemonError, ProviderError, StateError
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.contract.instance import Ending, Instance
from sandkeepd.core import rules
from sandkeepd.core.core import Core, Tries
from sandkeepd.core.holds import Holds
from sandkeepd.core.interruption import Interruptible
from sandkeepd.sandboxes.limits import LimitWatcher

ADOPTION_PATIENCE_S = 30.0
OPENING_PATIENCE_S: Final = 1.0


class Runtime:
    """A running sandbox in the daemon: its instance, and the nursery of its processes' tasks.

    `limits` attributes exits to the sandbox's limits; `io_seen` is the maximum of the bytes that its processes were
    seen to have read and written.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.limits = LimitWatcher(instance)
        self.io_seen = (0, 0)
        self.scope = trio.CancelScope()
        self.nursery: trio.Nursery | None = None
        self.finished = trio.Event()

    @property
    def open(self) -> bool:
        """True if tasks can be started in it."""
        return self.nursery is not None and not self.scope.cancel_called

    async def opened(self) -> None:
        """Wait until tasks can be started in it, or never can. That takes no longer than until its task has run."""
        while not self.open and not self.finished.is_set():
            await trio.lowlevel.checkpoint()

    async def stop(self) -> None:
        """Stop the tasks and wait until they have stopped. The sandbox goes on."""
        self.scope.cancel()
        await self.finished.wait()


class Runtimes:
    """The running sandboxes, by their ids; those still being adopted; and access to them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.by_id: dict[str, Runtime] = {}
        self.adopting: dict[str, Interruptible] = {}
        self._copies = Holds()
        self.copying = self._copies.held
        """Counts a sandbox, during a block, as one whose files are copied."""
        self.on_end: Callable[[Runtime, Ending], Awaitable[None]]
        """Called when a sandbox ended by itself; `Termination` sets it."""

    # -- keeping ------------------------------------------------------------------------------------------------------

    def keep(self, instance: Instance) -> Runtime:
        """Supervise a sandbox that runs."""
        runtime = Runtime(instance)
        self.by_id[instance.sandbox_id] = runtime
        self._core.start_task(partial(self._keep, runtime), f"keeping {instance.sandbox_id}")
        return runtime

    async def drop(self, sandbox_id: str) -> Runtime | None:
        """Stop supervising a sandbox that is about to be restarted; return its runtime."""
        runtime = self.by_id.pop(sandbox_id, None)
        if runtime is not None:
            await runtime.stop()
        return runtime

    async def _keep(self, runtime: Runtime) -> None:
        """Own the tasks of a sandbox's processes until the sandbox ends, is terminated, or the daemon stops."""
        try:
            why = await self._until_end(runtime)
        finally:
            runtime.nursery = None
            runtime.limits.close()
            runtime.finished.set()
        if why is not None:
            await self.on_end(runtime, why)

    async def _until_end(self, runtime: Runtime) -> Ending | None:
        """Hold the nursery open until the sandbox is gone, and return the reason; None when it was stopped before."""
        with runtime.scope:
            async with trio.open_nursery() as nursery:
                runtime.nursery = nursery
                nursery.start_soon(self._core.run_logged, partial(self._follow_pauses, runtime), "following pauses")
                why = await runtime.instance.ended()
                runtime.nursery = None  # which is closed to new tasks before `_keep` goes on
                nursery.cancel_scope.cancel()
            return why
        return None

    async def _follow_pauses(self, runtime: Runtime) -> None:
        """Record suspensions and resumptions by other programs than the daemon."""
        pauses = runtime.instance.pauses
        while pauses is not None:
            paused = pauses.is_paused()
            await self.agree(runtime)
            await pauses.pause_changed(paused)

    async def agree(self, runtime: Runtime) -> None:
        """Record that the sandbox was suspended or resumed from outside, if it was."""
        pauses, sandbox = runtime.instance.pauses, self._core.state.sandboxes[runtime.instance.sandbox_id]
        tries = Tries()
        while pauses is not None:
            if pauses.is_paused() and sandbox.status == "running":
                event: events.Event = events.SandboxSuspended(outside=pauses.reason is None, reason=pauses.reason)
            elif not pauses.is_paused() and sandbox.status == "suspended":
                event = events.SandboxResumed(outside=True)
            else:
                return
            outside = NewEvent(sandbox.sandbox_id, event, sandbox.sandbox_id, sandbox.revision)
            try:
                await self._core.record([outside], None, awaited=False)
            except StateError as conflict:
                await tries.again(conflict)  # something else happened to it at that instant: look again

    async def awake(self, sandbox_id: str) -> None:
        """Wait until the sandbox is not suspended."""
        sandbox = self._core.state.sandboxes[sandbox_id]
        while sandbox.status in ("suspending", "suspended", "resuming"):
            await self._core.changed(sandbox_id)

    # -- reaching -----------------------------------------------------------------------------------------------------

    async def running(self, sandbox: SandboxState) -> Runtime:
        """Return the runtime of a running sandbox, waiting a while for one that a starting daemon is still adopting.
        Raises `not_ready` at once for one that does not run.
        """
        rules.require_running(sandbox)
        found = await self.standing(sandbox)
        rules.require_running(sandbox)
        return found

    async def standing(self, sandbox: SandboxState) -> Runtime:
        """Return the runtime of a running or suspended sandbox, as `running` does."""
        await self.adopted(sandbox.sandbox_id)
        if sandbox.sandbox_id in self.adopting:
            message = (
                f"sandbox {sandbox.sandbox_id} is {self.note_of(sandbox.sandbox_id)}: try again later, or terminate it"
            )
            raise ProviderError("provider_unavailable", message, sandbox_id=sandbox.sandbox_id)
        if self._core.problems and sandbox.sandbox_id not in self.by_id:  # with a damaged log nothing is adopted
            raise DaemonError("storage_unavailable", self._core.problems[0])
        with trio.move_on_after(OPENING_PATIENCE_S):  # the task of one that was just made is about to run
            while True:
                found = self.by_id.get(sandbox.sandbox_id)
                if found is not None and found.open:
                    return found
                if sandbox.status not in rules.STANDING:
                    raise rules.not_ready(sandbox)
                await trio.sleep(0.002)
        raise ProviderError(
            "provider_unavailable",
            f"sandbox {sandbox.sandbox_id} does not answer: try again, or terminate it",
            sandbox_id=sandbox.sandbox_id,
        )

    def limits_changed(self, sandbox_id: str) -> None:
        """Go by the present limits of a sandbox, if it runs."""
        if (runtime := self.by_id.get(sandbox_id)) is not None:
            runtime.limits.changed()

    def note_of(self, sandbox_id: str) -> str | None:
        """Return a note that this daemon has not adopted the sandbox yet, or the reason for a delay of its end; None
        otherwise.
        """
        adoption = self.adopting.get(sandbox_id)
        if adoption is None:
            return self._core.stalled(sandbox_id)
        return "not adopted yet, after the daemon was started" + (f": {adoption.why}" if adoption.why else "")

    async def adopted(self, sandbox_id: str) -> None:
        """Wait a while until a starting daemon has adopted a sandbox, if that is still to be done."""
        if sandbox_id in self.adopting:
            with trio.move_on_after(ADOPTION_PATIENCE_S):
                await self.adopting[sandbox_id].finished.wait()

    def is_copied(self, sandbox_id: str) -> bool:
        """Tell if files are being copied into or out of a sandbox."""
        return self._copies.count(sandbox_id) > 0

    @contextmanager
    def reading(self, sandbox_id: str) -> Iterator[None]:
        """Read the sandbox's files during a block, which its end interrupts.

        Raises `not_ready` then.
        """
        reading = Interruptible()
        with self.copying(sandbox_id), self._core.under_way.running(sandbox_id, reading):
            yield
        if reading.scope.cancelled_caught:
            raise rules.not_ready(self._core.state.sandboxes[sandbox_id], "ended while its files were read")


def start_in(runtime: Runtime, task: Callable[[], Any], core: Core, what: str) -> bool:
    """Start a task in a sandbox's own nursery; False when the sandbox is ending."""
    if runtime.nursery is None or not runtime.open:
        return False
    runtime.nursery.start_soon(core.run_logged, task, what)
    return True
