"""Objects of workspaces by their ids: apps, images, secrets, mounts, sandboxes."""

import secrets
import string
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from grpclib import GRPCError, Status

_ALPHABET: Final = string.ascii_letters + string.digits
ID_LENGTH: Final = 22
"""Sandboxes of the first version have ids of exactly this length."""


def new_id(prefix: str) -> str:
    """Make an id, as `ap-…`."""
    return f"{prefix}-{''.join(secrets.choice(_ALPHABET) for _ in range(ID_LENGTH))}"


@dataclass(kw_only=True)
class Owned:
    """Something that belongs to a workspace."""

    id: str
    workspace: str


@dataclass(kw_only=True)
class App(Owned):
    """An app of an environment."""

    name: str
    environment: str
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Secret(Owned):
    """Variables of an environment, with a name or for one app."""

    variables: dict[str, str]
    name: str = ""
    environment: str = ""


T = TypeVar("T", bound=Owned)


class Objects:
    """All objects of the service."""

    def __init__(self) -> None:
        self._objects: dict[str, Owned] = {}
        self.environments: dict[str, set[str]] = {}

    def add(self, made: T) -> T:
        """Keep a new object."""
        self._objects[made.id] = made
        return made

    def remove(self, found: Owned) -> None:
        """Forget an object."""
        del self._objects[found.id]

    def all(self, kind: type[T], workspace: str | None = None) -> list[T]:
        """Return the objects of a kind, the oldest first: of a workspace, or of all."""
        every: Any = self._objects.values()
        return [one for one in every if isinstance(one, kind) and workspace in (None, one.workspace)]

    def find(self, kind: type[T], object_id: str, workspace: str | None) -> T:
        """Return the object of a workspace, or of any. Raises GRPCError."""
        found = self._objects.get(object_id)
        if not isinstance(found, kind) or workspace not in (None, found.workspace):
            raise GRPCError(Status.NOT_FOUND, f"{kind.__name__} with ID {object_id} not found")
        return found

    def environment(self, workspace: str, name: str) -> str:
        """Return the name of an environment; the default one if none is given. Raises GRPCError."""
        name = name or "main"
        if name not in self.environments.setdefault(workspace, {"main"}):
            raise GRPCError(Status.NOT_FOUND, f"Environment '{name}' not found")
        return name
