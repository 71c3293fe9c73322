"""A sandbox elsewhere as the daemon holds it: an `Instance` over the mirror of its keeper's directories."""

import logging
import random
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeAlias

import trio

from sandkeep.errors import ProviderError, SandkeepError
from sandkeep.system.backoff import pauses
from sandkeepd.contract.processes import Launch
from sandkeepd.host.hostile_files import HostileTree
from sandkeepd.keeper.channel import REQUEST_DEADLINE_S
from sandkeepd.keeper.pause import Pause
from sandkeepd.keeper.pipes import Piped
from sandkeepd.keeper.relay import Relay
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.keeper_provider import HeldInstance
from sandkeepd.providers.common.piped import run_piped
from sandkeepd.providers.common.remote import BrokenExecError, Remote, RemoteStream, UnansweredError
from sandkeepd.providers.common.remote_viewers import RemoteViewers

logger = logging.getLogger("sandkeepd")

Ended: TypeAlias = tuple[int | None, bytes, bytes]
"""Exit code, stdout and stderr of a helper command."""

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
"""Pauses between attempts to open a broken channel again, if the service does not say otherwise."""

REOPENED_S: Final = 3.0
"""Seconds that a command waits for a broken channel, so that short interruptions are not noticed."""

OOM_COUNTS: Final = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Files with the kernel's count of a container's own group, as it sees them, in versions 2 and 1."""

MEASURED_S: Final = 5.0
"""Seconds that a sandbox may take to tell its count: the code inside can keep it from that."""

RELAY_ENDS_S: Final = 5.0
"""Seconds that the sandbox's end of a channel may take to end when the channel is closed."""

_OOM_KILLS: Final = re.compile(rb"^oom_kill (\d{1,15})$", re.MULTILINE)


class _Outage:
    """Why a channel is down, and the launches that wait for an answer by it."""

    def __init__(self) -> None:
        self.why: str | None = None
        self.launches = set[trio.CancelScope]()

    @contextmanager
    def ending(self) -> Iterator[trio.CancelScope]:
        """Cancel the block when the channel breaks and does not come back."""
        with trio.CancelScope() as scope:
            self.launches.add(scope)
            try:
                yield scope
            finally:
                self.launches.discard(scope)


class RelayedInstance(HeldInstance):
    """A sandbox behind a `Remote`. `connect` opens its channel, and opens it again whenever it breaks.

    `program` is the path of the keeper there, and `directory_there` the one that it serves.
    """

    # No instance may have 30 attributes: CPython shares the keys of smaller dictionaries only, which saves 1.3 KB each.

    def __init__(
        self, sandbox_id: str, directory: HostileTree, watcher: Watcher, *, remote: Remote, program: str,
        directory_there: str, relay: Relay,
        nursery: trio.Nursery, **more: Any,
    ) -> None:  # fmt: skip
        self.remote = remote
        self._serving = (program, "-r", directory_there)
        self.relay = relay
        self._outage = _Outage()
        self.suspended = Pause()
        """Unlike `pause`, it is off while the sandbox is saved for a moment only."""
        self._nursery = nursery
        self._open = trio.Event()
        self._open.set()
        self._connection = trio.CancelScope()
        self._disconnected = trio.Event()
        self._disconnected.set()
        self.broke = trio.Event()
        """Set when a connection has ended, or could not be opened; a new one after each."""
        self._waiting: int | None = None
        self._oom_kills: int | None = 0
        super().__init__(sandbox_id, directory, watcher, inside=directory_there, fed=True, **more)

    def _make_viewers(self) -> RemoteViewers:
        return RemoteViewers(self, self._channel, self._shared, self.remote, self._nursery)

    def never_started(self, process_id: str) -> bool:
        """See `Instance.never_started`. What is here is a copy, which the last journals may not have reached."""
        return False

    async def take_over(self) -> None:
        """End the viewers of an earlier daemon, whose terminals were its own, and what else hangs on its streams. What
        it knew of the sandbox's memory is asked for again; until then nothing is known.
        """
        self._oom_kills = None
        try:
            await self.measure_memory()
            await self._end_earlier()
        except Exception:  # nothing else depends on it
            logger.exception("viewers in %s may be left", self.remote.name)

    async def _end_earlier(self) -> None:
        assert isinstance(self._viewers, RemoteViewers)
        await self._viewers.end_earlier()

    @property
    def why_disconnected(self) -> str | None:
        """Why the channel is, or was, not open."""
        return self._outage.why

    @property
    def why_ended(self) -> str | None:
        """The reason for the sandbox's end, once that is known."""
        return self._ending.message if self._channel.gone.is_set() else None

    # The channel

    async def connect(self) -> None:
        """Keep the channel to the sandbox open, until cancelled."""
        waits = pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            await self._open.wait()
            begun, was_answered = trio.current_time(), True
            with trio.CancelScope() as self._connection:
                was_answered = await self._connect_once()
            if self._open.is_set():
                if trio.current_time() - begun > LONGEST_PAUSE_S or not was_answered:
                    waits = pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)
                if not was_answered:
                    await self.remote.recovered()
                pause_s = min(next(waits), self.remote.longest_pause_s())
                await trio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311  # other daemons wait, too

    async def _connect_once(self) -> bool:
        """Serve one connection; return False if the service did not answer."""
        self._disconnected = trio.Event()
        try:
            async with self.remote.channel(self._serving) as stream:
                try:
                    await self.relay.run(stream)
                    self._outage.why = stream.stderr.decode(errors="replace")[-300:] or "the channel was closed"
                finally:
                    with trio.move_on_after(RELAY_ENDS_S, shield=True):
                        await _end(stream)
        except SandkeepError as error:
            self._outage.why = error.message
            return not isinstance(error, UnansweredError)
        except Exception:  # whatever a sandbox sends must not end the daemon
            logger.exception("the channel to %s broke", self.remote.name)
            self._outage.why = "the daemon failed: see its log"
        finally:
            self._disconnected.set()
            if self._outage.launches:
                self._nursery.start_soon(self._give_up)
            self.broke.set()
            self.broke = trio.Event()
        return True

    async def launch(self, launch: Launch) -> int:
        """See `Instance.launch`, and `require_reachable`. If the channel breaks before the answer, and stays so,
        it fails, too, and the process, if it began, is ended once the sandbox can be reached.
        """
        await self.require_reachable()
        pid = 0
        with self._outage.ending() as scope:
            pid = await super().launch(launch)
        if scope.cancelled_caught:
            await self._launcher.withdraw(launch.process_id)
            raise self._unreachable(": whether the command began is not known; if it did, it is ended when that is")
        return pid

    async def _give_up(self) -> None:
        """Fail the launches that were under way when the channel broke, unless it comes back soon."""
        launches = list(self._outage.launches)
        try:
            await self.require_reachable()
        except ProviderError:
            for each in launches:
                each.cancel()

    async def run_command(self, command: Sequence[str], stdin: bytes | None = None, **more: Any) -> Ended:
        """See `Instance.run_command`, and `require_reachable`."""
        await self.require_reachable()
        return await super().run_command(command, stdin, **more)

    async def require_reachable(self) -> None:
        """See `Instance.require_reachable`."""
        if await self._has_channel(REOPENED_S, trio.Event()):
            return
        # One attempt that is under way may be slow, as everything on a busy machine.
        if not self._disconnected.is_set() and await self._has_channel(REQUEST_DEADLINE_S, self._disconnected):
            return
        raise self._unreachable()

    def _unreachable(self, more: str = "") -> ProviderError:
        message = f"{self.remote.name} cannot be reached: {self.why_disconnected or 'it does not answer'}{more}"
        return ProviderError("provider_unavailable", message, sandbox_id=self.sandbox_id)

    async def _has_channel(self, seconds: float, given_up: trio.Event) -> bool:
        """Wait until the channel is open, or `given_up`; return True if requests need not wait for it, or have to."""
        connected, gone = self.relay.connected, self._channel.gone
        if connected.is_set() or gone.is_set() or not self._open.is_set():
            return True
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for event in (connected, gone, given_up):
                    nursery.start_soon(_cancel_after, event, nursery.cancel_scope)
        return connected.is_set() or gone.is_set() or not self._open.is_set()

    def oom_kills(self) -> int | None:
        """See `Instance.oom_kills`. A new container has had none, so that it need not be asked before it runs any."""
        return self._oom_kills

    async def measure_memory(self) -> None:
        """See `Instance.measure_memory`."""
        found = None
        with trio.move_on_after(MEASURED_S), suppress(SandkeepError):
            _, said, _ = await self.run_command(["cat", *OOM_COUNTS])
            found = _OOM_KILLS.search(said)
        self._oom_kills = int(found[1]) if found is not None else None

    def sweep(self) -> None:
        """See `KeeperInstance.sweep`. A relay in the sandbox that takes nothing any more, as when the code inside has
        stopped it, is displaced by that of a new connection.
        """
        waiting = self.relay.first_unconfirmed
        if waiting is not None and waiting == self._waiting:
            self._connection.cancel()
        self._waiting = waiting
        super().sweep()

    @asynccontextmanager
    async def disconnected(self) -> AsyncIterator[None]:
        """Close the channel for the length of a block. Requests wait meanwhile. Blocks may be nested."""
        was_open = self._open.is_set()
        self.hold_requests()
        try:
            if not self._disconnected.is_set():
                await self._disconnected.wait()
            yield
        finally:
            if was_open and not self.suspended.is_on:
                self.release_requests()

    def hold_requests(self) -> None:
        """Close the channel, and stop the timeouts of requests."""
        self.pause.set(True)
        if self._open.is_set():
            self._open = trio.Event()
        self._connection.cancel()

    def release_requests(self) -> None:
        """Open the channel again, and let timeouts go on."""
        self._open.set()
        self.pause.set(False)

    async def trimmed(self) -> None:
        """Free in the sandbox what was dropped from the mirror."""
        if not self.is_closed:
            with suppress(OSError):
                await self.relay.trimmed()

    def run_piped(
        self, command: Sequence[str], *, incoming: bool, working_dir: str | None = None
    ) -> AbstractAsyncContextManager[Piped]:
        """See `Instance.run_piped`. The data does not pass through the mirror."""
        return run_piped(self, self.remote, self._serving[0], command, incoming=incoming, working_dir=working_dir)

    def release_process(self) -> None:
        """Stop following the sandbox."""
        self.scope.cancel()

    async def aclose(self) -> None:
        if not self.is_closed:
            await super().aclose()
            if not self._disconnected.is_set():
                await self._disconnected.wait()
            self.relay.close()


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def _end(stream: RemoteStream) -> None:
    """Let the relay in the sandbox read the end of its input, and wait for its end."""
    with suppress(SandkeepError, BrokenExecError):
        await stream.close_stdin()
        await stream.wait()
