"""Start processes in namespaces of their own: a program of one thread, started with a socket as its only argument.

Requests are packets of descriptors: a memfd with a JSON object, and for a start the write end of a pipe for errors,
stdin, stdout and stderr. The pipe closes without a word once the program runs. Answers are JSON packets: the pid of a
start, and the wait status of each process when it ends. When the socket closes, every process is killed.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import traceback
import types
from typing import Any, NoReturn

NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_USERS, NEW_PIDS = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000
NEW_NETWORK = 0x40000000
SET_FLAGS, UP = 0x8914, 1
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, SLAVE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 19
DETACH = 2
SET_DEATH_SIGNAL, DROP_FROM_BOUNDS, NO_NEW_PRIVILEGES = 1, 24, 38
CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
"""What containers of root have: those of Docker."""

LAST_CAPABILITY = 40
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
LARGEST_PACKET = 4096
DESCRIPTORS = 5

GROUPS = "/sys/fs/cgroup"
VERSION_1 = (f"{GROUPS}/memory", "memory.limit_in_bytes")
VERSION_2 = (GROUPS, "memory.max")
"""The directory of control groups for memory, as a container has its own, and the file that takes a limit."""

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: Any) -> None:
    if getattr(_libc, name)(*args) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"{name}{args}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """See mount(2). Raises OSError."""
    texts = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    _call("mount", texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])


def unshare(flags: int) -> None:
    """See unshare(2). Raises OSError."""
    _call("unshare", flags)


def enter_network(pid: int) -> None:
    """Enter the network of a process, with this thread alone. Raises OSError."""
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", fd, NEW_NETWORK)
    finally:
        os.close(fd)


# The memory of a container


def make_group(limit: int) -> str | None:
    """Make a control group with a limit of memory; return its directory, None where this machine has none for us."""
    above, file = VERSION_1 if os.path.isdir(VERSION_1[0]) else VERSION_2
    group = f"{above}/skt-double-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        os.mkdir(group)
        with open(f"{group}/{file}", "w") as limited:
            limited.write(str(limit))
    except OSError:
        remove_group(group)
        return None
    return group


def join_group(group: str) -> None:
    """Put this process into a control group. Raises OSError."""
    with open(f"{group}/cgroup.procs", "w") as members:
        members.write("0")


def remove_group(group: str) -> None:
    """Remove a control group whose processes have ended."""
    with contextlib.suppress(OSError):
        os.rmdir(group)


# A new container


def enter_container(spec: dict[str, Any], cwd: str, group: str | None) -> None:
    """Make the file systems of a container, in new namespaces, and enter them; with `host`, only below `root`. It can
    read its control `group`, as those of containerd can.
    """
    unshare(NEW_MOUNTS | NEW_UTS | NEW_IPC | (NEW_NETWORK if spec.get("network") else 0))
    if spec.get("network"):
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))
    _call("sethostname", spec["hostname"].encode(), len(spec["hostname"].encode()))
    root = _mount_root(spec)
    if spec.get("host"):
        for bind in spec["mounts"]:
            _make_mount_point(root + bind["target"], os.path.isdir(bind["source"]))
        mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC)
        return
    binds = [*spec["mounts"]]
    if group is not None:
        binds.insert(0, {"source": group, "target": os.path.dirname(group), "read_only": True})
    opened = [os.open(bind["source"], os.O_PATH | os.O_CLOEXEC) for bind in binds]
    os.chdir(root)
    _call("pivot_root", b".", b".")  # what was the root is now mounted above, until it is unmounted below
    _mount_kernel_files()
    for bind, source in zip(binds, opened, strict=True):
        _bind(f"/proc/self/fd/{source}", bind["target"], read_only=bind["read_only"])
    _call("umount2", b".", DETACH)
    os.makedirs(cwd, exist_ok=True)
    if spec["read_only"]:
        mount(None, "/", None, REMOUNT | BIND | RDONLY)


def _mount_root(spec: dict[str, Any]) -> str:
    """Mount the image with a layer above it: in memory, as long as the container lives, or `kept` in its directory."""
    place = spec["directory"]
    mount("none", "/", None, REC | SLAVE)  # what the host unmounts is kept by no container
    if not spec.get("kept"):
        mount("tmpfs", place, "tmpfs", NODEV, "mode=0755")
    for name in ("upper", "work", "root"):
        os.mkdir(f"{place}/{name}", 0o755)
    layers = f"lowerdir={spec['image']},upperdir={place}/upper,workdir={place}/work"
    mount("overlay", f"{place}/root", "overlay", NODEV, layers)
    return f"{place}/root"


def _mount_kernel_files() -> None:
    for path in ("/proc", "/dev", "/sys"):
        os.makedirs(path, exist_ok=True)
    mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC)
    for path in filter(os.path.exists, ("/proc/sys", "/proc/sysrq-trigger")):
        _bind(path, path, read_only=True)
    mount("tmpfs", "/dev", "tmpfs", NOSUID | NOEXEC, "mode=0755")
    for name, numbers in DEVICES.items():
        os.mknod(f"/dev/{name}", 0o020666, os.makedev(*numbers))
        os.chmod(f"/dev/{name}", 0o666)
    for name, target in DEVICE_LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/pts")
    mount("devpts", "/dev/pts", "devpts", NOSUID | NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    os.mkdir("/dev/shm")
    mount("tmpfs", "/dev/shm", "tmpfs", NOSUID | NODEV, "mode=1777")


def _make_mount_point(path: str, is_directory: bool) -> None:
    if is_directory:
        os.makedirs(path, exist_ok=True)
    elif not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def _bind(source: str, target: str, *, read_only: bool) -> None:
    _make_mount_point(target, os.path.isdir(source))
    mount(source, target, None, BIND | REC)
    if read_only:
        mount(None, target, None, REMOUNT | BIND | RDONLY | NOSUID | NODEV)


# The program


def become(process: dict[str, Any]) -> None:
    """Take the identity of the program to run: session, terminal, directory, user and capabilities."""
    os.setsid()
    if process["tty"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if not process["privileged"]:
        for number in range(LAST_CAPABILITY + 1):
            if number not in CAPABILITIES or process["drop_all"]:
                with contextlib.suppress(OSError):  # we do not have it ourselves
                    _call("prctl", DROP_FROM_BOUNDS, number, 0, 0, 0)
        os.setgroups(process["groups"])
        os.setresgid(process["gid"], process["gid"], process["gid"])
        os.setresuid(process["uid"], process["uid"], process["uid"])
    if process["no_new_privileges"]:
        _call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call("prctl", SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # last: a change of the user clears it
    os.chdir(process["cwd"])


def _run_program(program: types.ModuleType, process: dict[str, Any]) -> NoReturn:
    """Run a program of our own, without `exec`, so that the image needs no interpreter."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(process["env"])
        code = program.main(process["argv"])
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def run(request: dict[str, Any], stdio: list[int], program: types.ModuleType | None, group: str | None) -> NoReturn:
    """Become the program that a request asks for, or run `main` of ours."""
    for caught in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(caught, signal.SIG_DFL)
    for number, fd in enumerate(stdio):
        os.dup2(fd, number)
    process = request["process"]
    os.umask(0o022)
    if "container" in request:
        enter_container(request["container"], process["cwd"], group)
    become(process)
    if program is not None:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # as exec does: among them is the pipe for errors
        _run_program(program, process)
    os.execvpe(process["argv"][0], process["argv"], process["env"])


# The service


class Launcher:
    """Forks what is asked for, and reaps it."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        control.set_inheritable(False)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._children: dict[int, str | None] = {}
        """Each process, with the control group that was made for it."""

    def serve(self) -> None:
        """Work until the socket closes, then kill all."""
        control = self._control.fileno()
        woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready = select.select([control, woken], [], [])[0]
            if woken in ready:
                os.read(woken, LARGEST_PACKET)
                self._reap()
            if control in ready and not self._receive():
                break
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        for group in filter(None, self._children.values()):
            remove_group(group)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            group = self._children.pop(pid, None)
            if group is not None:
                remove_group(group)
            self._answer(pid=pid, status=status)

    def _answer(self, **fields: int) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(fields).encode())

    def _receive(self) -> bool:
        try:
            _, fds, _, _ = socket.recv_fds(self._control, LARGEST_PACKET, DESCRIPTORS)
        except OSError:
            return False
        if not fds:
            return False
        for fd in fds:
            os.set_inheritable(fd, False)
        try:
            with open(os.dup(fds[0]), "rb") as file:
                file.seek(0)
                self._handle(json.load(file), fds[1:])
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _handle(self, request: dict[str, Any], fds: list[int]) -> None:
        if "kill" in request:
            if request["kill"] in self._children:
                os.kill(request["kill"], request["signal"])
            return
        limit = request.get("container", {}).get("memory")
        made = make_group(limit) if limit else None
        try:
            pid = self._fork(request, fds, made or self._children.get(request.get("enter", 0)))
        except OSError as error:
            with contextlib.suppress(BrokenPipeError):  # whoever asked has given up
                os.write(fds[0], str(error).encode())
            pid = 0
        if pid:
            self._children[pid] = made
        elif made is not None:
            remove_group(made)
        self._answer(id=request["id"], pid=pid)

    def _fork(self, request: dict[str, Any], fds: list[int], group: str | None) -> int:
        """Fork into the process ids of a new container, or of one that runs, and into its control group."""
        target = os.pidfd_open(request["enter"]) if "enter" in request else None
        try:
            if target is None:
                unshare(NEW_PIDS)
            else:
                _call("setns", target, NEW_PIDS)
            pid = os.fork()
            if pid == 0:
                _begin(request, fds, target, group)
            return pid
        finally:
            _call("setns", self._own_pids, NEW_PIDS)
            if target is not None:
                os.close(target)


def _begin(request: dict[str, Any], fds: list[int], target: int | None, group: str | None) -> NoReturn:
    """Become what a request asks for. An error is told through the first descriptor, and never goes back into the
    service that was forked.
    """
    errors, *stdio = fds
    try:
        signal.set_wakeup_fd(-1)
        program = _load(request["process"].get("source"))
        if group is not None:
            join_group(group)
        if target is not None:
            _call("setns", target, NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_NETWORK)
        run(request, stdio, program, group)
    except BaseException as error:
        os.write(errors, str(error).encode()[:LARGEST_PACKET])
    finally:
        os._exit(128)


def _load(source: str | None) -> types.ModuleType | None:
    """Load a program of our own, with its imports, while the files of this machine are in reach."""
    if source is None:
        return None
    module = types.ModuleType("program")
    exec(compile(source, "program", "exec"), module.__dict__)
    return module


if __name__ == "__main__":
    Launcher(socket.socket(fileno=int(sys.argv[1]))).serve()
