"""Images for tests, made without a registry: from the static busybox, or from this machine's own programs."""

import io
import os
import subprocess
import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

TOOLS = (
    "bash",
    "dash",
    "coreutils",
    "util-linux",
    "mount",
    "findutils",
    "grep",
    "sed",
    "tar",
    "procps",
    "tmux",
    "ncurses-base",
    "libc-bin",
)
"""The packages whose programs are in the image that stands for a Debian."""

PYTHON = ("python3.11-minimal", "libpython3.11-minimal")

_LINKS = ("bin", "sbin", "lib", "lib64")

_WANTED = (
    "/bin/",
    "/sbin/",
    "/usr/bin/",
    "/usr/sbin/",
    "/lib/terminfo/",
    "/usr/lib/terminfo/",
    "/usr/share/terminfo/",
    "/usr/lib/locale/",
    "/usr/lib/python3",
)

ETC = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nguest:x:1234:1234:guest:/home/guest:/bin/sh\n",
    "etc/group": "root:x:0:\nguest:x:1234:\n",
}


@cache
def busybox() -> bytes:
    """A tar archive with busybox, its applets, and a workspace that anybody may write."""
    program = Path("/bin/busybox" if os.path.exists("/bin/busybox") else "/usr/bin/busybox").read_bytes()
    applets = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    archive = _Archive()
    archive.file("bin/busybox", program, 0o755)
    for applet in applets:
        if applet != "busybox":
            archive.link(f"bin/{applet}", "busybox")
    return archive.finish()


@cache
def bare() -> bytes:
    """A tar archive of an image that has no shell: a few applets of busybox, each a program of its own name."""
    program = Path("/bin/busybox" if os.path.exists("/bin/busybox") else "/usr/bin/busybox").read_bytes()
    archive = _Archive()
    for applet in ("cat", "echo", "sleep", "false", "head", "yes", "id", "ls"):
        archive.file(f"bin/{applet}", program, 0o755)
    return archive.finish()


@cache
def shell() -> bytes:
    """A tar archive of an image that has a shell, and nothing else."""
    program = Path("/bin/busybox" if os.path.exists("/bin/busybox") else "/usr/bin/busybox").read_bytes()
    archive = _Archive()
    archive.file("bin/sh", program, 0o755)
    return archive.finish()


@cache
def tools() -> bytes:
    """A tar archive with this machine's shell, core utilities and tmux, and the libraries that they need."""
    return _of_packages(TOOLS)


@cache
def hostile() -> bytes:
    """The same with all that hostile programs take."""
    return _of_packages((*TOOLS, *PYTHON, "libpython3.11-stdlib"))


@cache
def python() -> bytes:
    """That of `tools` with this machine's Python."""
    return _of_packages((*TOOLS, *PYTHON))


def _of_packages(packages: Iterable[str]) -> bytes:
    archive = _Archive()
    for name in _LINKS:
        archive.link(name, f"usr/{name}")
    archive.link("usr/bin/python3", "python3.11")
    for path in sorted({"/usr/bin/sh", "/usr/bin/tmux"}.union(*map(_files_of, packages))):
        archive.copy(path)
    archive.copy("/etc/ld.so.cache")  # as a Debian has it: without, every program looks for its libraries in 24 places
    return archive.finish()


@cache
def _files_of(package: str) -> set[str]:
    """The files of a package that are wanted, and the libraries that they need, for which ldd runs each."""
    listed = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=False).stdout
    files = {path for path in listed.splitlines() if path.startswith(_WANTED) and not os.path.isdir(path)}
    return files | _libraries(files)


def _libraries(files: Iterable[str]) -> set[str]:
    programs = [
        path for path in files if not os.path.islink(path) and (os.access(path, os.X_OK) or path.endswith(".so"))
    ]
    if not programs:
        return set()
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    words = {word for line in said.splitlines() for word in line.split() if word.startswith("/") and ":" not in word}
    return {path for path in words if os.path.exists(path)}


class _Archive:
    """A root file system that grows, with what every one has."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115
        self._seen: set[str] = set()
        for name, mode in (("tmp", 0o1777), ("workspace", 0o1777), ("home/guest", 0o777), ("root", 0o755)):
            self._add(name, tarfile.DIRTYPE, mode)
        for name, text in ETC.items():
            self.file(name, text.encode(), 0o644)

    def file(self, name: str, data: bytes, mode: int) -> None:
        self._add(name, tarfile.REGTYPE, mode, data=data)

    def link(self, name: str, target: str) -> None:
        self._add(name, tarfile.SYMTYPE, 0o777, target=target)

    def copy(self, path: str) -> None:
        """A file of this machine, in the place that it has once `/bin` and the like are links."""
        name = "usr" + path if path.split("/")[1] in _LINKS else path.lstrip("/")
        if os.path.islink(path):
            self._copy_link(name, path)
        else:
            self.file(name, Path(path).read_bytes(), os.stat(path).st_mode & 0o7777 & ~0o6000)

    def _copy_link(self, name: str, path: str) -> None:
        target = os.path.realpath(path)
        if name not in self._seen and os.path.isfile(target):
            self.file(name, Path(target).read_bytes(), 0o755)

    def _add(self, name: str, kind: bytes, mode: int, *, data: bytes = b"", target: str = "") -> None:
        if name in self._seen:
            return
        self._seen.add(name)
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(data), target
        self._tar.addfile(entry, io.BytesIO(data))

    def finish(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()
