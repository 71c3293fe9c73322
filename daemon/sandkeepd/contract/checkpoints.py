"""Checkpoints: sandboxes saved with their running processes.

::

    facts = provider.checkpoints.facts()                                   # on record, with the checkpoint
    made = await provider.checkpoints.checkpoint("sbx_1", directory, running, leave_running=True)

To restore it as a new sandbox, here or on another machine::

    why = provider.checkpoints.why_not_here(facts)                         # None, or the request fails with it
    plan = provider.checkpoints.plan_like(old_plan, provider.plan("sbx_2", …))
    instance = await provider.checkpoints.create_saved("sbx_2", image_id, spec, plan, secret_names, directory)
    await provider.checkpoints.rename("sbx_2", "prc_1", "prc_9")           # each process gets an id of its own
    await instance.find("prc_9")

`restore_in_place` restores it over itself. Afterwards the methods of `provider.replacement` settle the state that was
put aside: `drop_replaced`, or `put_back` when the daemon died on the way.
"""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from msgspec import Struct, field

from sandkeep.model import SandboxSpec
from sandkeepd.contract.instance import Instance


class CheckpointResult(Struct, frozen=True, kw_only=True):
    """The result of a checkpoint: the length of the pause, if the sandbox goes on; and the known `digests` of its files
    (see `digests`), with their sizes.
    """

    pause_ms: float | None
    digests: dict[str, tuple[str, int]] = field(default_factory=dict)


class Checkpointing(Protocol):
    """`provider.checkpoints`: present when sandboxes can be saved with their running processes.

    A checkpoint is some files in a directory, whose name begins with its id. It can be restored any number of times,
    on this machine or on another one for which `why_not_here` returns None.
    """

    def why_no_checkpoint(self, plan: Mapping[str, Any]) -> str | None:
        """Return the reason why a sandbox of that plan cannot be checkpointed, or None."""
        ...

    def plan_like(self, plan: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan of a sandbox restored from a checkpoint of a sandbox of the plan `plan`, where `planned` is
        its own plan for the new sandbox.
        """
        ...

    def facts(self) -> dict[str, str]:
        """Return the properties of this machine that checkpoints made here depend on. May block. Raises
        `provider_unavailable`.
        """
        ...

    def why_not_here(self, facts: Mapping[str, str]) -> str | None:
        """Return the reason why a checkpoint with those `facts` cannot be restored here, as a sentence, or None. May
        block.
        """
        ...

    async def checkpoint(
        self, sandbox_id: str, directory: str, process_ids: Collection[str], *, leave_running: bool
    ) -> CheckpointResult:
        """Checkpoint a sandbox into an empty directory. It goes on, or else is suspended. `process_ids` are those on
        record as running. On any error the sandbox runs, unless it has ended; the directory's content is of no use
        then.
        """
        ...

    async def discard(self, checkpoint_id: str) -> None:
        """Remove all that the back end itself keeps of a checkpoint, complete or half made. Safe to repeat."""
        ...

    async def create_from_checkpoint(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plan: dict[str, Any], secrets: Collection[str],
        directory: str,
    ) -> Instance:  # fmt: skip
        """Make a sandbox of a checkpoint. `secrets` are the names of those in it. On any error, cancellation included,
        nothing is left of it.
        """
        ...

    async def restore_in_place(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plans: tuple[dict[str, Any], dict[str, Any]],
        handle: dict[str, Any], directory: str,
    ) -> Instance:  # fmt: skip
        """End the processes of a sandbox and restore it in place from a checkpoint; its plan is the second of `plans`
        then. The output that its processes have written since stays. On any error it returns to its state before, if it
        ran.
        """
        ...

    async def rename(self, sandbox_id: str, process_id: str, new: str) -> None:
        """Give a process of a restored sandbox another id, before any other request for it."""
        ...
