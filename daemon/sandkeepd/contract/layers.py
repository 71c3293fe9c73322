"""Layers: kept files that sandboxes begin with besides an image's.

A fork keeps what the source changed, under the fork's id, and the new sandboxes begin with that::

    frozen = await provider.layers.freeze("frk_1", source)     # the source stands still for frozen.pause_ms
    plan = provider.plan("sbx_2", …)
    plan = provider.layers.layered(plan, frozen.files)         # on record: sandbox.create_requested with this plan
    await provider.create("sbx_2", image_id, spec, secrets, plan)

A restore has the files of archives instead. Here ``snp_2`` holds what differs from ``snp_1``, which holds what differs
from the image; each is kept once, whatever number of sandboxes begins with it::

    files = await provider.layers.filled(["snp_2", "snp_1"], image_id)
    plan = provider.layers.layered(provider.plan("sbx_3", …), files)
    for name in ("snp_1", "snp_2"):
        if not await provider.layers.is_filled(name):
            await provider.layers.fill(name, archive, progress)
    await provider.create("sbx_3", image_id, spec, secrets, plan)

When a sandbox has ended, what its plan names goes unless another needs it::

    await provider.terminate("sbx_3", plan, handle)
    for name in provider.layers.layers_of(plan):
        await provider.layers.discard_layers([name])           # those that no other plan names
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from sandkeep_store.archives.tar.limits import Limits
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.images import ImportedImage
from sandkeepd.contract.snapshots import Source


class Frozen(Struct, frozen=True, kw_only=True):
    """What came of a copy of what a sandbox changed: the `files` that others can begin with, and whether some of them
    are the image's. The sandbox stood still for `pause_ms`; None where it could not.
    """

    files: dict[str, Any]
    needs_image: bool
    pause_ms: float | None
    size_bytes: int


class KeptArchive(Struct, frozen=True, kw_only=True):
    """An archive of a snapshot, in an open file, that files are to be made of.

    One that `is_layer` holds what differs from the files kept under the name `beneath`, or from the image `image_id`.
    Else it holds all, and `image_id` is the image that the sandbox was made of, if one was; `details` are the image's.
    """

    descriptor: int
    sha256: str
    limits: Limits
    is_layer: bool = False
    beneath: str | None = None
    image_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class Layering(Protocol):
    """`provider.layers`: there when sandboxes can begin with other files than an image's.

    Such files are kept under a name of their own as long as a sandbox needs them, and shared by all that do. What it
    takes to find them is a small JSON document, `files`, which goes on record as a part of a sandbox's plan.
    """

    no_forks: str | None
    """Why nothing of what a sandbox changed can be kept so, if that is the case."""

    async def freeze(self, name: str, source: Source) -> Frozen:
        """Keep a copy of what a sandbox changed, as it is at one moment. The sandbox goes on. On any error nothing is
        left of it.
        """
        ...

    async def filled(self, names: Sequence[str], image_id: str | None) -> dict[str, Any]:
        """The `files` that consist of what was kept under these names, each hiding parts of the next, and of an image
        beneath them or of nothing. No effect. Raises `not_supported` where that cannot be.
        """
        ...

    async def is_filled(self, name: str) -> bool:
        """Whether files of that name are there, and complete."""
        ...

    async def fill(self, name: str, archive: KeptArchive, progress: Progress) -> None:
        """Keep the files of an archive; those that are to be beneath them are there. All of it is looked through before
        anything is made of it. On any error nothing is left of them. Raises `snapshot_corrupt`, `storage_unavailable`.
        """
        ...

    def layered(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """The plan of a sandbox that begins with these files."""
        ...

    def needs_image(self, files: Mapping[str, Any]) -> bool:
        """Whether some of these files are the image's."""
        ...

    def layers_of(self, plan: Mapping[str, Any]) -> Sequence[str]:
        """The names of the kept files that a plan needs, each hiding parts of the next."""
        ...

    async def open_image(self, image_id: str) -> int:
        """The files of an image as an open directory, for reading. Raises `not_found`."""
        ...

    async def promote(
        self, image_id: str, files: Mapping[str, Any], beneath: str | None, progress: Progress
    ) -> ImportedImage:
        """Make an image of such files, as a whole. On any error nothing is left of it."""
        ...

    async def discard_layers(self, names: Collection[str]) -> None:
        """Remove kept files that no sandbox needs. Safe to repeat."""
        ...
