"""The interface of handlers: one call, checked and decoded, and the two ways to answer it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from sandkeep.errors import SetupError
from sandkeep.protocol.methods import Method, Params
from sandkeepd.contract.caller import Progress, no_progress
from sandkeepd.core.peer import Peer

Give = Callable[[Sequence[int]], Awaitable[None]]


async def cannot_give(descriptors: Sequence[int]) -> None:  # noqa: ARG001  # it has the shape of `Give`
    """For a caller that no descriptor can be sent to."""
    raise SetupError("not_supported", "descriptors are given over the daemon's Unix socket only: call it there")


class Call(Struct, frozen=True, gc=False):
    """A call of a method of the table. `client` is the name that the peer gave itself with ``rpc.hello``, if it did.

    `progress` tells the caller, in a sentence, how far a long call is. It never waits for a slow reader and never
    fails. `give` sends the caller copies of open descriptors, ahead of the answer; the handler still closes its own.
    """

    method: Method
    params: Params
    peer: Peer
    client: str | None = None
    progress: Progress = no_progress
    give: Give = cannot_give


class Handler(Protocol):
    """Answers calls. It raises `SandkeepError` to refuse one; any other exception is a defect and `internal`.

    A call of a method that only reads is cancelled when its caller goes away; one that changes something runs to its
    end.
    """

    async def __call__(self, call: Call) -> Any:
        """Answer a call with something that the method's row says it answers."""
        ...


@runtime_checkable
class ImmediateHandler(Handler, Protocol):
    """A handler that knows methods which can be answered at once, without a task of their own.

    `immediate` maps their names to plain functions. Such a function must not block; it may answer `NotImplemented`
    for a call that has to wait after all, which then goes to the handler itself.
    """

    immediate: Mapping[str, Callable[[Call], Any]]
