"""Archives of a sandbox's files: snapshots.

::

    root = provider.snapshots.files_root(plan)                        # what names in the archive begin at
    why = provider.snapshots.why_not_incremental(handle)              # asked for an incremental snapshot only
    ...                                                               # on record: snapshot.create_requested
    packed = await provider.snapshots.pack(source, request, progress) # into request.output, an open file
    ...                                                               # the archive goes where it is to lie
    ...                                                               # on record: snapshot.stored

To restore one into a sandbox, or to make an image of one, is up to `provider.layers`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from sandkeep.model import ArchiveFormat, SandboxSpec
from sandkeepd.contract.caller import Progress


class Source(Struct, frozen=True, kw_only=True):
    """A sandbox whose files are to be read, whether it runs or not: what is on record of it."""

    sandbox_id: str
    image_id: str
    plan: dict[str, Any]
    handle: dict[str, Any]


class PackRequest(Struct, frozen=True, kw_only=True):
    """How a sandbox's files are to be packed, into the empty file that the descriptor `output` is of.

    With `over` only what differs is packed: from what the sandbox began with, or from what it was when
    `parent_catalogue` was written. What the archive holds is written to the file `catalogue`, for archives that will be
    over this one. No kept files are called `name`, as those may be that it takes meanwhile.
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
    """What an archive that was packed holds. `pause_ms` is as in `Frozen`. `remarks` counts what is not in it as it
    was, by why.
    """

    sha256: str
    size_bytes: int
    member_count: int
    content_bytes: int
    pause_ms: float | None
    remarks: dict[str, int] = field(default_factory=dict)


class Snapshotting(Protocol):
    """`provider.snapshots`: there when the files of a sandbox can be kept as an archive."""

    def files_root(self, plan: Mapping[str, Any]) -> str:
        """The directory in the sandbox at which the names in its archives begin."""
        ...

    def owner_in_archives(self, spec: SandboxSpec) -> tuple[int, int] | None:
        """Whom everything in its archives belongs to, as uid and gid; None where each file has an owner of its own."""
        ...

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:
        """Why no archive can be made of what differs from what the sandbox began with; None when one can."""
        ...

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        """Pack the files as they are at one moment. On any error, cancellation included, nothing is left of it, and
        the sandbox goes on. Raises `not_ready` when the files are gone, `storage_unavailable`.
        """
        ...
