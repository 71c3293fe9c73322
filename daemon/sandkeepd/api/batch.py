"""The answers to a batch, gathered until they go out together."""

from typing import Final

from msgspec import Raw

from sandkeep.errors import CallerError
from sandkeep.protocol import jsonrpc
from sandkeep.protocol.jsonrpc import Fault, Request
from sandkeep.protocol.lines import MAX_LINE_BYTES
from sandkeepd.serving.holdings import Share

_MAX_BYTES: Final = MAX_LINE_BYTES - 1024 * 1024  # the rest is for the errors of those that do not fit


class BatchAnswers:
    """Keeps the answers to a batch, as many as one line can hold; those beyond become errors that say so."""

    def __init__(self, share: Share) -> None:
        self.lines: list[bytes] = []
        self._bytes = 0
        self._share = share

    def add(self, message: Request | Fault, answer: bytes | None) -> None:
        """Keep an answer, if there is one."""
        if answer is None:
            return
        if self._bytes + len(answer) > _MAX_BYTES:
            answer = _too_much(message.id)
        self._bytes += len(answer)
        self.lines.append(answer)
        self._share.add(len(answer))

    def joined(self) -> bytes:
        """The one answer, which is all that is left of them."""
        whole = jsonrpc.array(self.lines)
        self.forget()
        return whole

    def forget(self) -> None:
        """Hold none of them any more."""
        self._share.subtract(self._bytes)
        self._bytes = 0
        self.lines.clear()


def _too_much(request_id: Raw) -> bytes:
    return jsonrpc.error(
        request_id,
        CallerError(
            "invalid", "the answers to this batch are longer than 16 MiB: it was done, but ask for its answer alone"
        ),
    )
