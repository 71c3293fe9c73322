"""Errors: six classes by responsible party; each instance carries one stable code.

The codes are part of the protocol and never change: they travel as ``error.data.code`` of a JSON-RPC error, and a
client raises the same class with the same code again. A message is one sentence for a person: the problem and the
remedy.
"""

from typing import Any, Final


class SandkeepError(Exception):
    """Anything that Sandkeep refuses or fails at. Catch a subclass, or look at `code`.

    `code` is one of `CODES`; `message` a sentence; `data` holds the ids and names concerned, ready for JSON.
    """

    def __init__(self, code: str, message: str, **data: Any) -> None:
        super().__init__(message)
        if not isinstance(self, CODES.get(code, ())):
            raise ValueError(f"{code!r} is not a code of {type(self).__name__}")
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class CallerError(SandkeepError):
    """The request can never succeed: change it."""


class StateError(SandkeepError):
    """The request is valid, but not in the present state: wait, or change that state first."""


class SetupError(SandkeepError):
    """This machine or its settings lack something that the request needs: its administrator can change that."""


class ProviderError(SandkeepError):
    """The sandbox's runtime failed, or the sandbox exhausted its resources."""


class DataError(SandkeepError):
    """Stored data is missing, damaged, or removed by retention."""


class DaemonError(SandkeepError):
    """Sandkeep itself failed: its disk, its connection, or a defect of ours."""


CODES: Final[dict[str, type[SandkeepError]]] = {
    "not_found": CallerError,
    "invalid": CallerError,
    "permission_denied": CallerError,
    "conflict": StateError,
    "in_use": StateError,
    "not_ready": StateError,
    "timeout": StateError,
    "lock_contended": StateError,
    "lock_timeout": StateError,
    "lock_lost": StateError,
    "secret_missing": StateError,
    "merge_conflict": StateError,
    "host_changed": StateError,
    "quota_exceeded": StateError,
    "snapshot_not_ready": StateError,
    "tree_too_deep": StateError,
    "not_supported": SetupError,
    "not_configured": SetupError,
    "provider_unavailable": ProviderError,
    "disk_limit": ProviderError,
    "snapshot_missing": DataError,
    "snapshot_corrupt": DataError,
    "lock_damaged": DataError,
    "compacted": DataError,
    "wrong_log": DataError,
    "storage_unavailable": DaemonError,
    "internal": DaemonError,
}

MEANINGS: Final[dict[str, str]] = {
    "not_found": "No such object, or it belongs to another owner.",
    "invalid": "A parameter has the wrong type, value or size; `field` names it.",
    "permission_denied": "The caller may not do this, or may not read or write that path.",
    "conflict": "The id or name is taken, or the object has changed.",
    "in_use": "Something else still needs the object.",
    "not_ready": "The object is not in a state that allows this; `status` is its state.",
    "timeout": "The deadline passed; the operation may still complete.",
    "lock_contended": "Another owner holds the lock, or waits for it; `held_by` and `expires_at` name it.",
    "lock_timeout": "The lock was not released in time; `held_by` and `expires_at` as in `lock_contended`.",
    "lock_lost": "The lock was taken over by another daemon, or could not be renewed in time.",
    "secret_missing": "A secret, which is stored nowhere, must be given again.",
    "merge_conflict": "Branches changed the same thing differently.",
    "host_changed": "The target changed since the branch was made.",
    "quota_exceeded": "A quota of the owner does not allow it; `quota` names it, `used` and `limit` are its figures, "
    "and the message says what frees it.",
    "snapshot_not_ready": "The snapshot is being created, or has no archive: it failed, or was deleted.",
    "tree_too_deep": "The tree has more levels of directories than can be copied, packed or compared.",
    "not_supported": "This provider or machine cannot do it; the message says what is missing.",
    "not_configured": "A setting is missing; the message names it.",
    "provider_unavailable": "The provider does not answer or failed.",
    "disk_limit": "The sandbox reached its disk limit.",
    "snapshot_missing": "The archive is missing from its place; or there is no snapshot or checkpoint at or before the "
    "requested moment.",
    "snapshot_corrupt": "The archive is damaged or not safe to extract.",
    "lock_damaged": "The lock's document is damaged, and was not changed.",
    "compacted": "The requested events were archived, and `first` is the first position in the log; or the "
    "requested output was dropped.",
    "wrong_log": "The token belongs to another event log.",
    "storage_unavailable": "The event log or state directory cannot be written: free space or repair the disk.",
    "internal": "A defect of Sandkeep; the daemon's log has the details.",
}


def error_from(code: str, message: str, data: dict[str, Any]) -> SandkeepError:
    """Rebuild an error from the wire; an unknown code becomes `internal`, with the code in its data."""
    kind = CODES.get(code)
    if kind is None:
        return DaemonError("internal", message, **{**data, "unknown_code": code})
    return kind(code, message, **data)


def only_error(error: Exception) -> Exception:
    """Unwrap groups of one exception, as nurseries make them."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
