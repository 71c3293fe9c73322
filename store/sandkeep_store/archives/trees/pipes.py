"""Pipes between this process and the programs that read trees and make them."""

import fcntl
from contextlib import suppress
from typing import Final

_BYTES: Final = 1 << 20


def widen(pipe: int) -> None:
    """Enlarge a pipe's buffer, if allowed: each time it is full, one side waits to be scheduled."""
    with suppress(OSError):  # a user may have so many pages in pipes and no more
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _BYTES)
