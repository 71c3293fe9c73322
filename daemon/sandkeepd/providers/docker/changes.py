"""The changes of a container since an earlier snapshot: one catalogue of all directories in which it writes files.

Everything here blocks.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import msgspec

from sandkeep_store.archives.tar.members import TOP, Member
from sandkeep_store.archives.trees import changes
from sandkeep_store.archives.trees.changes import Catalogue, ChangedTree, Changes
from sandkeep_store.archives.trees.read import Names, Program, Remarks, reading_only
from sandkeep_store.archives.trees.tree import directory_member, is_in
from sandkeepd.host import mounts
from sandkeepd.host.cgroups.pause import processes
from sandkeepd.host.mapped_files import mapped_files
from sandkeepd.host.processes import Identity, identify
from sandkeepd.providers.docker.instance import DockerInstance
from sandkeepd.providers.docker.trees import NOT_KEPT, ContainerFiles, directories_above, relative


class Part(NamedTuple):
    """An open directory with files that a container writes: its layer, or at `place` a volume. `hidden` are the names
    in it that do not belong to it.
    """

    place: bytes
    top: int
    hidden: list[bytes]

    def name(self, name: bytes) -> bytes:
        """Return the name in the container of a name in the directory."""
        return name if self.place == TOP else self.place if name == TOP else self.place + b"/" + name


def open_parts(files: ContainerFiles, opened: ExitStack) -> list[Part]:
    """Open all parts of a container, until `opened` is closed: each before those in it."""
    places = [volume.place for volume in files.volumes]
    sources = [(TOP, files.upper), *((volume.place, volume.source) for volume in files.volumes)]
    parts = []
    for place, source in sources:
        top = mounts.open_detached(source, mounts.TO_READ)
        opened.callback(os.close, top)
        hidden = [relative(other, place) for other in places if other != place and is_in(other, place)]
        parts.append(Part(place, top, [*hidden, *NOT_KEPT] if place == TOP else hidden))
    return parts


class Look(NamedTuple):
    """A look at a frozen container. `now` is `found` with the files that its processes can write to in memory marked as
    unreliable.
    """

    found: Catalogue
    now: Catalogue


def look(parts: Sequence[Part], container: DockerInstance | None) -> Look:
    """Catalogue a frozen container, or one that has ended."""
    found = {
        part.name(name): seen
        for part in parts
        for name, seen in changes.take_catalogue(part.top, overlay="trusted").items()
        if not any(is_in(name, other) for other in part.hidden)
    }
    if container is None:
        return Look(found, found)
    first = msgspec.convert(container.handle["first"], Identity)
    pids = processes(container.cgroups, first.pid) if identify(first.pid) == first else []
    return Look(found, changes.with_unreliable(found, mapped_files(pids, "/")))


class ChangedFiles:
    """The changed files of a container, which was frozen when they were looked at, as a source of members. Made before,
    as the reading programs take a while to start; `shown` is its root as an open directory.
    """

    def __init__(self, parts: Sequence[Part], shown: int, opened: ExitStack) -> None:
        self.remarks = Remarks()
        self._read: list[tuple[Part, tuple[Program, Names]]] = [
            (part, opened.enter_context(reading_only(part.top))) for part in parts
        ]
        self._shown = shown
        self._changes = Changes([], [])
        self._tree: ChangedTree | None = None

    def select(self, different: Changes, found: Catalogue) -> None:
        """Choose what is in it: names with their directories, which would get other attributes else, and whiteouts."""
        marked = [changes.parent_of(mark) for mark in different.marks]
        names = changes.with_directories([*different.names, *marked])
        self._changes = different._replace(names=[name for name in names if name in found])

    def __iter__(self) -> Iterator[Member]:
        known = set(self._changes.names)
        for part, read in self._read:
            different = Changes(self._of(part, self._changes.names), self._of(part, self._changes.marks))
            if not different.names:
                continue
            with ExitStack() as opened:
                for name, directory in directories_above(self._shown, part.place, opened):
                    if name not in known:
                        known.add(name)
                        yield directory_member(name, os.fstat(directory))
            self._tree = ChangedTree(different, read)
            for member in self._tree:
                member.name = part.name(member.name)
                if member.kind == "hard link":
                    member.target = part.name(member.target)
                yield member
            self.remarks.include(self._tree.remarks)
            self._tree = None

    def data(self) -> Iterator[memoryview]:
        return iter(()) if self._tree is None else self._tree.data()

    def _of(self, part: Part, names: Sequence[bytes]) -> list[bytes]:
        own = [relative(name, part.place) for name in names if is_in(name, part.place)]
        return [name for name in own if not any(is_in(name, other) for other in part.hidden)]
