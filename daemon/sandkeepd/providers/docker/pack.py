"""Packing the files of a container, which is frozen only while its difference from its image is written: as a plain
tar, in a file without a name. Everything here blocks.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import NamedTuple

import msgspec

from sandkeep import failpoints
from sandkeep_store.archives.tar.inspect import CheckedArchive
from sandkeep_store.archives.tar.members import Member
from sandkeep_store.archives.tar.whiteouts import is_reserved, opaque
from sandkeep_store.archives.trees.changes import compare, load, save
from sandkeep_store.archives.trees.layers import flatten
from sandkeep_store.archives.trees.pack import NO_LIMITS, PackedArchive, write
from sandkeep_store.archives.trees.read import Remarks
from sandkeep_store.archives.trees.tree import reserved
from sandkeepd.contract.layers import KeptArchive
from sandkeepd.contract.snapshots import PackedFiles, PackRequest
from sandkeepd.host.cgroups.pause import Pause, frozen
from sandkeepd.host.processes import Identity, identify
from sandkeepd.host.threads import Meter
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.common.packing import CODECS, bytes_in, packed_files, wanted_names
from sandkeepd.providers.common.views import shown
from sandkeepd.providers.docker import trees
from sandkeepd.providers.docker.changes import ChangedFiles, Look, look, open_parts
from sandkeepd.providers.docker.instance import DockerInstance
from sandkeepd.providers.docker.layers import Layer
from sandkeepd.providers.docker.trees import ContainerFiles, ContainerTree


class Changes(NamedTuple):
    """The difference between a container and its image."""

    layer: Layer
    remarks: Remarks
    pause: Pause


class Packer:
    """Packs containers for the daemon that has this state directory."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir

    def pack(
        self, files: ContainerFiles, image: Sequence[str], container: DockerInstance | None, request: PackRequest,
        end_reading: Callable[[], None], moved: Meter,
    ) -> PackedFiles:  # fmt: skip
        """Pack the files as they are at one moment. `image` are the directories of the container's image. The function
        `end_reading` is called when the container will not be frozen any more.
        """
        if request.over != "parent" and (request.include or request.exclude):
            return self._pack_some(files, container, request, moved)
        with unnamed_file(self._state_dir) as output:
            changes = self.changes(files, container, output, "snapshot.frozen", request, moved)
            end_reading()
            failpoints.reach("snapshot.copied")
            moved.total_bytes = changes.layer.size_bytes if request.over != "nothing" else None
            packed = self._pack_all(output, image, request, moved)
        return packed_files(msgspec.structs.replace(packed, remarks=changes.remarks), changes.pause)

    def _pack_all(self, layer: int, image: Sequence[str], request: PackRequest, moved: Meter) -> PackedArchive:
        codec = CODECS[request.format]
        if request.over != "nothing":
            return write(CheckedArchive(layer, NO_LIMITS, layer=True), request.output, codec, Remarks(), moved=moved)
        with shown(*image, above=self._state_dir) as base:
            moved.count = lambda: os.fstat(layer).st_size + bytes_in(base)  # the container runs again
            return flatten([layer], request.output, base=base, limits=NO_LIMITS, codec=codec, moved=moved)

    def _pack_some(
        self, files: ContainerFiles, container: DockerInstance | None, request: PackRequest, moved: Meter
    ) -> PackedFiles:
        """Pack some paths, reading them in place."""
        include, exclude = trees.paths(request.include), trees.paths(request.exclude)
        with self._shown(files) as root, ExitStack() as opened:
            parts = open_parts(files, opened)
            with _frozen(container) as pause:
                failpoints.reach("snapshot.frozen")
                seen = look(parts, container)
                source = ContainerTree(files, root, self._state_dir, include=include, exclude=exclude)
                packed = write(source, request.output, CODECS[request.format], source.remarks, moved=moved)
        _save(seen, request)
        return packed_files(packed, pause)

    def changes(
        self, files: ContainerFiles, container: DockerInstance | None, output: int, failpoint: str,
        request: PackRequest | None = None, moved: Meter | None = None,
    ) -> Changes:  # fmt: skip
        """Write the difference between a container and its image to an empty file, while it is frozen. For a `request`
        write the catalogue as well, and, if it is over a parent, only the difference from that.
        """
        with self._shown(files) as root, ExitStack() as opened:
            parts = open_parts(files, opened) if request is not None else []
            parent = request.parent_catalogue if request is not None else None
            before = None if parent is None else load(parent)
            changed = ChangedFiles(parts if before is not None else [], root, opened)
            whole = ContainerTree(
                files, root, self._state_dir, as_layer=True, from_start=request is not None and request.over == "start"
            )  # fmt: skip
            source = whole if before is None else changed
            with _frozen(container) as pause:
                failpoints.reach(failpoint)
                if request is not None:
                    seen = look(parts, container)
                    if before is not None:
                        is_wanted = wanted_names(trees.paths(request.include), trees.paths(request.exclude))
                        changed.select(compare(before, seen.found, is_wanted), seen.found)
                packed = write(source, output, "none", source.remarks, moved=moved)
        if request is not None:
            _save(seen, request)
        return Changes(_layer(output, packed), packed.remarks, pause)

    def _shown(self, files: ContainerFiles) -> AbstractContextManager[int]:
        return shown(files.upper, *files.lowers, above=self._state_dir)


def _save(seen: Look, request: PackRequest) -> None:
    with storage_errors(request.catalogue):
        save(seen.now, request.catalogue)


def as_layer(archive: KeptArchive, output: int, moved: Meter) -> Layer:
    """Verify an archive, and write it to an empty file in the engine's format."""
    first = CheckedArchive(archive.descriptor, archive.limits, layer=archive.is_layer, moved=moved)
    for member in first:
        if not archive.is_layer and is_reserved(member.name):
            raise reserved(member.name)
    first.check_digest(archive.sha256)
    members = first.reread()
    source = Replacing(members, trees.paths(archive.only)) if archive.only else members
    return _layer(output, write(source, output, "none", Remarks()))


class Replacing:
    """The members of an archive as a layer, in which the directories at `places` hide all that lies beneath them."""

    def __init__(self, archive: CheckedArchive, places: Sequence[bytes]) -> None:
        self._archive = archive
        self._places = places
        self._is_marker = False

    def __iter__(self) -> Iterator[Member]:
        for member in self._archive:
            self._is_marker = False
            yield member
            if member.kind == "directory" and member.name in self._places:
                self._is_marker = True
                yield Member(name=opaque(member.name), kind="file", mtime_ns=member.mtime_ns)

    def data(self) -> Iterator[memoryview]:
        return iter(()) if self._is_marker else self._archive.data()


def _layer(descriptor: int, packed: PackedArchive) -> Layer:
    os.lseek(descriptor, 0, os.SEEK_SET)
    holes = packed.content_bytes - packed.data_bytes
    return Layer(descriptor=descriptor, sha256=packed.sha256, size_bytes=packed.size_bytes, hole_bytes=holes)


def _frozen(container: DockerInstance | None) -> AbstractContextManager[Pause]:
    """Freeze a container for the length of a block, if it runs."""
    if container is None:
        return nullcontext(Pause())
    first = msgspec.convert(container.handle["first"], Identity)
    if identify(first.pid) != first:
        return nullcontext(Pause())
    return frozen(container.cgroups, first.pid, container.mark)
