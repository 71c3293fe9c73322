"""Helper commands in a sandbox that are connected by pipes."""

from typing import Protocol


class CommandFailedError(Exception):
    """Raised when a helper command failed: with its exit code, None when it is unknown, and its stderr."""

    def __init__(self, exit_code: int | None, stderr: bytes) -> None:
        super().__init__(exit_code, stderr)
        self.exit_code = exit_code
        self.stderr = stderr


class PipedCommand(Protocol):
    """A helper command inside a sandbox, connected by a data pipe and a control pipe.

    Its output lines come from inside the sandbox and are not trusted.
    """

    def take_data(self) -> int:
        """Return the daemon's end of the data pipe, blocking, to be closed by the caller. It is the only one on its
        side.
        """
        ...

    async def expect(self, word: str) -> str:
        """Wait for the command's next line, which must begin with `word`; return the rest of it.

        Raises `CommandFailedError` when the command ends instead, or writes another line.
        """
        ...

    def tell(self, word: str) -> None:
        """Send the command a control word."""
        ...

    def leave_alone(self) -> None:
        """Detach the command: from now on it runs to its end, also when the daemon stops."""
        ...

    async def end(self) -> str:
        """Wait until the command has succeeded; return the rest of its output. Raises `CommandFailedError`."""
        ...
