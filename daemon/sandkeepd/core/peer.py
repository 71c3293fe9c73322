"""Credentials of the peer of a Unix socket, from the kernel.

Only the credentials that the kernel recorded at connect are trusted: they hold also when that process has ended, or
executed a set-uid program since, and the peer cannot change them. Its ``/proc`` entry could be that of another process
by now, and is never read.
"""

import ctypes
import errno
import os
import socket
import struct
from typing import Final

from msgspec import Struct

_CREDENTIALS: Final = struct.Struct("iII")
_GID: Final = struct.Struct("I")
_SO_PEERGROUPS: Final = 59  # linux/socket.h; Python has no name for it
_MOST_BYTES: Final = 1024  # Python's getsockopt takes no larger buffer
_MOST_GROUPS: Final = 65536  # NGROUPS_MAX of linux/limits.h


class Peer(Struct, frozen=True, kw_only=True):
    """A connected process: its ids when it connected. `pid` is for the record only, as it can be another's by now.

    `key` names the API key of an HTTP client; its uid is nobody's, and it owns what that key owns.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    pid: int = 0
    key: str | None = None

    @property
    def owner(self) -> str:
        """The owner of objects that this peer makes."""
        return f"uid:{self.uid}" if self.key is None else f"key:{self.key}"


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected. Raises OSError when this is no Unix socket."""
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(uid=uid, gid=gid, groups=_groups_of(connection), pid=pid)


def _groups_of(connection: socket.socket) -> tuple[int, ...]:
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_BYTES)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        packed = _many_groups_of(connection)
    return tuple(gid for (gid,) in _GID.iter_unpack(packed))


def _many_groups_of(connection: socket.socket) -> bytes:
    """More groups than Python's own call has room for."""
    buffer = ctypes.create_string_buffer(_MOST_GROUPS * _GID.size)
    length = ctypes.c_uint32(len(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(connection.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, buffer, ctypes.byref(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[: length.value]
