"""The deadline of a call, which its method's row says."""

from typing import Any

import trio

from sandkeep.errors import StateError
from sandkeepd.core.call import Call, Handler


async def within_deadline(handler: Handler, call: Call) -> Any:
    """Let a handler answer a call. Raises `timeout` when its method's deadline passes."""
    deadline_s = call.method.deadline_s
    if deadline_s is None:
        return await handler(call)
    value = None
    with trio.move_on_after(deadline_s) as scope:
        value = await handler(call)
    if scope.cancelled_caught:
        message = f"{call.method.name} took longer than {deadline_s:g} s: check its result before you try again"
        raise StateError("timeout", message, deadline_s=deadline_s)
    return value
