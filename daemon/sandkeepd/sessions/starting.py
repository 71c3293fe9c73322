"""Making sessions ready: by a new sandbox, of the image or of a snapshot."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio
from msgspec.structs import replace

from sandkeep import events, failpoints
from sandkeep.errors import SandkeepError, StateError
from sandkeep.model import Sandbox
from sandkeep.protocol.methods import SandboxCreate, SnapshotRestore
from sandkeep.settings.daemon import SESSION_START
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SessionState
from sandkeepd.core.access import Request, part_of_request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Creation, Handle, Order
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.snapshots.restore import Restores

_SCHEMES: Final = {"kubernetes": "k8s"}
"""Schemes of references to sandboxes, where AstraForge calls a provider otherwise."""


class Start(NamedTuple):
    """The input of a start that is on no record: the call, the image, secrets, and why files of the last sandbox are
    lost.
    """

    request: Request[Any]
    image_id: str
    secrets: Mapping[str, str]
    lost: str | None


class SessionStart(Creation[SessionState, SessionState]):
    """The part of ``session.ensure`` that makes a sandbox. `payload` is a `Start`."""

    method = "session.ensure"
    view = "sessions"
    under_way = "starting"
    failure = events.SessionStartFailed
    named = "session_id"
    interrupted = "the daemon stopped while it was being made ready: use it again"

    def __init__(self, core: Core, sandboxes: Sandboxes, restores: Restores, ensure: Handle) -> None:
        super().__init__(core)
        self._ensure = ensure
        self._sandboxes = sandboxes
        self._restores = restores

    def failure_of(self, order: Order[SessionState], error: SandkeepError, *, interrupted: bool) -> NewEvent:
        """See `Operation.failure_of`. Events of a session are filed under its key."""
        event = self.failure(code=error.code, message=error.message, interrupted=interrupted)
        return NewEvent(order.stream, event, order.stream)

    async def act(self, order: Order[SessionState]) -> Sequence[NewEvent]:
        seconds = SESSION_START()
        with trio.move_on_after(seconds):
            made = await self._make(order)
            failpoints.reach("session.made")
            return [self._started(order, made.sandbox_id, order.payload.lost)]
        why = f"session {order.subject.session_id} was not ready after {seconds:g} s ({SESSION_START.name}): try again"
        raise StateError("timeout", why, session_id=order.subject.session_id)

    async def _make(self, order: Order[SessionState]) -> Sandbox:
        session, start = order.subject, order.payload
        name, spec, snapshot_id = session.session_id, session.spec.sandbox, session.requested.restored_from
        secrets = dict(start.secrets)
        if snapshot_id is None:
            command = SandboxCreate(image_id=start.image_id, name=name, secrets=secrets)
            return await self._sandboxes.creation.create_as(
                part_of_request(start.request, "sandbox.create", command), start.image_id, spec
            )
        restore = SnapshotRestore(snapshot_id=snapshot_id, name=name, secrets=secrets)
        return await self._restores.restore_as(part_of_request(start.request, "snapshot.restore", restore), spec)

    def _started(self, order: Order[SessionState], sandbox_id: str, lost: str | None = None) -> NewEvent:
        sandbox = self.core.state.sandboxes[sandbox_id]
        asked, name = sandbox.requested, sandbox.handle.get("name") or sandbox_id
        event = events.SessionStarted(
            sandbox_id=sandbox_id,
            ref=f"{_SCHEMES.get(asked.provider, asked.provider)}://{name}",
            restored_from=asked.restored_from,
            lost=lost,
        )
        return NewEvent(order.stream, event, order.stream)

    def _made_for(self, session: SessionState) -> SandboxState | None:
        """Return the sandbox that was made, or begun, for the session; None if there is none that stands. The last one
        was ended before the order, so it is no other.
        """
        sandbox = self.core.state.sandbox_named(session.owner, session.session_id)
        if sandbox is None or sandbox.hidden or sandbox.spec.session_id != session.session_id:
            return None
        return sandbox

    async def roll_back(self, order: Order[SessionState]) -> None:
        """See `Operation.roll_back`. End what was begun, when its time is over."""
        sandbox = self._made_for(order.subject)
        if sandbox is not None:
            await self._sandboxes.termination.end(sandbox.sandbox_id, "requested")
            await self._sandboxes.termination.settled(sandbox.sandbox_id)

    async def _recover(self, order: Order[SessionState]) -> None:
        """See `Operation._recover`. A sandbox that an earlier daemon had made already is the session's."""
        sandbox = self._made_for(order.subject)
        if sandbox is not None:
            with suppress(SandkeepError):
                await self._sandboxes.creation.settled(sandbox.sandbox_id)
            if sandbox.made and not sandbox.hidden:
                await self._record(order, [self._started(order, sandbox.sandbox_id)])
                return
        await self._record(order, [self.failure_of(order, StateError("not_ready", self.interrupted), interrupted=True)])

    async def answered(self, request: Request[Any], subject: SessionState) -> SessionState:  # noqa: ARG002
        return subject

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        """See `Operation.again`. A session that is not ready any more is made so, as by a new command."""
        session = await self.settled(first.stream)
        return await self._ensure(replace(request, params=replace(request.params, id=session.session_id)))
