"""Helper commands in a sandbox that are connected by pipes."""

from typing import Protocol


class CommandFailedError(Exception):
    """A helper command failed: with its exit code, None when nobody saw it, and what it said on stderr."""

    def __init__(self, exit_code: int | None, stderr: bytes) -> None:
        super().__init__(exit_code, stderr)
        self.exit_code = exit_code
        self.stderr = stderr


class PipedCommand(Protocol):
    """A helper command inside a sandbox that is connected by pipes: one for its data, one by which it is directed.

    What it says, in lines, was said inside the sandbox.
    """

    def take_data(self) -> int:
        """The daemon's end of the data pipe, blocking, which the caller closes. It is the only one on its side."""
        ...

    async def expect(self, word: str) -> str:
        """Wait for the command's next line, which must begin with `word`; answer the rest of it.

        Raises `CommandFailedError` when it ends instead, or says something else.
        """
        ...

    def tell(self, word: str) -> None:
        """Direct the command."""
        ...

    def leave_alone(self) -> None:
        """From now on it runs to its end, also when the daemon stops."""
        ...

    async def end(self) -> str:
        """Wait until the command has ended well; answer the rest of what it said. Raises `CommandFailedError`."""
        ...
