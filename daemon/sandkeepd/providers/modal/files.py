"""The files of sandboxes at Modal: archives of their workspaces, and Modal's own images of all their files besides.

A snapshot is an archive, as everywhere. Modal makes an image as well, and a sandbox that is restored there begins with
that: nothing is sent. Modal drops images after 30 days, and the archive takes over.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError, SetupError
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.layers import WorkspaceRoots
from sandkeepd.contract.snapshots import PackedFiles, PackRequest, Source
from sandkeepd.providers.common.inside import WORKSPACE
from sandkeepd.providers.common.streamed_layers import StreamedLayers, StreamedSnapshots
from sandkeepd.providers.modal.sdk import SNAPSHOT_S
from sandkeepd.providers.modal.service import ANSWER_S, Service

if TYPE_CHECKING:
    from sandkeepd.providers.modal.provider import ModalProvider

logger = logging.getLogger("sandkeepd")

IMAGE_FILES: Final = "the files of Modal's images exist only at Modal"


class ModalSnapshots(StreamedSnapshots):
    """See `StreamedSnapshots`."""

    def __init__(self, provider: "ModalProvider", service: Service) -> None:
        super().__init__(provider, WORKSPACE)
        self._at_modal = provider
        self._service = service

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        packed = await super().pack(source, request, progress)
        await progress("making an image at Modal")
        sandbox = self._at_modal.running(source.sandbox_id).at_modal.sandbox
        try:
            image = await self._service.call(lambda sdk: sdk.snapshot(sandbox), SNAPSHOT_S + ANSWER_S)
        except SandkeepError as error:  # the archive has all that was asked for
            logger.warning("a snapshot has no image at Modal", extra={"why": error.message})
            return packed
        failpoints.reach("modal.saved")
        return replace(packed, modal_image_id=image)

    async def discard_image(self, modal_image_id: str) -> None:
        try:
            await self._service.call(lambda sdk: sdk.delete_image(modal_image_id))
        except ProviderError:
            raise
        except SandkeepError as error:  # without the account, or as Modal refuses: it drops it after a while
            logger.warning("an image stays at Modal", extra={"image": modal_image_id, "why": error.message})


class ModalLayers(StreamedLayers):
    """See `StreamedLayers`."""

    def __init__(self, provider: "ModalProvider", service: Service) -> None:
        super().__init__(provider, IMAGE_FILES)
        self._service = service

    def over_own_image(self, files: Mapping[str, Any], modal_image_id: str) -> dict[str, Any]:
        return {**files, "snapshot_image_id": modal_image_id}

    async def has_own_image(self, plan: Mapping[str, Any]) -> bool:
        image = plan.get("snapshot_image_id")
        return image is not None and await self._service.call(lambda sdk: sdk.has_image(image))

    async def workspace(self, plan: Mapping[str, Any], image_id: str) -> WorkspaceRoots:
        names = self.layers_of(plan)
        if plan.get("has_files") and not names:
            message = f"{IMAGE_FILES}: make a snapshot of a new sandbox, and compare with that"
            raise SetupError("not_supported", message)
        if plan.get("snapshot_image_id") and not all([await self.has_layer(name) for name in names]):
            message = f"the sandbox began with an image at Modal, and {IMAGE_FILES}: name the snapshot instead"
            raise SetupError("not_supported", message)
        return await super().workspace(plan, image_id)
