"""Starting the container of a gVisor sandbox, anew or from its saved state; and saving it. Everything here blocks.

`start` must run in a thread of its own (`sandkeep.system.fresh_thread`): with root's daemon that thread enters a mount
namespace, in which the root directory is put together.

The directory of a bundle holds, besides `config.json` and the files about containers (see `runsc`)::

    saving/            being written by `runsc checkpoint`
    saved/             complete: the sandbox is suspended, and is restored from here; see also `open_files`
    saved/.go-on       it was only to be saved for a moment
    aside/             a `saved` to be restored only if its replacement cannot; and `.exits`, the answers of that time
    from-CONTAINER/    the state that container was restored from, until that surely runs

`saving` becomes `saved` by the program that waits for it to be complete, ``keeper -k`` or ``-m``, so that this happens
also when the daemon has died; the outcome is known once the lock that this program holds is free.
"""

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import msgspec
from msgspec import Struct

from sandkeep import failpoints
from sandkeep.errors import DaemonError, DataError, ProviderError, SandkeepError, SetupError
from sandkeep.model import SandboxSpec
from sandkeep.system.descriptors import closing_fd
from sandkeep.system.durable import sync
from sandkeep_store.files.holes import data_of
from sandkeepd.host import mounts
from sandkeepd.host.cgroups.groups import Hierarchies
from sandkeepd.host.hostile_files import HostileTree, NotAFileError
from sandkeepd.host.processes import Identity, has_ended, read_until_ready, reap, spawn
from sandkeepd.keeper import program
from sandkeepd.providers.common.directory_provider import Lower
from sandkeepd.providers.common.errors import converted_errors
from sandkeepd.providers.common.layout import SANDBOX_MARK, log_of, write_mark
from sandkeepd.providers.gvisor import bundle as gvisor_bundle
from sandkeepd.providers.gvisor import disk_space, open_files, runsc
from sandkeepd.providers.gvisor.bundle import Bundle
from sandkeepd.providers.gvisor.digest import Follower
from sandkeepd.providers.gvisor.plan import Plan

START_DEADLINE_S: Final = 60.0
SAVING_S: Final = 120.0
"""Seconds to wait, when taking over a sandbox, for a save or restore that an earlier daemon had started."""

IMAGE: Final = "checkpoint.img"
"""The name of the file in which `runsc` saves memory."""

BUNDLE_MARK: Final = ".log"
GO_ON: Final = ".go-on"
EXITS: Final = ".exits"
SHARED: Final = "shared.tar"
"""The file of a checkpoint besides those of `runsc`."""

_OTHERS: Final = (SHARED, "processes.json")
_MOST_SAID: Final = 65536
_GIVE_WAY_S: Final = 0.01


class Job(Struct, frozen=True, kw_only=True):
    """The parameters of one start. `files` is `directory`, as a tree in which the code inside may own files."""

    sandbox_id: str
    directory: str
    bundle: str
    root: str
    lowers: list[Lower]
    plan: Plan
    spec: SandboxSpec
    hierarchies: Hierarchies
    log_id: str
    secrets: list[str]
    files: HostileTree

    @property
    def saved(self) -> str:
        """The directory of its saved state."""
        return f"{self.bundle}/saved"

    def argv(self) -> list[str]:
        """Return the argv before a subcommand of `runsc`."""
        return runsc.command(self.root, self.plan, self.sandbox_id)


class Started(Struct, frozen=True, kw_only=True):
    """The result of a start: the container, its first process on the host, and `runsc`, which is about to end, to be
    reaped. `whole`: its image is a whole root file system.
    """

    container: str
    first: Identity
    child: int
    whole: bool
    workspace: str


def claim(job: Job) -> None:
    """Make a bundle with the id of its log: several daemons may share the base directory. Raises OSError, and
    `not_configured` when the bundle of that name is another's.
    """
    os.makedirs(job.bundle, mode=0o700, exist_ok=True)
    try:
        write_mark(f"{job.bundle}/{BUNDLE_MARK}", job.log_id)
    except FileExistsError:
        if log_of(f"{job.bundle}/{BUNDLE_MARK}") not in (None, job.log_id):
            message = f"{job.bundle} belongs to another daemon: give each its own RUNSC_BUNDLE_DIR_BASE"
            raise SetupError("not_configured", message, setting="RUNSC_BUNDLE_DIR_BASE") from None


def make_directories(job: Job) -> None:
    """Make the directories shared with the keeper, and the bundle. Raises `storage_unavailable`."""
    with converted_errors():
        claim(job)
        for path in (job.root, job.directory):
            os.makedirs(path, mode=0o700, exist_ok=True)
        for name in ("in", "out", "out/p"):
            os.makedirs(f"{job.directory}/{name}", 0o755, exist_ok=True)
        if not os.path.lexists(f"{job.directory}/{SANDBOX_MARK}"):
            write_mark(f"{job.directory}/{SANDBOX_MARK}", job.log_id)
        with suppress(FileExistsError):
            os.mkfifo(f"{job.directory}/in/.control", 0o600)
        if not os.path.exists(f"{job.directory}/in/{program.NAME}"):
            program.install(f"{job.directory}/in")
            program.install_statx(f"{job.directory}/in")
        _give_to_user(job)


def _give_to_user(job: Job) -> None:
    """Let the code inside write its journals and answers; links that were restored in their place are not followed."""
    with _open_answers(job, os.O_WRONLY | os.O_CREAT) as answers:
        if job.plan.rootless:
            return
        os.fchown(answers, job.plan.uid, job.plan.gid)
    with job.files.directory("out/p", flags=os.O_RDONLY, writable=True) as journals:
        os.fchown(journals, job.plan.uid, job.plan.gid)


@contextmanager
def _open_answers(job: Job, flags: int) -> Iterator[int]:
    """Open the file with the answers for the length of a block. Raises OSError and `storage_unavailable`."""
    try:
        opened = job.files.open_regular("out/exits", flags)
    except NotAFileError:
        message = f"{job.directory}/out/exits is not a file: create the sandbox anew"
        raise DaemonError("storage_unavailable", message) from None
    try:
        yield opened
    finally:
        os.close(opened)


def start(job: Job, *, restore: bool = False) -> Started:
    """Start it; return when it takes requests, or, after a restore, when it goes on.

    Raises `provider_unavailable` with the error of `runsc`, `snapshot_corrupt` for a state that cannot be restored. The
    saved state is still there then.
    """
    container = runsc.new_container(job.sandbox_id)
    with converted_errors(), ExitStack() as opened:
        control = os.open(f"{job.directory}/in/.control", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, control)
        if not stat.S_ISFIFO(os.fstat(control).st_mode):
            raise DaemonError("storage_unavailable", f"{job.directory}/in/.control is no FIFO: create the sandbox anew")
        runsc.forget_ended(job.bundle)
        whole = gvisor_bundle.is_root_file_system(job.lowers)
        _prepare(job, whole=whole)
        failpoints.reach("gvisor.prepared")
        groups = job.hierarchies.create(job.plan.cgroups, job.plan.limits)
        job.hierarchies.join_thread(groups)
        wrapper = job.hierarchies.wrapper(groups)
        if restore:
            first, child = _restore(job, wrapper, container, control)
        else:
            first, child = _run_new(job, [*wrapper, *job.argv()], container, control)
    workspace = gvisor_bundle.workspace_of(job.lowers, whole=whole)
    return Started(container=container, first=first, child=child, whole=whole, workspace=workspace)


def _prepare(job: Job, *, whole: bool) -> None:
    """Make a root directory, and write its path into the configuration."""
    own = f"{job.bundle}/rootfs"
    bundle = Bundle(
        sandbox_id=job.sandbox_id, directory=job.directory, root=own, plan=job.plan, spec=job.spec, whole=whole,
        secrets=job.secrets,
    )  # fmt: skip
    if job.plan.rootless:
        gvisor_bundle.copy_root(own, job.lowers, bundle)
    else:
        place = gvisor_bundle.place_beside(job.bundle, job.root, job.directory)
        mounts.enter_private_namespace()
        bundle = msgspec.structs.replace(bundle, root=gvisor_bundle.mount_root(place, job.lowers, bundle))
    gvisor_bundle.write_configuration(bundle, f"{job.bundle}/config.json")


def _run_new(job: Job, argv: Sequence[str], container: str, control: int) -> tuple[Identity, int]:
    talk, talk_end = os.pipe()
    try:
        command = ["run", "--detach", "--bundle", job.bundle, "--pid-file", f"{job.bundle}/{container}.pid", container]
        child = spawn([*argv, *command], stdin=control, output=talk_end, large_fd_table=True)
        failpoints.reach("gvisor.spawned")
        os.close(talk_end)
        talk_end = -1
        output = read_until_ready(talk, START_DEADLINE_S)
    finally:
        for fd in (talk, talk_end):
            if fd >= 0:
                os.close(fd)
    found = runsc.running(job.bundle)
    if b"ready\n" in output and found is not None and found[0] == container:
        return found[1], child
    runsc.end(job.root)
    reap(child)
    raise ProviderError("provider_unavailable", f"the sandbox did not start: {runsc.error_in(output)}")


def _restore(job: Job, wrapper: Sequence[str], container: str, control: int) -> tuple[Identity, int]:
    """Restore it by a program that marks when it runs: the file with the pid exists before its memory is loaded. The
    lock makes a later daemon wait.
    """
    source = f"{job.bundle}/from-{container}"
    os.rename(job.saved, source)
    failpoints.reach("gvisor.renamed")
    pid_file = f"{job.bundle}/{container}.pid"
    command = ["restore", "--detach", "--bundle", job.bundle, f"--image-path={source}", "--pid-file", pid_file]
    mark = runsc.ran_mark(job.bundle, container)
    os.close(os.open(f"{mark}.not", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    argv = [*wrapper, *_moving_after(job, 0o022, f"{mark}.not", mark), *job.argv(), *command, container]
    with _locked(job) as lock, open_files.recreated(source, job.files):
        code, output = _run(argv, f"{job.bundle}/said", lock, stdin=control)
    failpoints.reach("gvisor.restored")
    found = runsc.running(job.bundle)
    if code == 0 and found is not None and found[0] == container:
        remove_directory(source)
        return found[1], -1
    runsc.end(job.root)
    runsc.forget_ended(job.bundle)
    os.rename(source, job.saved)
    message = f"runsc cannot restore the sandbox: {runsc.error_in(output)}"
    raise DataError("snapshot_corrupt", message)


def _moving_after(job: Job, umask: int, source: str, target: str) -> list[str]:
    """Return the argv before a command, see `program.rename_after_argv`."""
    return program.rename_after_argv(program.on_host(job.bundle), umask, source, target)


def _run(
    argv: Sequence[str], log: str, lock: int, meanwhile: Callable[[], bool] | None = None, *, stdin: int | None = None
) -> tuple[int, bytes]:
    """Run a command that holds a lock to its end, and call `meanwhile` repeatedly; after True, at once again. Return
    its exit code and output. Its descendants may keep the output open.
    """
    with open(log, "w+b") as file, open(os.devnull, "rb") as null:
        given = null.fileno() if stdin is None else stdin
        child = spawn(argv, stdin=given, output=file.fileno(), more=[lock], large_fd_table=stdin is not None)
        try:
            if meanwhile is not None:
                _call_until_ended(child, meanwhile)
        finally:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        file.seek(0)
        return code, file.read(_MOST_SAID)


def _call_until_ended(child: int, meanwhile: Callable[[], bool]) -> None:
    more = False
    with closing_fd(os.pidfd_open(child)) as pidfd:
        while not has_ended(pidfd, 0 if more else _GIVE_WAY_S):
            more = meanwhile()


# Saving


def save(job: Job, container: str, *, go_on: bool, digest: bool = False) -> tuple[str, int] | None:
    """Save a container by `runsc`, which ends it; return the digest and size of `IMAGE`, if asked for and known. A
    digested file is not fsynced: see `sync_saved`.

    Raises `provider_unavailable` with the error of `runsc`; then the sandbox may run still.
    """
    saving = f"{job.bundle}/saving"
    follower = Follower(f"{saving}/{IMAGE}")
    try:
        remove_directory(saving)
        os.mkdir(saving, 0o700)
        if go_on:
            with open(f"{saving}/{GO_ON}", "wb"):
                pass
        open_files.save_names(saving, job.files, runsc.holders(job.root, container))
        with _locked(job) as lock, disk_space.reserved(saving, runsc.max_saved_bytes(job.bundle)) as room:
            follower.syncs = not go_on and not room.is_reserved

            def meanwhile() -> bool:
                room.shrink()
                return digest and follower.advance()

            code, output = _checkpoint(job, container, saving, lock, meanwhile)
        found = follower.result() if digest and code == 0 else None
        if code == 0 and not go_on and not digest:
            sync_saved(job)
    except OSError:
        remove_directory(saving)
        with converted_errors("the checkpoint"):
            raise
    finally:
        follower.close()
    failpoints.reach("gvisor.saved")
    if code != 0:
        remove_directory(saving)
        raise failed_to_save(output)
    return found


def _checkpoint(job: Job, container: str, saving: str, lock: int, meanwhile: Callable[[], bool]) -> tuple[int, bytes]:
    """Make a kernel save itself: asked by our own program where the request is known, since `runsc`, which only passes
    it on, takes 20 ms to begin.
    """
    log = f"{job.bundle}/said"
    found = runsc.running(job.bundle)
    if found is not None and found[0] == container and runsc.version() in runsc.KNOWN_KERNELS:
        runner, image = program.on_host(job.bundle), f"{saving}/{IMAGE}"
        argv = program.save_argv(runner, container, found[1].pid, image, saving, job.saved)
        code, output = _run(argv, log, lock, meanwhile)
        if code != program.NOT_ASKED:
            return code, output
    subcommand = [*job.argv(), "checkpoint", f"--image-path={saving}", container]
    return _run([*_moving_after(job, 0o077, saving, job.saved), *subcommand], log, lock, meanwhile)


def sync_saved(job: Job) -> None:
    """Fsync the saved state, where it is all that is left of the sandbox. Raises OSError."""
    for path in (*(f"{job.saved}/{name}" for name in saved_files(job.saved)), job.saved, job.bundle):
        sync(path)


def failed_to_save(output: bytes) -> SandkeepError:
    """Return the error for a failed save."""
    return ProviderError("provider_unavailable", f"runsc cannot save the sandbox: {runsc.error_in(output)}")


@contextmanager
def _locked(job: Job) -> Iterator[int]:
    with closing_fd(os.open(f"{job.bundle}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd


def await_saving(job: Job, seconds: float) -> None:
    """Wait until a save or restore that an earlier daemon had started is over. Raises `provider_unavailable`."""
    deadline = time.monotonic() + seconds
    try:
        fd = os.open(f"{job.bundle}/lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ProviderError(
                        "provider_unavailable", "the sandbox is still being saved or restored: try again later"
                    ) from None
                time.sleep(0.02)
            else:
                return
    finally:
        os.close(fd)


def saved_files(directory: str) -> list[str]:
    """Return the names of the files that `runsc` saved there."""
    return sorted(name for name in os.listdir(directory) if not name.startswith(".") and name not in _OTHERS)


def put_aside(job: Job) -> None:
    """Keep the saved state of a sandbox, while another one is restored in its place."""
    aside = f"{job.bundle}/aside"
    with converted_errors("the sandbox's place"):
        remove_directory(aside)
        with _open_answers(job, os.O_RDONLY) as answers, open(f"{job.saved}/{EXITS}", "wb", buffering=0) as copy:
            _copy_data(answers, copy.fileno())
        os.rename(job.saved, aside)


def make_empty_aside(job: Job) -> None:
    """Record that there was no state to put aside before a restore."""
    with converted_errors("the sandbox's place"):
        os.makedirs(f"{job.bundle}/aside", mode=0o700, exist_ok=True)


def put_back(job: Job) -> bool:
    """Undo `put_aside`; return True if nothing of the sandbox is left. Safe to repeat. Raises OSError and
    `provider_unavailable`; nothing is lost then.
    """
    await_saving(job, SAVING_S)
    aside = f"{job.bundle}/aside"
    if not os.path.isdir(aside):
        return runsc.running(job.bundle) is None and not recover_saved(job.bundle)
    runsc.end(job.root)
    runsc.forget_ended(job.bundle)
    remove_directory(job.saved)
    for name in os.listdir(job.bundle):
        if name.startswith("from-"):
            remove_directory(f"{job.bundle}/{name}")
    if not os.path.exists(f"{aside}/{IMAGE}"):
        remove_directory(aside)
        return True
    if os.path.exists(f"{aside}/{EXITS}"):  # else an earlier daemon put it back and got no further
        _replace_answers(job, f"{aside}/{EXITS}")
    os.rename(aside, job.saved)
    return False


def _replace_answers(job: Job, source: str) -> None:
    if not job.plan.rootless:
        os.chown(source, job.plan.uid, job.plan.gid)
    try:
        os.rename(source, f"{job.directory}/out/exits")
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with suppress(FileNotFoundError):
            job.files.unlink("out/exits")
        with open(source, "rb") as copy, _open_answers(job, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as answers:
            _copy_data(copy.fileno(), answers)
            if not job.plan.rootless:
                os.fchown(answers, job.plan.uid, job.plan.gid)


def _copy_data(source: int, target: int) -> None:
    """Copy a file, holes as holes: the code inside can have made it of any length. Raises OSError."""
    end = os.fstat(source).st_size
    os.ftruncate(target, end)
    for begin, hole in data_of(source, end):
        at = os.lseek(target, begin, os.SEEK_SET)
        while at < hole:
            sent = os.sendfile(target, source, at, hole - at)
            if not sent:  # it has become shorter
                return
            at += sent


def remove_aside(bundle: str) -> None:
    """Remove the state put aside: its replacement runs, and that is on record."""
    remove_directory(f"{bundle}/aside")


def end_saved(job: Job) -> None:
    """End the processes of a completely saved sandbox: they are about to end anyway. Raises `provider_unavailable`."""
    if os.path.exists(f"{job.saved}/{IMAGE}"):
        runsc.end(job.root)


def recover_saved(bundle: str) -> bool:
    """Find the saved state of a sandbox without processes that was not restored since; return True if there is any."""
    saved = f"{bundle}/saved"
    for name in os.listdir(bundle):
        if name.startswith("from-") and not os.path.isdir(saved):
            container = name.removeprefix("from-")
            if not runsc.has_run(bundle, container) and os.path.exists(f"{bundle}/{name}/{IMAGE}"):
                os.rename(f"{bundle}/{name}", saved)
    return os.path.exists(f"{saved}/{IMAGE}")


def stay_suspended(job: Job) -> None:
    """Leave a sandbox suspended that could not be restored: a later daemon must not resume it by itself. Fsync its
    state, if possible: it may be only in memory.
    """
    with suppress(OSError):
        os.unlink(f"{job.saved}/{GO_ON}")
    with suppress(OSError):
        sync_saved(job)


def remove_saved(bundle: str) -> None:
    """Remove the saved state of a sandbox that runs."""
    for name in os.listdir(bundle):
        if name in ("saving", "saved") or name.startswith("from-"):
            remove_directory(f"{bundle}/{name}")


def remove_directory(path: str) -> None:
    """Remove a directory of ours, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
