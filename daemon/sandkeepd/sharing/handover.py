"""Handovers: a shared sandbox is saved where other daemons find it, and its lock released.

The sandbox stands still from before it is saved. What was saved is looked at in its store, and the metadata that tell
of it are written, before the lock is released; only then is the sandbox ended, by `keeping`. A handover that fails lets
it go on, under the lock; the metadata tell the daemon that waits why.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from sandkeep import events, failpoints
from sandkeep.errors import DataError, SandkeepError, StateError
from sandkeep.events import Meta
from sandkeep.model import Place, Sandbox
from sandkeep.protocol.methods import (
    CheckpointCreate,
    ImageRef,
    SandboxDetach,
    SandboxResume,
    SandboxSuspend,
    SnapshotCreate,
)
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.locks import LockState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.checkpoints.checkpoints import Checkpoints
from sandkeepd.core import rules
from sandkeepd.core.access import Request, own_request
from sandkeepd.core.core import RUN_AGAIN, Core
from sandkeepd.core.operation import Order
from sandkeepd.host.threads import Meter, run_in_thread
from sandkeepd.locks.leases import HELD, Leases
from sandkeepd.locks.locks import LockOperation, LockService
from sandkeepd.locks.publish import Publisher
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.sharing.images import SharedImages
from sandkeepd.snapshots.archive_paths import root_of
from sandkeepd.snapshots.archives import FIRST_PATIENCE_S
from sandkeepd.snapshots.snapshots import Snapshots

logger = logging.getLogger("sandkeepd")

NAME: Final = "handover"
"""The name of checkpoints and snapshots that are made for a handover."""

CHANGING: Final = ("suspending", "resuming", "restoring", "creating")


class Progress(Struct):
    """Changes that a handover has made to its sandbox."""

    suspended: bool = False


class Handover(LockOperation):
    """``sandbox.detach``, and what `keeping` orders. Its outcome is the order to release the lock. One that an earlier
    daemon began has failed, once `Leases` has the lock again.
    """

    method = "sandbox.detach"
    under_way = "handing_over"
    failure = events.LockHandoverFailed

    def __init__(
        self, core: Core, leases: Leases, sandboxes: Sandboxes, snapshots: Snapshots, checkpoints: Checkpoints,
        locks: LockService, publisher: Publisher, images: SharedImages,
    ) -> None:  # fmt: skip
        super().__init__(core, leases)
        self._images = images
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._checkpoints = checkpoints
        self._locks = locks
        self._publisher = publisher
        self.before_save: Callable[[SandboxState], Awaitable[None]] | None = None
        """Called with a sandbox that is about to be saved, while it runs."""

    # -- ordering -----------------------------------------------------------------------------------------------------

    async def detach(self, request: Request[SandboxDetach]) -> Sandbox:
        """Save a shared sandbox, and give it up. One that has ended is answered as it is."""
        sandbox = rules.sandbox(self.core.state, request.params.sandbox_id)
        if sandbox.spec.shared is None:
            message = f"sandbox {sandbox.sandbox_id} is not shared: terminate it, or create one with a gcs_sandbox_id"
            raise StateError("conflict", message, sandbox_id=sandbox.sandbox_id)
        lock = rules.shared_lock(self.core.state, sandbox.sandbox_id)
        if sandbox.hidden or lock is None:
            return sandbox.view()
        if lock.status == "held":
            await self.order(lock, "detached", request.meta, request=request)
        elif lock.status not in (*rules.LEAVING, "released"):
            lost = f"sandbox {sandbox.sandbox_id} has lost its lock, and goes on at `moved_to`"
            message = f"{lost}: save what you need of it, and attach it again; rm would end what is left of it here"
            raise StateError("lock_lost", message, sandbox_id=sandbox.sandbox_id)
        return await self.detached(lock, sandbox)

    async def order(
        self, lock: LockState, reason: str, meta: Meta, waiter: str | None = None, request: Request[Any] | None = None
    ) -> None:
        """Order a handover. It is on record when this returns. Raises `conflict` if the lock changed meanwhile."""
        event = events.LockHandoverRequested(reason=reason, waiter=waiter)
        new = NewEvent(lock.lock_id, event, self.core.state.filing_id(lock), lock.revision)
        await self.begin(new, meta, request)

    async def detached(self, lock: LockState, sandbox: SandboxState) -> Sandbox:
        """Wait until a sandbox was given up and has ended here. Raises why it was not."""
        await self.core.settled(lock.lock_id, lambda: lock.status not in rules.LEAVING)
        if lock.status in HELD and lock.refused is not None:
            raise self.error_of(lock)
        await self.core.settled(sandbox.sandbox_id, lambda: sandbox.hidden or lock.status != "released")
        return sandbox.view()

    def error_of(self, lock: LockState) -> SandkeepError:
        """Return why the last handover failed."""
        assert lock.refused is not None
        message = f"{lock.refused[1]}: sandbox {lock.sandbox_id} goes on here, under its lock"
        return StateError("conflict", message, sandbox_id=lock.sandbox_id, cause=lock.refused[0])

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        lock = self.subjects.get(first.stream)
        sandbox = self.core.state.sandboxes.get((lock.sandbox_id if lock is not None else None) or "")
        if lock is None or sandbox is None:
            return rules.sandbox(self.core.state, request.params.sandbox_id).view()
        await self.core.settled(lock.lock_id, lambda: lock.status != "handing_over")
        if lock.status in HELD and lock.interrupted:
            return RUN_AGAIN
        return await self.detached(lock, sandbox)

    # -- carrying out -------------------------------------------------------------------------------------------------

    async def act(self, order: Order[LockState]) -> Sequence[NewEvent]:
        lock, order.context = order.subject, Progress()
        await self.leases.adopted(lock)
        sandbox = self.core.state.sandboxes[lock.sandbox_id or ""]
        await self.core.settled(sandbox.sandbox_id, lambda: sandbox.status not in CHANGING)
        if sandbox.status in rules.STANDING:
            if self.before_save is not None:
                await self.before_save(sandbox)
            await self._save(sandbox, order)
            failpoints.reach("handover.saved")
        self.core.leaving.add(sandbox.sandbox_id)
        await self.core.settled(sandbox.sandbox_id, lambda: sandbox.status != "stopping")
        if sandbox.status in rules.STANDING and sandbox.status != "suspended":
            raise StateError("conflict", "it was changed while it was saved", sandbox_id=sandbox.sandbox_id)
        await self._publisher.publish(sandbox.sandbox_id)
        failpoints.reach("handover.published")
        return [self.about(lock, events.LockReleaseRequested())]

    async def _save(self, sandbox: SandboxState, order: Order[LockState]) -> None:
        """Save a sandbox that stands still from now on, and see that it is there."""
        owner, sandbox_id, done = sandbox.owner, sandbox.sandbox_id, order.context
        provider = self.core.provider(sandbox.requested.provider)
        if provider.checkpoints is not None and provider.checkpoints.why_no_checkpoint(sandbox.requested.plan) is None:
            await self._leave_image(sandbox)
            done.suspended = sandbox.status == "running"
            checkpoint = await self._checkpoints.create(
                own_request(owner, "checkpoint.create", CheckpointCreate(sandbox_id=sandbox_id, name=NAME))
            )
            found = self.core.state.checkpoints[checkpoint.checkpoint_id]
            assert found.stored is not None
            place = found.requested.place
            await self._verify({f"{place.path}/{file.name}": file.size_bytes for file in found.stored.files}, place)
            return
        if sandbox.status == "running":
            await self.suspend(sandbox)
            done.suspended = True
        made = await self._snapshots.create(
            own_request(owner, "snapshot.create", SnapshotCreate(sandbox_id=sandbox_id, name=NAME, archive="bucket"))
        )
        snapshot = self.core.state.snapshots[made.snapshot_id]
        assert snapshot.stored is not None
        await self._verify({snapshot.places[0].path: snapshot.stored.size_bytes}, snapshot.places[0])

    async def _leave_image(self, sandbox: SandboxState) -> None:
        """Leave the image of a sandbox where other daemons find it, unless that was done when it was made."""
        image, told = self.core.state.images.get(sandbox.requested.image_id), sandbox.requested.first_image
        if image is not None and told is not None and told.path is None:
            request = own_request(sandbox.owner, "image.get", ImageRef(image_id=image.image_id))
            await self._images.describe(request, image, archive=True)

    async def _verify(self, sizes: dict[str, int], place: Place) -> None:
        """See that objects are in their store with these sizes. Raises `snapshot_missing`, `snapshot_corrupt`."""
        await run_in_thread(partial(_look, sizes, place), _nothing, f"looking at what is in {place.base}")

    async def suspend(self, sandbox: SandboxState) -> None:
        """Let a sandbox stand still."""
        suspend = SandboxSuspend(sandbox_id=sandbox.sandbox_id)
        await self._sandboxes.suspension.ensure(own_request(sandbox.owner, "sandbox.suspend", suspend))

    async def resume(self, sandbox: SandboxState) -> None:
        """Let a sandbox go on that was to be handed over."""
        resume = SandboxResume(sandbox_id=sandbox.sandbox_id)
        await self._sandboxes.resumption.ensure(own_request(sandbox.owner, "sandbox.resume", resume))

    async def failed(self, order: Order[LockState], error: SandkeepError) -> Sequence[NewEvent]:
        why = {"lock": order.subject.name, "why": error.message}
        logger.warning("a shared sandbox is not handed over", extra=why)
        return [self.about(order.subject, events.LockHandoverFailed(code=error.code, message=error.message))]

    async def recorded(self, order: Order[LockState], facts: Sequence[Recorded]) -> None:
        """See `Operation.recorded`. The lock is released by the order that is on record, or the waiter told why not.
        Then the sandbox goes on, if it ran and its lock is surely held: `Keeping` sees to one that was lost.
        """
        self.core.leaving.discard(order.subject.sandbox_id or "")
        released = next((fact for fact in facts if isinstance(fact.event, events.LockReleaseRequested)), None)
        if released is not None:
            self._locks.start_release(released)
            return
        try:
            await self._publisher.publish(order.subject.sandbox_id or "")
        except SandkeepError as error:
            logger.warning("a waiter is not told why", extra={"lock": order.subject.name, "why": error.message})
        sandbox = self.core.state.sandboxes[order.subject.sandbox_id or ""]
        if order.context is None or not order.context.suspended or sandbox.status != "suspended":
            return
        if self.leases.is_held(order.subject):
            await self.resume(sandbox)


def _look(sizes: dict[str, int], place: Place, moved: Meter) -> None:  # noqa: ARG001  # the shape of threads' work
    store = open_store(root_of(place), patience_s=FIRST_PATIENCE_S)  # within a lease, whatever the store does
    for path, size in sizes.items():
        found = store.stat(path).size_bytes
        if found != size:
            raise DataError("snapshot_corrupt", f"{store.where(path)} has {found} bytes and not {size}")


async def _nothing(sentence: str) -> None:
    """Tell nobody of a progress."""
