"""Loop devices, by which a file is a block device. Source: include/uapi/linux/loop.h. Everything here blocks."""

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob
from typing import Final

from sandkeep.system.descriptors import closing_fd

_MAJOR: Final = 7
_CONFIGURE: Final = 0x4C0A
_GET_STATUS: Final = 0x4C05
_SET_CAPACITY: Final = 0x4C07
_GET_FREE: Final = 0x4C82
_AUTOCLEAR: Final = 4

_CONFIGURATION: Final = struct.Struct("=II 52x I 64s 112x 64x")
"""struct loop_config: descriptor, block size (0 is the file's own choice), and of its loop_info64 flags and name."""

_STATUS: Final = struct.Struct("=8x Q 40x 64s 112x")
"""struct loop_info64: inode and name."""

_ATTEMPTS: Final = 64
"""Others can take the device that was free."""


@contextmanager
def attached(file: int, name: str, *, is_new: bool) -> Iterator[str]:
    """Give an open file a loop device, which the kernel frees with its last user; yield the device's path.

    A file that has one, as only one that `is_new` has surely none, keeps it: two file systems on the same blocks would
    destroy each other. It is found again by the `name`, of up to 64 bytes, and the inode; the device of the inode is no
    sign, as btrfs has several. Needs Linux 5.8. Raises OSError.
    """
    device = None if is_new else _found(name.encode(), os.fstat(file).st_ino)
    with closing_fd(_made(name.encode(), file) if device is None else device) as device:
        yield device_of(os.fstat(device).st_rdev)


def _found(name: bytes, inode: int) -> int | None:
    for sign in glob("/sys/block/loop*/loop"):
        try:
            device = os.open(f"/dev/{sign.split('/')[3]}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # it was freed meanwhile
            continue
        with suppress(OSError):
            its_inode, its_name = _STATUS.unpack(fcntl.ioctl(device, _GET_STATUS, bytes(_STATUS.size)))
            if (its_inode, its_name.rstrip(b"\0")) == (inode, name):
                return device
        os.close(device)
    return None


def _made(name: bytes, file: int) -> int:
    asked = _CONFIGURATION.pack(file, 0, _AUTOCLEAR, name)
    with closing_fd(os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)) as control:
        for _ in range(_ATTEMPTS):
            device = os.open(f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, asked)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device
    raise OSError(errno.EBUSY, "others take every loop device")


def device_of(number: int) -> str:
    """Return the path of the loop device with this `st_dev`. Raises OSError if it is none."""
    if os.major(number) != _MAJOR:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    return "/dev/" + os.readlink(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").rpartition("/")[2]


def fit(device: int) -> None:
    """Let an open loop device be of its file's size. Raises OSError."""
    fcntl.ioctl(device, _SET_CAPACITY)
