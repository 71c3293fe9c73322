"""Disks of sandboxes: file systems of a limited size, each in an image of its own.

A sandbox for which a size was asked gets an ext4 in the file ``disks/SANDBOX``, mounted by a loop device at its
directory, so that all that the code inside can write to, its journals included, lies on it: at the limit writers get
ENOSPC, also for files that were unlinked, mapped or handed to another process. The image's blocks are allocated before
the sandbox is made, so a promised byte is there even when the host's disk is full.

The loop device is freed by the kernel with the last mount of it, so none outlives a crash. Everything here blocks.
"""

import errno
import fcntl
import logging
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import islice
from typing import Final

from sandkeep import failpoints
from sandkeep.errors import DaemonError, ProviderError, SandkeepError, StateError
from sandkeep.model import Capability
from sandkeep.system.descriptors import closing_fd
from sandkeepd.host import blocks, loops, mounts
from sandkeepd.host.processes import in_fresh_thread, run_tool
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.keeper.shared_directory import SPARE
from sandkeepd.providers.common.errors import stderr_of
from sandkeepd.providers.common.layout import MANY, OWN_TRASH, TEMPORARY, Layout
from sandkeepd.providers.common.tree_copies import copy_tree
from sandkeepd.providers.common.views import shown

logger: Final = logging.getLogger("sandkeepd")

_JOURNALED_BYTES: Final = 16 * 1024**2
"""Minimum size with a journal, which takes 4 to 64 MiB."""

_DAEMONS_BYTES: Final = 2 * 1024**2
"""Bytes that only root can use, for what the daemon hands in when the code inside has filled the disk."""

_BLOCK: Final = 4096
_CAP_SYS_RESOURCE: Final = 24
_64BIT: Final = 0x80
_EXT4_IOC_RESIZE_FS: Final = 0x40086610
_PROBED_BYTES: Final = 1024**2
_ANSWERS_BYTES: Final = 1024**2
_BYTES_OF_INODE: Final = 8192
_SPARE_INODES: Final = 128
_LONG_NAMES: Final = 150
"""So many names of 255 bytes take 10 blocks, which hold the journals of some 200 processes."""

_DAMAGE: Final = tuple(map(os.strerror, (errno.EINVAL, errno.EUCLEAN, errno.EBADMSG, errno.EIO)))
"""In messages of mount(2), and of programs that read files."""

_OPTIONS: Final = "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0"
_FLAGS: Final = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOATIME
_SIZES: Final = 4
"""File systems whose formatted blocks are kept, of up to 6 MB each: formatting takes 20 ms more than writing them."""


def why_not_growing() -> str | None:
    """Return the reason why disks cannot grow; None if they can."""
    with open("/proc/self/status", "rb") as file:
        [effective] = (int(line.split()[1], 16) for line in file if line.startswith(b"CapEff:"))
    if effective >> _CAP_SYS_RESOURCE & 1:
        return None
    return "the daemon lacks the capability CAP_SYS_RESOURCE"


class Disks:
    """The disks of one state directory. With `for_engine`, those of containers: an engine has to see their mounts,
    which are the host's then, and outlive the daemon.
    """

    def __init__(self, layout: Layout, *, for_engine: bool = False) -> None:
        self._layout = layout
        self._for_engine = for_engine

    def make(self, sandbox_id: str, size: int) -> None:
        """Make a disk of `size` bytes, and mount it at the sandbox's directory.

        Raises `storage_unavailable` when the host has not so much to promise, and `provider_unavailable`.
        """
        image, place = self._layout.disk(sandbox_id), self._layout.sandbox(sandbox_id)
        os.makedirs(place, mode=0o700, exist_ok=True)
        self._layout.discard([f"{place}/out"])  # of one that was never made
        _allocate(image, size)
        failpoints.reach("disk.allocated")
        formatted = _formatted(self._layout.trash, size)
        with _opened(image) as fd:
            for offset, data in formatted:
                os.pwrite(fd, data, offset)
            if not self._for_engine:
                _mount(fd, place, sandbox_id, is_new=True)
        if self._for_engine:
            self.attach(sandbox_id)
            os.makedirs(self._layout.volumes(sandbox_id), mode=0o701, exist_ok=True)
        failpoints.reach("disk.mounted")

    def attach(self, sandbox_id: str) -> None:
        """Mount a disk that was made before, unless it is mounted. Raises `provider_unavailable`."""
        if self._for_engine:
            mounts.in_host_namespace(partial(self._attach, sandbox_id))
        self._attach(sandbox_id)  # the host's mount is here, too, unless it is in a part of the tree that shares none

    def _attach(self, sandbox_id: str) -> None:
        place = self._layout.sandbox(sandbox_id)
        if not os.path.ismount(place):
            os.makedirs(place, mode=0o700, exist_ok=True)
            with _opened(self._layout.disk(sandbox_id)) as image:
                _mount(image, place, sandbox_id)

    def attach_all(self) -> None:
        """Mount all disks, after a reboot or in a new mount namespace. What cannot be mounted is logged."""
        for sandbox_id in self._layout.disks():
            try:
                self.attach(sandbox_id)
            except (OSError, SandkeepError) as error:  # the daemon starts in any case
                logger.warning("the disk of sandbox %s cannot be mounted: %s", sandbox_id, error)

    def reserve(self, sandbox_id: str, size: int) -> None:
        """Reserve the bytes of a disk that is about to grow to `size`, which `fit` then does. Raises
        `storage_unavailable`, and `not_ready` if it is gone.
        """
        with _opened(self._layout.disk(sandbox_id)) as image:
            before = os.fstat(image).st_size
            try:
                _reserve(image, before, size)
            except DaemonError:
                os.ftruncate(image, before)
                raise

    def fit(self, sandbox_id: str, size: int) -> None:
        """Let a disk be of the recorded `size`: grow it, and return bytes that were reserved beyond. Safe to repeat,
        and while the disk is written to. Raises `provider_unavailable`, and `not_ready` if it is gone.
        """
        self.attach(sandbox_id)
        try:
            with _opened(self._layout.disk(sandbox_id)) as image, _opened(self._layout.sandbox(sandbox_id)) as root:
                _fit(image, root, size)
                found = os.fstat(image)
                if found.st_blocks * 512 < size:  # the kernel clears new inode tables by punching holes into the image
                    blocks.reserve(image, size)
        except OSError as error:
            message = f"the sandbox's disk cannot grow: {error.strerror}"
            raise ProviderError("provider_unavailable", message) from None

    def release(self, sandbox_id: str) -> None:
        """Move the journals of an ended sandbox to the host's disk, and remove its own. Safe to repeat.

        Raises `storage_unavailable` and `provider_unavailable`; nothing is lost then.
        """
        if not self._layout.has_disk(sandbox_id):
            return
        try:
            self.attach(sandbox_id)
        except SandkeepError as error:
            if not _is_damaged(error):  # such as no loop device, or no memory: the output is there still
                raise
            # never formatted, as the daemon died; or damaged beyond reading
            logger.warning("the disk of sandbox %s is lost with its output: %s", sandbox_id, error)
        else:
            try:
                self._move_output(sandbox_id)
            except DaemonError:  # the host has no room
                self._give_room(sandbox_id)
                self._move_output(sandbox_id)
            failpoints.reach("disk.emptied")
            self._detach(sandbox_id)
        with suppress(FileNotFoundError):
            os.unlink(self._layout.read_mark(sandbox_id))
        os.unlink(self._layout.disk(sandbox_id))

    def _detach(self, sandbox_id: str) -> None:
        """Unmount a disk, also from what an engine sees of it."""
        place = self._layout.sandbox(sandbox_id)
        if os.path.isdir(self._layout.volumes(sandbox_id)):
            device = os.stat(place).st_dev
            mounts.in_host_namespace(partial(_unmount_all, device))
            _unmount_all(device)
        else:
            mounts.unmount(place)

    def _give_room(self, sandbox_id: str) -> None:
        """Give the host the room of an ended sandbox's files, all but the journals."""
        place = self._layout.sandbox(sandbox_id)
        self._layout.discard([f"{place}/{name}" for name in TEMPORARY if name != OWN_TRASH])
        _run(["sync", "--file-system", "--", place], "synced")  # blocks are given back once the removal is committed
        _run(["fstrim", "--", place], "trimmed")

    def _move_output(self, sandbox_id: str) -> None:
        """Copy the journals to the directory beneath the mount, where they appear when that is gone."""
        place = self._layout.sandbox(sandbox_id)
        copy, earlier = self._layout.output_copy(sandbox_id), f"{self._layout.trash}/earlier-{sandbox_id}"
        if not os.path.isdir(f"{place}/out"):
            return
        self._layout.discard([copy, earlier])
        try:
            # FIFOs and links would be opened by `sync`, and links lead to files of the host
            self._layout.remove_all_but_journals(sandbox_id)
            with shown(f"{place}/out", above=place) as source:
                copy_tree(source, copy)
        except (OSError, ProviderError) as error:
            if not _is_damaged(error):
                raise
            logger.warning("output of sandbox %s is lost in part, as its disk is damaged: %s", sandbox_id, error)
            if not os.path.isdir(copy):
                return
        _sync(copy)
        copied, aside, target = (
            os.path.relpath(path, self._layout.state_dir) for path in (copy, earlier, f"{place}/out")
        )
        # Without what is mounted below it.
        with closing_fd(mounts.open_detached(self._layout.state_dir, mounts.TO_WRITE)) as state:
            with suppress(FileNotFoundError):  # of a daemon that died before the disk was removed
                os.rename(target, aside, src_dir_fd=state, dst_dir_fd=state)
            os.rename(copied, target, src_dir_fd=state, dst_dir_fd=state)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            with closing_fd(os.open(os.path.dirname(target), flags, dir_fd=state)) as beneath:
                os.fsync(beneath)
        self._layout.discard([earlier])


def reserve_answers(answers: int, size: int) -> None:
    """Reserve room in the open file of the keeper's answers, on a disk of that size. Raises OSError."""
    blocks.reserve(answers, min(_ANSWERS_BYTES, size // 64))


def probe(directory: str) -> Capability:
    """Try to make a disk in a directory."""
    try:
        _formatted.__wrapped__(directory, _PROBED_BYTES)
    except (OSError, SandkeepError) as error:
        return Capability(works=False, why=f"sandboxes cannot have a disk of their own: {error}")
    return Capability(works=True)


@lru_cache(_SIZES)
def _formatted(directory: str, size: int) -> list[tuple[int, bytes]]:
    """Return the blocks, other than zeros, of a new file system, with their offsets; it is made in a directory.

    It holds the trash, the spare inodes, and the journals' directory. That has room for names, so that a command which
    removes files still runs, and its exit code is recorded, when the disk is full. Raises `provider_unavailable`.
    """
    with unnamed_file(directory) as image:
        os.truncate(image, size)
        is_journaled = size >= _JOURNALED_BYTES
        journal = ["-J", f"size={max(4, min(64, size >> 27))}"] if is_journaled else ["-O", "^has_journal"]
        roots = f"{min(5, 100 * _DAEMONS_BYTES / size):.4f}"
        argv = [
            "mke2fs", "-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-i", str(_BYTES_OF_INODE), "-m", roots,
            "-E", _OPTIONS, *journal, mounts.at(image),
        ]  # fmt: skip
        _run(argv, "formatted", image)
        in_fresh_thread(lambda: _furnish(image, size))
        return list(_blocks_with_data(image))


def _furnish(image: int, size: int) -> None:
    """Make the directories of a new file system. The calling thread is left in a mount namespace of its own, so that
    no other keeps the mount.
    """
    place = mounts.enter_private_namespace()
    _mount(image, place, is_new=True)
    try:
        for path, mode in ((OWN_TRASH, 0o700), (SPARE, 0o700), ("out", 0o755), ("out/p", 0o755)):
            os.mkdir(f"{place}/{path}", mode)
        for number in range(min(_SPARE_INODES, size // _BYTES_OF_INODE // 8)):
            os.mknod(f"{place}/{SPARE}/{number}")
        names = [f"{place}/out/p/{number:0>255}" for number in range(min(_LONG_NAMES, size // 2**16))]
        for name in names:
            os.mknod(name)
        for name in names:
            os.unlink(name)  # a directory of ext4 keeps its blocks
    finally:
        mounts.unmount(place, lazily=False)  # all is written to the image then


def _blocks_with_data(fd: int) -> Iterator[tuple[int, bytes]]:
    end = 0
    while True:
        try:
            begin = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(fd, begin, os.SEEK_HOLE)
        yield begin, os.pread(fd, end - begin, begin)


def _mount(image: int, place: str, sandbox_id: str = "", *, is_new: bool = False) -> None:
    try:
        with loops.attached(image, f"sandkeep {sandbox_id}", is_new=is_new) as device:
            mounts.mount(device, place, "ext4", _FLAGS, "noinit_itable")
    except OSError as error:
        message = f"the sandbox's disk cannot be mounted: {error}"
        raise ProviderError("provider_unavailable", message) from None


def _unmount_all(device: int) -> None:
    """Unmount a file system wherever it is mounted in the namespace of this thread, with all that is mounted on it."""
    for place in mounts.of_device(device):
        for each in mounts.below(place):
            mounts.unmount(each)


def _allocate(image: str, size: int) -> None:
    """Make a file with all its blocks allocated. Raises `storage_unavailable` where there is no room."""
    with closing_fd(os.open(image, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)) as fd:
        try:
            _reserve(fd, 0, size)
        except DaemonError:
            os.unlink(image)
            raise


def _reserve(fd: int, before: int, size: int) -> None:
    """Allocate all blocks of a file whose first `before` bytes have theirs. Raises `storage_unavailable`."""
    more = size - before
    if more <= 0:
        return
    try:
        free = os.fstatvfs(fd)
        if more > free.f_bavail * free.f_frsize:  # root could take what is reserved for the system
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(fd, before, more)
    except OSError as error:
        words = f"{more} bytes for the sandbox's disk cannot be reserved ({error.strerror})"
        raise DaemonError("storage_unavailable", f"{words}: ask for a smaller --disk, or make room") from None


def _fit(image: int, root: int, size: int) -> None:
    device = loops.device_of(os.fstat(root).st_dev)
    with _opened(device) as loop:
        blocks, length = _blocks(loop), os.fstat(image).st_size
        if length == size and blocks == size // _BLOCK:
            return
        if length > size >= blocks * _BLOCK:  # reserved, and never recorded
            os.ftruncate(image, size)
        loops.fit(loop)
    failpoints.reach("disk.extended")
    if blocks < size // _BLOCK:
        fcntl.ioctl(root, _EXT4_IOC_RESIZE_FS, struct.pack("Q", size // _BLOCK))
        roots = min(size // _BLOCK // 20, _DAEMONS_BYTES // _BLOCK)
        with suppress(SandkeepError):  # the kernel has reserved the same share of what is new: more than needed
            _run(["tune2fs", "-r", str(roots), device], "tuned")


def _blocks(device: int) -> int:
    """Return the number of blocks of the ext4 on a device, from its superblock."""
    superblock = os.pread(device, 1024, 1024)
    low, high = struct.unpack_from("<I", superblock, 0x4)[0], struct.unpack_from("<I", superblock, 0x150)[0]
    has_high = struct.unpack_from("<I", superblock, 0x60)[0] & _64BIT
    return int(low | (high << 32 if has_high else 0))


@contextmanager
def _opened(path: str) -> Iterator[int]:
    mode = os.O_RDWR if os.path.isfile(path) else os.O_RDONLY
    try:
        fd = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise StateError("not_ready", "the sandbox's disk is gone: create another") from None
    with closing_fd(fd):
        yield fd


def _sync(directory: str) -> None:
    """Fsync journals, or all of the host's file system if there are so many that it is sooner done."""
    with os.scandir(f"{directory}/p") as entries:
        is_many = len(list(islice(entries, MANY))) == MANY
    if is_many:
        _run(["sync", "--file-system", "--", directory], "synced")
    else:
        _run(
            ["find", directory, "(", "-type", "f", "-o", "-type", "d", ")", "-exec", "sync", "--", "{}", "+"], "synced"
        )


def _is_damaged(error: Exception) -> bool:
    """Return True if the kernel has found a disk to be damaged, or to be none."""
    return any(sign in str(error) for sign in _DAMAGE)


def _run(argv: list[str], done_to_it: str, *descriptors: int) -> None:
    done = run_tool(argv, timeout_s=120, descriptors=descriptors)
    if done.returncode:
        raise ProviderError("provider_unavailable", f"the sandbox's disk cannot be {done_to_it}: {stderr_of(done)}")
