"""Pipes between this process and the programs that read trees and make them."""

import fcntl
import os
import select
from contextlib import suppress
from typing import Final

from sandkeep_store.threads import check_cancelled

_BYTES: Final = 1 << 20
_LOOK_MS: Final = 200
"""Maximum delay of noticing a cancellation."""


def widen(pipe: int) -> None:
    """Enlarge a pipe's buffer, if allowed: each time it is full, one side waits to be scheduled."""
    with suppress(OSError):  # a user may have so many pages in pipes and no more
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _BYTES)


def read_some(pipe: int, most: int) -> bytes:
    """Read from a pipe as soon as there is something; nothing at its end. A cancelled call ends while it waits."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    check_cancelled()
    while not poll.poll(_LOOK_MS):
        check_cancelled()
    return os.read(pipe, most)
