"""``stream.access``: where the stream server listens, its pin, and the caller's token for it."""

from collections.abc import Sequence

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

    def published(self, advertised: Sequence[str]) -> list[str]:
        """Return the addresses for clients elsewhere: those given, or those on TCP. Ours on TLS have the pin."""
        addresses = advertised or [one for one in self._addresses if "://" in one]
        mine = f"#{self._pin}" if self._pin else ""
        return [one + mine if one.startswith("tls://") and "#" not in one else one for one in addresses]

    async def access(self, request: Request[StreamQuery]) -> StreamAccess:
        """Return the caller's address and token for TCP. The kernel vouches for the caller's uid."""
        uid = request.peer.uid
        token = await self._tokens.renew(uid) if request.params.renew else self._tokens.token(uid)
        return self._answer(token)

    async def answer_again(self, request: Request[StreamQuery]) -> StreamAccess:
        """Answer a repeated command: an earlier renewal is not repeated."""
        return self._answer(self._tokens.token(request.peer.uid))

    def _answer(self, token: str) -> StreamAccess:
        return StreamAccess(addresses=self._addresses, token=token, pin=self._pin)
