"""The bundle of a gVisor sandbox: its root directory, and the configuration by which `runsc` runs it.

An image is either a whole root file system, with a shell in it, or a directory of files that become the workspace; then
programs are the host's, as in local sandboxes. A root directory is never written to: `runsc` keeps the sandbox's writes
in memory. So any number of sandboxes share their lower layers. With root's daemon the root is put together by mounts
that only the sandbox's own `runsc` sees; a user's daemon has to copy the workspace.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct

from sandkeep.model import SandboxSpec
from sandkeep.system.descriptors import closing_fd
from sandkeep.system.openat2 import open_in_root
from sandkeepd.host import mounts
from sandkeepd.host.processes import OOM_SCORE_ADJ, run_tool
from sandkeepd.keeper import program
from sandkeepd.providers.common.directory_provider import Lower
from sandkeepd.providers.common.inside import HOME, INSIDE, PATH, WORKSPACE, environment, write_etc
from sandkeepd.providers.common.tree_copies import copy_tree
from sandkeepd.providers.common.views import shown
from sandkeepd.providers.gvisor.plan import Plan

FROM_HOST: Final = ("/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs")
_TOP_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_OWN_ETC: Final = ("hosts", "resolv.conf")
_PLACES: Final = ("/mnt", "/media", "/srv", "/opt")
_CAPABILITIES: Final = ("bounding", "effective", "inheritable", "permitted", "ambient")


def is_root_file_system(lowers: Sequence[Lower]) -> bool:
    """Return True if these files are a whole system, with a shell, and not the files of a workspace."""
    return any(_has(lower, "bin/sh", os.O_NOFOLLOW) for lower in lowers)


def _has(lower: Lower, path: str, flags: int) -> bool:
    """Return True if the path exists for a process with these files as its root directory: links may lead anywhere."""
    with suppress(OSError), closing_fd(os.open(lower.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        os.close(open_in_root(root, path, os.O_PATH | flags))
        return True
    return False


def workspace_of(lowers: Sequence[Lower], *, whole: bool) -> str:
    """Return the initial working directory of processes."""
    has_one = not whole or any(_has(lower, WORKSPACE, os.O_DIRECTORY) for lower in lowers)
    return WORKSPACE if has_one else "/"


class Bundle(Struct, frozen=True, kw_only=True):
    """The input of the configuration. `directory` holds `in` and `out`; `root` is the root directory, as `runsc` will
    see it.
    """

    sandbox_id: str
    directory: str
    root: str
    plan: Plan
    spec: SandboxSpec
    whole: bool
    secrets: Sequence[str] = ()


def environment_of(bundle: Bundle) -> dict[str, str]:
    """Return the environment variables that every process starts with."""
    base = {"PATH": PATH, "HOME": "/root" if bundle.plan.uid == 0 else "/"} if bundle.whole else {}
    return base or environment(bundle.sandbox_id)


def write_configuration(bundle: Bundle, path: str) -> None:
    """Write the bundle's `config.json`. Raises OSError."""
    with open(path, "wb") as file:
        file.write(msgspec.json.encode(_configuration(bundle)))


def _configuration(bundle: Bundle) -> dict[str, Any]:
    blocks = str(file_blocks(bundle.plan))
    return {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": bundle.plan.uid, "gid": bundle.plan.gid},
            "args": program.keeper_argv(f"{INSIDE}/in", f"{INSIDE}/out", [blocks], shares=True),
            "env": [f"{name}={value}" for name, value in environment_of(bundle).items()],
            "cwd": "/",
            "capabilities": {kind: [] for kind in _CAPABILITIES},
            "noNewPrivileges": True,
            "oomScoreAdj": OOM_SCORE_ADJ,
        },
        "root": {"path": bundle.root, "readonly": not bundle.plan.writable},
        "hostname": bundle.sandbox_id[:63],
        "mounts": list(_mounts(bundle)),
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", *_network(bundle.plan))]},
    }


def file_blocks(plan: Plan) -> int:
    """Return the maximum size of a file outside, in blocks of 512 bytes."""
    return -(-plan.disk_bytes // 512)


def _network(plan: Plan) -> list[str]:
    return [] if plan.network == "host" else ["network"]


def _mounts(bundle: Bundle) -> Iterator[dict[str, Any]]:
    yield {"destination": "/proc", "type": "proc", "source": "proc"}
    yield {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}
    yield {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]}  # noqa: S108 - inside
    owned = [f"uid={bundle.plan.uid}", f"gid={bundle.plan.gid}", "mode=0700"]
    yield {"destination": f"{INSIDE}/tty", "type": "tmpfs", "source": "tmpfs", "options": owned}
    if bundle.plan.rootless and not bundle.whole:
        for path in filter(os.path.exists, FROM_HOST):
            yield _bind(path, path, "ro")
    yield _bind(f"{bundle.directory}/in", f"{INSIDE}/in", "ro")
    if bundle.plan.uid != 0:
        yield _bind(f"{bundle.directory}/out", f"{INSIDE}/out", "rw")
        return
    # Where the code inside has the uid that owns `out`, mounts keep it from replacing the entries there.
    yield _bind(f"{bundle.directory}/out", f"{INSIDE}/out", "ro")
    for name in ("p", "exits"):
        yield _bind(f"{bundle.directory}/out/{name}", f"{INSIDE}/out/{name}", "rw")


def _bind(source: str, destination: str, mode: str) -> dict[str, Any]:
    return {"destination": destination, "type": "bind", "source": source, "options": ["bind", mode]}


# The root directory


def place_beside(*paths: str) -> str:
    """Return a directory of the host that can be mounted over without hiding any of `paths`. Raises OSError."""
    for place in _PLACES:
        if os.path.isdir(place) and not any(f"{path}/".startswith(f"{place}/") for path in paths):
            return place
    raise OSError(f"the state directory leaves none of {', '.join(_PLACES)} to mount in: choose another")


def mount_root(place: str, lowers: Sequence[Lower], bundle: Bundle) -> str:
    """Mount the root directory together below `place`, in a mount namespace of this thread; return its path. Raises
    OSError.
    """
    opened = [mounts.open_path(lower.root) for lower in lowers]
    try:
        mounts.mount_scratch(place)
        seen = [f"{place}/{number}" for number in range(len(lowers))]
        for directory in (f"{place}/made", f"{place}/root", *seen):
            os.mkdir(directory, 0o755)
        owners = [lower.uid for lower in lowers]
        mounts.bind_mapped(list(zip(map(mounts.at, opened), seen, owners, strict=True)), bundle.plan.uid, again=True)
        made = f"{place}/made"
        if bundle.whole:
            _make_whole(made, bundle)
            mounts.overlay_read_only([made, *seen], f"{place}/root")
            return f"{place}/root"
        make_skeleton(made, bundle)
        for path in filter(os.path.exists, FROM_HOST):
            mounts.bind(path, made + path, mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_RDONLY)
        if len(seen) == 1:
            mounts.bind(seen[0], made + WORKSPACE, mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_RDONLY)
        else:
            mounts.overlay_read_only(seen, made + WORKSPACE)
        return made
    finally:
        for fd in opened:
            os.close(fd)


def make_skeleton(root: str, bundle: Bundle) -> None:
    """Make the parts of a root directory besides the workspace's files, and the mount points in it."""
    for name in ("dev", "home", HOME[1:], "proc", "root", "run", "sys", "tmp", "var", WORKSPACE[1:]):
        os.makedirs(f"{root}/{name}", 0o755, exist_ok=True)
    _make_shared(root)
    os.symlink("../tmp", f"{root}/var/tmp")  # noqa: S108 - inside
    if not bundle.plan.rootless:
        os.chown(root + HOME, bundle.plan.uid, bundle.plan.gid)
    host = bundle.plan.network == "host"
    write_etc(f"{root}/etc", bundle.sandbox_id, bundle.plan.uid, bundle.plan.gid, host_network=host)
    _preload(root)
    for path in filter(os.path.exists, FROM_HOST):
        _make_like(path, root + path)
    for name in _TOP_LINKS:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{root}/{name}")


def _make_like(path: str, place: str) -> None:
    if os.path.isdir(path):
        os.makedirs(place, 0o755, exist_ok=True)
        return
    os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
    with open(place, "wb"):
        pass


def _make_whole(root: str, bundle: Bundle) -> None:
    """Make the directories and files to mount over an image that is a whole root file system."""
    _make_shared(root)
    write_etc(f"{root}/etc", bundle.sandbox_id, 0, 0, host_network=bundle.plan.network == "host", only=_OWN_ETC)
    _preload(root)
    for name in ("dev", "proc", "tmp"):
        os.mkdir(f"{root}/{name}", 0o755)


def _preload(root: str) -> None:
    """Preload the library built from `statx.c` into all programs."""
    with open(f"{root}/etc/ld.so.preload", "w", encoding="ascii") as file:
        file.write(f"{INSIDE}/in/{program.STATX_NAME}\n")


def copy_root(root: str, lowers: Sequence[Lower], bundle: Bundle) -> None:
    """Make a root directory of the sandbox's own, for a user's daemon, which cannot mount. Raises OSError and
    `storage_unavailable`.
    """
    if os.path.isdir(root):
        return
    making = f"{root}.making"
    run_tool(["rm", "-rf", "--", making])
    os.makedirs(making, 0o755)
    target = making if bundle.whole else making + WORKSPACE
    if not bundle.whole:
        make_skeleton(making, bundle)
    with shown(lowers[0].root, above=lowers[0].root) as source:
        copy_tree(source, target)
    _make_shared(making)
    os.rename(making, root)


def _make_shared(root: str) -> None:
    """Make the mount points of the shared directories. In an image's files links are resolved as inside."""
    with closing_fd(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as top:
        for name in ("in", "out", "tty"):
            parts = f"{INSIDE}/{name}".split("/")
            for depth in range(1, len(parts)):
                above = open_in_root(top, "/".join(parts[:depth]) or "/", os.O_PATH | os.O_DIRECTORY)
                with closing_fd(above), suppress(FileExistsError):
                    os.mkdir(parts[depth], 0o755, dir_fd=above)
