"""The table of methods as the server needs it: each row with its decoder and its quick way, looked up once."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from msgspec import Raw, Struct

from sandkeep.protocol import jsonrpc
from sandkeep.protocol.methods import METHODS, Access, Method, Params
from sandkeep.protocol.openrpc import document
from sandkeepd.core.call import Call, Handler, ImmediateHandler
from sandkeepd.serving import params

HELLO: Final = "rpc.hello"

# Bytes of an answer per unit of these parameters: base64 of two streams.
_ANSWER_BYTES: Final = {"max_bytes": 8 / 3, "inline_bytes": 8 / 3}


class Route(Struct, frozen=True, gc=False):
    """The execution of one method's calls.

    `lasting` calls run to their end although their caller has gone; `sized_by` is the parameter that bounds the size of
    the answer, and `factor` its bytes per unit.
    """

    method: Method
    decode: Callable[[Raw], Params]
    immediate: Callable[[Call], Any] | None
    lasting: bool
    sized_by: str | None = None
    factor: float = 0

    def weight(self, request_bytes: int, decoded: Params) -> int:
        """Return the maximum memory of a call of this method, in bytes."""
        return request_bytes + (int(getattr(decoded, self.sized_by) * self.factor) if self.sized_by else 0)


def routes_of(handler: Handler) -> dict[str, Route]:
    """A route for each method of the table."""
    immediate: dict[str, Callable[[Call], Any]] = {"rpc.discover": lambda _: _discovered()}
    if isinstance(handler, ImmediateHandler):
        immediate.update(handler.immediate)
    return {row.name: _route(row, immediate) for row in METHODS.values()}


@cache
def _discovered() -> Raw:
    """Return the OpenRPC document, made on first use: that takes a tenth of the whole start."""
    return Raw(jsonrpc.encode(document()))


def _route(row: Method, immediate: Mapping[str, Callable[[Call], Any]]) -> Route:
    sized_by = next((name for name in row.params.__struct_fields__ if name in _ANSWER_BYTES), None)
    return Route(
        method=row,
        decode=params.decoder(row.params),
        immediate=immediate.get(row.name),
        # An administrator's command, such as a shutdown, changes something too, though it makes no event of its own.
        lasting=(row.mutates or row.access is Access.ADMIN) and not row.needs_caller,
        sized_by=sized_by,
        factor=_ANSWER_BYTES.get(sized_by or "", 0),
    )
