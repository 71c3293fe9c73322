"""The plan of a sandbox in a cluster: decided from the request, the image and the administrator's settings."""

from collections.abc import Container, Mapping
from secrets import token_hex
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from sandkeep.errors import CallerError, SetupError
from sandkeep.kubernetes.names import object_name
from sandkeep.model import SandboxSpec
from sandkeep.settings import kubernetes as settings
from sandkeepd.providers.common.inside import inner_user
from sandkeepd.providers.common.layers import Layer
from sandkeepd.providers.common.own_disks import refused
from sandkeepd.providers.kubernetes.cluster import machine

WORKSPACE: Final = "/workspaces"
"""The workspace, where AstraForge's toolkit has it in clusters."""

LEAST_MEMORY: Final = 16 * 1024**2
_ID: Final = "sbx_"
RESERVED: Final = ("sandkeep.", "sandbox.users.io/sandkeep-", "agents.x-k8s.io/", "podsnapshot.gke.io/")
"""Prefixes of labels that callers cannot give."""

PIDS: Final = "a cluster limits processes by its kubelets' settings alone: leave out pids"
HOST_NETWORK: Final = "a sandbox in a cluster has no access to its node's network: give none or bridge"
REFERENCES: Final = "a cluster pulls images from registries: build it, push it, and give its reference"
VOLUMES: Final = "sandboxes in a cluster have no volumes of this machine: copy files into the workspace"


TEMPLATE_ROOT: Final = "writable_root: the template determines that: leave it out"
DISK: Final = "a cluster only measures what a pod writes, and evicts one that it finds beyond its limit"


class Details(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts about an image: a container `image`, or the `template` that has one, and the pool of that."""

    image: str | None = None
    template: str | None = None
    warm_pool: str | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """The decision of `KubernetesProvider.plan`. `name` is that of the object and, but for claims, of the pod.

    `restored_from` is the pod snapshot that it begins with; `layers` are the files of its workspace, each hiding parts
    of the next.
    """

    name: str
    owner: str
    image: str | None
    template: str | None = None
    warm_pool: str | None = None
    uid: int | None
    gid: int | None
    machine: str
    runtime_class: str | None
    network: str
    memory_bytes: int | None
    cpus: float | None
    read_only: bool
    lifetime_s: float | None
    restored_from: str | None = None
    layers: list[Layer] = field(default_factory=list)
    over_image: bool = True
    writable_root: bool = False

    @property
    def is_claim(self) -> bool:
        """True if the container's own command runs, and the keeper beside it."""
        return self.template is not None or self.warm_pool is not None


def decide(
    sandbox_id: str, owner: str, spec: SandboxSpec, details: Mapping[str, Any], taken: Container[str] = ()
) -> Plan:
    """Return the plan of a sandbox; `taken` are the names of other sandboxes' objects. Raises `not_supported`,
    `invalid`, `not_configured`.
    """
    try:
        image = msgspec.convert(dict(details), Details)
    except msgspec.ValidationError:
        message = "the image was not made for Kubernetes: make it of a reference with provider='kubernetes'"
        raise SetupError("not_supported", message) from None
    _require_possible(spec, is_claim=image.image is None)
    uid, gid = inner_user(spec.user or settings.USER()) if image.image else (None, None)
    return Plan(
        name=_name_of(sandbox_id, spec.session_id, taken), owner=owner,
        image=image.image, template=image.template, warm_pool=image.warm_pool, uid=uid, gid=gid,
        machine=machine(), runtime_class=settings.RUNTIME_CLASS() or None, network=spec.network,
        memory_bytes=spec.memory_bytes, cpus=spec.cpus, read_only=spec.read_only,
        lifetime_s=spec.max_lifetime_s, writable_root=spec.writable_root,
    )  # fmt: skip


def _name_of(sandbox_id: str, session_id: str | None, taken: Container[str]) -> str:
    """Return the name of a sandbox's object. One of a session is called by that, and by a suffix as well if another
    owner's is called so.
    """
    name = object_name(f"sandbox-{session_id or sandbox_id.removeprefix(_ID)}")
    return object_name(f"{name[:50]}-{token_hex(4)}") if name in taken else name


def _require_possible(spec: SandboxSpec, *, is_claim: bool) -> None:
    if spec.isolation == "none":
        raise SetupError("not_supported", "a sandbox in a cluster is always isolated: leave out isolation")
    if spec.network == "host":
        raise SetupError("not_supported", HOST_NETWORK, field="network")
    for name, message in (("pids", PIDS), ("volumes", VOLUMES)):
        if getattr(spec, name):
            raise SetupError("not_supported", message, field=name)
    if spec.memory_bytes is not None and spec.memory_bytes < LEAST_MEMORY:
        raise CallerError("invalid", "memory_bytes: a pod needs at least 16 MB", field="memory_bytes")
    named = [name for name in ("user", "cpus", "memory_bytes") if getattr(spec, name) is not None]
    if spec.disk_bytes is not None:
        raise refused(DISK)
    if spec.writable_root and is_claim:
        raise SetupError("not_supported", TEMPLATE_ROOT, field="writable_root")
    if is_claim and named:
        message = f"the template determines {named[0]}: leave it out, or make the image of a reference"
        raise SetupError("not_supported", message, field=named[0])
    for name in spec.labels:
        if name.startswith(RESERVED):
            raise CallerError("invalid", f"labels: {name[:80]!r} is reserved: choose another", field="labels")
