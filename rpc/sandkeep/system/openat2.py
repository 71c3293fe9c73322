"""Open files below a directory without ever leaving it, by openat2(2).

Needs Linux 5.6. Every path that code in a sandbox, a client or an archive can change is opened with this: the kernel
refuses symbolic links, ``..`` above the directory, and the magic links of ``/proc``, in all components and at once, so
that nothing can be swapped between a check and its use.
"""

import ctypes
import errno
import os
import struct
from typing import Final

_SYS_OPENAT2: Final = 437  # the same on every architecture
_HOW: Final = struct.Struct("=QQQ")
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_NO_SYMLINKS: Final = 0x04
_RESOLVE_BENEATH: Final = 0x08
_RESOLVE_IN_ROOT: Final = 0x10
_RESOLVE: Final = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
_TRIES: Final = 64
"""The kernel gives up with EAGAIN when something is renamed at that moment. It says the same of a file on which its
owner has a lease, for as long as 45 s: so there is an end to trying again.
"""
_CREATES: Final = os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY

_libc: Final = ctypes.CDLL(None, use_errno=True)


def open_beneath(directory: int, path: str | bytes, flags: int, mode: int = 0) -> int:
    """Open `path`, relative to the open `directory`; close-on-exec always.

    Raises OSError: ELOOP for a symbolic link in any component, EXDEV for a path that leads out of the directory, EAGAIN
    where concurrent renames keep it from being opened.
    """
    return _open(directory, path, flags, mode, _RESOLVE)


def open_in_root(root: int, path: str | bytes, flags: int) -> int:
    """Open `path` as a process with the root directory `root` would. Creates no files. Raises OSError."""
    return _open(root, path, flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)


def _open(directory: int, path: str | bytes, flags: int, mode: int, resolve: int) -> int:
    how = _HOW.pack(flags | os.O_CLOEXEC, mode if flags & _CREATES else 0, resolve)
    error = errno.EAGAIN
    for _ in range(_TRIES):
        number = _libc.syscall(_SYS_OPENAT2, directory, os.fsencode(path), how, ctypes.c_size_t(_HOW.size))
        if number >= 0:
            return int(number)
        error = ctypes.get_errno()
        if error not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(error, os.strerror(error), os.fsdecode(path))
