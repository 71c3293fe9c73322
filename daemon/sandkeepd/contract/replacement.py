"""Replacing the files of a sandbox as a whole: a restore over its own files.

::

    plan = provider.replacement.replaced(old_plan, files)    # `files` as in `layers`; on record: restore_requested
    instance = await provider.replacement.replace_files(sandbox_id, image_id, spec, secrets, (old_plan, plan), handle)
    ...                                                      # on record: restored, with the new handle
    await provider.replacement.drop_replaced(sandbox_id)

A daemon that finds a restore begun by its predecessor calls ``put_back(sandbox_id, old_plan, handle)`` and then adopts
the sandbox, if nothing of it was ended; and it drops what was put aside for a restore that is on record as done.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from sandkeep.model import SandboxSpec
from sandkeepd.contract.instance import Instance


class Replacing(Protocol):
    """`provider.replacement`: there when the files of a sandbox can be replaced by others, as a whole."""

    def replaced(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """The plan by which a sandbox of that plan is started with these files instead of its own."""
        ...

    async def replace_files(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str],
        plans: tuple[dict[str, Any], dict[str, Any]], handle: dict[str, Any],
    ) -> Instance:  # fmt: skip
        """End what runs in a sandbox, put its files aside and start it by the second of its `plans`.

        The files of before stay aside until `drop_replaced`. On any error they are put back, and nothing of it runs.
        """
        ...

    async def put_back(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> bool:
        """End what runs of a sandbox whose files were about to be replaced, if they were, and have it be what it was;
        answer whether anything was ended. Safe to repeat.
        """
        ...

    async def drop_replaced(self, sandbox_id: str) -> None:
        """Remove what was put aside. Safe to repeat."""
        ...
