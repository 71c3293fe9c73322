"""Images: made, listed, removed."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakValueDictionary

import trio
from msgspec import convert
from msgspec.structs import replace

from sandkeep import events, failpoints, ids
from sandkeep.errors import CallerError, StateError
from sandkeep.events import Meta
from sandkeep.model import Image, ImageList
from sandkeep.protocol.methods import (
    ImageCreate,
    ImagePublish,
    ImageQuery,
    ImageRef,
    ImageRemove,
    ImageTag,
    ImageUnpublish,
    ImageUntag,
)
from sandkeep.settings.daemon import DOCKER_BASE
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.state import State
from sandkeepd.contract import image_references, image_sources
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.image_sources import Source
from sandkeepd.contract.images import ImageRequest, ImageTooLargeError
from sandkeepd.core import rules
from sandkeepd.core.access import Request, part_of_request
from sandkeepd.core.core import Core
from sandkeepd.core.holds import Holds
from sandkeepd.core.operation import Command, Creation, DirectCommand, Operation, Order, Removal
from sandkeepd.core.paging import page
from sandkeepd.host import caller_paths
from sandkeepd.host.registries import require_listed

REMOVE_DEADLINE_S = 300.0
"""Seconds a provider may take to remove an image before the request is repeated, if it can be interrupted."""


class ImageHolds:
    """Images that are about to be used, of which nothing is on record yet; and those about to be removed likewise."""

    def __init__(self) -> None:
        self._used = Holds()
        self._leaving = Holds()
        self.leaving = self._leaving.held
        self.count = self._used.count
        self.naming = trio.Lock()
        """Held from the decision which image loses a name until that is on record."""

    def held(self, image_id: str) -> AbstractContextManager[None]:
        """Keep an image from being removed for the length of a block. Raises `not_found` when it is about to be."""
        if self.is_leaving(image_id):
            raise CallerError("not_found", f"image {image_id} is being removed", image_id=image_id)
        return self._used.held(image_id)

    def is_leaving(self, image_id: str) -> bool:
        """Tell if an image is about to be removed."""
        return self._leaving.count(image_id) > 0


class ImageCreation(Creation[ImageState, Image]):
    """``image.create``: a provider makes an image of a source; one of the same content is used again."""

    method = "image.create"
    view = "images"
    named = "image_id"
    failure = events.ImageCreateFailed
    interrupted = "the daemon stopped while it was being made: create it again"

    def __init__(self, core: Core, holds: ImageHolds) -> None:
        super().__init__(core)
        self._holds = holds
        self._turns: WeakValueDictionary[tuple[str, str], trio.Lock] = WeakValueDictionary()

    def owns(self, subject: ImageState) -> bool:
        """See `Operation.owns`. Images of snapshots are made by a promotion."""
        return subject.requested.kind != "snapshot"

    async def act(self, order: Order[ImageState]) -> Sequence[NewEvent]:
        core, image_id, asked = self.core, order.stream, order.subject.requested
        provider = core.provider(asked.provider)
        assert order.request is not None
        published = None if order.request.admin else rules.published_images(core.state, asked.owner)
        most_bytes = core.quotas.most(order.request, asked.owner, "images")
        wanted = replace(convert(asked, ImageRequest, from_attributes=True), published=published, most_bytes=most_bytes)
        try:
            made = await provider.images.make(image_id, wanted, order.caller, order.progress)
        except ImageTooLargeError as error:
            raise core.quotas.exceeded(asked.owner, "images", error.size_bytes) from None
        failpoints.reach("image.copied")
        # Of two of the same content that are made at once, the second is to find the first.
        turn = self._turns.setdefault((asked.provider, made.digest), trio.Lock())
        await order.resources.enter_async_context(turn)
        same = None if asked.clean else rules.same_content(core.state, image_id, made.digest)
        if same is not None and not self._holds.is_leaving(same.image_id):
            order.resources.enter_context(self._holds.held(same.image_id))
            await remove_image(self, order, "image {} is like an older one, which is answered when that answers")
            reused = NewEvent(image_id, events.ImageReused(image_id=same.image_id))
            return [reused, *await self.tags(order, same)]
        await self.charge_image(order, made.size_bytes)
        created = NewEvent(image_id, convert(made, events.ImageCreated, from_attributes=True))
        return [created, *await self.tags(order, order.subject)]

    async def tags(self, order: Order[ImageState], image: ImageState) -> list[NewEvent]:
        """Return the events by which an image gets the name that was asked for. Nothing that may hang comes after
        this, as others, who use other providers, wait for their names.
        """
        name = order.subject.requested.name
        if name is None:
            return []
        await order.resources.enter_async_context(self._holds.naming)
        return tag_image(self.core.state, image, name)

    async def charge_image(self, order: Order[ImageState], size: int) -> None:
        """Charge its owner for an image that was made. Removes it and raises `quota_exceeded` if it is too large."""
        try:
            self.charge(order, order.subject.owner, "images", size)
        except StateError:
            await remove_image(self, order, "image {} exceeds its owner's quota, which is answered when that answers")
            raise

    async def undo(self, order: Order[ImageState]) -> None:
        await remove_image(self, order, "the making of image {} is undone when that answers")

    async def answered(self, request: Request[Any], subject: ImageState) -> Image:  # noqa: ARG002
        return rules.image(self.core.state, subject.image_id).view()


class ImageRemoval(Removal[ImageState, Image]):
    """``image.remove``: an image that nothing needs goes."""

    method = "image.remove"
    view = "images"
    under_way = "removing"

    async def act(self, order: Order[ImageState]) -> Sequence[NewEvent]:
        await remove_image(self, order, "the removal of image {} is on record, and will be carried out when it answers")
        failpoints.reach("image.discarded")
        return [NewEvent(order.stream, events.ImageRemoved())]


async def remove_image(operation: Operation[ImageState, Any], order: Order[ImageState], then: str) -> None:
    """Remove all that there is of an image, by its provider, however often that takes."""
    core, image_id, name = operation.core, order.stream, order.subject.requested.provider

    async def remove() -> None:
        await core.provider(name).images.remove(image_id)

    await operation.insist(image_id, remove, then.format(image_id), name, REMOVE_DEADLINE_S)


def tag_image(state: State, image: ImageState, name: str) -> list[NewEvent]:
    """Return the events by which an image gets a name, and the one that has it loses it. The order matters: the first
    is by which the command is known.
    """
    named = state.image_named(image.owner, name)
    tagged = NewEvent(image.image_id, events.ImageTagged(name=name))
    if named is None or named is image or named.status != "ready":
        return [tagged]
    return [tagged, NewEvent(named.image_id, events.ImageUntagged(name=name))]


def publish_image(state: State, image: ImageState, reference: str, owners: list[str]) -> list[NewEvent]:
    """Return the events by which an image is published, and one that was by the same reference no longer is. The order
    matters: the first is by which the command is known.
    """
    published = NewEvent(image.image_id, events.ImagePublished(reference=reference, owners=owners))
    previous = rules.published_image(state, reference)
    if previous is None or previous is image:
        return [published]
    return [published, NewEvent(previous.image_id, events.ImageUnpublished(reference=reference))]


class Images:
    """The handlers of ``image.*``."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.holds = ImageHolds()
        self.creation = ImageCreation(core, self.holds)
        self._removal = ImageRemoval(core)
        self.operations: Sequence[Operation[Any, Any]] = (self.creation, self._removal)
        self.commands: Sequence[Command] = tuple(
            DirectCommand(method, self._named_again)
            for method in ("image.tag", "image.untag", "image.publish", "image.unpublish")
        )

    async def create(self, request: Request[ImageCreate]) -> Image:
        """Make an image; one of the same content is used again unless `clean`."""
        owner = request.params.owner or request.owner
        if not request.sees(owner):
            raise CallerError("permission_denied", "owner: others' images are for administrators", field="owner")
        self._core.quotas.require(request, owner, "images")
        source = await self._source(request.params, request.caller)
        provider = self._core.provider(request.params.provider or source.provider)
        default_base = provider.builder.default_base() if provider.builder is not None else None
        if not request.admin and source.kind == "reference":
            await self._require_registry(owner, source.source, provider.name)
        event = rules.create_image(request.params, owner, provider.name, source, default_base)
        return await self.creation.run(NewEvent(ids.new_id(ids.IMAGE), event, expected_revision=0), request)

    async def _source(self, command: ImageCreate, caller: Caller) -> Source:
        """Return the source of the image, by the rule of `image_sources`."""
        if command.provider is not None and self._core.provider(command.provider).builder is None:
            return image_sources.copied(command, command.provider)
        if not image_sources.is_path(command.source):
            return image_sources.referred(command)
        dockerfile_path = image_sources.dockerfile_path(command)
        return image_sources.seen(command, await caller_paths.look(command.source, caller, dockerfile_path))

    async def _require_registry(self, owner: str, reference: str, provider: str) -> None:
        """Raise `permission_denied` if a registry that is for administrators only would be asked for an image."""
        name, public = _in_full(reference), rules.published_images(self._core.state, owner)
        is_default = DOCKER_BASE.is_set and name == _in_full(DOCKER_BASE())
        if provider == image_sources.BUILDER and (is_default or name in public):
            return
        await require_listed(reference)

    async def remove(self, request: Request[ImageRemove]) -> Image:
        """Remove an image that no sandbox needs; only the name by which it is given if it has others: an image of the
        same content that was made under another name is this one.
        """
        core, name = self._core, ids.image_name(request.sent.image_id)
        image_id = rules.image(core.state, request.params.image_id).image_id
        if (untagged := await self._lose(image_id, name, request)) is not None:
            return untagged
        await self.remove_unused(image_id, request.meta)
        return await self._removal.answer(request, image_id)

    def removal_intent(self, image_id: str) -> events.ImageRemoveRequested | None:
        """Return the intent to remove an image; None if it is gone or going. Raises `in_use`, `not_ready`."""
        return rules.remove_image(self._core.state, image_id, ["one that is being made"] * self.holds.count(image_id))

    async def remove_unused(self, image_id: str, meta: Meta) -> None:
        """Remove an image with all its names. Raises `in_use` if anything needs it."""
        if (event := self.removal_intent(image_id)) is not None:
            new = NewEvent(image_id, event, expected_revision=self._core.state.images[image_id].revision)
            with self.holds.leaving(image_id):  # until the intent is on record
                await self._removal.begin(new, meta)
        await self._removal.settled(image_id)

    async def _lose(self, image_id: str, name: str, request: Request[ImageRemove]) -> Image | None:
        """Take a name from a ready image that has it and others; None if it has not. Raises `not_found` if another
        image gets the name at that moment.
        """
        core = self._core
        if name not in core.state.images[image_id].names:
            return None
        async with self.holds.naming:
            image = core.state.images[image_id]
            rules.require_name(image, name)
            if image.status != "ready" or len(image.names) == 1:
                return None
            core.require_sound()
            await core.log.append([NewEvent(image_id, events.ImageUntagged(name=name))], request.meta)
        return image.view()

    async def tag(self, request: Request[ImageTag]) -> Image:
        """Give an image a name, which another one may lose."""
        core, name = self._core, rules.new_image_name(request.params.name)
        async with self.holds.naming:
            image = rules.ready_image(core.state, request.params.image_id)
            core.require_sound()
            await core.log.append(tag_image(core.state, image, name), request.meta)
        return image.view()

    async def untag(self, request: Request[ImageUntag]) -> Image:
        """Take a name from an image. Raises `not_found` if the image is not called so."""
        core, name = self._core, ids.image_name(request.params.name)
        async with self.holds.naming:
            image = rules.ready_image(core.state, request.params.image_id)
            rules.require_name(image, name)
            core.require_sound()
            await core.log.append([NewEvent(image.image_id, events.ImageUntagged(name=name))], request.meta)
        return image.view()

    async def publish(self, request: Request[ImagePublish]) -> Image:
        """Let owners use an image of the engine, which becomes one of the administrator's own. It is the one that the
        reference means now: a tag that is moved later publishes nothing.
        """
        core, reference = self._core, _in_full(request.params.reference)
        create = ImageCreate(source=reference, provider=image_sources.BUILDER)
        made = await self.create(part_of_request(request, "image.create", create))
        with self.holds.held(made.image_id):
            async with self.holds.naming:
                image = rules.ready_image(core.state, made.image_id)
                core.require_sound()
                await core.log.append(publish_image(core.state, image, reference, request.params.owners), request.meta)
        return image.view()

    async def unpublish(self, request: Request[ImageUnpublish]) -> Image:
        """Withdraw a published image. Raises `not_found` if no image is published so."""
        core, reference = self._core, _in_full(request.params.reference)
        async with self.holds.naming:
            image = rules.published_image(core.state, reference)
            if image is None:
                raise CallerError("not_found", f"reference: no image is published as {reference}", field="reference")
            core.require_sound()
            await core.log.append(
                [NewEvent(image.image_id, events.ImageUnpublished(reference=reference))], request.meta
            )
        return image.view()

    async def _named_again(self, request: Request[Any], first: Recorded) -> Image:  # noqa: ARG002
        return rules.image(self._core.state, first.stream).view()

    def get_now(self, request: Request[ImageRef]) -> Image:
        """Show an image."""
        return rules.image(self._core.state, request.params.image_id).view()

    def list_now(self, request: Request[ImageQuery]) -> ImageList:
        """List the caller's images; an administrator sees all."""
        query = request.params
        if query.published:
            return self._list_published(request)
        mine = (i for i in self._core.state.images.values() if request.sees(i.owner) and (query.all or not i.ended))
        found, following = page(mine, lambda image: image.image_id, query.after, query.limit)
        return ImageList(images=[image.view() for image in found], next=following)

    def _list_published(self, request: Request[ImageQuery]) -> ImageList:
        """List what is published to the caller; an administrator sees to whom else."""
        public = [image for image in self._core.state.images.values() if image.published and not image.ended]
        views = [
            image.view() if request.admin else replace(image.view(), published=image.published_to(request.owner))
            for image in public
        ]
        mine = [view for view in views if view.published]
        found, following = page(mine, lambda image: image.image_id, request.params.after, request.params.limit)
        return ImageList(images=list(found), next=following)


def _in_full(reference: str) -> str:
    return image_references.parse(reference, "reference").in_full
