"""Progress of a long call: one line on stderr if that is a terminal, erased when the call has ended.

Piped, nothing is shown. The line comes after a moment, so that quick calls show none.
"""

import os
import re
import sys
from typing import Final, Self

from sandkeep.cli.display.layout import cut, plain
from sandkeep.cli.display.output import note, terminal_width

PATIENCE_S: Final = 0.4
_BEAT_S: Final = 0.1
_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES: Final = "|/-\\"
_ERASE: Final = "\r\x1b[K"


_REVIVAL: Final = re.compile(r"session \S+ was brought back")


def note_revival(message: str) -> None:
    """Print a message for good that says that a session was brought back: its processes have gone, and maybe files."""
    if _REVIVAL.match(message):
        note(f"sandkeep: {plain(message)}")


def progress(message: str) -> "Progress":
    """Return the ``progress=`` of a call, as a context manager. It shows `message` until the daemon reports."""
    return Progress(message)


class Progress:
    """Shows the last progress message, beside an animation."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._room = terminal_width(sys.stderr) if os.environ.get("TERM", "dumb") != "dumb" else None

    def __call__(self, message: str) -> None:
        """Show this message from now on."""
        note_revival(message)
        self._message = message

    def __enter__(self) -> Self:
        if self._room is not None:
            from threading import Event, Thread

            self._ended = Event()
            self._thread = Thread(target=self._run, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._room is not None:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        """Show the latest progress until the end, then erase it. Errors of it never fail the command."""
        try:
            if self._ended.wait(PATIENCE_S):
                return
            self._animate()
            _draw(_ERASE)
        except (OSError, ValueError):
            return  # the terminal went away

    def _animate(self) -> None:
        frames = _FRAMES if "utf" in (sys.stderr.encoding or "").lower() else _PLAIN_FRAMES
        turn = 0
        while True:
            line = cut(f"{frames[turn % len(frames)]} {plain(self._message)}", (self._room or 1) - 1)
            _draw(f"\r{line}\x1b[K")
            turn += 1
            if self._ended.wait(_BEAT_S):
                return


def _draw(sequence: str) -> None:
    sys.stderr.write(sequence)
    sys.stderr.flush()
