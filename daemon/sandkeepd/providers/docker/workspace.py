"""The volume of a sandbox's own workspace: an overlay above the image's files.

The engine fills a volume with a copy of the image's files, in which nothing shows what the sandbox changed. So, where
the daemon can read the engine's files, it mounts an overlay over the volume's directory. The lower directories are the
workspace in the image's layers, as the engine keeps them; the upper one lies beside, in the volume's own directory::

    volumes/sandbox-sbx_1/_data    the volume's directory, over which the overlay is mounted
                          upper    the changes of the sandbox
                          work     the kernel's
                          empty    the lower directory, if the image has no files there
                          filled   the lower directory of a session that was brought back: the files of its snapshot

The mount is the host's, not the daemon's, and outlives it; the container has a mount of its own of the same files, and
does not notice when the engine is restarted, which unmounts the one at the volume's directory. The daemon mounts it
again when the container is started again, and unmounts it before the engine removes the volume with all that is in it.
What cannot be such an overlay is a plain volume, as in earlier versions. Everything here blocks.

The engine's own mounts of volumes (options of its ``local`` driver) would need no such care, but Docker 20.10 loses
count of them when it is restarted beneath a running container, and then never removes such a volume.
"""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from sandkeep.errors import ProviderError
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.archives.trees.tree import is_marked_opaque
from sandkeepd.host import mounts
from sandkeepd.providers.common.disk_overlays import mount_writable
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.docker.engine import Client
from sandkeepd.providers.docker.plan import Plan

UPPER: Final = "upper"
WORK: Final = "work"
EMPTY: Final = "empty"
FILLED: Final = "filled"

_DATA: Final = "_data"
_MOST_OPTIONS: Final = 4000
"""Characters: the kernel takes one page of mount options."""

_AMBIGUOUS: Final = frozenset(",:\\")
"""Characters that mean something in mount options."""


def create(
    client: Client, plan: Plan, layers: Sequence[str], marks: Mapping[str, str], data_root: str, writer: int | None
) -> str | None:  # fmt: skip
    """Create the volume of a workspace above an image's `layers`, with labels, and mount it. Safe to repeat. Return its
    upper directory; None, and no effect, if it can only be a plain volume. `data_root` is the engine's directory; files
    are written with the rights of the uid `writer`, if there is one.
    """
    volume = plan.workspace_volume
    if volume is None or not volume.own:
        return None
    mountpoint = mountpoint_of(data_root, volume.source)
    beneath = lowers_at(mountpoint, layers, plan.workspace)
    if beneath is None or (beneath and not plan.writable and not volume.read_only):
        return None  # a change of the owner of its files would copy all of them
    options = _options(mountpoint, beneath)
    if not _is_mountable(options, data_root):
        return None
    made = client.create_volume(volume.source, "local", labels=dict(marks))
    if made["Mountpoint"] != mountpoint or made.get("Options"):
        return None
    with storage_errors():
        for name in (UPPER, WORK, EMPTY):
            os.makedirs(_beside(mountpoint, name), 0o755, exist_ok=True)
        upper = _beside(mountpoint, UPPER)
        if beneath:
            os.chmod(upper, stat.S_IMODE(os.stat(beneath[0]).st_mode))
        os.chown(upper, plan.uid, plan.gid)
    _mount(mountpoint, options, writer)
    return upper


def _is_mountable(options: str, data_root: str) -> bool:
    return len(options) <= _MOST_OPTIONS and not _AMBIGUOUS.intersection(data_root)


def mountpoint_of(data_root: str, volume: str) -> str:
    """Return the directory of a volume."""
    return f"{data_root}/volumes/{volume}/{_DATA}"


def create_to_fill(client: Client, plan: Plan, marks: Mapping[str, str], data_root: str) -> str | None:
    """Create the volume of a workspace, for files instead of its image's. Return the directory for these; None, and no
    effect, where the workspace could not be an overlay of them.
    """
    volume = plan.workspace_volume
    if volume is None or not volume.own or plan.own_disk or not plan.writable:
        return None
    mountpoint = mountpoint_of(data_root, volume.source)
    if not _is_mountable(_options(mountpoint, [filled(mountpoint)]), data_root):
        return None
    made = client.create_volume(volume.source, "local", labels=dict(marks))
    if made["Mountpoint"] != mountpoint or made.get("Options"):
        client.remove_volume(volume.source)
        return None
    return filled(mountpoint)


def is_overlay(mountpoint: str) -> bool:
    """Return True if a volume is an overlay, mounted or not."""
    return os.path.isdir(_beside(mountpoint, UPPER))


def mount(mountpoint: str, layers: Sequence[str], workspace: str, writer: int | None) -> None:
    """Mount a workspace whose container does not run, unless it is mounted: a restart of the machine, or of the engine,
    unmounts it. Raises `provider_unavailable`.
    """
    _mount(mountpoint, _options(mountpoint, lowers_at(mountpoint, layers, workspace)), writer)


def require_seen(mountpoint: str, pid: int, target: str) -> None:
    """Raise `provider_unavailable` if the first process of a container sees something else than the overlay."""
    with suppress(OSError):  # it has ended
        if not any((mount.place, mount.kind) == (target, "overlay") for mount in mounts.listed(str(pid))):
            message = f"the engine does not see what the daemon mounts at {mountpoint}: run both in one mount namespace"
            raise ProviderError("provider_unavailable", message)


def unmount(volume: str) -> None:
    """Unmount what is mounted in and at the directory of a volume, whose container was removed, before the volume is.
    Safe to repeat. Raises `provider_unavailable`.
    """

    def leave() -> None:
        for place in mounts.below(volume):
            mounts.unmount(place)

    _run_in_host_namespace(leave, "unmounted")


def _mount(mountpoint: str, options: str, writer: int | None) -> None:
    overlay = partial(mounts.mount, "overlay", mountpoint, "overlay", 0, options)

    def enter() -> None:
        if mounts.below(mountpoint):
            return
        if writer is None:
            overlay()
        else:
            with closing_fd(mounts.open_path(os.path.dirname(mountpoint))) as disk:
                mount_writable(overlay, mountpoint, disk, writer)

    _run_in_host_namespace(enter, "mounted")


def _run_in_host_namespace(work: Callable[[], None], done: str) -> None:
    try:
        mounts.in_host_namespace(work)
    except OSError as error:
        message = f"the workspace cannot be {done}: {error.strerror}"
        raise ProviderError("provider_unavailable", message) from None


def _options(mountpoint: str, beneath: Sequence[str] | None) -> str:
    upper, work, empty = (_beside(mountpoint, name) for name in (UPPER, WORK, EMPTY))
    return mounts.overlay_options(":".join(beneath or [empty]), upper, work)


def _beside(mountpoint: str, name: str) -> str:
    return f"{os.path.dirname(mountpoint)}/{name}"


def written(mountpoint: str) -> str:
    """Return the directory with the files that are written to a volume: of an overlay its upper one."""
    return _beside(mountpoint, UPPER) if is_overlay(mountpoint) else mountpoint


def filled(mountpoint: str) -> str:
    """Return the directory of the files that a workspace begins with instead of its image's. Most have none."""
    return _beside(mountpoint, FILLED)


def lowers_at(mountpoint: str, layers: Sequence[str], workspace: str) -> list[str] | None:
    """Return the lower directories of the overlay at a volume's directory: those of `lowers`, unless it was filled."""
    directory = filled(mountpoint)
    return [directory] if os.path.isdir(directory) else lowers(layers, workspace)


def lowers(layers: Sequence[str], workspace: str) -> list[str] | None:
    """Return the directories at that path in an image's layers that an overlay of them would show, the uppermost first.

    None if the path leads through a link or a file.
    """
    found = list[str]()
    parts = workspace.strip("/").split("/")
    known = 0  # so many of the parts are directories in a layer above
    for layer in layers:
        directory, hides = layer, False
        for depth, part in enumerate(parts):
            directory = f"{directory}/{part}"
            try:
                status = os.lstat(directory)
            except FileNotFoundError:
                break
            if not stat.S_ISDIR(status.st_mode):
                is_gone = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
                return found if is_gone or depth < known else None
            known = max(known, depth + 1)
            hides = hides or is_marked_opaque(directory, "trusted")
        else:
            found.append(directory)
        if hides:
            break
    return found
