"""Capabilities of the programs that root's daemon starts: only those that their work needs.

They are properties of a thread, which its child processes inherit; so they are dropped in a thread that ends afterwards
(`sandkeep.system.fresh_thread`), and the daemon keeps its own.
"""

import ctypes
from collections.abc import Collection
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
_libc: Final = ctypes.CDLL(None, use_errno=True)


def limit_capabilities(needed: Collection[int]) -> None:
    """Limit the capabilities of this thread's children to these, also as root. Does nothing for other users."""
    _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(_MOST):
        if capability not in needed:
            _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # fails for who has none, and beyond the last
