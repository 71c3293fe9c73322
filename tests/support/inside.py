"""A daemon inside the test: the real parts, the fake provider that can be told to fail, and no socket.

It can have a real provider instead.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
from tests.support.fake_provider import FakeProvider, open_fake

from sandkeep.protocol.clock import now_us
from sandkeep.protocol.methods import METHODS
from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.metadata_files import MetadataFiles
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.app import daemon, handlers
from sandkeepd.app.file_services import SnapshotServices
from sandkeepd.app.reconcile import Reconciler
from sandkeepd.app.status import Software
from sandkeepd.core.call import Call
from sandkeepd.core.core import Core
from sandkeepd.core.peer import Peer
from sandkeepd.eventlog.retention import Retention
from sandkeepd.http.keys import Keys
from sandkeepd.locks.leases import Leases
from sandkeepd.locks.publish import Publisher
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.output_limit import OutputLimit
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.prune import Prune
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.sessions.activity import awake_us, steady_us
from sandkeepd.sessions.sessions import Sessions
from sandkeepd.sharing.sharing import Sharing
from sandkeepd.stream.access import Access
from sandkeepd.stream.tokens import Tokens

Opened = Callable[[str, str], AbstractAsyncContextManager[Any]]
"""What opens a provider on a state directory, for the log of an id."""


class ShiftedClock:
    """The clocks that sessions go by: those of the machine, and `later_s` seconds; the wall clock is stepped by
    `stepped_s` besides, and the machine was suspended for `suspended_s` of them.
    """

    def __init__(self) -> None:
        self.later_s = self.stepped_s = self.suspended_s = 0.0

    def __call__(self) -> int:
        return now_us() + int((self.later_s + self.stepped_s) * 1e6)

    def steady_us(self) -> int:
        return steady_us() + int(self.later_s * 1e6)

    def awake_us(self) -> int:
        return awake_us() + int((self.later_s - self.suspended_s) * 1e6)


class Inside:
    """The parts, and `call`, which goes the way of a request behind the socket."""

    retention: Retention
    leases: Leases
    publishing: Publisher
    sharing: Sharing

    def __init__(
        self,
        core: Core,
        provider: Any,
        parts: tuple[Images, Sandboxes, Processes],
        kept: SnapshotServices,
        dispatch: Any,
        sessions: Sessions,
    ) -> None:
        self.core = core
        self.provider = provider
        self.fake: FakeProvider = provider  # unless it is another
        self.images, self.sandboxes, self.processes = parts
        self.reconciler = Reconciler(core, self.sandboxes.runtimes, self.processes, kept, sessions.operations)
        self.kept = kept
        self.sessions = sessions
        self.clock: ShiftedClock
        self.dispatch = dispatch

    async def call(self, method: str, uid: int = 0, **params: Any) -> Any:
        """Call a method as a user."""
        row = METHODS[method]
        call = Call(method=row, params=row.params(**params), peer=Peer(uid=uid, gid=uid))
        at_once = self.dispatch.immediate.get(method)
        answer = at_once(call) if at_once else NotImplemented
        return await self.dispatch(call) if answer is NotImplemented else answer

    def box(self, name: str = "box", uid: int = 0) -> SandboxState:
        """A user's sandbox by its name, as the views have it."""
        found = self.core.state.sandbox_named(f"uid:{uid}", name)
        assert found is not None, name
        return found

    def id_of(self, name: str = "box", uid: int = 0) -> str:
        """The id of a user's sandbox."""
        return self.box(name, uid).sandbox_id

    async def appears(self, name: str = "box") -> str:
        """Wait until a sandbox of that name is on record; answer its id."""
        while self.core.state.sandbox_named("uid:0", name) is None:
            await self.core.log.wait(self.core.log.head)
        return self.id_of(name)

    async def types(self, sandbox_id: str) -> list[str]:
        """The types of a sandbox's events."""
        return [event.type for event in (await self.call("sandbox.history", sandbox_id=sandbox_id)).events]

    async def image(self, source: str, **call: Any) -> str:
        """An image of a directory, on its provider."""
        made = await self.call("image.create", source=source, provider=self.provider.name, **call)
        return str(made.image_id)


@asynccontextmanager
async def inside(
    state_dir: str, leases_of: Callable[[Core], Leases] = Leases, opened: Opened = open_fake
) -> AsyncIterator[Inside]:
    """The parts of a daemon on a state directory, as `app.run` has them, but for servers and periodic tasks."""
    daemon.prepare_state_dir(state_dir)
    log = EventLog.open(f"{state_dir}/events.db")
    settings = pytest.MonkeyPatch()
    settings.setenv("SANDKEEP_STATE_DIR", state_dir)  # by which archives have their place
    try:
        state, problems = daemon.fold(log, state_dir)
        async with daemon.running_log(log), opened(state_dir, log.log_id) as provider, trio.open_nursery() as tasks:
            files = MetadataFiles(f"{state_dir}/sandboxes", state, log.log_id)
            core = Core(log, state, files, {provider.name: provider}, tasks)
            core.problems += problems
            images = Images(core)
            sandboxes = Sandboxes(core, images)
            parts = (images, sandboxes, Processes(core, sandboxes.runtimes))
            software = Software(core, state_dir, "", trio.Event())
            software.adopting = sandboxes.runtimes.adopting
            retention = Retention(core, sandboxes.runtimes)
            kept, leases = SnapshotServices(core, *parts, state_dir), leases_of(core)
            clock = ShiftedClock()
            clocks = clock, clock.steady_us, clock.awake_us
            sessions = Sessions(core, images, sandboxes, kept.snapshots, kept.restores, *clocks)
            access, keys = Access([], Tokens(state_dir)), Keys(state_dir)
            publishing = Publisher(core, leases)
            kept.archives.publish = publishing.publish
            sharing = Sharing(
                core, leases, publishing, images, sandboxes, kept.snapshots, kept.restores, kept.checkpoints,
                kept.layers, state_dir,
            )  # fmt: skip
            prune = Prune(core, images, OutputLimit(core))
            dispatch = handlers.dispatch(
                core, *parts, software, access, retention, prune, kept, sharing, sessions, keys
            )
            made = Inside(core, provider, parts, kept, dispatch, sessions)
            made.clock = clock
            made.retention, made.leases = retention, leases
            kept.archives.fence = leases.fence
            made.publishing, made.sharing = publishing, sharing
            made.reconciler.announce()
            yield made
            tasks.cancel_scope.cancel()
    finally:
        settings.undo()
        log.close()
