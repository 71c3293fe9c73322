"""Services on the files of sandboxes, built together: snapshots, forks, checkpoints, restore, transfer, artifacts."""

from collections.abc import Sequence
from typing import Any

from sandkeepd.branches.branches import Branches
from sandkeepd.checkpoints.checkpoints import Checkpoints
from sandkeepd.checkpoints.files import CheckpointFiles
from sandkeepd.checkpoints.time_travel import TimeTravel
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Operation
from sandkeepd.sandboxes.artifacts import Artifacts
from sandkeepd.sandboxes.files import Files
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.sandboxes.volumes import NamedVolumes
from sandkeepd.snapshots.archives import SnapshotArchives
from sandkeepd.snapshots.forks import Forks
from sandkeepd.snapshots.gc import GarbageCollector
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.restore import OwnRestore, Restores, Unpacking
from sandkeepd.snapshots.snapshots import Snapshots
from sandkeepd.snapshots.transfer import Transfers


class SnapshotServices:
    """Forks, snapshots, checkpoints and restores."""

    def __init__(self, core: Core, images: Images, sandboxes: Sandboxes, processes: Processes, state_dir: str) -> None:
        self.layers = LayerReferences(core)
        self.archives = SnapshotArchives(state_dir, core.log.log_id)
        self.forks = Forks(core, sandboxes, self.layers)
        unpacking = Unpacking(core, self.layers, self.archives)
        runtimes = sandboxes.runtimes
        self.snapshots = Snapshots(core, runtimes, self.archives, self.layers)
        self.restores = Restores(core, sandboxes, self.layers, unpacking)
        self.file_restores = OwnRestore(core, sandboxes, self.layers, unpacking)
        self.transfers = Transfers(core, runtimes, images, self.snapshots, unpacking, self.layers, self.archives)
        files = CheckpointFiles(self.archives, core.log.log_id)
        self.checkpoints = Checkpoints(core, sandboxes, processes, self.layers, files)
        self.time_travel = TimeTravel(core, sandboxes.creation, self.restores, self.checkpoints)
        self.gc = GarbageCollector(core, self.snapshots.removal, self.archives)
        self.artifacts = Artifacts(core, runtimes, Files(core, runtimes), state_dir)
        self.volumes = NamedVolumes(core)
        self.branches = Branches(core, images, sandboxes, self.layers, unpacking, state_dir)
        self.operations: Sequence[Operation[Any, Any]] = (
            *images.operations, *sandboxes.operations, self.forks, self.file_restores, *self.snapshots.operations,
            *self.transfers.operations, *self.checkpoints.operations, *self.artifacts.operations,
            *self.branches.operations, *self.volumes.operations,
        )  # fmt: skip
        sandboxes.termination.on_ended = self.layers.release
