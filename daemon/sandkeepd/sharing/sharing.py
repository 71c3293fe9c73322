"""The parts of sharing, built together."""

from collections.abc import Sequence
from typing import Any

from sandkeepd.checkpoints.checkpoints import Checkpoints
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Command, Operation
from sandkeepd.locks.leases import Leases
from sandkeepd.locks.locks import LockService
from sandkeepd.locks.publish import Publisher
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.sharing.attaching import Attachment
from sandkeepd.sharing.handover import Handover
from sandkeepd.sharing.images import SharedImages
from sandkeepd.sharing.keeping import Keeping
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.restore import Restores
from sandkeepd.snapshots.snapshots import Snapshots


class Sharing:
    """Shared sandboxes: `attachment` makes and attaches them, `handover` gives them up, `keeping` looks after them."""

    def __init__(
        self, core: Core, leases: Leases, publisher: Publisher, images: Images, sandboxes: Sandboxes,
        snapshots: Snapshots, restores: Restores, checkpoints: Checkpoints, layers: LayerReferences, state_dir: str,
    ) -> None:  # fmt: skip
        self.locks = LockService(core, leases)
        shared_images = SharedImages(core, images, layers, state_dir)
        self.attachment = Attachment(
            core, images, sandboxes, restores, checkpoints.restoration, self.locks, publisher, shared_images
        )
        self.handover = Handover(core, leases, sandboxes, snapshots, checkpoints, self.locks, publisher, shared_images)
        self.keeping = Keeping(core, leases, sandboxes, self.locks, publisher, self.handover, self.attachment.starting)
        self.operations: Sequence[Operation[Any, Any]] = shared_images.operations
        self.commands: Sequence[Command] = (*self.locks.commands, self.handover, *self.attachment.commands)
