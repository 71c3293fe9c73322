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

_HOPELESS_CONDITIONS: Final = frozenset(
    {
        "InvalidMetadata", "EnvVarsInjectionRejected", "VolumeClaimTemplatesError", "ClaimExpired", "SandboxExpired",
        "PodFailed", "PodSucceeded", "ReconcilerError", "TemplateNotFound", "WarmPoolNotFound",
    }
)  # fmt: skip
"""Reasons of ``Ready=False`` that waiting does not mend, of Sandboxes and SandboxClaims."""


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


class ContainerState(Struct, frozen=True):
    """The state of a container: one of these."""

    waiting: Waiting | None = None
    running: "Running | None" = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True):
    """A container and its state."""

    name: str = ""
    state: ContainerState = ContainerState()


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
    return not pod.is_going and any(each.state.running is not None for each in _statuses(pod, container))


def _statuses(pod: Observed, container: str) -> list[ContainerStatus]:
    found = pod.status.container_statuses
    return [each for each in found if each.name == container] if container else found


def why_hopeless(found: Observed) -> str | None:
    """Return the reason why an object that is being started never runs; None while it may still."""
    name, status = found.metadata.name, found.status
    if found.is_going:
        return f"{name} is being deleted"
    if status.phase in ("Failed", "Succeeded"):
        return f"pod {name} ended as it started: {_sentence(status.reason, status.message) or _exits(found)}"
    for each in status.container_statuses:
        waiting = each.state.waiting
        if waiting is not None and waiting.reason in _HOPELESS:
            return f"container {each.name} of pod {name}: {_sentence(waiting.reason, waiting.message)}"
    ready = found.condition("Ready")
    if ready.status == "False" and ready.reason in _HOPELESS_CONDITIONS:
        return f"{name}: {_sentence(ready.reason, ready.message)}"
    return None


def why_waiting(found: Observed | None) -> str:
    """Return the reason why an object that is being started does not run yet."""
    if found is None:
        return "the cluster made no pod for it"
    for each in found.status.container_statuses:
        if each.state.waiting is not None and each.state.waiting.reason:
            return _sentence(each.state.waiting.reason, each.state.waiting.message)
    for kind in ("PodScheduled", "Ready"):
        condition = found.condition(kind)
        if condition.status == "False":
            return _sentence(condition.reason, condition.message)
    return f"its phase is {found.status.phase or 'unknown'}"


def ending_of(pod: Observed | None) -> Ending:
    """Return the end of a sandbox whose pod has ended; None is one that is gone."""
    if pod is None or pod.is_going:
        return Ending(kind="lost", message="its pod was deleted outside Sandkeep")
    status = pod.status
    why = _sentence(status.reason, status.message) or _exits(pod)
    return Ending(kind="failed", message=f"its pod ended: {why}")


def has_ended(pod: Observed | None) -> bool:
    """Return True for a pod that has ended, or is going; None is one that is gone."""
    return pod is None or pod.is_going or pod.status.phase in ("Failed", "Succeeded")


def _exits(pod: Observed) -> str:
    ended = [(each.name, each.state.terminated) for each in pod.status.container_statuses if each.state.terminated]
    codes = [f"container {name}: exit code {end.exit_code}" for name, end in ended]
    return "; ".join(codes) or "the cluster gives no reason"


def _sentence(reason: str, message: str) -> str:
    text = ": ".join(filter(None, (reason, message)))
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MOST_SHOWN]
