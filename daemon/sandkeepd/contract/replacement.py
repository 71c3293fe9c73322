"""Replacing the files of a sandbox as a whole: a restore over its own files.

::

    plan = provider.replacement.replaced(old_plan, files)    # `files` as in `layers`; on record: restore_requested
    instance = await provider.replacement.replace_files(sandbox_id, image_id, spec, secrets, (old_plan, plan), handle)
    ...                                                      # on record: restored, with the new handle
    await provider.replacement.drop_replaced(sandbox_id)

A daemon that finds a restore begun by its predecessor calls ``put_back(sandbox_id, old_plan, handle)`` and then adopts
the sandbox, if none of its processes were ended; and it drops the files put aside for a restore that is recorded as
done.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from sandkeep.model import SandboxSpec
from sandkeepd.contract.instance import Instance


class Replacing(Protocol):
    """`provider.replacement`: present when the files of a sandbox can be replaced by others, as a whole."""

    def plan_replacement(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan by which a sandbox of that plan is started with these files instead of its own."""
        ...

    async def replace_files(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str],
        plans: tuple[dict[str, Any], dict[str, Any]], handle: dict[str, Any],
    ) -> Instance:  # fmt: skip
        """End the processes of a sandbox, put its files aside and start it by the second of its `plans`.

        The old files stay aside until `drop_replaced`. On any error they are put back, and none of its processes run.
        """
        ...

    async def put_back(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> bool:
        """Undo an interrupted replacement: end the new processes of the sandbox and put its old files back, if they
        were about to be replaced; return True if the sandbox itself has ended, False if `adopt` finds it. Safe to
        repeat.
        """
        ...

    async def drop_replaced(self, sandbox_id: str) -> None:
        """Remove the files that were put aside. Safe to repeat."""
        ...
