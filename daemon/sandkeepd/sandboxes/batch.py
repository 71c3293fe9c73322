"""Operations that make several sandboxes at once, which begin with the same: forks, and restores of a checkpoint."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from sandkeep.model import Sandbox, SandboxSpec
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.snapshots import ForkState
from sandkeepd.core.access import Request
from sandkeepd.core.core import RUN_AGAIN, Core
from sandkeepd.core.operation import A, Creation
from sandkeepd.sandboxes.creation import Maker
from sandkeepd.sandboxes.sandboxes import Sandboxes


class SandboxBatch(Creation[ForkState, A]):
    """One order in a stream of its own. Its outcome is on record together with the intents to make the sandboxes, each
    of which is then carried out as every other; from there on nothing of the source matters to them.
    """

    view = "forks"

    def __init__(self, core: Core, sandboxes: Sandboxes) -> None:
        super().__init__(core)
        self._sandboxes = sandboxes

    async def run_batch(
        self, owner: str, names: Sequence[str], count: int, intent: Callable[[list[str]], NewEvent],
        request: Request[Any], spec: SandboxSpec, payload: Any = None,
    ) -> A:  # fmt: skip
        """Give the order to make so many sandboxes of these names, by the intent for their ids, and answer it. `spec`
        has their limits; `payload` is that of the order.

        Raises `invalid` and `conflict` for the names, and `quota_exceeded`.
        """
        reservations = self._sandboxes.reservations
        sandbox_ids = reservations.several(request, owner, names, count, spec)
        order = await reservations.hand_over(
            sandbox_ids, lambda: self.begin(intent(sandbox_ids), request.meta, request, payload)
        )
        return await self.answer(request, order.stream)

    def start_each(self, facts: Sequence[Recorded], maker: Callable[[], Maker]) -> None:
        """Start to make all sandboxes of an outcome on record, each with a maker of its own. `facts` begin with the
        outcome. The end of one that nobody makes yet would not be seen, so this does not wait.
        """
        for intent in facts[1:]:
            self._sandboxes.creation.start(intent, payload=maker())

    async def begin_each_again(
        self, request: Request[Any], sandbox_ids: Sequence[str], maker: Callable[[], Maker]
    ) -> None:
        """Begin to make some of a batch after all, each with a maker of its own."""
        for sandbox_id in sandbox_ids:
            await self._sandboxes.creation.begin_again(request, sandbox_id, maker())

    async def each_made(self, batch: ForkState) -> list[Sandbox]:
        """Wait until all are made, and return them. Raises the error of the first one that failed."""
        return [await self._sandboxes.creation.made(sandbox_id) for sandbox_id in batch.sandbox_ids]

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        """See `Operation.again`. Sandboxes that only a daemon's end kept from being made are made now."""
        batch = self.subjects[first.stream]
        unmade = await self._sandboxes.creation.unmade(batch)
        if unmade is None:
            return RUN_AGAIN
        if unmade:
            await self.make_again(request, batch, unmade)
        return await self.answer(request, first.stream)

    @abstractmethod
    async def make_again(self, request: Request[Any], batch: ForkState, sandbox_ids: Sequence[str]) -> None:
        """Begin to make some of a batch after all."""
