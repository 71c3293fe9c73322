"""Sandboxes: made, kept, ended.

A running sandbox has one task of its own (`_keep`), whose nursery owns the carriers of its processes. That task ends
when the sandbox does: by itself, which is recorded as a failure, or because it is being terminated, which stops the
task first. A stopping daemon cancels it, and the sandbox goes on.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NoReturn

import msgspec
import trio

from sandkeep import events, failpoints, ids
from sandkeep.errors import CallerError, DaemonError, ProviderError, StateError, error_from
from sandkeep.model import Sandbox, SandboxList, SandboxSpec
from sandkeep.protocol.methods import SandboxCreate, SandboxQuery, SandboxRef, SandboxTerminate
from sandkeep.settings.daemon import DISK_LIMIT
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import ForkState
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.instance import Ending, Instance
from sandkeepd.contract.processes import Exit
from sandkeepd.contract.provider import Provider
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import ANEW, Core, Tries, as_sandkeep_error
from sandkeepd.core.paging import page
from sandkeepd.core.retry import insist
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.oom import KILLED, OomWatcher

logger = logging.getLogger("sandkeepd")

ADOPTION_PATIENCE_S = 30.0
END_DEADLINE_S = 60.0
"""How long a provider may take for ending a sandbox before it is asked again, if it can be interrupted."""

OPENING_PATIENCE_S = 1.0


class Runtime:
    """A running sandbox as the daemon holds it: its instance, and the nursery of its processes' carriers.

    `oom` tells which of them the kernel killed; `io_seen` is the most that they were ever seen to have read and
    written.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.kills = OomWatcher(instance)
        self.io_seen = (0, 0)
        self.scope = trio.CancelScope()
        self.nursery: trio.Nursery | None = None
        self.finished = trio.Event()

    @property
    def open(self) -> bool:
        """Whether carriers can be started in it."""
        return self.nursery is not None and not self.scope.cancel_called

    async def opened(self) -> None:
        """Wait until carriers can be started in it, or never can. That takes no longer than until its task has run."""
        while not self.open and not self.finished.is_set():
            await trio.lowlevel.checkpoint()

    async def stop(self) -> None:
        """Stop the carriers and wait until they have stopped. The sandbox goes on."""
        self.scope.cancel()
        await self.finished.wait()


class Pending:
    """Something under way with a sandbox that its end interrupts. `why` says what it waits for, when that is known."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.finished = trio.Event()
        self.why: str | None = None

    async def interrupt(self) -> None:
        """Have it end, and wait until it has."""
        self.scope.cancel()
        await self.finished.wait()


class Planned(msgspec.Struct):
    """A sandbox that is about to go on record: whose it will be, its name, and what it was given."""

    owner: str
    name: str | None
    provider: str = ""
    plan: dict[str, Any] = msgspec.field(default_factory=dict)


class Maker:
    """How a sandbox is made that is on record as about to be: here, by its provider, of its image."""

    async def make(self, provider: Provider, sandbox: SandboxState, secrets: Mapping[str, str]) -> Instance:
        """Make it and start it. On any error, cancellation included, nothing is left of it."""
        asked = sandbox.requested
        return await provider.create(sandbox.sandbox_id, asked.image_id, asked.spec, secrets, asked.plan)

    def found(self) -> list[NewEvent]:
        """What goes on record with it, besides."""
        return []

    def begun(self, runtime: Runtime) -> None:
        """It is on record, and looked after."""

    def done(self) -> None:
        """It was made, or was not."""


_DONE: Final = (events.SandboxSuspended, events.SandboxResumed, events.SandboxRestored)
_UNDONE: Final = (events.SandboxSuspendFailed, events.SandboxResumeFailed, events.SandboxRestoreFailed)


class Sandboxes:
    """The handlers of ``sandbox.*`` but for processes, and the runtimes."""

    def __init__(self, core: Core, images: Images) -> None:
        self._core = core
        self._images = images
        self.runtimes: dict[str, Runtime] = {}
        self.adopting: dict[str, Pending] = {}
        self.making: dict[str, Pending] = {}
        self.changing: dict[str, Pending] = {}
        self.on_ended: list[Callable[[SandboxState], Awaitable[None]]] = []
        """What is told of each sandbox that is no more."""
        self._reading: dict[str, set[Pending]] = {}
        self._planned: dict[str, Planned] = {}
        self.unrecorded: set[str] = set()  # those that were ended while the disk took no record of it

    # -- making -------------------------------------------------------------------------------------------------------

    async def create(self, request: Request[SandboxCreate]) -> Sandbox:
        """Make a sandbox and start it."""
        core, command = self._core, request.params
        provider = core.provider(rules.image(core.state, command.image_id).requested.provider)
        image, spec = rules.create_sandbox(core.state, command, DISK_LIMIT(), network=provider.default_network())
        _check_volumes(request)
        with self.about_to_be(request.owner, command.name) as sandbox_id:
            plan = self.plan(provider, sandbox_id, image.image_id, spec, request.caller, request.owner)
            self.give(sandbox_id, provider.name, plan)
            event = events.SandboxCreateRequested(
                owner=request.owner,
                image_id=image.image_id,
                provider=provider.name,
                spec=spec,
                secrets=sorted(command.secrets),
                plan=plan,
                name=command.name,
            )
            with self._images.holds.held(image.image_id):
                intent = await core.intend(NewEvent(sandbox_id, event, sandbox_id, 0), request.meta)
        failpoints.reach("create.planned")
        self.begin(intent, command.secrets)
        return await self.answer_create(sandbox_id)

    def begin(
        self,
        intent: Recorded,
        secrets: Mapping[str, str],
        prepare: Callable[[], Awaitable[None]] | None = None,
        maker: Maker | None = None,
    ) -> None:
        """Make the sandbox that is on record as about to be made. What it begins with is prepared first."""
        sandbox_id = intent.stream
        self.making[sandbox_id] = Pending()
        work = partial(self._make, sandbox_id, dict(secrets), intent, prepare, maker or Maker())
        self._core.carry(work, f"creation of {sandbox_id}")

    def plan(
        self, provider: Provider, sandbox_id: str, image_id: str, spec: SandboxSpec, caller: Caller, owner: str
    ) -> dict[str, Any]:
        """What the provider decides of a sandbox to be made, besides all others. `give` must follow at once."""
        image = self._core.state.images.get(image_id)
        return provider.plan(
            sandbox_id, image_id, spec, caller, self._plans(provider.name),
            details=image.details if image is not None else {}, owner=owner,
        )  # fmt: skip

    @contextmanager
    def about_to_be(self, owner: str, name: str | None) -> Iterator[str]:
        """For the length of a block a sandbox is about to go on record, whose id this is: its name is taken. Raises
        `invalid` and `conflict` for the name.
        """
        sandbox_id = ids.new_id(ids.SANDBOX)
        self._claim(owner, {sandbox_id: name}, "name")
        try:
            yield sandbox_id
        finally:
            self.unreserve(sandbox_id)

    def _claim(self, owner: str, named: Mapping[str, str | None], field: str) -> None:
        """Take names for sandboxes that are about to go on record. Undo it by `unreserve`."""
        names = [ids.check_own_name(name, field) for name in named.values() if name is not None]
        for name in names:
            if names.count(name) > 1 or self._is_taken(owner, name):
                raise StateError("conflict", f"you have a sandbox called {name!r}: choose another name", name=name)
        for sandbox_id, given in named.items():
            self._planned[sandbox_id] = Planned(owner, given)

    def _is_taken(self, owner: str, name: str) -> bool:
        """Whether a sandbox of that owner has the name, which has not ended, or is about to be."""
        found = self._core.state.sandbox_named(owner, name)
        if found is not None and not found.hidden:
            return True
        return any((planned.owner, planned.name) == (owner, name) for planned in self._planned.values())

    def give(self, sandbox_id: str, provider: str, plan: dict[str, Any]) -> str | None:
        """Say what a sandbox that is about to go on record was given, which no other may be; answer its name."""
        planned = self._planned[sandbox_id]
        planned.provider, planned.plan = provider, plan
        return planned.name

    def unreserve(self, *sandbox_ids: str) -> None:
        """They are on record, or will not be: then what was claimed for them is given back."""
        for sandbox_id in sandbox_ids:
            planned = self._planned.pop(sandbox_id, None)
            recorded = self._core.state.sandboxes.get(sandbox_id)
            if planned is not None and planned.provider and (recorded is None or recorded.hidden):
                claims = self._core.provider(planned.provider).claims
                if claims is not None:
                    claims.withdraw(sandbox_id, planned.plan)

    def reserve(self, owner: str, names: Sequence[str], count: int) -> list[str]:
        """Ids for several sandboxes that are about to go on record, whose names are taken from now on. Undo it by
        `unreserve`. Raises `invalid` and `conflict`.
        """
        if names and len(names) != count:
            words = f"names: {len(names)} are given for {count} sandboxes: give one for each"
            raise CallerError("invalid", words, field="names")
        chosen = [ids.new_id(ids.SANDBOX) for _ in range(count)]
        self._claim(owner, dict(zip(chosen, names, strict=True)) if names else dict.fromkeys(chosen), "names")
        return chosen

    async def undone(self, order: ForkState) -> list[str] | None:
        """Those of the sandboxes that an order was to make which only a daemon's end kept from being made; None when
        that is so of all of it. Waits until the others are made, or are not.
        """
        core = self._core
        await core.settled(order.fork_id, lambda: order.done or order.error is not None)
        if order.interrupted:
            return None
        for sandbox_id in order.sandbox_ids if order.done else ():
            await self.settled(sandbox_id)
        undone = [one for one in order.sandbox_ids if rules.interrupted_sandbox(core.state, one, order.owner)]
        return None if order.done and undone == order.sandbox_ids else undone

    async def intend_again(self, sandbox_id: str) -> Recorded:
        """Put it on record that one of these is about to be made after all, by the plan that it had. Raises `conflict`
        when another has its name by now.
        """
        sandbox = self._core.state.sandboxes[sandbox_id]
        asked = sandbox.requested
        claims = self._core.provider(asked.provider).claims
        self._claim(sandbox.owner, {sandbox_id: asked.name}, "name")
        try:
            if claims is not None:
                asked = msgspec.structs.replace(asked, plan=claims.claim_again(sandbox_id, asked.plan))
            self.give(sandbox_id, asked.provider, asked.plan)
            new = NewEvent(sandbox_id, asked, sandbox_id, sandbox.revision)
            [intent] = await self._core.record([new], None)
        finally:
            self.unreserve(sandbox_id)
        return intent

    async def created_before(self, request: Request[Any], first: Recorded) -> Any:  # noqa: ARG002
        """The answer to a command that was given before."""
        sandbox = self._core.state.sandboxes[first.stream]
        await self._core.settled(first.stream, lambda: sandbox.status != "creating")
        is_another = sandbox.requested_us != first.time_us  # by which the id was used again
        return ANEW if sandbox.interrupted or is_another else await self.answer_create(first.stream)

    def _plans(self, provider: str) -> list[dict[str, Any]]:
        """The plans of the provider's sandboxes that have not ended, and of those about to be on record."""
        kept = [
            s.requested.plan
            for s in self._core.state.sandboxes.values()
            if s.requested.provider == provider and not s.hidden
        ]
        return kept + [planned.plan for planned in self._planned.values() if planned.provider == provider]

    async def settled(self, sandbox_id: str) -> None:
        """Wait until the sandbox was made, or was not."""
        sandbox = self._core.state.sandboxes[sandbox_id]
        await self._core.settled(sandbox_id, lambda: sandbox.status != "creating")

    async def answer_create(self, sandbox_id: str) -> Sandbox:
        """Wait until the sandbox runs or failed, and answer it."""
        await self.settled(sandbox_id)
        sandbox = self._core.state.sandboxes[sandbox_id]
        if not sandbox.made:
            if sandbox.error is not None:
                raise error_from(*sandbox.error, {"sandbox_id": sandbox_id})
            raise StateError(
                "conflict", f"sandbox {sandbox_id} was terminated while it was being made", sandbox_id=sandbox_id
            )
        return sandbox.view()

    async def _make(
        self,
        sandbox_id: str,
        secrets: dict[str, str],
        intent: Recorded,
        prepare: Callable[[], Awaitable[None]] | None,
        maker: Maker,
    ) -> None:
        core = self._core
        sandbox = core.state.sandboxes[sandbox_id]
        pending = self.making[sandbox_id]
        instance: Instance | None = None
        outcome: events.Event | None = None
        try:
            with pending.scope:
                if prepare is not None:
                    await prepare()
                instance = await maker.make(core.provider(sandbox.requested.provider), sandbox, secrets)
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            error = as_sandkeep_error(unforeseen)
            outcome = events.SandboxCreateFailed(code=error.code, message=error.message)
        finally:
            secrets.clear()
            maker.done()
            del self.making[sandbox_id]
            pending.finished.set()
        if instance is not None and rules.may(sandbox, "sandbox.created"):
            outcome = events.SandboxCreated(isolation=instance.isolation, handle=instance.handle)
        if outcome is None or not rules.may(sandbox, outcome.type):
            return  # it is being terminated: that carrier has the provider end what was made, and let go of it
        more = maker.found() if instance is not None else []
        try:
            await core.record([NewEvent(sandbox_id, outcome, sandbox_id, intent.revision), *more], intent)
        except StateError:
            return  # the same, ordered while this was on its way to the disk
        if instance is not None:
            maker.begun(self.keep(instance))
        else:
            await self.told_ended(sandbox)

    # -- keeping ------------------------------------------------------------------------------------------------------

    def keep(self, instance: Instance) -> Runtime:
        """Look after a sandbox that runs."""
        runtime = Runtime(instance)
        self.runtimes[instance.sandbox_id] = runtime
        self._core.carry(partial(self._keep, runtime), f"keeping {instance.sandbox_id}")
        return runtime

    async def _keep(self, runtime: Runtime) -> None:
        """Own the carriers of a sandbox's processes until the sandbox ends, is terminated, or the daemon stops."""
        try:
            why = await self._until_end(runtime)
        finally:
            runtime.nursery = None
            runtime.finished.set()
        if why is not None:
            await self._ended_by_itself(runtime, why)

    async def _until_end(self, runtime: Runtime) -> Ending | None:
        """Hold the nursery open until the sandbox is gone, and answer why; None when it was stopped before."""
        with runtime.scope:
            async with trio.open_nursery() as nursery:
                runtime.nursery = nursery
                nursery.start_soon(self._core.guarded, partial(self._follow_pauses, runtime), "following pauses")
                why = await runtime.instance.ended()
                nursery.cancel_scope.cancel()
            return why
        return None

    async def _ended_by_itself(self, runtime: Runtime, why: Ending) -> None:
        core, sandbox_id = self._core, runtime.instance.sandbox_id
        sandbox, tries = core.state.sandboxes[sandbox_id], Tries()
        while rules.may(sandbox, "sandbox.failed"):
            if why.kind == "disk_limit":
                await self.end(sandbox_id, "disk_limit")
                return
            told = {"sandbox_id": sandbox_id, "kind": why.kind, "why": why.message}
            logger.warning("sandbox ended by itself", extra=told)
            ended = NewEvent(sandbox_id, _told_of(why, sandbox), sandbox_id, sandbox.revision)
            try:
                await core.record([*self._last_of(sandbox, runtime, why), ended], None)
            except StateError as conflict:
                await tries.again(conflict)  # something else happened to it at that instant: look again
                continue
            self.runtimes.pop(sandbox_id, None)
            await runtime.instance.aclose()
            return

    def _last_of(self, sandbox: SandboxState, runtime: Runtime, why: Ending) -> list[NewEvent]:
        if why.kind != "lost":
            return self.last_words(sandbox, runtime.instance.exit_of, None)
        return self.last_words(sandbox, runtime.instance.exit_of, None, f"its sandbox was lost: {why.message}")

    async def _follow_pauses(self, runtime: Runtime) -> None:
        """Put on record what others than the daemon suspend and resume."""
        pauses = runtime.instance.pauses
        while pauses is not None:
            paused = pauses.is_paused()
            await self.agree(runtime)
            await pauses.pause_changed(paused)

    async def agree(self, runtime: Runtime) -> None:
        """Put it on record if the sandbox was suspended or resumed from outside."""
        pauses, sandbox = runtime.instance.pauses, self._core.state.sandboxes[runtime.instance.sandbox_id]
        tries = Tries()
        while pauses is not None:
            if pauses.is_paused() and sandbox.status == "running":
                event: events.Event = events.SandboxSuspended(outside=True)
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
        """Wait until the sandbox does not stand still."""
        sandbox = self._core.state.sandboxes[sandbox_id]
        while sandbox.status in ("suspending", "suspended", "resuming"):
            await self._core.changed(sandbox_id)

    async def runtime(self, sandbox: SandboxState) -> Runtime:
        """The runtime of a running sandbox, waiting a while for one that a starting daemon is still adopting.

        Raises `not_ready` at once for one that does not run.
        """
        rules.require_running(sandbox)
        found = await self.held(sandbox)
        rules.require_running(sandbox)
        return found

    async def held(self, sandbox: SandboxState) -> Runtime:
        """The same of a sandbox that runs or stands still."""
        await self.adopted(sandbox.sandbox_id)
        if sandbox.sandbox_id in self.adopting:
            raise self._not_adopted(sandbox.sandbox_id)
        if self._core.problems and sandbox.sandbox_id not in self.runtimes:  # with a damaged log nothing is adopted
            raise DaemonError("storage_unavailable", self._core.problems[0])
        with trio.move_on_after(OPENING_PATIENCE_S):  # the task of one that was just made is about to run
            while True:
                found = self.runtimes.get(sandbox.sandbox_id)
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

    def _not_adopted(self, sandbox_id: str) -> ProviderError:
        message = f"sandbox {sandbox_id} is {self.note_of(sandbox_id)}: try again later, or terminate it"
        return ProviderError("provider_unavailable", message, sandbox_id=sandbox_id)

    def note_of(self, sandbox_id: str) -> str | None:
        """What is to be said of a sandbox besides its last known state: that this daemon has not adopted it yet, or
        what its end waits for.
        """
        pending = self.adopting.get(sandbox_id)
        if pending is None:
            return self._core.stalled(sandbox_id)
        return "not adopted yet, after the daemon was started" + (f": {pending.why}" if pending.why else "")

    async def adopted(self, sandbox_id: str) -> None:
        """Wait a while until a starting daemon has adopted a sandbox, if that is still to be done."""
        if sandbox_id in self.adopting:
            with trio.move_on_after(ADOPTION_PATIENCE_S):
                await self.adopting[sandbox_id].finished.wait()

    @contextmanager
    def reading(self, sandbox_id: str) -> Iterator[None]:
        """For the length of a block somebody reads the sandbox's files, which its end interrupts.

        Raises `not_ready` then.
        """
        pending = Pending()
        self._reading.setdefault(sandbox_id, set()).add(pending)
        try:
            with pending.scope:
                yield
            if pending.scope.cancelled_caught:
                raise rules.not_ready(self._core.state.sandboxes[sandbox_id], "ended while its files were read")
        finally:
            pending.finished.set()
            self._reading[sandbox_id].discard(pending)
            if not self._reading[sandbox_id]:
                del self._reading[sandbox_id]

    @contextmanager
    def carrying(self, sandbox_id: str) -> Iterator[None]:
        """For the length of a block a change is carried out that is on record; the sandbox's end interrupts the block,
        which then just ends.
        """
        pending = self.changing[sandbox_id]
        try:
            with pending.scope:
                yield
        finally:
            del self.changing[sandbox_id]
            pending.finished.set()

    async def record_restore(self, sandbox: SandboxState, outcome: Sequence[NewEvent], intent: Recorded) -> bool:
        """Record what came of having a sandbox be as it was; False: it is being terminated, and that carrier ends what
        was made.
        """
        if not outcome or sandbox.status != "restoring":
            return False
        try:
            await self._core.record(outcome, intent)
        except StateError:
            return False  # the same, while this was on its way to the disk
        return True

    async def answer_restore(self, sandbox: SandboxState) -> Sandbox:
        """Wait until a restore over the sandbox's own files is carried out, and answer the sandbox. Raises what the
        restore failed with.
        """
        change = sandbox.change
        await self._core.settled(sandbox.sandbox_id, lambda: sandbox.status != "restoring")
        if change is not None and change.error is not None:
            raise error_from(*change.error, {"sandbox_id": sandbox.sandbox_id})
        if change is not None and not change.done:
            raise rules.not_ready(sandbox)
        return sandbox.view()

    async def answer_earlier(self, first: Recorded) -> Any:
        """Answer a repeated order to suspend, resume or restore a sandbox that has had others since: as the log has it,
        since the state remembers the last one only. ANEW if a daemon's death undid it; raises what it failed with.
        """
        outcome = await self._outcome_of(first)
        if isinstance(outcome, _UNDONE):
            if outcome.interrupted:
                return ANEW
            raise error_from(outcome.code, outcome.message, {"sandbox_id": first.stream})
        return self._core.state.sandboxes[first.stream].view()

    async def _outcome_of(self, first: Recorded) -> events.Event | None:
        """The event by which such an order ended; None if its sandbox ended instead."""
        position, caught_up = first.position, False
        while not caught_up:
            found = await self._core.log.page(position, stream=first.stream, type="sandbox")
            for recorded in found.events:
                if isinstance(recorded.event, (*_DONE, *_UNDONE)):
                    return recorded.event
            position, caught_up = found.position, found.caught_up
        return None

    # -- ending -------------------------------------------------------------------------------------------------------

    async def terminate(self, request: Request[SandboxTerminate]) -> Sandbox:
        """End a sandbox and all that runs in it. One that has ended is answered as it is."""
        sandbox_id = rules.sandbox(self._core.state, request.params.sandbox_id).sandbox_id
        await self.end(sandbox_id, "requested", request.meta)
        return await self.answer_terminate(sandbox_id)

    async def answer_terminate(self, sandbox_id: str) -> Sandbox:
        """Wait until the sandbox has ended, and answer it."""
        sandbox = self._core.state.sandboxes[sandbox_id]
        await self._core.settled(sandbox_id, lambda: sandbox.status != "stopping")
        return sandbox.view()

    async def end(self, sandbox_id: str, reason: str, meta: events.Meta | None = None) -> None:
        """Order the end of a sandbox, if that is not ordered already. It is on record when this returns."""
        core, meta = self._core, meta or events.Meta()
        sandbox, tries = core.state.sandboxes[sandbox_id], Tries()
        while rules.may(sandbox, "sandbox.terminate_requested"):
            event = events.SandboxTerminateRequested(reason=reason)
            order = NewEvent(sandbox_id, event, sandbox_id, sandbox.revision)
            try:
                intent = await core.intend(order, meta, essential=True)
            except StateError as conflict:
                await tries.again(conflict)  # something else happened to it at that instant: look again
                continue
            except DaemonError as refused:
                await self._end_unrecorded(order, reason, meta, refused)
            core.carry(partial(self.finish_end, sandbox_id, intent), f"end of {sandbox_id}")
            return

    async def finish_end(self, sandbox_id: str, intent: Recorded | None) -> None:
        """Carry out an end that is on record: complete or half made, running or not."""
        core = self._core
        sandbox = core.state.sandboxes[sandbox_id]
        runtime = await self._stop(sandbox_id)
        failpoints.reach("end.stopped")
        await self._terminate_for_sure(sandbox)
        failpoints.reach("end.discarded")
        outcome = events.SandboxTerminated(reason=sandbox.terminated_reason or "requested")
        last_words = self.last_words(sandbox, await self._exits(sandbox, runtime), KILLED)
        await core.record([*last_words, NewEvent(sandbox_id, outcome, sandbox_id)], intent, essential=True)
        if runtime is not None:
            self.runtimes.pop(sandbox_id, None)
            await runtime.instance.aclose()
        await self.told_ended(sandbox)

    async def stop_keeping(self, sandbox_id: str) -> Runtime | None:
        """Look after a sandbox no more that is about to be ended and started anew; answer what held it."""
        runtime = self.runtimes.pop(sandbox_id, None)
        if runtime is not None:
            await runtime.stop()
        return runtime

    async def words_of_killed(self, sandbox: SandboxState, runtime: Runtime | None) -> list[NewEvent]:
        """How the processes ended of a sandbox that was ended, and that `runtime` held."""
        last_words = self.last_words(sandbox, await self._exits(sandbox, runtime), KILLED)
        if runtime is not None:
            await runtime.instance.aclose()
        return last_words

    async def told_ended(self, sandbox: SandboxState) -> None:
        """Have others let go of what a sandbox needed that is no more."""
        for on_ended in self.on_ended:
            await on_ended(sandbox)

    async def _stop(self, sandbox_id: str) -> Runtime | None:
        """End the tasks that look after it."""
        for under_way in (self.making, self.adopting, self.changing):
            if sandbox_id in under_way:
                await under_way[sandbox_id].interrupt()
        for reading in list(self._reading.get(sandbox_id, ())):
            await reading.interrupt()
        runtime = self.runtimes.get(sandbox_id)
        if runtime is not None:
            await runtime.stop()
        return runtime

    async def _end_unrecorded(self, order: NewEvent, reason: str, meta: events.Meta, refused: DaemonError) -> NoReturn:
        """End a sandbox whose end the log does not take: what runs in it must not depend on a disk. It goes on record
        when the disk takes it again; with a log that is damaged, the daemon of after the repair finds it lost.
        """
        core = self._core
        sandbox = core.state.sandboxes[order.stream]
        logger.warning("ended, but not on record", extra={"sandbox_id": order.stream, "why": refused.message})
        await self._stop(order.stream)
        record = "cannot go on record" if core.problems else "is not on record yet"
        outcome = f"sandbox {order.stream} is ended, but that {record}"
        try:
            await core.provider(sandbox.requested.provider).terminate(
                order.stream, sandbox.requested.plan, sandbox.handle
            )
        except Exception as unforeseen:  # noqa: BLE001  # the disk that refuses the record may refuse this, too
            error = as_sandkeep_error(unforeseen)
            logger.warning("cannot clear away a sandbox", extra={"sandbox_id": order.stream, "why": error.message})
            outcome = f"what ran in sandbox {order.stream} is ended as far as that can be ({error.message})"
        if not core.problems and order.stream not in self.unrecorded:
            self.unrecorded.add(order.stream)
            core.carry(partial(self._record_end, order, reason, meta), f"record of the end of {order.stream}")
        raise DaemonError("storage_unavailable", f"{outcome}: {refused.message}", sandbox_id=order.stream)

    async def _record_end(self, order: NewEvent, reason: str, meta: events.Meta) -> None:
        try:
            await self._core.record([order], None, meta=meta, essential=True)
        except StateError:  # something else went on record first, such as that it was made after all: order it anew
            ordered = False
        else:
            ordered = True
        finally:
            self.unrecorded.discard(order.stream)
        if ordered:
            await self.finish_end(order.stream, None)
        else:
            with suppress(DaemonError, StateError):  # then it is tried again, or the daemon's log says why not
                await self.end(order.stream, reason, meta)

    async def _exits(self, sandbox: SandboxState, runtime: Runtime | None) -> Callable[[str], Exit | None]:
        """How its processes ended, as the sandbox told whoever held it; else as what is left of it tells."""
        if runtime is not None or not sandbox.active:
            return runtime.instance.exit_of if runtime is not None else lambda _: None
        provider = self._core.provider(sandbox.requested.provider)
        exits = await trio.to_thread.run_sync(provider.last_exits, sandbox.sandbox_id, list(sandbox.active))
        return exits.get

    async def _terminate_for_sure(self, sandbox: SandboxState) -> None:
        """Have the provider end it, however often that takes. Whoever waits for it is told when that will be long."""
        core, asked, sandbox_id = self._core, sandbox.requested, sandbox.sandbox_id

        async def terminate() -> None:
            await core.provider(asked.provider).terminate(sandbox_id, asked.plan, sandbox.handle)

        then = f"the end of sandbox {sandbox_id} is ordered, and will be carried out when that answers"
        streams, what = [sandbox_id, *sandbox.active], f"ending {sandbox_id}"
        await insist(core, streams, terminate, what, then, provider=asked.provider, deadline_s=END_DEADLINE_S)

    def last_words(
        self,
        sandbox: SandboxState,
        exit_of: Callable[[str], Exit | None],
        exit_code: int | None,
        why: str = "the sandbox ended and nobody saw how the process did",
    ) -> list[NewEvent]:
        """How the processes of a sandbox that is gone ended: as they told, else by `exit_code`; else `why` nobody
        knows.
        """
        return [
            NewEvent(
                process.process_id,
                self._last_word(process, exit_of(process.process_id), exit_code, why),
                sandbox.sandbox_id,
            )
            for process in sandbox.active.values()
        ]

    def _last_word(self, process: ProcessState, seen: Exit | None, exit_code: int | None, why: str) -> events.Event:
        if process.status == "starting":
            return events.ProcessLaunchFailed(
                code="not_ready", message="the sandbox ended before the process was started"
            )
        code = seen.exit_code if seen is not None and seen.exit_code is not None else exit_code
        if code is None:
            return events.ProcessLost(message=why)
        provider = self._core.provider(self._core.state.sandboxes[process.sandbox_id].requested.provider)
        sizes = [
            provider.read_ended(process.sandbox_id, process.process_id, stream, 0, 0).size
            for stream in ("stdout", "stderr")
        ]
        runtime = self.runtimes.get(process.sandbox_id)
        told = runtime is not None and seen is not None and runtime.kills.took(process, seen.exit_code)
        return events.ProcessExited(exit_code=code, stdout_bytes=sizes[0], stderr_bytes=sizes[1], oom_killed=told)

    # -- reading ------------------------------------------------------------------------------------------------------

    def get_now(self, request: Request[SandboxRef]) -> Sandbox:
        """Show a sandbox."""
        return self._view(rules.sandbox(self._core.state, request.params.sandbox_id))

    def _view(self, sandbox: SandboxState) -> Sandbox:
        """The sandbox as the log tells, and what of that nobody has seen yet since the start. One that was found to be
        lost has been seen, also while whoever found that out is not through.
        """
        settled = sandbox.status in rules.SETTLED
        note = self._core.stalled(sandbox.sandbox_id) if settled else self.note_of(sandbox.sandbox_id)
        return msgspec.structs.replace(sandbox.view(), note=note) if note else sandbox.view()

    def list_now(self, request: Request[SandboxQuery]) -> SandboxList:
        """List the caller's sandboxes; an administrator sees all."""
        query = request.params
        shown = (
            s for s in self._core.state.sandboxes.values() if request.sees(s.owner) and (query.all or not s.hidden)
        )
        found, following = page(shown, lambda sandbox: sandbox.sandbox_id, query.after, query.limit)
        return SandboxList(sandboxes=[self._view(sandbox) for sandbox in found], next=following)


def _check_volumes(request: Request[SandboxCreate]) -> None:
    """Only administrators give sandboxes parts of the host."""
    for volume in request.params.volumes:
        if volume.source.startswith("/") and not request.admin:
            words = f"volumes: {volume.source!r} is a directory of the host, for administrators: give a name instead"
            raise CallerError("permission_denied", words, field="volumes")


def _told_of(why: Ending, sandbox: SandboxState) -> events.Event:
    if why.kind == "lost":
        return events.SandboxLost(last_status=sandbox.status, message=why.message)
    return events.SandboxFailed(message=why.message)


def start_in(runtime: Runtime, carrier: Callable[[], Any], core: Core, what: str) -> bool:
    """Start a carrier in a sandbox's own nursery; False when the sandbox is ending."""
    if runtime.nursery is None or not runtime.open:
        return False
    runtime.nursery.start_soon(core.guarded, carrier, what)
    return True
