"""Status of a pod, as the kubelet reports it, from the states of its containers."""

from dataclasses import dataclass, field
from typing import Any

from tests.support.kubernetes.metadata import timestamp

Object = dict[str, Any]
NODE, NODE_IP = "double", "10.0.0.2"


@dataclass
class ContainerState:
    """What is known of one container of a pod; one of its states is `{"running": {...}}`."""

    name: str
    image: str
    container_id: str = ""
    restarts: int = 0
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Object = field(default_factory=dict)

    def wait(self, reason: str, message: str = "") -> None:
        """Note why it does not run yet."""
        waiting = {"reason": reason, "message": message} if message else {"reason": reason}
        self.state = {"waiting": waiting}

    def run(self, container_id: str) -> None:
        """Note that it runs."""
        self.container_id = container_id
        self.state = {"running": {"startedAt": timestamp()}}

    def end(self, code: int, reason: str = "", message: str = "") -> None:
        """Note how it ended."""
        started = self.state.get("running", {}).get("startedAt", timestamp())
        ended = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
        ended |= {"startedAt": started, "finishedAt": timestamp(), "containerID": self.container_id}
        self.state = {"terminated": ended | ({"message": message} if message else {})}

    @property
    def exit_code(self) -> int | None:
        """Its exit code once it has ended."""
        code: int | None = self.state.get("terminated", {}).get("exitCode")
        return code

    def status(self, *, init: bool = False) -> Object:
        """Return its `containerStatuses` entry."""
        running = "running" in self.state
        found: Object = {"name": self.name, "image": self.image, "imageID": f"double/{self.image}"}
        found |= {"restartCount": self.restarts, "state": self.state, "lastState": self.last, "started": running}
        found["ready"] = self.exit_code == 0 if init else running
        return found | ({"containerID": self.container_id} if self.container_id else {})


@dataclass
class PodState:
    """What the kubelet knows of a pod."""

    init: list[ContainerState]
    containers: list[ContainerState]
    restart_policy: str
    ip: str
    started: str = field(default_factory=timestamp)
    failure: Object = field(default_factory=dict)
    more: list[Object] = field(default_factory=list)
    """Conditions besides the usual ones."""

    def phase(self) -> str:
        """Return the phase that these states make."""
        if self.failure:
            return "Failed"
        if any(state.exit_code for state in self.init) and self.restart_policy == "Never":
            return "Failed"
        codes = [state.exit_code for state in self.containers]
        if all(code is not None for code in codes):
            if self.restart_policy == "Never" or (self.restart_policy == "OnFailure" and not any(codes)):
                return "Failed" if any(codes) else "Succeeded"
            return "Running"
        if any("waiting" in state.state and not state.restarts for state in self.containers):
            return "Pending"
        return "Running"

    def write(self, pod: Object) -> None:
        """Put this status into a pod."""
        old = pod.get("status", {})
        phase = self.phase()
        status: Object = {"phase": phase, "hostIP": NODE_IP, "startTime": self.started}
        if "qosClass" in old:
            status["qosClass"] = old["qosClass"]
        if any("waiting" not in state.state for state in (*self.init, *self.containers)):
            status |= {"podIP": self.ip, "podIPs": [{"ip": self.ip}]}
        if self.init:
            status["initContainerStatuses"] = [state.status(init=True) for state in self.init]
        status["containerStatuses"] = [state.status() for state in self.containers]
        status["conditions"] = merged(old.get("conditions", []), [*self._conditions(phase), *self.more])
        pod["status"] = {**status, **self.failure}

    def _conditions(self, phase: str) -> list[Object]:
        initialized = all(state.exit_code == 0 for state in self.init)
        waiting = [state.name for state in self.containers if "running" not in state.state]
        found = [{"type": "PodScheduled", "status": "True"}]
        unfinished = [state.name for state in self.init if state.exit_code != 0]
        names = f"containers with incomplete status: [{' '.join(unfinished)}]"
        found.append(_condition("Initialized", initialized, "ContainersNotInitialized", names))
        reason, names = "ContainersNotReady", f"containers with unready status: [{' '.join(waiting)}]"
        if phase in ("Succeeded", "Failed"):
            reason, names = ("PodCompleted" if phase == "Succeeded" else "PodFailed"), ""
        ready = phase == "Running" and not waiting
        return [*found, *(_condition(kind, ready, reason, names) for kind in ("ContainersReady", "Ready"))]


def _condition(kind: str, value: bool, reason: str, message: str) -> Object:
    if value:
        return {"type": kind, "status": "True"}
    return {"type": kind, "status": "False", "reason": reason} | ({"message": message} if message else {})


def merged(old: list[Object], new: list[Object]) -> list[Object]:
    """Return conditions with others in place of those of the same type; the time of their transitions stays."""
    found = {condition["type"]: condition for condition in old}
    for condition in new:
        before = found.get(condition["type"], {})
        same = before.get("status") == condition["status"]
        moment = before["lastTransitionTime"] if same and "lastTransitionTime" in before else timestamp()
        found[condition["type"]] = {**condition, "lastTransitionTime": moment}
    return list(found.values())
