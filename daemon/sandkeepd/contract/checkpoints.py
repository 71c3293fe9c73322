"""Checkpoints: sandboxes kept with all that runs in them.

::

    facts = provider.checkpoints.facts()                                   # on record, with the checkpoint
    made = await provider.checkpoints.checkpoint("sbx_1", directory, running, leave_running=True)

To bring it back in a new sandbox, here or on another machine::

    why = provider.checkpoints.why_not_here(facts)                         # None, or the request fails with it
    plan = provider.checkpoints.plan_like(old_plan, provider.plan("sbx_2", …))
    instance = await provider.checkpoints.create_saved("sbx_2", image_id, spec, plan, secret_names, directory)
    await provider.checkpoints.rename("sbx_2", "prc_1", "prc_9")           # each process gets an id of its own
    await instance.find("prc_9")

To go back within the same sandbox is `return_to`, after which the methods of `provider.replacement` settle what was
put aside: `drop_replaced`, or `put_back` when the daemon died on the way.
"""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from msgspec import Struct, field

from sandkeep.model import SandboxSpec
from sandkeepd.contract.instance import Instance


class Checkpointed(Struct, frozen=True, kw_only=True):
    """What came of a checkpoint: for how long the sandbox stood still, if it goes on; and the `digests` of those of its
    files of which they are known (see `digests`), with their sizes.
    """

    pause_ms: float | None
    digests: dict[str, tuple[str, int]] = field(default_factory=dict)


class Checkpointing(Protocol):
    """`provider.checkpoints`: there when sandboxes can be kept with all that runs in them.

    A checkpoint is some files in a directory. It can be brought back any number of times, on this machine or on one
    that `why_not_here` has nothing against.
    """

    def why_no_checkpoint(self, plan: Mapping[str, Any]) -> str | None:
        """Why no checkpoint can be made of a sandbox of that plan; None when one can."""
        ...

    def plan_like(self, plan: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
        """The plan of a sandbox that is brought back from a checkpoint of one of the plan `plan`, and that gets what
        was `planned` for it.
        """
        ...

    def facts(self) -> dict[str, str]:
        """What of this machine the checkpoints that are made here depend on. May block. Raises
        `provider_unavailable`.
        """
        ...

    def why_not_here(self, facts: Mapping[str, str]) -> str | None:
        """Why what was made where that was so cannot be brought back here, in words; None when it can. May block."""
        ...

    async def checkpoint(
        self, sandbox_id: str, directory: str, process_ids: Collection[str], *, leave_running: bool
    ) -> Checkpointed:
        """Keep a sandbox in an empty directory. It goes on, or else is suspended. `process_ids` are those on record as
        running. On any error it runs, unless it has ended; what is in the directory then is of no use.
        """
        ...

    async def create_saved(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plan: dict[str, Any], secrets: Collection[str],
        directory: str,
    ) -> Instance:  # fmt: skip
        """Make a sandbox of a checkpoint. `secrets` are the names of those in it. On any error, cancellation included,
        nothing is left of it.
        """
        ...

    async def return_to(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plans: tuple[dict[str, Any], dict[str, Any]],
        handle: dict[str, Any], directory: str,
    ) -> Instance:  # fmt: skip
        """End what runs in a sandbox and have it be what it was when the checkpoint was made; its plan is the second of
        `plans` then. What its processes wrote since stays. On any error it is what it was before, if it ran.
        """
        ...

    async def rename(self, sandbox_id: str, process_id: str, new: str) -> None:
        """Have a process of a sandbox that was brought back be called by another id from now on, before it is asked
        after.
        """
        ...
