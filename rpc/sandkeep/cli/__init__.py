"""The `sandkeep` command. Ids and answers go to stdout, everything else to stderr.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted. `exec`, `run` and `wait` exit with the
process's own code, 124 when its time was up, and 125 when Sandkeep itself failed. What a command needs is imported when
it runs.
"""

import contextlib
import os
import sys
from typing import Final, NoReturn

REFUSED: Final = 1
TIMED_OUT: Final = 124
OWN_FAILURE: Final = 125
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141


class ReaderLeftError(Exception):
    """Whoever read our output has gone. (For a BrokenPipeError, click would choose the exit code.)"""


class UnwritableError(Exception):
    """Our own input or output failed: a full disk, for instance. The command exits with `exit_code`."""

    def __init__(self, error: OSError, exit_code: int) -> None:
        super().__init__(f"standard input or output failed: {error.strerror or error}")
        self.exit_code = exit_code


def main() -> NoReturn:
    """Run the command that the arguments name, then exit with its code.

    Taking the interpreter apart would last 10 ms, a sixth of a short command, and free nothing else.
    """
    _fill_descriptors()
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _fill_descriptors() -> None:
    """Have something where a standard stream is closed: a connection that got its number would be written to."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115  # for as long as we are
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def run(arguments: list[str]) -> int:
    """Run one command; answer its exit code. Nothing that can go wrong for a user ends in a traceback."""
    import click

    from sandkeep.cli.root import sandkeep

    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that knows no UTF-8 still gets its table
    try:
        code = sandkeep.main(arguments, prog_name="sandkeep", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except (ReaderLeftError, BrokenPipeError):
        return _reader_left()
    except UnwritableError as error:
        return _unwritable(error)
    except OSError as error:
        return _unwritable(UnwritableError(error, REFUSED))
    return code if isinstance(code, int) else 0


def _reader_left() -> int:
    """Say nothing more, and do not let the interpreter try at its end either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _unwritable(error: UnwritableError) -> int:
    with contextlib.suppress(OSError):
        print(f"sandkeep: {error}", file=sys.stderr)
    return error.exit_code
