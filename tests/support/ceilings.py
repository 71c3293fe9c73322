"""A user namespace with ceilings of its own for what the kernel counts by user: so a test can use them up, or have none
to begin with, while the machine's are as they were.

As a program: ``ceilings.py max_inotify_watches=0 ... -- COMMAND...`` runs a command in one.
"""

import ctypes
import os
import sys

_CLONE_NEWUSER = 0x10000000


def enter(**ceilings: int) -> None:
    """Put this process, which must have one thread only, into a user namespace with these ceilings."""
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    for name, most in ceilings.items():
        put(name, most)


def put(name: str, most: int) -> None:
    """Set a ceiling of the namespace that this process is in."""
    with open(f"/proc/sys/user/{name}", "w", encoding="ascii") as file:
        file.write(str(most))


if __name__ == "__main__":
    end = sys.argv.index("--")
    enter(**{name: int(most) for name, _, most in (word.partition("=") for word in sys.argv[1:end])})
    os.execvp(sys.argv[end + 1], sys.argv[end + 1 :])
