"""From a call to its handler: access first, then, for what changes something, the promise that it is done only once."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from sandkeep.clock import now_us
from sandkeep.errors import StateError
from sandkeep.methods import METHODS
from sandkeep_store.log import Recorded
from sandkeepd.access import Request, admit
from sandkeepd.api.call import Call
from sandkeepd.core import Core

Handle = Callable[[Request[Any]], Awaitable[Any]]
HandleNow = Callable[[Request[Any]], Any]
Again = Callable[[Request[Any], Recorded], Awaitable[Any]]

REMEMBERED_US: Final = 24 * 3600 * 1_000_000
"""How long a command given again gets its first answer."""


class Dispatch:
    """The daemon's handler of calls. Each method of the table has one handler, which `handlers` or `at_once` names.

    `again` names, for each method that has an intent, how its answer is found once the intent is on record.
    """

    def __init__(
        self, core: Core, handlers: Mapping[str, Handle], at_once: Mapping[str, HandleNow], again: Mapping[str, Again]
    ) -> None:
        self._core = core
        self._handlers = handlers
        self._again = again
        self._running: dict[tuple[str, str], trio.Event] = {}
        self._check_complete(at_once)
        self.immediate: Mapping[str, Callable[[Call], Any]] = {
            name: self._immediately(handle) for name, handle in at_once.items()
        }

    def _check_complete(self, at_once: Mapping[str, HandleNow]) -> None:
        answered = {*self._handlers, *at_once, "rpc.discover", "rpc.hello"}
        repeated = {name for name, row in METHODS.items() if row.intent is not None}
        if answered != set(METHODS) or repeated != set(self._again):
            raise TypeError(f"handlers and table differ: {answered ^ set(METHODS) or repeated ^ set(self._again)}")

    def _immediately(self, handle: HandleNow) -> Callable[[Call], Any]:
        return lambda call: handle(admit(self._core.state, call))

    async def __call__(self, call: Call) -> Any:
        """Answer a call. Raises SandkeepError."""
        request = admit(self._core.state, call)
        handle = self._handlers[call.method.name]
        if request.command_id is None or call.method.intent is None:
            return await handle(request)
        return await self._once(request, handle, (request.owner, request.command_id))

    async def _once(self, request: Request[Any], handle: Handle, key: tuple[str, str]) -> Any:
        while key in self._running:
            await self._running[key].wait()
        self._running[key] = trio.Event()
        try:
            first = await self._core.log.find_command(key[1], request.owner)
            if first is not None and now_us() - first.time_us < REMEMBERED_US:
                return await self._repeat(request, first)
            return await handle(request)
        finally:
            self._running.pop(key).set()

    async def _repeat(self, request: Request[Any], first: Recorded) -> Any:
        subject = getattr(request.params, "sandbox_id", None)
        if first.type != request.method.intent or (subject is not None and first.sandbox_id != subject):
            raise StateError(
                "conflict",
                f"command_id {request.command_id!r} was given with another command: use a new one",
                command_id=request.command_id,
            )
        return await self._again[request.method.name](request, first)
