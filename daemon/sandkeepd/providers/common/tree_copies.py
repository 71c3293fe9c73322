"""Copies of directory trees: GNU cp, with the capabilities that it takes, from one mount without links to another.

It resolves names, and hostile code may replace their targets meanwhile. On such mounts, see `views`, they lead nowhere
outside of the tree that is read, and of the one that is written: a copied link is not written through either.
Everything here blocks.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from sandkeep.errors import DaemonError, ProviderError
from sandkeep_store.threads import check_cancelled
from sandkeepd.host import privileges
from sandkeepd.host.processes import in_fresh_thread, poll_in, spawn
from sandkeepd.providers.common.views import writable

STUCK_S: Final = 20
"""Maximum seconds of waiting for one and the same thing: for a file that was replaced by a FIFO when it is opened, or
for a file's owner who has a lease on it. A disk that does not answer is waited for.
"""

_LOOK_S: Final = 0.2
_FIRST_BYTES: Final = 65536
_CAPABILITIES: Final = (
    privileges.CHOWN, privileges.DAC_OVERRIDE, privileges.FOWNER, privileges.FSETID, privileges.MKNOD,
    privileges.SYS_ADMIN,  # for an overlay's attributes
)  # fmt: skip


def copy_tree(source: int, target: str, *, enter: Sequence[str] = (), reflink: str = "auto") -> None:
    """Copy the content of the open directory `source`, one from `open_merged`, to `target`. `enter` is the argv before
    a program.

    Raises `storage_unavailable` when the disk is full, and `provider_unavailable`. It is killed when the call for which
    this thread works is cancelled.
    """
    directory, name = os.path.split(target)
    argv = [*enter, "cp", "-a", f"--reflink={reflink}", "-T", "--", "/proc/self/fd/0/.", f"/proc/self/fd/3/{name}"]
    with writable(directory) as there:
        output, saying = os.pipe()
        try:
            child = in_fresh_thread(partial(_start, argv, source, saying, there))
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(saying)
        with open(output, "rb", buffering=0) as complaints:
            try:
                first = _follow(complaints.fileno(), child)
            except BaseException:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        if "No space left" in first or "quota" in first:
            raise DaemonError("storage_unavailable", f"the state directory is full: make room there: {first[:300]}")
        raise ProviderError("provider_unavailable", f"files could not be copied: {first[:300]}")


def _start(argv: Sequence[str], source: int, saying: int, target: int) -> int:
    privileges.limit_capabilities(_CAPABILITIES)
    return spawn(argv, stdin=source, output=saying, more=[target])


def _follow(output: int, child: int) -> str:
    """Return the beginning of its stderr when it has ended; kill it when it is stuck."""
    first, waiting_s, before = b"", 0.0, ""
    while True:
        check_cancelled()
        if poll_in(output, _LOOK_S):
            piece = os.read(output, _FIRST_BYTES)
            if not piece:
                return first.decode(errors="replace").strip()
            first = (first + piece)[:_FIRST_BYTES]
            continue
        now = _waits(child)
        waiting_s = waiting_s + _LOOK_S if now and now == before else 0
        before = now
        if waiting_s >= STUCK_S:
            os.kill(child, signal.SIGKILL)
            return "a file could not be opened within 20 s"


def _waits(child: int) -> str:
    """Return the bytes that it has read and written so far, if it waits now, and not for a disk."""
    with suppress(OSError):  # it has just ended
        with open(f"/proc/{child}/stat", encoding="utf-8", errors="replace") as file:
            state = file.read().rpartition(") ")[2][:1]
        if state == "S":
            with open(f"/proc/{child}/io", encoding="ascii") as file:
                return file.read()
    return ""
