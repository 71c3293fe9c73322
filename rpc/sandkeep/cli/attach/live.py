"""A live table on the whole terminal, which is restored afterwards."""

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Final, Self

from sandkeep.cli.attach.journals import write_all
from sandkeep.cli.attach.terminal import DEFAULT_SIZE, SignalledError

_ENTER: Final = b"\x1b[?1049h\x1b[?25l"
"""To the alternate screen, and no cursor."""

_LEAVE: Final = b"\x1b[m\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
"""Comes before a line: after one that is as wide as the terminal it would take its last character."""

_CLEAR_REST: Final = "\x1b[J"
_LEAVING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_ENDS: Final = b"qQ\x04"
"""The keys that end it: q and Ctrl-D. Ctrl-C is a signal."""

_SPECIAL: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O?.)?", re.DOTALL)
"""Sequences of other keys, such as arrows; several may come at once."""

Lines = Callable[[int], Iterable[str]]
"""The lines to show, for so many columns."""


class Live:
    """The terminal, for the length of a block. Ctrl-C and signals that end us leave the block as exceptions."""

    def __init__(self) -> None:
        self._source, self._sink = 0, sys.stdout.fileno()
        self._has_keys = os.isatty(self._source)
        self._before: list[Any] | None = None
        self._handlers: list[tuple[int, Any]] = []
        self._wakes, self._woken = -1, -1
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        sys.stdout.flush()
        self._wakes, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup_before = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        handlers: dict[int, Any] = {
            signal.SIGWINCH: lambda *_: None,
            signal.SIGTSTP: self._stop,
        }  # SIGWINCH only wakes us
        handlers |= {number: _leave for number in _LEAVING if signal.getsignal(number) is not signal.SIG_IGN}
        self._handlers = [(number, signal.signal(number, handler)) for number, handler in handlers.items()]
        try:
            self._enter_screen()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        self._leave_screen()
        for number, earlier in self._handlers:
            signal.signal(number, earlier)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._wakes)
        os.close(self._woken)

    def _enter_screen(self) -> None:
        if self._has_keys:
            self._before = termios.tcgetattr(self._source)
            tty.setcbreak(self._source, termios.TCSADRAIN)
        write_all(self._sink, _ENTER)

    def _leave_screen(self) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            write_all(self._sink, _LEAVE)
        if self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._source, termios.TCSADRAIN, self._before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-Z: restore the terminal while stopped."""
        self._leave_screen()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter_screen()

    def show(self, lines: Lines, seconds: float) -> bool:
        """Show it for some seconds, and again on each resize; return True when the user ended it."""
        deadline = time.monotonic() + seconds
        while True:
            self._draw(lines)
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._wait(left):
                return True
            if time.monotonic() >= deadline:
                return False

    def _draw(self, lines: Lines) -> None:
        try:
            columns, rows = os.get_terminal_size(self._sink)
        except OSError:
            rows, columns = DEFAULT_SIZE
        rows, columns = rows or DEFAULT_SIZE[0], max(40, columns or DEFAULT_SIZE[1])
        shown = list(lines(columns))
        if len(shown) > rows:
            shown[rows - 1 :] = [f"and {len(shown) - rows + 1} more lines"]
        text = "\r\n".join(f"{_CLEAR_LINE}{line}" for line in shown)
        rest = f"\r\n{_CLEAR_REST}" if len(shown) < rows else ""
        write_all(self._sink, f"{_HOME}{text}{rest}".encode(errors="replace"))

    def _wait(self, seconds: float) -> bool:
        """Wait for a key or a signal; return True when the user ended it."""
        ready, _, _ = select.select([self._wakes, *([self._source] if self._has_keys else [])], [], [], seconds)
        if self._wakes in ready:
            os.read(self._wakes, 4096)
        if self._source not in ready:
            return False
        keys = os.read(self._source, 4096)
        if not keys:
            raise SignalledError(signal.SIGHUP)
        return any(key in _ENDS for key in _SPECIAL.sub(b"", keys))


def _leave(number: int, _: FrameType | None) -> None:
    raise SignalledError(number)
