"""Images: the files that sandboxes begin with, and builds by Dockerfile."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from sandkeep.model import ImageKind, SkippedFile
from sandkeepd.contract.caller import Caller, Progress


class ImageTooLargeError(Exception):
    """An image that is being made has `size_bytes` or more, which are more than the request allows."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


class ImageRequest(Struct, frozen=True, kw_only=True):
    """The request for an image. `source` is the absolute path of a directory, to be put onto the image `base` where the
    provider has such, or built by the `dockerfile` below it; or a reference. With `clean` earlier builds are not
    reused. The names of `ignore` are left out at any depth, and what `patterns` match, and, with
    `ignore_files`, those of the directory's files of patterns.

    `published` has the references, in full, by which administrators let the owner use images that the provider's engine
    has, each with that image's digest; None stands for a request of an administrator, who may use all of them.

    `most_bytes` is the size of the largest image that the owner may have; None is no limit.
    """

    kind: ImageKind
    source: str
    base: str | None = None
    dockerfile: str | None = None
    clean: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    ignore: Sequence[str] = ()
    patterns: Sequence[str] = ()
    ignore_files: bool = True
    published: Mapping[str, str] | None = field(default_factory=dict)
    most_bytes: int | None = None

    @property
    def by_file(self) -> bool:
        """True if a file of patterns says what is not copied. A build goes by its own, and its directory is copied."""
        return self.kind == "directory" and self.ignore_files

    def check_size(self, size_bytes: int) -> None:
        """Raise `ImageTooLargeError` for an image that is too large. Called before its content is copied, or while it
        comes: the disk would be full before all of it was here.
        """
        if self.most_bytes is not None and size_bytes > self.most_bytes:
            raise ImageTooLargeError(size_bytes)


class ImportedImage(Struct, frozen=True, kw_only=True):
    """The result of an import. `digest` is ``sha256:…`` and names the content: of a directory it is computed from
    names, types, modes, link targets and contents. `details` are passed to the provider when it plans a sandbox.
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
        """Make an image, reading the caller's directory with the caller's rights only. On any error nothing is left of
        it. Without `provider.builder` it is called for plain directories only.
        """
        ...

    async def remove(self, image_id: str) -> None:
        """Remove an image, complete or half made. Safe to repeat."""
        ...


class Building(Protocol):
    """`provider.builder`: present when `provider.images` also makes images by Dockerfiles, and of references."""

    def default_base(self) -> str:
        """Return the reference of the default base image for a plain directory."""
        ...
