"""Archives of a gVisor sandbox's files, which only the sandbox itself can read. See `Snapshotting`."""

from collections.abc import Mapping
from typing import Any

from sandkeep.model import SandboxSpec
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.snapshots import PackedFiles, PackRequest, Snapshotting, Source
from sandkeepd.providers.common import streamed_files
from sandkeepd.providers.common.inside import WORKSPACE, inner_user
from sandkeepd.providers.gvisor.instance import GvisorInstance


class GvisorSnapshots(Snapshotting):
    """Packs those of `instances` that run. With `root` their code has a uid of its own inside."""

    takes_root = True

    def __init__(self, instances: Mapping[str, GvisorInstance], state_dir: str, *, root: bool) -> None:
        self._instances = instances
        self._state_dir = state_dir
        self._root = root

    def files_root(self, plan: Mapping[str, Any]) -> str:
        return WORKSPACE

    def owner_in_archives(self, spec: SandboxSpec) -> tuple[int, int] | None:
        return inner_user(spec.user if self._root else "0")

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:
        return "gVisor does not tell which files were changed"

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        """See `Snapshotting.pack` and `streamed_files`."""
        instance = streamed_files.running(self._instances, source.sandbox_id)
        return await streamed_files.pack(instance, WORKSPACE, request, progress, self._state_dir)
