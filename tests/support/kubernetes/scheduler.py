"""Scheduling of pods: all go to the one node, unless a test has them wait."""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.events import warn
from tests.support.kubernetes.pod_status import NODE, PodState, merged

if TYPE_CHECKING:
    from tests.support.kubernetes.kubelet import Kubelet

Object = dict[str, Any]


async def schedule(kubelet: "Kubelet", pod: Object, state: PodState) -> None:
    """Bind a pod to the node, once it can be scheduled."""
    if kubelet.delay_s:
        await asyncio.sleep(kubelet.delay_s)
    async with kubelet.changed:
        while kubelet.unschedulable:
            _refuse(kubelet, pod, kubelet.unschedulable)
            await kubelet.changed.wait()
    meta = pod["metadata"]

    def bind(new: Object) -> None:
        if new["metadata"]["uid"] == meta["uid"]:
            new["spec"]["nodeName"] = NODE
            state.write(new)

    with contextlib.suppress(ApiError):
        kubelet.store.update("pods", meta["namespace"], meta["name"], bind, subresource="binding")


def _refuse(kubelet: "Kubelet", pod: Object, message: str) -> None:
    meta = pod["metadata"]
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}

    def write(new: Object) -> None:
        status = new.setdefault("status", {})
        status |= {"phase": "Pending", "conditions": merged(status.get("conditions", []), [refused])}

    with contextlib.suppress(ApiError):
        kubelet.store.update("pods", meta["namespace"], meta["name"], write, subresource="status")
    warn(kubelet.store, pod, "FailedScheduling", message)
