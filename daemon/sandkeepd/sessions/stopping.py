"""Ends of the sandboxes of sessions, after a snapshot: by order, or for a limit of time."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from sandkeep import events, failpoints
from sandkeep.errors import SandkeepError, error_from
from sandkeep.events import Meta
from sandkeep.model import Session
from sandkeep.settings.daemon import SESSION_KEEP
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SessionState
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Operation, Order
from sandkeepd.sandboxes.termination import Termination
from sandkeepd.sessions.activity import Activity, Clock, Moment
from sandkeepd.sessions.saving import Saving

LIMITS = ("idle_timeout", "max_lifetime")

FILES_KEEP_S: Final = 3600.0
"""Seconds past its limit that a sandbox goes on whose own files or programs keep snapshots from being made."""

_OF_FILES: Final = ("tree_too_deep", "invalid", "conflict")


class SessionStop(Operation[SessionState, Session]):
    """``session.close``, and what the reaper orders. A snapshot that fails lets the sandbox go on: until tries have
    failed for ``SANDKEEP_SESSION_KEEP``, or for `FILES_KEEP_S` as the sandbox's files are the reason, if it is due to
    end for a limit of time. `awake` is the clock of that, which
    neither steps nor goes on while the machine is suspended.
    """

    method = "session.close"
    view = "sessions"
    under_way = "stopping"
    failure = events.SessionStopFailed

    def __init__(
        self, core: Core, termination: Termination, saving: Saving, activity: Activity,
        view: Callable[[SessionState], Session], awake: Clock,
    ) -> None:  # fmt: skip
        super().__init__(core)
        self._view = view
        self._awake = awake
        self._failing: dict[str, tuple[str, Moment | None, int]] = {}  # by keys: reason, last use, and first failure
        self._termination = termination
        self._saving = saving
        self._activity = activity

    async def order(self, session: SessionState, reason: str, meta: Meta, *, snapshot: bool = True) -> None:
        """Order the end. It is on record when this returns. Raises `conflict` if the session changed meanwhile."""
        event = events.SessionStopRequested(reason=reason, snapshot=snapshot)
        await self.begin(NewEvent(session.key, event, session.key, session.revision), meta)

    async def act(self, order: Order[SessionState]) -> Sequence[NewEvent]:
        session, stop = order.subject, order.subject.stop
        assert stop is not None
        sandbox = self.core.state.sandboxes.get(session.sandbox_id or "")
        snapshot_id, unsaved = await self._save(order, sandbox) if stop.snapshot else (None, None)
        failpoints.reach("session.saved")
        if sandbox is not None and not sandbox.hidden:
            await self._termination.end(sandbox.sandbox_id, "requested" if stop.reason == "stop" else stop.reason)
            await self._termination.settled(sandbox.sandbox_id)
        event = events.SessionStopped(
            reason=stop.reason, expired=stop.reason in LIMITS, snapshot_id=snapshot_id, unsaved=unsaved
        )
        return [NewEvent(order.stream, event, order.stream)]

    async def _save(self, order: Order[SessionState], sandbox: SandboxState | None) -> tuple[str | None, str | None]:
        """Return the snapshot of the sandbox's files, or why there is none; neither if there are no files."""
        session, stop = order.subject, order.subject.stop
        assert stop is not None
        try:
            if sandbox is None or not await self._saving.can_save(sandbox):
                return self._saved_before(session), None
            return await self._saving.save_or_explain(session, sandbox, stop.reason)
        except SandkeepError as error:
            if sandbox is None:
                raise
            is_of_files = await self._is_of_files(sandbox, error)
            if not self._has_waited(session, sandbox, stop.reason, is_of_files=is_of_files):
                raise
            return None, f"{error.code}: {error.message}"

    def _saved_before(self, session: SessionState) -> str | None:
        """Return the snapshot that this end made before the daemon died in it; None if there is none."""
        last = self.core.state.snapshots.get(session.snapshot_ids[-1]) if session.snapshot_ids else None
        return last.snapshot_id if last is not None and last.requested_position > session.position else None

    async def _is_of_files(self, sandbox: SandboxState, error: SandkeepError) -> bool:
        """Tell if a snapshot failed because of the sandbox's own files or programs: those of an engine that works."""
        if error.code == "provider_unavailable":
            return (await self.core.provider(sandbox.requested.provider).capabilities()).works
        return error.code in _OF_FILES

    def _has_waited(self, session: SessionState, sandbox: SandboxState, reason: str, *, is_of_files: bool) -> bool:
        """Note that the files could not be saved. Tell if that goes on for long enough to give them up: for the same
        reason, without a use meanwhile, and seen by this daemon, since its downtime is no failure to save them.

        The code inside must not outlive its limits by making its files unreadable, with its user's help or without.
        """
        last = None if is_of_files and reason == "max_lifetime" else self._activity.last(session, sandbox)
        now, keep_s = self._awake(), min(FILES_KEEP_S, SESSION_KEEP()) if is_of_files else SESSION_KEEP()
        known = self._failing.get(session.key)
        if known is None or known[:2] != (reason, last):
            self._failing[session.key] = reason, last, now
            return False
        return reason in LIMITS and now >= known[2] + keep_s * 1e6

    async def failed(self, order: Order[SessionState], error: SandkeepError) -> Sequence[NewEvent]:
        """See `Operation.failed`. Events of a session are filed under its key."""
        failed = events.SessionStopFailed(code=error.code, message=error.message)
        return [NewEvent(order.stream, failed, order.stream)]

    async def recorded(self, order: Order[SessionState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        if order.subject.status != "ready":
            self._activity.forget(order.subject)
            self._failing.pop(order.stream, None)
            await self._saving.drop_old(order.subject)

    async def answered(self, request: Request[Any], subject: SessionState) -> Session:  # noqa: ARG002
        """See `Operation.answered`. Raises the error of a snapshot that failed."""
        if subject.stopped is None and subject.error is not None:
            code, message = subject.error
            advice = "the sandbox goes on; close it without a snapshot to give up its files"
            raise error_from(code, f"{message}: {advice}", {"session_id": subject.session_id})
        return self._view(subject)

    async def _recover(self, order: Order[SessionState]) -> None:
        await self._execute(order)
