"""The view of sessions."""

from typing import ClassVar, Final

from msgspec import field

from sandkeep import events, model
from sandkeep.events import Event
from sandkeep.lifecycle import SESSION, Lifecycle
from sandkeep.protocol.clock import optional_rfc3339, rfc3339
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.view import Fact, ObjectState

SAVING_S: Final = 1800.0
"""Least seconds between the end of a session and that of its sandbox's lifetime: to start it, and to save its files."""


class SessionState(ObjectState, kw_only=True, array_like=True):
    """The state of a session. `requested` is the last order to make it ready, at `requested_us` and `position`; it was
    created at `created_us` and last made ready at `started_us`, by the sandbox `sandbox_id`, which may have ended. The
    status `before` was the one in which the last intent found it.
    """

    lifecycle: ClassVar[Lifecycle[model.SessionStatus]] = SESSION

    key: str
    requested: events.SessionStartRequested
    created_us: int
    position: int
    status: model.SessionStatus = SESSION.first
    before: model.SessionStatus = SESSION.first
    starts: int = 1
    started_us: int | None = None
    sandbox_id: str | None = None
    ref: str | None = None
    restored_from: str | None = None
    lost: str | None = None
    stop: events.SessionStopRequested | None = None
    stopped: events.SessionStopped | None = None
    snapshot_ids: list[str] = field(default_factory=list)

    @property
    def session_id(self) -> str:
        """The id that its owner gave it, or that was made for it."""
        return self.requested.session_id

    @property
    def spec(self) -> model.SessionSpec:
        """The requested spec."""
        return self.requested.spec

    def life_s(self, sandbox: SandboxState | None) -> float | None:
        """Return its longest life, in seconds; None for no end. A sandbox with an end of its own is saved before."""
        own, end = self.spec.max_lifetime_s, sandbox.spec.max_lifetime_s if sandbox is not None else None
        if end is None:
            return own
        return max(0.0, end - SAVING_S) if own is None else min(own, max(0.0, end - SAVING_S))

    def expires_us(self, sandbox: SandboxState | None) -> int | None:
        """Return the moment at which it has reached its longest life, in microseconds since 1970; None for never."""
        limit = self.life_s(sandbox)
        return None if limit is None or self.started_us is None else self.started_us + int(limit * 1e6)

    def advance(self, event: Event, fact: Fact) -> None:
        """See `ObjectState.advance`."""
        before, now = self.before, self.status
        self.status, self.revision = SESSION.after(event, now, before), fact.revision
        self.before, self.position = now, fact.position

    def status_with(self, sandbox: SandboxState | None) -> model.SessionStatus:
        """Return the status. For a session that is ready it depends on its sandbox, which may have ended by itself or
        by an order of its own.
        """
        if self.status != "ready":
            return self.status
        if sandbox is None or sandbox.status in ("stopping", "stopped"):
            return "terminated"
        return "failed" if sandbox.status in ("failed", "lost") else "ready"

    def is_ready(self, sandbox: SandboxState | None) -> bool:
        """Tell if commands can be run in its sandbox now."""
        return self.status == "ready" and sandbox is not None and sandbox.status == "running"

    def view(
        self, sandbox: SandboxState | None, *, active_us: int | None = None, heartbeat_us: int | None = None,
        note: str | None = None,
    ) -> model.Session:  # fmt: skip
        """Return the session as readers see it. `active_us` and `heartbeat_us` are on no record."""
        status, error = self.status_with(sandbox), self.error
        if status == "failed" and self.status == "ready" and sandbox is not None:
            error = sandbox.error
        reason = self.stopped.reason if self.stopped is not None else None
        if status == "terminated" and self.status == "ready" and sandbox is not None:
            reason = sandbox.terminated_reason
        return model.Session(
            session_id=self.session_id,
            key=self.key,
            owner=self.owner,
            status=status,
            spec=self.spec,
            provider=sandbox.requested.provider if sandbox is not None else None,
            image_id=sandbox.requested.image_id if sandbox is not None else None,
            sandbox_id=self.sandbox_id,
            ref=self.ref,
            workspace_path=sandbox.isolation.workspace if sandbox is not None and sandbox.isolation else None,
            created_at=rfc3339(self.created_us),
            started_at=optional_rfc3339(self.started_us),
            expires_at=optional_rfc3339(self.expires_us(sandbox)),
            last_activity_at=optional_rfc3339(active_us),
            last_heartbeat_at=optional_rfc3339(heartbeat_us),
            ended_at=optional_rfc3339(self.ended_us),
            terminated_reason=reason if status in ("expired", "terminated", "stopping") else None,
            error=error[1] if error is not None and status != "starting" else None,
            error_code=error[0] if error is not None and status != "starting" else None,
            restored_from=self.restored_from,
            latest_snapshot_id=self.snapshot_ids[-1] if self.snapshot_ids else None,
            snapshot_ids=list(self.snapshot_ids),
            starts=self.starts,
            note=note,
            position=self.position,
        )
