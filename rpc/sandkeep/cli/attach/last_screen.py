"""The last lines of a terminal that has ended, left on our own screen.

The terminal was shown on the alternate screen, and has gone with that. Without any input from the user, the command's
output is the point, and a quick command may have ended unseen.
"""

import re
from contextlib import suppress
from typing import Final

from sandkeep.cli.attach.journals import write_all
from sandkeep.cli.attach.session import Collector, Reader
from sandkeep.errors import StateError
from sandkeep.protocol.control_sequences import Filter

MOST_BYTES: Final = 64 * 1024
"""Maximum size of the last lines; a line can be endless."""

_WHOLE_SCREEN: Final = re.compile(rb"\x1b\[\?(?:1049|1047|47)h")
_NO_COLOUR: Final = rb"\x1b(?!\[[0-9;:]*[mK])"
_STRING: Final = rb"[P\]_^X][^\x07\x1b]*(?:\x07|\x1b\\)?"
_NO_TEXT: Final = re.compile(
    _NO_COLOUR + rb"(?:\[[0-?]*[ -/]*[@-~]|" + _STRING + rb"|[ -/]*[0-~]?)|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f]"
)
"""Sequences with an effect beyond text: all but those for colours and for clearing the rest of a line."""


def leave(reader: Reader, rows: int) -> None:
    """Print the last lines that an ended process wrote to its terminal on our screen.

    Prints nothing of a full-screen program: its output is a picture, and no lines.
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
