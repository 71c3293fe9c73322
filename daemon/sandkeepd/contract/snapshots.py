"""Archives of a sandbox's files: snapshots.

::

    root = provider.snapshots.files_root(plan)                        # names in the archive begin here
    why = provider.snapshots.why_not_incremental(handle)              # asked for an incremental snapshot only
    ...                                                               # on record: snapshot.create_requested
    packed = await provider.snapshots.pack(source, request, progress) # into request.output, an open file
    ...                                                               # the archive goes to its store
    ...                                                               # on record: snapshot.stored

To restore one into a sandbox, or to make an image of one, is up to `provider.layers`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from sandkeep.model import ArchiveFormat, SandboxSpec
from sandkeep_store.archives.trees.rebase import Workspace
from sandkeepd.contract.caller import Progress


class Source(Struct, frozen=True, kw_only=True):
    """A sandbox whose files are to be read, running or not: the recorded facts about it."""

    sandbox_id: str
    image_id: str
    plan: dict[str, Any]
    handle: dict[str, Any]


class PackRequest(Struct, frozen=True, kw_only=True):
    """A request to pack a sandbox's files into the empty file that the descriptor `output` refers to.

    With `over` only the difference is packed: from the files that the sandbox began with, or from its files when
    `parent_catalogue` was written. A catalogue of the archive is written to the file `catalogue`, for archives over
    this one. `name` is unused by kept files, and free for temporary ones.
    """

    name: str
    output: int
    catalogue: str
    format: ArchiveFormat
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    over: Literal["nothing", "start", "parent"] = "nothing"
    parent_catalogue: str | None = None


class PackedFiles(Struct, frozen=True, kw_only=True):
    """The content of a packed archive. `pause_ms` is as in `CopiedChanges`. `remarks` counts the files that are missing
    or changed in it, by reason. `modal_image_id` is an image of the same files, which Modal has besides.
    """

    sha256: str
    size_bytes: int
    member_count: int
    content_bytes: int
    pause_ms: float | None
    remarks: dict[str, int] = field(default_factory=dict)
    modal_image_id: str | None = None


class Snapshotting(Protocol):
    """`provider.snapshots`: present when the files of a sandbox can be kept as an archive."""

    takes_root: bool
    """True if sandboxes can begin with an archive of a whole root file system."""

    def files_root(self, plan: Mapping[str, Any]) -> str:
        """Return the directory in the sandbox at which the names in its archives begin."""
        ...

    def workspace_in_archives(self, details: Mapping[str, Any]) -> Workspace | None:  # noqa: ARG002
        """Return the workspace in archives of an image's sandboxes, by the image's `details`; None where names in an
        archive of a workspace begin at the workspace.
        """
        return None

    def owner_in_archives(self, spec: SandboxSpec) -> tuple[int, int] | None:  # noqa: ARG002
        """Return the uid and gid that own all files in its archives; None where each file has an owner of its own."""
        return None

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:
        """Return the reason why no diff against the files that the sandbox began with can be packed, or None."""
        ...

    def directory_written(self, plan: Mapping[str, Any], handle: Mapping[str, Any]) -> str | None:  # noqa: ARG002
        """Return the directory in which all files are that a sandbox can have changed, if there is one."""
        return None

    async def require_packable(self, plan: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Raise `not_supported` if the files of a sandbox of this plan cannot be packed. No effect."""
        return

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        """Pack the files as they are at one moment. On any error, cancellation included, nothing is left of the pack,
        and the sandbox goes on. Raises `not_ready` when the files are gone, `storage_unavailable`.
        """
        ...

    async def discard_image(self, modal_image_id: str) -> None:
        """Delete the image that `pack` made besides an archive, where it does. Safe to repeat."""
        assert not modal_image_id, "this provider makes none"
