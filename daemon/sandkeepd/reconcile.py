"""Start-up: what the log says against what the providers have.

Intents without an outcome are undone (an image half copied, a sandbox half made) or finished (an end or a removal that
was ordered); running sandboxes are adopted with their processes, or told as lost; what a provider holds and no event
owns is removed. Sandboxes are looked at side by side, each with a deadline, so that one that hangs delays nobody else;
meanwhile reads are answered, and requests to a sandbox wait until it is adopted.
"""

import errno
import logging
from functools import partial

import trio

from sandkeep import events, failpoints
from sandkeep.errors import DaemonError, StateError
from sandkeep_store.log import NewEvent
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd import decide
from sandkeepd.core import RETRY_S, Core, as_sandkeep_error
from sandkeepd.images import Images
from sandkeepd.processes import Processes
from sandkeepd.providers.base import Instance, Provider
from sandkeepd.sandboxes import Sandboxes, start_in

logger = logging.getLogger("sandkeepd")

ADOPTION_DEADLINE_S = 20.0
DISK_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
INTERRUPTED = "the daemon stopped while it was being made: create it again"


class Reconciler:
    """Does all that once, when a daemon starts."""

    def __init__(self, core: Core, images: Images, sandboxes: Sandboxes, processes: Processes) -> None:
        self._core = core
        self._images = images
        self._sandboxes = sandboxes
        self._processes = processes

    def announce(self) -> None:
        """Before the first request: say which sandboxes are about to be adopted, so that requests to them wait."""
        for sandbox in self._core.state.sandboxes.values():
            if sandbox.status == "running":
                self._sandboxes.adopting[sandbox.sandbox_id] = (trio.CancelScope(), trio.Event())

    async def run(self) -> None:
        """Bring the log and the providers together."""
        core = self._core
        known = {*core.state.sandboxes, *core.state.images}
        async with trio.open_nursery() as nursery:
            for image_id, image in list(core.state.images.items()):
                if image.status == "creating":
                    nursery.start_soon(core.guarded, partial(self._undo_image, image_id), f"undoing {image_id}")
                elif image.status == "removing":
                    nursery.start_soon(
                        core.guarded, partial(self._images.finish_remove, image_id, None), f"removing {image_id}"
                    )
            unsettled = [s for s in core.state.sandboxes.values() if s.status in ("creating", "running", "stopping")]
            for sandbox in unsettled:
                nursery.start_soon(core.guarded, partial(self._settle, sandbox), f"settling {sandbox.sandbox_id}")
        for provider in core.providers.values():
            await core.guarded(partial(self._sweep, provider, known), f"sweeping {provider.name}")

    async def _undo_image(self, image_id: str) -> None:
        core = self._core
        await core.provider(core.state.images[image_id].requested.provider).remove_image(image_id)
        failed = events.ImageCreateFailed(code="not_ready", message=INTERRUPTED, interrupted=True)
        await core.record([NewEvent(image_id, failed)], None)

    async def _settle(self, sandbox: SandboxState) -> None:
        if sandbox.sandbox_id in self._sandboxes.adopting:
            scope, finished = self._sandboxes.adopting[sandbox.sandbox_id]
            try:
                with scope:
                    await self._adopt(sandbox)
            finally:
                del self._sandboxes.adopting[sandbox.sandbox_id]
                finished.set()
        elif sandbox.status == "creating":
            await self._undo_sandbox(sandbox)
        elif sandbox.status == "stopping":
            await self._sandboxes.finish_end(sandbox.sandbox_id, None)

    async def _undo_sandbox(self, sandbox: SandboxState) -> None:
        core, asked = self._core, sandbox.requested
        await core.provider(asked.provider).terminate(sandbox.sandbox_id, asked.plan, {})
        failed = events.SandboxCreateFailed(code="not_ready", message=INTERRUPTED, interrupted=True)
        await core.record([NewEvent(sandbox.sandbox_id, failed, sandbox.sandbox_id)], None)

    async def _adopt(self, sandbox: SandboxState) -> None:
        """Take over a sandbox, or tell that it is lost; neither when its end is ordered meanwhile."""
        if not decide.may(sandbox, "sandbox.adopted"):
            return
        why, revision = "its provider has it no more", sandbox.revision
        instance: Instance | None = None
        try:
            instance = await self._take_over(sandbox)
            failpoints.reach("adopt.held")
        except trio.TooSlowError:
            why = f"its provider did not answer within {ADOPTION_DEADLINE_S:g} s"
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            why = as_sandkeep_error(unforeseen).message
        try:
            if instance is None:
                await self._lost(sandbox, why, revision)
            else:
                adopted = NewEvent(sandbox.sandbox_id, events.SandboxAdopted(), sandbox.sandbox_id, revision)
                await self._core.record([adopted], None)
        except StateError:
            logger.info("not adopted, as it is being ended", extra={"sandbox_id": sandbox.sandbox_id})
            return
        if instance is not None:
            await self._adopt_processes(sandbox, instance)

    async def _take_over(self, sandbox: SandboxState) -> Instance | None:
        """Have the provider take it over. A disk that fails meanwhile says nothing about the sandbox: it is tried again
        for as long as that lasts.
        """
        asked = sandbox.requested
        assert sandbox.isolation is not None
        provider = self._core.provider(asked.provider)
        while True:
            try:
                with trio.fail_after(ADOPTION_DEADLINE_S):
                    return await provider.adopt(
                        sandbox.sandbox_id, asked.spec, asked.plan, sandbox.isolation, sandbox.handle
                    )
            except OSError as error:
                if error.errno not in DISK_FAILURES:
                    raise
                logger.warning("not adopted yet", extra={"sandbox_id": sandbox.sandbox_id, "why": error.strerror})
            except DaemonError as error:
                if error.code != "storage_unavailable":
                    raise
                logger.warning("not adopted yet", extra={"sandbox_id": sandbox.sandbox_id, "why": error.message})
            await trio.sleep(RETRY_S)

    async def _adopt_processes(self, sandbox: SandboxState, instance: Instance) -> None:
        """Start the carriers of its processes, and wait until the instance knows each: signals need that."""
        active = {process: trio.Event() for process in sandbox.active}
        runtime = self._sandboxes.keep(instance)
        while not runtime.open and not runtime.finished.is_set():
            await trio.lowlevel.checkpoint()
        for process_id, found in active.items():
            process = self._core.state.processes[process_id]
            carrier = partial(self._processes.adopt, runtime, process, found)
            if not start_in(runtime, carrier, self._core, f"process {process_id}"):
                return
        with trio.move_on_after(ADOPTION_DEADLINE_S):
            for found in active.values():
                await found.wait()
        logger.info("adopted", extra={"sandbox_id": sandbox.sandbox_id, "processes": len(active)})

    async def _lost(self, sandbox: SandboxState, why: str, revision: int) -> None:
        logger.warning("sandbox lost", extra={"sandbox_id": sandbox.sandbox_id, "why": why})
        told = [
            NewEvent(process.process_id, events.ProcessLost(message=f"its sandbox was lost: {why}"), sandbox.sandbox_id)
            for process in sandbox.active.values()
        ]
        lost = events.SandboxLost(last_status="running", message=why)
        await self._core.record([*told, NewEvent(sandbox.sandbox_id, lost, sandbox.sandbox_id, revision)], None)

    async def _sweep(self, provider: Provider, known: set[str]) -> None:
        """Remove what the provider holds and nobody owns. What was made since the daemon started is not in question."""
        state = self._core.state
        sandboxes, images = await provider.found()
        failpoints.reach("sweep.found")
        for sandbox_id in sandboxes:
            sandbox = state.sandboxes.get(sandbox_id)
            if sandbox is None or (sandbox_id in known and sandbox.hidden):
                logger.warning("removing what no event owns", extra={"sandbox_id": sandbox_id})
                plan = sandbox.requested.plan if sandbox is not None else {}
                await provider.terminate(sandbox_id, plan, sandbox.handle if sandbox is not None else {})
        for image_id in images:
            image = state.images.get(image_id)
            if image is None or (image_id in known and image.ended):
                logger.warning("removing what no event owns", extra={"image_id": image_id})
                await provider.remove_image(image_id)
