"""``stream.access``: where the stream server listens, its pin, and the caller's token for it."""

from sandkeep.model import StreamAccess
from sandkeep.protocol.methods import StreamQuery
from sandkeepd.core.access import Request
from sandkeepd.stream.tokens import Tokens


class Access:
    """The handler. `addresses` are those on which the server really listens; `pin` is that of its certificate."""

    def __init__(self, addresses: list[str], tokens: Tokens, pin: str | None = None) -> None:
        self._addresses = addresses
        self._tokens = tokens
        self._pin = pin

    async def access(self, request: Request[StreamQuery]) -> StreamAccess:
        """Tell the caller, whom the kernel vouches for, what it needs on TCP."""
        uid = request.peer.uid
        token = await self._tokens.renew(uid) if request.params.renew else self._tokens.token(uid)
        return self._answer(token)

    async def given_before(self, request: Request[StreamQuery]) -> StreamAccess:
        """The answer to a command that was given before: what was renewed then is not renewed again."""
        return self._answer(self._tokens.token(request.peer.uid))

    def _answer(self, token: str) -> StreamAccess:
        return StreamAccess(addresses=self._addresses, token=token, pin=self._pin)
