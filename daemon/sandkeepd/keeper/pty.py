"""The pseudo-terminals of a sandbox: how many there may be, and those for viewers, which are made in the sandbox's own
devpts, so that their names mean the same inside.
"""

import errno
import fcntl
import os
import stat
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sandkeep.errors import ProviderError
from sandkeepd.host import mounts

MAX_TERMINALS: Final = 128
"""Maximum number of terminals of a sandbox at a time. The kernel has 4,096 for all on the machine (`kernel.pty.max`),
of which it keeps 1,024 for the host.
"""

_PTMX: Final = os.makedev(5, 2)
_UNLOCK: Final = 0x40045431  # TIOCSPTLCK
_NUMBER: Final = 0x80045430  # TIOCGPTN
_PEER: Final = 0x5441  # TIOCGPTPEER


def open_pty(root: str, owner: tuple[int, int] | None, rows: int, cols: int) -> tuple[int, int]:
    """Make a pseudo-terminal below `root`, the root directory of a process. Answers its controlling side, which does
    not block, and its number.

    The other side is given to `owner`, and opened by nobody: while that is so after it was closed, the terminal is
    gone; see `open_peer`. Raises
    `provider_unavailable` where there is no devpts, or no more terminals.
    """
    try:
        with _open_devpts(root) as (pts, ptmx):
            if not stat.S_ISCHR(os.fstat(ptmx).st_mode) or os.fstat(ptmx).st_rdev != _PTMX:
                raise ProviderError("provider_unavailable", "the sandbox has no /dev/pts/ptmx: no viewer can attach")
            flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(f"/proc/self/fd/{ptmx}", flags)
            try:
                return fd, _prepare(fd, pts, owner, rows, cols)
            except BaseException:
                os.close(fd)
                raise
    except OSError as error:
        message = f"cannot open a pseudo-terminal in the sandbox: {error.strerror}"
        if error.errno == errno.ENOSPC:
            message = f"the sandbox has its maximum of {MAX_TERMINALS} terminals: end processes that have one open"
        raise ProviderError("provider_unavailable", message) from None


def open_peer(fd: int) -> int:
    """Open the other side of a pseudo-terminal, by no name. Code inside can open and close that before the viewer
    does, and the terminal would be gone.
    """
    return fcntl.ioctl(fd, _PEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def limit_terminals(pid: int) -> None:
    """Limit a sandbox to `MAX_TERMINALS`, by a process in it. Takes 0.2 ms. Safe to repeat. Raises OSError."""
    try:
        with _open_devpts(f"/proc/{pid}/root") as (pts, _):
            number = os.fstat(pts).st_dev
            options = _options(pid, f"{os.major(number)}:{os.minor(number)}")
            if options is not None and number != os.stat("/dev/pts").st_dev:
                mounts.reconfigure(pts, {**options, "max": str(MAX_TERMINALS)})
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return  # in gVisor's kernel they are nobody else's


def _options(pid: int, number: str) -> dict[str, str] | None:
    """Return the options of the devpts that a process sees, None without one. Options not set again are reset."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            kind, _, options = line.rpartition(" - ")[2].split(" ", 2)
            if line.split()[2] == number and kind == "devpts":
                pairs = (option.partition("=") for option in options.strip().split(","))
                return {name: value for name, equals, value in pairs if equals}
    return None


@contextmanager
def _open_devpts(root: str) -> Iterator[tuple[int, int]]:
    """Descriptors of ``dev/pts`` and of ``ptmx`` in it, as places only, reached through no link."""
    opened: list[int] = []
    directory = os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY
    try:
        opened.append(os.open(root, directory))  # a link of the kernel's own
        for name in ("dev", "pts"):
            opened.append(os.open(name, directory | os.O_NOFOLLOW, dir_fd=opened[-1]))
        opened.append(os.open("ptmx", os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=opened[-1]))
        yield opened[-2], opened[-1]
    finally:
        for fd in opened:
            os.close(fd)


def _prepare(fd: int, pts: int, owner: tuple[int, int] | None, rows: int, cols: int) -> int:
    fcntl.ioctl(fd, _UNLOCK, struct.pack("i", 0))
    number: int = struct.unpack("I", fcntl.ioctl(fd, _NUMBER, b"\0" * 4))[0]
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
    if owner is not None:
        os.chown(str(number), owner[0], -1, dir_fd=pts, follow_symlinks=False)
    return number
