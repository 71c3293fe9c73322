"""Changing the disk limits of sandboxes that exist: `sandbox.update`.

::

    plan = await provider.resizing.reserve(sandbox_id, plan, disk_bytes)
    ...                                                  # on record: sandbox.updated, with the plan
    await provider.resizing.apply(sandbox_id, plan)

A daemon that dies in between leaves a reservation, which `adopt` and `revive` return, or a limit on record, which they
apply.
"""

from typing import Any, Protocol


class Resizing(Protocol):
    """`provider.resizing`: present when disk usage is limited."""

    async def reserve(self, sandbox_id: str, plan: dict[str, Any], disk_bytes: int) -> dict[str, Any]:
        """Reserve the bytes that the limit promises, and return the plan with it. The old limit is in force still.

        Raises `storage_unavailable`, `not_supported` for a limit that this sandbox cannot have, `not_ready` when its
        files are gone.
        """
        ...

    async def apply(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        """Let the recorded plan's limit be in force, and return what is reserved beyond it. Safe to repeat."""
        ...
