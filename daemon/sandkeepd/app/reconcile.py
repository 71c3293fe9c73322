"""Start-up: what the log says against what the providers have.

Intents without an outcome are undone (a sandbox half made) or finished (an end that was ordered; see `core.operation`
for the others); running sandboxes are adopted with their processes, or told as lost; what a provider holds and no event
owns is removed.

Each provider has a task of its own, and in it each sandbox, so that one that hangs delays nobody else. A sandbox is
lost when its provider says that it is gone, and never because it says nothing: it is asked again, at growing intervals,
until it answers. Meanwhile reads are answered, and requests to such a sandbox wait a while and are told what they wait
for; its end can be ordered, and is carried out when the provider answers.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import trio

from sandkeep import events, failpoints
from sandkeep.errors import SandkeepError, StateError
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.app.file_recovery import FileRecovery
from sandkeepd.app.file_services import SnapshotServices
from sandkeepd.contract.instance import Ending, Instance
from sandkeepd.contract.provider import Provider
from sandkeepd.core import rules
from sandkeepd.core.core import Core
from sandkeepd.core.retry import retry_until_done
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.sandboxes import Pending, Sandboxes, start_in
from sandkeepd.sandboxes.suspend import failure_of
from sandkeepd.snapshots.layers import LayerReferences

T = TypeVar("T")

logger = logging.getLogger("sandkeepd")

ANSWER_DEADLINE_S: Final = 20.0
"""How long a provider may take for one answer before it is asked again."""

UNSETTLED: Final = ("creating", *rules.STANDING, "restoring", "stopping")

INTERRUPTED = "the daemon stopped while it was being made: create it again"


RESUME_INTERRUPTED = "the daemon stopped while it was being resumed: resume it again"
SUSPEND_INTERRUPTED = "the daemon stopped while it was being suspended: suspend it again"


def is_reviving(sandbox: SandboxState) -> bool:
    """Whether it was about to be started anew, so that its provider has it no more, or not yet."""
    change = sandbox.change
    return sandbox.status == "resuming" and change is not None and change.before != "suspended"


def came_of(sandbox: SandboxState, instance: Instance) -> list[events.Event]:
    """What came of an order to suspend or resume that an earlier daemon did not see to its end, as the sandbox itself
    tells.
    """
    paused = instance.pauses is not None and instance.pauses.is_paused()
    if sandbox.status == "suspending":
        interrupted = StateError("not_ready", SUSPEND_INTERRUPTED)
        return [events.SandboxSuspended() if paused else failure_of(sandbox, interrupted, interrupted=True)]
    if sandbox.status == "resuming":
        interrupted = StateError("not_ready", RESUME_INTERRUPTED)
        return [failure_of(sandbox, interrupted, interrupted=True) if paused else events.SandboxResumed()]
    return []


class Owned:
    """The `Ledger` of one provider: what the log says at the moment of asking."""

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

    def __init__(self, core: Core, sandboxes: Sandboxes, processes: Processes, kept: SnapshotServices) -> None:
        self._core = core
        self._kept = kept
        self._settling = FileRecovery(core, sandboxes, kept)
        self._sandboxes_due: set[str] = set()
        self._sandboxes = sandboxes
        self._processes = processes

    def announce(self) -> None:
        """Before the first request: say what is about to be adopted or undone, so that requests to it wait. What is
        begun from then on is nobody's to undo.
        """
        self._note_due()
        for sandbox in self._core.state.sandboxes.values():
            if sandbox.status == "creating":
                self._sandboxes.making[sandbox.sandbox_id] = Pending()
            elif is_reviving(sandbox):
                self._sandboxes.changing[sandbox.sandbox_id] = Pending()
            elif sandbox.status in (*rules.STANDING, "restoring"):
                self._sandboxes.adopting[sandbox.sandbox_id] = Pending()

    def _note_due(self) -> None:
        self._settling.announce()
        state = self._core.state
        self._sandboxes_due = {i for i, sandbox in state.sandboxes.items() if sandbox.status in UNSETTLED}

    async def run(self, begin: trio.Event | None = None) -> None:
        """Bring the log and the providers together, once `begin` is set. Without it, what is begun is noted now."""
        if begin is not None:
            await begin.wait()
        else:
            self._note_due()
        core = self._core
        asked = [image.requested.provider for image in core.state.images.values() if not image.ended]
        asked += [s.requested.provider for s in core.state.sandboxes.values() if not s.hidden]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(core.guarded, self._settling.run, "recovery of operations")
            for name in sorted({*core.providers, *asked}):
                nursery.start_soon(core.guarded, partial(self._settle_provider, name), f"reconciling {name}")

    async def _settle_provider(self, name: str) -> None:
        core = self._core
        tried: list[trio.Event] = []
        async with trio.open_nursery() as nursery:
            for sandbox in list(core.state.sandboxes.values()):
                if sandbox.requested.provider == name and sandbox.sandbox_id in self._sandboxes_due:
                    tried.append(trio.Event())
                    settle = partial(self._settle, sandbox, tried[-1])
                    nursery.start_soon(core.guarded, settle, f"settling {sandbox.sandbox_id}")
            for event in tried:  # those that do not answer yet are not waited for
                await event.wait()
            if name in core.providers:
                await self._retry(name, self._clean_up, f"cleaning up {name}")

    async def _retry(
        self,
        name: str,
        work: Callable[[Provider], Awaitable[T]],
        what: str,
        pending: Pending | None = None,
        tried: trio.Event | None = None,
    ) -> T:
        """Do some work with a provider, again and again until it answers. `pending` is told why it takes so long."""
        core = self._core

        async def attempt() -> T:
            try:
                return await work(core.provider(name))
            finally:
                if tried is not None:
                    tried.set()

        def told(error: SandkeepError) -> None:
            if pending is not None:
                pending.why = error.message

        return await retry_until_done(attempt, what, core.providers.get(name), deadline_s=ANSWER_DEADLINE_S, told=told)

    # -- what was half done --------------------------------------------------------------------------------

    async def _settle(self, sandbox: SandboxState, tried: trio.Event) -> None:
        sandbox_id = sandbox.sandbox_id
        try:
            if sandbox_id in self._sandboxes.adopting:
                await self._hold(self._sandboxes.adopting, sandbox, partial(self._adopt, sandbox, tried))
            elif sandbox_id in self._sandboxes.making:
                await self._hold(self._sandboxes.making, sandbox, partial(self._undo_sandbox, sandbox, tried))
            elif sandbox_id in self._sandboxes.changing:
                await self._hold(self._sandboxes.changing, sandbox, partial(self._undo_revival, sandbox, tried))
            elif sandbox.status == "stopping":
                tried.set()
                await self._sandboxes.finish_end(sandbox_id, None)
        finally:
            tried.set()

    async def _hold(
        self, pending: dict[str, Pending], sandbox: SandboxState, work: Callable[[Pending], Awaitable[None]]
    ) -> None:
        """Do what is pending; whoever orders the sandbox's end meanwhile cancels it and goes on by himself."""
        own = pending[sandbox.sandbox_id]
        try:
            with own.scope:
                await work(own)
        finally:
            del pending[sandbox.sandbox_id]
            own.finished.set()

    async def _undo_sandbox(self, sandbox: SandboxState, tried: trio.Event, pending: Pending) -> None:
        core, asked = self._core, sandbox.requested
        revision = sandbox.revision

        async def undo(provider: Provider) -> None:
            await provider.terminate(sandbox.sandbox_id, asked.plan, {})

        await self._retry(asked.provider, undo, f"undoing {sandbox.sandbox_id}", pending, tried)
        failed = events.SandboxCreateFailed(code="not_ready", message=INTERRUPTED, interrupted=True)
        try:
            await core.record([NewEvent(sandbox.sandbox_id, failed, sandbox.sandbox_id, revision)], None)
        except StateError:
            logger.info("not undone, as it is being ended", extra={"sandbox_id": sandbox.sandbox_id})
        else:
            await self._sandboxes.told_ended(sandbox)

    async def _undo_revival(self, sandbox: SandboxState, tried: trio.Event, pending: Pending) -> None:
        sandbox_id, asked, revision = sandbox.sandbox_id, sandbox.requested, sandbox.revision

        async def halt(provider: Provider) -> None:
            if provider.revival is not None:
                await provider.revival.halt(sandbox_id, asked.plan, sandbox.handle)

        await self._retry(asked.provider, halt, f"undoing the revival of {sandbox_id}", pending, tried)
        failed = failure_of(sandbox, StateError("not_ready", RESUME_INTERRUPTED), interrupted=True)
        try:
            await self._core.record([NewEvent(sandbox_id, failed, sandbox_id, revision)], None)
        except StateError:
            logger.info("not undone, as it is being ended", extra={"sandbox_id": sandbox_id})

    # -- adopting -----------------------------------------------------------------------------------------------------

    async def _adopt(self, sandbox: SandboxState, tried: trio.Event, pending: Pending) -> None:
        """Take over a sandbox, or tell that it is lost; neither when its end is ordered meanwhile."""
        # What was ended can be told to resume from then on, and what that starts is not to be adopted.
        if sandbox.status == "restoring" and await self._undo_restore(sandbox, tried, pending):
            return
        if sandbox.status not in rules.STANDING:
            return
        sandbox_id, revision = sandbox.sandbox_id, sandbox.revision
        take_over = partial(self._take_over, sandbox)
        await self._drop_replaced(sandbox)
        instance = await self._retry(sandbox.requested.provider, take_over, f"adopting {sandbox_id}", pending, tried)
        failpoints.reach("adopt.held")
        try:
            if instance is None or isinstance(instance, Ending):
                await self._lost(sandbox, instance.message if instance else "its provider has it no more", revision)
            else:
                adopted: list[events.Event] = [*came_of(sandbox, instance), events.SandboxAdopted()]
                told = [NewEvent(sandbox_id, event, sandbox_id, revision + n) for n, event in enumerate(adopted)]
                await self._core.record(told, None, awaited=False)
        except StateError:
            logger.info("not adopted, as it is being ended", extra={"sandbox_id": sandbox.sandbox_id})
            return
        if not isinstance(instance, Ending | None):
            await self._adopt_processes(sandbox, instance)

    async def _undo_restore(self, sandbox: SandboxState, tried: trio.Event, pending: Pending) -> bool:
        """Give it the files that it had; answer whether it was ended for the restore."""
        put_back = partial(self._settling.put_back, sandbox)
        what = f"undoing the restore of {sandbox.sandbox_id}"
        ended = await self._retry(sandbox.requested.provider, put_back, what, pending, tried)
        await self._settling.record_undone(sandbox, ended=ended)
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
        """Start the carriers of its processes, and wait until the instance knows each: signals need that."""
        active = {process: trio.Event() for process in sandbox.active}
        runtime = self._sandboxes.keep(instance)
        await runtime.opened()
        for process_id, found in active.items():
            process = self._core.state.processes[process_id]
            carrier = partial(self._processes.supervisor.adopt, runtime, process, found)
            if not start_in(runtime, carrier, self._core, f"process {process_id}"):
                return
        pauses = instance.pauses
        if pauses is None or not pauses.is_paused():  # one that stands still knows nothing new
            with trio.move_on_after(ANSWER_DEADLINE_S):
                for found in active.values():
                    await found.wait()
        logger.info("adopted", extra={"sandbox_id": sandbox.sandbox_id, "processes": len(active)})

    async def _lost(self, sandbox: SandboxState, why: str, revision: int) -> None:
        """Tell that a sandbox is gone, with all that was known of it last: how its processes had ended, if they had."""
        logger.warning("sandbox lost", extra={"sandbox_id": sandbox.sandbox_id, "why": why})
        provider = self._core.provider(sandbox.requested.provider)
        exits = await trio.to_thread.run_sync(provider.last_exits, sandbox.sandbox_id, list(sandbox.active))
        told = self._sandboxes.last_words(sandbox, exits.get, None, f"its sandbox was lost: {why}")
        lost = events.SandboxLost(last_status=sandbox.status, message=why)
        told.append(NewEvent(sandbox.sandbox_id, lost, sandbox.sandbox_id, revision))
        await self._core.record(told, None, awaited=False)

    # -- what nobody owns ---------------------------------------------------------------------------------------------

    async def _clean_up(self, provider: Provider) -> None:
        """Remove what the provider holds and nobody owns, and note what is another log's."""
        swept = await provider.clean_up(Owned(self._core, self._kept.layers, provider.name))
        for what in swept.removed:
            logger.warning("removed what no event owns", extra={"what": what})
        if swept.foreign:
            told = {"count": len(swept.foreign), "first": swept.foreign[0], "all": "daemon.status"}
            logger.warning("left what is not of this log", extra=told)
        self._core.foreign[provider.name] = swept.foreign
