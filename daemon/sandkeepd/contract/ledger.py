"""Ownership of a provider's resources by the log."""

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct, field


class Ledger(Protocol):
    """What the log owns of a provider's, at the moment of asking."""

    def owns_sandbox(self, sandbox_id: str) -> bool:
        """Whether there is such a sandbox, and it has not ended."""
        ...

    def knows_sandbox(self, sandbox_id: str) -> bool:
        """Whether there is such a sandbox, or was one whose journals are kept."""
        ...

    def owns_image(self, image_id: str) -> bool:
        """Whether there is such an image, and it was not removed."""
        ...

    def owns_layer(self, name: str) -> bool:
        """Whether a sandbox that has not ended, or that is about to be made, begins with kept files of that name."""
        ...

    def plans(self) -> Mapping[str, dict[str, Any]]:
        """The plans of the sandboxes that have not ended, by their ids."""
        ...


class Swept(Struct, frozen=True, kw_only=True):
    """What a provider held that the log does not own, in words: `removed`, and left because it is another log's."""

    removed: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
