"""Redaction of events: numbers, ids, names and data of providers stay, and nothing else.

Pure. It works on documents, so that events of every version can be redacted, and redacting twice changes nothing.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from sandkeep.events import Event

REDACTED: Final = "[redacted]"
MARK: Final = "redacted"
_KEPT: Final = frozenset(
    {
        "owner", "provider", "kind", "image_id", "sandbox_id", "name", "code", "reason", "digest", "last_status",
        "signal", "plan", "handle", "details", "isolation", "network", "user", "snapshot_id", "parent_id", "fork_id",
        "forked_from", "restored_from", "sandbox_ids", "places", "format", "root", "where", "owner_id", "here", "place",
        "files", "facts", "checkpoint_id", "names", "session_id", "ref", "mode", "shared",
        "saved", "first_image", "to", "reference", "owners", MARK,
    }
)  # fmt: skip

E = TypeVar("E", bound=Event)


def redact_data(data: bytes) -> bytes:
    """The data of a redacted event."""
    return msgspec.json.encode({**_blank_document(msgspec.json.decode(data)), MARK: True})


def change_fingerprint(meta: bytes, change: Callable[[str], str]) -> bytes:
    """Return an event's meta with another fingerprint of its command, if it has one."""
    known = msgspec.json.decode(meta)
    if "command" not in known:
        return meta
    return msgspec.json.encode({**known, "command": change(known["command"])})


def redact_event(event: E) -> E:
    """The event as it is read once its data are redacted."""
    return msgspec.json.decode(redact_data(msgspec.json.encode(event)), type=type(event))


def _blank_document(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value if key in _KEPT else _blank(key, value) for key, value in document.items()}


def _blank(key: str, value: Any) -> Any:
    if isinstance(value, str):
        return REDACTED
    if isinstance(value, list):
        return [REDACTED] if key == "command" else []
    if isinstance(value, dict) and key == "requested":
        return _blank_document(value)
    if isinstance(value, dict):
        return {**_blank_document(value), "working_dir": None} if key == "spec" else {}
    return value
