"""Opening the Unix socket that the API is served on: safely, and with words when that cannot be done."""

import contextlib
import errno
import grp
import os
import socket
import stat
from collections.abc import Iterator
from typing import Final

from sandkeep.errors import SetupError, StateError
from sandkeep.settings.daemon import SOCKET, SOCKET_GROUP
from sandkeep.system.descriptors import identity_of
from sandkeepd.core.peer import peer_of
from sandkeepd.host import processes
from sandkeepd.host.instance_lock import lock_file

_BACKLOG: Final = 512
_SO_PASSRIGHTS: Final = 83  # linux/socket.h, since 6.16; Python has no name for it
_MOST_PATH_BYTES: Final = 107  # sockaddr_un of unix(7) holds 108, the last of them NUL


@contextlib.contextmanager
def listening(
    path: str, mode: int = 0o660, group: str | None = None, setting: str = SOCKET.name
) -> Iterator[socket.socket]:
    """A socket that listens on `path`, non-blocking; afterwards it is closed, and its file removed if it is still ours.

    `mode` says who may connect and `group` is the file's group by name. `setting` is what errors name. A directory that
    is missing is made with 0755. Beside the socket there is a file whose lock is held meanwhile.

    Error handling
        `conflict` when somebody listens there already; a socket file on which nobody does is replaced.
        `not_configured`, naming the setting, for a path that is too long or cannot be used, and for a group that does
        not exist.
    """
    gid = -1 if group is None else _group_id(group)
    _check_length(path, setting)
    with contextlib.ExitStack() as stack:
        try:
            _make_directory(os.path.dirname(path))
            _refuse_others(path, setting)
            # Of two that start at once, one would take away the socket that the other has just made.
            stack.enter_context(lock_file(f"{path}.lock", _in_use(path, setting)))
            _remove_stale(path, setting)
            listener = stack.enter_context(_bind(path, mode, gid))
        except OSError as error:
            raise SetupError(
                "not_configured",
                f"cannot listen on {path}: {error.strerror or error}: set {setting} to another path",
                setting=setting,
            ) from error
        made = identity_of(path, follow_symlinks=False)
        try:
            yield listener
        finally:
            if identity_of(path, follow_symlinks=False) == made:
                os.unlink(path)


def refuse_descriptors(listener: socket.socket) -> None:
    """Make the kernel refuse descriptors that clients send (EPERM); accepted connections inherit that.

    The daemon has no use for them, and discarding one closes it: closing a TCP socket with SO_LINGER would block the
    whole daemon for as long as its sender likes. Kernels before 6.16 cannot refuse.
    """
    if listener.family == socket.AF_UNIX:
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


def _group_id(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise SetupError(
            "not_configured",
            f"{SOCKET_GROUP.name}: there is no group {group!r}: create it or name another",
            setting=SOCKET_GROUP.name,
        ) from None


def _check_length(path: str, setting: str) -> None:
    length = len(os.fsencode(path))
    if length > _MOST_PATH_BYTES:
        message = f"set {setting} to a shorter path: {path} has {length} bytes, of {_MOST_PATH_BYTES} possible"
        raise SetupError("not_configured", message, setting=setting)


def _make_directory(path: str) -> None:
    if path and not os.path.isdir(path):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o755)  # whatever the umask is: who may connect is said by the socket's own mode  # noqa: S103  # others have to reach the socket in it


def _refuse_others(path: str, setting: str) -> None:
    """Raise if the path must not be replaced: it is no socket, or another process listens on it."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            message = f"{path} is there and is no socket: set {setting} to another path"
            raise SetupError("not_configured", message, setting=setting)
        if _somebody_listens(path):
            raise _in_use(path, setting)


def _in_use(path: str, setting: str) -> StateError:
    message = f"a daemon is already listening on {path}: use that, stop it, or set {setting}"
    return StateError("conflict", message, socket=path)


def _remove_stale(path: str, setting: str) -> None:
    _refuse_others(path, setting)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _somebody_listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        number = probe.connect_ex(path)
        if number:
            return number == errno.EAGAIN  # a process listens, and has a full queue
        # A child that a killed daemon had begun to spawn has its socket until exec: the kernel still takes connections.
        pid = peer_of(probe).pid  # of who called listen(2)
        return pid == 0 or processes.start_time(pid) is not None  # 0: one that cannot be seen from here


def _bind(path: str, mode: int, gid: int) -> socket.socket:
    """Bind, then set mode and group, then listen: before that no connection is possible, for any umask."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        refuse_descriptors(listener)
        listener.bind(path)
        os.chown(path, -1, gid)
        os.chmod(path, mode)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
