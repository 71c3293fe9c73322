"""The interface of an open websocket for endpoints."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import trio
from msgspec import Struct

from sandkeep.errors import CallerError
from sandkeep.protocol import frames
from sandkeep.protocol.frames import FromClient, Message
from sandkeep.protocol.methods import METHODS, Params
from sandkeep.protocol.wire import Connection
from sandkeepd.core.access import Request, admit
from sandkeepd.core.call import Call, Give, cannot_give
from sandkeepd.core.core import Core
from sandkeepd.core.peer import Peer
from sandkeepd.serving import params

P = TypeVar("P", bound=Params)


class Session:
    """Sends and receives. All of it raises ConnectionClosed once the client has gone.

    Nothing is queued: sent data is in the kernel when `send` returns, and a client's data waits there until it is
    received. So a stalled client stops the one task that serves it, which holds one piece at most.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.send_bytes: Callable[[bytes], Awaitable[None]] = connection.send_message
        self.send_text: Callable[[str], Awaitable[None]] = connection.send_message
        self.room: Callable[[], Awaitable[None]] = connection.room

    async def send(self, message: Message) -> None:
        """Send a text message."""
        await self._connection.send_message(frames.encode(message).decode())

    async def receive(self) -> bytes | FromClient:
        """Return the client's next message: bytes, or a `FromClient`. Raises `invalid` for anything else."""
        got = await self._connection.get_message()
        if isinstance(got, bytes):
            return got
        try:
            message: FromClient = frames.decode_from_client(got)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CallerError("invalid", f"unexpected message: {str(error)[:200]}") from None
        return message

    async def receive_text(self) -> str | bytes:
        """Return the client's next message as it is."""
        got: str | bytes = await self._connection.get_message()
        return got

    async def close(self, code: int) -> None:
        """Close the websocket with a code of another protocol than ours."""
        await self._connection.aclose(code)

    async def run_send_only(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` until it is done or the client has gone; refuse any message of the client."""
        async with trio.open_nursery() as nursery:

            async def expect_nothing() -> None:
                await self.receive()
                raise CallerError("invalid", "unexpected message: this endpoint only sends")

            nursery.start_soon(expect_nothing)
            await work()
            nursery.cancel_scope.cancel()


class Client(Struct, frozen=True):
    """The peer and target of a websocket request."""

    peer: Peer
    target: frames.Target

    def query(self, wanted: type[P]) -> P:
        """The target's query. Raises `invalid`, naming the field."""
        try:
            return frames.parse_query(wanted, self.target.query)
        except msgspec.ValidationError as error:
            raise params.refusal(wanted, str(error)) from None

    def request(self, core: Core, method: str, wanted: P) -> Request[P]:
        """The same as if the client had called that method: let through, or refused as there."""
        return admit(core.state, self.call(method, wanted))  # type: ignore[return-value]

    def call(self, method: str, wanted: Params, give: Give = cannot_give) -> Call:
        """The call of that method, for `Dispatch`."""
        return Call(METHODS[method], wanted, self.peer, client="stream", give=give)


Handler = Callable[[Session], Awaitable[None]]


Endpoint = Callable[[Client], Awaitable[Handler]]
"""One path: checks a request, and returns what serves it. A `SandkeepError` refuses it before there is a websocket."""


def validated(wanted: type[P], **values: object) -> P:
    """Parameters of a method from text of a target, held to the same rules. Raises `invalid`."""
    try:
        return msgspec.convert(values, wanted)
    except msgspec.ValidationError as error:
        raise params.refusal(wanted, str(error)) from None
