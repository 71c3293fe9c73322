"""Images: made, listed, removed."""

from collections import Counter
from functools import partial
from typing import Any

from sandkeep import events, failpoints, ids
from sandkeep.errors import CallerError, error_from
from sandkeep.model import Image, ImageList
from sandkeep.protocol.methods import ImageCreate, ImageQuery, ImageRef, ImageRemove
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeepd.contract import image_sources
from sandkeepd.contract.image_sources import Source
from sandkeepd.contract.provider import Building, Caller, ImageRequest, Progress
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import ANEW, Core, as_sandkeep_error
from sandkeepd.core.paging import page
from sandkeepd.core.retry import retry_until_done
from sandkeepd.host import caller_paths

REMOVE_DEADLINE_S = 300.0
"""How long a provider may take for removing an image before it is asked again, if it can be interrupted."""


class Images:
    """The handlers of ``image.*``. `holds` counts, by image, what is about to use it and not on record yet."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.holds: Counter[str] = Counter()
        self._leaving: set[str] = set()

    async def create(self, request: Request[ImageCreate]) -> Image:
        """Make an image; one of the same content is used again unless `clean`."""
        source = await self._source(request.params, request.caller)
        provider = self._core.provider(request.params.provider or source.provider)
        default_base = provider.default_base() if isinstance(provider, Building) else None
        event = rules.create_image(request.params, request.owner, provider.name, source, default_base)
        image_id = ids.new_id(ids.IMAGE)
        intent = await self._core.intend(NewEvent(image_id, event, expected_revision=0), request.meta)
        work = partial(self._import, image_id, request.caller, request.progress, intent)
        self._core.carry(work, f"import of {image_id}")
        return await self.answer_create(image_id)

    async def _source(self, command: ImageCreate, caller: Caller) -> Source:
        """What the image is to be made of, by the rule of `image_sources`."""
        if command.provider is not None and not isinstance(self._core.provider(command.provider), Building):
            return image_sources.copied(command, command.provider)
        if not image_sources.is_path(command.source):
            return image_sources.referred(command)
        looked_for = image_sources.looked_for(command)
        return image_sources.seen(command, await caller_paths.look(command.source, caller, looked_for))

    async def answer_create(self, image_id: str) -> Image:
        """Wait until the image is made or failed, and answer it."""
        image = self._core.state.images[image_id]
        await self._core.settled(image_id, lambda: image.status != "creating")
        if image.status == "failed" and image.error is not None:
            raise error_from(*image.error, {"image_id": image_id})
        return rules.image(self._core.state, image_id).view()

    async def created_before(self, request: Request[ImageCreate], first: Recorded) -> Any:  # noqa: ARG002
        """The answer to a command that was given before."""
        image = self._core.state.images[first.stream]
        await self._core.settled(first.stream, lambda: image.status != "creating")
        return ANEW if image.interrupted else await self.answer_create(first.stream)

    async def _import(self, image_id: str, caller: Caller, progress: Progress, intent: Recorded) -> None:
        core = self._core
        requested = core.state.images[image_id].requested
        provider = core.provider(requested.provider)
        try:
            made = await provider.import_image(image_id, _request(requested), caller, progress)
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            error = as_sandkeep_error(unforeseen)
            failed = events.ImageCreateFailed(code=error.code, message=error.message)
            await core.record([NewEvent(image_id, failed)], intent)
            return
        failpoints.reach("image.copied")
        same = None if requested.clean else rules.same_content(core.state, image_id, made.digest)
        if same is None:
            outcome: events.Event = events.ImageCreated(
                digest=made.digest,
                size_bytes=made.size_bytes,
                file_count=made.file_count,
                skipped_count=made.skipped_count,
                skipped=made.skipped,
                details=made.details,
            )
            await core.record([NewEvent(image_id, outcome)], intent)
            return
        self.holds[same.image_id] += 1
        try:
            await provider.remove_image(image_id)
            await core.record([NewEvent(image_id, events.ImageReused(image_id=same.image_id))], intent)
        finally:
            self.holds[same.image_id] -= 1

    async def remove(self, request: Request[ImageRemove]) -> Image:
        """Remove an image that no sandbox needs."""
        core = self._core
        image_id = rules.image(core.state, request.params.image_id).image_id
        pending = ["one that is being made"] * self.holds[image_id]
        event = rules.remove_image(core.state, image_id, pending)
        image = core.state.images[image_id]
        if event is not None and image.status != "removing":
            self._leaving.add(image_id)  # nobody may start to use it while the intent is on its way to the disk
            try:
                intent = await core.intend(
                    NewEvent(image_id, event, expected_revision=image.revision), request.meta, essential=True
                )
            finally:
                self._leaving.discard(image_id)
            core.carry(partial(self.finish_remove, image_id, intent), f"removal of {image_id}")
        return await self.answer_remove(image_id)

    async def answer_remove(self, image_id: str) -> Image:
        """Wait until the image is gone, and answer it."""
        image = self._core.state.images[image_id]
        await self._core.settled(image_id, lambda: image.status != "removing")
        return image.view()

    async def finish_remove(self, image_id: str, intent: Recorded | None) -> None:
        """Remove the files of an image whose removal is on record."""
        core, name = self._core, self._core.state.images[image_id].requested.provider
        then = f"the removal of image {image_id} is ordered, and will be carried out when that answers"
        with core.stalling([image_id], then) as told:
            work, what = lambda: core.provider(name).remove_image(image_id), f"removing {image_id}"
            await retry_until_done(work, what, core.providers.get(name), deadline_s=REMOVE_DEADLINE_S, told=told)
        failpoints.reach("image.discarded")
        await core.record([NewEvent(image_id, events.ImageRemoved())], intent)

    def hold(self, image_id: str) -> None:
        """Say that a sandbox is about to be made from it. Raises `not_found` when it is being removed."""
        if image_id in self._leaving:
            raise CallerError("not_found", f"image {image_id} is being removed", image_id=image_id)
        self.holds[image_id] += 1

    def release(self, image_id: str) -> None:
        """The sandbox is on record, or will not be made."""
        self.holds[image_id] -= 1

    def get_now(self, request: Request[ImageRef]) -> Image:
        """Show an image."""
        return rules.image(self._core.state, request.params.image_id).view()

    def list_now(self, request: Request[ImageQuery]) -> ImageList:
        """List the caller's images; an administrator sees all."""
        query = request.params
        mine = (i for i in self._core.state.images.values() if request.sees(i.owner) and (query.all or not i.ended))
        found, following = page(mine, lambda image: image.image_id, query.after, query.limit)
        return ImageList(images=[image.view() for image in found], next=following)


def _request(requested: events.ImageCreateRequested) -> ImageRequest:
    """What is on record as asked for, for the provider."""
    return ImageRequest(
        kind=requested.kind,
        source=requested.source,
        base=requested.base,
        dockerfile=requested.dockerfile,
        clean=requested.clean,
        labels=requested.labels,
        owner=requested.owner,
    )
