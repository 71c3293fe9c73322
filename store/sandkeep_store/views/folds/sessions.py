"""Folds of the events of sessions."""

from sandkeep import events
from sandkeep_store.views.folds.register import advance, changes, folds
from sandkeep_store.views.sessions import SessionState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact

changes("sessions", events.SessionStartFailed)(SessionState.fail)


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


@changes("sessions", events.SessionStarted)
def _started(session: SessionState, event: events.SessionStarted, fact: Fact) -> None:
    session.started_us, session.sandbox_id, session.ref = fact.time_us, event.sandbox_id, event.ref
    session.restored_from, session.lost = event.restored_from, event.lost
    session.stop = session.stopped = None


@changes("sessions", events.SessionStopRequested)
def _stop_requested(session: SessionState, event: events.SessionStopRequested, fact: Fact) -> None:
    session.stop, session.error = event, None


@changes("sessions", events.SessionStopped)
def _stopped(session: SessionState, event: events.SessionStopped, fact: Fact) -> None:
    session.stopped, session.ended_us = event, fact.time_us


@changes("sessions", events.SessionStopFailed)
def _stop_failed(session: SessionState, event: events.SessionStopFailed, fact: Fact) -> None:
    session.error, session.interrupted = (event.code, event.message), event.interrupted
