"""Containers of gVisor, which can be saved with all of their memory and files, and restored.

`runsc` is in process ids of its own, so that nothing of a container outlives it, and in mounts of its
own, in which the image has the mount points that it needs. An emptyDir is memory of the sandbox, and so saved with it.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.doubles.processes import ExecProcess, Launcher, Process, StartError, start_exec
from tests.support.kubernetes.runtime import ContainerSpec, start_detached

POLL_S = 0.01
LONGEST_MESSAGE, LONGEST_OUTPUT = 1000, 1 << 20
FIRST = [
    "sh",
    "-c",
    'code=0; "$@" || code=$?; while set -- /proc/[0-9]*; test $# -gt 1; do sleep 0.01; done; exit $code',
    "sh",
]
"""The first process of a container's process ids: `runsc checkpoint`, which is one of them, outlives the container."""

FAILED = 128
"""The exit code of `runsc` itself."""
CAPABILITY_NAMES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "NET_RAW",
    "SYS_CHROOT", "MKNOD", "AUDIT_WRITE", "SETFCAP",
)  # fmt: skip
Object = dict[str, Any]


class RunscContainer:
    """A container of `RunscRuntime`."""

    def __init__(self, launcher: Launcher, directory: str, process: Process) -> None:
        self._launcher = launcher
        self._directory = directory
        self._process = process
        self._id = _id_in(directory)
        self._count = 0
        self._execs: dict[Process, str] = {}
        self._exclusive = asyncio.Lock()

    async def wait(self) -> int:
        """See `Container`."""
        return await self._process.wait()

    async def kill(self, number: int) -> None:
        """See `Container`."""
        if number == signal.SIGKILL:
            self._process.send_signal(number)
        else:
            await self._runsc("kill", self._id, str(number))

    async def exec(self, process: Object, *, stdin: bool) -> ExecProcess:
        """See `Container`."""
        self._count += 1
        path = f"{self._directory}/exec-{self._count}"
        with open(f"{path}.json", "w", encoding="utf-8") as file:
            json.dump(_process(process), file)
        command = ["exec", "--process", f"{path}.json", "--internal-pid-file", f"{path}.pid", self._id]
        tool = _tool([*_argv(self._directory), *command], tty=process["tty"])
        async with self._exclusive:
            started = await start_exec(self._launcher, tool, enter=self._process.pid, stdin=stdin)
            self._execs = {known: at for known, at in self._execs.items() if not known.has_ended}
            self._execs[started.process] = f"{path}.pid"
            return started

    async def checkpoint(self, directory: str) -> None:
        """Save it into an empty directory, which ends it. Raises StartError with what `runsc` says."""
        async with self._exclusive:
            await self._end_execs()
            await self._runsc("checkpoint", f"--image-path={directory}", self._id)

    async def _end_execs(self) -> None:
        """Kill what was started by exec: a kernel that has pipes of the host open cannot be restored."""
        running = [process for process in self._execs if not process.has_ended]
        if not running:
            return
        rows = [line.split() for line in (await self._runsc("ps", self._id)).splitlines()[1:]]
        parents = {int(row[1]): int(row[2]) for row in rows}
        roots = set(filter(None, (_read_pid(self._execs[process]) for process in running)))
        for pid in parents:
            if roots & set(_ancestry(parents, pid)):
                with contextlib.suppress(StartError):  # it has ended with another
                    await self._runsc("kill", f"--pid={pid}", self._id, str(int(signal.SIGKILL)))
        for process in running:
            await process.wait()

    async def _runsc(self, *args: str) -> str:
        """Run a command of `runsc`; return its output. Raises StartError with it."""
        said = os.memfd_create("said", os.MFD_CLOEXEC)
        try:
            argv = [*_argv(self._directory), *args]
            process = await start_detached(self._launcher, _tool(argv), said, enter=self._process.pid)
            code = await process.wait()
            output = os.pread(said, LONGEST_OUTPUT, 0).decode(errors="replace")
        finally:
            os.close(said)
        if code:
            raise StartError(output[-LONGEST_MESSAGE:])
        return output


def _read_pid(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _ancestry(parents: Mapping[int, int], pid: int) -> Iterator[int]:
    """Yield a process and those above it."""
    while pid in parents:
        yield pid
        pid = parents[pid]


class RunscRuntime:
    """Starts containers of gVisor. The state of `runsc` is in the directory of each."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    async def start(self, spec: ContainerSpec, log: int, restore: str | None = None) -> RunscContainer:
        """See `Runtime`."""
        if shutil.which("runsc") is None:
            raise StartError("runsc is not installed")
        for name in ("mounts", "bundle", "state"):
            os.makedirs(f"{spec.directory}/{name}")
        with open(f"{spec.directory}/bundle/config.json", "w", encoding="utf-8") as file:
            json.dump(_configuration(spec), file)
        overlay = [] if spec.read_only else ["--overlay2=root:memory"]  # which is writable in any case
        action = ["restore", f"--image-path={restore}"] if restore else ["run"]
        argv = [
            *_argv(spec.directory),
            *overlay,
            *action,
            "--bundle",
            f"{spec.directory}/bundle",
            _id_in(spec.directory),
        ]
        points = [{"source": mount.source, "target": mount.target} for mount in spec.mounts]
        container = {"host": True, "directory": f"{spec.directory}/mounts", "image": spec.image, "mounts": points}
        container["hostname"] = spec.hostname
        process = await start_detached(self._launcher, _tool([*FIRST, *argv]), log, container=container)
        try:
            await _until_running(spec.directory, process, log)
        except BaseException:
            process.send_signal(signal.SIGKILL)
            raise
        return RunscContainer(self._launcher, spec.directory, process)


def _id_in(directory: str) -> str:
    """Return the id of a container, unique on this machine: `runsc` has a socket of that name."""
    return f"double-{os.path.basename(directory)}"


async def _until_running(directory: str, process: Process, log: int) -> None:
    """Wait until `runsc` notes that the container runs, or has ended. Raises StartError with the end of its log."""
    name = _id_in(directory)
    while not process.has_ended:
        with (
            contextlib.suppress(OSError, ValueError),
            open(f"{directory}/state/{name}_sandbox:{name}.state", "rb") as file,
        ):
            if json.load(file)["status"] == "running":
                return
        await asyncio.sleep(POLL_S)
    if await process.wait() == FAILED:
        end = os.lseek(log, 0, os.SEEK_END)
        raise StartError(os.pread(log, LONGEST_MESSAGE, max(0, end - LONGEST_MESSAGE)).decode(errors="replace"))


def _argv(directory: str) -> list[str]:
    return ["runsc", f"--root={directory}/state", "--platform=ptrace", "--network=none", "--ignore-cgroups"]


def _tool(argv: list[str], *, tty: bool = False) -> Object:
    """Return how the launcher runs `runsc` itself."""
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    return {"argv": argv, "env": env, "cwd": "/", "uid": 0, "tty": tty, "privileged": True, "no_new_privileges": False}


def _process(process: Mapping[str, Any]) -> Object:
    """Return the OCI form of a process."""
    capabilities = [] if process["drop_all"] or process["uid"] else [f"CAP_{name}" for name in CAPABILITY_NAMES]
    return {
        "terminal": process["tty"],
        "user": {"uid": process["uid"], "gid": process["gid"], "additionalGids": process["groups"]},
        "args": process["argv"],
        "env": [f"{name}={value}" for name, value in process["env"].items()],
        "cwd": process["cwd"],
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        "noNewPrivileges": process["no_new_privileges"],
    }


def _configuration(spec: ContainerSpec) -> Object:
    mounts: list[Object] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
    ]
    group = [] if spec.fs_group is None else [f"gid={spec.fs_group}"]
    memory = ["mode=0777" if spec.fs_group is None else "mode=2777", *group]
    for mount in spec.mounts:
        if mount.empty:
            mounts.append({"destination": mount.target, "type": "tmpfs", "source": "tmpfs", "options": memory})
        else:
            options = ["bind", "ro" if mount.read_only else "rw"]
            mounts.append({"destination": mount.target, "type": "bind", "source": mount.source, "options": options})
    return {
        "ociVersion": "1.0.0",
        "process": _process(spec.process),
        "root": {"path": f"{spec.directory}/mounts/root", "readonly": spec.read_only},
        "hostname": spec.hostname,
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")]},
    }
