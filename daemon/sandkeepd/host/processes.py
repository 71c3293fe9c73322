"""Processes of the host: starting them, recognising them again, and ending them for sure.

A pid alone names nothing: the kernel gives it to another process later. An `Identity` does name a process, also to a
daemon that starts anew: pid, when it started, and in which boot of the machine.
"""

import contextlib
import ctypes
import errno
import os
import resource
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import trio
from msgspec import Struct

from sandkeep.errors import ProviderError
from sandkeep.system import fresh_thread
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.threads import check_cancelled
from sandkeepd.host import spawn as spawning

T = TypeVar("T")

KILL_DEADLINE_S: Final = 20.0
"""Seconds a killed process may take to be gone: it can be stuck in a read from a dead disk."""

TOOL_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
TOOL_ENV: Final = {"PATH": TOOL_PATH, "LC_ALL": "C"}
"""The environment of host tools: untranslated messages, and no variables of the daemon's."""

OOM_SCORE_ADJ: Final = 500
"""Of sandboxes' processes, in thousandths of the machine's memory: the kernel kills them before the daemon."""

_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENODEV)

_SYS_KEYCTL: Final = {"x86_64": 250, "i686": 288, "armv7l": 311, "ppc64le": 271, "s390x": 280}
_SYS_KEYCTL_ELSEWHERE: Final = 219
_KEYCTL_JOIN_SESSION_KEYRING: Final = 1

_LAST: Final = 511
"""The number of a descriptor that nobody uses: those below it have room in the table."""

_LOOK_S: Final = 0.2
"""Seconds in which a program is killed whose caller is cancelled."""

_MAX_ERRORS_BYTES: Final = 1 << 16
"""Size of a program's stderr beyond which no more of it is kept."""

_PRECEDENCE: Final = -10
_OF_SESSION: Final = "/proc/self/autogroup"
"""The same for the session of this process, if the kernel knows of that."""
_libc: Final = ctypes.CDLL(None, use_errno=True)

_RESET: Final = [
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGCHLD,
]


class Identity(Struct, frozen=True, kw_only=True):
    """The unique identity of a process of this machine."""

    pid: int
    started: int
    boot_id: str


def boot_id() -> str:
    """Return the kernel's id of the present boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_time(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot; None if it is gone or a zombie. Raises OSError
    when that cannot be read. A process whose first thread has ended while others run counts as alive.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # anything else, such as no descriptors left, is no answer
        return None
    remains = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return None if remains else int(fields[19])


def identify(pid: int) -> Identity | None:
    """The identity of a running process."""
    started = start_time(pid)
    return None if started is None else Identity(pid=pid, started=started, boot_id=boot_id())


def open_process(identity: Identity) -> int | None:
    """A pidfd of that very process, or None when it is gone. Raises OSError when that cannot be seen."""
    if identity.boot_id != boot_id():
        return None
    try:
        fd = os.pidfd_open(identity.pid)
    except OSError as error:
        if error.errno in _NO_ROOM:  # which says nothing of the process
            raise
        return None
    try:
        same = start_time(identity.pid) == identity.started
    except OSError:
        os.close(fd)
        raise
    if same:
        return fd
    os.close(fd)
    return None


def written_bytes(pid: int) -> int:
    """Return the bytes of files that a process, and those of which it was told the end, have made the kernel write to
    disks, removed ones included; 0 if the kernel does not say.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as file:
        for line in file:
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
    return 0


def kill_and_wait(pidfd: int) -> None:
    """Kill by pidfd and wait until it has exited. Blocks. Raises `provider_unavailable` if it does not exit."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
    if not has_ended(pidfd, KILL_DEADLINE_S):
        raise ProviderError(
            "provider_unavailable",
            "a process did not exit after SIGKILL: it may be waiting for a disk; try again later",
        )


def kill_process(process: Identity) -> None:
    """Kill that very process, if it still runs, and wait until it is gone. See `open_process` and `kill_and_wait`."""
    pidfd = open_process(process)
    if pidfd is not None:
        with closing_fd(pidfd):
            kill_and_wait(pidfd)


def has_ended(pidfd: int, timeout_s: float = 0) -> bool:
    """Return True if a process ends within `timeout_s`. Blocks."""
    return poll_in(pidfd, timeout_s)


def poll_in(fd: int, timeout_s: float) -> bool:
    """Return True if a descriptor becomes readable, or reaches its end, within that time. Blocks."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def reap(pid: int) -> None:
    """Wait for a child of ours that is ending; nothing happens when it is another's. Blocks."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def spawn(
    argv: Sequence[str],
    *,
    stdin: int,
    output: int,
    more: Sequence[int] = (),
    large_fd_table: bool = False,
    env: Mapping[str, str] = TOOL_ENV,
) -> int:
    """Start a program in a session of its own, with default signals. Answers its pid.

    `output` becomes its stdout and stderr, `more` its descriptors from 3 on; it gets no others, unless it is to be
    `large_fd_table`.
    Then it has /dev/null as number 511, so that the kernel has a table of so many for it from the start, and for what
    it starts: to make that of a process with threads larger, it waits until every processor has come by (expand_files
    in Linux's fs/file.c), which takes 10 to 20 ms. Where not so many are allowed it does without.

    It inherits the namespaces of the calling *thread*, which is why this is no `subprocess.Popen`, whose object would
    also complain of the sandbox that outlives it.
    """
    sources = dict(enumerate([stdin, output, output, *more]))
    with contextlib.ExitStack() as stack, ordinary_priority():
        if large_fd_table and resource.getrlimit(resource.RLIMIT_NOFILE)[0] > _LAST:
            sources[_LAST] = stack.enter_context(_devnull(os.O_RDONLY))
        return spawning.start(argv, env, sources, _RESET)


def prefer_for_oom(pid: int) -> None:
    """Let the kernel kill a process, and those that it starts from now on, before the daemon when the machine is out
    of memory. Where the daemon may not (another user namespace's process, a kernel without it) nothing changes.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(OOM_SCORE_ADJ))


def raise_priority() -> None:
    """Raise the daemon's priority over its children: on a machine that is busy with sandboxes, calls are still answered
    promptly.

    Where the kernel schedules by session first, the session's priority is raised, too: the daemon's children are
    sessions of their own, against which `nice` alone has no effect. Only root may; nothing happens for others.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRECEDENCE)
        with contextlib.suppress(OSError), open(_OF_SESSION, "w", encoding="ascii") as group:
            group.write(str(_PRECEDENCE))


@contextlib.contextmanager
def ordinary_priority() -> Iterator[None]:
    """For programs that this thread starts: they are to have no precedence."""
    before = os.getpriority(os.PRIO_PROCESS, 0)  # the thread's, despite its name
    if before >= 0:
        yield
        return
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def keep_descriptors_private() -> None:
    """Set close-on-exec on descriptors inherited from the daemon's parent, which would leak into sandboxes."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)
        except OSError:
            continue


def leave_session_keyring() -> None:
    """Give this thread and its children an empty session keyring: they could read the daemon's keys."""
    call = _SYS_KEYCTL.get(os.uname().machine, _SYS_KEYCTL_ELSEWHERE)
    if _libc.syscall(call, _KEYCTL_JOIN_SESSION_KEYRING, None) >= 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.ENOSYS, errno.EPERM):  # no keys in this kernel; none for this container
        raise OSError(number, f"no session keyring: {os.strerror(number)}")


def in_fresh_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread with namespaces of its own and none of the daemon's keys, and wait. Blocks."""

    def run() -> T:
        leave_session_keyring()
        return work()

    return fresh_thread.in_fresh_thread(run)


def run_tool(
    argv: Sequence[str], *, timeout_s: float = 600, stdin: int | None = None, descriptors: Collection[int] = ()
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program of the host to its end, with /dev/null as its stdin unless one is given. It inherits `descriptors`,
    under their numbers.

    Blocks. Raises `provider_unavailable` when it is missing or takes too long. It is killed when the call for
    which this thread works is cancelled. Of its stderr, which may name each file of a hostile tree, the beginning is
    returned.
    """
    program = shutil.which(argv[0], path=TOOL_PATH)
    if program is None:
        raise ProviderError("provider_unavailable", f"{argv[0]} is missing: install it")
    with contextlib.ExitStack() as stack:
        null = stdin if stdin is not None else stack.enter_context(_devnull(os.O_RDWR))
        pipes = [os.pipe(), os.pipe()]
        ends = [stack.enter_context(closing_fd(reading)) for reading, _ in pipes]
        with contextlib.ExitStack() as child_ends:
            written = [child_ends.enter_context(closing_fd(writing)) for _, writing in pipes]
            with ordinary_priority():
                given = {**dict(enumerate([null, *written])), **{each: each for each in descriptors}}
                pid = spawning.start([program, *argv[1:]], TOOL_ENV, given, _RESET)
        output = None
        try:
            output = _read_all(ends, time.monotonic() + timeout_s)
        finally:
            if output is None:
                os.killpg(
                    pid, signal.SIGKILL
                )  # bwrap 0.8, killed in its first instants, leaves a child that waits for it
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if output is None:
        message = f"{argv[0]} did not finish within {timeout_s:.0f} s: see whether this machine is overloaded"
        raise ProviderError("provider_unavailable", message)
    return subprocess.CompletedProcess(argv, code, *output)


def _devnull(flags: int) -> contextlib.AbstractContextManager[int]:
    return closing_fd(os.open(os.devnull, flags | os.O_CLOEXEC))


def _read_all(pipes: Sequence[int], deadline: float) -> list[bytes] | None:
    """Read stdout and the beginning of stderr until their other ends are closed; None after the deadline. Blocks."""
    output = {pipe: bytearray() for pipe in pipes}
    poll = select.poll()
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    open_pipes = len(pipes)
    while open_pipes:
        check_cancelled()
        ready = poll.poll(max(0.0, min(_LOOK_S, deadline - time.monotonic())) * 1000)
        if not ready and time.monotonic() >= deadline:
            return None
        for pipe, _ in ready:
            piece = os.read(pipe, 65536)
            if pipe == pipes[0] or len(output[pipe]) < _MAX_ERRORS_BYTES:
                output[pipe] += piece
            if not piece:
                poll.unregister(pipe)
                open_pipes -= 1
    return [bytes(output[pipe]) for pipe in pipes]


async def wait_ended(pidfd: int) -> None:
    """Wait until the process of a pidfd has ended."""
    await trio.lowlevel.wait_readable(pidfd)


def pids_where(matches: Callable[[int], bool]) -> list[int]:
    """The processes of the host for which `matches` is true. A process that ends meanwhile is left out."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if matches(int(name)) and start_time(int(name)) is not None:  # remains are for their parent to reap
                    found.append(int(name))
            except OSError:
                continue
    return found


def owned_by(uid: int) -> Callable[[int], bool]:
    """Matches the processes that have `uid` as their real, effective, saved or file system's."""
    wanted = str(uid).encode()

    def matches(pid: int) -> bool:
        with closing_fd(os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)) as fd:
            text = os.read(fd, 4096)  # it stands among the first lines
        return wanted in text.partition(b"\nUid:")[2].partition(b"\n")[0].split()

    return matches


def real_uid(pid: int) -> int:
    """Return the uid of whoever started a process: a set-uid program has other ones besides. Raises OSError."""
    with open(f"/proc/{pid}/status", "rb") as file:
        return int(file.read(4096).partition(b"\nUid:")[2].split(maxsplit=1)[0])


def find_by_environment(variables: Mapping[str, str], uids: Collection[int]) -> list[int]:
    """Return processes of `uids`, whose users alone can set variables, started with these ones; not this one."""
    return [pid for pid, found in find_by_variables(list(variables), uids) if found == variables and pid != os.getpid()]


def find_by_variables(names: Sequence[str], uids: Collection[int] | None) -> list[tuple[int, dict[str, str]]]:
    """Return the processes of `uids` (None: all) started with all these variables, and the variables' values."""
    found: list[tuple[int, dict[str, str]]] = []

    def matches(pid: int) -> bool:
        if uids is not None and os.stat(f"/proc/{pid}").st_uid not in uids:
            return False
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = [text.partition(b"=") for text in file.read(1 << 20).split(b"\0")]
        settings = {name: value.decode(errors="replace") for name, _, value in reversed(pairs)}  # the first of a name
        values = {name: settings[name.encode()] for name in names if name.encode() in settings}
        if len(values) < len(names):
            return False
        found.append((pid, values))
        return True

    running = set(pids_where(matches))
    return [(pid, values) for pid, values in found if pid in running]


def is_in_child_namespace(pid: int) -> bool:
    """Return True if a process is in a pid namespace below ours, and is not its init."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        seen_as = next((line.split()[1:] for line in file if line.startswith("NSpid:")), [])
    return len(seen_as) > 2 or (len(seen_as) == 2 and seen_as[1] != "1")


def read_until_ready(pipe: int, timeout_s: float) -> bytes:
    """Read a keeper's messages from a pipe until it is ready, the other end is closed, or the time is over. Blocks."""
    deadline = time.monotonic() + timeout_s
    output = b""
    while b"ready\n" not in output and len(output) < 65536 and poll_in(pipe, max(0.0, deadline - time.monotonic())):
        piece = os.read(pipe, 4096)
        if not piece:
            break
        output += piece
    return output


def kill_all(find: Callable[[], list[int]]) -> None:
    """Kill all that `find` finds, again and again until it finds nothing. Blocks."""
    for _ in range(200):
        pids = find()
        if not pids:
            return
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except OSError:
                continue
            with closing_fd(fd):
                kill_and_wait(fd)
            reap(pid)
    raise ProviderError("provider_unavailable", "processes start faster than they can be killed: try again")
