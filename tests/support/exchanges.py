"""An enemy that no freezer holds: it has the user of a sandbox's files, and exchanges directories with links.

Each of its directories holds files as harmless as they look. Beside it lies a link of another name, to a directory of
the host that is closed to everybody but root, and holds files of the same names. The two change places again and again,
so that whoever looks at a name and goes there a moment later is led out.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

SECRET: Final = "what nobody but root may read"

PAIRS: Final = 1
FILES: Final = 20
"""In each directory. With few of both, whoever reads comes to an end often enough, and has been led out on his way."""

_EXCHANGE: Final = """
import ctypes, os, random, sys, time
top, uid, pairs, number = map(int, sys.argv[1:5])
most_s = float(sys.argv[5])
libc = ctypes.CDLL(None, use_errno=True)
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
names = [(b"d%d" % n, b"l%d" % n) for n in range(pairs)]
target = os.fsencode(sys.argv[-1])
number, top, flag = ctypes.c_long(number), ctypes.c_int(top), ctypes.c_uint(2)
for turn in range(1 << 60):
    for real, link in names:
        if most_s == 0:
            libc.mkdirat(top, real, 0o700)
            libc.mkdirat(top, real + b"/f0", 0o500)
            libc.symlinkat(target, top, link)
        libc.syscall(number, top, real, top, link, flag)
    if most_s > 0:
        time.sleep(random.uniform(0, most_s))
    if not turn:
        print("exchanging", flush=True)
"""
_RENAMEAT2: Final = {"x86_64": 316, "aarch64": 276, "riscv64": 276, "ppc64le": 357, "s390x": 347}


class Closed:
    """The directory of the host that the links lead to."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(mode=0o700)
        for number in range(FILES):
            (place / f"f{number}").write_text(SECRET)
            (place / f"f{number}").chmod(0o444)  # so that whoever gets a copy can read it, too
        os.chmod(place, 0o500)
        self._before = self._seen()

    def require_untouched(self) -> None:
        """Fail if anything was removed from it, added, or given another owner or mode."""
        assert self._seen() == self._before

    def changed(self) -> None:
        """Take what a test itself has changed there as what it is to be."""
        self._before = self._seen()

    def _seen(self) -> dict[str, tuple[int, int, int, int]]:
        found = [self.place, *(self.place / name for name in sorted(os.listdir(self.place)))]
        statuses = {str(path): path.lstat() for path in found}
        return {path: (at.st_mode, at.st_uid, at.st_gid, at.st_size) for path, at in statuses.items()}


def plant(top: Path, closed: Closed, uid: int, pairs: int = PAIRS, files: int = FILES) -> None:
    """Make what is exchanged, and give it to its user."""
    for number in range(pairs):
        directory, link = top / f"d{number}", top / f"l{number}"
        directory.mkdir()
        for name in range(files):
            (directory / f"f{name}").write_text("harmless")
            os.chown(directory / f"f{name}", uid, uid)
        directory.chmod(0o555)
        link.symlink_to(closed.place)
        for path in (directory, link):
            os.chown(path, uid, uid, follow_symlinks=False)


@contextmanager
def exchanged(top: Path, uid: int, pairs: int = PAIRS, most_s: float = 0.004) -> Iterator[None]:
    """Run it in a directory that it can write to, for the length of a block. It may be killed there.

    It rests for up to `most_s` after each turn: who reads then meets few errors, and may come to an end. Without a rest
    it makes anew what is removed, too.
    """
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        targets = [os.readlink(path) for path in (top / "d0", top / "l0") if path.is_symlink()]
        words = [fd, uid, pairs, _RENAMEAT2[os.uname().machine], most_s, *targets]
        with subprocess.Popen(
            [sys.executable, "-c", _EXCHANGE, *map(str, words)], pass_fds=[fd], stdout=subprocess.PIPE
        ) as enemy:
            assert enemy.stdout is not None
            assert enemy.stdout.readline() == b"exchanging\n"
            try:
                yield
            finally:
                with suppress(ProcessLookupError):
                    enemy.kill()
    finally:
        os.close(fd)
