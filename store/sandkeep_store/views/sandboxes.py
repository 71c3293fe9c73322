"""The view of sandboxes."""

from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from sandkeep import events, model
from sandkeep.clock import optional_rfc3339, rfc3339
from sandkeep_store.views.base import Fact, folds
from sandkeep_store.views.processes import ProcessState

if TYPE_CHECKING:
    from sandkeep_store.views.state import State


class SandboxState(Struct, kw_only=True):
    """What is known of a sandbox. `made` says that it ran once; one that never did holds nothing. `interrupted`: only
    the end of an earlier daemon kept it from being made.
    """

    sandbox_id: str
    requested: events.SandboxCreateRequested
    requested_us: int
    revision: int
    position: int
    last_activity_us: int
    status: model.SandboxStatus = "creating"
    made: bool = False
    isolation: model.Isolation | None = None
    handle: dict[str, Any] = field(default_factory=dict)
    ended_us: int | None = None
    terminated_reason: str | None = None
    error: tuple[str, str] | None = None
    interrupted: bool = False
    exec_count: int = 0
    active: dict[str, ProcessState] = field(default_factory=dict)
    named: dict[str, ProcessState] = field(default_factory=dict)
    recent_named: deque[ProcessState] = field(default_factory=deque)
    recent_unnamed: deque[ProcessState] = field(default_factory=deque)
    seen: model.Sandbox | None = None

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.requested.owner

    @property
    def spec(self) -> model.SandboxSpec:
        """What it was asked to be."""
        return self.requested.spec

    @property
    def hidden(self) -> bool:
        """Whether a plain list leaves it out: it ended in good order, or never came to be."""
        return self.status == "stopped" or (self.status == "failed" and not self.made)

    @property
    def needs_image(self) -> bool:
        """Whether its image has to stay."""
        return not self.hidden

    def view(self) -> model.Sandbox:
        """The sandbox as readers see it. Whatever changes it also changes `position`, so the last one is kept."""
        if self.seen is None or self.seen.position != self.position:
            self.seen = self._look()
        return self.seen

    def _look(self) -> model.Sandbox:
        asked = self.requested
        return model.Sandbox(
            sandbox_id=self.sandbox_id,
            image_id=asked.image_id,
            provider=asked.provider,
            status=self.status,
            owner=asked.owner,
            created_at=rfc3339(self.requested_us),
            spec=asked.spec,
            secrets=asked.secrets,
            isolation=self.isolation,
            running_processes=len(self.active),
            exec_count=self.exec_count,
            ended_at=optional_rfc3339(self.ended_us),
            terminated_reason=self.terminated_reason,
            error=self.error[1] if self.error else None,
            position=self.position,
        )


@folds(events.SandboxCreateRequested)
def _create_requested(state: "State", event: events.SandboxCreateRequested, fact: Fact) -> None:
    state.sandboxes[fact.stream] = SandboxState(
        sandbox_id=fact.stream,
        requested=event,
        requested_us=fact.time_us,
        revision=fact.revision,
        position=fact.position,
        last_activity_us=fact.time_us,
    )


@folds(events.SandboxCreated)
def _created(state: "State", event: events.SandboxCreated, fact: Fact) -> None:
    sandbox = _advance(state, fact)
    sandbox.status, sandbox.made = "running", True
    sandbox.isolation, sandbox.handle = event.isolation, event.handle


@folds(events.SandboxCreateFailed)
def _create_failed(state: "State", event: events.SandboxCreateFailed, fact: Fact) -> None:
    sandbox = _advance(state, fact)
    sandbox.status, sandbox.error, sandbox.ended_us = "failed", (event.code, event.message), fact.time_us
    sandbox.interrupted = event.interrupted


@folds(events.SandboxAdopted)
def _adopted(state: "State", event: events.SandboxAdopted, fact: Fact) -> None:
    _advance(state, fact)


@folds(events.SandboxFailed)
def _failed(state: "State", event: events.SandboxFailed, fact: Fact) -> None:
    sandbox = _advance(state, fact)
    sandbox.status, sandbox.error, sandbox.ended_us = "failed", ("provider_unavailable", event.message), fact.time_us


@folds(events.SandboxLost)
def _lost(state: "State", event: events.SandboxLost, fact: Fact) -> None:
    sandbox = _advance(state, fact)
    sandbox.status, sandbox.error, sandbox.ended_us = "lost", ("provider_unavailable", event.message), fact.time_us


@folds(events.SandboxFileWritten)
def _file_written(state: "State", event: events.SandboxFileWritten, fact: Fact) -> None:
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if sandbox is not None:
        sandbox.position, sandbox.last_activity_us = fact.position, fact.time_us


@folds(events.SandboxTerminateRequested)
def _terminate_requested(state: "State", event: events.SandboxTerminateRequested, fact: Fact) -> None:
    sandbox = _advance(state, fact)
    sandbox.status, sandbox.terminated_reason = "stopping", event.reason


@folds(events.SandboxTerminated)
def _terminated(state: "State", event: events.SandboxTerminated, fact: Fact) -> None:
    sandbox = _advance(state, fact)
    sandbox.status, sandbox.terminated_reason, sandbox.ended_us = "stopped", event.reason, fact.time_us


def _advance(state: "State", fact: Fact) -> SandboxState:
    sandbox = state.sandboxes[fact.stream]
    sandbox.revision, sandbox.position, sandbox.last_activity_us = fact.revision, fact.position, fact.time_us
    return sandbox
