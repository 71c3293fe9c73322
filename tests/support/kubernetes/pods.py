"""One pod on the node, from its scheduling to its removal."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
from typing import TYPE_CHECKING, Any

from tests.support.doubles.processes import StartError
from tests.support.kubernetes.containers import container_spec
from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.events import warn
from tests.support.kubernetes.pod_status import PodState
from tests.support.kubernetes.runsc_runtime import RunscContainer
from tests.support.kubernetes.runtime import stop
from tests.support.kubernetes.scheduler import schedule
from tests.support.kubernetes.slots import RefusedError, Restore, Slot
from tests.support.kubernetes.volumes import NotReadyError, make_volumes

if TYPE_CHECKING:
    from tests.support.kubernetes.kubelet import Kubelet

Object = dict[str, Any]
RETRY_S = 0.2
FIRST_BACKOFF_S, LAST_BACKOFF_S = 10.0, 300.0


class Pod:
    """Runs the containers of a pod in a task."""

    def __init__(self, kubelet: "Kubelet", pod: Object, address: str) -> None:
        self.object = pod
        self.name = pod["metadata"]["name"]
        self._kubelet = kubelet
        self._directory = f"{kubelet.directory}/pods/{pod['metadata']['uid']}"
        spec = pod["spec"]
        self._init = [Slot(self._directory, container) for container in spec.get("initContainers", [])]
        self.slots = [Slot(self._directory, container) for container in spec["containers"]]
        self.state = PodState(
            [slot.state for slot in self._init],
            [slot.state for slot in self.slots],
            spec.get("restartPolicy", "Always"),
            address,
        )
        self._volumes: dict[str, str] = {}
        self._grace_s: float | None = None
        self._urgent = False
        self._deleted = asyncio.Event()
        self._work = asyncio.get_running_loop().create_task(self._run())
        self.task = asyncio.get_running_loop().create_task(self._live())

    def container(self, name: str | None) -> Slot:
        """Return the place of a container, by default of the first. Raises ApiError."""
        for slot in (*self.slots, *self._init):
            if name in (None, "", slot.state.name):
                return slot
        raise ApiError(400, "BadRequest", f"container {name} is not valid for pod {self.name}")

    def delete(self, grace_s: float) -> None:
        """End the containers and remove the pod; called again, it can only be in more of a hurry."""
        if self._grace_s is None or grace_s < self._grace_s:
            self._grace_s = grace_s
            self._deleted.set()

    def fail(self, reason: str, message: str) -> None:
        """Kill the containers; the pod stays as failed."""
        if not self.state.failure:
            self.state.failure = {"reason": reason, "message": message}
            self._urgent = True
            self._work.cancel()

    def starve(self) -> None:
        """Have the kernel kill its last container for want of memory."""
        slot = self.slots[-1]
        slot.starved = True
        if slot.running is not None:
            asyncio.get_running_loop().create_task(slot.running.kill(signal.SIGKILL))

    def abandon(self) -> None:
        """Stop all work for the pod; whoever closes the launcher ends its containers."""
        self._work.cancel()
        self.task.cancel()

    async def _live(self) -> None:
        """Wait for the pod's end, then for its deletion, and remove it."""
        deleted = asyncio.ensure_future(self._deleted.wait())
        try:
            await asyncio.wait([self._work, deleted], return_when=asyncio.FIRST_COMPLETED)
            if not deleted.done():
                await self._stop(0 if self._urgent else self.object["spec"].get("terminationGracePeriodSeconds", 30))
                self.publish()
                await deleted
            self._work.cancel()
            await asyncio.wait([self._work])
            await self._stop_for_deletion()
        finally:
            deleted.cancel()
        self.publish()
        await asyncio.to_thread(shutil.rmtree, self._directory, True)
        with contextlib.suppress(ApiError):
            meta = self.object["metadata"]
            self._kubelet.store.delete("pods", meta["namespace"], meta["name"], grace=0, uid=meta["uid"])

    async def _stop_for_deletion(self) -> None:
        """End the containers in the grace period, which another deletion may shorten."""
        while True:
            self._deleted.clear()
            shorter = asyncio.ensure_future(self._deleted.wait())
            stopping = asyncio.ensure_future(self._stop(self._grace_s or 0))
            try:
                await asyncio.wait([shorter, stopping], return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    return stopping.result()
            finally:
                shorter.cancel()
                stopping.cancel()

    async def _stop(self, grace_s: float) -> None:
        async def end(slot: Slot) -> None:
            if slot.running is not None:
                await stop(slot.running, grace_s)
                slot.state.end(await slot.running.wait())
                slot.running = None

        await asyncio.gather(*map(end, (*self._init, *self.slots)))

    def publish(self) -> None:
        """Write the status into the store, if the pod is still there."""
        meta = self.object["metadata"]

        def write(pod: Object) -> None:
            if pod["metadata"]["uid"] == meta["uid"]:
                self.state.write(pod)

        with contextlib.suppress(ApiError):
            self._kubelet.store.update("pods", meta["namespace"], meta["name"], write, subresource="status")

    # From scheduling to the end of the containers

    async def _run(self) -> None:
        await schedule(self._kubelet, self.object, self.state)
        self.publish()
        limit = self.object["spec"].get("activeDeadlineSeconds")
        try:
            async with asyncio.timeout(limit):
                await self._until_ready(self._make_sandbox)
                self._volumes = await self._until_ready(self._make_volumes)
                for slot in self._init:
                    if not await self._run_init(slot):
                        return
                await asyncio.gather(*map(self._run_slot, self.slots))
        except TimeoutError:
            message = "Pod was active on the node longer than the specified deadline"
            self.state.failure = {"reason": "DeadlineExceeded", "message": message}

    async def _until_ready(self, make: Any) -> Any:
        """Repeat it until nothing is missing, with the reason in the containers' states."""
        while True:
            try:
                return make()
            except NotReadyError as error:
                for slot in (*self._init, *self.slots):
                    slot.state.wait(error.reason, str(error))
                self.publish()
                await asyncio.sleep(RETRY_S)

    def _make_sandbox(self) -> None:
        """Raise NotReadyError while the node cannot make what containers run in, of which an Event alone tells."""
        if why := self._kubelet.sandbox_failure:
            warn(self._kubelet.store, self.object, "FailedCreatePodSandBox", f"Failed to create pod sandbox: {why}")
            raise NotReadyError("ContainerCreating", "")

    def _make_volumes(self) -> dict[str, str]:
        name = self.object["spec"].get("runtimeClassName")
        if name not in self._kubelet.runtimes:
            raise NotReadyError("ContainerCreating", f'RuntimeClass "{name}" not found')
        return make_volumes(self._kubelet.store, self.object, f"{self._directory}/volumes")

    async def _run_init(self, slot: Slot) -> bool:
        """Run an init container until it has succeeded; return False if it failed for good."""
        backoff_s = 0.0
        while True:
            code = await self._run_once(slot)
            if code == 0 or self.state.restart_policy == "Never":
                self.publish()
                return code == 0
            backoff_s = await self._back_off(slot, backoff_s)

    async def _run_slot(self, slot: Slot) -> None:
        backoff_s = 0.0
        policy = self.state.restart_policy
        restore = await self._choose_restore()
        while True:
            code = await self._run_once(slot, restore)
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                self.publish()
                return
            restore = None
            backoff_s = await self._back_off(slot, backoff_s)

    async def _choose_restore(self) -> Restore | None:
        """Return what the pod goes on from. While that cannot be had, the pod stays pending, with a condition."""
        while self._kubelet.restore is not None:
            try:
                return await self._kubelet.restore(self.object)
            except RefusedError as error:
                self._restored("False", error.reason, str(error))
                self.publish()
                await asyncio.sleep(RETRY_S)
        return None

    def _restored(self, status: str, reason: str, message: str) -> None:
        self.state.more = [{"type": "PodRestored", "status": status, "reason": reason, "message": message}]

    async def checkpoint(self, directory: str, *, resume: bool) -> None:
        """Save the pod's container into an empty directory; with `resume`, it goes on. Raises StartError."""
        slot = self.slots[0]
        async with slot.moving:
            container = slot.running
            if not isinstance(container, RunscContainer) or len(self.slots) > 1:
                raise StartError("only a running gVisor pod of one container can be saved")
            await container.checkpoint(directory)
            await container.wait()
            if resume:
                await self._launch(slot, directory)

    async def _back_off(self, slot: Slot, backoff_s: float) -> float:
        """Wait before a restart; return how long to wait before the next."""
        if backoff_s:
            ended = slot.state.state
            slot.state.wait("CrashLoopBackOff", f"back-off {backoff_s:.0f}s restarting failed container")
            slot.state.last = ended
            slot.state.restarts += 1  # first, as that tells a crash from a start
            self.publish()
            await asyncio.sleep(backoff_s)
        else:
            slot.state.last = slot.state.state
            slot.state.restarts += 1
        return min(max(2 * backoff_s, FIRST_BACKOFF_S), LAST_BACKOFF_S)

    async def _run_once(self, slot: Slot, restore: Restore | None = None) -> int:
        """Run a container to its end; return its exit code."""
        await self._pull(slot)
        try:
            await self._start(slot, restore)
        except StartError as error:
            if restore is not None:
                self._restored("False", "RestoreFailed", f"{restore.name}: {error}")
            slot.state.end(128, "StartError", f"failed to create containerd task: {error}")
            return 128
        self.publish()
        while slot.running is not None:
            container = slot.running
            code = await container.wait()
            async with slot.moving:
                if slot.running is container:
                    slot.running = None
                    slot.state.end(code, "OOMKilled" if slot.starved else "")
        return slot.state.exit_code or 0

    async def _start(self, slot: Slot, restore: Restore | None) -> None:
        """Start a container in its slot. Raises StartError."""
        number = await self._launch(slot, restore.directory if restore is not None else None)
        if restore is not None:
            message = f"pod is restored from {self.object['metadata']['namespace']}/{restore.name}"
            self._restored("True", "Restored", message)
        slot.state.run(f"double://{self.object['metadata']['uid']}/{number}")

    async def _launch(self, slot: Slot, checkpoint: str | None) -> str:
        """Have the runtime start a container; return its id. Raises StartError."""
        number = secrets.token_hex(4)
        directory = f"{slot.directory}/{number}"
        image = self._kubelet.images[slot.state.image]

        def make() -> Any:
            return container_spec(self._kubelet.store, self.object, slot.spec, directory, image, self._volumes)

        spec = await self._until_ready(make)
        os.makedirs(directory)
        runtime = self._kubelet.runtimes[self.object["spec"].get("runtimeClassName")]
        log = os.open(slot.log, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            async with self._kubelet.starts:
                slot.running = await runtime.start(spec, log, checkpoint)
        finally:
            os.close(log)
        slot.process = spec.process
        return number

    async def _pull(self, slot: Slot) -> None:
        """Wait for an image to be there."""
        reason, name = "ErrImagePull", slot.state.image
        while name not in self._kubelet.images:
            message = f'failed to pull and unpack image "{name}": not found'
            if slot.spec.get("imagePullPolicy") == "Never":
                reason, message = (
                    "ErrImageNeverPull",
                    f'Container image "{name}" is not present with pull policy of Never',
                )
            slot.state.wait(reason, message if reason != "ImagePullBackOff" else f'Back-off pulling image "{name}"')
            self.publish()
            if reason == "ErrImagePull":
                reason = "ImagePullBackOff"
            await asyncio.sleep(RETRY_S)
