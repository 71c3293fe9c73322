"""Our own terminal, while it shows another one: raw, with the other's size kept in step, and restored afterwards.

The bytes come from inside a sandbox: they may draw on this terminal, and nothing else (`control_sequences`). Their
lasting effects are reset at the end.
"""

import contextlib
import errno
import fcntl
import os
import re
import select
import signal
import struct
import termios
import tty
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from sandkeep.cli.attach.journals import write_all
from sandkeep.protocol import control_sequences

DEFAULT_TERM: Final = "xterm-256color"
DEFAULT_SIZE: Final = (24, 80)

_TERM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,63}")
_CHUNK_BYTES: Final = 65536
_MOST: Final = 1000
_LEAVING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
# Bytes that a terminal sends by itself: answers to tmux's queries, and reports of the mouse and of focus.
_OWN_REPORTS: Final = re.compile(
    rb"\x1b\[[?>=]?[0-9;:]*[cnRtIO]|\x1b\[<[0-9;]+[Mm]|\x1b\[M...|\x1b[P\]_][^\x07\x1b]*(?:\x07|\x1b\\)", re.DOTALL
)
_UNFINISHED: Final = re.compile(rb"\x1b(?:\[[?>=<]?[0-9;:]*|\[M.{0,2}|[P\]_][^\x07\x1b]{0,4096}\x1b?)?", re.DOTALL)


class SignalledError(Exception):
    """A fatal signal came while a terminal was shown. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.number = number


@dataclass(frozen=True)
class Shown:
    """The result of showing another terminal: its last bytes, and whether the user typed anything."""

    last: bytes
    was_typed: bool


class OwnTerminal:
    """Our standard input and output. Unless both are a terminal, they are a pipe to one of 24 by 80."""

    def __init__(self, source: int = 0, sink: int = 1) -> None:
        self.source = source
        self.sink = sink
        self.is_interactive = os.isatty(source) and os.isatty(sink)

    @property
    def term(self) -> str:
        """Name of the terminal's type, for tmux."""
        known = os.environ.get("TERM", "dumb")
        usable = self.is_interactive and known not in ("dumb", "unknown") and _TERM.fullmatch(known)
        return known if usable else DEFAULT_TERM

    @property
    def size(self) -> tuple[int, int]:
        """Its rows and columns."""
        if not self.is_interactive:
            return DEFAULT_SIZE
        cols, rows = os.get_terminal_size(self.sink)
        return min(rows, _MOST) or DEFAULT_SIZE[0], min(cols, _MOST) or DEFAULT_SIZE[1]

    def request(self) -> dict[str, Any]:
        """The parameters of `process.launch` for a process with such a terminal."""
        rows, cols = self.size
        return {"tty": True, "rows": rows, "cols": cols}

    def show(self, master: int) -> Shown:
        """Connect to the terminal with this controlling side, until it hangs up.

        Raises `SignalledError` when a signal ends us. Our terminal is restored in any case.
        """
        os.set_blocking(master, False)
        view = _View(self, master)
        with view.awake(), _signals(view), self._raw(view):
            view.run()
        return Shown(view.last, view.was_typed)

    def make_raw(self) -> None:
        """Make the terminal raw: pass every byte unchanged, both ways."""
        if self.is_interactive:
            tty.setraw(self.source, termios.TCSADRAIN)

    @contextlib.contextmanager
    def _raw(self, view: "_View") -> Iterator[None]:
        if not self.is_interactive:
            yield
            return
        before = termios.tcgetattr(self.source)
        try:
            self.make_raw()
            yield
        finally:  # the terminal itself may be gone
            with contextlib.suppress(OSError):
                write_all(self.sink, view.filter.reset())
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.source, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _signals(view: "_View") -> Iterator[None]:
    """For the length of a block, forward size changes to the other terminal, and exit cleanly on fatal signals."""
    handlers: dict[int, Any] = {signal.SIGWINCH: view.resized, signal.SIGCONT: view.resumed}
    for leaving in _LEAVING:
        if signal.getsignal(leaving) is not signal.SIG_IGN:  # as `nohup` would have it
            handlers[leaving] = view.on_fatal_signal
    before = [(number, signal.signal(number, handler)) for number, handler in handlers.items()]
    try:
        yield
    finally:
        for number, earlier in before:
            signal.signal(number, earlier)


class _View:
    """Bytes both ways between our terminal and another one."""

    def __init__(self, own: OwnTerminal, master: int) -> None:
        self.last = b""
        self.was_typed = False
        self._own = own
        self._own_reports = b""
        self.filter = control_sequences.Filter()
        self._master = master
        self._unsent = b""
        self._poll = select.poll()
        self._poll.register(own.source, select.POLLIN)
        self._poll.register(master, select.POLLIN)
        self._wakes, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._wakes, select.POLLIN)
        self._source_open = True
        self._running = False
        self._fatal_signal: int | None = None

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Make a signal end the wait for bytes even if it comes just before the wait begins."""
        before = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.close(self._wakes)
            os.close(self._woken)

    def on_fatal_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a fatal signal: interrupt the copying of bytes, once, and never the cleanup after it."""
        self._fatal_signal = number
        if self._running:
            self._running = False
            raise SignalledError(number)

    def resized(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Our terminal has another size."""
        with contextlib.suppress(OSError):  # it may be gone
            rows, cols = self._own.size
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def resumed(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGCONT: another program has had the terminal, so redraw everything, by a change of size."""
        with contextlib.suppress(OSError, termios.error):
            if self._running:
                self._own.make_raw()
            rows, cols = self._own.size
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, max(1, cols - 1), 0, 0))
        self.resized()

    def run(self) -> None:
        """Carry bytes until the other side hangs up."""
        try:
            self._running = True
            if self._fatal_signal is not None:
                raise SignalledError(self._fatal_signal)
            if self._own.is_interactive:
                self.resized()  # it may have changed while we were connecting
            while self._copy_bytes():
                pass
        finally:
            self._running = False

    def _copy_bytes(self) -> bool:
        """Copy available bytes; return False when the other side has hung up."""
        for descriptor, _ in self._poll.poll():
            if descriptor == self._wakes:
                os.read(self._wakes, _CHUNK_BYTES)
            elif descriptor == self._own.source:
                self._read_source()
            elif not self._read_master():
                return False
        self._write_master()
        return True

    def _read_source(self) -> None:
        try:
            data = os.read(self._own.source, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # our own terminal hung up
                raise
            data = b""
        self._unsent += data
        self._watch_keys(data)
        if not data:
            self._source_open = False
            self._poll.unregister(self._own.source)
            if self._own.is_interactive:
                raise SignalledError(signal.SIGHUP)

    def _write_master(self) -> None:
        """Write pending input, as fast as the other side takes it; until then no more is read."""
        if self._unsent:
            try:
                self._unsent = self._unsent[os.write(self._master, self._unsent) :]
            except BlockingIOError:
                pass
            except OSError:  # it hung up: reading will tell
                self._unsent = b""
        waits = bool(self._unsent)
        self._poll.modify(self._master, select.POLLIN | (select.POLLOUT if waits else 0))
        if self._source_open:
            self._poll.modify(self._own.source, 0 if waits else select.POLLIN)

    def _read_master(self) -> bool:
        """Show available output; return False at its end."""
        try:
            data = os.read(self._master, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno == errno.EIO:
                return False
            raise
        if not data:
            return False
        shown = self.filter.feed(data)
        self.last = (self.last + shown)[-256:]
        write_all(self._own.sink, shown)
        return True

    def _watch_keys(self, data: bytes) -> None:
        """Detect typed keys, also when the terminal's own reports come in pieces."""
        if self.was_typed:
            return
        self._own_reports = _OWN_REPORTS.sub(b"", self._own_reports + data)
        self.was_typed = bool(self._own_reports) and not _UNFINISHED.fullmatch(self._own_reports)
