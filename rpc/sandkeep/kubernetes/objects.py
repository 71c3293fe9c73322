"""Read API objects as a cluster sent them: nothing about their shape is taken for granted."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

Object: TypeAlias = Mapping[str, Any]
"""An API object, as parsed from JSON."""

READY: Final = "Ready"
MAX_MESSAGE_CHARACTERS: Final = 1000
"""Messages of conditions are cut to this length."""


class Condition(Struct, frozen=True):
    """A condition of an object's status. `status` is "True", "False" or "Unknown"."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""

    @property
    def is_true(self) -> bool:
        """Return True if the condition holds."""
        return self.status == "True"

    def describe(self) -> str:
        """Return the message, or the reason of a condition without one."""
        return self.message or self.reason or f"{self.type} is {self.status or 'not set'}"


def value_at(obj: Object, *path: str) -> Any:
    """Return the value at a path of keys; None if a key is missing or its parent is no mapping."""
    value: Any = obj
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def text_at(obj: Object, *path: str) -> str:
    """Return the text at a path of keys; empty if there is none."""
    value = value_at(obj, *path)
    return value if isinstance(value, str) else ""


def name_of(obj: Object) -> str:
    """Return the name of an object."""
    return text_at(obj, "metadata", "name")


def label_of(obj: Object, label: str) -> str:
    """Return the value of a label; empty without it."""
    return text_at(obj, "metadata", "labels", label)


def condition_of(obj: Object, type: str) -> Condition | None:
    """Return the condition of that type; None without it."""
    conditions = value_at(obj, "status", "conditions")
    for found in conditions if isinstance(conditions, list) else []:
        if isinstance(found, Mapping) and found.get("type") == type:
            message = text_at(found, "message")[:MAX_MESSAGE_CHARACTERS]
            return Condition(type, text_at(found, "status"), text_at(found, "reason"), message)
    return None


def is_ready(obj: Object) -> bool:
    """Return True if the condition Ready holds and the object is not being deleted."""
    ready = condition_of(obj, READY)
    return ready is not None and ready.is_true and not text_at(obj, "metadata", "deletionTimestamp")
