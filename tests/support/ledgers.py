"""Logs as providers see them."""

from collections.abc import Container
from typing import Any

from sandkeepd.contract.ledger import Ledger


class Owning(Ledger):
    """A log that owns these sandboxes and images (None: every image), and nothing else. It knows of `ended` ones."""

    def __init__(
        self, sandboxes: Container[str] = (), images: Container[str] | None = (), ended: Container[str] = ()
    ) -> None:
        self._sandboxes, self._images, self._ended = sandboxes, images, ended

    def owns_sandbox(self, sandbox_id: str) -> bool:
        return sandbox_id in self._sandboxes

    def knows_sandbox(self, sandbox_id: str) -> bool:
        return sandbox_id in self._sandboxes or sandbox_id in self._ended

    def owns_image(self, image_id: str) -> bool:
        return self._images is None or image_id in self._images

    def owns_layer(self, name: str) -> bool:
        return False

    def plans(self) -> dict[str, dict[str, Any]]:
        return {}
