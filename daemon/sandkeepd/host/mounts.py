"""Mounts that only one sandbox sees.

A thread that called `enter_private_namespace` has a mount table of its own, and so has every program that it starts;
the daemon's other threads, and the host, do not see these mounts, which vanish with the last program in the namespace.
Use only a thread that ends afterwards (`sandkeep.system.fresh_thread`).

Directories are named by descriptor (`/proc/self/fd/N`): they may lie at a path that the mounts made here hide, that is
too long for an option, or that holds a comma.
"""

import ctypes
import errno
import os
import re
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

from sandkeep.errors import SetupError
from sandkeep.system.descriptors import closing_fd
from sandkeepd.host.processes import in_fresh_thread, reap, spawn

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
NO_LINKS: Final = 0x200000
"""Flag of a detached mount: symbolic links are not followed, in any component of any path, for any process. This is
MOUNT_ATTR_NOSYMFOLLOW, of Linux 5.14; for mount(2) it has another value.
"""

TO_WRITE: Final = MS_NOSUID | MS_NODEV | MS_NOEXEC | NO_LINKS
TO_READ: Final = TO_WRITE | MS_RDONLY
"""Mount flags for programs that read files which hostile code made, or changes meanwhile."""

MS_REMOUNT: Final = 32
MS_NOATIME: Final = 1024
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MS_SLAVE: Final = 1 << 19
MS_SHARED: Final = 1 << 20

_CLONE_NEWNS: Final = 0x20000
_CLONE_FS: Final = 0x200
_AT_EMPTY_PATH: Final = 0x1000
_OPEN_TREE_CLONE: Final = 1
_MOVE_MOUNT_F_EMPTY_PATH: Final = 4
_MOUNT_ATTR_IDMAP: Final = 0x100000
_MOUNT_ATTRIBUTES: Final = struct.Struct("QQQQ")
_SYS_OPEN_TREE: Final = 428  # these five are the same on every architecture
_SYS_MOVE_MOUNT: Final = 429
_SYS_FSCONFIG: Final = 431
_SYS_FSPICK: Final = 433
_SYS_MOUNT_SETATTR: Final = 442

_FSPICK_CLOEXEC: Final = 1
_FSPICK_EMPTY_PATH: Final = 8
_FSCONFIG_SET_STRING: Final = 1
_FSCONFIG_CMD_RECONFIGURE: Final = 7

_WORD: Final = b"here\n"
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")
"""The kernel's escape of blanks and backslashes in its table of mounts."""

Mapped = tuple[int, int]
"""The uid and gid outside, and the one that they are seen as."""

MAX_CACHED_NAMESPACES: Final = 16
"""So many user namespaces are kept for the next mount that needs one."""

_cached: Final = OrderedDict[Mapped, int]()
_cache_lock: Final = threading.Lock()

_host_namespace: int | None = None
"""The mount namespace that this process has left."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """mount(2). Raises OSError."""
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else os.fsencode(options)
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), data), f"mount {kind or 'bind'} on {target}")


class Mount(NamedTuple):
    """A line of the kernel's table of mounts. `options` are those of the mount and of its file system."""

    device: int
    place: str
    kind: str
    options: tuple[frozenset[str], frozenset[str]]

    @property
    def is_writable(self) -> bool:
        """True if files can be written through it."""
        return all("rw" in options for options in self.options)


def listed(process: str = "thread-self") -> list[Mount]:
    """Return the mounts in the namespace of a process, by default of this thread. Raises OSError."""
    with open(f"/proc/{process}/mountinfo", "rb") as file:
        return [_parse(line) for line in file]


def _parse(line: bytes) -> Mount:
    first, _, second = line.partition(b" - ")
    _, _, device, _, place, options, *_ = first.split()
    kind, _, more = second.split(maxsplit=2)
    major, minor = map(int, device.split(b":"))
    both = (frozenset(os.fsdecode(options).split(",")), frozenset(os.fsdecode(more).strip().split(",")))
    unescaped = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), place)
    return Mount(os.makedev(major, minor), os.fsdecode(unescaped), kind.decode(), both)


def below(directory: str) -> list[str]:
    """The places in this thread's namespace at which something is mounted in or at `directory`, the deepest first."""
    found = [mount.place for mount in listed()]
    return sorted((place for place in found if f"{place}/".startswith(f"{directory}/")), key=len, reverse=True)


def of_device(device: int) -> list[str]:
    """Return the places in this thread's namespace at which a file system is mounted."""
    return [mount.place for mount in listed() if mount.device == device]


def unmount(place: str, *, lazily: bool = True) -> None:
    """Take a mount away: `lazily` also one that is in use, which is then written later. Raises OSError."""
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazily else 0)
    _check(_libc.umount2(os.fsencode(place), flags), f"umount {place}")


def enter_private_namespace(*, follow_host: bool = False) -> str:
    """Give the calling thread a mount namespace of its own, in which the host's mounts go on to appear and vanish if it
    is to follow. Answers an empty directory, of this namespace alone.
    """
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    mount("none", "/", None, MS_REC | (MS_SLAVE if follow_host else MS_PRIVATE))
    return _empty_directory()


def _empty_directory() -> str:
    return next(path for path in ("/mnt", "/tmp") if os.path.isdir(path))  # noqa: S108 - hidden by a tmpfs next


def leave_all() -> None:
    """Unmount everything in the private namespace of the calling thread, which sees no files afterwards: a program that
    outlives the thread in it would keep in use what the host unmounts meanwhile. Raises OSError.
    """
    try:
        unmount("/")
    except OSError:  # EINVAL for the root of a user namespace, which is locked until another one takes its place
        place = _empty_directory()
        mount_scratch(place)
        os.chdir(place)
        _check(_libc.pivot_root(b".", b"."), "pivot_root")
        unmount(".")


def leave_host_namespace() -> None:
    """Give the calling process, which has no other threads yet, a mount namespace in which the host's mounts go on to
    appear and vanish: what it mounts is copied into no namespace that others make meanwhile, where it would stay in
    use. Where the host's mounts are private, they are made shared for that, as systemd does. Nothing happens where that
    is not permitted.
    """
    global _host_namespace  # noqa: PLW0603 - one of the process
    with suppress(OSError):  # EPERM, or EINVAL in a chroot
        _host_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        if not _is_shared("/"):
            mount("none", "/", None, MS_REC | MS_SHARED)
        _check(_libc.unshare(_CLONE_NEWNS), "unshare")
        mount("none", "/", None, MS_REC | MS_SLAVE)


def in_host_namespace(work: Callable[[], None]) -> None:
    """Run `work` in a thread that is in the mount namespace of the first process, or, where that is closed to us, in
    the one that this process began in: what it mounts there is the host's, and outlives the daemon. Raises OSError.
    Blocks.
    """

    def enter_and_work() -> None:
        with ExitStack() as opened:
            namespace = _host_namespace
            with suppress(PermissionError):
                namespace = os.open("/proc/1/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, namespace)
            if namespace is not None:
                _check(_libc.unshare(_CLONE_FS), "unshare")  # else its working directory is the other threads', too
                _check(_libc.setns(namespace, _CLONE_NEWNS), "setns")
        work()

    in_fresh_thread(enter_and_work)


def _is_shared(place: str) -> bool:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        found = [line.partition(" - ")[0].split() for line in file]
    return any(option.startswith("shared:") for fields in found if fields[4] == place for option in fields[6:])


def mount_scratch(place: str) -> None:
    """Put a small empty filesystem over `place`, in which mount points can be made."""
    mount("sandkeep", place, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755,size=1m")


def open_path(path: str) -> int:
    """Open a path with O_PATH, for `at`. Call it in the namespace in which it is to be used."""
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def at(fd: int) -> str:
    """Return a path that refers to a descriptor."""
    return f"/proc/self/fd/{fd}"


def bind(source: str, target: str, flags: int) -> None:
    """Make `source` appear at `target`, restricted by `flags`."""
    mount(source, target, None, MS_BIND)
    mount("none", target, None, MS_BIND | MS_REMOUNT | flags)


def bind_mapped(binds: Sequence[tuple[str, str, int]], seen_as: int, *, again: bool = False) -> None:
    """Make each source appear at its target with the files of a uid and gid as `seen_as`'s. Raises OSError.

    Each mapping needs a user namespace. To make one takes a program, and some milliseconds: if the same will be wanted
    `again`, it is kept.
    """
    with ExitStack() as opened:
        mappings = [(owner, seen_as) for _, _, owner in binds]
        namespaces = _cached_namespaces(mappings, opened) if again else _make_namespaces(mappings, opened)
        for source, target, owner in binds:
            _bind_in(namespaces[owner, seen_as], source, target)


def _cached_namespaces(mappings: Sequence[Mapped], opened: ExitStack) -> dict[Mapped, int]:
    """Return a user namespace for each mapping, the cached or a new one; `opened` closes it. Raises OSError."""
    found = dict[Mapped, int]()
    with _cache_lock:
        for mapping in filter(_cached.__contains__, mappings):
            _cached.move_to_end(mapping)
            found[mapping] = os.dup(_cached[mapping])
            opened.callback(os.close, found[mapping])
    missing = [mapping for mapping in mappings if mapping not in found]
    if missing:
        made = _make_namespaces(missing, opened)
        found |= made
        with _cache_lock:
            for mapping, namespace in made.items():
                if mapping not in _cached:
                    _cached[mapping] = os.dup(namespace)
            while len(_cached) > MAX_CACHED_NAMESPACES:
                os.close(_cached.popitem(last=False)[1])
    return found


def _make_namespaces(mappings: Sequence[Mapped], opened: ExitStack) -> dict[Mapped, int]:
    """New ones, which come about at the same time."""
    made, different = dict[Mapped, int](), list(dict.fromkeys(mappings))
    with ExitStack() as ended, ExitStack() as begun:
        helpers = [_in_user_namespace(ended, begun) for _ in different]
        for mapping, (pid, output) in zip(different, helpers, strict=True):
            made[mapping] = _map_ids(pid, output, mapping)
            opened.callback(os.close, made[mapping])
    return made


def _bind_in(namespace: int, source: str, target: str) -> None:
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    with closing_fd(_syscall(_SYS_OPEN_TREE, "open_tree", -100, os.fsencode(source), flags)) as tree:
        _set_attributes(tree, _MOUNT_ATTR_IDMAP, namespace)
        _syscall(_SYS_MOVE_MOUNT, "move_mount", tree, b"", -100, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def _syscall(number: int, name: str, *arguments: object) -> int:
    return _check(_libc.syscall(number, *arguments), name)


def _map_ids(pid: int, output: int, mapping: Mapped) -> int:
    """Map a uid and gid in the user namespace of a program; return a descriptor of the namespace. Raises OSError."""
    if os.read(output, 100) != _WORD:
        raise OSError(errno.EPERM, "user namespaces are switched off")
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
            file.write(f"{mapping[0]} {mapping[1]} 1\n")
    return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def _in_user_namespace(ended: ExitStack, begun: ExitStack) -> tuple[int, int]:
    """Start a program that makes a user namespace; return its pid, and a pipe that holds `_WORD` once it has."""
    reading, writing = os.pipe()
    output, its_output = os.pipe()
    for fd in (reading, writing, output):
        begun.callback(os.close, fd)
    try:
        os.write(writing, _WORD)
        child = spawn(["unshare", "--user", "cat"], stdin=reading, output=its_output)
    finally:
        os.close(its_output)  # so that its output ends when it does
    ended.callback(reap, child)
    return child, output


def detached(directory: int, flags: int) -> int:
    """Clone the mount of an open directory, restricted by `flags`: MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, NO_LINKS.

    Returns a descriptor of the same directory, on a mount that no namespace shows and that lives as long as descriptors
    of files on it do. Files opened below it keep these restrictions, even if a receiver of the descriptor reopens them
    through ``/proc/self/fd``. Takes 14 µs. Needs CAP_SYS_ADMIN. Raises OSError.
    """
    tree = _syscall(_SYS_OPEN_TREE, "open_tree", directory, b"", _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH)
    try:
        _set_attributes(tree, flags)  # the flags of mount(2) have the same values as MOUNT_ATTR_…
    except BaseException:
        os.close(tree)
        raise
    return tree


def open_detached(path: str, flags: int) -> int:
    """Open a directory, not a link, on a detached mount. Raises OSError; `not_supported` before Linux 5.14."""
    with ExitStack() as opened:
        place = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, place)
        try:
            tree = detached(place, flags)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            message = "files of sandboxes are read and removed on mounts without symbolic links: that needs Linux 5.14"
            raise SetupError("not_supported", message) from None
        opened.callback(os.close, tree)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)  # a place cannot be listed


def _set_attributes(tree: int, attributes: int, namespace: int = 0) -> None:
    packed = _MOUNT_ATTRIBUTES.pack(attributes, 0, 0, namespace)
    _syscall(_SYS_MOUNT_SETATTR, "mount_setattr", tree, b"", _AT_EMPTY_PATH, packed, ctypes.c_size_t(len(packed)))


def reconfigure(root: int, options: Mapping[str, str]) -> None:
    """Replace the specific options of the filesystem whose root is open. Needs CAP_SYS_ADMIN. Raises OSError."""
    with closing_fd(_syscall(_SYS_FSPICK, "fspick", root, b"", _FSPICK_CLOEXEC | _FSPICK_EMPTY_PATH)) as context:
        for name, value in options.items():
            _syscall(_SYS_FSCONFIG, "fsconfig", context, _FSCONFIG_SET_STRING, name.encode(), value.encode(), 0)
        _syscall(_SYS_FSCONFIG, "fsconfig", context, _FSCONFIG_CMD_RECONFIGURE, None, None, 0)


def overlay_read_only(lowers: Sequence[str], target: str) -> None:
    """Mount directories at `target` as a read-only overlay, each over the next."""
    options = f"lowerdir={':'.join(lowers)},redirect_dir=nofollow,metacopy=off,index=off"
    mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV | MS_RDONLY, options)


def overlay(lower: str, upper: str, work: str, target: str) -> None:
    """Mount `upper` over `lower` at `target`."""
    mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, overlay_options(lower, upper, work))


def overlay_options(lower: str, upper: str, work: str) -> str:
    """Return the options of an overlay: they keep a hostile upper from leading elsewhere."""
    return f"lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=nofollow,metacopy=off"
