"""The deepagents that is installed, which may be none: its results, where its backends have results of their own."""

import importlib
from typing import TYPE_CHECKING, Any

try:
    _protocol: Any = importlib.import_module("deepagents.backends.protocol")
except ImportError:
    _protocol = None

if TYPE_CHECKING:
    Backend = object
else:
    Backend = getattr(_protocol, "SandboxBackendProtocol", object)


def result(name: str, **values: Any) -> Any:
    """Return a result of the class `name`; None if the installed deepagents has none."""
    kind = getattr(_protocol, name, None)
    return None if kind is None else kind(**values)
