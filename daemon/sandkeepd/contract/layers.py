"""Layers: kept files that sandboxes begin with besides an image's.

A fork keeps the files that the source changed, under the fork's id, and the new sandboxes begin with those::

    frozen = await provider.layers.freeze("frk_1", source)     # the source is frozen for frozen.pause_ms
    plan = provider.plan("sbx_2", …)
    plan = {**plan, **frozen.files}                            # on record: sandbox.create_requested with this plan
    await provider.create("sbx_2", image_id, spec, secrets, plan)

A restore uses the files of archives instead. Here ``snp_2`` is a diff against ``snp_1``, which is a diff against the
image; each is kept once, for any number of sandboxes::

    files = await provider.layers.filled(["snp_2", "snp_1"], image_id)
    plan = {**provider.plan("sbx_3", …), **files}
    for name in ("snp_1", "snp_2"):
        if not await provider.layers.is_filled(name):
            await provider.layers.fill(name, archive, progress)
    await provider.create("sbx_3", image_id, spec, secrets, plan)

Where the files of two plans differ is found by comparing directories, of which most are the same::

    before = await provider.layers.workspace(plan_of_base, image_id)
    after = await provider.layers.workspace({**plan, **frozen.files}, image_id)

When a sandbox has ended, the layers that its plan names are removed unless another sandbox needs them::

    await provider.terminate("sbx_3", plan, handle)
    for name in provider.layers.layers_of(plan):
        await provider.layers.discard_layers([name])           # those that no other plan names
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from sandkeep.model import SandboxSpec
from sandkeep_store.archives.tar.limits import Limits
from sandkeep_store.archives.trees.tree import Overlay
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.images import ImportedImage
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.snapshots import Source


class CopiedChanges(Struct, frozen=True, kw_only=True):
    """The result of a copy of a sandbox's changed files: the `files` that others can begin with. The sandbox was frozen
    for `pause_ms`; None where it could not be.
    """

    files: dict[str, Any]
    pause_ms: float | None
    size_bytes: int


class KeptArchive(Struct, frozen=True, kw_only=True):
    """An archive of a snapshot, in an open file, from which files are to be made.

    With `is_layer` it is a diff against the files kept under the name `beneath`, or against the image `image_id`. Else
    it holds all files, and `image_id` is the image that the sandbox was made of, if any; `details` are the image's.
    With `only` it holds those paths alone, and they take the place of the image's.
    """

    descriptor: int
    sha256: str
    limits: Limits
    is_layer: bool = False
    beneath: str | None = None
    image_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    only: Sequence[str] = ()


class WorkspaceRoots(Struct, frozen=True, kw_only=True):
    """The workspace of kept files, or of an image, as directories of this machine, each of which hides parts of the
    next: all of them upper directories of overlays with such attributes. None of them ever changes.
    """

    roots: list[str]
    overlay: Overlay


class Layering(Protocol):
    """`provider.layers`: present when sandboxes can begin with other files than an image's.

    Such files are kept under a name of their own as long as a sandbox needs them, and are shared by all that do. They
    are identified by a small JSON document, `files`, whose fields take the place of those of a sandbox's plan.
    """

    no_forks: str | None
    """The reason why a sandbox's changed files cannot be kept so, or None."""

    fills_workspaces: bool = False
    """True if `create_filled` may work. Then a sandbox needs its image, too."""

    async def freeze(self, name: str, source: Source) -> CopiedChanges:
        """Keep a copy of a sandbox's changed files, as they are at one moment. The sandbox goes on. On any error
        nothing is left of the copy.
        """
        ...

    async def files_of_layers(self, names: Sequence[str], image_id: str | None) -> dict[str, Any]:
        """Return the `files` that consist of the files kept under these names, each hiding parts of the next, and of an
        image beneath them or of nothing. No effect. Raises `not_supported` where that is impossible.
        """
        ...

    async def has_layer(self, name: str) -> bool:
        """Return True if files of that name are present and complete."""
        ...

    async def fill(self, name: str, archive: KeptArchive, progress: Progress) -> None:
        """Keep the files of an archive; those that belong beneath them are present. The archive is verified completely
        before anything is made of it. On any error nothing is left of them. Raises `snapshot_corrupt`,
        `storage_unavailable`.
        """
        ...

    def over_own_image(self, files: Mapping[str, Any], modal_image_id: str) -> dict[str, Any]:  # noqa: ARG002
        """Return `files` that can be had of an image of the same files, too, which `PackedFiles` named. No effect."""
        return dict(files)

    async def has_own_image(self, plan: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Return True if a sandbox of this plan can begin without its kept files, with an image of the same ones."""
        return False

    async def create_filled(
        self,
        sandbox_id: str,
        image_id: str,
        spec: SandboxSpec,
        secrets: Mapping[str, str],
        plan: dict[str, Any],
        archive: KeptArchive,
        progress: Progress,
    ) -> Instance | None:
        """Create a sandbox as `Provider.create` does, with the files of an archive that no other sandbox is to begin
        with: they are not kept under the name that the plan has. On any error nothing is left of it. Return None, and
        make nothing, where they have to be kept, or are. Raises `snapshot_corrupt`, `storage_unavailable`.
        """
        assert not self.fills_workspaces, (sandbox_id, image_id, spec, secrets, plan, archive, progress)
        return None

    def needs_image(self, files: Mapping[str, Any]) -> bool:
        """Return True if some of these files are the image's."""
        ...

    def layers_of(self, plan: Mapping[str, Any]) -> Sequence[str]:
        """Return the names of the kept files that a plan needs, each hiding parts of the next."""
        ...

    async def open_image(self, image_id: str) -> int:
        """Open the directory of an image's files, for reading. Raises `not_found`."""
        ...

    async def workspace(self, plan: Mapping[str, Any], image_id: str) -> WorkspaceRoots:
        """Return the workspace that a sandbox of this plan begins with; the plan may have other `files`. Raises
        `not_supported` where they are not to be had, and `not_found`.
        """
        ...

    async def promote(
        self, image_id: str, files: Mapping[str, Any], beneath: str | None, progress: Progress
    ) -> ImportedImage:
        """Make an image of such files, as a whole. On any error nothing is left of it."""
        ...

    async def discard_layers(self, names: Collection[str]) -> None:
        """Remove kept files that no sandbox needs. Safe to repeat."""
        ...
