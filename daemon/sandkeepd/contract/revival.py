"""Restarting a sandbox that ended by itself: `sandbox.resume` of one that is lost or failed.

::

    ending = await instance.ended()      # on record: sandbox.failed
    await instance.aclose()
    ...                                  # the client resumes it; on record: resume_requested
    instance = await provider.revival.revive(sandbox_id, image_id, spec, secrets, plan, instance.handle)
    ...                                  # on record: resumed, with the new handle

A daemon that finds a revival begun by its predecessor calls `halt`, with the old handle, and records that it failed.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from sandkeep.model import SandboxSpec
from sandkeepd.contract.instance import Instance


class Reviving(Protocol):
    """`provider.revival`: present when a sandbox that has ended by itself can be started anew on the files that it
    left. Its journals, and the recorded exits of its processes, stay.
    """

    async def revive(
        self,
        sandbox_id: str,
        image_id: str,
        spec: SandboxSpec,
        secrets: Mapping[str, str],
        plan: dict[str, Any],
        handle: dict[str, Any],
    ) -> Instance:
        """Start a sandbox anew; its remaining processes are ended first. `handle` is that of the instance before.

        On any error, cancellation included, none of its processes run, and its files are as before. Raises `not_ready`
        with the reason when they are gone.
        """
        ...

    async def halt(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """End the processes of a sandbox whose revival was interrupted, and leave its files. Safe to repeat."""
        ...
