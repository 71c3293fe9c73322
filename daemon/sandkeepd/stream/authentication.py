"""Authentication of websockets: from the opening request to its peer, or a refusal.

On a Unix socket the kernel vouches for the peer. On TCP any program on the machine can connect, a web page in a browser
included; there a token identifies the user, and the Host header must be that of the machine itself, since a page whose
own name points here could otherwise pass for one of ours.
"""

import base64
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from trio_websocket import WebSocketRequest

from sandkeep.errors import CallerError, SandkeepError
from sandkeep.protocol.frames import PROTOCOL, TOKEN_PROTOCOL
from sandkeepd.core.peer import Peer
from sandkeepd.stream.tokens import Tokens

_LOOPBACK: Final = frozenset({"127.0.0.1", "[::1]", "localhost"})
_NO_GROUP: Final = 2**32 - 1  # chown's "leave it", and so nobody's


class RefusedError(Exception):
    """A request that is answered with an HTTP status instead of a websocket."""

    def __init__(self, status: int, error: SandkeepError) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error


def check_host(host: str, advertised: Sequence[str]) -> None:
    """Refuse a Host header with any name but this machine's own and those of its addresses. Raises `RefusedError`."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() not in (*_LOOPBACK, *advertised):
        message = (
            "the Host header must be that of this machine itself: connect to 127.0.0.1, [::1] or localhost, or to an "
            "address of SANDKEEP_STREAM_ADVERTISED"
        )
        raise _refused(403, message)


def peer_by_token(request: WebSocketRequest, tokens: Tokens) -> Peer:
    """Return the peer of a TCP request. A token gives its user's rights, not groups'. Raises `RefusedError`."""
    peer = user_by_token(request, tokens)
    if peer is None:
        what = "a valid token" if _given(request) else "a token"
        raise _refused(401, f"give {what}: `stream.access` on the daemon's socket returns yours")
    return peer


def user_by_token(request: WebSocketRequest, tokens: Tokens) -> Peer | None:
    """Return the same, or None if the request has not exactly one token that is valid."""
    given = _given(request)
    uid = tokens.uid_of(given[0]) if len(given) == 1 else None
    return Peer(uid=uid, gid=_NO_GROUP) if uid is not None else None


def peer_of_owner(owner: str) -> Peer:
    """Return the peer that stands for an owner, with that user's rights alone."""
    return Peer(uid=int(owner.removeprefix("uid:")), gid=_NO_GROUP)


def check_origin(request: WebSocketRequest, allowed: Sequence[str]) -> None:
    """Refuse web pages, but for those of origins that the administrator allows. Raises `RefusedError`."""
    for origin in _values(request, b"origin"):
        if origin not in allowed:
            raise _refused(
                403,
                "web pages of this origin are refused: the administrator can allow it in SANDKEEP_STREAM_ORIGINS",
            )


def subprotocol(request: WebSocketRequest) -> str | None:
    """The subprotocol to select. Raises `RefusedError` when others are proposed, but not ours."""
    proposed = request.proposed_subprotocols
    if proposed and PROTOCOL not in proposed:
        raise RefusedError(400, CallerError("invalid", f"propose the subprotocol {PROTOCOL}, or none"))
    return PROTOCOL if proposed else None


def _given(request: WebSocketRequest) -> list[str]:
    return [*_bearers(request), *_proposed_tokens(request)]


def _bearers(request: WebSocketRequest) -> list[str]:
    """Return the tokens in `Authorization`, with an empty one for every other scheme.

    A token may be the password of any user: clients that know an address alone send that from it.
    """
    found = []
    for value in _values(request, b"authorization"):
        scheme, _, given = value.partition(" ")
        token = ""
        if scheme.lower() == "bearer":
            token = given.strip()
        elif scheme.lower() == "basic":
            with suppress(ValueError):
                token = base64.b64decode(given.strip(), validate=True).decode().partition(":")[2]
        found.append(token)
    return found


def _proposed_tokens(request: WebSocketRequest) -> list[str]:
    proposed = request.proposed_subprotocols
    return [word.removeprefix(TOKEN_PROTOCOL) for word in proposed if word.startswith(TOKEN_PROTOCOL)]


def _values(request: WebSocketRequest, name: bytes) -> list[str]:
    return [value.decode("latin-1") for header, value in request.headers if header == name]


def _refused(status: int, message: str) -> RefusedError:
    return RefusedError(status, CallerError("permission_denied", message))
