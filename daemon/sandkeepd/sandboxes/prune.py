"""Prune: the output of ended sandboxes, and images that nothing needs, are removed by request.

An image stays as long as a sandbox, snapshot, checkpoint, merge or session needs it, and the output of a sandbox as
long as a checkpoint of it can be restored, whose processes go on with it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from sandkeep import events, ids
from sandkeep.errors import SandkeepError, StateError
from sandkeep.events import DAEMON_STREAM, Event, Meta
from sandkeep.model import PruneReport
from sandkeep.protocol.clock import now_us
from sandkeep.protocol.methods import StorePrune
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Order, Upkeep
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.output_limit import OutputLimit

AT_ONCE: Final = 200
"""Maximum number of sandboxes in one event, which has to hold their ids."""

MOST_REPORTED: Final = 1000


class Ended(NamedTuple):
    """An ended sandbox, and the size of its output."""

    sandbox_id: str
    size_bytes: int


class OutputRemoval(Upkeep):
    """The removal of the output of ended sandboxes by ``store.prune``. `payload` are their ids, or the position of the
    event of an earlier daemon that has them.
    """

    method = "store.prune"
    stream = DAEMON_STREAM
    essential = True

    def __init__(self, core: Core, output: OutputLimit) -> None:
        super().__init__(core)
        self._output = output

    def pending(self) -> Sequence[int]:
        return [*self.core.state.log.pruning]

    async def plan(self, asked: Sequence[Ended]) -> tuple[Event, Any]:
        sandbox_ids = [ended.sandbox_id for ended in asked]
        size_bytes = sum(ended.size_bytes for ended in asked)
        return events.OutputRemoveRequested(sandboxes=sandbox_ids, size_bytes=size_bytes), sandbox_ids

    async def act(self, order: Order[Any]) -> Sequence[NewEvent]:
        position = order.intent.position if order.intent is not None else order.payload
        for sandbox_id in self.core.state.log.pruning[position]:
            sandbox = self.core.state.sandboxes.get(sandbox_id)
            if sandbox is not None and sandbox.hidden:
                await self._output.drop(sandbox)
        return [NewEvent(self.stream, events.OutputRemoved(position=position))]


class Prune:
    """The handler of ``store.prune``."""

    def __init__(self, core: Core, images: Images, output: OutputLimit) -> None:
        self._core = core
        self._images = images
        self._output = output
        self.removal = OutputRemoval(core, output)

    async def prune(self, request: Request[StorePrune]) -> PruneReport:
        """Remove output of ended sandboxes, and unused images: an administrator everybody's, others their own."""
        return await self._prune(request, dry_run=request.params.dry_run)

    async def answer_again(self, request: Request[StorePrune]) -> PruneReport:
        """Answer a repeated command: nothing is removed, and the result is that of a dry run."""
        return await self._prune(request, dry_run=True)

    async def _prune(self, request: Request[StorePrune], *, dry_run: bool) -> PruneReport:
        core, meta = self._core, Meta(owner=request.owner, client=request.client)
        if not dry_run:
            core.require_sound()
        await request.progress("measuring the output of ended sandboxes")
        ended = [each for sandbox in self._ended(request) if (each := await self._measured(sandbox)).size_bytes]
        for start in range(0, 0 if dry_run else len(ended), AT_ONCE):
            await self.removal.carry_out(ended[start : start + AT_ONCE], meta)
        await request.progress("looking for images that nothing needs")
        images, left = [*self._unused(request)], list[str]()
        for image in () if dry_run else tuple(images):
            try:
                await self._images.remove_unused(image.image_id, meta)
            except SandkeepError as error:  # it is used by now, or the provider does not answer
                images.remove(image)
                left.append(f"{image.image_id}: {error.message}")
        return PruneReport(
            images=[image.image_id for image in images][:MOST_REPORTED],
            sandboxes=[each.sandbox_id for each in ended][:MOST_REPORTED],
            image_bytes=sum(image.created.size_bytes for image in images if image.created is not None),
            output_bytes=sum(each.size_bytes for each in ended),
            left=left[:MOST_REPORTED],
            dry_run=dry_run,
        )

    def _ended(self, request: Request[StorePrune]) -> list[SandboxState]:
        """Return the ended sandboxes whose output nothing needs."""
        state, before_us = self._core.state, _moment_us(request.params)
        with_checkpoints = {each.sandbox_id for each in state.checkpoints.values() if each.alive}
        return [
            sandbox
            for sandbox in state.sandboxes.values()
            if sandbox.hidden
            and request.sees(sandbox.owner)
            and (sandbox.ended_us or sandbox.requested_us) <= before_us
            and sandbox.sandbox_id not in with_checkpoints
        ]

    async def _measured(self, sandbox: SandboxState) -> Ended:
        await self._output.measure(sandbox)
        return Ended(sandbox.sandbox_id, self._core.quotas.journals_of(sandbox.sandbox_id))

    def _unused(self, request: Request[StorePrune]) -> Iterator[ImageState]:
        """Yield the images that nothing needs; those that have names only if all are to go."""
        before_us = _moment_us(request.params)
        for image in list(self._core.state.images.values()):
            if image.status != "ready" or not request.sees(image.owner) or image.requested_us > before_us:
                continue
            if (request.params.all or not image.names) and not self._is_of_session(image):
                try:
                    self._images.removal_intent(image.image_id)
                except StateError:
                    continue
                yield image

    def _is_of_session(self, image: ImageState) -> bool:
        """Return True if a session that can be made ready again says this image, by any of its names."""
        words = {image.image_id, image.requested.source, *image.names}
        sessions = (each for each in self._core.state.sessions.values() if each.owner == image.owner and not each.ended)
        return any(words & {each.spec.image, ids.image_name(each.spec.image)} for each in sessions)


def _moment_us(params: StorePrune) -> int:
    """Return the moment, in microseconds since 1970, after which nothing is removed."""
    return now_us() - int((params.older_than_s or 0) * 1e6)
