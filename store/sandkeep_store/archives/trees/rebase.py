"""Archives of a workspace under other names: without their leading directory, or as a layer over an image."""

import os
from collections.abc import Iterator

from msgspec import Struct

from sandkeep.errors import CallerError, SetupError
from sandkeep_store.archives.tar.contents import Names
from sandkeep_store.archives.tar.inspect import CheckedArchive
from sandkeep_store.archives.tar.members import TOP, Member, corrupt, is_too_long, shown
from sandkeep_store.archives.tar.whiteouts import is_reserved, opaque
from sandkeep_store.archives.trees.tree import Source, beneath, directory_member, reserved


class Workspace(Struct, frozen=True, kw_only=True):
    """The workspace in a whole root file system: its path there, such as ``workspace``, and the uid and gid that own
    its files.
    """

    path: bytes
    owner: tuple[int, int]


class Rebased:
    """The members of an archive as a source. With `strip` they lose their leading directory.

    With `into`, they are a layer over the image whose open directory is `image`: they take the place of all that is
    in the workspace there, and belong to its owner. Raises `not_supported` for a workspace that links lead to.
    """

    def __init__(
        self, archive: CheckedArchive, *, strip: bool, into: Workspace | None = None, image: int | None = None
    ) -> None:
        self._archive = archive
        self._strip = strip
        self._into = into
        self._above = [] if into is None or image is None else list(_directories(image, into))
        self._directories = Names()
        self._has_data = False

    def __iter__(self) -> Iterator[Member]:
        if self._into is not None:
            # A layer without the directories above the workspace would give these other owners and modes.
            for directory in self._above:
                self._directories.set(directory.name, 1)
                yield directory
            yield Member(name=opaque(self._into.path), kind="file")
        self._has_data = True
        for member in self._archive:
            member.name = self._renamed(member.name)
            if self._into is not None and self._is_named_again(member):
                continue
            if member.kind == "hard link":
                member.target = self._renamed(member.target)
            if self._into is not None:
                member.uid, member.gid = self._into.owner
            yield member

    def data(self) -> Iterator[memoryview]:
        """See `Source`."""
        return self._archive.data() if self._has_data else iter(())

    def _is_named_again(self, member: Member) -> bool:
        """Return True for a directory that the layer has already: Docker refuses a layer that names anything twice."""
        if member.kind == "directory":
            if self._directories.get(member.name):
                return True
            self._directories.set(member.name, 1)
        return False

    def _renamed(self, name: bytes) -> bytes:
        if self._strip:
            name = name.partition(b"/")[2] or TOP
        if self._into is not None:
            if is_reserved(name):
                raise reserved(name)
            name = self._into.path if name == TOP else self._into.path + b"/" + name
        if is_too_long(name):
            raise corrupt(f"cannot be extracted: {shown(name)} is longer than a path may be", name)
        return name


class Placed:
    """The members of a layer over a workspace as one over a whole root file system, whose open directory is `image`.

    Raises `not_supported` for a workspace that links lead to.
    """

    def __init__(self, layer: Source, into: Workspace, image: int) -> None:
        self._layer = layer
        self._into = into.path
        self._above = list(_directories(image, into))[:-1]
        self._has_data = False

    def __iter__(self) -> Iterator[Member]:
        yield from self._above
        self._has_data = True
        for member in self._layer:
            member.name = self._renamed(member.name)
            if member.kind == "hard link":
                member.target = self._renamed(member.target)
            yield member

    def data(self) -> Iterator[memoryview]:
        """See `Source`."""
        return self._layer.data() if self._has_data else iter(())

    def _renamed(self, name: bytes) -> bytes:
        placed = self._into if name == TOP else self._into + b"/" + name
        if is_too_long(placed):
            message = f"{shown(name)} is longer than a path in an archive may be: rename it"
            raise CallerError("invalid", message, member=shown(name)[1:-1])
        return placed


def _directories(image: int, workspace: Workspace) -> Iterator[Member]:
    parts = workspace.path.split(b"/")
    for count in range(1, len(parts) + 1):
        name = b"/".join(parts[:count])
        try:
            with beneath(image, name) as opened:
                yield directory_member(name, os.fstat(opened))
        except FileNotFoundError:
            yield Member(name=name, kind="directory", mode=0o755, uid=workspace.owner[0], gid=workspace.owner[1])
        except OSError as error:
            message = f"/{os.fsdecode(workspace.path)} cannot be replaced in that image: {error.strerror}"
            raise SetupError("not_supported", f"{message}: import the archive with another image") from None
