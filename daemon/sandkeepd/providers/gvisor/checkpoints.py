"""Suspending gVisor sandboxes, and checkpoints of them: memory, processes and files.

To save a sandbox ends what runs of it; to bring it back is a container of another name with the same inside. What is
saved is in two files, for whoever is to bring it back elsewhere, or later: what `runsc` wrote, and a tar of what the
sandbox shares with the daemon: its requests' files, its answers, and those journals that anything in it has open.
"""

import functools
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar, TypeVarTuple

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import DaemonError, ProviderError, SandkeepError, SetupError, StateError
from sandkeep.model import Isolation, SandboxSpec
from sandkeep_store.threads import Threads
from sandkeepd.contract.checkpoints import Checkpointed
from sandkeepd.contract.instance import Ending
from sandkeepd.host.hostile_files import HostileTree, NotAFileError
from sandkeepd.host.processes import Identity, has_ended, in_fresh_thread, kill_and_wait, run_tool, wait_ended
from sandkeepd.providers.common.views import shown, writable
from sandkeepd.providers.gvisor import open_files, runsc, start
from sandkeepd.providers.gvisor import plan as gvisor_plan
from sandkeepd.providers.gvisor.instance import GvisorInstance
from sandkeepd.providers.gvisor.plan import Plan
from sandkeepd.providers.gvisor.start import IMAGE, SHARED, Job, Started

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ENDING_S: Final = 10.0
"""How long what was saved may take to be gone."""

_CONTROL: Final = ".control"


class GvisorCheckpoints(ABC):
    """The part of the gVisor provider that does this."""

    _instances: dict[str, GvisorInstance]
    _in_thread: Threads
    _starts: Threads
    _nursery: trio.Nursery

    @abstractmethod
    def _hold(self, instance: GvisorInstance, container: str, first: Identity) -> None:
        """Hold what runs of it from now on."""

    @abstractmethod
    async def _job(self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Sequence[str], plan: Plan) -> Job:
        """What it takes to start it."""

    async def _job_of(self, instance: GvisorInstance) -> Job:
        secrets = instance.handle.get("secrets", [])
        return await self._job(instance.sandbox_id, instance.image_id, instance.spec, secrets, instance.plan)

    # Suspending

    async def suspend(self, instance: GvisorInstance) -> None:
        """See `Pausing.suspend`: it is saved, and ends."""
        async with instance.turn:
            if not instance.is_suspended:
                await self._save(instance, await self._job_of(instance), go_on=False)
                instance.set_suspended(True)

    async def resume(self, instance: GvisorInstance) -> None:
        """See `Pausing.resume`: it is brought back."""
        async with instance.turn:
            if instance.is_suspended:
                await self._bring_back(instance, await self._job_of(instance))

    async def _save(
        self, instance: GvisorInstance, job: Job, *, go_on: bool, digest: bool = False
    ) -> dict[str, tuple[str, int]]:
        """Have it saved; answer the digests that are asked for. It stands still then; when that fails, it runs, or it
        has ended.
        """
        require_savable(instance.plan)
        await instance.without_helpers()
        await instance.without_viewers()
        instance.stand()
        pidfd, container = os.dup(instance.pidfd), instance.container
        instance.let_go_of_process()
        try:
            with trio.CancelScope(shield=True):
                work = functools.partial(start.save, job, container, go_on=go_on, digest=digest)
                found = await self._in_thread(work)
        except SandkeepError:
            os.close(pidfd)
            await self._after_failure(instance, job)
            raise
        except BaseException:
            os.close(pidfd)
            raise
        if instance.plan.limits.memory_bytes is None:
            self._nursery.start_soon(_see_gone, pidfd, job.root, container)
        else:
            await _see_gone(pidfd, job.root, container)  # what is brought back is to have its memory
        return {} if found is None else {IMAGE: found}

    async def _after_failure(self, instance: GvisorInstance, job: Job) -> None:
        """What could not be saved goes on: it runs still, or was saved although there was an error."""
        await self._in_thread(start.end_saved, job)
        found = await self._in_thread(runsc.running, job.bundle)
        if found is not None and self._is_held(instance, *found):
            instance.go()
        elif await self._in_thread(start.recover_saved, job.bundle):
            with suppress(SandkeepError):  # else it stands still, which is seen
                await self._bring_back(instance, job)
        else:
            words = "its kernel ended while it was being saved"
            await instance.went(instance.ending or Ending(kind="failed", message=words))

    def _is_held(self, instance: GvisorInstance, container: str, first: Identity) -> bool:
        """Hold what runs of it, if it does not end at this instant."""
        try:
            self._hold(instance, container, first)
        except ProviderError:
            return False
        return True

    async def _bring_back(self, instance: GvisorInstance, job: Job) -> None:
        """Have it run again. When that fails, it is suspended if it is saved still, and else it has ended."""
        with trio.CancelScope(shield=True):
            try:
                started = await self._start_saved(job)
                self._hold(instance, started.container, started.first)
            except BaseException as error:
                if await self._in_thread(start.recover_saved, job.bundle):
                    await self._in_thread(start.stay, job)
                    instance.set_suspended(True)
                else:
                    words = f"it could not be brought back: {error}"
                    await instance.went(instance.ending or Ending(kind="failed", message=words))
                raise
            instance.go()
            instance.set_suspended(False)

    async def _start_saved(self, job: Job) -> Started:
        work = functools.partial(start.start, job, restore=True)
        return await self._starts(in_fresh_thread, work)

    # Checkpoints

    def why_no_checkpoint(self, plan: Mapping[str, Any]) -> str | None:
        """See `Checkpointing.why_no_checkpoint`."""
        return gvisor_plan.why_not_saved(plan.get("network", "none"), rootless=plan.get("rootless", False))

    def plan_like(self, plan: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
        """See `Checkpointing.plan_like`."""
        return {**plan, "cgroups": planned["cgroups"]}

    def facts(self) -> dict[str, str]:
        """See `Checkpointing.facts`."""
        return {
            "runsc": runsc.version(),
            "machine": os.uname().machine,
            "cpu": runsc.cpu_features(),
        }

    def why_not_here(self, facts: Mapping[str, str]) -> str | None:
        """See `Checkpointing.why_not_here`."""
        here = self.facts()
        names = {
            "runsc": "it was made by runsc {}, and this machine has {}",
            "machine": "it was made on a {} machine, and this one is {}",
            "cpu": "it was made on a machine whose processor has other features ({}, here {})",
        }
        for name, words in names.items():
            if facts.get(name) != here[name]:
                return words.format(facts.get(name), here[name])
        return None

    async def checkpoint(
        self, sandbox_id: str, directory: str, process_ids: Collection[str], *, leave_running: bool
    ) -> Checkpointed:
        """See `Checkpointing.checkpoint`."""
        instance = self._instances.get(sandbox_id)
        if instance is None or instance.is_closed:
            raise StateError("not_ready", f"sandbox {sandbox_id} has ended", sandbox_id=sandbox_id)
        async with instance.turn:
            job = await self._job_of(instance)
            keep = functools.partial(_keep, job, directory, process_ids)
            if instance.is_suspended:
                await self._in_thread(functools.partial(keep, stays=False))
                return Checkpointed(pause_ms=None)
            began = trio.current_time()
            digests = await self._save(instance, job, go_on=leave_running, digest=True)
            failpoints.reach("checkpoint.saved")
            try:
                await self._in_thread(functools.partial(keep, stays=not leave_running))
            except BaseException:
                with suppress(OSError):
                    os.unlink(f"{directory}/{SHARED}")  # it may be what left no room
                with suppress(SandkeepError):  # else it stands still, which is seen
                    await self._bring_back(instance, job)
                raise
            if leave_running:
                await self._bring_back(instance, job)
                failpoints.reach("checkpoint.back")
            else:
                instance.set_suspended(True)
            paused = (trio.current_time() - began) * 1000 if leave_running else None
        return Checkpointed(pause_ms=paused, digests=digests)

    async def create_saved(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plan: dict[str, Any], secrets: Collection[str],
        directory: str,
    ) -> GvisorInstance:  # fmt: skip
        """See `Checkpointing.create_saved`."""
        decided = msgspec.convert(plan, Plan)
        require_savable(decided)
        job = await self._job(sandbox_id, image_id, spec, sorted(secrets), decided)
        try:
            await self._in_thread(functools.partial(_lay_out, job, directory, anew=True))
            failpoints.reach("gvisor.laid_out")
            started = await self._start_saved(job)
            instance = self._made(job, image_id, started)
            await instance.remember_earlier()
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.terminate(sandbox_id, plan, {})
            raise
        return instance

    async def return_to(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plans: tuple[dict[str, Any], dict[str, Any]],
        handle: dict[str, Any], directory: str,
    ) -> GvisorInstance:  # fmt: skip
        """See `Checkpointing.return_to`. What runs is saved before, and brought back when the rest fails."""
        before = self._instances.get(sandbox_id)
        secrets = handle.get("secrets", [])
        job = await self._job(sandbox_id, image_id, spec, secrets, msgspec.convert(plans[1], Plan))
        async with self._put_aside(before, job):
            await self._in_thread(functools.partial(_lay_out, job, directory, anew=False))
            failpoints.reach("gvisor.laid_out")
            with trio.CancelScope(shield=True):
                started = await self._start_saved(job)
            try:
                instance = self._made(job, image_id, started)
                await instance.remember_earlier()
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._take_back(sandbox_id, before)
                raise
        if before is not None:
            await before.aclose()
        return instance

    async def _take_back(self, sandbox_id: str, before: GvisorInstance | None) -> None:
        """Hold again what was held before something else was made in its place, which is let go of."""
        made = self._instances.get(sandbox_id)
        if made is not None and made is not before:
            await made.aclose()
        if before is not None:
            self._instances[sandbox_id] = before

    @asynccontextmanager
    async def _put_aside(self, before: GvisorInstance | None, job: Job) -> AsyncIterator[None]:
        """Have what runs of a sandbox stand still for the length of a block, and go on if that fails."""
        if before is None or before.is_closed:
            await self._in_thread(runsc.end, job.root)
            await self._in_thread(start.put_nothing_aside, job)
            yield
            return
        async with before.turn:
            earlier = await self._job_of(before)
            if not before.is_suspended:
                await self._save(before, earlier, go_on=True)
            was_suspended = before.is_suspended
            try:
                await self._in_thread(start.put_aside, earlier)
                failpoints.reach("gvisor.aside")
                yield
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._undo_aside(before, earlier, go_on=not was_suspended)
                raise

    async def _undo_aside(self, before: GvisorInstance, job: Job, *, go_on: bool) -> None:
        """Have a sandbox be what it was. When that fails, it has ended, and what it was stays aside."""
        try:
            await self._in_thread(start.put_back, job)
            before.put_back()
        except (SandkeepError, OSError, NotAFileError) as error:
            words = f"it could not be put back: {error}"
            await before.went(before.ending or Ending(kind="failed", message=words))
            return
        if go_on:
            with suppress(SandkeepError):  # else it stands still, which is seen
                await self._bring_back(before, job)

    def replaced(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """See `Replacing.replaced`."""
        words = "gVisor sandboxes are brought back whole, from checkpoints: restore the snapshot into a new sandbox"
        raise SetupError("not_supported", words)

    async def replace_files(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str],
        plans: tuple[dict[str, Any], dict[str, Any]], handle: dict[str, Any],
    ) -> GvisorInstance:  # fmt: skip
        """See `Replacing.replace_files`."""
        raise SetupError("not_supported", str(self.replaced(plans[0], {})))

    async def put_back(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> bool:
        """See `Replacing.put_back`. What is put back is brought back by `adopt`."""
        self._instances.pop(sandbox_id, None)  # whoever had it has closed it
        decided = msgspec.convert(plan, Plan)
        job = await self._job(sandbox_id, handle["image_id"], SandboxSpec(), handle.get("secrets", []), decided)
        return await self._in_thread(start.put_back, job)

    async def drop_replaced(self, sandbox_id: str) -> None:
        """See `Replacing.drop_replaced`."""
        await self._in_thread(start.drop_aside, self.bundle(sandbox_id))

    @abstractmethod
    def bundle(self, sandbox_id: str) -> str:
        """The directory of a sandbox's bundle."""

    async def rename(self, sandbox_id: str, process_id: str, new: str) -> None:
        """See `Checkpointing.rename`."""
        await self._instances[sandbox_id].rename(process_id, new)

    @abstractmethod
    def _made(self, job: Job, image_id: str, started: Started) -> GvisorInstance:
        """Hold what was started."""

    @abstractmethod
    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """See `Provider.terminate`."""

    @abstractmethod
    def _isolation(self, plan: Plan, started: Started) -> Isolation:
        """What it got."""


def require_savable(plan: Plan) -> None:
    """Raise `not_supported` for what `runsc` cannot save."""
    why = gvisor_plan.why_not_saved(plan.network, rootless=plan.rootless)
    if why is not None:
        raise SetupError("not_supported", why)


async def _see_gone(pidfd: int, root: str, container: str) -> None:
    """What was saved is ending, and is forgotten then; a `runsc` that hangs is not waited for."""
    try:
        with trio.move_on_after(ENDING_S):
            await wait_ended(pidfd)
        if not has_ended(pidfd):
            await trio.to_thread.run_sync(kill_and_wait, pidfd, abandon_on_cancel=True)
        await trio.to_thread.run_sync(runsc.forget, root, container)
    finally:
        trio.lowlevel.notify_closing(pidfd)
        os.close(pidfd)


# What is kept


def _keep(job: Job, directory: str, process_ids: Collection[str], *, stays: bool) -> None:
    """Put what was saved, and what goes with it, into an empty directory. Where what was saved `stays`, as it is what
    there is of the sandbox from now on, it is on the disk then. Raises `storage_unavailable`.
    """
    try:
        for name in start.saved_files(job.saved):
            os.chmod(f"{job.saved}/{name}", 0o600)
            _link(f"{job.saved}/{name}", f"{directory}/{name}")
        _pack_shared(job.directory, f"{directory}/{SHARED}", _needed(job, process_ids))
        if stays:
            start.have_written(job)  # last, as the disk is writing meanwhile
    except OSError as error:
        words = f"the checkpoint cannot be written: {error.strerror}: make room there"
        raise DaemonError("storage_unavailable", words) from None


def _link(source: str, target: str) -> None:
    """Have a file that nobody changes also there."""
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copyfile(source, target)
        os.chmod(target, 0o600)


def _needed(job: Job, process_ids: Collection[str]) -> list[str]:
    """The journals to be packed: those of the processes on record, and those that anything in the sandbox had open."""
    there = {f"out/p/{name}" for name in _files_in(job.files, "out/p")}
    opened = open_files.kept(job.saved)
    if opened is None:
        return sorted(there)
    own = (f"out/p/{process_id}.{end}" for process_id in process_ids for end in ("stdout", "stderr"))
    return sorted(there.intersection(opened) | there.intersection(own))


def _files_in(files: HostileTree, path: str) -> list[str]:
    """The names of the regular files in a directory. Raises OSError."""
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
        said = done.stderr.decode(errors="replace").strip()[:300]
        raise DaemonError("storage_unavailable", f"the checkpoint cannot be written or read: {said}")


def _lay_out(job: Job, directory: str, *, anew: bool) -> None:
    """Put what a checkpoint holds where a sandbox has it. What a sandbox that is not `anew` has written stays."""
    try:
        start.claim(job)
        os.makedirs(job.directory, mode=0o700, exist_ok=True)
        keep = [] if anew else ["--skip-old-files"]
        if not anew:
            with suppress(FileNotFoundError):
                os.unlink(f"{job.directory}/out/exits")
        _make_places(job.directory)
        shared = f"{directory}/{SHARED}"
        argv = ["-x", "-S", "-p", *keep, "--numeric-owner", "-f", shared]
        with writable(job.directory) as opened:
            _tar(argv, opened)
        start.make_directories(job)
        start.drop(f"{job.bundle}/saved")
        os.mkdir(f"{job.bundle}/saved", 0o700)
        for name in start.saved_files(directory):
            _link(f"{directory}/{name}", f"{job.saved}/{name}")
    except OSError as error:
        words = f"the state directory cannot be written: {error.strerror}: make room there"
        raise DaemonError("storage_unavailable", words) from None


def _make_places(directory: str) -> None:
    for name in ("in", "out", "out/p"):
        os.makedirs(f"{directory}/{name}", 0o755, exist_ok=True)
