"""The configuration of a sandbox's container, as the engine's HTTP interface takes it. No I/O here.

All of it is visible in ``docker inspect``; secrets are not part of it, they reach the keeper by its request channel.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from sandkeep.ids import regular_name
from sandkeep.model import SandboxSpec
from sandkeepd.host.hostile_files import HostileTree
from sandkeepd.host.processes import OOM_SCORE_ADJ
from sandkeepd.keeper import program
from sandkeepd.providers.docker.plan import INSIDE, Plan, Volume
from sandkeepd.providers.docker.trees import ImageLayers

SANDBOX_LABEL: Final = "sandkeep.sandbox"
SESSION_LABEL: Final = "sandkeep.session"
OWNER_LABEL: Final = "sandkeep.owner"
LOG_LABEL: Final = "sandkeep.log"
VOLUME_LABEL: Final = "sandkeep.volume"
"""Of a named volume: its owner's name for it."""

SANDBOX_VARIABLE: Final = "SANDKEEP_SANDBOX"

NO_NETWORK: Final = "none"
HOSTS: Final = "in/.hosts"

SAID: Final = "p/.start"
"""The file in `out` for the keeper's error when it cannot start."""

_SCRATCH: Final = "rw,nosuid,nodev"
_MAX_HOST_NAME: Final = 63


def labels(sandbox_id: str, owner: str, log_id: str) -> dict[str, str]:
    """Return the labels that identify all objects of a sandbox."""
    return {SANDBOX_LABEL: sandbox_id, OWNER_LABEL: owner, LOG_LABEL: log_id}


def volume_labels(owner: str, name: str) -> dict[str, str]:
    """Return the labels of a named volume: none of a log, whose objects are removed when no event owns them."""
    return {OWNER_LABEL: owner, VOLUME_LABEL: name} if name else {}


ASTRAFORGE_LABEL: Final = "astraforge.sandbox.session"
"""The label of containers of sessions, of AstraForge's and of ours, by which its tools find them."""


def _session_labels(session_id: str | None, owner: str) -> dict[str, str]:
    """Return the labels of a session's container: ours, and those by which AstraForge's tools find it."""
    if session_id is None:
        return {}
    return {
        SESSION_LABEL: session_id, ASTRAFORGE_LABEL: session_id, "astraforge.sandbox.user": owner
    }  # fmt: skip


class Job(Struct, frozen=True, kw_only=True):
    """The parameters of one start. `directory` holds `in` and `out`; `files` is the same, as a place in which the code
    inside may own files. `data_root` is the engine's directory, if the daemon can read the files in it.
    """

    sandbox_id: str
    directory: str
    files: HostileTree
    plan: Plan
    spec: SandboxSpec
    log_id: str
    secrets: list[str]
    image_layers: ImageLayers
    data_root: str | None = None


def configuration(job: Job, argv: list[str], seccomp: str | None, *, overlay: bool = False) -> dict[str, Any]:
    """Return the body of a request that makes a container. `argv` is the keeper's; `seccomp` is a profile's text; the
    workspace is an `overlay`, which shows the image's files already.
    """
    plan = job.plan
    env = {SANDBOX_VARIABLE: job.sandbox_id, **job.spec.env}
    marks = labels(job.sandbox_id, plan.owner, job.log_id)
    return {
        "Image": plan.image,
        "Hostname": host_name(regular_name(plan.name)),
        "User": f"{plan.uid}:{plan.gid}",
        "Env": [f"{name}={value}" for name, value in env.items() if name not in job.secrets],
        "Labels": {**job.spec.labels, **_session_labels(job.spec.session_id, plan.owner), **marks},
        "WorkingDir": plan.workspace,
        "Entrypoint": argv,
        "Cmd": [],
        "Tty": False,
        "OpenStdin": False,
        "Healthcheck": {"Test": ["NONE"]},
        # The engine starts itself twice more for a network of its own making: half of the processor time of a start.
        "NetworkDisabled": plan.network == NO_NETWORK,
        "StopSignal": "SIGKILL",  # the keeper heeds no other, and an engine that stops would wait for it
        "HostConfig": _host(plan, job.directory, seccomp, marks, overlay=overlay),
    }


def _host(
    plan: Plan, directory: str, seccomp: str | None, marks: Mapping[str, str], *, overlay: bool
) -> dict[str, Any]:
    security = ["no-new-privileges:true"]
    if seccomp is not None:
        security.append(f"seccomp={seccomp}")
    return {
        "Init": False,  # the keeper is the first process, and reaps
        "CapDrop": ["ALL"],
        "CapAdd": plan.capabilities or None,
        "SecurityOpt": security,
        "Privileged": False,
        "ReadonlyRootfs": plan.read_only_root,
        "Tmpfs": _scratch(plan) if plan.read_only_root else {},
        "NetworkMode": plan.network,
        "PidsLimit": plan.pids,
        "OomScoreAdj": OOM_SCORE_ADJ,
        "Memory": plan.memory_bytes or 0,
        "MemorySwap": plan.memory_bytes or 0,
        "NanoCpus": int((plan.cpus or 0) * 1e9),
        "IpcMode": "private",
        "ShmSize": min(plan.scratch_bytes, 64 * 1024**2),
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Mounts": [
            *_shared(directory),
            *_hosts(plan, directory),
            *_workspace(plan, marks, overlay=overlay),
            *(_volume(volume, volume_labels(plan.owner, volume.name)) for volume in plan.volumes),
        ],
    }


def _scratch(plan: Plan) -> dict[str, str]:
    return {
        "/tmp": f"{_SCRATCH},exec,mode=1777,size={plan.scratch_bytes}",  # noqa: S108 - inside
        "/run": f"{_SCRATCH},mode=1777,size={min(plan.scratch_bytes, 64 * 1024**2)}",
    }


def _shared(directory: str) -> list[dict[str, Any]]:
    """Return the mounts of the shared directories: the entries of `out` cannot be replaced from inside, also where the
    code inside has the uid that owns it.
    """
    places = [("in", True), ("out", True), ("out/p", False), ("out/exits", False)]
    return [_bind(f"{directory}/{name}", f"{INSIDE}/{name}", read_only=read_only) for name, read_only in places]


def _hosts(plan: Plan, directory: str) -> list[dict[str, Any]]:
    """Return the mount of /etc/hosts where the engine makes none."""
    return [_bind(f"{directory}/{HOSTS}", "/etc/hosts", read_only=True)] if plan.network == NO_NETWORK else []


def _bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    options = {"Propagation": "rprivate"}
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only, "BindOptions": options}


def _workspace(plan: Plan, marks: Mapping[str, str], *, overlay: bool) -> list[dict[str, Any]]:
    volume = plan.workspace_volume
    if volume is not None:
        return [_volume(volume, marks if volume.own else {}, overlay=overlay)]
    options = {"Mode": 0o1777, "SizeBytes": plan.disk_bytes}
    return [{"Type": "tmpfs", "Target": plan.workspace, "TmpfsOptions": options}]


def _volume(volume: Volume, marks: Mapping[str, str], *, overlay: bool = False) -> dict[str, Any]:
    if volume.host:
        return _bind(volume.source, volume.target, read_only=volume.read_only)
    mount = {"Type": "volume", "Source": volume.source, "Target": volume.target, "ReadOnly": volume.read_only}
    return {**mount, "VolumeOptions": {"NoCopy": overlay, "Labels": dict(marks)}}


def keeper(plan: Plan, *, counted: bool) -> list[str]:
    """Return the argv of the keeper: the container's only program of ours."""
    blocks = "" if plan.own_disk else str(-(-plan.disk_bytes // 512))  # a disk of its own is the limit, and can grow
    return program.keeper_argv(f"{INSIDE}/in", f"{INSIDE}/out", [blocks], by_name=True, counted=counted)


def host_name(name: str) -> str:
    """Return the valid host name that is most similar."""
    return re.sub(r"[^A-Za-z0-9-]", "-", name)[:_MAX_HOST_NAME].strip("-")
