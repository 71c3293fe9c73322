"""The `sandkeep` command. Ids and answers go to stdout, everything else to stderr.

Its exit codes are in `exit_codes`. Each command imports its dependencies when it runs.
"""

import contextlib
import gc
import io
import itertools
import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from sandkeep.cli.exit_codes import (
    BROKEN_PIPE,
    COMPLETE_VARIABLE,
    INTERRUPTED,
    REFUSED,
    ReaderLeftError,
    UnwritableError,
)

if TYPE_CHECKING:
    import click

IMPORTED_OBJECTS: Final = 100_000
"""More objects than the imports make, none of which is garbage: looking for it takes a tenth of a short command."""


def main() -> NoReturn:
    """Run the command that the arguments name, then exit with its code.

    Taking the interpreter apart would last 10 ms, a sixth of a short command, and free nothing else.
    """
    gc.set_threshold(IMPORTED_OBJECTS)
    _fill_descriptors()
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _fill_descriptors() -> None:
    """Open /dev/null for closed standard streams: otherwise a connection could get their numbers, and be written to."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115  # for as long as we are
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def run(arguments: list[str]) -> int:
    """Run one command; answer its exit code. Nothing that can go wrong for a user ends in a traceback."""
    if shell := os.environ.get(COMPLETE_VARIABLE):
        from sandkeep.cli.commands.completion import answer

        return answer(shell, arguments)
    import click

    from sandkeep.cli.root import sandkeep

    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that knows no UTF-8 still gets its table
    try:
        code = sandkeep.main(arguments, prog_name="sandkeep", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _show(error, "--json" in itertools.takewhile("--".__ne__, arguments))
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


def _show(error: "click.ClickException", as_json: bool) -> None:
    """Print an error; a usage error with `--json` also as a document, as other errors."""
    from click import UsageError
    from click.exceptions import NoArgsIsHelpError

    from sandkeep.cli.display.output import json_line, note
    from sandkeep.cli.options import Refusal

    with contextlib.suppress(OSError):  # nobody may hear it: the code still tells
        error.show() if isinstance(error, Refusal) else note(_text(error))
    if as_json and isinstance(error, UsageError) and not isinstance(error, NoArgsIsHelpError):
        message = error.format_message().encode(errors="replace").decode()  # a word of it may not be UTF-8
        json_line({"error": {"code": "invalid", "message": message, "data": {}}})


def _text(error: "click.ClickException") -> str:
    """Return what click prints for an error, which repeats words that were typed."""
    text = io.StringIO()
    error.show(text)
    return text.getvalue().removesuffix("\n")


def _reader_left() -> int:
    """Say nothing more, and do not let the interpreter try at its end either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _unwritable(error: UnwritableError) -> int:
    from sandkeep.cli.display.output import note

    note(f"sandkeep: {error}")
    return error.exit_code
