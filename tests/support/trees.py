"""Directory trees for the tests of archives: made and changed at random, and compared in all that they hold."""

import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from sandkeep_store.archives.trees.pack import PackedArchive, write
from sandkeep_store.archives.trees.tree import Overlay, Tree

NAMES = [b"a", b"b", b"c", b"-x", b".w", b"h\xff", b"n\nl", "\u00fc".encode(), b"long" * 60]
MODES = [0o644, 0o755, 0o600, 0o444, 0o000]
SECOND = 1_000_000_000


def described(top: str | bytes, *, links: bool = True) -> dict[bytes, Any]:
    """All that an archive keeps of a tree, by path."""
    top = os.fsencode(top)
    found: dict[bytes, Any] = {}
    groups: dict[tuple[int, int], list[bytes]] = {}
    for directory, names, files in os.walk(top):
        for name in [b"", *names, *files]:
            path = os.path.join(directory, name) if name else directory
            if name in names and not os.path.islink(path):
                continue
            place = os.path.relpath(path, top)
            found[place] = _one(path)
            status = os.lstat(path)
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                groups.setdefault((status.st_dev, status.st_ino), []).append(place)
    if links:
        found[b"//links"] = sorted(sorted(group) for group in groups.values() if len(group) > 1)
    return found


def _one(path: bytes) -> Any:
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFLNK:
        return "symlink", os.readlink(path)
    xattrs = {name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")}
    told = (oct(stat.S_IMODE(status.st_mode)), status.st_mtime_ns, xattrs)
    if kind == stat.S_IFREG:
        with open(path, "rb") as file:
            return "file", status.st_size, hashlib.sha256(file.read()).hexdigest()[:8], *told
    return oct(kind), *told


class Gardener:
    """Makes and changes trees, by what a random number says."""

    def __init__(self, top: str, random: Random) -> None:
        self.top = os.fsencode(top)
        self._random = random

    def work(self, times: int) -> None:
        """Do so many things, and give everything a time of its own."""
        kinds = [self.write, self.write, self.directory, self.remove, self.link, self.hard_link, self.mode, self.xattr]
        kinds += [self.replace, self.fifo, self.holes, self.anew]
        for _ in range(times):
            with suppress(OSError):  # it is in the way of itself
                self._random.choice(kinds)()
        for directory, names, files in os.walk(self.top):
            for name in [*names, *files]:
                path = os.path.join(directory, name)
                if self._random.random() < 0.3 and os.lstat(path).st_mtime_ns > 10**18:
                    when = self._random.randrange(10**18)
                    os.utime(path, ns=(when, when), follow_symlinks=False)

    def place(self) -> bytes:
        """A path, of something that is there or not: below the top, also when its links are followed."""
        path = os.path.join(self.top, *self._random.choices(NAMES, k=self._random.randint(1, 3)))
        directory = os.path.realpath(os.path.dirname(path))
        if (directory + b"/").startswith(os.path.realpath(self.top) + b"/"):
            return path
        raise OSError(f"{path!r} leads out of the tree")

    def there(self) -> bytes:
        """Something that is there."""
        found = [os.path.join(at, name) for at, names, files in os.walk(self.top) for name in [*names, *files]]
        return self._random.choice(sorted(found)) if found else self.top

    def write(self) -> None:
        path = self.place()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(os.open(path, NEW | os.O_NONBLOCK, 0o644), "wb") as file:  # there may be a pipe
            file.write(self._random.randbytes(self._random.choice([0, 1, 511, 512, 513, 5000])))

    def directory(self) -> None:
        os.makedirs(self.place())

    def remove(self) -> None:
        clear(self.there(), keep=self.top)

    def anew(self) -> None:
        path = self.there()
        if os.path.isdir(path) and not os.path.islink(path) and path != self.top:
            clear(path)
            os.mkdir(path)
            with open(os.path.join(path, b"new"), "wb") as file:
                file.write(b"new")

    def replace(self) -> None:
        path = self.there()
        if path == self.top:
            return
        was_directory = os.path.isdir(path) and not os.path.islink(path)
        clear(path)
        if was_directory:
            with open(path, "wb") as file:
                file.write(b"was a directory")
        else:
            os.mkdir(path)

    def link(self) -> None:
        targets = [b"a", b"../b", b"/nowhere/passwd", b"nowhere/at/all", b"t" * 150, b"."]
        os.symlink(self._random.choice(targets), self.place())

    def hard_link(self) -> None:
        source = self.there()
        if os.path.isfile(source) or os.path.islink(source):
            os.link(source, self.place(), follow_symlinks=False)

    def mode(self) -> None:
        path = self.there()
        if not os.path.islink(path):
            os.chmod(path, self._random.choice(MODES if not os.path.isdir(path) else [0o755, 0o700, 0o1777, 0o555]))

    def xattr(self) -> None:
        path = self.there()
        if (os.path.isfile(path) and not os.path.islink(path)) or (os.path.isdir(path) and not os.path.islink(path)):
            os.setxattr(path, b"user." + self._random.choice([b"k", b"k=%", b"\xfe"]), self._random.randbytes(5))

    def fifo(self) -> None:
        os.mkfifo(self.place())

    def holes(self) -> None:
        path = self.place()
        with open(path, "xb") as file:
            for at in sorted(self._random.sample(range(40), 3)):
                file.seek(at * 65536)
                file.write(self._random.randbytes(100))
            file.truncate(self._random.choice([file.tell(), 50 * 65536]))


def clear(path: bytes, keep: bytes = b"") -> None:
    """Remove whatever is there."""
    if path == keep:
        return
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


@contextmanager
def overlay(lower: list[str], upper: str, work: str, at: str) -> Any:
    """Directories over each other, the uppermost of `lower` first, for the length of a block."""
    from sandkeepd.host import mounts

    options = f"lowerdir={':'.join(lower)},upperdir={upper},workdir={work},redirect_dir=nofollow,metacopy=off"
    mounts.mount("overlay", at, "overlay", 0, options)
    try:
        yield
    finally:
        mounts.unmount(at)


@contextmanager
def opened(path: str, flags: int = os.O_RDONLY) -> Any:
    """A descriptor, for the length of a block."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


NEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


def pack_layer(upper: int, output: int, *, overlay: Overlay, exclude: Sequence[bytes] = ()) -> PackedArchive:
    """Write a layer of what the upper directory of an overlay changes of what is below it."""
    source = Tree(upper, exclude=exclude, overlay=overlay)
    return write(source, output, "gzip", source.remarks)
