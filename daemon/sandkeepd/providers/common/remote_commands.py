"""Commands in a sandbox elsewhere that are no processes of its keeper: they run over streams of their own, and are
signalled by pid.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from signal import Signals
from typing import Final

import trio

from sandkeep.errors import SandkeepError
from sandkeepd.providers.common.remote import Remote

KILL_S: Final = 5.0
"""Seconds that the sending of a signal may take."""

_RUN: Final = 'echo "pid $$"; umask 022; cd -- "$0" && exec "$@"'
_KILL: Final = 'kill -s "$1" -- "-$0" 2>&- || kill -s "$1" "$0"'
_PID: Final = re.compile(rb"pid ([1-9][0-9]{0,9})\r?")


def reporting_argv(command: Sequence[str], working_dir: str) -> list[str]:
    """Return the argv that runs a command in a directory, after a line on its stdout that is for `parse_pid`."""
    return ["sh", "-c", _RUN, working_dir, *command]


def parse_pid(line: bytes) -> int | None:
    """Return the pid that a command reported. None: the line is another, or names the sandbox's first process."""
    found = _PID.fullmatch(line)
    return int(found[1]) if found and int(found[1]) > 1 else None


async def kill(remote: Remote, pid: int | None, signal: Signals) -> bool:
    """Send a signal to the process group that a command leads, or to the command alone, as far as the
    sandbox can be reached in `KILL_S`. Return False if there was no answer in that time.
    """
    if pid is not None:
        with suppress(SandkeepError), trio.move_on_after(KILL_S):
            async with remote.exec(
                ["sh", "-c", _KILL, str(pid), signal.name.removeprefix("SIG")], stdin=False
            ) as stream:
                await stream.wait()
            return True
        return False
    return True
