"""Starting a Docker sandbox, and removing its objects. Everything here blocks, and gets the SDK's client.

A container's name can be taken: by the remains of an earlier attempt at the same sandbox, which are removed; by a
container that the engine is removing already, which is waited for; or by a foreign container, which is left alone.
"""

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, field

from sandkeep import failpoints
from sandkeep.errors import CallerError, ProviderError, SetupError, StateError
from sandkeep.ids import regular_name
from sandkeep.system.descriptors import closing_fd
from sandkeepd.host import mounts
from sandkeepd.host.hostile_files import NotAFileError
from sandkeepd.host.processes import Identity, identify, open_process, run_tool
from sandkeepd.host.seccomp import docker_profile
from sandkeepd.keeper import program
from sandkeepd.keeper.program import COUNTED
from sandkeepd.providers.common.disks import reserve_answers
from sandkeepd.providers.common.errors import stderr_of, storage_errors
from sandkeepd.providers.common.layout import SANDBOX_MARK, write_mark
from sandkeepd.providers.common.views import open_for_tool
from sandkeepd.providers.docker import disk, inotify, trees, workspace
from sandkeepd.providers.docker.container import (
    ASTRAFORGE_LABEL,
    HOSTS,
    LOG_LABEL,
    SAID,
    SANDBOX_LABEL,
    Job,
    configuration,
    host_name,
    keeper,
    labels,
)
from sandkeepd.providers.docker.engine import CONFLICT, NOT_FOUND, Client, Tolerate
from sandkeepd.providers.docker.plan import INSIDE, NO_BRIDGE, Plan, own_volumes
from sandkeepd.providers.docker.resizing import set_limits

GONE_S: Final = 30.0
"""Seconds that the removal of a container may take."""

_POLL_S: Final = 0.05

_PAUSE_TRIES: Final = 3
_NOT_FROZEN: Final = "unable to freeze"
"""The error of runc when a busy container did not freeze in time, with control groups v1."""


class Handle(Struct, frozen=True, kw_only=True):
    """The facts that identify a container: its id, its first process, and the names of its secrets. `written` are the
    directories of the host in which the engine keeps its written files. `counted`: it has inotify watches of its own.
    `keeper`: its first process is the keeper, which is on record since that is so without a shell as well.
    """

    first: Identity
    container_id: str
    secrets: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    counted: bool = False
    name: str | None = None
    """The name of the container when it was made."""
    not_adopted: str | None = None
    """A sentence on a container of AstraForge's that has the session's name, whose files are not in this one."""


def owner_of_files(plan: Plan) -> tuple[int, int] | None:
    """Return the required owner of the files that the code inside uses; None when their owner cannot be changed."""
    return (plan.uid, plan.gid) if os.geteuid() == 0 else None


def make_directories(job: Job) -> None:
    """Make the directories shared with the keeper: `in`, and `out`, in which only `p` and `exits` are the code's."""
    with storage_errors():
        os.makedirs(job.directory, mode=0o700, exist_ok=True)
        for name in ("in", "out", "out/p"):
            os.makedirs(f"{job.directory}/{name}", mode=0o755, exist_ok=True)
        if not os.path.lexists(f"{job.directory}/{SANDBOX_MARK}"):
            write_mark(f"{job.directory}/{SANDBOX_MARK}", job.log_id)
        is_new = not os.path.lexists(f"{job.directory}/out/exits")
        with open(f"{job.directory}/out/exits", "ab") as answers:
            if job.plan.own_disk and is_new:
                reserve_answers(answers.fileno(), job.plan.disk_bytes)
        with open(f"{job.directory}/{HOSTS}", "w", encoding="ascii") as file:
            file.write(f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {host_name(regular_name(job.plan.name))}\n")
        program.install(f"{job.directory}/in")
        _make_control(job)
        _give_to_user(job)


def _make_control(job: Job) -> None:
    """Make the control FIFO of the keeper. Only the container's first program may open it, so it is the daemon's
    afterwards.
    """
    path = f"{job.directory}/in/.control"
    with suppress(FileNotFoundError):
        os.unlink(path)
    os.mkfifo(path, 0o600)
    owner = owner_of_files(job.plan)
    if owner is not None:
        os.chown(path, *owner)
    else:
        os.chmod(path, 0o666)  # noqa: S103 - only the container can reach it


@contextmanager
def control_held_open(job: Job) -> Iterator[None]:
    """Keep requests to the keeper for the length of a block: a FIFO that no process has open loses its data."""
    with closing_fd(os.open(f"{job.directory}/in/.control", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)):
        yield


def close_control(job: Job) -> None:
    """Close the control FIFO to the code inside: the keeper has opened it."""
    path = f"{job.directory}/in/.control"
    os.chmod(path, 0o600)
    if os.geteuid() == 0:
        os.chown(path, 0, 0)
    with suppress(OSError):
        job.files.unlink(f"out/{SAID}")


def _give_to_user(job: Job) -> None:
    owner = owner_of_files(job.plan)
    for name, mode in (("out/p", 0o1777), ("out/exits", 0o666)):
        path = f"{job.directory}/{name}"
        if owner is not None:
            os.chown(path, *owner)
        elif job.plan.uid != os.geteuid():
            os.chmod(path, mode)


def start(client: Client, job: Job) -> Handle:
    """Make and start the container; return its handle. Converts the engine's errors into ours."""
    upper = _overlay_workspace(client, job)
    container_id = make(client, job, overlay=upper is not None)
    if upper is None:
        _give_workspace(client, job.plan)
    return _begin_new(client, container_id, job)


def make(client: Client, job: Job, *, overlay: bool) -> str:
    """Make the container, and return its id. `overlay` says what its workspace is, at its start at the latest."""
    _require_network(client, job.plan)
    filtered = job.plan.seccomp != "unconfined"
    argv = keeper(job.plan, counted=filtered and inotify.can_count())
    container_id = _create(client, job, configuration(job, argv, _profile(job.plan.seccomp), overlay=overlay))
    failpoints.reach("docker.created")
    return container_id


def start_filled(client: Client, job: Job, container_id: str) -> Handle:
    """Start a container that was made, whose workspace was filled; return its handle."""
    if _overlay_workspace(client, job) is None:
        raise ProviderError("provider_unavailable", "the engine keeps the workspace elsewhere than it said: try again")
    return _begin_new(client, container_id, job)


def _begin_new(client: Client, container_id: str, job: Job) -> Handle:
    handle = _begin(client, container_id, job)
    if handle.name == job.plan.name:
        return handle
    return msgspec.structs.replace(handle, not_adopted=_not_adopted(client, job.plan.name, job.spec.session_id))


def _not_adopted(client: Client, name: str, session_id: str | None) -> str | None:
    """Return why a foreign container of a session's name is not adopted, if AstraForge left it for that session. Its
    user there is none of ours, so it is for an administrator to say whose files these are.
    """
    marks: dict[str, str] = {}
    with Tolerate(NOT_FOUND):
        marks = client.inspect_container(name)["Config"].get("Labels") or {}
    if session_id is None or marks.get(ASTRAFORGE_LABEL) != session_id or LOG_LABEL in marks:
        return None
    return (
        f"the container {name} of AstraForge is not adopted, as nothing shows that it is this owner's: to bring its "
        f"files, let an administrator do `docker cp {name}:/workspace - >FILE` and "
        "`sandkeep snapshot import FILE --owner OWNER --image IMAGE`, and restore that snapshot"
    )


def _require_network(client: Client, plan: Plan) -> None:
    """Raise `not_supported` for the bridge of an engine without one, which would give no network, and say nothing."""
    if plan.network == "bridge" and all(found["Name"] != "bridge" for found in client.networks(names=["bridge"])):
        way = "use network 'none' or 'host', or let the administrator name one by SANDBOX_DOCKER_NETWORK"
        raise SetupError("not_supported", f"{NO_BRIDGE}: {way}", field="network")


def start_again(client: Client, container_id: str, job: Job) -> Handle:
    """Start a container that has ended. Raises `not_ready` when it is missing."""
    with Tolerate(NOT_FOUND):
        found = client.inspect_container(container_id)
        for mount in own_volumes(found["Mounts"], job.plan):
            if job.plan.own_disk:
                disk.bind_volume(job.directory, os.path.dirname(mount["Source"]))
            if workspace.is_overlay(mount["Source"]):
                workspace.mount(mount["Source"], trees.layers_of(found)[1:], mount["Destination"], _writer(job.plan))
        if job.plan.updated:  # perhaps while it did not run
            set_limits(client, container_id, job.plan)
        return _begin(client, container_id, job)
    message = f"the container of sandbox {job.sandbox_id} was removed, and its files with it: create another"
    raise StateError("not_ready", message, sandbox_id=job.sandbox_id)


def _begin(client: Client, container_id: str, job: Job) -> Handle:
    _start(client, container_id)
    failpoints.reach("docker.started")
    found = client.inspect_container(container_id)
    state = found["State"]
    first = identify(state["Pid"]) if state.get("Pid") else None
    if first is None:
        raise ProviderError("provider_unavailable", why_not_started(job, state))
    for mount in own_volumes(found["Mounts"], job.plan):
        if workspace.is_overlay(mount["Source"]):
            workspace.require_seen(mount["Source"], first.pid, mount["Destination"])
    if job.plan.own_disk:
        disk.require_exact(first.pid, job.directory, job.plan.workspace)
    counted = COUNTED in found["Config"]["Entrypoint"] and inotify.begin(first, job.directory)
    return Handle(
        first=first, container_id=container_id, secrets=job.secrets, written=_written_directories(found, job.plan),
        counted=counted, name=found["Name"].removeprefix("/"),
    )  # fmt: skip


def _overlay_workspace(client: Client, job: Job) -> str | None:
    """Create the volume of a workspace that is an overlay; return its upper directory, or None if it is not."""
    if job.data_root is None:
        return None
    upper = None
    with Tolerate(NOT_FOUND):  # to make the container fails with the reason
        layers = job.image_layers.of(client, job.plan.image)
        marks = labels(job.sandbox_id, job.plan.owner, job.log_id)
        volume = job.plan.workspace_volume
        if job.plan.own_disk and volume is not None and volume.own:
            made = client.create_volume(volume.source, "local", labels=marks)
            disk.bind_volume(job.directory, os.path.dirname(made["Mountpoint"]))
        upper = workspace.create(client, job.plan, layers, marks, job.data_root, _writer(job.plan))
    failpoints.reach("docker.volume")
    return upper


def _writer(plan: Plan) -> int | None:
    """Return the uid with whose rights an overlay writes to a disk; None without one, for the daemon's."""
    return plan.uid if plan.own_disk else None


def _give_workspace(client: Client, plan: Plan) -> None:
    """Give the workspace to the sandbox's user, before any program runs; also its content, where that user could not
    write to it in the image.
    """
    volume = plan.workspace_volume
    if volume is None or not volume.own or os.geteuid() != 0:
        return
    place = client.inspect_volume(volume.source)["Mountpoint"]
    with closing_fd(open_for_tool(place, mounts.TO_WRITE)) as opened:
        if plan.writable or volume.read_only:
            os.chown(opened, plan.uid, plan.gid)
            return
        argv = ["chown", "-R", "-h", "-P", f"{plan.uid}:{plan.gid}", "--", f"/proc/self/fd/{opened}/."]
        done = run_tool(argv, descriptors=[opened])
    if done.returncode:
        message = f"cannot chown the workspace to its user: {stderr_of(done)}"
        raise ProviderError("provider_unavailable", message)


def _written_directories(found: dict[str, Any], plan: Plan) -> list[str]:
    """Return the directories of the host in which the engine keeps files that only this sandbox writes: not shared
    ones.
    """
    volumes = [workspace.written(mount["Source"]) for mount in own_volumes(found["Mounts"], plan) if mount.get("RW")]
    layer = (found.get("GraphDriver") or {}).get("Data") or {}
    return [path for path in (layer.get("UpperDir"), *volumes) if path]


def _profile(seccomp: str) -> str | None:
    """Return the seccomp profile in the engine's format: its text."""
    if seccomp == "default":
        return docker_profile()
    if seccomp == "engine":
        return None
    if seccomp == "unconfined":
        return seccomp
    try:
        with open(seccomp, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        message = f"SANDBOX_DOCKER_SECCOMP: the profile {seccomp} cannot be read: {error}"
        raise SetupError("not_configured", message, setting="SANDBOX_DOCKER_SECCOMP") from None


_NO_SOURCE: Final = re.compile(r"bind source path does not exist: (/.*)")


def _create(client: Client, job: Job, body: dict[str, Any]) -> str:
    from docker.errors import APIError, ImageNotFound

    deadline, name = time.monotonic() + GONE_S, job.plan.name
    while True:
        try:
            made: str = client.create_container_from_config(body, name)["Id"]  # type: ignore[no-untyped-call]
        except ImageNotFound:
            message = "its image is gone from the Docker engine: create it again, with clean"
            raise CallerError("not_found", message) from None
        except APIError as refused:
            if missing := _NO_SOURCE.search(str(refused.explanation)):
                message = f"volumes: the host has no {missing[1]}: create it, or give the name of a volume"
                raise CallerError("invalid", message, field="volumes") from None
            if refused.status_code != CONFLICT or time.monotonic() > deadline:
                raise
            if not _free_name(client, name, job):
                name = f"{name}.{token_hex(4)}"
        else:
            return made


def _free_name(client: Client, name: str, job: Job) -> bool:
    """Free the name: remove the remains of an earlier attempt, or wait for their removal. Return False for a session's
    if a container has it that is not ours, and raise `conflict` otherwise.
    """
    found = None
    with Tolerate(NOT_FOUND):
        found = client.inspect_container(name)
    if found is None:
        time.sleep(_POLL_S)  # it has gone this moment, or its name is released any moment
        return True
    marks = found["Config"].get("Labels") or {}
    if (marks.get(LOG_LABEL), marks.get(SANDBOX_LABEL)) != (job.log_id, job.sandbox_id):
        if job.spec.session_id is not None:
            return False
        message = f"the container {name} is not Sandkeep's: remove it, or choose another id"
        raise StateError("conflict", message, sandbox_id=job.sandbox_id)
    _remove_container(client, found["Id"])
    return True


def _start(client: Client, container_id: str) -> None:
    from docker.errors import APIError, NotFound

    try:
        client.start(container_id)
    except NotFound:
        raise
    except APIError as refused:
        message = " ".join(str(refused.explanation).split())
        raise ProviderError("provider_unavailable", f"the container did not start: {message[:500]}") from None


def state_of(client: Client, container_id: str) -> dict[str, Any] | None:
    """Return the engine's view of a container's state; None when there is no such container."""
    with Tolerate(NOT_FOUND):
        state: dict[str, Any] = client.inspect_container(container_id)["State"]
        return state
    return None


def why_not_started(job: Job, state: dict[str, Any] | None) -> str:
    """Return a sentence on a container whose keeper does not answer."""
    try:
        with open(job.files.open_regular(f"out/{SAID}"), "rb") as file:
            output = file.read(500).decode(errors="replace").strip()
    except (OSError, NotAFileError):
        output = ""
    state = state or {}
    if not state.get("Running"):
        output = output or state.get("Error") or f"it ended with {state.get('ExitCode')}"
    return f"the sandbox did not start: {output or 'its keeper does not answer'}"


def remove(client: Client, sandbox_id: str, log_id: str, but: str | None = None) -> list[str]:
    """Remove a sandbox's containers, in any state, and its own volume; all `but` the container with that id, and its
    volume. Safe to repeat. Return the names of the volumes that remain.

    They are found by their labels and mounts: a name alone proves nothing.
    """
    marks = {"label": _labels(sandbox_id, log_id)}
    for container in filter(_is_sandbox, client.containers(all=True, filters=marks)):
        if container["Id"] != but:
            _remove_container(client, container["Id"])
    unused = {"dangling": True} if but is not None else {}
    for volume in client.volumes(filters={**marks, **unused})["Volumes"] or ():
        workspace.unmount(os.path.dirname(volume["Mountpoint"]))
        with Tolerate(NOT_FOUND):
            client.remove_volume(volume["Name"], force=True)
    return [volume["Name"] for volume in client.volumes(filters=marks)["Volumes"] or ()] if but is not None else []


def rename(client: Client, container_id: str) -> None:
    """Give a container its sandbox's regular name, once it is the only one."""
    name = client.inspect_container(container_id)["Name"].removeprefix("/")
    if name != regular_name(name):
        client.rename(container_id, regular_name(name))


def kill(handle: dict[str, Any]) -> None:
    """Kill the first process of a container, and so all of them, without the engine, if we may."""
    pidfd = open_process(msgspec.convert(handle, Handle).first) if handle else None
    if pidfd is not None:
        with closing_fd(pidfd), suppress(OSError):  # only root may; then the engine does it
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def halt(client: Client, sandbox_id: str, log_id: str) -> None:
    """Kill a sandbox's containers, and leave them. Safe to repeat."""
    for container in filter(_is_sandbox, client.containers(filters={"label": _labels(sandbox_id, log_id)})):
        with Tolerate(NOT_FOUND, CONFLICT):  # it has ended this moment
            client.kill(container["Id"])
        with Tolerate(NOT_FOUND):
            client.wait(container["Id"], timeout=int(GONE_S))


def pause(client: Client, container_id: str, *, paused: bool = True) -> None:
    """Pause a container, or unpause it. Safe to repeat."""
    from docker.errors import APIError

    for tries_left in reversed(range(_PAUSE_TRIES)):
        try:
            (client.pause if paused else client.unpause)(container_id)
        except APIError as refused:  # as it is so already, for which engines have several answers
            if client.inspect_container(container_id)["State"]["Paused"] == paused:
                return
            if _NOT_FROZEN not in str(refused) or not tries_left:
                raise
        else:
            return


def _is_sandbox(container: Mapping[str, Any]) -> bool:
    """Return True if a listed container is the sandbox that its labels name: a container gets the labels of its image,
    too, which anybody may have made, but no directories of the host.
    """
    directory = f"/{container['Labels'][SANDBOX_LABEL]}/in"
    return any(
        mount.get("Destination") == f"{INSIDE}/in" and mount.get("Source", "").endswith(directory)
        for mount in container["Mounts"]
        if mount.get("Type") == "bind"
    )


def _labels(sandbox_id: str, log_id: str) -> list[str]:
    return [f"{LOG_LABEL}={log_id}", f"{SANDBOX_LABEL}={sandbox_id}"]


class LabelledObject(NamedTuple):
    """A ``container`` or ``volume`` of a sandbox, and the ids in its labels."""

    kind: str
    name: str
    sandbox_id: str
    log_id: str


def list_objects(client: Client) -> list[LabelledObject]:
    """Return every container and volume labelled as a sandbox's, of any log."""
    filters = {"label": [LOG_LABEL, SANDBOX_LABEL]}
    containers = filter(_is_sandbox, client.containers(all=True, filters=filters))
    found = [("container", each["Names"][0].lstrip("/"), each) for each in containers]
    found += [("volume", each["Name"], each) for each in client.volumes(filters=filters)["Volumes"] or ()]
    return [
        LabelledObject(kind, name, each["Labels"][SANDBOX_LABEL], each["Labels"][LOG_LABEL])
        for kind, name, each in found
    ]


def _remove_container(client: Client, container_id: str) -> None:
    deadline = time.monotonic() + GONE_S
    with Tolerate(NOT_FOUND):
        while True:
            with Tolerate(*([CONFLICT] if time.monotonic() <= deadline else [])):
                client.remove_container(container_id, force=True, v=True)
                return
            time.sleep(_POLL_S)  # it is being removed already
