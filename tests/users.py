"""Doing something as another user: in a fork that has given up root, with what it answers or raises brought back."""

import os
import pickle
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

NOBODY = 65534


def as_user(uid: int, work: Callable[[], T]) -> T:
    """What `work` answers when it is run by `uid`. Whatever it needs must be imported already, as it may read little."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            answer = (True, work())
        except BaseException:
            answer = (False, traceback.format_exc())
        with open(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    worked, answer = pickle.loads(content)
    if not worked:
        raise AssertionError(f"as uid {uid}:\n{answer}")
    return answer
