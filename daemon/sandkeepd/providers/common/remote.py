"""Sandboxes elsewhere: commands in a sandbox on another machine, whose only way to the daemon are streams.

`Remote` is what a provider has for each of them. Over it `relayed_instance` keeps one long stream to the sandbox's
keeper, `piped` runs helper commands with pipes, `remote_viewers` shows terminals and `remote_commands` sends signals.
"""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import trio
from msgspec import Struct

from sandkeep.errors import ProviderError

STDERR_BYTES: Final = 64 * 1024

MAX_SHOWN: Final = 500
"""Characters of a service's own words that an error may show."""


def readable(text: object) -> str:
    """Return the start of a text of a service's as one line without control characters; empty when it is none."""
    if not isinstance(text, str):
        return ""
    line = "".join(character if character.isprintable() else " " for character in text[: 4 * MAX_SHOWN])
    return " ".join(line.split())[:MAX_SHOWN]


class Outcome(Struct, frozen=True):
    """The end of a command: its exit code, None when it is unknown, and the service's own words."""

    exit_code: int | None
    message: str


class BrokenExecError(trio.BrokenResourceError):
    """Raised when the connection of a command broke: the command may go on."""


class UnansweredError(ProviderError):
    """Raised when the service itself does not answer: every request waits for its return then."""


class RemoteStream(trio.abc.Stream):
    """A command in a sandbox elsewhere. Sending writes to its stdin, receiving reads its stdout to the command's end.

    Its output is bounded: a command whose output nobody receives is held up. Raises `BrokenExecError` when the
    connection breaks. A subclass sets `_is_over` when all output was received.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._stderr = bytearray()
        self._is_over = False

    @property
    def stderr(self) -> bytes:
        """The last `STDERR_BYTES` of the command's stderr, all of it once the command has ended."""
        return bytes(self._stderr[-STDERR_BYTES:])

    def _append_stderr(self, data: bytes) -> None:
        self._stderr += data
        if len(self._stderr) > 2 * STDERR_BYTES:
            del self._stderr[:-STDERR_BYTES]

    @property
    @abstractmethod
    def outcome(self) -> Outcome | None:
        """The end of the command, once all its output was received."""

    @abstractmethod
    async def _receive(self) -> bytes:
        """Wait for the next output or the end of the command; return bytes of stdout, b"" if it was something else."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the next bytes of stdout, b"" after the last."""
        while not self._rest:
            if self._is_over:
                await trio.lowlevel.checkpoint()
                return b""
            data = await self._receive()
            if data and (max_bytes is None or len(data) <= max_bytes):
                return data
            self._rest += data
        taken = bytes(self._rest[:max_bytes])
        del self._rest[: len(taken)]
        return taken

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once: `send_all` waits."""
        await trio.lowlevel.checkpoint()

    @abstractmethod
    async def close_stdin(self) -> None:
        """Close stdin, so that the command reads its end. Raises `not_supported` where only `aclose` can do that."""

    @abstractmethod
    async def resize(self, rows: int, cols: int, pid: int | None) -> None:
        """Give the command's terminal another size. `pid` is that of the command, if it has reported it."""

    async def wait(self) -> int | None:
        """Wait for the end of the command, dropping output that was not received; return its exit code, None when it
        is unknown, as when the connection broke.
        """
        try:
            while await self.receive_some():
                pass
        except BrokenExecError:
            return None
        outcome = self.outcome
        return outcome.exit_code if outcome is not None else None

    @abstractmethod
    def unavailable(self, error: BrokenExecError) -> ProviderError:
        """Return the error of the daemon's for a connection that broke."""


class Remote(Protocol):
    """Runs commands in one sandbox. `name` is its own there, for logs and errors."""

    name: str

    def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bool = True,
        stderr: bool = True,
        size: tuple[int, int] | None = None,
    ) -> AbstractAsyncContextManager[RemoteStream]:
        """Run a command for the length of a block. The block's end closes the connection, and ends no command.

        With a `size`, rows and columns, it runs on a terminal.

        Raises `provider_unavailable` when the service does not answer, and when the connection breaks in the block.
        """
        ...

    def channel(self, command: Sequence[str]) -> AbstractAsyncContextManager[RemoteStream]:
        """Run a command as `exec` does, in its turn: few of all sandboxes' channels are opened at a time. A peer that
        does not answer what is sent is noticed soon.
        """
        ...

    async def recovered(self) -> None:
        """Wait until the service answers again, after `UnansweredError`."""
        ...

    def longest_pause_s(self) -> float:
        """Return the seconds after which a channel that cannot be opened is tried again, at most."""
        ...
