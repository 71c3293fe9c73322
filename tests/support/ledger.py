"""A ledger for providers that run without a daemon."""

from collections.abc import Collection
from typing import Any


class FixedLedger:
    """The ledger of a log that owns these sandboxes and images, and knows sandboxes that have `ended`."""

    def __init__(
        self, sandboxes: Collection[str] = (), images: Collection[str] = (), ended: Collection[str] = ()
    ) -> None:
        self._sandboxes, self._images, self._ended = sandboxes, images, ended

    def owns_sandbox(self, sandbox_id: str) -> bool:
        return sandbox_id in self._sandboxes

    def knows_sandbox(self, sandbox_id: str) -> bool:
        return self.owns_sandbox(sandbox_id) or sandbox_id in self._ended

    def owns_image(self, image_id: str) -> bool:
        return image_id in self._images

    def owns_layer(self, name: str) -> bool:
        return False

    def plans(self) -> dict[str, dict[str, Any]]:
        return {}
