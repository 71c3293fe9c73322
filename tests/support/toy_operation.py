"""A daemon with one more operation, ``image.toy``: it makes an image of a directory of which it takes the name alone.

python -m tests.support.toy_operation
"""

import os
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from sandkeep import events, ids
from sandkeep.protocol.methods import METHODS
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.images import ImageState
from sandkeepd import main
from sandkeepd.app import file_services, handlers
from sandkeepd.core.operation import Order
from sandkeepd.sandboxes.images import ImageCreation

ROW = replace(METHODS["image.create"], name="image.toy", summary="Make an image of nothing.")


class Toy(ImageCreation):
    """The declaration."""

    method = ROW.name
    recovers = False  # on record it is an image like others, which `ImageCreation` undoes

    async def make(self, request: Any) -> Any:
        """Handle the method."""
        event = events.ImageCreateRequested(
            owner=request.owner, provider="local", kind="directory", source=request.params.source
        )
        return await self.run(NewEvent(ids.new_id(ids.IMAGE), event, None, 0), request)

    async def act(self, order: Order[ImageState]) -> Sequence[NewEvent]:
        """See `Operation.act`."""
        files = os.listdir(order.subject.requested.source)
        made = events.ImageCreated(digest="sha256:0", size_bytes=0, file_count=len(files))
        return [NewEvent(order.stream, made)]


def play() -> None:
    """Be that daemon."""
    services, dispatch = file_services.SnapshotServices.__init__, handlers.Dispatch
    toys: list[Toy] = []

    def with_toy(self: Any, core: Any, images: Any, *rest: Any) -> None:
        services(self, core, images, *rest)
        toys.append(Toy(core, images.holds))
        self.operations = (*self.operations, toys[0])

    def knows_toy(core: Any, handle: Any, *rest: Any) -> Any:
        return dispatch(core, {**handle, ROW.name: toys[0].make}, *rest)

    METHODS[ROW.name] = ROW
    setattr(file_services.SnapshotServices, "__init__", with_toy)  # noqa: B010
    setattr(handlers, "Dispatch", knows_toy)  # noqa: B010
    main.main()


if __name__ == "__main__":
    play()
