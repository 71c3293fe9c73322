"""Inspection of an archive before it is extracted.

An archive is read as a stream, in bounded memory, and is not trusted even if its digest matches. Anything not plainly
safe is refused as `snapshot_corrupt`, with the member and the reason.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing

from msgspec import Struct

from sandkeep_store.archives.tar.compression import Codec, Input, decompressed
from sandkeep_store.archives.tar.contents import Contents
from sandkeep_store.archives.tar.limits import DEFAULT_LIMITS, Limits, Tally
from sandkeep_store.archives.tar.members import Member, corrupt, is_too_long, shown
from sandkeep_store.archives.tar.read_ahead import read_ahead
from sandkeep_store.archives.tar.reader import Reader
from sandkeep_store.archives.tar.whiteouts import check_whiteout

Moved = Callable[[int], None]
"""Called now and then with the number of bytes done. Raising ends the work."""


class Inspection(Struct, frozen=True, kw_only=True):
    """The result of an inspection. `content_bytes` is the sum of all file sizes, `data_bytes` the same without holes.

    `duplicates` counts repeated names: the last file of a name wins.
    """

    codec: Codec
    sha256: str
    size_bytes: int
    members: int
    content_bytes: int
    data_bytes: int
    duplicates: int = 0


def inspect(
    archive: int, limits: Limits = DEFAULT_LIMITS, *, layer: bool = False, moved: Moved | None = None
) -> Inspection:
    """Read an archive, an open file, from its beginning to its end, and return its `Inspection`.

    With `layer`, names that begin in ``.wh.`` are whiteouts.

    Raises `snapshot_corrupt`, and `storage_unavailable` if it cannot be read. Blocks.
    """
    return CheckedArchive(archive, limits, layer=layer, moved=moved).to_end().result


class CheckedArchive:
    """One archive, read from its beginning and checked on the way: its members, and the data of the present one.

    Devices are refused, or left out with a call of `without_device`.
    """

    def __init__(
        self,
        archive: int,
        limits: Limits,
        *,
        layer: bool = False,
        moved: Moved | None = None,
        before: "CheckedArchive | None" = None,
        without_device: Callable[[bytes], None] | None = None,
    ) -> None:
        self._archive = archive
        self._limits = limits
        self._layer = layer
        self._moved = moved
        self._before = before
        self._without_device = without_device
        self._source = Input(archive)
        self._tally = Tally(limits)
        self._contents = Contents()
        self._chunks = self._expanded()
        self._reader = Reader(self._chunks)
        self._codec: Codec = "none"

    def reread(self) -> "CheckedArchive":
        """The same archive to be read once more, and refused if it is not the same any more."""
        return CheckedArchive(
            self._archive, self._limits, layer=self._layer, moved=self._moved, before=self,
            without_device=self._without_device,
        )  # fmt: skip

    def to_end(self) -> "CheckedArchive":
        """Read all of it. Raises as `inspect` does."""
        for _ in self:
            pass
        return self

    def check_digest(self, sha256: str | None) -> None:
        """Raise `snapshot_corrupt` unless it has the digest that was recorded, if one was. After the last member."""
        if sha256 not in (None, self._source.sha256):
            raise corrupt("is not the one that was recorded: its digest is another")

    def __iter__(self) -> Iterator[Member]:
        with closing(self._chunks):
            for member in self._reader:
                if self._without_device is not None and member.kind.endswith("device"):
                    self._without_device(member.name)
                    continue
                self._check(member)
                self._tally.count_implied(self._contents.add(member), member)
                yield member
        if not self._tally.members:
            raise corrupt("is empty: it has no members")
        if self._before is not None and self._before.result.sha256 != self.result.sha256:
            raise corrupt("was changed while it was read")

    def data(self) -> Iterator[memoryview]:
        """The bytes of the present member; of a file with holes, those of its extents."""
        return self._reader.data()

    @property
    def result(self) -> Inspection:
        """The inspection, valid after the last member."""
        return Inspection(
            codec=self._codec, sha256=self._source.sha256, size_bytes=self._source.size_bytes,
            members=self._tally.members, content_bytes=self._tally.content_bytes, data_bytes=self._tally.data_bytes,
            duplicates=self._contents.duplicates,
        )  # fmt: skip

    def _expanded(self) -> Generator[bytes, None, None]:
        with self._source.opened():
            self._codec = self._source.codec()
            expanded = 0
            with closing(read_ahead(decompressed(self._source, self._codec))) as chunks:
                for chunk in chunks:
                    expanded += len(chunk)
                    self._tally.check_ratio(self._source.size_bytes, expanded)
                    if self._moved:
                        self._moved(self._source.size_bytes)
                    yield chunk

    def _check(self, member: Member) -> None:
        self._tally.count(member)
        if member.kind.endswith("device"):
            raise corrupt(f"is not safe to extract: {shown(member.name)} is a {member.kind}", member.name)
        if is_too_long(member.name):
            raise corrupt(f"cannot be extracted: {shown(member.name)} is longer than a path may be", member.name)
        if self._layer:
            check_whiteout(member)
