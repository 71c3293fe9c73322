"""Reconciliation at the start, of the log with the providers.

Intents without an outcome are undone (a half-made sandbox) or finished (a requested end; see `core.operation` for the
others); running sandboxes are adopted with their processes, or recorded as lost; a provider's objects that no event
owns are removed.

Each provider has a task of its own, and in it each sandbox, so that one that hangs delays no other. A sandbox is lost
when its provider says that it is gone, and never for lack of an answer: the request is retried, with backoff, until it
is answered. Meanwhile reads are answered, and requests to such a sandbox wait a while and then fail with the reason;
its end can be requested, and is carried out when the provider answers.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import trio

from sandkeep import events, failpoints
from sandkeep.errors import SandkeepError, StateError
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.app.file_services import SnapshotServices
from sandkeepd.contract.instance import Ending, Instance
from sandkeepd.contract.provider import Provider
from sandkeepd.core import rules
from sandkeepd.core.core import Core
from sandkeepd.core.interruption import Interruptible
from sandkeepd.core.operation import Operation
from sandkeepd.core.retry import retry_until_done
from sandkeepd.sandboxes.oom import KILLED
from sandkeepd.sandboxes.process_ends import exits_left, process_ends
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.runtimes import Runtimes, start_in
from sandkeepd.sandboxes.suspend import is_reviving, outcome_of_change
from sandkeepd.snapshots.layers import LayerReferences

T = TypeVar("T")

logger = logging.getLogger("sandkeepd")

RESTORE_INTERRUPTED: Final = "the daemon stopped while the sandbox was being restored, and it has the files that it had"

ANSWER_DEADLINE_S: Final = 20.0
"""Seconds a provider may take for one answer before the request is repeated."""


def _is_whole(sandbox: SandboxState) -> bool:
    return sandbox.status != "creating" and not is_reviving(sandbox)


class Owned:
    """The `Ledger` of one provider: the log's present content."""

    def __init__(self, core: Core, layers: LayerReferences, provider: str) -> None:
        self._state = core.state
        self._layers = layers
        self._provider = provider

    def owns_sandbox(self, sandbox_id: str) -> bool:
        """See `Ledger.owns_sandbox`."""
        sandbox = self._state.sandboxes.get(sandbox_id)
        return sandbox is not None and not sandbox.hidden

    def knows_sandbox(self, sandbox_id: str) -> bool:
        """See `Ledger.knows_sandbox`."""
        return sandbox_id in self._state.sandboxes

    def owns_image(self, image_id: str) -> bool:
        """See `Ledger.owns_image`."""
        image = self._state.images.get(image_id)
        return image is not None and not image.ended

    def owns_layer(self, name: str) -> bool:
        """See `Ledger.owns_layer`."""
        return self._layers.is_needed(name)

    def plans(self) -> Mapping[str, dict[str, Any]]:
        """See `Ledger.plans`."""
        ours = (s for s in self._state.sandboxes.values() if s.requested.provider == self._provider and not s.hidden)
        return {sandbox.sandbox_id: sandbox.requested.plan for sandbox in ours}


class Reconciler:
    """Does all that once, when a daemon starts."""

    def __init__(
        self, core: Core, runtimes: Runtimes, processes: Processes, services: SnapshotServices,
        operations: Sequence[Operation[Any, Any]] = (),
    ) -> None:  # fmt: skip
        self._core = core
        self._services = services
        self._operations: Sequence[Operation[Any, Any]] = (*services.operations, services.gc.removal, *operations)
        self._abandoned: list[str] = []
        self._runtimes = runtimes
        self._processes = processes
        self._half_made: list[SandboxState] = []

    def announce(self) -> None:
        """Before the first request: note the sandboxes to be adopted or undone, so that requests to them wait. Later
        work is never undone.
        """
        for operation in self._operations:
            operation.announce()
        self._abandoned = self._services.checkpoints.files.abandoned()
        self._half_made = [sandbox for sandbox in self._core.state.sandboxes.values() if not _is_whole(sandbox)]
        for sandbox_id, sandbox in self._core.state.sandboxes.items():
            known = sandbox.status in (*rules.STANDING, "restoring") and not is_reviving(sandbox)
            if known and sandbox_id not in self._runtimes.adopting:
                self._runtimes.adopting[sandbox_id] = adoption = Interruptible()
                self._core.under_way.register(sandbox_id, adoption)

    async def run(self, begin: trio.Event | None = None) -> None:
        """Bring the log and the providers together, once `begin` is set."""
        if begin is not None:
            await begin.wait()
        core = self._core
        asked = [image.requested.provider for image in core.state.images.values() if not image.ended]
        asked += [s.requested.provider for s in core.state.sandboxes.values() if not s.hidden]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(core.run_logged, self._recover, "recovery of operations")
            for name in sorted({*core.providers, *asked}):
                settle = partial(self._settle_provider, name, is_used=name in asked)
                nursery.start_soon(core.run_logged, settle, f"reconciling {name}")

    async def _recover(self) -> None:
        """Recover operations, and what they left, each by itself: one whose store does not answer delays no other."""
        run_logged, services = self._core.run_logged, self._services
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_logged, services.snapshots.removal.sending.settle, "sending archives")
            for operation in self._operations:
                nursery.start_soon(run_logged, operation.recover, f"recovery of {type(operation).__name__}")
            sweep = partial(services.checkpoints.sweep, self._abandoned)
            nursery.start_soon(run_logged, sweep, "removing copies of checkpoints")
            nursery.start_soon(run_logged, services.snapshots.removal.drop_kept, "removing archives that were kept")
            nursery.start_soon(run_logged, services.branches.sweep, "removing files of branches")
            nursery.start_soon(run_logged, services.artifacts.sweep, "removing unfinished artifacts")
            nursery.start_soon(run_logged, services.archives.sweep, "removing what was being written")

    async def _settle_provider(self, name: str, *, is_used: bool) -> None:
        core = self._core
        tried: list[trio.Event] = []
        async with trio.open_nursery() as nursery:
            for sandbox_id, adoption in list(self._runtimes.adopting.items()):
                sandbox = core.state.sandboxes[sandbox_id]
                if sandbox.requested.provider == name:
                    tried.append(trio.Event())
                    adopt = partial(self._adopt_noted, sandbox, tried[-1], adoption)
                    nursery.start_soon(core.run_logged, adopt, f"adopting {sandbox_id}")
            for event in tried:  # those that do not answer yet are not waited for
                await event.wait()
            with trio.move_on_after(ANSWER_DEADLINE_S):
                await self._undone(name)
            if name in core.providers:
                # Nobody needs to know of an engine that is not installed while nothing of it is on record.
                level = logging.WARNING if is_used else logging.DEBUG
                await self._retry(name, self._clean_up, f"cleaning up {name}", level=level)

    async def _undone(self, name: str) -> None:
        """Wait until what a provider had half made is undone, or it is known why not: see `core.operation`."""
        for sandbox in self._half_made:
            if sandbox.requested.provider == name:
                with suppress(SandkeepError):
                    await self._core.settled(sandbox.sandbox_id, partial(_is_whole, sandbox))

    async def _retry(
        self,
        name: str,
        work: Callable[[Provider], Awaitable[T]],
        what: str,
        adoption: Interruptible | None = None,
        tried: trio.Event | None = None,
        level: int = logging.WARNING,
    ) -> T:
        """Retry some work with a provider until it answers. `adoption` gets the reason of a delay."""
        core = self._core

        async def attempt() -> T:
            try:
                return await work(core.provider(name))
            finally:
                if tried is not None:
                    tried.set()

        def on_error(error: SandkeepError) -> None:
            if adoption is not None:
                adoption.why = error.message

        return await retry_until_done(
            attempt, what, core.providers.get(name), deadline_s=ANSWER_DEADLINE_S, on_error=on_error, level=level
        )

    # -- adopting -----------------------------------------------------------------------------------------------------

    async def _adopt_noted(self, sandbox: SandboxState, tried: trio.Event, adoption: Interruptible) -> None:
        """Adopt a sandbox, unless its end interrupts that."""
        try:
            with self._core.under_way.running(sandbox.sandbox_id, adoption):
                await self._adopt(sandbox, tried, adoption)
        finally:
            del self._runtimes.adopting[sandbox.sandbox_id]
            tried.set()

    async def _adopt(self, sandbox: SandboxState, tried: trio.Event, adoption: Interruptible) -> None:
        """Take over a sandbox, or tell that it is lost; neither when its end is ordered meanwhile."""
        # What was ended can be told to resume from then on, and what that starts is not to be adopted.
        if sandbox.status == "restoring" and await self._undo_restore(sandbox, tried, adoption):
            return
        if sandbox.status not in rules.STANDING:
            return
        sandbox_id, revision = sandbox.sandbox_id, sandbox.revision
        take_over = partial(self._take_over, sandbox)
        await self._drop_replaced(sandbox)
        instance = await self._retry(sandbox.requested.provider, take_over, f"adopting {sandbox_id}", adoption, tried)
        failpoints.reach("adopt.held")
        try:
            if instance is None or isinstance(instance, Ending):
                await self._lost(sandbox, instance.message if instance else "its provider no longer has it", revision)
            else:
                adopted: list[events.Event] = [*outcome_of_change(sandbox, instance), events.SandboxAdopted()]
                told = [NewEvent(sandbox_id, event, sandbox_id, revision + n) for n, event in enumerate(adopted)]
                await self._core.record(told, None, awaited=False)
        except StateError:
            logger.info("not adopted, as it is being ended", extra={"sandbox_id": sandbox.sandbox_id})
            return
        if not isinstance(instance, Ending | None):
            await self._adopt_processes(sandbox, instance)

    async def _undo_restore(self, sandbox: SandboxState, tried: trio.Event, adoption: Interruptible) -> bool:
        """Give a sandbox whose restore was interrupted the files that it had; return True if it was ended for that.
        Otherwise it still runs.
        """
        core, sandbox_id, asked = self._core, sandbox.sandbox_id, sandbox.requested

        async def put_back(provider: Provider) -> bool:
            assert provider.replacement is not None
            return await provider.replacement.put_back(sandbox_id, asked.plan, sandbox.handle)

        ended = await self._retry(asked.provider, put_back, f"undoing the restore of {sandbox_id}", adoption, tried)
        revision, plans = sandbox.revision, sandbox.plans
        told = process_ends(core, sandbox, await exits_left(core, sandbox), KILLED) if ended else []
        failed = events.SandboxRestoreFailed(
            code="not_ready", message=RESTORE_INTERRUPTED, ended=ended, interrupted=True
        )
        try:
            await core.record([*told, NewEvent(sandbox_id, failed, sandbox_id, revision)], None)
        except StateError:
            logger.info("not undone, as it is being ended", extra={"sandbox_id": sandbox_id})
        else:
            await self._services.layers.drop_plans(asked.provider, plans)
        return ended

    async def _drop_replaced(self, sandbox: SandboxState) -> None:
        """A daemon may have died before it removed the files that a restore had replaced."""
        replacement = self._core.provider(sandbox.requested.provider).replacement
        if sandbox.restored_from is not None and replacement is not None:
            await replacement.drop_replaced(sandbox.sandbox_id)

    async def _take_over(self, sandbox: SandboxState, provider: Provider) -> Instance | Ending | None:
        asked = sandbox.requested
        assert sandbox.isolation is not None
        return await provider.adopt(sandbox.sandbox_id, asked.spec, asked.plan, sandbox.isolation, sandbox.handle)

    async def _adopt_processes(self, sandbox: SandboxState, instance: Instance) -> None:
        """Start the tasks of its processes, and wait until the instance knows each: signals need that."""
        active = {process: trio.Event() for process in sandbox.active}
        runtime = self._runtimes.keep(instance)
        await runtime.opened()
        for process_id, found in active.items():
            process = self._core.state.processes[process_id]
            task = partial(self._processes.supervisor.adopt, runtime, process, found)
            if not start_in(runtime, task, self._core, f"process {process_id}"):
                return
        pauses = instance.pauses
        if pauses is None or not pauses.is_paused():  # a frozen one reports nothing
            with trio.move_on_after(ANSWER_DEADLINE_S):
                for found in active.values():
                    await found.wait()
        logger.info("adopted", extra={"sandbox_id": sandbox.sandbox_id, "processes": len(active)})

    async def _lost(self, sandbox: SandboxState, why: str, revision: int) -> None:
        """Tell that a sandbox is gone, with all that was known of it last: how its processes had ended, if they had."""
        logger.warning("sandbox lost", extra={"sandbox_id": sandbox.sandbox_id, "why": why})
        exits = await exits_left(self._core, sandbox)
        told = process_ends(self._core, sandbox, exits, None, why=f"its sandbox was lost: {why}")
        lost = events.SandboxLost(last_status=sandbox.status, message=why)
        told.append(NewEvent(sandbox.sandbox_id, lost, sandbox.sandbox_id, revision))
        await self._core.record(told, None, awaited=False)

    # -- objects without an owner -------------------------------------------------------------------------------------

    async def _clean_up(self, provider: Provider) -> None:
        """Remove the provider's objects that no event owns, and note those of other logs."""
        swept = await provider.clean_up(Owned(self._core, self._services.layers, provider.name))
        for what in swept.removed:
            logger.warning("removed objects that no event owns", extra={"what": what})
        if swept.foreign:
            told = {"count": len(swept.foreign), "first": swept.foreign[0], "all": "daemon.status"}
            logger.warning("ignored sandboxes and files of other logs", extra=told)
        self._core.foreign[provider.name] = swept.foreign
