"""Saving and restoring gVisor sandboxes, which also suspends and resumes them. See `Pausing`.

A save ends the running container; a restore is a container of another name with the same processes inside.
"""

import functools
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from sandkeep.errors import ProviderError, SandkeepError, SetupError
from sandkeep_store.threads import in_abandoned_thread, in_thread
from sandkeepd.contract.instance import Ending
from sandkeepd.host.processes import Identity, has_ended, in_fresh_thread, kill_and_wait, wait_ended
from sandkeepd.keeper.pause import Pauses
from sandkeepd.providers.gvisor import plan as gvisor_plan
from sandkeepd.providers.gvisor import runsc, start
from sandkeepd.providers.gvisor.instance import GvisorInstance
from sandkeepd.providers.gvisor.plan import Plan
from sandkeepd.providers.gvisor.start import IMAGE, Job, Started

if TYPE_CHECKING:
    from sandkeepd.providers.gvisor.provider import GvisorProvider

ENDING_S: Final = 10.0
"""Seconds that a saved container may take to end."""


class Saves:
    """Saves the sandboxes of a provider, and restores them."""

    def __init__(self, provider: "GvisorProvider") -> None:
        self._provider = provider

    async def job_of(self, instance: GvisorInstance) -> Job:
        """Return the parameters for starting a sandbox, or for restoring it."""
        secrets = instance.handle.get("secrets", [])
        return await self._provider.job(instance.sandbox_id, instance.image_id, instance.spec, secrets, instance.plan)

    async def suspend(self, instance: GvisorInstance) -> None:
        """Save a sandbox, which ends its container. Safe to repeat."""
        async with instance.turn:
            if not instance.is_suspended:
                await self.save(instance, await self.job_of(instance), go_on=False)
                instance.suspended.set(True)

    async def resume(self, instance: GvisorInstance) -> None:
        """Restore a suspended sandbox. Safe to repeat."""
        async with instance.turn:
            if instance.is_suspended:
                await self.restore(instance, await self.job_of(instance))

    async def save(
        self, instance: GvisorInstance, job: Job, *, go_on: bool, digest: bool = False
    ) -> dict[str, tuple[str, int]]:
        """Save it; return the digests, if asked for. It is suspended then; on failure it runs, or it has ended."""
        require_savable(instance.plan)
        await instance.await_helpers()
        await instance.end_viewers()
        instance.hold_requests()
        pidfd, container = os.dup(instance.pidfd), instance.container
        instance.release_process()
        try:
            with trio.CancelScope(shield=True):
                work = functools.partial(start.save, job, container, go_on=go_on, digest=digest)
                found = await self._provider.in_thread(work)
        except BaseException as error:
            os.close(pidfd)
            if isinstance(error, SandkeepError):
                await self._after_failure(instance, job)
            raise
        if instance.plan.limits.memory_bytes is None:
            self._provider.nursery.start_soon(_await_gone, pidfd, job.root, container)
        else:
            await _await_gone(pidfd, job.root, container)  # the restored container needs its memory
        return {} if found is None else {IMAGE: found}

    async def _after_failure(self, instance: GvisorInstance, job: Job) -> None:
        """Let a sandbox go on after a failed save: it runs still, or was saved although there was an error."""
        await self._provider.in_thread(start.end_saved, job)
        found = await self._provider.in_thread(runsc.running, job.bundle)
        if found is not None and self._is_held(instance, *found):
            instance.release_requests()
        elif await self._provider.in_thread(start.recover_saved, job.bundle):
            with suppress(SandkeepError):  # else it stays suspended, which is seen
                await self.restore(instance, job)
        else:
            message = "its kernel ended while it was being saved"
            await instance.went(instance.ending or Ending(kind="failed", message=message))

    def _is_held(self, instance: GvisorInstance, container: str, first: Identity) -> bool:
        """Hold its running container; return False if that ends at this instant."""
        try:
            self._provider.hold_container(instance, container, first)
        except ProviderError:
            return False
        return True

    async def restore(self, instance: GvisorInstance, job: Job) -> None:
        """Restore it. When that fails, it is suspended if its saved state is still there, and else it has ended."""
        with trio.CancelScope(shield=True):
            try:
                started = await self.start_saved(job)
                self._provider.hold_container(instance, started.container, started.first)
            except BaseException as error:
                if await self._provider.in_thread(start.recover_saved, job.bundle):
                    await self._provider.in_thread(start.stay_suspended, job)
                    instance.suspended.set(True)
                else:
                    message = f"it could not be restored: {error}"
                    await instance.went(instance.ending or Ending(kind="failed", message=message))
                raise
            instance.release_requests()
            instance.suspended.set(False)

    async def start_saved(self, job: Job) -> Started:
        """Start the saved state of a sandbox."""
        work = functools.partial(start.start, job, restore=True)
        return await self._provider.starts(in_fresh_thread, work)


class SavedPauses(Pauses):
    """Suspends a sandbox by saving it. One that is saved for a moment only counts as running."""

    def __init__(self, instance: GvisorInstance, saves: Saves) -> None:
        plan = instance.plan
        super().__init__(instance.suspended, gvisor_plan.why_not_saved(plan.network, rootless=plan.rootless))
        self._instance = instance
        self._saves = saves

    async def suspend(self) -> None:
        await self._saves.suspend(self._instance)

    async def resume(self) -> None:
        await self._saves.resume(self._instance)


def require_savable(plan: Plan) -> None:
    """Raise `not_supported` for a sandbox that `runsc` cannot save."""
    why = gvisor_plan.why_not_saved(plan.network, rootless=plan.rootless)
    if why is not None:
        raise SetupError("not_supported", why)


async def _await_gone(pidfd: int, root: str, container: str) -> None:
    """Wait until a saved container has ended, and remove its state; a `runsc` that hangs is killed."""
    try:
        with trio.move_on_after(ENDING_S):
            await wait_ended(pidfd)
        if not has_ended(pidfd):
            await in_abandoned_thread(kill_and_wait, pidfd)
        await in_thread(runsc.forget, root, container)
    finally:
        trio.lowlevel.notify_closing(pidfd)
        os.close(pidfd)
