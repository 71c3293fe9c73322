"""Disks that a test can have fail: real file systems, small, of which the kernel says what it says of real ones."""

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.expect import until

META_BYTES = 4 << 20
_SHUTDOWN = 0x8004587D
_WITHOUT_JOURNAL = 2
"""FS_IOC_SHUTDOWN of linux/fs.h, and that not even what was begun is finished."""


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def umount(path: str) -> None:
    """Unmount what is mounted there, when whoever was just killed is gone. Afterwards it is gone from sight in any
    case.
    """

    def unmounted() -> bool:
        return not os.path.ismount(path) or subprocess.run(["umount", path], capture_output=True).returncode == 0

    try:
        until(unmounted)
    except AssertionError:
        subprocess.run(["umount", "--lazy", path], check=True)
        raise


class Ext4:
    """An ext4 on a loop device."""

    def __init__(self, image: str, at: str, options: str) -> None:
        self.image, self.at, self.options = image, at, options

    def mount(self) -> None:
        mount("-o", f"loop,{self.options}", self.image, self.at)

    def again(self) -> None:
        """Take it off, check it, and put it back: what it holds now comes from the device."""
        umount(self.at)
        until(self._has_no_device)
        checked = subprocess.run(["e2fsck", "-fy", self.image], capture_output=True, text=True)
        assert checked.returncode in (0, 1), checked.stdout
        self.mount()

    def _has_no_device(self) -> bool:
        found = subprocess.run(["losetup", "-j", self.image], capture_output=True)
        return found.returncode == 0 and not found.stdout  # others' devices may go while it looks

    def cut_power(self) -> None:
        """Lose what is not on the disk yet. It has to be put back by `again`."""
        place = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(place, _SHUTDOWN, struct.pack("I", _WITHOUT_JOURNAL))
        finally:
            os.close(place)

    def become_read_only(self) -> None:
        """What the kernel does with a file system in which it finds an error, whoever has files open."""
        source = subprocess.run(
            ["findmnt", "-no", "SOURCE", self.at], capture_output=True, text=True, check=True
        ).stdout
        device = os.path.basename(source.strip())
        with contextlib.suppress(OSError):
            Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("a test\n")
        probe = Path(self.at, "probe")
        with pytest.raises(OSError, match="Read-only"):
            probe.touch()


@contextlib.contextmanager
def ext4(folder: str, at: str, size: str = "48M", *features: str, options: str = "") -> Iterator[Ext4]:
    """A file system at a directory, its image in another. `features` are those of mkfs, `options` those of mount."""
    image = f"{folder}/image"
    with open(image, "wb") as file:
        file.truncate(int(size[:-1]) << 20)
    words = ["mkfs.ext4", "-q", "-N", "4000", *features, "-E", "nodiscard,lazy_itable_init=0,root_owner=0:0", image]
    subprocess.run(words, check=True)
    disk = Ext4(image, at, f"errors=remount-ro{options}")
    disk.mount()
    os.chmod(at, 0o700)
    os.rmdir(f"{at}/lost+found")
    try:
        yield disk
    finally:
        umount(at)


class Thin(Ext4):
    """An ext4 that believes in more space than there is below it, so that it learns at the fsync that there is none."""

    def __init__(self, disk: Ext4, below: str) -> None:
        super().__init__(disk.image, disk.at, disk.options)
        self.filler = Path(below, "filler")

    def begin_to_fail(self) -> None:
        """From now on what is written to a place that was never written before is lost, and an fsync says so."""
        subprocess.run(["sync", "--file-system", self.at], check=True)  # no directory that is there is lost
        fill(self.filler)

    def work_again(self) -> None:
        self.filler.unlink()


@contextlib.contextmanager
def thin(below: str, at: str) -> Iterator[Thin]:
    mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", below)
    try:
        # Its own tables are not to be what fails. They are at its beginning, but for the places of a file that is in
        # more than four pieces, as one soon is of which parts are allocated and not written yet: so there is no such
        # state.
        with ext4(below, at, "48M", "-O", "^has_journal", options=",dioread_lock") as disk:
            with open(disk.image, "r+b") as image:
                content = image.read(META_BYTES)
                image.seek(0)
                image.write(content)
            yield Thin(disk, below)
    finally:
        umount(below)


def fill(path: Path) -> None:
    """Take all the space that there is."""
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2


def overwrite(path: str) -> None:
    """Fill a file with zeros, as another process: if one that has an event log open closed its file, the lock would be
    gone.
    """
    script = "import os, sys; size = os.stat(sys.argv[1]).st_size; open(sys.argv[1], 'r+b').write(bytes(size))"
    subprocess.run([sys.executable, "-c", script, path], check=True)
