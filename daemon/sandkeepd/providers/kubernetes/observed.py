"""Objects as the cluster shows them: the few fields that matter here, and the conclusions from them. No I/O."""

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Raw, Struct, field

from sandkeep.kubernetes.claims import POD_NAME_ANNOTATION
from sandkeep.kubernetes.pod_snapshots import RESTORE_ANNOTATION
from sandkeepd.contract.instance import Ending
from sandkeepd.providers.kubernetes.marks import LOG_LABEL, SANDBOX_LABEL, SAVED_ANNOTATION, SUSPENDED_ANNOTATION

_MOST_SHOWN: Final = 300

MOST_NAME: Final = 1024
"""Maximum length of names, uids and versions; those of the API have 253 characters at most."""

_HOPELESS: Final = frozenset(
    {
        "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ImageInspectError",
        "InvalidImageName", "RunContainerError", "CrashLoopBackOff", "ImagePullBackOff",
    }
)  # fmt: skip
"""Reasons of a waiting container that waiting does not mend. ``ErrImagePull`` is the first of several tries."""

_ENDED: Final = ("Failed", "Succeeded")
_NO_REASON: Final = "the cluster gives no reason"

_HOPELESS_CONDITIONS: Final = frozenset(
    {
        "InvalidMetadata", "EnvVarsInjectionRejected", "VolumeClaimTemplatesError", "ClaimExpired", "SandboxExpired",
        "PodFailed", "PodSucceeded", "TemplateNotFound", "WarmPoolNotFound",
    }
)  # fmt: skip
"""Reasons of ``Ready=False`` that waiting does not mend, of Sandboxes and SandboxClaims."""

_REFUSALS: Final = (
    " is invalid: ",
    " is forbidden: ",
    "exceeded quota",
    "is controlled by another",
    " denied the request",
)
"""Words of errors of a controller that waiting does not mend. It tries again after each."""


class Condition(Struct, frozen=True):
    """A condition of an object's status."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Waiting(Struct, frozen=True):
    """The state of a container that does not run yet."""

    reason: str = ""
    message: str = ""


class Running(Struct, frozen=True):
    """The state of a container that runs."""


class Terminated(Struct, frozen=True, rename="camel"):
    """The state of a container that has ended."""

    exit_code: int = -1
    reason: str = ""
    message: str = ""


class ContainerState(Struct, frozen=True):
    """The state of a container: one of these."""

    waiting: Waiting | None = None
    running: "Running | None" = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True, rename="camel"):
    """A container and its state, and that of the one before it in its place."""

    name: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    container_id: Annotated[str, Meta(max_length=MOST_NAME)] = field(default="", name="containerID")


class Named(Struct, frozen=True):
    """A reference by name."""

    name: str = ""


class Owner(Struct, frozen=True):
    """A reference to an owner of an object."""

    uid: str = ""
    controller: bool | None = False


Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MOST_NAME)]


class Labels(Struct, frozen=True, gc=False, rename={"sandbox": SANDBOX_LABEL, "log": LOG_LABEL}):
    """The labels that matter here. A thousand sandboxes have 2,000 objects, each with a dozen labels."""

    sandbox: str = ""
    log: str = ""


class Annotations(
    Struct, frozen=True, gc=False,
    rename={
        "restored_from": RESTORE_ANNOTATION, "pod_name": POD_NAME_ANNOTATION, "suspended_as": SUSPENDED_ANNOTATION,
        "saved": SAVED_ANNOTATION,
    },
):  # fmt: skip
    """The annotations that matter here."""

    restored_from: str = ""
    pod_name: str = ""
    suspended_as: str = ""
    saved: str = ""


class Metadata(Struct, frozen=True, rename="camel"):
    """The metadata that all objects have."""

    name: Text
    uid: Text
    resource_version: Text
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    finalizers: list[str] | None = None
    labels: Labels = Labels()
    annotations: Annotations = Annotations()
    owner_references: list[Owner] | None = None


class Status(Struct, frozen=True, rename="camel"):
    """The status of a pod, a Sandbox or a SandboxClaim. `sandbox` is the Sandbox that a claim was given."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] = field(default_factory=list)
    container_statuses: list[ContainerStatus] = field(default_factory=list)
    init_container_statuses: list[ContainerStatus] = field(default_factory=list)
    sandbox: Named | None = None


class Spec(Struct, frozen=True, rename="camel"):
    """The part of a Sandbox's spec that runs or suspends it, in both versions."""

    operating_mode: str | None = None
    replicas: int | None = None


class Observed(Struct, frozen=True):
    """An object of any kind that is watched."""

    metadata: Metadata
    spec: Spec = Spec()
    status: Status = Status()

    @property
    def labels(self) -> Labels:
        """Its labels."""
        return self.metadata.labels

    @property
    def annotations(self) -> Annotations:
        """Its annotations."""
        return self.metadata.annotations

    @property
    def controller(self) -> str:
        """The uid of the object that manages this one; empty where none does."""
        owners = self.metadata.owner_references or ()
        return next((each.uid for each in owners if each.controller), "")

    def condition(self, kind: str) -> Condition:
        """Return a condition, an empty one where there is none."""
        return next((each for each in self.status.conditions if each.type == kind), Condition())

    @property
    def is_suspended(self) -> bool:
        """True for a Sandbox that is to have no pod."""
        return self.spec.operating_mode == "Suspended" or self.spec.replicas == 0

    @property
    def is_going(self) -> bool:
        """True if its deletion is under way."""
        return self.metadata.deletion_timestamp is not None


class Event(Struct, frozen=True):
    """An event of a watch. `object` of an ``ERROR`` is a `Failure`, and of a ``BOOKMARK`` a `Version`."""

    type: str
    object: Raw


class Version(Struct, frozen=True):
    """An object of which its version alone matters."""

    metadata: "_Version"


class _Version(Struct, frozen=True, rename="camel"):
    resource_version: Text


class Failure(Struct, frozen=True):
    """The Status with which a watch ends: `code` is that of HTTP."""

    code: int = 0
    message: str = ""


def is_running(pod: Observed, container: str) -> bool:
    """Return True if a pod's container runs."""
    return not pod.is_going and _status(pod, container).state.running is not None


def container_id(pod: Observed, container: str) -> str:
    """Return the id of the container that runs in a pod under that name."""
    return _status(pod, container).container_id


def _status(pod: Observed, container: str) -> ContainerStatus:
    """Return the state of a container; of the first in pods of earlier versions, whose was not noted."""
    found = pod.status.container_statuses
    return next((each for each in found if container in ("", each.name)), ContainerStatus())


def why_hopeless(found: Observed, container: str) -> str | None:
    """Return the reason why an object that is being started never runs; None while it may still. What others have put
    beside `container` may fail, but what runs before it may not.
    """
    name, status = found.metadata.name, found.status
    if found.is_going:
        return f"{name} is being deleted"
    if status.phase in _ENDED:
        return (
            f"pod {name} ended as it started: {sentence(status.reason, status.message) or _exits(found) or _NO_REASON}"
        )
    for each in (*status.init_container_statuses, _status(found, container)):
        waiting = each.state.waiting
        if waiting is not None and waiting.reason in _HOPELESS:
            return f"container {each.name} of pod {name}: {sentence(waiting.reason, waiting.message)}"
    ready = found.condition("Ready")
    if ready.status == "False" and (ready.reason in _HOPELESS_CONDITIONS or _is_refused(ready)):
        return f"{name}: {sentence(ready.reason, ready.message)}"
    return None


def _is_refused(ready: Condition) -> bool:
    """Return True if a controller cannot make the pod, however often it tries; most of its errors heal."""
    return ready.reason == "ReconcilerError" and any(word in ready.message for word in _REFUSALS)


def why_waiting(found: Observed | None) -> str:
    """Return the reason why an object that is being started does not run yet."""
    if found is None:
        return "the cluster made no pod for it"
    for each in found.status.container_statuses:
        if each.state.waiting is not None and each.state.waiting.reason:
            return sentence(each.state.waiting.reason, each.state.waiting.message)
    for kind in ("PodScheduled", "Ready"):
        condition = found.condition(kind)
        if condition.status == "False":
            return sentence(condition.reason, condition.message)
    if found.status.phase == "Pending" and not found.condition("PodScheduled").status:
        return "no scheduler has looked at it yet"
    if not found.status.phase:
        return "no pod was made for it yet: see that agent-sandbox's controller runs"
    if found.status.phase == "Pending" and not found.status.container_statuses:
        return "its node has not begun it yet: see that its kubelet runs"
    return f"its phase is {found.status.phase}"


def ending_of(pod: Observed | None, container: str) -> Ending:
    """Return the end of a sandbox whose pod, or whose container in it, has ended; None is a pod that is gone."""
    if pod is None or pod.is_going:
        target = Condition() if pod is None else pod.condition("DisruptionTarget")
        why = f" ({sentence(target.reason, target.message)})" if target.status == "True" else ""
        return Ending(kind="lost", message=f"its pod was deleted outside Sandkeep{why}")
    why = sentence(pod.status.reason, pod.status.message)
    exits = _exits(pod) if pod.status.phase in _ENDED else _exit(_status(pod, container))
    return Ending(kind="failed", message=f"its pod ended: {': '.join(filter(None, (why, exits))) or _NO_REASON}")


def has_ended(pod: Observed | None, container: str, known_id: str = "") -> bool:
    """Return True for a pod that has ended, or is going, or whose container has ended, or is another than the known
    one; None is a pod that is gone.
    """
    if pod is None or pod.is_going or pod.status.phase in _ENDED:
        return True
    status = _status(pod, container)
    is_another = bool(known_id and status.container_id) and status.container_id != known_id
    return status.state.terminated is not None or is_another


def _exits(pod: Observed) -> str:
    return "; ".join(filter(None, map(_exit, pod.status.container_statuses)))


def _exit(status: ContainerStatus) -> str:
    """Return how a container ended last; empty if it has not."""
    end = status.state.terminated or status.last_state.terminated
    if end is None:
        return ""
    why = f" ({sentence(end.reason, end.message)})" if end.reason not in ("", "Error", "Completed") else ""
    hint = ": give it more memory" if end.reason == "OOMKilled" else ""
    return f"container {status.name}: exit code {end.exit_code}{why}{hint}"


def sentence(reason: str, message: str) -> str:
    """Return what the cluster says as one line that is not too long."""
    text = ": ".join(filter(None, (reason, message)))
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MOST_SHOWN]
