"""The events that record the ends of a sandbox's processes after its own end."""

from collections.abc import Callable
from typing import Final

from sandkeep import events
from sandkeep.model import TIMED_OUT, LimitName
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.threads import in_thread
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.contract.processes import Exit
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.oom import KILLED
from sandkeepd.sandboxes.runtimes import Runtime

UNSEEN: Final = "the sandbox ended and nobody saw how the process did"


def process_ends(
    core: Core,
    sandbox: SandboxState,
    exit_of: Callable[[str], Exit | None],
    exit_code: int | None,
    *,
    why: str = UNSEEN,
    runtime: Runtime | None = None,
) -> list[NewEvent]:
    """Return events for all processes that ran: with the exit from `exit_of`, else `exit_code`; else `why` it is
    unknown. `runtime` held them, and knows which of them the kernel killed.
    """
    return [
        NewEvent(
            process.process_id,
            _end_of(core, process, exit_of(process.process_id), exit_code, why, runtime),
            sandbox.sandbox_id,
        )
        for process in sandbox.active.values()
    ]


async def ends_of_killed(core: Core, sandbox: SandboxState, runtime: Runtime | None) -> list[NewEvent]:
    """Return the last events of a sandbox that was killed: as its `runtime` knows them, else from its remains."""
    return process_ends(core, sandbox, await _exits(core, sandbox, runtime), KILLED, runtime=runtime)


async def exits_left(core: Core, sandbox: SandboxState) -> Callable[[str], Exit | None]:
    """Return the exits of processes, from the remains of their sandbox."""
    provider = core.provider(sandbox.requested.provider)
    exits = await in_thread(provider.last_exits, sandbox.sandbox_id, list(sandbox.active))
    return exits.get


async def _exits(core: Core, sandbox: SandboxState, runtime: Runtime | None) -> Callable[[str], Exit | None]:
    if runtime is not None:
        return runtime.instance.exit_of
    return await exits_left(core, sandbox) if sandbox.active else lambda _: None


def shown_code(process: ProcessState, exit_code: int) -> int:
    """Return the exit code to record: of a process that was killed at its time limit that of coreutils' `timeout`, so
    that callers can tell it from one that somebody else killed.
    """
    return TIMED_OUT if process.timed_out else exit_code


def _end_of(
    core: Core, process: ProcessState, seen: Exit | None, exit_code: int | None, why: str, runtime: Runtime | None
) -> events.Event:
    if process.status == "starting":
        message = "the sandbox ended before the process was started"
        interrupted = runtime is not None and runtime.instance.never_started(process.process_id)
        return events.ProcessLaunchFailed(code="not_ready", message=message, interrupted=interrupted)
    code = seen.exit_code if seen is not None and seen.exit_code is not None else exit_code
    if code is None:
        return events.ProcessLost(message=why)
    provider = core.provider(core.state.sandboxes[process.sandbox_id].requested.provider)
    sizes = [
        provider.read_ended(process.sandbox_id, process.process_id, stream, 0, 0).size
        for stream in ("stdout", "stderr")
    ]
    met: list[LimitName] = ["time"] if process.timed_out else []
    if runtime is not None and seen is not None:
        met = runtime.limits.met(process, seen.exit_code)
    return events.ProcessExited(
        exit_code=shown_code(process, code),
        stdout_bytes=sizes[0],
        stderr_bytes=sizes[1],
        oom_killed="memory" in met,
        limits_met=met,
    )
