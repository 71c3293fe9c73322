"""The files of a container as its engine keeps them: a layer of its own above those of its image, and volumes.

Volumes that only this container has belong to its files, at their mount points inside; shared volumes do not. Neither
do files that the engine makes anew for every container. Everything here blocks.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from msgspec import Struct, field

from sandkeep.errors import CallerError, SetupError, StateError
from sandkeep.settings.docker import VOLUME_MODE
from sandkeep_store.archives.tar import whiteouts
from sandkeep_store.archives.tar.members import TOP, Member
from sandkeep_store.archives.trees.read import Remarks
from sandkeep_store.archives.trees.tree import Overlay, Tree, directory_member, is_in
from sandkeepd.host import mounts
from sandkeepd.providers.common.packing import never_packed
from sandkeepd.providers.common.views import open_merged
from sandkeepd.providers.docker import workspace
from sandkeepd.providers.docker.engine import NOT_FOUND, Client, Tolerate
from sandkeepd.providers.docker.plan import INSIDE, Plan, own_volumes

DRIVER: Final = "overlay2"
"""The storage driver of the engine that is supported here."""

NOT_KEPT: Final = (b".dockerenv", b"dev", b"proc", b"sys", os.fsencode(INSIDE.lstrip("/")))
"""Files that the engine, or the daemon, makes for every container."""

_MOST_IMAGES: Final = 256
"""Images of which the directories are remembered."""

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OwnVolume(Struct, frozen=True, kw_only=True):
    """A volume that a container sees at `place`, a path without a slash before it. The directory `source` of the host
    has its files; of an overlay, its changes, which hide parts of `lowers`. `over_image`: these are the image's.
    """

    place: bytes
    source: str
    lowers: list[str] = field(default_factory=list)
    over_image: bool = False


class ContainerFiles(Struct, frozen=True, kw_only=True):
    """The locations of a container's files. `image` is the engine's id of the image beneath `upper`."""

    image: str
    upper: str
    lowers: list[str]
    volumes: list[OwnVolume]


def find(client: Client, container_id: str, sandbox_id: str, plan: Plan) -> ContainerFiles:
    """Ask the engine for a container's files. Raises `not_ready` when they are gone, and `not_supported`."""
    found: dict[str, Any] | None = None
    with Tolerate(NOT_FOUND):
        found = client.inspect_container(container_id)
    if found is None:
        message = f"the container of sandbox {sandbox_id} was removed, and its files with it"
        raise StateError("not_ready", message, sandbox_id=sandbox_id)
    layers = layers_of(found)
    return ContainerFiles(
        image=found["Image"], upper=layers[0], lowers=layers[1:], volumes=_volumes(found["Mounts"], plan, layers[1:])
    )


def require_own_workspace(plan: Plan) -> None:
    """Raise `not_supported` where a copy of its workspace could not be a copy's own."""
    if plan.workspace_volume is None:
        why = "is in memory, and is lost when it ends"
    elif not plan.workspace_volume.own:
        why = f"is the volume {plan.workspace_volume.source}, which others write to as well"
    else:
        return
    message = f"its workspace {why}: its files are kept only if the administrator sets {VOLUME_MODE.name}=session"
    raise SetupError("not_supported", message)


def why_unreadable(found: Mapping[str, Any], *, root: bool) -> str | None:
    """Return the reason why an engine with this description gives no access to the files of containers, or None."""
    options = [option.partition(",")[0] for option in found.get("SecurityOptions") or ()]
    if not root:
        return "reading the files of containers needs root: run the daemon as root"
    if found.get("Driver") != DRIVER:
        return f"the engine keeps files by {found.get('Driver')}, not by {DRIVER}"
    if not os.path.isdir(found.get("DockerRootDir") or ""):
        return "the engine's files are on another machine"
    if "name=userns" in options or "name=rootless" in options:
        return "the engine maps the users of containers (userns-remap, or rootless)"
    if ["Native Overlay Diff", "true"] not in (found.get("DriverStatus") or ()):
        return "this machine's overlays move directories by reference (redirect_dir, or metacopy): switch that off"
    return None


def layers_of(found: Mapping[str, Any]) -> list[str]:
    """Return the directories in which the engine keeps a container's or an image's layers, each hiding parts of the
    next. Raises `not_supported` when they cannot be read.
    """
    driver = found.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    if driver.get("Name") != DRIVER or not os.path.isdir(data.get("UpperDir", "")):
        message = f"this Docker engine gives no access to the files of its containers: it needs {DRIVER}, and root"
        raise SetupError("not_supported", message)
    lower = data.get("LowerDir") or ""
    return [data["UpperDir"], *(lower.split(":") if lower else ())]


class ImageLayers:
    """The directories of images' layers by the images' ids, as the engine told them. An image always has the same."""

    def __init__(self) -> None:
        self._known: dict[str, list[str]] = {}

    def of(self, client: Client, image: str) -> list[str]:
        """Do as `layers_of`. The engine is asked anew if a directory has gone, with an image that was removed."""
        found = self._known.get(image)
        if found is None or not all(map(os.path.isdir, found)):
            found = layers_of(client.inspect_image(image))  # type: ignore[no-untyped-call]  # the SDK has no types
            if len(self._known) >= _MOST_IMAGES:
                self._known = {}
            self._known[image] = found
        return found


def _volumes(mounts: Sequence[Mapping[str, Any]], plan: Plan, image: Sequence[str]) -> list[OwnVolume]:
    found = [_volume(mount["Destination"], mount["Source"], image) for mount in own_volumes(mounts, plan)]
    return sorted(found, key=lambda volume: volume.place)


def _volume(target: str, mountpoint: str, image: Sequence[str]) -> OwnVolume:
    place, source = os.fsencode(target.strip("/")), workspace.written(mountpoint)
    if source == mountpoint:
        return OwnVolume(place=place, source=source)
    lowers = workspace.lowers_at(mountpoint, image, target) or [f"{os.path.dirname(source)}/{workspace.EMPTY}"]
    return OwnVolume(
        place=place, source=source, lowers=lowers, over_image=lowers != [workspace.filled(mountpoint)]
    )  # fmt: skip


class ContainerTree:
    """The files of a container as a source of members: all, or with `as_layer` the difference from its image.

    `shown` is the container's root as an open directory, without its volumes. A layer holds the changes of a volume
    that is an overlay of the image's files; of another all files, and a mark that the image's files there are hidden.
    With `from_start` it is the difference from the files that the container began with.
    """

    def __init__(
        self,
        files: ContainerFiles,
        shown: int,
        state_dir: str,
        *,
        include: Sequence[bytes] = (),
        exclude: Sequence[bytes] = (),
        as_layer: bool = False,
        from_start: bool = False,
    ) -> None:
        self.remarks = Remarks()
        self._files = files
        self._shown = shown
        self._include = include
        self._exclude = exclude
        self._state_dir = state_dir
        self._as_layer = as_layer
        self._from_start = from_start
        self._tree: Tree | None = None
        self._directories: set[bytes] = set()

    def __iter__(self) -> Iterator[Member]:
        with ExitStack() as opened:
            own = [volume.place for volume in self._files.volumes]
            include = [name for name in self._include if not any(is_in(name, place) for place in own)]
            if include or not self._include:
                top = self._shown
                if self._as_layer:
                    top = mounts.open_detached(self._files.upper, mounts.TO_READ)
                    opened.callback(os.close, top)
                exclude = [*self._exclude, *own, *NOT_KEPT]
                yield from self._of_tree(top, include or [TOP], exclude, lambda name: name)
            for volume in self._files.volumes:
                yield from self._of_volume(volume, opened)

    def data(self) -> Iterator[memoryview]:
        return iter(()) if self._tree is None else self._tree.data()

    def _of_tree(
        self, top: int, include: Sequence[bytes], exclude: Sequence[bytes], called: Callable[[bytes], bytes]
    ) -> Iterator[Member]:
        overlay: Overlay | None = "trusted" if self._as_layer else None
        self._tree = Tree(top, include=include, exclude=exclude, never=never_packed(self._state_dir), overlay=overlay)
        for member in self._tree:
            member.name = called(member.name)
            if member.kind == "hard link":
                member.target = called(member.target)
            if member.kind == "directory":
                self._directories.add(member.name)
            yield member
        self.remarks.include(self._tree.remarks)
        self._tree = None

    def _of_volume(self, volume: OwnVolume, opened: ExitStack) -> Iterator[Member]:
        place = volume.place
        include = within(self._include, place) if self._include else [TOP]
        exclude = within(self._exclude, place)
        if not include or TOP in exclude:
            return
        others = [other.place for other in self._files.volumes if other.place != place]
        exclude += [relative(other, place) for other in others if is_in(other, place)]
        for name, directory in directories_above(self._shown, place, opened):
            if name != place and name not in self._directories:
                self._directories.add(name)
                yield directory_member(name, os.fstat(directory))
        changes = volume.over_image or (self._from_start and bool(volume.lowers))
        roots = [volume.source] if self._as_layer and changes else [volume.source, *volume.lowers]
        top = open_merged(roots, self._state_dir)
        opened.callback(os.close, top)
        for member in self._of_tree(top, include, exclude, lambda name: place if name == TOP else place + b"/" + name):
            yield member
            if member.name == place and self._as_layer and not changes:
                yield Member(name=whiteouts.opaque(place), kind="file", mtime_ns=member.mtime_ns)


def directories_above(shown: int, place: bytes, opened: ExitStack) -> Iterator[tuple[bytes, int]]:
    """Yield the directories of a container's root down to a volume's place, from the top; `opened` closes them. Raises
    `not_supported` for links among them.
    """
    name, directory = TOP, shown
    yield name, directory
    for part in place.split(b"/") if place != TOP else ():
        try:
            directory = os.open(part, _OPEN, dir_fd=directory)
        except OSError:
            message = f"the volume at /{os.fsdecode(place)} is behind a symbolic link: its files cannot be kept"
            raise SetupError("not_supported", message) from None
        opened.callback(os.close, directory)
        name = part if name == TOP else name + b"/" + part
        yield name, directory


def relative(name: bytes, place: bytes) -> bytes:
    """Return a name at or below a place relative to it."""
    return TOP if name == place else name if place == TOP else name.removeprefix(place + b"/")


def within(names: Sequence[bytes], place: bytes) -> list[bytes]:
    """Return those of these names that are a place or below it, relative to it."""
    found = []
    for name in names:
        if is_in(place, name):
            found.append(TOP)
        elif is_in(name, place):
            found.append(relative(name, place))
    return found


def paths(given: Sequence[str]) -> list[bytes]:
    """Convert paths in the sandbox into names in its archives. Raises `invalid`."""
    found = []
    for path in given:
        if "\0" in path:
            raise CallerError("invalid", "include: a path has a zero byte", field="include")
        found.append(path.strip("/").encode("utf-8", "surrogateescape") or TOP)
    return found
