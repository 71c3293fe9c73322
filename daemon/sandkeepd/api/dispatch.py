"""Dispatch of calls to handlers: access first, then, for changes, the guarantee of at most one execution."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sandkeep.protocol.methods import METHODS, Mutation
from sandkeepd.api.repeated_commands import RepeatedCommands
from sandkeepd.core.access import Request, admit
from sandkeepd.core.call import Call
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Again, Command, Handle

HandleNow = Callable[[Request[Any]], Any]


class Dispatch:
    """The daemon's handler of calls. Each method of the table has one handler, which `handlers` or `at_once` names, and
    each that changes something is declared in `commands`.
    """

    def __init__(
        self,
        core: Core,
        handlers: Mapping[str, Handle],
        at_once: Mapping[str, HandleNow],
        commands: Sequence[Command],
    ) -> None:
        again = {command.method: command.again for command in commands}
        _check_complete(handlers, at_once, again)
        self._core = core
        self._handlers = handlers
        self._commands = RepeatedCommands(core, again)
        self.immediate: Mapping[str, Callable[[Call], Any]] = {
            name: self._immediately(handle) for name, handle in at_once.items()
        }

    def _immediately(self, handle: HandleNow) -> Callable[[Call], Any]:
        return lambda call: handle(admit(self._core.state, call))

    async def __call__(self, call: Call) -> Any:
        """Answer a call. Raises SandkeepError."""
        request = admit(self._core.state, call)
        handle = self._handlers[call.method.name]
        with self._core.quotas.calling(request):
            if not isinstance(request.params, Mutation) or request.params.command_id is None:
                return await handle(request)
            return await self._commands.once(call, request, handle)


def _check_complete(
    handlers: Mapping[str, Handle], at_once: Mapping[str, HandleNow], again: Mapping[str, Again]
) -> None:
    wrong = {*handlers, *at_once, "rpc.discover"} ^ set(METHODS)
    wrong |= {name for name, row in METHODS.items() if row.mutates} ^ set(again)
    if wrong:
        raise TypeError(f"handlers and table differ: {wrong}")
