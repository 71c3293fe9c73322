"""TLS 1.3 over a `Wire`, for the stream server on TCP: any program may listen on a port, so the server proves its key.

The key's certificate is pinned, not signed by an authority: its digest comes by the daemon's Unix socket, where file
permissions say who may listen.
"""

import hashlib
import hmac
import re
import ssl
from contextlib import suppress
from typing import Final

import trio

from sandkeep.protocol.wire import Turns, Wire

_PIN: Final = re.compile(r"[0-9a-f]{64}")


class SecureStream(trio.abc.Stream):
    """TLS over a wire, to which any number of tasks may send.

    The handshake is part of the first send or receive, unless `handshake` is called. A client that speaks plain HTTP
    gets `plain_answer`.
    """

    def __init__(self, wire: Wire, context: ssl.SSLContext, *, server_side: bool, plain_answer: bytes = b"") -> None:
        self._wire = wire
        self._tls = trio.SSLStream(wire, context, server_side=server_side, https_compatible=True)
        self._plain_answer = plain_answer
        self._sending = Turns()

    async def handshake(self) -> None:
        """Agree on keys. Raises `trio.BrokenResourceError`, whose cause may be an `ssl.SSLError`."""
        await self._tls.do_handshake()

    def has_pin(self, pin: str) -> bool:
        """Compare the digest of the other end's certificate, after the handshake."""
        certificate: bytes | None = self._tls.getpeercert(binary_form=True)
        return certificate is not None and hmac.compare_digest(pin_of(certificate), pin)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes, after other tasks have sent theirs. A cancelled call leaves the stream unusable."""
        async with self._sending:
            await self._tls.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the socket has room."""
        await self._wire.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Bytes that have arrived; none at the end."""
        try:
            return await self._tls.receive_some(max_bytes)
        except trio.BrokenResourceError as error:
            if isinstance(error.__cause__, ssl.SSLError) and error.__cause__.reason == "HTTP_REQUEST":
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._wire.send_all(self._plain_answer)
            raise

    async def aclose(self) -> None:
        """Let go of the socket."""
        await self._tls.aclose()


def client_context() -> ssl.SSLContext:
    """Return a context of TLS 1.3 without verification: the caller compares the pin before sending anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def pin_of(certificate: bytes) -> str:
    """The pin of a certificate in DER: its SHA-256 in hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


def parse_pin(text: str) -> str:
    """A pin as `pin_of` writes it, from digits in either case, with or without colons. Raises ValueError."""
    digits = text.replace(":", "").lower()
    if not _PIN.fullmatch(digits):
        raise ValueError("a pin is a SHA-256 in hexadecimal digits")
    return digits
