"""Time travel: a new sandbox from the newest snapshot or checkpoint at or before a moment."""

from typing import Any, NamedTuple

from msgspec.structs import replace

from sandkeep.errors import CallerError
from sandkeep.model import RestoredAt, Sandbox
from sandkeep.protocol.clock import now_us, parse_rfc3339
from sandkeep.protocol.methods import CheckpointRestore, SandboxRestoreAt, SnapshotRestore
from sandkeep_store.eventlog.log import Recorded
from sandkeep_store.views.moments import Moment, moments
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.checkpoints.checkpoints import Checkpoints
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import RUN_AGAIN, Core
from sandkeepd.sandboxes.creation import SandboxCreation
from sandkeepd.snapshots.restore import Restores


class Asked(NamedTuple):
    """The requested moment, at `time_us`: the log up to the position `upto`, and to `until_us` if requested by time."""

    time_us: int
    upto: int
    until_us: int | None = None


class TimeTravel:
    """``sandbox.restore_at``, and its handler."""

    method = "sandbox.restore_at"

    def __init__(self, core: Core, creation: SandboxCreation, restores: Restores, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._core = core
        self._creation = creation
        self._restores = restores

    async def restore_at(self, request: Request[SandboxRestoreAt]) -> RestoredAt:
        """Make a sandbox from the newest snapshot or checkpoint of one at or before a moment, and start it."""
        source = rules.sandbox(self._core.state, request.params.sandbox_id)
        asked = await self._asked(request.params)
        moment = rules.moment(source, self._moments(request, source), asked.upto, asked.until_us)
        made = await self._restore(request, source, moment)
        return await self._answer(source, asked, moment, made)

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        """See `Command.again`. The snapshot or checkpoint that was used then may have been deleted since."""
        made: Any
        if first.stream in self._core.state.forks:
            made = await self._checkpoints.restoration.again(request, first)
            made = made if made is RUN_AGAIN else made.sandboxes[0]
        else:
            made = await self._creation.again(request, first)
        if made is RUN_AGAIN:
            return made
        asked = await self._asked(request.params)
        source = rules.sandbox(self._core.state, request.params.sandbox_id)
        used_id = self._core.state.sandboxes[made.sandbox_id].requested.restored_from
        used = [replace(m, status="ready") for m in self._moments(request, source) if m.source_id == used_id]
        return await self._answer(source, asked, rules.moment(source, used, asked.upto, asked.until_us), made)

    def _moments(self, request: Request[SandboxRestoreAt], source: SandboxState) -> list[Moment]:
        return [moment for moment in moments(self._core.state, source) if request.sees(moment.owner)]

    async def _asked(self, command: SandboxRestoreAt) -> Asked:
        """Raises `invalid` for a moment that there was not yet, and `compacted` for a position in the archive."""
        log = self._core.log
        if (command.position is None) == (command.time is None):
            raise CallerError("invalid", "position: give either a position or a time", field="position")
        if command.position is not None:
            position = log.position_of(command.position, "position")
            return Asked(await log.time_of(position), position)
        time_us = time_of(command.time or "")
        return Asked(time_us, log.head, time_us)

    async def _restore(self, request: Request[SandboxRestoreAt], source: SandboxState, moment: Moment) -> Sandbox:
        """Make the sandbox."""
        whole: Request[Any] = request
        asked = request.params
        if moment.kind == "checkpoint":
            return await self._restore_checkpoint(whole, asked, moment)
        command = SnapshotRestore(
            command_id=asked.command_id,
            snapshot_id=moment.source_id,
            name=asked.name,
            labels=asked.labels,
            env=asked.env,
            secrets=asked.secrets,
        )
        return await self._restores.restore_like(replace(whole, params=command), source)

    async def _restore_checkpoint(self, request: Request[Any], asked: SandboxRestoreAt, moment: Moment) -> Sandbox:
        """Restore a checkpoint, which has the variables and secrets of its processes."""
        if asked.env or asked.secrets:
            field = "env" if asked.env else "secrets"
            message = f"{field}: what is restored from checkpoint {moment.source_id} keeps its variables: leave it out"
            raise CallerError("invalid", message, field=field)
        command = CheckpointRestore(
            command_id=asked.command_id,
            checkpoint_id=moment.source_id,
            names=[asked.name] if asked.name else [],
            labels=asked.labels,
        )
        made = await self._checkpoints.restore(replace(request, params=command))
        return made.sandboxes[0]

    async def _answer(self, source: SandboxState, asked: Asked, moment: Moment, made: Sandbox) -> RestoredAt:
        log = self._core.log
        between = await log.count_between(source.sandbox_id, moment.position, asked.upto, asked.until_us)
        return RestoredAt(
            sandbox=made,
            moment=moment.view(),
            events_between=between if moment.position >= log.first_position else None,
            distance_s=max(0.0, (asked.time_us - moment.time_us) / 1e6),
        )


def time_of(text: str) -> int:
    """The time that a caller gives, in microseconds since 1970. Raises `invalid` for none, and for one to come."""
    try:
        time_us = parse_rfc3339(text)
    except ValueError as error:
        raise CallerError("invalid", f"time: {text!r} {error}", field="time") from None
    if time_us > now_us():
        raise CallerError("invalid", f"time: {text!r} is in the future: give a time in the past", field="time")
    return time_us
