"""Cancellation of launches that their callers gave up, by the command's id: they know no process yet.

A cancellation may overtake the launch, which comes on another connection. So it is remembered, and a launch that begins
later is refused.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from sandkeep import events
from sandkeep.errors import StateError
from sandkeep.protocol.methods import ProcessCancel
from sandkeep_store.views.processes import ProcessState
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.turns import Turns
from sandkeepd.sandboxes.process_lookup import ProcessLookup

MAX_REMEMBERED: Final = 1000
"""Cancellations remembered of each owner. Those of a daemon that died are not: no launch is on its way to the next."""


class Cancellations:
    """The launches that their callers gave up."""

    def __init__(self, core: Core, lookup: ProcessLookup) -> None:
        self._core = core
        self._lookup = lookup
        self._turns = Turns()
        self._remembered: dict[str, deque[str]] = {}

    @asynccontextmanager
    async def excluded(self, request: Request[Any]) -> AsyncIterator[None]:
        """For the length of a block that begins a launch, exclude its cancellation. Raises `conflict` after one."""
        if request.command_id is None:
            yield
            return
        async with self._turns.of((request.owner, request.command_id)):
            if request.command_id in self._remembered.get(request.owner, ()):
                message = f"command_id {request.command_id!r} was cancelled by its caller: use a new one"
                raise StateError("conflict", message, command_id=request.command_id)
            yield

    async def cancel(self, request: Request[ProcessCancel]) -> ProcessState | None:
        """Remember a cancellation, and return the launch's process if it has begun."""
        launch = request.params.launch
        async with self._turns.of((request.owner, launch)):
            self._remembered.setdefault(request.owner, deque(maxlen=MAX_REMEMBERED)).append(launch)
            return await self.find(request)

    async def find(self, request: Request[ProcessCancel]) -> ProcessState | None:
        """Return the process of a launch; None if the owner gave no such command, or one that is no launch."""
        first = await self._core.log.find_command(request.params.launch, request.owner)
        if first is None or first.sandbox_id is None or first.type != events.ProcessLaunchRequested.type:
            return None
        return await self._lookup.find(first.sandbox_id, first.stream)
