"""Images: requests for them, and builds by Dockerfile."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct, field

from sandkeep.model import ImageKind, SkippedFile


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


@runtime_checkable
class Building(Protocol):
    """What a provider can do beyond `Provider` when it makes images also by Dockerfiles, and of references."""

    def default_base(self) -> str:
        """The reference of the image that a plain directory is put onto when its caller names none."""
        ...
