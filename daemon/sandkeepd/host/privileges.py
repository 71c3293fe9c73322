"""Capabilities of the programs that root's daemon starts: only those that their work needs.

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
SYS_RESOURCE: Final = 24
MKNOD: Final = 27

_MOST: Final = 64
_CAPBSET_DROP: Final = 24
_SET_NO_NEW_PRIVS: Final = 38
_CAPGET, _CAPSET = ({"x86_64": (125, 126), "aarch64": (90, 91)}).get(os.uname().machine, (-1, -1))
_CAPABILITY_VERSION: Final = 0x20080522
_libc: Final = ctypes.CDLL(None, use_errno=True)


def limit_capabilities(needed: Collection[int]) -> None:
    """Limit the capabilities of this thread's children to these, also as root. Does nothing for other users."""
    _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(_MOST):
        if capability not in needed:
            _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # fails for who has none, and beyond the last


@contextmanager
def file_user(uid: int) -> Iterator[None]:
    """Let this thread of root's create files as a user for the length of a block. It keeps its capabilities but the one
    for which ext4 gives blocks that are reserved for root. Raises OSError.
    """
    header, before = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.syscall(ctypes.c_long(_CAPGET), header, before))
    within = (ctypes.c_uint32 * 6)(*before)
    within[0] &= ~(1 << SYS_RESOURCE)
    _libc.setfsuid(ctypes.c_uint(uid))
    try:
        if _libc.setfsuid(ctypes.c_uint(uid)) != uid:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        _check(_libc.syscall(ctypes.c_long(_CAPSET), header, within))  # those for files went with root's uid
        yield
    finally:
        _libc.setfsuid(ctypes.c_uint(os.geteuid()))
        _check(_libc.syscall(ctypes.c_long(_CAPSET), header, before))


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
