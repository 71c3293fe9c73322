"""Doing something as another user: in a fork that has given up root, with what it answers or raises brought back."""

import os
import pickle
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sandkeep.blocking import connect

T = TypeVar("T")

NOBODY = 65534


def let_in(place: Path) -> None:
    """Let every user into a directory, by those above it. What is open stays as it is: /tmp keeps its sticky bit."""
    for directory in (place, *place.parents):
        mode = directory.stat().st_mode
        if mode & 0o055 != 0o055:
            directory.chmod(mode & 0o7777 | 0o055)


def as_user(uid: int, work: Callable[[], T]) -> T:
    """What `work` answers when it is run by `uid`. Whatever it needs must be imported already, as it may read
    little.
    """
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


def as_client(daemon: Any, uid: int, work: Callable[[Any], T]) -> T:
    """Return the answer of `work` with a client of that user's."""

    def body() -> T:
        with connect(daemon.socket) as client:
            return work(client)

    return as_user(uid, body)


def command_as(uid: int, argv: list[str]) -> list[str]:
    """What runs `argv` as another user, also when Python or the checkout lies where that user may not enter.

    Such places are shown to it through a mount namespace of its own, in which nothing else changes.
    """
    steps = ["set -e"]
    needed = {os.path.realpath(path) for path in (sys.base_prefix, sys.prefix, str(Path(__file__).parents[2]))}
    hidden: dict[str, list[str]] = {}
    for path in sorted(needed):
        closed = _first_closed(path)
        if closed:
            hidden.setdefault(closed, []).append(path)
    for closed, paths in hidden.items():
        saved = [tempfile.mkdtemp(prefix="skt-shown-") for _ in paths]
        steps += [f"mount --bind {shlex.quote(path)} {place}" for path, place in zip(paths, saved, strict=True)]
        steps.append(f"mount -t tmpfs -o mode=0755 tmpfs {shlex.quote(closed)}")
        for path, place in zip(paths, saved, strict=True):
            steps += [f"mkdir -p {shlex.quote(path)}", f"mount --move {place} {shlex.quote(path)}", f"rmdir {place}"]
    take = f"exec setpriv --reuid {uid} --regid {uid} --clear-groups --inh-caps=-all -- {shlex.join(argv)}"
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "\n".join([*steps, take])]


def _first_closed(path: str) -> str | None:
    """The outermost directory on the way to `path` that others may not enter."""
    parts = path.strip("/").split("/")
    for count in range(1, len(parts) + 1):
        place = "/" + "/".join(parts[:count])
        if os.stat(place).st_mode & 0o005 != 0o005:
            return place if count < len(parts) else None
    return None
