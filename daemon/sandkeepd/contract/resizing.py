"""Changing the limits of sandboxes that exist: `sandbox.update`.

::

    plan = await provider.resizing.reserve(sandbox_id, plan, LimitChange(disk_bytes=disk_bytes))
    ...                                                  # on record: sandbox.updated, with the plan
    await provider.resizing.apply(sandbox_id, plan)

A daemon that dies in between leaves a reservation, which `adopt` and `revive` return, or limits on record, which they
apply.
"""

from typing import Any, Protocol

from msgspec import Struct


class LimitChange(Struct, frozen=True, kw_only=True):
    """The limits to change; None leaves one as it is."""

    cpus: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    disk_bytes: int | None = None

    @property
    def of_group(self) -> bool:
        """True if one is among them that a control group enforces."""
        return (self.cpus, self.memory_bytes, self.pids) != (None, None, None)


class Resizing(Protocol):
    """`provider.resizing`: present when limits can be changed while a sandbox runs."""

    async def reserve(self, sandbox_id: str, plan: dict[str, Any], change: LimitChange) -> dict[str, Any]:
        """Check the change, reserve the bytes that a disk limit promises, and return the plan with it. The old limits
        are in force still.

        Raises `storage_unavailable`, `not_supported` for a limit that this sandbox cannot have, `not_ready` when its
        files are gone, `in_use` when its processes need more memory than they may have then.
        """
        ...

    async def apply(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        """Let the recorded plan's limits be in force, and return what is reserved beyond them. Safe to repeat. Raises
        `in_use` as `reserve` does.
        """
        ...
