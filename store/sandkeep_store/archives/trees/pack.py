"""Packing of a directory tree into an archive.

GNU tar reads the tree; its output is parsed here, written anew in one form, compressed and hashed, all as streams. So
an archive holds only members that a restore understands, counted by the same code.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct, structs

from sandkeep.errors import DaemonError
from sandkeep_store.archives.tar.compression import Codec, Compressor, compressing
from sandkeep_store.archives.tar.inspect import Moved
from sandkeep_store.archives.tar.limits import Limits, Tally
from sandkeep_store.archives.tar.members import TOP, Member
from sandkeep_store.archives.tar.output import Output, OutputError
from sandkeep_store.archives.tar.writer import Writer
from sandkeep_store.archives.trees.read import Remarks
from sandkeep_store.archives.trees.tree import Source, Tree

NO_LIMITS: Final = Limits(members=1 << 62, content_bytes=1 << 62, ratio=1 << 62)
_MODE: Final = 0o1777
"""Mode bits that are stored: an archive unpacked by hand gives no set-uid file."""
_NEVER: Final = 0o6000


class PackedArchive(Struct, frozen=True, kw_only=True):
    """The result of packing. See `inspect.Inspection`; `remarks` name the files that were left out or changed."""

    codec: Codec
    sha256: str
    size_bytes: int
    members: int
    content_bytes: int
    data_bytes: int
    remarks: Remarks

    @property
    def limits(self) -> Limits:
        """The exact limits with which a restore of this archive succeeds."""
        return structs.replace(NO_LIMITS, members=self.members, content_bytes=self.content_bytes)


def pack(
    tree: int,
    output: int,
    *,
    codec: Codec = "gzip",
    include: Sequence[bytes] = (TOP,),
    exclude: Sequence[bytes] = (),
    never: Sequence[str] = (),
    reader: tuple[int, int] | None = None,
    owner: tuple[int, int] | None = None,
    moved: Moved | None = None,
) -> PackedArchive:
    """Write an archive of the open directory `tree` to the descriptor `output`, at its current position.

    `include` and `exclude` are paths in the tree, taken literally; `exclude` omits whole subtrees. The directories
    `never` are omitted wherever they turn up in the tree: an archive must not contain the archive directory. Sockets,
    devices and other filesystems are omitted. As root, the tree is read with the rights of the uid and gid `reader`.
    Members belong to `owner`, or keep their owners. `moved` is called now and then with the number of bytes packed;
    raising ends the work.

    Raises `not_found` and `invalid` for paths, `provider_unavailable` for unreadable files, and `storage_unavailable`
    when the output cannot be written; the output is unusable then. Blocks.
    """
    source = Tree(tree, include=include, exclude=exclude, never=never, reader=reader)
    return write(source, output, codec, source.remarks, owner=owner, moved=moved)


def write(
    source: Source,
    output: int,
    codec: Codec,
    remarks: Remarks,
    *,
    owner: tuple[int, int] | None = None,
    moved: Moved | None = None,
) -> PackedArchive:
    """Write an archive of all that a source has. `remarks` are the source's. See `pack`."""
    with archive_writer(output, codec, owner=owner, moved=moved) as archive:
        for member in source:
            if member.mode & _NEVER and member.kind == "file":
                remarks.add(member.name, "set-uid")
            archive.put(member, source.data())
    return archive.made(remarks)


class ArchiveWriter:
    """An archive that is being written."""

    def __init__(self, output: Output, codec: Codec, owner: tuple[int, int] | None, moved: Moved | None) -> None:
        self._output = output
        self._codec = codec
        self._owner = owner
        self._moved = moved
        self._tally = Tally(NO_LIMITS)
        self._passed = 0
        self._compress: Callable[[memoryview], object] = output.write
        self._writer = Writer(self._pass)

    def put(self, member: Member, data: Iterable[memoryview] = ()) -> None:
        """Add a member, and the bytes of a file."""
        self._tally.count(member)
        member.mode &= _MODE
        if self._owner is not None:
            member.uid, member.gid = self._owner
        self._writer.add(member)
        for piece in data:
            self._writer.write(piece)
        self._writer.end_member(member)

    def made(self, remarks: Remarks) -> PackedArchive:
        """Return the result, after the archive is complete."""
        return PackedArchive(
            codec=self._codec, sha256=self._output.sha256, size_bytes=self._output.size_bytes,
            members=self._tally.members, content_bytes=self._tally.content_bytes, data_bytes=self._tally.data_bytes,
            remarks=remarks,
        )  # fmt: skip

    def begin(self, compressor: Compressor) -> None:
        """Pass the following bytes to `compressor`."""
        self._compress = compressor.write

    def finish(self) -> None:
        """Write the end."""
        self._writer.close()

    def _pass(self, data: memoryview) -> None:
        self._compress(data)
        self._passed += len(data)
        if self._moved:
            self._moved(self._passed)


@contextmanager
def archive_writer(
    output: int, codec: Codec, *, owner: tuple[int, int] | None = None, moved: Moved | None = None
) -> Iterator[ArchiveWriter]:
    """An archive on a descriptor, complete when the block is left well. Raises `storage_unavailable`."""
    counted = Output(output)
    archive = ArchiveWriter(counted, codec, owner, moved)
    try:
        with compressing(counted, codec) as compressor:
            archive.begin(compressor)
            yield archive
            archive.finish()
        counted.finish()
    except OutputError as error:
        why = error.strerror or os.strerror(5)
        raise DaemonError("storage_unavailable", f"the archive cannot be written: {why}: make room there") from None
