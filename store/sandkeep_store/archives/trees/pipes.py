"""Pipes between this process and the programs that read trees and make them."""

import fcntl
from contextlib import suppress
from typing import Final

_BYTES: Final = 1 << 20


def widen(pipe: int) -> None:
    """Have a pipe hold more, if it may: each time that it is full one side waits until the other has had its turn, and
    on a busy machine that is not soon.
    """
    with suppress(OSError):  # a user may have so many pages in pipes and no more
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _BYTES)
