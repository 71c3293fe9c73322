"""Starting a local sandbox: its directories, its mounts, and its first process.

Everything here blocks, and `start` must run in a thread of its own (`sandkeep.system.fresh_thread`): with root's daemon
that thread enters a mount namespace in which it builds the sandbox's view. A user's daemon cannot do that in a thread,
since only a single-threaded program may enter a user namespace; there ``unshare`` and a shell do the same.
"""

import logging
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct, field

from sandkeep import failpoints
from sandkeep.errors import ProviderError
from sandkeepd.host import mounts, privileges, seccomp
from sandkeepd.host.cgroups.groups import Hierarchies
from sandkeepd.host.pools import ceilings
from sandkeepd.host.processes import (
    TOOL_ENV,
    Identity,
    identify,
    prefer_for_oom,
    read_until_ready,
    reap,
    run_tool,
    spawn,
)
from sandkeepd.keeper import program, pty
from sandkeepd.providers.common.directory_provider import Lower
from sandkeepd.providers.common.disk_overlays import mount_writable
from sandkeepd.providers.common.disks import Disks, reserve_answers
from sandkeepd.providers.common.errors import converted_errors, stderr_of
from sandkeepd.providers.common.inside import INSIDE, marks, write_etc
from sandkeepd.providers.common.layout import SANDBOX_MARK, Layout, write_mark
from sandkeepd.providers.common.tree_copies import copy_tree
from sandkeepd.providers.common.views import shown, writable
from sandkeepd.providers.local.bubblewrap import View, arguments
from sandkeepd.providers.local.plan import Plan

logger = logging.getLogger("sandkeepd")

START_DEADLINE_S: Final = 30.0
_INFO_FD: Final = 3
_ARGUMENTS_FD: Final = 4
_SECCOMP_FD: Final = 5

# Mounts for a user's daemon, in the namespaces that `unshare` made: $1 the sandbox's directory, $2 the overlay's
# options or nothing, $3 NAME=NUMBER... for `ceilings`. The files in `out` must not be executed.
_USER_MOUNTS: Final = """
for ceiling in $3; do echo "${ceiling#*=}" >"/proc/sys/user/${ceiling%%=*}" || exit 125; done
cd -- "$1" || exit 125
[ -z "$2" ] || mount -t overlay -o "$2" sandkeep mount || exit 125
mount -o bind,nosuid,nodev,noexec out out || exit 125
shift 3; exec "$@"
"""
_CLOSE_VIEW: Final = f"""
mount --no-canonicalize -i -n --make-rprivate / &&
exec mount --no-canonicalize -i -n -t devpts -o \
    remount,nosuid,noexec,ptmxmode=0666,mode=0620,max={pty.MAX_TERMINALS} devpts /dev/pts
"""


class Handle(Struct, frozen=True, kw_only=True):
    """The facts that identify a running sandbox: its first process, and the names of its secrets."""

    first: Identity
    files: str
    workspace: str
    secrets: list[str] = field(default_factory=list)


class Job(Struct, frozen=True, kw_only=True):
    """The parameters of one start. `lowers` are the layers that the sandbox begins with, each hiding parts of the next;
    `files` is the way in which they become its own: ``overlay``, ``reflink`` or ``copy``. One that is started `anew`
    has journals, and may have files, and its disk if it has an `own_disk`.
    """

    sandbox_id: str
    layout: Layout
    lowers: list[Lower]
    plan: Plan
    files: str
    own_disk: bool
    host_network: bool
    read_only: bool
    hierarchies: Hierarchies
    log_id: str = ""
    close_userns: bool = False
    seccomp: bool = False
    anew: bool = False

    @property
    def directory(self) -> str:
        """The directory of the sandbox."""
        return self.layout.sandbox(self.sandbox_id)

    @property
    def marks(self) -> dict[str, str]:
        """The environment variables that identify its first processes."""
        return marks(self.sandbox_id, self.log_id)


class Argv(NamedTuple):
    """The argv of a start, and bubblewrap's other arguments, passed separately: command lines are readable by all
    users.
    """

    argv: Sequence[str]
    apart: Sequence[str] = ()

    def after(self, before: Sequence[str]) -> "Argv":
        """Return the argv with `before` before it."""
        return self._replace(argv=[*before, *self.argv])


class Started(Struct, frozen=True, kw_only=True):
    """The result of a start: the sandbox's first process, our child that stands before it, and the workspace's path."""

    first: Identity
    child: int
    workspace: str


def start(job: Job) -> Started:
    """Make the directories and start the keeper in its isolation; return when it takes requests.

    Raises `provider_unavailable` with the error of bubblewrap or the keeper, `storage_unavailable` for a full disk.
    Partial work is left for `terminate` to remove.
    """
    with converted_errors(), ExitStack() as opened:
        _make_directories(job)
        failpoints.reach("create.directories")
        control = os.open(f"{job.directory}/in/.control", os.O_RDWR | os.O_CLOEXEC)  # before mounts can hide it
        opened.callback(os.close, control)
        if job.plan.uid is not None:
            argv, workspace = _as_root(job)
        else:
            argv, workspace = _as_user(job)
        groups = job.hierarchies.create(job.plan.cgroups, job.plan.limits)
        job.hierarchies.join_thread(groups)
        started = _run(job, argv.after(job.hierarchies.wrapper(groups)), control, workspace)
        if job.plan.uid is not None and job.plan.mechanism != "none":
            _leave_mounts()
        return started


def _leave_mounts() -> None:
    """Empty the mount namespace of this thread, in which bubblewrap waits as long as the sandbox lives."""
    try:
        mounts.leave_all()
    except OSError as error:  # forbidden to a daemon in a container; the sandbox runs
        logger.warning("a sandbox keeps in use what the host has mounted", extra={"why": str(error)})


def _make_directories(job: Job) -> None:
    """Make the sandbox's directories. `out` is the daemon's, so that the code inside cannot replace its entries;
    `exits` and `p` belong to that code.
    """
    directory = job.directory
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if os.path.lexists(f"{directory}/out") and not job.anew:  # a daemon was killed while it made this sandbox
        shutil.rmtree(f"{directory}/out")
    if job.own_disk and not job.anew:
        Disks(job.layout).make(job.sandbox_id, job.plan.disk_bytes)
    has_files = os.path.isdir(f"{directory}/upper")
    for name in ("in", "upper", "work", "mount", "out", "out/p"):
        os.makedirs(f"{directory}/{name}", 0o755, exist_ok=job.anew or job.own_disk)  # a disk has some
    write_mark(f"{directory}/{SANDBOX_MARK}", job.log_id)
    os.mkfifo(f"{directory}/in/.control", 0o600)
    program.install(f"{directory}/in")
    with open(f"{directory}/out/exits", "ab" if job.anew else "xb") as answers:
        if job.own_disk and not job.anew:
            reserve_answers(answers.fileno(), job.plan.disk_bytes)
    write_etc(
        f"{directory}/in/.etc", job.sandbox_id, job.plan.inner_uid, job.plan.inner_gid, host_network=job.host_network
    )
    if job.plan.uid is not None and job.plan.gid is not None:
        if not has_files:
            shutil.copymode(job.lowers[0].root, f"{directory}/upper")
        for name in ("upper", "out/p", "out/exits"):
            os.chown(f"{directory}/{name}", job.plan.uid, job.plan.gid)
    if job.files != "overlay" and not has_files:
        _copy_files(job)


def _copy_files(job: Job) -> None:
    """Copy the files that it begins with: without overlays there is only one lower directory, which holds all."""
    way = "auto" if job.files == "reflink" else "never"
    root, upper = job.lowers[0].root, f"{job.directory}/upper"
    with shown(root, above=root) as source:
        copy_tree(source, upper, reflink=way)
    if job.plan.uid is not None:
        with writable(upper) as opened:
            argv = ["chown", "-R", "-h", f"{job.plan.uid}:{job.plan.gid}", "--", f"/proc/self/fd/{opened}/."]
            done = run_tool(argv, descriptors=[opened])
        if done.returncode:
            message = f"cannot chown the files to their user: {stderr_of(done)}"
            raise ProviderError("provider_unavailable", message)


def _as_root(job: Job) -> tuple[Argv, str]:
    """Build the sandbox's view in a mount namespace of this thread.

    Returns the argv and the workspace in it.
    """
    place = mounts.enter_private_namespace(follow_host=job.plan.mechanism == "none")
    opened = {name: mounts.open_path(f"{job.directory}/{name}") for name in ("upper", "work", "in", "out", ".")}
    lowers = [mounts.open_path(lower.root) for lower in job.lowers]
    try:
        mounts.mount_scratch(place)
        for name in ("workspace", "in", "out"):
            os.mkdir(f"{place}/{name}", 0o755)
        _mount_workspace(job, place, lowers, opened)
        quiet = mounts.MS_NOSUID | mounts.MS_NODEV
        mounts.bind(mounts.at(opened["in"]), f"{place}/in", quiet | mounts.MS_RDONLY)
        mounts.bind(mounts.at(opened["out"]), f"{place}/out", quiet | mounts.MS_NOEXEC)
    finally:
        for fd in (*opened.values(), *lowers):
            os.close(fd)
    view = _view(job, f"{place}/workspace", f"{place}/in", f"{place}/out")
    return _program(job, view).after(_drop_root(job.plan)), view.workspace


def _mount_workspace(job: Job, place: str, lowers: Sequence[int], opened: Mapping[str, int]) -> None:
    target = f"{place}/workspace"
    upper = mounts.at(opened["upper"])
    if job.files != "overlay":
        mounts.bind(upper, target, mounts.MS_NOSUID | mounts.MS_NODEV)
        return
    assert job.plan.uid is not None
    seen = [f"{place}/{number}" for number in range(len(lowers))]
    for directory in seen:
        os.mkdir(directory, 0o755)
    owners = [lower.uid for lower in job.lowers]
    mounts.bind_mapped(list(zip(map(mounts.at, lowers), seen, owners, strict=True)), job.plan.uid)
    overlay = partial(mounts.overlay, ":".join(seen), upper, mounts.at(opened["work"]), target)
    if job.own_disk:
        mount_writable(overlay, target, opened["."], job.plan.uid)
    else:
        with privileges.file_user(job.plan.uid):  # without the host's reserved blocks
            overlay()


def _drop_root(plan: Plan) -> list[str]:
    """Return the argv that gives up root for good: no capabilities, no way to get any back."""
    groups = ["--groups", ",".join(map(str, plan.groups))] if plan.groups else ["--clear-groups"]
    return [
        "setpriv", "--reuid", str(plan.uid), "--regid", str(plan.gid), *groups, "--no-new-privs", "--inh-caps=-all",
        "--bounding-set=-all",
    ]  # fmt: skip


def _as_user(job: Job) -> tuple[Argv, str]:
    directory = job.directory
    workspace = f"{directory}/mount" if job.files == "overlay" else f"{directory}/upper"
    view = _view(job, workspace, f"{directory}/in", f"{directory}/out")
    if job.plan.mechanism == "none":
        return _program(job, view), workspace
    options = "upperdir=upper,workdir=work,userxattr,redirect_dir=nofollow,metacopy=off"
    # Names of ours only, so nothing that an option could trip over.
    lower = ":".join(os.path.relpath(lower.root, directory) for lower in job.lowers)
    overlay = f"lowerdir={lower},{options}" if job.files == "overlay" else ""
    enter = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--propagation",
        "slave",  # bubblewrap waits in this namespace as long as the sandbox lives, and keeps nothing that goes
        "--",
        "sh",
        "-c",
        _USER_MOUNTS,
        "sh",
        directory,
        overlay,
        " ".join(f"{name}={most}" for name, most in ceilings().items()),
    ]
    return _program(job, view).after(enter), workspace


def _view(job: Job, workspace: str, in_dir: str, out_dir: str) -> View:
    return View(
        sandbox_id=job.sandbox_id, log_id=job.log_id, workspace=workspace, in_dir=in_dir, out_dir=out_dir,
        uid=job.plan.inner_uid, gid=job.plan.inner_gid, host_network=job.host_network, read_only=job.read_only,
        scratch_bytes=job.plan.scratch_bytes, guard_out=job.plan.uid is None,
        close_userns=job.close_userns, seccomp_fd=_SECCOMP_FD if job.seccomp else None,
    )  # fmt: skip


def _program(job: Job, view: View) -> Argv:
    """Return the argv of the keeper, in bubblewrap or bare, with the limits that every process has of its own."""
    if job.plan.mechanism == "none":
        return Argv(program.keeper_argv(view.in_dir, view.out_dir, _limits(job)))
    keeper = program.keeper_argv(f"{INSIDE}/in", f"{INSIDE}/out", _limits(job))
    return Argv(["bwrap", "--args", str(_ARGUMENTS_FD), "--", *keeper], arguments(view, _INFO_FD))


def _limits(job: Job) -> list[str]:
    plan = job.plan
    blocks = "" if job.own_disk else str(-(-plan.disk_bytes // 512))  # a disk of its own is the limit, and can grow
    pids = str(plan.limits.pids) if plan.held_by.get("pids") == "rlimit" else ""
    memory = plan.limits.memory_bytes if plan.held_by.get("memory") == "rlimit" else None
    return [blocks, pids, str(memory // 1024) if memory else ""]


def _run(job: Job, argv: Argv, control: int, workspace: str) -> Started:
    talk, talk_end = os.pipe()
    info, info_end = os.pipe()
    apart, filtered = _arguments_file(argv.apart), -1
    try:
        more = [info_end, apart]
        if job.seccomp:
            filtered = seccomp.open_program()
            more.append(filtered)
        child = spawn(argv.argv, stdin=control, output=talk_end, more=more, env={**TOOL_ENV, **job.marks})
        failpoints.reach("create.spawned")
        os.close(talk_end)
        os.close(info_end)
        talk_end = info_end = -1
        return Started(first=_await_first(job, child, talk, info), child=child, workspace=workspace)
    finally:
        for fd in (talk, info, talk_end, info_end, apart, filtered):
            if fd >= 0:
                os.close(fd)


def _arguments_file(argv: Sequence[str]) -> int:
    """Make a descriptor from which arguments are read, each ended by a NUL."""
    fd = os.memfd_create("arguments", os.MFD_CLOEXEC)
    try:
        os.write(fd, b"".join(os.fsencode(word) + b"\0" for word in argv))  # a file in memory takes it whole
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _await_first(job: Job, child: int, talk: int, info: int) -> Identity:
    """Wait for the keeper's first word, and identify the process that is the sandbox.

    Ends the child when there is none.
    """
    output = read_until_ready(talk, START_DEADLINE_S)
    failpoints.reach("create.answered")
    ready, newline, _ = output.partition(b"ready\n")
    first = None
    if newline:
        pid = child if job.plan.mechanism == "none" else msgspec.json.decode(os.read(info, 65536))["child-pid"]
        first = identify(pid)
    for process in (child, first.pid) if first is not None else ():
        prefer_for_oom(process)  # before it starts any other, which inherits it
    if first is not None and job.plan.uid is None and job.plan.mechanism != "none":
        _close_view(child, first)
    if first is None:
        os.killpg(child, signal.SIGKILL)  # its children, too: bwrap 0.8 may leave one that waits for it
        reap(child)
        sentence = ready.decode(errors="replace").strip()[:500] or "it did not say why"
        raise ProviderError("provider_unavailable", f"the sandbox did not start: {sentence}")
    return first


def _close_view(child: int, first: Identity) -> None:
    """Let no later mount of the host appear in the sandbox, and do as `pty.limit_terminals`: for a user's daemon, of
    which only the user namespace of `child` may do that.
    """
    enter = [f"--user=/proc/{child}/ns/user", f"--mount=/proc/{first.pid}/ns/mnt", "--preserve-credentials", "--"]
    done = run_tool(["nsenter", *enter, "sh", "-c", _CLOSE_VIEW])
    if done.returncode:
        logger.warning("the view or the terminals of a sandbox could not be limited: %s", stderr_of(done))
