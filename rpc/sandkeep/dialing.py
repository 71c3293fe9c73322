"""What can go wrong between a client and the daemon's socket, as errors that say what to do."""

import errno
import os
from typing import Any, Final

from sandkeep.errors import CallerError, SandkeepError, SetupError, StateError
from sandkeep.jsonrpc import Answer
from sandkeep.settings import SOCKET

_MOST_PATH_BYTES: Final = 107
_NOBODY: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR})


def socket_path(given: str | os.PathLike[str] | None) -> str:
    """The socket to connect to: the one given, or the setting's. Raises `not_configured` if none can be there."""
    path = SOCKET() if given is None else os.fspath(given)
    if not path:
        words = "the path of the daemon's socket is empty: give one, or leave SANDKEEP_SOCKET unset"
        raise SetupError("not_configured", words, setting="SANDKEEP_SOCKET")
    if len(os.fsencode(path)) > _MOST_PATH_BYTES:
        words = f"SANDKEEP_SOCKET: the path of a socket has at most {_MOST_PATH_BYTES} bytes, and {path} has more"
        raise SetupError("not_configured", words, setting="SANDKEEP_SOCKET")
    return path


def cannot_connect(path: str, error: OSError) -> SandkeepError:
    """Why nobody could be reached at `path`."""
    if error.errno in _NOBODY:
        return StateError(
            "not_ready", f"no daemon is listening on {path}: start one with `sandkeep daemon`", socket=path
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        words = f"you may not connect to {path}: ask its administrator, or start a daemon of your own"
        return CallerError("permission_denied", words, socket=path)
    if error.errno in (errno.EAGAIN, errno.ETIMEDOUT):
        return StateError("not_ready", f"the daemon on {path} is too busy to answer: try again", socket=path)
    words = f"{path} cannot be connected to: {error.strerror or error}; set SANDKEEP_SOCKET to a daemon's socket"
    return SetupError("not_configured", words, setting="SANDKEEP_SOCKET")


def connection_lost(path: str, method: str, params: dict[str, Any], said: Answer | None = None) -> SandkeepError:
    """The connection ended before `method` was answered; `said` is what the daemon told about that, if it did.

    A command that changes something may have been carried out. Given again with the `command_id` of this error's data,
    it is not done twice.
    """
    if said is not None and said.error is not None:
        return said.error.to_exception()
    command = {"command_id": params["command_id"]} if "command_id" in params else {}
    hint = "; repeat it with the same command_id, and it is not done twice" if command else ""
    words = f"the daemon on {path} closed the connection before it answered {method}: see whether it runs{hint}"
    return StateError("not_ready", words, socket=path, **command)
