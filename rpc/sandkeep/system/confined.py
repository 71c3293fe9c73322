"""Programs that can write in one directory only, for any input.

By Landlock (kernels since 5.19 that have it on), which holds for any user and needs no privilege, and by dropping every
capability, which matters for root. Both are properties of a thread that its child processes inherit, so a thread is
made for each, and the caller is unchanged. Where the kernel has no Landlock only the program's own care remains.
"""

import ctypes
import errno
import os
import struct
import subprocess
from collections.abc import Sequence
from typing import Any, Final

from sandkeep.system.fresh_thread import in_fresh_thread

_CREATE_RULESET: Final = 444  # the same numbers on every architecture
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_ABI_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_FIRST_WITH_LINKS: Final = 2
"""The version from which on a file may be linked and renamed from one directory into another below the same rule."""

_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_MOST_CAPABILITIES: Final = 64

_WRITE_FILE: Final = 1 << 1
_REMOVE: Final = 1 << 4 | 1 << 5
_MAKE: Final = 1 << 7 | 1 << 8 | 1 << 10 | 1 << 12  # directories, files, FIFOs, symbolic links
_MAKE_SPECIAL: Final = 1 << 6 | 1 << 9 | 1 << 11  # devices and sockets: nowhere
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14
_FIRST_WITH_TRUNCATE: Final = 3


_RULESET: Final = struct.Struct("=Q")
_RULE: Final = struct.Struct("=Qi")
"""A struct landlock_path_beneath_attr: the allowed access, and the descriptor of the directory."""


def start(argv: Sequence[str | bytes], directory: bytes, **settings: Any) -> "subprocess.Popen[bytes]":
    """Start a program that can write nothing outside `directory`, and no device, socket or set-uid file in it.

    `settings` are those of `subprocess.Popen`; descriptors in them must be open already. Raises OSError.
    """

    def work() -> "subprocess.Popen[bytes]":
        _give_up_capabilities()
        _confine(directory)
        return subprocess.Popen(argv, **settings)

    return in_fresh_thread(work)


def _give_up_capabilities() -> None:
    """Drop all capabilities of programs that this thread executes, also as root; no program regains any."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise _os_error("no_new_privs")
    for capability in range(_MOST_CAPABILITIES):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for who has none, and beyond the last


def _confine(directory: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ABI_VERSION))
    if version < _FIRST_WITH_LINKS:
        return
    truncate = _TRUNCATE if version >= _FIRST_WITH_TRUNCATE else 0
    allowed = _WRITE_FILE | _REMOVE | _MAKE | _REFER | truncate
    ruleset = _RULESET.pack(allowed | _MAKE_SPECIAL)
    rules = libc.syscall(_CREATE_RULESET, ruleset, ctypes.c_size_t(len(ruleset)), 0)
    if rules < 0:
        raise _os_error("Landlock")
    try:
        _allow(libc, rules, directory, allowed)
        if libc.syscall(_RESTRICT_SELF, rules, 0):
            raise _os_error("Landlock")
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, directory: bytes, access: int) -> None:
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, _RULE.pack(access, place), 0):
            raise _os_error("Landlock")
    finally:
        os.close(place)


def _os_error(operation: str) -> OSError:
    number = ctypes.get_errno() or errno.EPERM
    return OSError(number, f"{operation}: {os.strerror(number)}")
