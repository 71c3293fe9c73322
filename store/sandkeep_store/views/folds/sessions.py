"""Folds of the events of sessions."""

from sandkeep import events
from sandkeep_store.views.folds.register import advance, folds
from sandkeep_store.views.sessions import SessionState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact


@folds(events.SessionStartRequested)
def _start_requested(state: State, event: events.SessionStartRequested, fact: Fact) -> None:
    session = advance(state.sessions, event, fact)
    if session is None:
        session = state.sessions[fact.stream] = SessionState(
            key=fact.stream,
            requested=event,
            requested_us=fact.time_us,
            created_us=fact.time_us,
            revision=fact.revision,
            position=fact.position,
        )
        state.index_session(session)
        return
    session.requested, session.requested_us, session.starts = event, fact.time_us, session.starts + 1
    session.error, session.interrupted, session.ended_us = None, False, None


@folds(events.SessionStarted)
def _started(state: State, event: events.SessionStarted, fact: Fact) -> None:
    session = advance(state.sessions, event, fact)
    if session is not None:
        session.started_us, session.sandbox_id, session.ref = fact.time_us, event.sandbox_id, event.ref
        session.restored_from, session.lost = event.restored_from, event.lost
        session.stop = session.stopped = None


@folds(events.SessionStartFailed)
def _start_failed(state: State, event: events.SessionStartFailed, fact: Fact) -> None:
    session = advance(state.sessions, event, fact)
    if session is not None:
        session.fail(event, fact)


@folds(events.SessionStopRequested)
def _stop_requested(state: State, event: events.SessionStopRequested, fact: Fact) -> None:
    session = advance(state.sessions, event, fact)
    if session is not None:
        session.stop, session.error = event, None


@folds(events.SessionStopped)
def _stopped(state: State, event: events.SessionStopped, fact: Fact) -> None:
    session = advance(state.sessions, event, fact)
    if session is not None:
        session.stopped, session.ended_us = event, fact.time_us


@folds(events.SessionStopFailed)
def _stop_failed(state: State, event: events.SessionStopFailed, fact: Fact) -> None:
    session = advance(state.sessions, event, fact)
    if session is not None:
        session.error, session.interrupted = (event.code, event.message), event.interrupted
