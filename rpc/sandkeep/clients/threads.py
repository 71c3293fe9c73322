"""The steps of calls, carried out by the thread that calls."""

import time
from typing import Any, TypeVar

from sandkeep.clients.exchange import CHUNK_BYTES, DIAL, PAUSE, RECEIVE, SEND, Step, Steps
from sandkeep.clients.unix_socket import dial
from sandkeep.errors import SandkeepError

T = TypeVar("T")


def run(steps: Steps[T]) -> T:
    """Carry out all steps, and return the value of the generator."""
    try:
        step = next(steps)
        while True:
            try:
                outcome = _carry_out(step)
            except (OSError, SandkeepError) as error:
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        steps.close()


def _carry_out(step: Step) -> Any:
    operation, sock, argument = step
    if operation is SEND:
        return sock.sendall(argument)
    if operation is RECEIVE:
        if argument is None:
            return sock.recv(CHUNK_BYTES)
        sock.settimeout(argument)
        try:
            return sock.recv(CHUNK_BYTES)
        finally:
            sock.settimeout(None)
    if operation is DIAL:
        return dial(argument)
    if operation is PAUSE:
        return time.sleep(argument) if argument else None
    return sock.recvmsg(*argument)
