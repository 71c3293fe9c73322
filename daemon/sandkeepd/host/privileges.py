"""Rights of threads of root's daemon, and of programs that it starts: only those that their work needs.

They are properties of a thread, which its child processes inherit; so they are dropped in a thread that ends afterwards
(`sandkeep.system.fresh_thread`), and the daemon keeps its own.
"""

import ctypes
import errno
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

CHOWN: Final = 0
DAC_OVERRIDE: Final = 1
FOWNER: Final = 3
FSETID: Final = 4
SYS_ADMIN: Final = 21
MKNOD: Final = 27

_MOST: Final = 64
_CAPBSET_DROP: Final = 24
_SET_NO_NEW_PRIVS: Final = 38
_NUMBERS: Final = {"x86_64": (116, 125, 126), "aarch64": (159, 90, 91)}
_SETGROUPS, _CAPGET, _CAPSET = _NUMBERS.get(os.uname().machine, (-1, -1, -1))
_CAPABILITY_VERSION: Final = 0x20080522
_Sets: Final = ctypes.c_uint32 * 6
"""The sets of capabilities as capget(2) and capset(2) have them. New ones are empty."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def limit_capabilities(needed: Collection[int]) -> None:
    """Limit the capabilities of this thread's children to these, also as root. Does nothing for other users."""
    _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(_MOST):
        if capability not in needed:
            _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # fails for who has none, and beyond the last


@contextmanager
def file_user(uid: int) -> Iterator[None]:
    """Let this thread of root's create files as a user for the length of a block, with all its capabilities.

    Raises OSError.
    """
    capabilities = _Sets()
    _check(_libc.syscall(ctypes.c_long(_CAPGET), _header(), capabilities))
    try:
        _be_file_user(uid)
        _set_capabilities(capabilities)  # those for files went with root's uid
        yield
    finally:
        _libc.setfsuid(ctypes.c_uint(os.geteuid()))


def take_rights_of(uid: int, gid: int) -> None:
    """Give this thread the rights of a user to files, and no capabilities. The other threads keep theirs: so not by
    libc. Raises OSError.
    """
    _check(_libc.syscall(ctypes.c_long(_SETGROUPS), ctypes.c_long(0), None))
    _libc.setfsgid(ctypes.c_uint(gid))
    if _libc.setfsgid(ctypes.c_uint(gid)) != gid:
        raise _refused()
    _be_file_user(uid)
    _set_capabilities(_Sets())


def _header() -> ctypes.Array[ctypes.c_uint32]:
    return (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)


def _set_capabilities(sets: ctypes.Array[ctypes.c_uint32]) -> None:
    _check(_libc.syscall(ctypes.c_long(_CAPSET), _header(), sets))


def _be_file_user(uid: int) -> None:
    _libc.setfsuid(ctypes.c_uint(uid))
    if _libc.setfsuid(ctypes.c_uint(uid)) != uid:  # it answers with the one before, and with no error
        raise _refused()


def _refused() -> OSError:
    return OSError(errno.EPERM, os.strerror(errno.EPERM))


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
