"""Checkpoints of gVisor sandboxes: memory, processes and files. See `Checkpointing`.

A checkpoint is self-contained, for a restore elsewhere or later: the files that `runsc` saved, and a tar of the files
that the sandbox shares with the daemon: its requests' files, its answers, and the journals that its processes have
open.
"""

import functools
import os
import shutil
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import DaemonError, SandkeepError, StateError
from sandkeep.model import SandboxSpec
from sandkeepd.contract.checkpoints import Checkpointing, CheckpointResult
from sandkeepd.contract.instance import Ending
from sandkeepd.host.hostile_files import HostileTree, NotAFileError
from sandkeepd.host.processes import run_tool
from sandkeepd.host.undo import undo_on_error
from sandkeepd.providers.common.errors import stderr_of, storage_errors
from sandkeepd.providers.common.views import shown, writable
from sandkeepd.providers.gvisor import open_files, runsc, start
from sandkeepd.providers.gvisor import plan as gvisor_plan
from sandkeepd.providers.gvisor.instance import GvisorInstance
from sandkeepd.providers.gvisor.plan import Plan
from sandkeepd.providers.gvisor.saves import Saves, require_savable
from sandkeepd.providers.gvisor.start import SHARED, Job

if TYPE_CHECKING:
    from sandkeepd.providers.gvisor.provider import GvisorProvider

_CONTROL: Final = ".control"


class GvisorCheckpoints(Checkpointing):
    """Makes checkpoints of the sandboxes of a provider, and sandboxes of checkpoints."""

    def __init__(self, provider: "GvisorProvider", saves: Saves) -> None:
        self._provider = provider
        self._saves = saves

    def why_no_checkpoint(self, plan: Mapping[str, Any]) -> str | None:
        return gvisor_plan.why_not_saved(plan.get("network", "none"), rootless=plan.get("rootless", False))

    def plan_like(self, plan: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
        return {**plan, "cgroups": planned["cgroups"]}

    def facts(self) -> dict[str, str]:
        return {
            "runsc": runsc.version(),
            "machine": os.uname().machine,
            "cpu": runsc.cpu_features(),
        }

    def why_not_here(self, facts: Mapping[str, str]) -> str | None:
        here = self.facts()
        names = {
            "runsc": "it was made by runsc {}, and this machine has {}",
            "machine": "it was made on a {} machine, and this one is {}",
            "cpu": "it was made on a machine whose processor has other features ({}, here {})",
        }
        for name, template in names.items():
            if facts.get(name) != here[name]:
                return template.format(facts.get(name), here[name])
        return None

    async def checkpoint(
        self, sandbox_id: str, directory: str, process_ids: Collection[str], *, leave_running: bool
    ) -> CheckpointResult:
        instance = self._provider.instances.get(sandbox_id)
        if instance is None or instance.is_closed:
            raise StateError("not_ready", f"sandbox {sandbox_id} has ended", sandbox_id=sandbox_id)
        async with instance.turn:
            job = await self._saves.job_of(instance)
            keep = functools.partial(_write_checkpoint, job, directory, process_ids)
            if instance.is_suspended:
                await self._provider.in_thread(functools.partial(keep, stays=False))
                return CheckpointResult(pause_ms=None)
            began = trio.current_time()
            digests = await self._saves.save(instance, job, go_on=leave_running, digest=True)
            failpoints.reach("checkpoint.saved")
            try:
                await self._provider.in_thread(functools.partial(keep, stays=not leave_running))
            except BaseException:
                with suppress(OSError):
                    os.unlink(f"{directory}/{SHARED}")  # it may have used up the room
                with suppress(SandkeepError):  # else it stays suspended, which is seen
                    await self._saves.restore(instance, job)
                raise
            if leave_running:
                await self._saves.restore(instance, job)
                failpoints.reach("checkpoint.back")
            else:
                instance.suspended.set(True)
            paused = (trio.current_time() - began) * 1000 if leave_running else None
        return CheckpointResult(pause_ms=paused, digests=digests)

    async def discard(self, checkpoint_id: str) -> None:
        """See `Checkpointing.discard`. All of it is in its directory."""

    async def create_from_checkpoint(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plan: dict[str, Any], secrets: Collection[str],
        directory: str,
    ) -> GvisorInstance:  # fmt: skip
        decided = msgspec.convert(plan, Plan)
        require_savable(decided)
        job = await self._provider.job(sandbox_id, image_id, spec, sorted(secrets), decided)
        async with undo_on_error(self._provider.terminate, sandbox_id, plan, {}):
            await self._provider.in_thread(functools.partial(_unpack_checkpoint, job, directory, anew=True))
            failpoints.reach("gvisor.laid_out")
            started = await self._saves.start_saved(job)
            instance = self._provider.hold_started(job, image_id, started)
            await instance.remember_earlier()
        return instance

    async def restore_in_place(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plans: tuple[dict[str, Any], dict[str, Any]],
        handle: dict[str, Any], directory: str,
    ) -> GvisorInstance:  # fmt: skip
        """See `Checkpointing.restore_in_place`. The running state is saved before, and restored when the rest fails."""
        before = self._provider.instances.get(sandbox_id)
        secrets = handle.get("secrets", [])
        job = await self._provider.job(sandbox_id, image_id, spec, secrets, msgspec.convert(plans[1], Plan))
        async with self._put_aside(before, job):
            await self._provider.in_thread(functools.partial(_unpack_checkpoint, job, directory, anew=False))
            failpoints.reach("gvisor.laid_out")
            with trio.CancelScope(shield=True):
                started = await self._saves.start_saved(job)
            async with undo_on_error(self._hold_again, sandbox_id, before):
                instance = self._provider.hold_started(job, image_id, started)
                await instance.remember_earlier()
        if before is not None:
            await before.aclose()
        return instance

    async def _hold_again(self, sandbox_id: str, before: GvisorInstance | None) -> None:
        """Hold the earlier instance again, and release the one made in its place."""
        made = self._provider.instances.get(sandbox_id)
        if made is not None and made is not before:
            await made.aclose()
        if before is not None:
            self._provider.instances[sandbox_id] = before

    @asynccontextmanager
    async def _put_aside(self, before: GvisorInstance | None, job: Job) -> AsyncIterator[None]:
        """Save a sandbox and put its state aside for the length of a block, and let it go on if that fails."""
        if before is None or before.is_closed:
            await self._provider.in_thread(runsc.end, job.root)
            await self._provider.in_thread(start.make_empty_aside, job)
            yield
            return
        async with before.turn:
            earlier = await self._saves.job_of(before)
            if not before.is_suspended:
                await self._saves.save(before, earlier, go_on=True)
            was_suspended = before.is_suspended
            async with undo_on_error(functools.partial(self._undo_aside, before, earlier, go_on=not was_suspended)):
                await self._provider.in_thread(start.put_aside, earlier)
                failpoints.reach("gvisor.aside")
                yield

    async def _undo_aside(self, before: GvisorInstance, job: Job, *, go_on: bool) -> None:
        """Return a sandbox to its earlier state. When that fails, it has ended, and that state stays aside."""
        try:
            await self._provider.in_thread(start.put_back, job)
            before.listen_anew()
        except (SandkeepError, OSError, NotAFileError) as error:
            message = f"its earlier state could not be restored: {error}"
            await before.went(before.ending or Ending(kind="failed", message=message))
            return
        if go_on:
            with suppress(SandkeepError):  # else it stays suspended, which is seen
                await self._saves.restore(before, job)

    async def rename(self, sandbox_id: str, process_id: str, new: str) -> None:
        await self._provider.instances[sandbox_id].rename(process_id, new)


# Content of a checkpoint


def _write_checkpoint(job: Job, directory: str, process_ids: Collection[str], *, stays: bool) -> None:
    """Put the saved state, and the shared files with it, into an empty directory. With `stays`, the saved state is all
    that is left of the sandbox, and is fsynced. Raises `storage_unavailable`.
    """
    with storage_errors("the checkpoint"):
        for name in start.saved_files(job.saved):
            os.chmod(f"{job.saved}/{name}", 0o600)
            _link(f"{job.saved}/{name}", f"{directory}/{name}")
        _pack_shared(job.directory, f"{directory}/{SHARED}", _journals_to_pack(job, process_ids))
        if stays:
            start.sync_saved(job)  # last, as the disk is writing meanwhile


def _link(source: str, target: str) -> None:
    """Hard-link a file that is never changed, or copy it."""
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copyfile(source, target)
        os.chmod(target, 0o600)


def _journals_to_pack(job: Job, process_ids: Collection[str]) -> list[str]:
    """Return the journals to pack: those of the processes on record, and those that any process in the sandbox had
    open.
    """
    there = {f"out/p/{name}" for name in _files_in(job.files, "out/p")}
    opened = open_files.load_names(job.saved)
    if opened is None:
        return sorted(there)
    own = (f"out/p/{process_id}.{end}" for process_id in process_ids for end in ("stdout", "stderr"))
    return sorted(there.intersection(opened) | there.intersection(own))


def _files_in(files: HostileTree, path: str) -> list[str]:
    """Return the names of the regular files in a directory. Raises OSError."""
    with files.directory(path, flags=os.O_RDONLY) as directory, os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]


def _pack_shared(directory: str, target: str, journals: Collection[str]) -> None:
    requests = [f"in/{name}" for name in sorted(os.listdir(f"{directory}/in")) if name != _CONTROL]
    names = [*requests, "out/exits", *journals]
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    listed = f"{target}.names"  # there can be more than an argument list may hold
    try:
        with open(listed, "wb") as file:
            file.writelines(os.fsencode(name) + b"\0" for name in names)
        argv = ["-c", "-S", "--no-recursion", "--numeric-owner", "-f", target]
        with shown(directory, above=directory) as opened:
            _tar([*argv, "--null", "--verbatim-files-from", "-T", listed], opened)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(listed)


def _tar(argv: Sequence[str], directory: int) -> None:
    done = run_tool(["tar", "-C", f"/proc/self/fd/{directory}/.", *argv], descriptors=[directory])
    if done.returncode:
        message = f"the checkpoint cannot be written or read: {stderr_of(done)}"
        raise DaemonError("storage_unavailable", message)


def _unpack_checkpoint(job: Job, directory: str, *, anew: bool) -> None:
    """Put the files of a checkpoint into a sandbox's directories. Unless `anew`, the files that the sandbox has written
    stay.
    """
    with storage_errors():
        start.claim(job)
        os.makedirs(job.directory, mode=0o700, exist_ok=True)
        keep = [] if anew else ["--skip-old-files"]
        if not anew:
            with suppress(FileNotFoundError):
                os.unlink(f"{job.directory}/out/exits")
        _make_shared_directories(job.directory)
        shared = f"{directory}/{SHARED}"
        argv = ["-x", "-S", "-p", *keep, "--numeric-owner", "-f", shared]
        with writable(job.directory) as opened:
            _tar(argv, opened)
        start.make_directories(job)
        start.remove_directory(f"{job.bundle}/saved")
        os.mkdir(f"{job.bundle}/saved", 0o700)
        for name in start.saved_files(directory):
            _link(f"{directory}/{name}", f"{job.saved}/{name}")


def _make_shared_directories(directory: str) -> None:
    for name in ("in", "out", "out/p"):
        os.makedirs(f"{directory}/{name}", 0o755, exist_ok=True)
