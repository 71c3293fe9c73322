"""Images: what sandboxes begin with, and builds by Dockerfile."""

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct, field

from sandkeep.model import ImageKind, SkippedFile
from sandkeepd.contract.caller import Caller, Progress


class ImageRequest(Struct, frozen=True, kw_only=True):
    """What an image is to be made of. `source` is the absolute path of a directory, to be put onto the image `base`
    where the provider has such, or built by the `dockerfile` below it; or a reference. With `clean` nothing is taken
    from earlier builds.
    """

    kind: ImageKind
    source: str
    base: str | None = None
    dockerfile: str | None = None
    clean: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""


class ImportedImage(Struct, frozen=True, kw_only=True):
    """What came of an import. `digest` is ``sha256:…`` and names the content: of a directory it is computed from names,
    types, modes, link targets and contents. `details` are what the provider wants to be given when it plans a sandbox.
    """

    digest: str
    size_bytes: int
    file_count: int = 0
    skipped_count: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


class Images(Protocol):
    """`provider.images`: makes and removes images."""

    async def make(self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress) -> ImportedImage:
        """Make an image, reading the caller's directory with his rights and no others. On any error nothing is left of
        it. Without `provider.builder` it is asked for plain directories only.
        """
        ...

    async def remove(self, image_id: str) -> None:
        """Remove what there is of an image, complete or half made. Safe to repeat."""
        ...


class Building(Protocol):
    """`provider.builder`: there when `provider.images` makes images also by Dockerfiles, and of references."""

    def default_base(self) -> str:
        """The reference of the image that a plain directory is put onto when its caller names none."""
        ...
