"""Services on the files of sandboxes, built together: snapshots, forks, checkpoints, restore, transfer."""

from collections.abc import Sequence
from typing import Any

from sandkeepd.checkpoints.checkpoints import Checkpoints
from sandkeepd.checkpoints.files import CheckpointFiles
from sandkeepd.checkpoints.time_travel import TimeTravel
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Operation
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.snapshots.archives import SnapshotArchives
from sandkeepd.snapshots.forks import Forks
from sandkeepd.snapshots.gc import GarbageCollector
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.restore import Restores
from sandkeepd.snapshots.snapshots import Snapshots
from sandkeepd.snapshots.transfer import Transfers


class SnapshotServices:
    """Forks, snapshots, checkpoints and restores."""

    def __init__(self, core: Core, images: Images, sandboxes: Sandboxes, processes: Processes, state_dir: str) -> None:
        self.layers = LayerReferences(core)
        self.archives = SnapshotArchives(state_dir, core.log.log_id)
        self.forks = Forks(core, sandboxes, self.layers)
        self.snapshots = Snapshots(core, sandboxes, self.archives, self.layers)
        self.restores = Restores(core, sandboxes, self.layers, self.archives)
        self.moves = Transfers(core, sandboxes, images, self.snapshots, self.restores, self.layers, self.archives)
        files = CheckpointFiles(self.archives, core.log.log_id)
        self.checkpoints = Checkpoints(core, sandboxes, processes, self.layers, files)
        self.going_back = TimeTravel(core, sandboxes, self.restores, self.checkpoints)
        self.collection = GarbageCollector(core, self.snapshots.removal, self.archives)
        self.operations: Sequence[Operation[Any]] = (
            *images.operations, self.forks, *self.snapshots.operations, *self.moves.operations,
            *self.checkpoints.operations,
        )  # fmt: skip
        sandboxes.on_ended.append(self.layers.release)
