"""The demo's output: titles, commands, their output, and the events beside them.

Two threads print, the demo and the follower of events; each line is printed whole. Colours are for terminals, and
NO_COLOR is obeyed.
"""

import sys
import textwrap
import threading
import time
from typing import Final

from sandkeep.cli.display.output import cut, paint, plain

WIDTH: Final = 80
READING_S: Final = 0.6


class Stage:
    """Says one line at a time."""

    def __init__(self, *, fast: bool) -> None:
        self._lock = threading.Lock()
        self._pause = 0.0 if fast else READING_S
        self._step = 0

    def say(self, line: str = "") -> None:
        """Print a line at once."""
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def title(self, text: str) -> None:
        """Begin a step, after time to read the last."""
        time.sleep(self._pause)
        self._step += 1
        self.say()
        self.say(paint(f"{self._step:>2}  {text}", "bold"))

    def command(self, argv: str) -> None:
        """Show the command that is run."""
        self.say("    " + paint(f"$ {argv}", "cyan"))

    def output(self, line: str, *, error: bool = False) -> None:
        """Show a line that a command printed; errors are wrapped instead of cut."""
        if not error:
            return self.say("    " + cut(plain(line), WIDTH - 4))
        for piece in textwrap.wrap(plain(line), WIDTH - 4) or [""]:
            self.say("    " + paint(piece, "yellow"))
        return None

    def event(self, line: str) -> None:
        """Show an event, as it was committed."""
        self.say(paint(cut(f"      ◦ {line}".rstrip(), WIDTH), "dim"))

    def fact(self, text: str) -> None:
        """Show a check that succeeded."""
        self.say("    " + paint("✓ ", "green") + text)

    def failure(self, text: str) -> None:
        """Show a check that failed."""
        self.say("    " + paint("✗ ", "red") + text)
