"""Idempotency: a change repeated with its `command_id` is not made again, but answered as before.

A command is known by its first event in the log; one that makes no event, by a line beside the log. A repetition of a
running command waits for it.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from sandkeep.errors import DaemonError, StateError
from sandkeep.events import Meta, SandboxCreateRequested, SessionStartRequested
from sandkeep.protocol.clock import now_us
from sandkeep.protocol.methods import Mutation
from sandkeep_store.eventlog.eventless_commands import REMEMBERED_US, CommandProgress
from sandkeep_store.eventlog.fingerprint_key import is_keyed, without_digest
from sandkeep_store.eventlog.log import Recorded
from sandkeepd.api.fingerprint import fingerprint
from sandkeepd.core.access import Request
from sandkeepd.core.call import Call
from sandkeepd.core.core import RUN_AGAIN, Core
from sandkeepd.core.operation import Again, Handle
from sandkeepd.core.turns import Turns

_EVEN_UNREMEMBERED: Final = frozenset({"daemon.shutdown", "sandbox.terminate"})
"""Methods that a disk that fails must not prevent: to do them again does no harm."""

_KEY_LOST: Final = (
    "was given before the daemon lost the key by which it knows commands again: "
    "see whether it was carried out, and if not, use a new one"
)


class RepeatedCommands:
    """Carries out commands once. `again` answers repeated commands, by method: see `Command.again`."""

    def __init__(self, core: Core, again: Mapping[str, Again]) -> None:
        self._core = core
        self._again = again
        self._turns = Turns()

    async def once(self, call: Call, request: Request[Any], handle: Handle) -> Any:
        """Answer a command that has an id: by `handle`, or as it was answered before."""
        assert request.command_id is not None
        key = (request.owner, request.command_id)
        async with self._turns.of(key):  # repetitions wait
            # As it was sent, since a name may mean another sandbox by the time of a repetition. A method without an
            # event records no sandbox, so there the resolved ids count.
            params: Mutation = request.params if request.method.intent is None else cast("Mutation", call.params)
            digest = await fingerprint(request.method, params)
            command = self._core.log.command_key.keyed(digest)
            return await self._once(replace(request, command=command), handle, *key)

    async def _once(self, request: Request[Any], handle: Handle, owner: str, command_id: str) -> Any:
        """Answer a known command from its record, and carry out an unknown one."""
        first = await self._first_of(request, owner, command_id)
        if first is not None and now_us() - first.time_us < REMEMBERED_US:
            recorded = msgspec.json.decode(first.meta, type=Meta).command or ""
            self._check_same(request, recorded, f"{first.type} {first.sandbox_id}")
            request = self._of_the_same(request, first)
            answer = await self._again[request.method.name](request, first)
            return await handle(request) if answer is RUN_AGAIN else answer
        past = self._remembered(request, owner, command_id)
        if past is None:
            return await handle(request)
        if past.done:
            return await self._again[request.method.name](request, None)
        answer = await handle(replace(request, past=past))
        past.finish()
        return answer

    async def _first_of(self, request: Request[Any], owner: str, command_id: str) -> Recorded | None:
        """Find the event of the first execution; None also if the lookup fails and the method runs even then."""
        try:
            return await self._core.log.find_command(command_id, owner)
        except DaemonError:
            if request.method.name not in _EVEN_UNREMEMBERED:
                raise
            return None

    def _remembered(self, request: Request[Any], owner: str, command_id: str) -> CommandProgress | None:
        """The line beside the log of a command that makes no event; None for one that does."""
        commands = self._core.log.commands
        try:
            past = commands.find(owner, command_id)
            if past is not None:
                self._check_same(request, past.command)
            elif request.method.intent is None:
                past = commands.begin(owner, command_id, request.command or "")
        except DaemonError:
            if request.method.intent is None and request.method.name not in _EVEN_UNREMEMBERED:
                raise
            return None
        return past

    def _of_the_same(self, request: Request[Any], first: Recorded) -> Request[Any]:
        """The request, of the sandbox that it was of when it was given first, or of the session that it made then."""
        if first.type == SessionStartRequested.type and request.method.intent == first.type:
            session_id = self._core.state.sessions[first.stream].session_id
            return replace(request, params=replace(request.params, id=session_id))
        filed = request.method.intent == first.type != SandboxCreateRequested.type  # that is filed under the new one
        named = getattr(request.params, "sandbox_id", None)
        if not filed or first.sandbox_id is None or named in (None, first.sandbox_id):
            return request
        return replace(request, params=replace(request.params, sandbox_id=first.sandbox_id))

    def _check_same(self, request: Request[Any], recorded: str, told: str = "") -> None:
        """Raise `conflict` unless the fingerprint on record is that of this command.

        `told` is the outcome, for records without a digest: those of the oldest daemons, and redacted ones.
        """
        key, subject = self._core.log.command_key, getattr(request.params, "sandbox_id", None)
        same_method = without_digest(recorded) in ("", request.method.name)
        if " " in recorded:
            same = key.ensure_keyed(recorded) == request.command
        else:
            same = same_method and told == f"{request.method.intent} {subject}"
        if not same:
            lost = same_method and is_keyed(recorded) and not key.made(recorded)
            why = _KEY_LOST if lost else "was given with another command: use a new one"
            raise StateError("conflict", f"command_id {request.command_id!r} {why}", command_id=request.command_id)
