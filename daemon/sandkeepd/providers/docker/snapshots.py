"""Archives of a container's files. See `Snapshotting`.

Names in archives begin at the container's root, and the files of its own volumes are at the mount points inside.

A container stands still only while its difference from its image is packed, as a plain tar.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from sandkeep.model import Capability, SandboxSpec
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.snapshots import PackedFiles, PackRequest, Snapshotting, Source
from sandkeepd.host.threads import watched
from sandkeepd.providers.docker import trees
from sandkeepd.providers.docker.found_files import FoundFiles
from sandkeepd.providers.docker.instance import DockerInstance
from sandkeepd.providers.docker.pack import Packer


class DockerSnapshots(Snapshotting):
    """Packs containers, of which those in `instances` run."""

    def __init__(self, packer: Packer, files: FoundFiles, instances: Mapping[str, DockerInstance]) -> None:
        self._packer = packer
        self._files = files
        self._instances = instances

    def files_root(self, plan: Mapping[str, Any]) -> str:
        return "/"

    def owner_in_archives(self, spec: SandboxSpec) -> tuple[int, int] | None:
        return None

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:
        return None

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        """See `Snapshotting.pack`. No catalogue is written, so that nothing is asked for over another's."""
        files = await self._files.of(source)
        beneath = await self._files.of_image(files.image)
        container = self._instances.get(source.sandbox_id)
        packing = partial(self._packer.pack, files, beneath, container, request)
        return await watched(packing, progress, "packing the files")


def files_features(found: Mapping[str, Any], *, root: bool) -> dict[str, Capability]:
    """Return the capabilities that concern files, for an engine with this description, for `Provider.capabilities`."""
    why = trees.why_unreadable(found, root=root)
    works = why is None
    return {
        "snapshots": Capability(works=works, why=why),
        "incremental_snapshots": Capability(works=works, why=why or "each holds all that differs from the beginning"),
        "forks": Capability(works=works, why=why or "each gets a copy of what is in its volumes"),
        "restore_over_own_files": Capability(works=works, why=why),
    }
