"""The reason why a service could not start, in a file beside its socket: for clients that find nobody listening there.

A service manager that starts a daemon in vain gives up at some time, and what the daemon said is then in a journal that
the client's user may not read.
"""

import os
from contextlib import suppress
from typing import Final

_MOST_BYTES: Final = 4096


def leave(socket: str, reason: str) -> None:
    """Write the reason why the daemon of this socket could not start. Does nothing where that cannot be written."""
    clear(socket)
    # O_EXCL: nobody else's file is written to, nor through a link, where others may write to the socket's directory.
    with suppress(OSError), open(os.open(_path(socket), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
        file.write(reason.encode()[:_MOST_BYTES])


def clear(socket: str) -> None:
    """Remove the reason: the daemon runs."""
    with suppress(OSError):
        os.unlink(_path(socket))


def reason(socket: str) -> str | None:
    """Return the reason why the daemon of this socket could not start the last time, in one line; None if it did."""
    try:
        # O_NONBLOCK: a FIFO is not waited for.
        with open(os.open(_path(socket), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            return " ".join(file.read(_MOST_BYTES).decode(errors="replace").split()) or None
    except OSError:
        return None


def _path(socket: str) -> str:
    return f"{socket}.failure"
