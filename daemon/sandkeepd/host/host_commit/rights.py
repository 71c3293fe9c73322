"""Rights of the program: the caller's credentials, for good."""

import ctypes
import os
import signal
from collections.abc import Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x20080522
_MAX_CAPABILITIES: Final = 64

_libc: Final = ctypes.CDLL(None, use_errno=True)


def become(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Take a caller's uid, gid and groups, and drop every capability. Root as a caller keeps its own.

    Raises OSError if the kernel refuses any of that. Whatever the program imports must be imported before: the caller
    may not be able to read the daemon's files.
    """
    if uid != 0:
        _set("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)
        if os.geteuid() == 0:
            _drop_bounding_set()
            os.setgroups(list(groups))
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        _drop_capabilities()
    if os.getresuid() != (uid, uid, uid):
        raise PermissionError(f"the program runs as {os.getresuid()} and not as {uid}")
    # The caller may signal processes of his uid, but must not read or write the memory and descriptors of this one.
    _set("undumpable", _PR_SET_DUMPABLE, 0)


def end_with_parent(parent: int) -> None:
    """Make the kernel send SIGTERM when the daemon's thread ends. To be called after `become`, which clears it."""
    _set("parent death signal", _PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before
        os.kill(os.getpid(), signal.SIGTERM)


def _drop_bounding_set() -> None:
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(_MAX_CAPABILITIES):
        if _prctl(_PR_CAPBSET_DROP, capability) < 0:  # EINVAL: the kernel has no more; EPERM: root without CAP_SETPCAP
            break


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if _libc.capset(header, (ctypes.c_uint32 * 6)()) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capabilities: {os.strerror(number)}")


def _set(name: str, option: int, value: int) -> None:
    if _prctl(option, value) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _prctl(option: int, value: int) -> int:
    zero = ctypes.c_ulong(0)
    return int(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero))
