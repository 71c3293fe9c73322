"""The containers of a pod: one place each, in which one runs after the other."""

import asyncio
from dataclasses import dataclass
from typing import Any

from tests.support.kubernetes.pod_status import ContainerState
from tests.support.kubernetes.runtime import Container

Object = dict[str, Any]


@dataclass(frozen=True)
class Restore:
    """A checkpoint to go on from: the name of its snapshot, and its files."""

    name: str
    directory: str


class RefusedError(Exception):
    """A pod that cannot be restored: the reason and message of its condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Slot:
    """The place of one container in a pod, in which one runs after the other."""

    def __init__(self, directory: str, spec: Object) -> None:
        self.spec = spec
        self.state = ContainerState(spec["name"], spec.get("image", ""))
        self.directory = f"{directory}/{spec['name']}"
        self.running: Container | None = None
        self.process: Object = {}
        self.starved = False
        self.moving = asyncio.Lock()
        """Held while a checkpoint replaces the container."""

    @property
    def log(self) -> str:
        """The file with the output of its last container."""
        return f"{self.directory}/{self.state.restarts}.log"
