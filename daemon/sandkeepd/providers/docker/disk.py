"""The disk of a container: a file system of the size that was asked for, which holds all that its code can write.

The journals, and the volumes of the container alone, lie on it: a volume's directory of the engine is a mount of one on
the disk, so that the engine's copies, and the daemon's overlays, are written there::

    disks/sbx_1                          the image of the file system
    sandboxes/sbx_1                      the file system, mounted for the engine to see
                   /in  /out             shared with the keeper
                   /volumes/NAME         seen at volumes/NAME in the engine's directory

The root is read-only, and `/tmp`, `/run` and `/dev/shm` are memory. The kernel's table of the container's mounts says
if anything else is writable, such as a volume that the image declares: the container is refused then, before any code
runs in it. Everything here blocks.
"""

import os
from collections.abc import Collection
from typing import Final

from sandkeep.errors import SetupError
from sandkeepd.host import mounts
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.common.layout import OWN_TRASH, VOLUMES
from sandkeepd.providers.common.own_disks import refused

_IN_MEMORY: Final = frozenset(
    {"tmpfs", "ramfs", "proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "devtmpfs", "securityfs"}
)
"""File systems without bytes on a disk."""


def bind_volume(directory: str, volume: str) -> None:
    """Let a volume's directory of the engine lie on the disk that is mounted at `directory`, unless it does. Raises
    `storage_unavailable`.
    """
    source = f"{directory}/{VOLUMES}/{os.path.basename(volume)}"

    def bind() -> None:
        if not os.path.ismount(volume):
            mounts.mount(source, volume, None, mounts.MS_BIND)

    with storage_errors():
        os.makedirs(source, 0o701, exist_ok=True)
        os.makedirs(f"{source}/_data", 0o755, exist_ok=True)
        mounts.in_host_namespace(bind)


def unused_volumes(directory: str, used: Collection[str]) -> list[str]:
    """Return the directories of volumes on a disk, but for those with the names `used`."""
    parent = f"{directory}/{VOLUMES}"
    try:
        return [f"{parent}/{name}" for name in os.listdir(parent) if name not in (*used, OWN_TRASH)]
    except FileNotFoundError:
        return []


def require_exact(pid: int, directory: str, workspace: str | None) -> None:
    """Raise `not_supported` if a container, whose first process is `pid`, can write to a disk other than its own, which
    is mounted at `directory`. `workspace` is where it sees an overlay of that disk.
    """
    own = os.stat(directory).st_dev
    try:
        table = mounts.listed(str(pid))
    except OSError:  # it has ended
        return
    for mount in table:
        is_own = mount.device == own or (mount.kind == "overlay" and mount.place == workspace)
        if mount.is_writable and mount.kind not in _IN_MEMORY and not is_own:
            raise _outside(mount.place)
    if all(mount.device != own for mount in table):
        raise refused("the engine does not see what the daemon mounts: run both in one mount namespace")


def _outside(place: str) -> SetupError:
    return refused(f"{place} is writable in the container and lies outside of its disk")
