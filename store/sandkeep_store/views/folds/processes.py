"""Folds of the events of processes."""

from sandkeep import events
from sandkeep.events import Event
from sandkeep.lifecycle import PROCESS
from sandkeep.model import LimitName, SandboxSpec
from sandkeep.protocol.amounts import size
from sandkeep_store.views.folds.register import folds
from sandkeep_store.views.processes import RECENT_NAMED, RECENT_UNNAMED, ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact


@folds(events.ProcessLaunchRequested)
def _launch_requested(state: State, event: events.ProcessLaunchRequested, fact: Fact) -> None:
    process_id = fact.stream
    process = ProcessState(
        process_id=process_id,
        sandbox_id=event.sandbox_id,
        name=event.name or process_id,
        requested=event,
        requested_us=fact.time_us,
    )
    state.processes[process_id] = process
    sandbox = state.sandboxes.get(event.sandbox_id)
    if sandbox is None:
        return
    sandbox.touch(fact)
    sandbox.active[process_id] = process
    if event.name is None:
        sandbox.exec_count += 1
    else:
        sandbox.named[event.name] = process


@folds(events.ProcessStarted, events.ProcessSignalled, events.ProcessTimedOut)
def _advanced(
    state: State, event: events.ProcessStarted | events.ProcessSignalled | events.ProcessTimedOut, fact: Fact
) -> None:
    process = state.processes.get(fact.stream)
    if process is None:
        return
    if isinstance(event, events.ProcessStarted):
        process.pid, process.started_us, process.status = event.pid, fact.time_us, PROCESS.targets[event.type]
    elif isinstance(event, events.ProcessSignalled):
        process.last_signal = event.signal
    else:
        process.timed_out = True
    sandbox = state.sandboxes.get(process.sandbox_id)
    if sandbox is not None:
        sandbox.touch(fact)


@folds(events.ProcessExited)
def _exited(state: State, event: events.ProcessExited, fact: Fact) -> None:
    process = state.processes.get(fact.stream)
    if process is None:
        return
    process.exit_code = event.exit_code
    process.stdout_bytes, process.stderr_bytes = event.stdout_bytes, event.stderr_bytes
    met: list[LimitName] = event.limits_met or (["memory"] if event.oom_killed else [])  # of an older daemon
    if met:
        process.oom_killed, process.limits_met = event.oom_killed, tuple(met)
        sandbox = state.sandboxes.get(process.sandbox_id)
        if event.exit_code != 0:
            process.error = ("provider_unavailable", _explained(process, sandbox, met))
        if sandbox is not None:
            for limit in met:
                sandbox.limits_met[limit] = sandbox.limits_met.get(limit, 0) + 1
    _end(state, process, event, fact)


def _explained(process: ProcessState, sandbox: SandboxState | None, met: list[LimitName]) -> str:
    spec = sandbox.spec if sandbox is not None else SandboxSpec()
    sentences = {
        "disk": _full_disk(spec.disk_bytes), "memory": _want_of_memory(spec.memory_bytes),
        "pids": _no_more_processes(spec.pids), "time": f"it reached its time limit of {process.requested.timeout_s:g} s"
        if process.requested.timeout_s is not None else "it reached its time limit",
    }  # fmt: skip
    return "; ".join(sentences[limit] for limit in met)


def _full_disk(limit: int | None) -> str:
    if limit is None:
        return "the sandbox's disk limit is reached: remove files"
    return f"the sandbox's disk limit of {size(limit)} is reached: remove files, or `sandkeep update --disk`"


def _no_more_processes(limit: int | None) -> str:
    return "processes could not be started: the sandbox's limit" + (f" is {limit}" if limit else " was reached")


def _want_of_memory(limit: int | None) -> str:
    if limit is None:
        return "the kernel killed it, as the machine had no memory left: give the sandbox a limit"
    return f"out of memory: the OOM killer ended it; the sandbox's limit is {size(limit)}"


@folds(events.ProcessLaunchFailed, events.ProcessLost)
def _failed(state: State, event: events.ProcessLaunchFailed | events.ProcessLost, fact: Fact) -> None:
    process = state.processes.get(fact.stream)
    if process is None:
        return
    if isinstance(event, events.ProcessLaunchFailed):
        process.error, process.interrupted = (event.code, event.message), event.interrupted
    else:
        process.error = ("internal", event.message)
    _end(state, process, event, fact)


@folds(events.ProcessRestored)
def _restored(state: State, event: events.ProcessRestored, fact: Fact) -> None:
    """It may have ended since, or never have been in this sandbox. It is as one that was launched at this moment."""
    asked, process_id = event.requested, fact.stream
    process = state.processes.pop(process_id, None)
    sandbox = state.sandboxes.get(asked.sandbox_id)
    made = ProcessState(
        process_id=process_id,
        sandbox_id=asked.sandbox_id,
        name=asked.name or process_id,
        requested=asked,
        requested_us=fact.time_us,
        status=PROCESS.targets[event.type],
        pid=event.pid,
        started_us=fact.time_us,
    )
    state.processes[process_id] = made
    if sandbox is None:
        return
    sandbox.touch(fact)
    recent = sandbox.recent_unnamed if asked.name is None else sandbox.recent_named
    if process is not None and process in recent:
        recent.remove(process)
    sandbox.active.pop(process_id, None)
    sandbox.active[process_id] = made
    if asked.name is not None:
        sandbox.named.pop(asked.name, None)
        sandbox.named[asked.name] = made
    elif event.restored_from != process_id:
        sandbox.exec_count += 1


def _end(state: State, process: ProcessState, event: Event, fact: Fact) -> None:
    """Move the process from the active to the recent ones, and let the oldest of those go."""
    process.status, process.ended_us = PROCESS.targets[event.type], fact.time_us
    sandbox = state.sandboxes.get(process.sandbox_id)
    if sandbox is None or sandbox.active.pop(process.process_id, None) is None:
        return
    sandbox.touch(fact)
    if process.requested.name is None:
        recent, limit = sandbox.recent_unnamed, RECENT_UNNAMED
    else:
        recent, limit = sandbox.recent_named, RECENT_NAMED
    recent.append(process)
    if len(recent) > limit:
        oldest = recent.pop(0)
        del state.processes[oldest.process_id]
        if oldest.requested.name is not None and sandbox.named.get(oldest.name) is oldest:
            del sandbox.named[oldest.name]
