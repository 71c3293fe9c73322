"""Images of shared sandboxes whose memory moves: archives of them beside the checkpoints, and images made of these.

The archive of an image is named by the digest of the image's content, so each is stored once. What comes from one is
trusted when it has that digest.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio

from sandkeep import events, ids
from sandkeep.errors import CallerError, DataError, SandkeepError, StateError
from sandkeep.model import Image, SharedImage
from sandkeep.protocol.methods import ImageCreate, Params
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.archives.stores.transfer import DigestedCopy
from sandkeep_store.archives.tar.limits import DEFAULT_LIMITS
from sandkeep_store.archives.trees.pack import pack
from sandkeep_store.buckets.config import STORAGE, Place, Root, Storage
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.images import ImageState
from sandkeepd.contract import image_references
from sandkeepd.contract.layers import KeptArchive
from sandkeepd.contract.provider import Provider
from sandkeepd.core.access import Request, part_of_request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Operation, Order
from sandkeepd.host.threads import Meter, run_in_thread
from sandkeepd.host.unnamed_file import open_unnamed, unnamed_file
from sandkeepd.sandboxes.images import ImageCreation, Images
from sandkeepd.snapshots.archives import LOG_KEY
from sandkeepd.snapshots.forks import layering
from sandkeepd.snapshots.layers import LayerReferences

FOLDER: Final = "sandbox_images"


class SharedImageCreation(ImageCreation):
    """An image of the archive that another daemon left. `payload` is the `SharedImage`, and the archive's place."""

    recovers = False  # on record it is an image like others, which `ImageCreation` undoes

    def __init__(self, core: Core, images: Images, layers: LayerReferences, state_dir: str) -> None:
        super().__init__(core, images.holds)
        self._layers = layers
        self._state_dir = state_dir

    async def act(self, order: Order[ImageState]) -> Sequence[NewEvent]:
        (wanted, place), asked, name = order.payload, order.subject.requested, ids.new_id(ids.SNAPSHOT)
        provider = layering(self.core.provider(asked.provider))
        with self._layers.held(name), unnamed_file(self._state_dir) as descriptor:
            fetch = partial(_fetch, place, descriptor)
            sha256 = await run_in_thread(fetch, order.progress, f"reading {place}")
            archive = KeptArchive(descriptor=descriptor, sha256=sha256, limits=DEFAULT_LIMITS)
            try:
                await provider.fill(name, archive, order.progress)
                files = await provider.files_of_layers([name], None)
                made = await provider.promote(order.stream, files, None, order.progress)
            finally:
                with trio.CancelScope(shield=True), suppress(SandkeepError):
                    await provider.discard_layers([name])
        if made.digest != wanted.digest:
            raise DataError("snapshot_corrupt", f"{place} is damaged: its content does not match its name")
        await self.charge_image(order, made.size_bytes)
        created = events.ImageCreated(
            digest=made.digest, size_bytes=made.size_bytes, file_count=made.file_count, details=made.details
        )
        return [NewEvent(order.stream, created)]

    async def roll_back(self, order: Order[ImageState]) -> None:
        await self.undo(order)


class SharedImages:
    """Leaves archives of images for other daemons, and finds or makes the images of sandboxes that come from them."""

    def __init__(
        self, core: Core, images: Images, layers: LayerReferences, state_dir: str, storage: Storage = STORAGE
    ) -> None:
        self._core = core
        self._images = images
        self._state_dir = state_dir
        self._storage = storage
        self._creation = SharedImageCreation(core, images, layers, state_dir)
        self.operations: Sequence[Operation[Any, Any]] = (self._creation,)

    async def describe(self, request: Request[Any], image: ImageState, *, archive: bool) -> SharedImage:
        """Return an image as other daemons are told of it, with an `archive` of its files that they can read."""
        asked, digest = image.requested, image.created.digest if image.created is not None else ""
        path = None
        if archive:
            path = _path_of(digest)
            place = self._root().place(path)
            opened = await layering(self._core.provider(asked.provider)).open_image(image.image_id)
            try:
                work = partial(_leave, opened, place, self._state_dir, self._core.log.log_id)
                await run_in_thread(work, request.progress, f"leaving the image at {place}")
            finally:
                os.close(opened)
        source = asked.source if asked.kind == "reference" else None
        return SharedImage(provider=asked.provider, digest=digest, path=path, source=source)

    async def find(self, request: Request[Params], wanted: SharedImage, provider: Provider, *, by_archive: bool) -> str:
        """Return the id of the caller's image of that content, which is made if need be, with `by_archive` of the one
        that was left at the latest when the sandbox was saved. Raises `not_ready` when it cannot be had.
        """
        for image in reversed(self._core.state.images.values()):
            made, asked = image.created, image.requested
            if image.status != "ready" or made is None or asked.provider != provider.name:
                continue
            if made.digest == wanted.digest and request.sees(image.owner):
                return image.image_id
        if wanted.source is not None:
            _require_reference(wanted.source)
            command = ImageCreate(source=wanted.source, provider=provider.name)
            found: Image = await self._images.create(part_of_request(request, "image.create", command))
            if found.digest != wanted.digest:
                message = f"{wanted.source} no longer has the content of the sandbox's image"
                raise DataError("snapshot_corrupt", f"{message}: make that image here, and attach again")
            return found.image_id
        if wanted.path is None and not by_archive:
            message = f"there is no image here with the content {wanted.digest}, of which the sandbox was made"
            remedy = "make it with `sandkeep image create`, and attach again"
            if provider.builder is not None:  # what an engine builds has another digest each time
                remedy = "push the image to a registry, and share a sandbox that was made of it by its name there"
            raise StateError("not_ready", f"{message}: {remedy}")
        place = self._root().place(wanted.path or _path_of(wanted.digest))
        event = events.ImageCreateRequested(
            owner=request.owner, provider=provider.name, kind="directory", source=str(place)
        )
        new = NewEvent(ids.new_id(ids.IMAGE), event, expected_revision=0)
        part = part_of_request(request, "image.create", ImageCreate(source=str(place)))
        made_here: Image = await self._creation.run(new, part, (wanted, place))
        return made_here.image_id

    def _root(self) -> Root:
        return self._storage.require("checkpoint", bucket=True)


def _path_of(digest: str) -> str:
    return f"{FOLDER}/{digest.rpartition(':')[2]}.tar.zst"


def _require_reference(source: str) -> None:
    """Raise `snapshot_corrupt` for what metadata call a container image, but is a path of this host, say."""
    try:
        image_references.parse(source, "source")
    except CallerError as error:
        raise DataError("snapshot_corrupt", f"the metadata of the shared sandbox is damaged: {error.message}") from None


def _leave(tree: int, place: Place, state_dir: str, log_id: str, moved: Meter) -> None:
    """Store an archive of an image's files, unless it is there already. Blocks."""
    store = open_store(place.root)
    with suppress(DataError):
        store.stat(place.path)
        return
    descriptor = open_unnamed(state_dir)
    with open(descriptor, "r+b") as file:
        packed = pack(tree, descriptor, codec="zstd", moved=moved)
        file.seek(0)
        with suppress(StateError):  # another daemon was first
            store.write(
                place.path, file, size_bytes=packed.size_bytes, sha256=packed.sha256, metadata={LOG_KEY: log_id},
                progress=moved,
            )  # fmt: skip


def _fetch(place: Place, descriptor: int, moved: Meter) -> str:
    """Copy an archive into an empty file; return its digest. Blocks."""
    copy = DigestedCopy(hashlib.sha256, descriptor)
    open_store(place.root).download(place.path, copy.begin, progress=moved)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return copy.digest.hexdigest()
