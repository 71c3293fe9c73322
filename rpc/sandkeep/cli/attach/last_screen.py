"""What stays on our screen of a terminal that was shown there, and has ended.

It was shown on the alternate screen, and has gone with that. Who typed something was there, and knows what happened.
Who typed nothing waits for what a command has to say, and may have seen nothing of it if it was quick.
"""

import re
from contextlib import suppress
from typing import Final

from sandkeep.cli.attach.journals import write_all
from sandkeep.cli.attach.session import Collector, Reader
from sandkeep.errors import StateError
from sandkeep.protocol.control_sequences import Filter

MOST_BYTES: Final = 64 * 1024
"""How much of the last lines stays; one can be endless."""

_WHOLE_SCREEN: Final = re.compile(rb"\x1b\[\?(?:1049|1047|47)h")
_NO_COLOUR: Final = rb"\x1b(?!\[[0-9;:]*[mK])"
_STRING: Final = rb"[P\]_^X][^\x07\x1b]*(?:\x07|\x1b\\)?"
_NO_TEXT: Final = re.compile(
    _NO_COLOUR + rb"(?:\[[0-?]*[ -/]*[@-~]|" + _STRING + rb"|[ -/]*[0-~]?)|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f]"
)
"""What does more than write on: every sequence but those for colours and for clearing the rest of a line."""


def leave(reader: Reader, rows: int) -> None:
    """Leave the last lines that an ended process wrote to its terminal on our screen.

    Nothing of a program that took the whole screen: what it wrote is a picture, and no lines.
    """
    with suppress(StateError):  # the code inside has put something else in the place of the journal
        written = _last(reader, rows)
        text = Filter().feed(_NO_TEXT.sub(b"", written))
        if text and not _WHOLE_SCREEN.search(written):
            write_all(1, text + b"\x1b[m" + (b"" if text.endswith(b"\n") else b"\r\n"))


def _last(reader: Reader, rows: int) -> bytes:
    out_at, err_at = reader.last_lines(rows)
    kept = Collector()
    reader.follow(kept, max(out_at, reader.sizes()[0] - MOST_BYTES), err_at, follow=False)
    return bytes(kept.stdout)
