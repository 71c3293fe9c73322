"""The waits of calls, in the thread that calls: see `steps`."""

import time
from typing import Any, Final

from sandkeep.clients.steps import CONNECT, PAUSE, READABLE

_MOST_MS: Final = 2**31 - 1  # of poll


def wait(operation: str, sock: Any, argument: Any) -> Any:
    """Carry out a wait. Sockets block: only a wait with a limit has something to do here."""
    if operation is CONNECT:
        number = sock.connect_ex(argument)
        sock.setblocking(True)
        return number
    if operation is PAUSE:
        return time.sleep(argument) if argument else None
    if operation is READABLE and argument is not None:
        from select import POLLIN, poll

        poller = poll()
        poller.register(sock, POLLIN)
        return bool(poller.poll(min(argument * 1000, _MOST_MS)))
    return True
