"""Frames between the daemon and the relay in a pod: see ``relay.c``. No input or output here.

The relay runs where hostile code has its user, so whatever it sends is checked: names, numbers and lengths. Nothing is
kept beyond one frame.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from sandkeep.errors import ProviderError

EXITS: Final = "exits"
"""The name of the keeper's answers among the journals."""

MAX_DATA_BYTES: Final = 65536
"""Maximum length of the data of one frame."""

_MAX_HEADER_BYTES: Final = 256
_MAX_OFFSET: Final = 1 << 42
_MAX_REQUEST: Final = 1 << 53
"""Far more requests than any sandbox gets."""

_ID: Final = rb"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_JOURNAL: Final = _ID + rb"\.(?:stdout|stderr|data)"
_INPUT: Final = _ID + rb"(?:\.[A-Za-z0-9_-]{1,7})?"
_NUMBER: Final = rb"[0-9]{1,18}"
_FORMS: Final = {
    b"hello": rb"1 (?P<number>%b)" % _NUMBER,
    b"in": rb"(?P<name>%b) (?P<number>%b)" % (_INPUT, _NUMBER),
    b"ready": rb"",
    b"data": rb"(?P<name>exits|%b) (?P<number>%b) (?P<length>[0-9]{1,9})" % (_JOURNAL, _NUMBER),
    b"cut": rb"",
    b"name": rb"(?P<name>%b) (?P<new>%b)" % (_JOURNAL, _JOURNAL),
    b"gone": rb"(?P<name>%b)" % _JOURNAL,
    b"took": rb"(?P<number>%b)" % _NUMBER,
    b"lack": rb"(?P<name>%b) (?P<number>%b)" % (_INPUT, _NUMBER),
    b"synced": rb"",
}
_PATTERNS: Final = {verb: re.compile(form) for verb, form in _FORMS.items()}
_INPUT_NAME: Final = re.compile(_INPUT.decode())
_JOURNAL_NAME: Final = re.compile(_JOURNAL.decode())


class Frame(NamedTuple):
    """One frame from the relay; `number` is an offset, a size, or the number of a request."""

    verb: str
    name: str = ""
    number: int = 0
    new: str = ""
    data: bytes = b""


def is_input(name: str) -> bool:
    """Return True for a name in `in` that is mirrored."""
    return _INPUT_NAME.fullmatch(name) is not None


def is_journal(name: str) -> bool:
    """Return True for the name of a journal."""
    return _JOURNAL_NAME.fullmatch(name) is not None


def broken(why: str) -> ProviderError:
    """Return the error for a relay that breaks the protocol."""
    message = f"the relay in the pod {why}: the code inside has replaced it; terminate the sandbox"
    return ProviderError("provider_unavailable", message)


class FrameReader:
    """Splits a stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> Iterator[Frame]:
        """Yield the frames that are complete with these bytes. Raises `provider_unavailable`."""
        self._buffer += data
        at = 0
        try:
            while (end := self._buffer.find(b"\n", at, at + _MAX_HEADER_BYTES)) >= 0:
                frame, length = _parse(bytes(self._buffer[at:end]))
                if len(self._buffer) - end - 1 < length:
                    break
                at = end + 1 + length
                yield frame._replace(data=bytes(self._buffer[end + 1 : at])) if length else frame
            else:
                if len(self._buffer) - at >= _MAX_HEADER_BYTES:
                    raise broken("sent a line without end")
        finally:
            del self._buffer[:at]


def _parse(line: bytes) -> tuple[Frame, int]:
    verb, _, rest = line.partition(b" ")
    pattern = _PATTERNS.get(verb)
    match = pattern.fullmatch(rest) if pattern else None
    if match is None:
        raise broken(f"sent {line[:80]!r}")
    found = {key: value.decode() for key, value in match.groupdict().items()}
    number, length = int(found.get("number", "0")), int(found.get("length", "0"))
    if length > MAX_DATA_BYTES or number > (_MAX_REQUEST if verb in (b"hello", b"took") else _MAX_OFFSET):
        raise broken(f"sent a number out of range in {line[:80]!r}")
    return Frame(verb.decode(), found.get("name", ""), number, found.get("new", "")), length


def have(name: str, size: int) -> bytes:
    """Tell the end of a journal in the mirror."""
    return f"have {name} {size}\n".encode()


def begin(most_bytes: int) -> bytes:
    """Ask for all that the mirror does not have, at most so much of each journal."""
    return f"begin {most_bytes}\n".encode()


def put(name: str, offset: int, data: bytes) -> bytes:
    """Put bytes into a file in `in`."""
    return f"put {name} {offset} {len(data)}\n".encode() + data


def remove(name: str) -> bytes:
    """Remove a file in `in`."""
    return f"rm {name}\n".encode()


def drop(name: str) -> bytes:
    """Remove a journal."""
    return f"drop {name}\n".encode()


def punch(name: str, size: int) -> bytes:
    """Free the disk of the first bytes of a journal."""
    return f"punch {name} {size}\n".encode()


def ask(number: int, line: bytes) -> bytes:
    """Give the keeper a request, a line with its newline."""
    return f"ask {number} {len(line)}\n".encode() + line
