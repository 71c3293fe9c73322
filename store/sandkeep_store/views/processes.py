"""The view of processes.

Of the unnamed ones that ended, the last `RECENT_UNNAMED` of a sandbox stay in the view, of the named ones the last
`RECENT_NAMED`; older ones are read from their own streams in the log.
"""

from typing import ClassVar, Final

from msgspec import Struct

from sandkeep import events, model
from sandkeep.lifecycle import PROCESS, Lifecycle
from sandkeep.protocol.clock import optional_rfc3339, rfc3339

RECENT_UNNAMED: Final = 32


RECENT_NAMED: Final = 100


ENDS: Final = frozenset({events.ProcessExited.type, events.ProcessLaunchFailed.type, events.ProcessLost.type})
"""The events with which a process ends."""


class ProcessState(Struct, kw_only=True, array_like=True, gc=False):
    """The state of a process."""

    lifecycle: ClassVar[Lifecycle[model.ProcessStatus]] = PROCESS

    process_id: str
    sandbox_id: str
    name: str
    requested: events.ProcessLaunchRequested
    requested_us: int
    status: model.ProcessStatus = PROCESS.first
    pid: int | None = None
    started_us: int | None = None
    ended_us: int | None = None
    exit_code: int | None = None
    timed_out: bool = False
    last_signal: str | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None
    error: tuple[str, str] | None = None
    interrupted: bool = False
    oom_killed: bool = False
    limits_met: tuple[model.LimitName, ...] = ()

    @property
    def ended(self) -> bool:
        """True if its end is on record, for any reason."""
        return self.ended_us is not None

    @property
    def named(self) -> bool:
        """True if its caller gave it a name."""
        return self.requested.name is not None

    def view(self) -> model.Process:
        """The process as readers see it."""
        asked = self.requested
        return model.Process(
            process_id=self.process_id,
            sandbox_id=self.sandbox_id,
            name=self.name,
            named=self.named,
            command=asked.command,
            command_cut=asked.command_cut,
            working_dir=asked.working_dir,
            env=asked.env,
            secrets=asked.secrets,
            stdin=asked.stdin,
            tty=asked.tty,
            tmux_session=self.name.replace(".", "_") if asked.tty else None,  # as tmux does
            timeout_s=asked.timeout_s,
            status=self.status,
            requested_at=rfc3339(self.requested_us),
            started_at=optional_rfc3339(self.started_us),
            ended_at=optional_rfc3339(self.ended_us),
            pid=self.pid,
            exit_code=self.exit_code,
            timed_out=self.timed_out,
            oom_killed=self.oom_killed,
            last_signal=self.last_signal,
            stdout_bytes=self.stdout_bytes,
            stderr_bytes=self.stderr_bytes,
            error=self.error[1] if self.error else None,
            limits_met=list(self.limits_met),
        )
