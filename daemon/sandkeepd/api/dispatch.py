"""Dispatch of calls to handlers: access first, then, for changes, the guarantee of at most one execution."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import trio
from msgspec.structs import replace

from sandkeep.errors import CallerError, StateError
from sandkeep.protocol.methods import METHODS, EventQuery, Mutation
from sandkeep_store.threads import working_for
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SessionState
from sandkeepd.api.repeated_commands import RepeatedCommands
from sandkeepd.contract.caller import no_progress
from sandkeepd.core.access import Request, admit
from sandkeepd.core.call import Call
from sandkeepd.core.core import Core
from sandkeepd.core.messages import named_answer, named_progress, with_names
from sandkeepd.core.operation import Again, Command, Handle

END_KNOWN_S: Final = 2.0
"""Seconds in which the end of a sandbox is on record after a call found it gone."""

HandleNow = Callable[[Request[Any]], Any]
BringBack = Callable[[Request[Any], SessionState], Awaitable[str]]
"""Makes a session ready, and returns the id of its sandbox."""

Attached = Callable[[str], AbstractContextManager[None]]
"""Counts a client as attached to a sandbox for the length of a block."""


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
        bring_back: BringBack,
        attached: Attached,
    ) -> None:
        again = {command.method: command.again for command in commands}
        _check_complete(handlers, at_once, again)
        self._core = core
        self._handlers = handlers
        self._bring_back = bring_back
        self._attached = attached
        self._commands = RepeatedCommands(core, again)
        self.immediate: Mapping[str, Callable[[Call], Any]] = {
            name: self._immediately(handle) for name, handle in at_once.items()
        }

    def _immediately(self, handle: HandleNow) -> Callable[[Call], Any]:
        def answer(call: Call) -> Any:
            request = admit(self._core.state, call)
            with with_names(self._core.state, request):
                return named_answer(self._core.state, request, handle(request))

        return answer

    async def __call__(self, call: Call) -> Any:
        """Answer a call. Raises SandkeepError."""
        request, handle = self._admitted(call)
        with (
            with_names(self._core.state, request),
            self._core.quotas.calling(request),
            working_for(request.owner, is_urgent=request.admin),
        ):
            if request.command_id is None:
                answer = await handle(request)
            else:
                answer = await self._commands.once(call, request, handle)
            return named_answer(self._core.state, request, answer)

    def _admitted(self, call: Call) -> tuple[Request[Any], Handle]:
        """Let a call through, or raise as `admit` does. A command that may be a repeated one is let through although
        its names mean nothing, perhaps any more: its handler raises that.
        """
        state = self._core.state
        try:
            return self._reporting(admit(state, call)), self._handler_of(call)
        except CallerError as unknown:
            if not isinstance(call.params, Mutation) or call.params.command_id is None or call.method.intent is None:
                raise
            refusal = unknown

        async def refuse(_: Request[Any]) -> Any:
            raise refusal

        return self._reporting(admit(state, call, may_be_known=True)), refuse

    def _reporting(self, request: Request[Any]) -> Request[Any]:
        """Return the request, whose progress says names."""
        if request.progress is no_progress:
            return request
        return replace(request, progress=named_progress(self._core.state, request, request.progress))

    def _handler_of(self, call: Call) -> Handle:
        """Return the handler of a call, which makes the session ready first that is named for a sandbox."""
        handle = self._handlers[call.method.name]
        follows = isinstance(call.params, EventQuery) and call.params.wait_s > 0
        if not call.method.revives and not follows:
            return handle
        handle = partial(self._handle_attached, handle)
        if not call.method.revives:
            return handle
        state, owner, named = self._core.state, call.peer.owner, call.params.sandbox_id  # type: ignore[attr-defined]
        sandbox, session = state.sandbox_named(owner, named), state.session_called(owner, named)
        if sandbox is not None and not sandbox.hidden and sandbox.spec.session_id is None:
            return handle  # it got the name while the session had none
        return partial(self._handle_ready, handle, session) if session is not None else handle

    async def _handle_attached(self, handle: Handle, request: Request[Any]) -> Any:
        with self._attached(request.params.sandbox_id):
            return await handle(request)

    async def _handle_ready(self, handle: Handle, session: SessionState, request: Request[Any]) -> Any:
        has_given, used = False, session.sandbox_id or ""

        async def give(descriptors: Sequence[int]) -> None:
            nonlocal has_given
            has_given = True
            await request.give(descriptors)

        async def handle_once() -> Any:
            nonlocal used
            used = await self._bring_back(request, session)
            return await handle(replace(request, params=replace(request.params, sandbox_id=used), give=give))

        try:
            return await handle_once()
        except StateError as ended:
            if has_given or ended.code != "not_ready":
                raise
            if not await self._ended_before(ended, session, self._core.state.sandboxes.get(used)):
                raise
            return await handle_once()

    async def _ended_before(self, ended: StateError, session: SessionState, sandbox: SandboxState | None) -> bool:
        """Return True if a call failed because its sandbox ended at that moment, before it had an effect that lasts."""
        process = self._core.state.processes.get(ended.data.get("process_id", ""))
        if "process_id" in ended.data and (process is None or not process.interrupted):  # it may have run
            return not session.is_ready(sandbox) and (sandbox is None or sandbox.status == "lost")
        with trio.move_on_after(END_KNOWN_S):  # the call may have found the sandbox gone before the daemon knows
            while sandbox is not None and session.is_ready(sandbox):
                await self._core.changed(sandbox.sandbox_id)
        return not session.is_ready(sandbox)


def _check_complete(
    handlers: Mapping[str, Handle], at_once: Mapping[str, HandleNow], again: Mapping[str, Again]
) -> None:
    wrong = {*handlers, *at_once, "rpc.discover"} ^ set(METHODS)
    wrong |= {name for name, row in METHODS.items() if row.mutates} ^ set(again)
    if wrong:
        raise TypeError(f"handlers and table differ: {wrong}")
