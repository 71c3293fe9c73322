"""The daemon as clients see it: its socket, its identity, and the time to wait for it when it went away.

No input or output here, but for the reason of a start that failed: errors of the connection become messages with a
remedy.
"""

import errno
import os
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from sandkeep.errors import CallerError, DataError, SandkeepError, SetupError, StateError
from sandkeep.protocol import jsonrpc
from sandkeep.protocol.jsonrpc import Answer
from sandkeep.protocol.methods import METHODS
from sandkeep.settings.daemon import PATIENCE, SOCKET
from sandkeep.system import start_failure
from sandkeep.system.backoff import Backoff

GREETING_ID: Final = 0
"""The id of a connection's first request, the greeting; others count from 1."""

STEADY_S: Final = 10.0
"""A daemon that stays for that long has come back for good: when it goes again, it is waited for as before."""

_NOTIFY_AFTER_S: Final = 1.0
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.5
_GROWTH: Final = 1.6
_MOST_PATH_BYTES: Final = 107
_NOBODY: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR})
_NOT_AGAIN: Final = frozenset({"daemon.shutdown"})
"""Methods that are not retried when the daemon has gone: that is their purpose."""


class Daemon:
    """The daemon that a client talks to, over any number of connections.

    `patience_s` is the time that a call waits when the daemon went away, by default SANDKEEP_PATIENCE; with 0 it fails
    at once. `on_wait` is called with a message when that takes a while, `on_progress` with the progress messages of a
    blocking client's calls that were given no function for them. `is_away` is True while a call waits.
    """

    def __init__(self, path: str | os.PathLike[str] | None, client: str, patience_s: float | None = None) -> None:
        self.path = socket_path(path)
        self.patience_s = PATIENCE() if patience_s is None else patience_s
        self.on_wait: Callable[[str], None] | None = None
        self.on_progress: Callable[[str], None] | None = None
        self.is_away = False
        self._client = client
        self._log_id: str | None = None

    def greeting(self) -> bytes:
        """Return the first request of a connection."""
        return jsonrpc.request(GREETING_ID, "rpc.hello", {"client": self._client})

    def recognise(self, answer: Answer) -> None:
        """Take the answer to a greeting. Raises `wrong_log` when it is not the daemon of earlier connections."""
        if answer.error is not None:
            return
        log_id = msgspec.json.decode(answer.result, type=_Welcome).log_id
        if log_id is None or self._log_id in (None, log_id):
            self._log_id = self._log_id or log_id
            return
        message = f"the daemon on {self.path} has another event log than before: connect again, and start over"
        raise DataError("wrong_log", message, log_id=log_id)


class _Welcome(msgspec.Struct, frozen=True):
    log_id: str | None = None


class Retry:
    """One call, made again and again when the connection is lost, for as long as the daemon's `patience_s`."""

    def __init__(self, daemon: Daemon, method: str, params: dict[str, Any]) -> None:
        row = METHODS.get(method)
        self.daemon = daemon
        self._method = method
        self._params = params
        self._harmless = row is not None and (not row.mutates or "command_id" in params) and method not in _NOT_AGAIN
        self._began = time.monotonic()
        self._backoff: Backoff | None = None
        self._went = 0.0
        self._back: float | None = None

    @property
    def params(self) -> dict[str, Any]:
        """Parameters to send. The time left to wait for the end of a process shrinks with each attempt."""
        timeout_s = self._params.get("timeout_s")
        if self._backoff is None or timeout_s is None or self._method != "process.wait":
            return self._params
        return {**self._params, "timeout_s": max(0.001, timeout_s - (time.monotonic() - self._began))}

    def failure(self, reason: Answer | None = None) -> SandkeepError:
        """Return the error of a call whose connection was lost; `reason` is the daemon's reason, if any."""
        return connection_lost(self.daemon.path, self._method, self._params, reason)

    def lost(self, error: SandkeepError) -> None:
        """The connection was lost before the answer. Raises `error` if the call is not to be made again."""
        if not self._harmless or self.daemon.patience_s <= 0:
            raise error from None
        if self._back is not None and time.monotonic() - self._back > STEADY_S:
            self._backoff = None
        self._begin()

    def pause(self, error: SandkeepError) -> float:
        """Return the seconds to wait before the next attempt to connect. Raises `error` when the time is over, or the
        daemon could not start.
        """
        pause_s = None if "reason" in error.data else self._begin().pause()
        if pause_s is None:
            self.daemon.is_away = False
            raise error from None
        self._notify(error)
        return pause_s

    def _begin(self) -> Backoff:
        if self._backoff is None:
            self._went, patience_s = time.monotonic(), self.daemon.patience_s
            self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, patience_s, growth=_GROWTH, at_once=True)
            self._backoff.begin()
        return self._backoff

    @property
    def remaining_s(self) -> float:
        """For how many more seconds the daemon is waited for."""
        return max(0.001, self._backoff.remaining_s if self._backoff is not None else 0)

    def _notify(self, error: SandkeepError) -> None:
        self.daemon.is_away = True
        if self.daemon.on_wait is not None and self._went and time.monotonic() - self._went > _NOTIFY_AFTER_S:
            self._went = 0.0
            away = f"the daemon on {self.daemon.path} does not answer: waiting for it"
            self.daemon.on_wait(f"{error.message}; waiting" if error.code == "quota_exceeded" else away)

    def begin_anew(self) -> None:
        """The daemon is there, if not for this call: the time to wait for it begins with the next pause."""
        self.daemon.is_away = False
        self._backoff = None

    def connected(self) -> None:
        """There is a connection again."""
        self.daemon.is_away = False
        self._back = time.monotonic()


def socket_path(given: str | os.PathLike[str] | None) -> str:
    """The socket to connect to: the one given, or the setting's. Raises `not_configured` if none can be there."""
    path = SOCKET() if given is None else os.fspath(given)
    if not path:
        message = "the path of the daemon's socket is empty: give one, or unset SANDKEEP_SOCKET"
        raise SetupError("not_configured", message, setting="SANDKEEP_SOCKET")
    if len(os.fsencode(path)) > _MOST_PATH_BYTES:
        message = f"SANDKEEP_SOCKET: {path} is too long: the path of a socket has at most {_MOST_PATH_BYTES} bytes"
        raise SetupError("not_configured", message, setting="SANDKEEP_SOCKET")
    return path


def cannot_connect(path: str, error: OSError) -> SandkeepError:
    """Return the error for a failed connection to `path`."""
    if error.errno in _NOBODY:
        if reason := start_failure.reason(path):
            words = f"the daemon of {path} could not start: {reason}"
            return StateError("not_ready", words, socket=path, reason=reason)
        return StateError(
            "not_ready", f"no daemon is listening on {path}: start one with `sandkeep daemon --detach`", socket=path
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        message = f"permission denied for {path}: ask the administrator, or start a daemon of your own"
        return CallerError("permission_denied", message, socket=path)
    if error.errno in (errno.EAGAIN, errno.ETIMEDOUT):
        return StateError("not_ready", f"the daemon on {path} is too busy to answer: try again", socket=path)
    message = f"cannot connect to {path}: {error.strerror or error}; set SANDKEEP_SOCKET to a daemon's socket"
    return SetupError("not_configured", message, setting="SANDKEEP_SOCKET")


def connection_lost(path: str, method: str, params: dict[str, Any], reason: Answer | None = None) -> SandkeepError:
    """Return the error for a connection that ended before `method` was answered; `reason` is the daemon's, if any.

    A command that changes something may have been carried out. Repeated with the `command_id` of this error's data, it
    takes effect once.
    """
    if reason is not None and reason.error is not None:
        return reason.error.to_exception()
    command = {"command_id": params["command_id"]} if "command_id" in params else {}
    hint = "; a retry with the same command_id takes effect once" if command else ""
    message = f"the daemon on {path} closed the connection before it answered {method}: check that it runs{hint}"
    return StateError("not_ready", message, socket=path, **command)


def is_refusal(answer: Answer) -> bool:
    """Return True for the daemon's word that the user has too many connections. The request was not looked at."""
    return answer.id is None and answer.error is not None and answer.error.data.get("quota") == "connections"


def is_lost(error: SandkeepError) -> bool:
    """Return True if the connection failed, rather than the daemon refusing."""
    return error.code == "not_ready" and "socket" in error.data
