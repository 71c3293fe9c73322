"""The node of the double: runs the containers of all pods in the store."""

import asyncio
import contextlib
import itertools
import os
import resource
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from tests.support.doubles.processes import ExecProcess, Launcher
from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.informer import follow
from tests.support.kubernetes.metadata import timestamp
from tests.support.kubernetes.pod_status import NODE, NODE_IP
from tests.support.kubernetes.pods import Pod
from tests.support.kubernetes.runsc_runtime import RunscRuntime
from tests.support.kubernetes.runtime import NamespaceRuntime, Runtime
from tests.support.kubernetes.slots import Restore
from tests.support.kubernetes.store import Store

Object = dict[str, Any]
TAIL_S = 0.05
STARTS = 32
"""So many containers are started at a time, as each start needs descriptors."""


class Kubelet:
    """See `kubelet_api.Kubelet`. `restore` chooses what a pod goes on from."""

    def __init__(self, store: Store, directory: str, images: Mapping[str, str]) -> None:
        self.store = store
        self.directory = directory
        self.images = dict(images)
        self.runtimes: dict[str | None, Runtime] = {}
        self.restore: Callable[[Object], Awaitable[Restore | None]] | None = None
        self.delay_s = 0.0
        self.unschedulable = ""
        self.sandbox_failure = ""
        self.changed = asyncio.Condition()
        self.starts = asyncio.Semaphore(STARTS)
        self._pods: dict[str, Pod] = {}
        self._addresses = itertools.count(2)

    def script(self, *, pod_delay_s: float | None = None, unschedulable: str | None = None, **others: Any) -> None:
        """Change behaviour: seconds before a pod is scheduled; the message with which pods stay unscheduled, or "".

        Options: `sandbox_failure`, why no pod can be started, or ""; names of pods to `evict`, and to `starve`, of
        which the kernel kills the last container.
        """
        if pod_delay_s is not None:
            self.delay_s = pod_delay_s
        if unschedulable is not None:
            self.unschedulable = unschedulable
            asyncio.get_running_loop().create_task(self._notify())
        self.sandbox_failure = others.get("sandbox_failure", self.sandbox_failure)
        for pod in self._pods.values():
            if pod.name in others.get("evict", []):
                pod.fail("Evicted", "The node was low on resource: memory.")
            if pod.name in others.get("starve", []):
                pod.starve()

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def run(self) -> None:
        """See `Component`."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        launcher = Launcher()
        self.runtimes = {None: NamespaceRuntime(launcher), "gvisor": RunscRuntime(launcher)}
        try:
            self._register()
            async for kind, pod in follow(self.store, "pods"):
                self._see(kind, pod)
        finally:
            for known in self._pods.values():
                known.abandon()
            await launcher.close()
            for name in ("pods", "snapshots"):
                shutil.rmtree(f"{self.directory}/{name}", ignore_errors=True)

    def _register(self) -> None:
        capacity = {"cpu": "1k", "memory": "1Ti", "pods": "10k", "ephemeral-storage": "1Ti"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": timestamp()}
        addresses = [{"type": "InternalIP", "address": NODE_IP}, {"type": "Hostname", "address": NODE}]
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready], "addresses": addresses}
        labels = {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"}
        with contextlib.suppress(ApiError):  # another has made it
            self.store.create("nodes", None, {"metadata": {"name": NODE, "labels": labels}, "status": status})

    def _see(self, kind: str, pod: Object) -> None:
        if not self._serves(pod["spec"].get("nodeName")):
            return
        uid = pod["metadata"]["uid"]
        known = self._pods.get(uid)
        if kind == "DELETED":
            if known is not None:
                known.delete(0)
        elif known is None and pod.get("status", {}).get("phase") in (None, "Pending"):
            self._pods[uid] = made = Pod(self, pod, self._new_address())
            made.task.add_done_callback(lambda _: self._pods.pop(uid, None))
            known = made
        if known is not None and "deletionTimestamp" in pod["metadata"]:
            known.delete(pod["metadata"].get("deletionGracePeriodSeconds") or 0)

    def _serves(self, node: str | None) -> bool:
        """Tell whether pods of a node run here: this one, and any that a test registers at this machine's loopback."""
        found = self.store.get("nodes", None, node or NODE) or {}
        addresses = [address["address"] for address in found.get("status", {}).get("addresses", [])]
        return node in (None, NODE) or "127.0.0.1" in addresses

    def _new_address(self) -> str:
        number = next(self._addresses)
        return f"10.244.{number // 256 % 256}.{number % 256}"

    def pod(self, uid: str) -> Pod:
        """Return what runs of a pod. Raises ApiError."""
        if uid not in self._pods:
            raise ApiError(404, "NotFound", "the pod does not run on this node")
        return self._pods[uid]

    async def exec(
        self, pod: Object, container: str | None, command: list[str], *, tty: bool, stdin: bool
    ) -> ExecProcess:
        """See `kubelet_api.Kubelet`."""
        found = self.pod(pod["metadata"]["uid"]).container(container)
        if found.running is None:
            raise ApiError(500, "InternalError", f'container not found ("{found.state.name}")')
        env = found.process["env"] | ({"TERM": "xterm"} if tty else {})
        process = {**found.process, "argv": command, "env": env, "tty": tty}
        return await found.running.exec(process, stdin=stdin)

    async def log(
        self, pod: Object, container: str | None, *, follow: bool, tail_lines: int | None
    ) -> AsyncIterator[bytes]:
        """See `kubelet_api.Kubelet`."""
        found = self.pod(pod["metadata"]["uid"]).container(container)
        if not os.path.exists(found.log):
            why = f'container "{found.state.name}" in pod "{pod["metadata"]["name"]}" is waiting to start'
            raise ApiError(400, "BadRequest", why)
        with open(found.log, "rb", buffering=0) as file:
            if tail_lines is not None:
                lines = file.read().splitlines(keepends=True)
                if tail_lines and lines:
                    yield b"".join(lines[-tail_lines:])
            while True:
                runs = found.running is not None
                while data := file.read(65536):
                    yield data
                if not follow or not runs:
                    return
                await asyncio.sleep(TAIL_S)


def create(store: Store, directory: str, images: Mapping[str, str]) -> Kubelet:
    """Make a kubelet; `images` maps the names of images to their root file systems."""
    return Kubelet(store, directory, images)
