"""Exit codes of the command, and the exceptions that lead to some of them."""

from typing import Final

REFUSED: Final = 1
WRONG_USAGE: Final = 2
TIMED_OUT: Final = 124
OWN_FAILURE: Final = 125
NOT_FOUND: Final = 127
"""As shells and the keeper answer for a program that there is not."""

INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

EXIT_CODES: Final[dict[int | str, str]] = {
    0: "Success.",
    REFUSED: "Error; or a check found a problem.",
    WRONG_USAGE: "Usage error.",
    TIMED_OUT: "Timeout (exec, run, shell, wait).",
    OWN_FAILURE: "Sandkeep itself failed (exec, run, shell, attach, wait, diff).",
    INTERRUPTED: "Interrupted.",
    BROKEN_PIPE: "Broken pipe: the reader of the output has gone.",
    "any": "The process's exit code; 128 + n for signal n (exec, run, shell, attach, wait).",
}
"""The meaning of each exit code, for the help and the manual."""

COMPLETE_VARIABLE: Final = "_SANDKEEP_COMPLETE"
"""Set by a shell's completion function to its own name: then the arguments are a line to complete."""


class ReaderLeftError(Exception):
    """The reader of our output has gone. (For a BrokenPipeError, click would choose the exit code.)"""


class UnwritableError(Exception):
    """Our own input or output failed: a full disk, for instance. The command exits with `exit_code`."""

    def __init__(self, error: OSError, exit_code: int) -> None:
        super().__init__(f"standard input or output failed: {error.strerror or error}")
        self.exit_code = exit_code
