"""Replacing the files of a sandbox as a whole."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from sandkeep.model import SandboxSpec
from sandkeepd.contract.instance import Instance


@runtime_checkable
class Replacing(Protocol):
    """What a provider can do beyond `Provider` when the files of a sandbox can be replaced by others, as a whole."""

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
