"""Archives of a local sandbox's files. See `Snapshotting`."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sandkeep.model import Capability, SandboxSpec
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.snapshots import PackedFiles, PackRequest, Snapshotting, Source
from sandkeepd.host.threads import run_in_thread
from sandkeepd.providers.common.inside import WORKSPACE, inner_user
from sandkeepd.providers.local.layers import LocalLayers
from sandkeepd.providers.local.pack import Packer, paths
from sandkeepd.providers.local.pause import NO_FREEZER
from sandkeepd.providers.local.probe import Abilities

if TYPE_CHECKING:
    from sandkeepd.providers.local.provider import LocalProvider


class LocalSnapshots(Snapshotting):
    """`Snapshotting` for the sandboxes of a provider. `layers` locates their files."""

    takes_root = False

    def __init__(self, provider: "LocalProvider", layers: LocalLayers) -> None:
        self._provider = provider
        self._layers = layers

    def files_root(self, plan: Mapping[str, Any]) -> str:
        return WORKSPACE

    def owner_in_archives(self, spec: SandboxSpec) -> tuple[int, int] | None:
        return inner_user(spec.user)

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:
        return None if handle.get("files") == "overlay" else "the sandbox has a copy of its image"

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        held, found = await self._layers.files_of(source), await self._provider.abilities()
        paths([*request.include, *request.exclude])
        packer = Packer(self._provider.store, self._provider.layout.state_dir, shares_blocks=found.reflink.works)
        async with held.reading() as end:
            work = functools.partial(packer.pack, msgspec.structs.replace(held, end_reading=end), request)
            return await run_in_thread(work, progress, "packing the files")


_WITHOUT_FREEZER: Final = f"{NO_FREEZER}: processes are stopped one by one meanwhile"


def files_features(found: Abilities, *, freezer: bool) -> dict[str, Capability]:
    """Return the capabilities that concern files, for `Provider.capabilities`."""
    overlay = found.overlay
    return {
        "snapshots": Capability(works=True, why=None if freezer else _WITHOUT_FREEZER),
        "incremental_snapshots": Capability(works=overlay.works, why=overlay.why),
        "forks": Capability(works=True, why=None if overlay.works else f"each gets a copy of all files: {overlay.why}"),
        "restore_over_own_files": Capability(works=True),
    }
