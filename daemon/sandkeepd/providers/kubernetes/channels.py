"""The channels of an exec: the protocols `v4.channel.k8s.io` and `v5.channel.k8s.io`, without I/O.

Each websocket message is a channel's number, one byte, and its data.
"""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from sandkeepd.providers.common.remote import Outcome, readable

V5: Final = "v5.channel.k8s.io"
V4: Final = "v4.channel.k8s.io"

STDIN: Final = b"\x00"
STDOUT: Final = 1
STDERR: Final = 2
STATUS: Final = 3
RESIZE: Final = b"\x04"
CLOSE_STDIN: Final = b"\xff\x00"

MAX_STATUS_BYTES: Final = 64 * 1024
"""Maximum length of the command's Status; the cluster's own have some hundred bytes."""

_MAX_EXIT_CODE: Final = 255


class Demultiplexer:
    """Assigns the pieces of messages to channels. A message may come in any number of pieces and have any length."""

    def __init__(self) -> None:
        self._channel: int | None = None

    def feed(self, piece: bytes, *, is_last: bool) -> tuple[int | None, bytes]:
        """Return the channel of a piece and its data. The channel of an empty message is None."""
        channel = self._channel
        if channel is None and piece:
            channel, piece = piece[0], piece[1:]
        self._channel = None if is_last else channel
        return channel, piece


def exec_path(namespace: str, pod: str, command: Sequence[str], container: str | None, **streams: bool) -> str:
    """Return the path and query of an exec request."""
    query = [("command", word) for word in command]
    query += [(name, "true" if wanted else "false") for name, wanted in streams.items()]
    if container is not None:
        query.append(("container", container))
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/exec?{urlencode(query)}"


def resize_message(rows: int, cols: int) -> bytes:
    """Return the message that gives the command's terminal a size."""
    return RESIZE + b'{"Width":%d,"Height":%d}' % (cols, rows)


def outcome(status: bytes) -> Outcome:
    """Return the outcome that a Status reports. Never fails, whatever the bytes are."""
    document = _decode(status)
    message = readable(document.get("message"))
    if document.get("status") == "Success":
        return Outcome(0, message)
    details = document.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, dict) and cause.get("reason") == "ExitCode":
            return Outcome(_exit_code(cause.get("message")), message)
    return Outcome(None, message or "the cluster did not say how the command ended")


def _decode(document: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _exit_code(text: object) -> int | None:
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > len(str(_MAX_EXIT_CODE)):
        return None
    return int(text) if int(text) <= _MAX_EXIT_CODE else None


def status_message(body: bytes) -> str:
    """Return the message of the Status with which a request was refused, or the body itself."""
    return readable(_decode(body).get("message")) or readable(body.decode("utf-8", "replace"))
