"""What is done with the files of sandboxes besides running in them: all parts of it, built together."""

from sandkeepd.checkpoint_files import CheckpointFiles
from sandkeepd.checkpoints import Checkpoints
from sandkeepd.collecting import Collection
from sandkeepd.core import Core
from sandkeepd.forks import Forks
from sandkeepd.going_back import GoingBack
from sandkeepd.images import Images
from sandkeepd.layers import KeptLayers
from sandkeepd.moving import Moves
from sandkeepd.processes import Processes
from sandkeepd.restoring import Restores
from sandkeepd.sandboxes import Sandboxes
from sandkeepd.snapshot_archives import SnapshotArchives
from sandkeepd.snapshots import Snapshots


class Kept:
    """Forks, snapshots, checkpoints and restores."""

    def __init__(self, core: Core, images: Images, sandboxes: Sandboxes, processes: Processes, state_dir: str) -> None:
        self.layers = KeptLayers(core)
        self.archives = SnapshotArchives(state_dir, core.log.log_id)
        self.forks = Forks(core, sandboxes, self.layers)
        self.snapshots = Snapshots(core, sandboxes, self.archives)
        self.restores = Restores(core, sandboxes, self.layers, self.archives)
        self.moves = Moves(core, images, self.snapshots, self.restores, self.layers, self.archives)
        files = CheckpointFiles(self.archives, core.log.log_id)
        self.checkpoints = Checkpoints(core, sandboxes, processes, self.layers, files)
        self.going_back = GoingBack(core, sandboxes, self.restores, self.checkpoints)
        self.collection = Collection(core, self.snapshots, self.archives)
        sandboxes.on_ended.append(self.layers.release)
