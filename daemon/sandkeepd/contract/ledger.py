"""Ownership of a provider's resources by the log."""

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct, field


class Ledger(Protocol):
    """The log's present view of a provider's objects."""

    def owns_sandbox(self, sandbox_id: str) -> bool:
        """Return True if there is such a sandbox, and it has not ended."""
        ...

    def knows_sandbox(self, sandbox_id: str) -> bool:
        """Return True if there is such a sandbox, or was one whose journals are kept."""
        ...

    def owns_image(self, image_id: str) -> bool:
        """Return True if there is such an image, and it was not removed."""
        ...

    def owns_layer(self, name: str) -> bool:
        """Return True if a sandbox that has not ended, or that is about to be made, begins with kept files of that
        name.
        """
        ...

    def plans(self) -> Mapping[str, dict[str, Any]]:
        """Return the plans of the sandboxes that have not ended, by their ids."""
        ...


class Swept(Struct, frozen=True, kw_only=True):
    """The objects that a provider held without an owner in the log, as sentences: `removed`, or left as they belong to
    another log.
    """

    removed: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
