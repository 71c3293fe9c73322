"""The plan of a sandbox at Modal: decided from the request, the image and the administrator's settings."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from sandkeep.errors import CallerError, SetupError
from sandkeep.model import SandboxSpec
from sandkeepd.providers.common.layers import Layer

MACHINE: Final = "amd64"
"""The architecture of Modal's machines."""

GRACE_S: Final = 60
"""Seconds after the end of a sandbox's lifetime at which Modal ends it, if no daemon has."""

MOST_LIFETIME_S: Final = 86_400
"""Seconds that Modal lets a sandbox stand at most."""

SSH_PORT: Final = 22
"""The port of a sandbox to which the tunnel of `modal.ssh` leads."""

LEAST_MEMORY: Final = 128 * 1024**2
LEAST_CPUS: Final = 0.125

PREFIX: Final = "modal."
"""The prefix of labels that are orders to this provider."""

PIDS: Final = "Modal limits no processes: leave out pids"
DISK: Final = "Modal sets the size of a sandbox's disk by itself: leave out disk_bytes"
HOST_NETWORK: Final = "a sandbox at Modal has no access to the network of a machine: give none or bridge"
SSH_NETWORK: Final = "Modal forwards no ports to a sandbox whose network is blocked: give bridge, or no modal.ssh"
VOLUMES: Final = "sandboxes at Modal have no volumes of this machine: copy files into the workspace"
READ_ONLY: Final = "Modal has no read-only sandboxes: leave out read_only"
WRITABLE_ROOT: Final = (
    "writable_root: the root of a sandbox at Modal can be written in any case, and snapshots hold the workspace alone: "
    "leave it out"
)
USER: Final = "sandboxes at Modal run as root, in a machine of their own: leave out user"

_GPU: Final = re.compile(r"[A-Za-z0-9-]{1,32}!?(:[1-8])?")
_ON: Final = re.compile(r"1")
_REGION: Final = re.compile(r"[a-z0-9-]{1,32}(,[a-z0-9-]{1,32}){0,15}")


class Details(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts about an image: its id at Modal; `has_files` if it may have files in the workspace."""

    modal_image_id: str
    has_files: bool = False


class Plan(Struct, frozen=True, kw_only=True):
    """The decision of `ModalProvider.plan`. `layers` are the files of its workspace, each hiding parts of the next;
    with any, none of the image's are there. `snapshot_image_id` is an image at Modal that has them, as long as it is
    there.
    """

    owner: str
    modal_image_id: str
    has_files: bool = False
    network: str
    memory_bytes: int | None
    cpus: float | None
    lifetime_s: float | None
    gpu: str | None = None
    regions: list[str] = field(default_factory=list)
    ssh: bool = False
    layers: list[Layer] = field(default_factory=list)
    over_image: bool = True
    snapshot_image_id: str | None = None

    @property
    def timeout_s(self) -> int:
        """Seconds after which Modal ends the sandbox, if it is still there."""
        return MOST_LIFETIME_S if self.lifetime_s is None else min(MOST_LIFETIME_S, int(self.lifetime_s) + GRACE_S)


def decide(owner: str, spec: SandboxSpec, details: Mapping[str, Any]) -> Plan:
    """Return the plan of a sandbox. Raises `not_supported`, `invalid`."""
    try:
        image = msgspec.convert(dict(details), Details)
    except msgspec.ValidationError:
        raise SetupError("not_supported", "the image was not made for Modal: make it with provider='modal'") from None
    _require_possible(spec)
    ordered = _ordered(spec.labels)
    if "ssh" in ordered and spec.network == "none":
        raise CallerError("invalid", SSH_NETWORK, field="network")
    return Plan(
        owner=owner, modal_image_id=image.modal_image_id, has_files=image.has_files, network=spec.network,
        memory_bytes=spec.memory_bytes, cpus=spec.cpus, lifetime_s=spec.max_lifetime_s, gpu=ordered.get("gpu"),
        regions=ordered["region"].split(",") if "region" in ordered else [], ssh="ssh" in ordered,
    )  # fmt: skip


_ORDERS: Final = {
    "gpu": (_GPU, "A10G or H100:2"), "region": (_REGION, "us-east, or us-east,eu-west"), "ssh": (_ON, "1"),
}  # fmt: skip


def _ordered(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels for this provider, without their prefix. Raises `invalid`."""
    found = {name.removeprefix(PREFIX): value for name, value in labels.items() if name.startswith(PREFIX)}
    for name, value in found.items():
        if name not in _ORDERS:
            message = (
                f"labels: {PREFIX}{name[:80]} is unknown: there are {', '.join(PREFIX + each for each in _ORDERS)}"
            )
            raise CallerError("invalid", message, field="labels")
        pattern, example = _ORDERS[name]
        if not pattern.fullmatch(value):
            message = f"labels: {PREFIX}{name}={value[:80]!r} is malformed: give something like {example}"
            raise CallerError("invalid", message, field="labels")
    return found


def _require_possible(spec: SandboxSpec) -> None:
    if spec.isolation == "none":
        raise SetupError("not_supported", "a sandbox at Modal is always isolated: leave out isolation")
    if spec.network == "host":
        raise SetupError("not_supported", HOST_NETWORK, field="network")
    wrong = (
        ("pids", PIDS), ("disk_bytes", DISK), ("volumes", VOLUMES), ("read_only", READ_ONLY),
        ("writable_root", WRITABLE_ROOT),
    )  # fmt: skip
    for name, message in wrong:
        if getattr(spec, name):
            raise SetupError("not_supported", message, field=name)
    if spec.user not in (None, "0", "0:0"):
        raise SetupError("not_supported", USER, field="user")
    if spec.memory_bytes is not None and spec.memory_bytes < LEAST_MEMORY:
        raise CallerError("invalid", "memory_bytes: Modal gives at least 128 MB", field="memory_bytes")
    if spec.cpus is not None and spec.cpus < LEAST_CPUS:
        raise CallerError("invalid", f"cpus: Modal gives at least {LEAST_CPUS} cores", field="cpus")
    if spec.max_lifetime_s is not None and spec.max_lifetime_s > MOST_LIFETIME_S:
        raise CallerError("invalid", "max_lifetime_s: Modal ends sandboxes after 24 hours", field="max_lifetime_s")


def options(plan: Plan) -> dict[str, Any]:
    """Return the options of the SDK's `Sandbox.create` that a plan means."""
    found: dict[str, Any] = {"timeout": plan.timeout_s, "block_network": plan.network == "none"}
    if plan.memory_bytes is not None:
        mib = plan.memory_bytes // 1024**2
        found["memory"] = (mib, mib)
    if plan.cpus is not None:
        found["cpu"] = (plan.cpus, plan.cpus)
    if plan.gpu is not None:
        found["gpu"] = plan.gpu
    if plan.regions:
        found["region"] = plan.regions
    if plan.ssh:
        found["unencrypted_ports"] = [SSH_PORT]
    return found
