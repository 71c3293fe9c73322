"""The plan of a Docker sandbox, decided from the request, the image's details and the administrator's settings.

The settings are upper bounds for callers, and are read here: the decision is on record before anything is made.
"""

import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from sandkeep.errors import CallerError, SetupError
from sandkeep.ids import regular_name
from sandkeep.model import Network, SandboxSpec
from sandkeep.settings import docker as settings
from sandkeepd.providers.common.inside import inner_user
from sandkeepd.providers.common.own_disks import ONLY_ROOT, refused

INSIDE: Final = "/run/sandkeep"
WORKSPACE: Final = "/workspace"

LEAST_MEMORY: Final = 6 * 1024**2
"""Docker makes no container with less."""

DEFAULT_SCRATCH_BYTES: Final = 1024**3
"""The size of `/tmp`, unless the memory limit is lower."""

RESERVED: Final = "sandkeep."
"""The prefix of our own labels."""

_UID: Final = re.compile(r"uid:[0-9]+")


class Details(Struct, frozen=True, kw_only=True):
    """The facts that were probed when an image was made. `shell` is None when it has none; `why` is the reason then.

    `user` is the uid and gid of the image's own user; `workdir` is the initial directory of its programs, and
    `writable` is True if that user can write there. `env` are the image's variables.
    """

    docker_image_id: str
    docker_image_tag: str
    user: tuple[int, int] = (0, 0)
    shell: str | None = None
    tmux: bool = False
    workdir: str = WORKSPACE
    writable: bool = False
    env: list[str] = field(default_factory=list)
    why: str | None = None


class Volume(Struct, frozen=True, kw_only=True):
    """A volume of the engine's, or a directory of the host (`host`), and its mount point inside. `own`: it is removed
    with the sandbox. `name` is its owner's name for it, if it has one.
    """

    source: str
    target: str
    read_only: bool = False
    host: bool = False
    own: bool = False
    name: str = ""


class Plan(Struct, frozen=True, kw_only=True):
    """The decision of `DockerProvider.plan`."""

    name: str
    owner: str
    image: str
    uid: int
    gid: int
    shell: str | None
    tmux: bool
    workspace: str
    writable: bool
    """True if the sandbox's user can write to the workspace as it is in the image."""
    workspace_volume: Volume | None
    volumes: list[Volume] = field(default_factory=list)
    read_only_root: bool
    network: str
    seccomp: str
    pids: int
    memory_bytes: int | None
    cpus: float | None
    disk_bytes: int
    scratch_bytes: int
    why_no_shell: str | None = None
    kept: list[str] = field(default_factory=list)
    """The names of the kept files that it begins with, each hiding parts of the next; then `image` is made of these."""
    updated: bool = False
    """True if limits that the engine enforces were changed: they are compared when it is adopted."""
    writable_root: bool = False
    """True if its caller asked for that."""
    capabilities: list[str] = field(default_factory=list)
    """The Linux capabilities of root inside."""
    own_disk: bool = False
    """True if its caller asked for a disk of that size."""


def default_network() -> Network:
    """Return the default network of sandboxes."""
    named = settings.NETWORK()
    return "none" if named in ("", "none") else "host" if named == "host" else "bridge"


def _require_exact_disk(plan: "Plan") -> None:
    """Raise `not_supported` for a plan by which something is written to other disks than its own."""
    if os.geteuid() != 0:
        raise refused(ONLY_ROOT)
    shared = [plan.workspace_volume] if plan.workspace_volume is not None and not plan.workspace_volume.own else []
    for volume in [*shared, *plan.volumes]:
        if not volume.read_only:
            reason = f"the volume at {volume.target} lies outside of the sandbox's disk, unless it is read-only"
            raise refused(reason)


def decide(
    sandbox_id: str, owner: str, spec: SandboxSpec, details: Mapping[str, Any], disk_bytes: int,
    taken: Container[str] = (),
) -> Plan:  # fmt: skip
    """Return the plan of a sandbox; `taken` are the names of other sandboxes' containers.

    Raises `not_supported`, `invalid`, `not_configured`, and `permission_denied` for a request beyond the
    administrator's settings.
    """
    if spec.isolation == "none":
        raise SetupError("not_supported", "a Docker sandbox is always isolated: leave out isolation")
    try:
        image = msgspec.convert(dict(details), Details)
    except msgspec.ValidationError:
        message = "the image was not made for Docker: make it again with provider='docker'"
        if not details:
            message = "these files have no image for Docker: import the snapshot with its image"
        raise SetupError("not_supported", message) from None
    uid, gid = _user(spec, image)
    check_memory(spec.memory_bytes)
    _check_labels(spec)
    workspace = workspace_of(image)
    to_itself = (uid, gid) == image.user and (image.writable or uid == 0)
    plan = Plan(
        name=_name_of(sandbox_id, spec.session_id, taken), owner=owner, image=image.docker_image_id, uid=uid, gid=gid,
        shell=image.shell, tmux=image.tmux, why_no_shell=image.why,
        workspace=workspace, writable=to_itself,
        workspace_volume=_workspace_volume(sandbox_id, owner, workspace, read_only=spec.read_only),
        volumes=_volumes(spec, owner, workspace), read_only_root=spec.read_only or _read_only_root(spec),
        writable_root=spec.writable_root, capabilities=INSTALLS if spec.writable_root and uid == 0 else [],
        network=_network(spec.network), seccomp=settings.SECCOMP(), pids=limit_pids(spec.pids),
        memory_bytes=spec.memory_bytes, cpus=spec.cpus, disk_bytes=spec.disk_bytes or disk_bytes,
        own_disk=spec.disk_bytes is not None,
        scratch_bytes=min(DEFAULT_SCRATCH_BYTES, (spec.memory_bytes or 2 * DEFAULT_SCRATCH_BYTES) // 2),
    )  # fmt: skip
    if plan.own_disk:
        _require_exact_disk(plan)
    return plan


def workspace_of(image: Details) -> str:
    """Return the path of the workspace in containers of an image."""
    return image.workdir if _is_free(image.workdir, ["/tmp"]) else WORKSPACE  # noqa: S108 - inside


INSTALLS: Final = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID"]
"""The capabilities without which package managers cannot install; Docker gives these to root by default, and more."""

NO_ROOT_LIMIT: Final = (
    "disk_bytes: the engine has no exact limit for a writable root, only the approximate one that every sandbox has: "
    "leave out disk_bytes, or writable_root"
)
NO_WRITABLE_ROOT: Final = (
    "writable_root: the root of new sandboxes is read-only, as the administrator set {}: create one without it; "
    "`snapshot promote` makes an image of what was installed in an older one"
)
NO_BRIDGE: Final = "the engine has no network called bridge"


def _name_of(sandbox_id: str, session_id: str | None, taken: Container[str]) -> str:
    """Return the name of a sandbox's container. One of a session is called by that, and by a suffix as well if another
    owner's is called so.
    """
    name = f"sandbox-{session_id or sandbox_id}"
    return f"{name}.{token_hex(4)}" if name in taken or regular_name(name) != name else name


def beside(plan: Plan) -> Plan:
    """Return the plan of a container that is to replace one that still exists: it needs another name, and another
    volume of its own, which cannot be guessed.
    """
    mark = token_hex(8)
    volume = plan.workspace_volume
    if volume is not None and volume.own:
        volume = replace(volume, source=regular_name(volume.source) + f".{mark}")
    return replace(plan, name=f"{regular_name(plan.name)}.{mark}", workspace_volume=volume)


def own_volumes(mounts: Iterable[Mapping[str, Any]], plan: Plan) -> list[Mapping[str, Any]]:
    """Return those of a container's mounts that are volumes of this sandbox alone."""
    shared = {volume.source for volume in plan.volumes}
    if plan.workspace_volume is not None and not plan.workspace_volume.own:
        shared.add(plan.workspace_volume.source)
    return [mount for mount in mounts if mount["Type"] == "volume" and mount.get("Name") not in shared]


def _beyond(setting: str, field: str, limit: str) -> CallerError:
    return CallerError("permission_denied", f"{field}: {limit}, as the administrator set {setting}", field=field)


def _user(spec: SandboxSpec, image: Details) -> tuple[int, int]:
    decided = settings.USER()
    if not decided:
        return image.user if spec.user is None else inner_user(spec.user)
    if spec.user is not None and inner_user(spec.user) != inner_user(decided):
        raise _beyond(settings.USER.name, "user", f"it can only be {decided}")
    return inner_user(decided)


def check_memory(asked: int | None) -> None:
    """Raise `invalid` for a memory limit that the engine refuses."""
    if asked is not None and asked < LEAST_MEMORY:
        raise CallerError("invalid", "memory_bytes: Docker needs at least 6 MB", field="memory_bytes")


def limit_pids(asked: int | None) -> int:
    """Return the limit of processes. Raises `permission_denied` for one beyond the administrator's."""
    most = settings.PIDS_LIMIT()
    if most is not None and asked is not None and asked > most:
        raise _beyond(settings.PIDS_LIMIT.name, "pids", f"at most {most}")
    return asked or most or settings.DEFAULT_PIDS


def _read_only_root(spec: SandboxSpec) -> bool:
    """Tell if the root is read-only. Raises `permission_denied` and `not_supported` for a writable one."""
    if not spec.writable_root:
        return spec.disk_bytes is not None or settings.READ_ONLY()
    if not settings.WRITABLE_ROOT():
        name = settings.WRITABLE_ROOT.name
        raise CallerError("permission_denied", NO_WRITABLE_ROOT.format(name), field="writable_root")
    if spec.disk_bytes is not None:
        raise SetupError("not_supported", NO_ROOT_LIMIT, field="disk_bytes")
    return False


def _network(asked: Network) -> str:
    decided = settings.NETWORK()
    if asked == "none" or (asked == "host" and decided in ("", "host")):
        return asked
    if decided == "none" or asked == "host":
        raise _beyond(settings.NETWORK.name, "network", f"at most {decided}")
    return "bridge" if decided in ("", "host") else decided


def _workspace_volume(sandbox_id: str, owner: str, workspace: str, *, read_only: bool) -> Volume | None:
    mode, prefix = settings.VOLUME_MODE(), settings.VOLUME_PREFIX()
    if mode == "none":
        return None
    if mode == "static" and not settings.VOLUME_NAME():
        message = f"{settings.VOLUME_NAME.name} must name the volume, as {settings.VOLUME_MODE.name} is static"
        raise SetupError("not_configured", message, setting=settings.VOLUME_NAME.name)
    names = {
        "session": f"{prefix}sandbox-{sandbox_id}", "user": f"{prefix}user-{_slug(owner)}",
        "static": settings.VOLUME_NAME(),
    }  # fmt: skip
    return Volume(source=names[mode], target=workspace, read_only=read_only, own=mode == "session")


def _volumes(spec: SandboxSpec, owner: str, workspace: str) -> list[Volume]:
    """Return the requested volumes: directories of the host, and volumes of the owner's own, by their names."""
    found: list[Volume] = []
    taken = [workspace]
    for asked in spec.volumes:
        target = asked.target.rstrip("/")
        if not _is_free(target, taken):
            message = f"volumes: {asked.target!r} is no valid mount point: give an absolute path that nothing else uses"
            raise CallerError("invalid", message, field="volumes")
        taken.append(target)
        host = asked.source.startswith("/")
        source = asked.source if host else volume_name(owner, asked.source)
        read_only = asked.read_only or spec.read_only
        name = "" if host else asked.source
        found.append(Volume(source=source, target=target, read_only=read_only, host=host, name=name))
    return found


def volume_name(owner: str, name: str) -> str:
    """Return the engine's name of an owner's volume; of `name` ``""``, the beginning of all of the owner's."""
    return f"{settings.VOLUME_PREFIX()}volume-{_slug(owner)}-{name}"


def _is_free(target: str, taken: Sequence[str]) -> bool:
    parts = target.split("/")
    if parts[0] or len(parts) < 2 or {"", ".", ".."} & set(parts[1:]):
        return False
    kept = target == INSIDE or target.startswith(f"{INSIDE}/") or parts[1] in ("proc", "sys", "dev")
    return not kept and target not in ("/run", *taken)


def _slug(owner: str) -> str:
    """Return the owner as part of a name: never the same for two, with any suffix, as callers choose that."""
    if _UID.fullmatch(owner):
        return owner.replace(":", "-")
    return re.sub(r"[^a-zA-Z0-9_-]", "-", owner) + "." + sha256(owner.encode()).hexdigest()[:16]


def _check_labels(spec: SandboxSpec) -> None:
    for name in spec.labels:
        if name.startswith(RESERVED):
            raise CallerError(
                "invalid", f"labels: names with {RESERVED!r} are Sandkeep's: choose others", field="labels"
            )
