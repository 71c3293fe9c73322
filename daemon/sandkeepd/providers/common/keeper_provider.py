"""The common part of all providers whose sandboxes have a keeper: holding sandboxes, following them, and reading their
remains.

A sandbox is held by a pidfd of its first process: when that ends, the sandbox has ended, for any reason. Its output
lies in `out` in a directory of its own on the host, where it can be read also without the sandbox.
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import trio
from msgspec.structs import replace

from sandkeep.errors import ProviderError
from sandkeep.model import Capability, Network, ProviderCapabilities
from sandkeep_store.threads import Threads, in_thread
from sandkeepd.contract.instance import Ending
from sandkeepd.contract.processes import Chunk, Dropped, Exit
from sandkeepd.contract.provider import Parts
from sandkeepd.host.fairness import yield_to_loop
from sandkeepd.host.hostile_files import HostileRoot, HostileTree, NotAFileError
from sandkeepd.host.processes import Identity, keep_descriptors_private, open_process, reap, wait_ended
from sandkeepd.host.threads import in_removal_thread
from sandkeepd.keeper import journal, journal_trimming, pty, requests
from sandkeepd.keeper.client import KeeperInstance
from sandkeepd.keeper.processes import last_exits
from sandkeepd.keeper.shared_directory import LEAST_FULL_BYTES
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.disk_watch import DiskWatch
from sandkeepd.providers.common.layout import Layout

logger = logging.getLogger("sandkeepd")

SWEEP_PERIOD_S: Final = 20.0
"""Seconds between polls of the keepers for exits that were not reported."""

END_REPORT_S: Final = 5.0
"""Seconds that the end of a killed sandbox may take to be noticed."""


class Removal:
    """The removal of a sandbox's files, while it runs and until somebody has been told that it failed."""

    def __init__(self) -> None:
        self.is_over = trio.Event()
        self.error: Exception | None = None


class HeldInstance(KeeperInstance):
    """A sandbox that has a keeper, and is held by a provider."""

    pidfd: int
    """The sandbox's first process."""
    child: int | None = None
    """The process to be reaped when the sandbox has ended, if this daemon started it."""
    ending: Ending | None = None
    """Its end, if the code that ended it has given a reason."""
    scope: trio.CancelScope
    """Cancels the task that waits for its end."""
    disk_bytes: int | None = None
    """Limit on its disk usage in bytes, if that is measured."""
    occupied_bytes: int | None = None
    """The result of the last measurement of that."""
    own_disk_bytes: int | None = None
    """The size of its own disk, if it has one."""
    first_pid: int | None = None
    """The sandbox's first process, its keeper, in this machine's numbers."""
    disks: DiskWatch | None = None
    """The watch that measures that; None if only the limit of its journals is measured."""
    measured_at: float = 0.0
    """By Trio's clock, the beginning of the last measurement."""
    measure_s: float = 0.0
    """Seconds that it took."""
    written_before: int = 0
    """Bytes that its ended processes had written then."""
    look_after: float = 0.0
    """By Trio's clock, the earliest time of the next measurement."""
    most_written: float = 0.0
    """Bytes at which it was suspended last. When resumed it may run, to remove files, until it has written more."""

    async def rename(self, process_id: str, new: str) -> None:
        """Give a process another id, inside too. Its input is linked under both names: inside it cannot be renamed."""
        with (
            suppress(FileNotFoundError, FileExistsError),
            self._shared.files.directory("in", writable=True) as directory,
        ):
            os.link(f"{process_id}.stdin", f"{new}.stdin", src_dir_fd=directory, dst_dir_fd=directory)
        await self._channel.send(requests.rename(process_id, new))

    def disk_usage(self) -> tuple[int | None, int | None]:
        found = self._shared.statvfs()
        if self.own_disk_bytes is None:
            return self.occupied_bytes, self.disk_bytes
        if found is None:
            return None, self.own_disk_bytes
        return max(0, self.own_disk_bytes - found.f_bavail * found.f_frsize), self.own_disk_bytes

    @cached_property
    def measuring(self) -> trio.Lock:
        """Held while its disk usage is being measured."""
        return trio.Lock()

    def disk_is_full(self) -> bool:
        if self.own_disk_bytes is not None:
            return super().disk_is_full()
        used, limit = self.disk_usage()
        return used is not None and limit is not None and used + LEAST_FULL_BYTES > limit

    async def measure_disk(self) -> None:
        if self.disks is not None:
            await self.disks.look(self)

    def measure_anew(self) -> None:
        """Request that its disk usage is measured in the next round, against a changed limit."""
        self.look_after = self.most_written = 0.0

    def release_process(self) -> None:
        """Stop waiting for the sandbox's end, and release its first process. Must be done once."""
        self.scope.cancel()
        trio.lowlevel.notify_closing(self.pidfd)
        os.close(self.pidfd)

    async def aclose(self) -> None:
        if not self.is_closed:
            self.release_process()
        await super().aclose()


def _limit_terminals(pid: int) -> None:
    if os.geteuid() != 0:  # a user's daemon cannot, from outside
        return
    try:
        pty.limit_terminals(pid)
    except OSError as error:
        logger.warning("the terminals of a sandbox could not be limited: %s", error)


InstanceT = TypeVar("InstanceT", bound=HeldInstance)
ProviderT = TypeVar("ProviderT", bound="KeeperProvider[Any]")


class KeeperProvider(Parts, ABC, Generic[InstanceT]):
    """The part of a `Provider` that is the same for all that have keepers.

    A subclass determines why a sandbox ended if no reason was given; a provider's other capabilities are passed to it
    as parts. Its objects lie in `layout` and carry `log_id`. It needs the tasks that `running` starts.
    """

    longest_lifetime_s: float | None = None

    def __init__(
        self, state_dir: str, log_id: str, watcher: Watcher, nursery: trio.Nursery, *, threads: int = 16
    ) -> None:
        self.layout = Layout(state_dir)
        self.log_id = log_id
        self.in_thread = Threads(threads)
        self._watcher = watcher
        self.nursery = nursery
        self.instances: dict[str, InstanceT] = {}
        self._hostile_roots: dict[str, HostileRoot] = {}
        self._removals: dict[str, Removal] = {}
        self.disks = DiskWatch(self.instances, self._occupied_bytes)

    @abstractmethod
    async def _why_ended(self, instance: InstanceT) -> Ending:
        """Return the reason for the end of a sandbox that this daemon did not end."""

    def _occupied_bytes(self, instance: InstanceT) -> int:
        """Return the bytes that a sandbox with a disk limit has on the disk. Blocks."""
        return 0

    def default_network(self) -> Network:
        return "none"

    def default_memory(self) -> int | None:
        return None

    def default_lifetime(self) -> float | None:
        return None

    def _with_watches(self, found: ProviderCapabilities) -> ProviderCapabilities:
        """Add the capability to watch files, which are polled if the kernel gives out no watches."""
        watches = Capability(works=self._watcher.problem is None, why=self._watcher.problem)
        return replace(found, features={**found.features, "file_watches": watches})

    # Holding

    def _hold_first(self, first: Identity, make: Callable[[], InstanceT]) -> InstanceT | None:
        """Hold the sandbox whose first process is `first`, as the instance that `make` makes, until it is released.

        Returns None when it has ended, or has made its answers unreadable.
        """
        pidfd = open_process(first)
        if pidfd is None:
            return None
        try:
            instance = make()
        except BaseException as error:
            os.close(pidfd)
            if isinstance(error, (FileNotFoundError, PermissionError, NotADirectoryError, NotAFileError)):
                return None
            raise
        _limit_terminals(first.pid)  # of a new sandbox no code runs yet
        instance.pidfd, instance.scope = pidfd, trio.CancelScope()
        instance.first_pid, instance.disks = first.pid, self.disks
        self.instances[instance.sandbox_id] = instance
        self.nursery.start_soon(self._watch_end, instance)
        return instance

    async def _hold_earlier(self, hold: Callable[[], InstanceT | None]) -> InstanceT | None:
        """Hold a sandbox of an earlier daemon, with the exits reported to that one. Returns None when it is gone.

        Raises `provider_unavailable` when it cannot be examined, which leaves open if it is gone.
        """
        try:
            instance = hold()
            if instance is None:
                return None
            try:
                await instance.remember_earlier()
            except BaseException:
                await self._release(instance)
                raise
        except OSError as error:
            raise ProviderError("provider_unavailable", f"its state cannot be read: {error.strerror}") from error
        return instance

    async def _watch_end(self, instance: InstanceT) -> None:
        with instance.scope:
            await trio.lowlevel.checkpoint()  # it may have been closed already
            await wait_ended(instance.pidfd)
            await yield_to_loop()
            if instance.child is not None:
                await in_thread(reap, instance.child)
            await instance.went(instance.ending or await self._why_ended(instance))

    async def _release(self, instance: InstanceT) -> None:
        """Release it. The sandbox goes on, if it was not ended."""
        with trio.CancelScope(shield=True):
            await instance.aclose()
        if self.instances.get(instance.sandbox_id) is instance:
            del self.instances[instance.sandbox_id]

    def _mark_terminated(self, sandbox_id: str) -> None:
        """Note that a sandbox, if it is held, ends because it is terminated."""
        instance = self.instances.get(sandbox_id)
        if instance is not None:
            instance.ending = instance.ending or Ending(kind="failed", message="it was terminated")

    async def await_end(self, sandbox_id: str) -> None:
        """Wait until the end of a killed sandbox, if it is held, has been delivered to those waiting for it, and
        release it.
        """
        instance = self.instances.get(sandbox_id)
        if instance is None:
            return
        with trio.move_on_after(END_REPORT_S):  # a closed instance never reports its end
            await instance.ended()
        await self._release(instance)

    async def aclose(self) -> None:
        async with trio.open_nursery() as closing:  # at once: one whose node hangs delays no other
            for instance in list(self.instances.values()):
                closing.start_soon(instance.aclose)
        self.instances.clear()

    async def sweep(self) -> None:
        """Poll all keepers for exits that were not reported. Runs until cancelled."""
        while True:
            await trio.sleep(SWEEP_PERIOD_S)
            for instance in list(self.instances.values()):
                instance.sweep()
                await trio.lowlevel.checkpoint()

    def remove_files(self, sandbox_id: str, remove: Callable[[], None]) -> None:
        """Begin to remove the files of a sandbox by a blocking function, unless that is under way. Only the end of the
        provider cuts it off; the next daemon removes the rest. See `cleared`.
        """
        earlier = self._removals.get(sandbox_id)
        if earlier is None or earlier.is_over.is_set():
            self._removals[sandbox_id] = removal = Removal()
            self.nursery.start_soon(self._remove_files, sandbox_id, remove, removal)

    async def _remove_files(self, sandbox_id: str, remove: Callable[[], None], removal: Removal) -> None:
        stopped = "the daemon stops; the next one removes the rest of the files"
        removal.error = ProviderError("provider_unavailable", stopped)
        try:
            await in_removal_thread(remove)
            self._release_disk(sandbox_id)
            del self._removals[sandbox_id]
            removal.error = None
        except Exception as error:  # noqa: BLE001  # also for those who wait
            logger.warning("files cannot be removed", extra={"of": sandbox_id, "why": str(error)})
            removal.error = error
        finally:
            removal.is_over.set()

    async def cleared(self, sandbox_id: str) -> None:
        """See `Provider.cleared`."""
        removal = self._removals.get(sandbox_id)
        if removal is None:
            return
        await removal.is_over.wait()
        if self._removals.get(sandbox_id) is removal:
            del self._removals[sandbox_id]
        if removal.error is not None:
            raise removal.error

    async def discard(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        """Terminate a sandbox that no event owns, or is not complete, and wait until nothing is left of it."""
        await self.terminate(sandbox_id, plan, {})
        await self.cleared(sandbox_id)

    @abstractmethod
    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """See `Provider.terminate`. The removal of files, which may be many, is for `remove_files`."""

    # Output

    async def forget(self, sandbox_ids: Sequence[str]) -> None:
        await in_removal_thread(self.layout.discard, [self.layout.sandbox(sandbox_id) for sandbox_id in sandbox_ids])

    def files(self, sandbox_id: str) -> HostileTree:
        """Return the directory of a sandbox, as a tree in which its code may own files. Raises OSError."""
        root, name = os.path.split(self.layout.sandbox(sandbox_id))
        if self.layout.has_disk(sandbox_id):  # a mount of its own, which that of the directory above does not show
            root, name = f"{root}/{name}", "."
        return self._hostile_roots.setdefault(root, HostileRoot(root)).tree(name)

    def _release_disk(self, sandbox_id: str) -> None:
        """Stop using a sandbox's disk, if it had one, which was removed."""
        root = self._hostile_roots.pop(self.layout.sandbox(sandbox_id), None)
        if root is not None:
            above = self.layout.sandboxes
            root.release(self._hostile_roots.setdefault(above, HostileRoot(above)), sandbox_id)

    def _out(self, sandbox_id: str) -> HostileTree:
        return self.files(sandbox_id).below("out")

    def last_exits(self, sandbox_id: str, process_ids: Sequence[str]) -> dict[str, Exit]:
        return last_exits(self._out(sandbox_id), process_ids)

    def read_ended(self, sandbox_id: str, process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
        return journal.read_journal(self._out(sandbox_id), process_id, stream, offset, max_bytes)

    def trim_output(self, sandbox_id: str, running: Collection[str], most_bytes: int) -> Dropped:
        return journal_trimming.trim(self._out(sandbox_id), running, most_bytes)

    def drop_output(self, sandbox_id: str, process_ids: Collection[str]) -> None:
        journal_trimming.drop(self._out(sandbox_id), process_ids)

    def open_journal(self, sandbox_id: str, process_id: str, stream: str, uid: int) -> int:
        return journal.open_for_caller(self._out(sandbox_id), process_id, stream, uid)


@asynccontextmanager
async def running(make: Callable[[Watcher, trio.Nursery], ProviderT]) -> AsyncIterator[ProviderT]:
    """Run the provider that `make` makes, with its background tasks, for the length of a block. Its sandboxes outlive
    it. Further tasks can be started in its `nursery`.
    """
    keep_descriptors_private()
    with Watcher() as watcher:
        async with trio.open_nursery() as nursery:
            provider = make(watcher, nursery)
            nursery.start_soon(watcher.run)
            nursery.start_soon(provider.sweep)
            nursery.start_soon(provider.disks.run)
            try:
                yield provider
            finally:
                with trio.CancelScope(shield=True):
                    await provider.aclose()
                nursery.cancel_scope.cancel()
