"""A directory tree as a source of members, filtered and with file contents."""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Final, Literal, Protocol

from sandkeep.errors import CallerError, DataError
from sandkeep.system.descriptors import closing_fd, identity_of
from sandkeep.system.openat2 import open_beneath
from sandkeep_store.archives.tar import whiteouts
from sandkeep_store.archives.tar.members import TOP, Member, is_too_long, shown
from sandkeep_store.archives.tar.reader import Reader
from sandkeep_store.archives.trees.read import Remarks, reading, unreadable

Overlay = Literal["trusted", "user"]
"""The namespace of the extended attributes that mark opaque directories: ``user`` is that of unprivileged mounts."""

_WHITEOUT: Final = (0, 0)
_OPEN: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Source(Protocol):
    """An iterable of members with their data."""

    def __iter__(self) -> Iterator[Member]:
        """The members, each once."""

    def data(self) -> Iterator[memoryview]:
        """The bytes of the present member."""


class Tree:
    """The open directory `top`, or the part in `include` and not in `exclude`. See `pack.pack`.

    With `overlay`, it is the upper directory of an overlay, and its deletions become whiteouts.
    """

    def __init__(
        self,
        top: int,
        *,
        include: Sequence[bytes] = (TOP,),
        exclude: Sequence[bytes] = (),
        never: Sequence[str] = (),
        reader: tuple[int, int] | None = None,
        overlay: Overlay | None = None,
    ) -> None:
        self.remarks = Remarks()
        self._top = top
        self._include = _outermost(_path(name, "include") for name in include)
        self._exclude = [_path(name, "exclude") for name in exclude]
        self._reader = reader
        self._overlay = overlay
        self._never = {identity for path in never if (identity := identity_of(path)) is not None}
        self._exclude += [place for path in never if (place := _place_of(path, top)) is not None]
        self._parents = {TOP} if self._include == [TOP] else set()
        self._kept_out: set[bytes] = set()
        self._inside: bytes | None = None
        self._data: Reader | None = None

    def __iter__(self) -> Iterator[Member]:
        for place in self._include:
            if not any(is_in(place, name) for name in self._exclude):
                yield from self._members(place)

    def data(self) -> Iterator[memoryview]:
        """See `Source`."""
        return iter(()) if self._data is None else self._data.data()

    def _members(self, place: bytes) -> Iterator[Member]:
        directory, _, last = place.rpartition(b"/")
        prefix = directory + b"/" if directory else b""
        with ExitStack() as opened:
            parent = self._top
            for above, parent in self._opened(directory, opened):
                if above not in self._parents:
                    self._parents.add(above)
                    yield directory_member(above, os.fstat(parent))
            _require(place, last, parent)
            without = [name.removeprefix(prefix) for name in self._exclude if is_in(name, place)]
            with reading(parent, last, without, self._reader) as program:
                self._data = Reader(program.chunks())
                try:
                    for member in self._data:
                        yield from self._translated(_moved(member, prefix))
                except DataError as error:
                    program.check(prefix, self.remarks)  # it knows better why it ended in the middle
                    raise unreadable(error.message.encode()) from None
                program.check(prefix, self.remarks)
                self._data = None

    def _opened(self, directory: bytes, opened: ExitStack) -> Iterator[tuple[bytes, int]]:
        """The directories down to one, from the top, opened one by one: no link may lead out of the tree."""
        above, parent = TOP, self._top
        yield above, parent
        for part in directory.split(b"/") if directory else ():
            try:
                parent = os.open(part, _OPEN, dir_fd=parent)
            except OSError:
                raise not_there(directory) from None
            opened.callback(os.close, parent)
            above = part if above == TOP else above + b"/" + part
            yield above, parent

    def _translated(self, member: Member) -> Iterator[Member]:
        """Yield the members in the archive for one of the tree: itself, nothing, or whiteouts."""
        if self._is_kept_out(member):
            self._kept_out.add(member.name)
        elif is_too_long(member.name):
            self.remarks.add(member.name, "name too long")
            self._kept_out.add(member.name)
        elif member.kind.endswith("device"):
            yield from self._of_device(member)
        else:
            if self._overlay and whiteouts.is_reserved(member.name):
                raise reserved(member.name)
            # Looked at before the member is passed on, as its receiver may give it another name.
            hides = self._overlay and member.kind == "directory" and is_opaque(self._top, member.name, self._overlay)
            mark = whiteouts.opaque(member.name)
            yield member
            if hides:
                yield Member(name=mark, kind="file", mtime_ns=member.mtime_ns)

    def _is_kept_out(self, member: Member) -> bool:
        if self._inside is not None and member.name.startswith(self._inside):
            return True
        if member.kind == "hard link" and member.target in self._kept_out:
            self.remarks.add(member.name, "kept out")
            return True
        if member.kind != "directory" or not self._never:
            return False
        with suppress(OSError), beneath(self._top, member.name) as opened:
            status = os.fstat(opened)
            if (status.st_dev, status.st_ino) in self._never:
                self.remarks.add(member.name, "kept out")
                self._inside = member.name + b"/"
                return True
        return False

    def _of_device(self, member: Member) -> Iterator[Member]:
        if self._overlay and member.kind == "character device" and member.device == _WHITEOUT:
            yield Member(name=whiteouts.whiteout(member.name), kind="file", mtime_ns=member.mtime_ns)
        else:
            self.remarks.add(member.name, "device")
            self._kept_out.add(member.name)


def beneath(tree: int, name: bytes) -> AbstractContextManager[int]:
    """Open a directory below an open one, to which no link leads, for the length of a block. Raises OSError."""
    return closing_fd(open_beneath(tree, name, os.O_PATH | os.O_DIRECTORY))


def is_opaque(tree: int, name: bytes, overlay: Overlay) -> bool:
    """Return True if an upper directory is opaque, by an attribute that programs reading the tree cannot see."""
    with suppress(OSError), beneath(tree, name) as directory:
        return is_marked_opaque(f"/proc/self/fd/{directory}", overlay)
    return False


def is_marked_opaque(directory: str, overlay: Overlay) -> bool:
    """Do as `is_opaque` with a directory that is no link."""
    with suppress(OSError):
        return os.getxattr(directory, f"{overlay}.overlay.opaque") == b"y"
    return False


def _path(name: bytes, field: str) -> bytes:
    """A path in the tree without needless parts. Raises `invalid`."""
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if name.startswith(b"/") or b".." in parts or b"\0" in name:
        raise CallerError("invalid", f"{field}: {shown(name)} is not a path below the tree", field=field)
    return b"/".join(parts) or TOP


def is_in(name: bytes, directory: bytes) -> bool:
    """Return True if a name is a directory's, or of a file below it."""
    return directory in (TOP, name) or name.startswith(directory + b"/")


def _outermost(names: Iterable[bytes]) -> list[bytes]:
    """The names in order, without those that lie in another of them."""
    found: list[bytes] = []
    for name in sorted(set(names), key=lambda name: b"" if name == TOP else name.replace(b"/", b"\0")):
        if not any(is_in(name, other) for other in found[-1:]):
            found.append(name)
    return found


def _moved(member: Member, prefix: bytes) -> Member:
    if prefix:
        member.name = prefix + member.name
        if member.kind == "hard link":
            member.target = prefix + member.target
    return member


def _require(place: bytes, last: bytes, parent: int) -> None:
    try:
        os.stat(last, dir_fd=parent, follow_symlinks=False)
    except OSError:
        raise not_there(place) from None


def not_there(place: bytes) -> CallerError:
    """Return the error for a path to include that no file has."""
    return CallerError("not_found", f"there is no {shown(place)} in the sandbox's files", field="include")


def reserved(name: bytes) -> CallerError:
    """The error for a file with a name that a layer cannot have for one."""
    message = f"{shown(name)} has a name that marks deletions in layers (.wh.): rename it, or make a full snapshot"
    return CallerError("invalid", message, member=shown(name)[1:-1])


def directory_member(name: bytes, status: os.stat_result) -> Member:
    """A directory as a member of an archive."""
    return Member(
        name=name, kind="directory", mode=stat.S_IMODE(status.st_mode), uid=status.st_uid, gid=status.st_gid,
        mtime_ns=status.st_mtime_ns,
    )  # fmt: skip


def _place_of(path: str, top: int) -> bytes | None:
    """Return the path in the tree of a directory of this machine, or None if it is not below the tree's top."""
    wanted = os.fstat(top)
    here = os.path.realpath(os.fsencode(path))
    below: list[bytes] = []
    while here != b"/":
        if identity_of(os.fsdecode(here)) == (wanted.st_dev, wanted.st_ino):
            return b"/".join(reversed(below)) or None
        here, last = os.path.split(here)
        below.append(last)
    return None
