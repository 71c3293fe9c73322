"""Kinds of objects that an API server knows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Admit = Callable[[Object, Object | None], None]


def _accept(new: Object, old: Object | None) -> None:
    """Admit every object unchanged."""


@dataclass(frozen=True)
class Resource:
    """A kind: its names, versions and subresources.

    `admit(new, old)` fills in defaults and raises ApiError for an object that is not valid; `old` is None on creation.
    """

    plural: str
    kind: str
    group: str = ""
    versions: tuple[str, ...] = ("v1",)
    storage: str = "v1"
    namespaced: bool = True
    status: bool = False
    short_names: tuple[str, ...] = ()
    admit: Admit = _accept

    @property
    def key(self) -> str:
        """The name under which the store has it: `pods`, `sandboxes.agents.x-k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def api_version(self, version: str | None = None) -> str:
        """`apiVersion` of objects in a version, the stored one by default."""
        version = version or self.storage
        return f"{self.group}/{version}" if self.group else version
