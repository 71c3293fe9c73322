"""Attachment to a process: its output as it comes, our input and signals to it, its exit code as ours.

Output is read from the journal by byte offset, so nothing is lost or doubled when the daemon is restarted meanwhile:
the client connects again, and continues at the same offset.
"""

import shlex
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, Self

from msgspec.structs import replace

from sandkeep.cli.attach.frozen import SuspensionWatch
from sandkeep.cli.attach.journals import STREAMS, Journals, last_lines, write_all
from sandkeep.cli.attach.relay import Signals, feed
from sandkeep.cli.display.output import note, plain
from sandkeep.cli.exit_codes import NOT_FOUND, OWN_FAILURE, TIMED_OUT
from sandkeep.cli.options import Frontend
from sandkeep.clients.dial import is_lost
from sandkeep.errors import DataError, SandkeepError, SetupError, StateError
from sandkeep.model import MAX_INLINE_BYTES, ExecResult, Process, ProcessOutput
from sandkeep.protocol.follow import OutputCursor

AT_ONCE_S: Final = 0.01
_BEYOND: Final = 2**62
"""An offset at which no journal has anything."""

_NO_TIME: Final = b"-".ljust(len("2026-11-28T09:00:00.000Z"))
_FILLED: Final = (
    "it exited with 0, but the sandbox's disk became full while it ran: check what it wrote, and remove files"
)
_MOST_SHOWN: Final = 200
FULL_BYTES: Final = 1024 * 1024
"""A piece of that many bytes was cut: more is waiting than one request brings."""

_CLOSED: Final = (StateError, DataError, SetupError)
"""Errors of journals that cannot be opened: the code inside has replaced one, one is gone, or they are withheld. What
there is can be read through the daemon.
"""

Sink = Callable[[ProcessOutput], None]
"""Receives a process's output, piece by piece."""


class Descriptors:
    """Output goes to our own stdout and stderr, byte for byte; without one of them if `streams` does not name it."""

    def __init__(self, streams: Collection[str] = STREAMS) -> None:
        self.streams = streams

    def __call__(self, output: ProcessOutput) -> None:
        """Write both pieces out at once."""
        if "stdout" in self.streams:
            write_all(1, output.stdout)
        if "stderr" in self.streams:
            write_all(2, output.stderr)


class Stamped:
    """Output as `Descriptors`, each line after the time at which it began; a dash if that is unknown. The output must
    be read with its times.
    """

    def __init__(self, streams: Collection[str] = STREAMS) -> None:
        self._sink = Descriptors(streams)
        self._within_line = dict.fromkeys(STREAMS, False)

    def __call__(self, output: ProcessOutput) -> None:
        """Write both pieces out at once."""
        self._sink(replace(output, **{stream: self._stamp(output, stream) for stream in STREAMS}))

    def _stamp(self, output: ProcessOutput, stream: str) -> bytes:
        offset: int = getattr(output, f"{stream}_offset")
        times = ((getattr(time, f"{stream}_offset"), _in_milliseconds(time.at)) for time in output.times)
        end, stamp = -1, _NO_TIME
        stamped = bytearray()
        for line in _lines(getattr(output, stream)):
            if not self._within_line[stream]:
                while offset >= end:
                    end, stamp = next(times, (_BEYOND, _NO_TIME))
                stamped += stamp + b" "
            stamped += line
            offset += len(line)
            self._within_line[stream] = not line.endswith(b"\n")
        return bytes(stamped)


def _in_milliseconds(at: str | None) -> bytes:
    """Return a time without its microseconds; a dash if it is unknown."""
    return f"{at[:-4]}Z".encode() if at else _NO_TIME


def _lines(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    return [*(line + b"\n" for line in whole), *([rest] if rest else [])]


class Collector:
    """Output is kept for one JSON document, up to `MAX_INLINE_BYTES` of each stream."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()

    def __call__(self, output: ProcessOutput) -> None:
        """Append output up to the limit."""
        for buffer, piece in ((self.stdout, output.stdout), (self.stderr, output.stderr)):
            buffer.extend(piece[: MAX_INLINE_BYTES - len(buffer)])

    def result(self, process: Process, last: ProcessOutput) -> ExecResult:
        """The document, in the form that `sandbox.exec` answers."""
        from sandkeep.cli.display.output import moment

        return ExecResult(
            process_id=process.process_id,
            sandbox_id=process.sandbox_id,
            exit_code=last.exit_code,
            timed_out=last.timed_out,
            status=process.status,
            stdout=bytes(self.stdout),
            stderr=bytes(self.stderr),
            stdout_bytes=last.next_stdout_offset,
            stderr_bytes=last.next_stderr_offset,
            stdout_truncated=last.next_stdout_offset > len(self.stdout),
            stderr_truncated=last.next_stderr_offset > len(self.stderr),
            duration_s=moment(process.ended_at) - moment(process.requested_at) if process.ended_at else 0.0,
            error=process.error,
            oom_killed=process.oom_killed,
            limits_met=process.limits_met,
        )


class Reader:
    """Reads a journal over a connection of its own.

    Large backlogs are copied from the journals' own descriptors, which outlive the daemon that opened them. A daemon
    that is not root hands them to its own user alone: other users read all of it through the daemon.
    """

    def __init__(self, front: Frontend, sandbox_id: str, name: str) -> None:
        self._front = front
        self._of = (sandbox_id, name)
        self._client = front.client()
        self._journals: Journals | None = None
        self._refused: SetupError | None = None

    def follow(
        self, sink: Sink, out_at: int = 0, err_at: int = 0, *, follow: bool = True, times: bool = False
    ) -> ProcessOutput:
        """Read to the end, and return the last piece; without `follow`, read the present output. With `times` all of it
        is read through the daemon, with the times at which it came.
        """
        with SuspensionWatch(self._front, self._of[0]) if follow else nullcontext():
            return self._follow(sink, OutputCursor(self._of[1], out_at, err_at, follow, times))

    def _follow(self, sink: Sink, cursor: OutputCursor) -> ProcessOutput:
        while query := cursor.next_query():
            piece = self._read(query)
            cursor.advance(piece)
            sink(piece)
            _print_note(piece)
            if max(len(piece.stdout), len(piece.stderr)) >= FULL_BYTES and isinstance(sink, Descriptors):
                at = self.catch_up(sink, piece.next_stdout_offset, piece.next_stderr_offset)
                cursor.move_to(*at or (piece.next_stdout_offset, piece.next_stderr_offset))
        return piece

    def catch_up(self, sink: Descriptors, out_at: int, err_at: int) -> tuple[int, int] | None:
        """Copy all that there is now from these offsets on, past the daemon; answer the offsets after it.

        None when nothing was copied, as the code inside has put something else in the place of a journal, or the daemon
        hands none out.
        """
        try:
            journals = self._opened()
        except _CLOSED:
            return None
        return journals.copy(out_at, err_at, sink.streams)

    def remark(self, out_at: int, err_at: int) -> None:
        """Report anomalies of the journals at these offsets, if any."""
        _print_note(self._read({"stdout_offset": out_at, "stderr_offset": err_at, "max_bytes": 0}))

    def sizes(self) -> tuple[int, int]:
        """Present sizes of both streams; 0 of one whose journal the code inside has removed or replaced."""
        return _sizes(self._read({"max_bytes": 0}))

    def since(self, time: str) -> tuple[int, int]:
        """Offsets of the output that came at a time or later."""
        found = self._read({"since": time, "max_bytes": 0})
        return found.stdout_offset, found.stderr_offset

    def last_lines(self, count: int) -> tuple[int, int]:
        """From where on each stream holds its last `count` lines."""
        try:
            return self._opened().last_lines(count)
        except _CLOSED:
            kept = self._read({"max_bytes": 0})
        firsts = kept.stdout_offset, kept.stderr_offset
        out, err = (
            last_lines(partial(self._read_exactly, stream), first, end, count)
            for stream, first, end in zip(STREAMS, firsts, _sizes(kept), strict=True)
        )
        return out, err

    def _read_exactly(self, stream: str, size: int, offset: int) -> bytes:
        """Return `size` bytes of one stream; zeros for dropped parts, and fewer if it was cut."""
        found = bytearray()
        other = {f"{each}_offset": _BEYOND for each in STREAMS}
        while len(found) < size:
            at = offset + len(found)
            piece = self._read({**other, f"{stream}_offset": at, "max_bytes": min(FULL_BYTES, size - len(found))})
            came = bytes(getattr(piece, f"{stream}_offset") - at) + getattr(piece, stream)
            if not came:
                break
            found += came
        return bytes(found[:size])

    def _opened(self) -> Journals:
        """Return the journals. Raises `conflict` when one was replaced, `not_supported` when they are withheld."""
        if self._refused is not None:
            raise self._refused
        if self._journals is None:
            try:
                self._journals = Journals(self._client, *self._of)
                self._stay_with(self._journals.process)
            except SetupError as refused:
                self._refused = refused
                raise
        return self._journals

    def _read(self, query: dict[str, Any]) -> ProcessOutput:
        piece: ProcessOutput = self._client.process.read(*self._of, **query)
        self._stay_with(piece)
        return piece

    def _stay_with(self, found: Process | ProcessOutput) -> None:
        """Read this process from now on: its name can become another's when it has ended."""
        self._of = (self._of[0], found.process_id)

    def process(self) -> Process:
        """The process as it is now."""
        found: Process = self._client.process.get(*self._of)
        return found

    def wait(self, timeout_s: float | None) -> Process:
        """The process once it has ended. Raises `timeout` when it still runs after that long."""
        with SuspensionWatch(self._front, self._of[0]):
            found: Process = self._client.process.wait(*self._of, timeout_s=timeout_s)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection and the journals."""
        self._client.close()
        if self._journals is not None:
            self._journals.close()


def _sizes(piece: ProcessOutput) -> tuple[int, int]:
    return piece.stdout_bytes or 0, piece.stderr_bytes or 0


def _print_note(piece: ProcessOutput) -> None:
    if piece.note:
        note(f"sandkeep: {plain(piece.note)}")


def follow_running(front: Frontend, process: Process, *, interactive: bool = False, from_start: bool = False) -> int:
    """Follow a process that another client started, from now on or `from_start`; return the exit code.

    Ctrl-C interrupts it. It keeps running when we are killed, or detached by Ctrl-\\.
    """
    Signals(front, process).pass_on_interrupts()
    with Reader(front, process.sandbox_id, process.process_id) as reader:
        at = (0, 0) if from_start else reader.sizes()
        if interactive:
            feed(front, process)
        try:
            return _follow(front, reader, at)
        except SandkeepError as error:
            raise left_behind(front, error, process) from None


def attach(front: Frontend, process: Process, *, interactive: bool = False, kill_when_unread: bool = False) -> int:
    """Follow the process to its end; return the exit code.

    `kill_when_unread` ends it when our output has no reader any more, or cannot be written.
    """
    signals = Signals(front, process)
    signals.pass_on(hangup=kill_when_unread)
    if interactive:
        feed(front, process)
    try:
        with Reader(front, process.sandbox_id, process.process_id) as reader:
            return _follow(front, reader, (0, 0))
    except SandkeepError as error:
        raise left_behind(front, error, process) from None
    except OSError:
        if kill_when_unread:
            signals.send("KILL")
        raise


def left_behind(front: Frontend, error: SandkeepError, process: Process) -> SandkeepError:
    """Return the error; if the daemon has gone, it says that the process has not, and how to come back to it."""
    if not is_lost(error):
        return error
    way = front.attach_line(process)
    message = f"{error.message}; process {process.process_id} runs on without the daemon: come back to it with `{way}`"
    return type(error)(error.code, message, **{**error.data, "process_id": process.process_id})


def _follow(front: Frontend, reader: Reader, at: tuple[int, int]) -> int:
    sink: Any = Collector() if front.as_json else Descriptors()
    last = reader.follow(sink, *at)
    ended = reader.process() if front.as_json or last.exit_code != 0 or last.limits_met else None
    if front.as_json and ended is not None:
        from sandkeep.cli.display.output import json_line

        json_line(sink.result(ended, last))
    return exit_code(last, ended)


def explain_limits(process: Process) -> None:
    """Say at which limits a process ended: its exit code alone does not."""
    if process.limits_met:
        note(f"sandkeep: {plain(process.error or _FILLED)}")


def _explain_one_word(command: Sequence[str]) -> None:
    """Say that a command line in quotes is one word, which no shell splits."""
    if len(command) == 1 and " " in command[0] and len(command[0]) <= _MOST_SHOWN:
        line = shlex.quote(plain(command[0]))
        note(f"sandkeep: {line} is one word, the name of a program: leave out its quotes, or use -- sh -c {line}")


def exit_code(last: ProcessOutput | Process, process: Process | None) -> int:
    """Return the process's exit code, 124 on timeout, 125 with a message when it is unknown."""
    if process and (last.exit_code is not None or last.timed_out):
        explain_limits(process)
    if last.timed_out:
        if process is None or not process.limits_met:
            note("sandkeep: the process timed out")
        return TIMED_OUT
    if last.exit_code is not None:
        if process and last.exit_code == NOT_FOUND:
            _explain_one_word(process.command)
        return last.exit_code
    why = (process.error if process else None) or f"the process is {last.status}"
    note(f"sandkeep: {plain(why)}")
    return OWN_FAILURE
