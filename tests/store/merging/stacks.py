"""Trees for the tests of merges: written from dictionaries, or made by overlays; and what is in them."""

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

from tests.support import trees

from sandkeep_store.merging.content import read_piece
from sandkeep_store.merging.layer import MergedLayer
from sandkeep_store.merging.merge import merge
from sandkeep_store.merging.model import FromBlob, FromBranch, FromSpool, Merge, Policy
from sandkeep_store.merging.trees import Layer, TreeState

Tree = dict[bytes, tuple[Any, ...]]
"""Path to ("file", mode, data), ("directory", mode), ("symlink", target) or ("fifo", mode)."""


def file(data: bytes = b"", mode: int = 0o644) -> tuple[Any, ...]:
    return ("file", mode, data)


def link(target: bytes) -> tuple[Any, ...]:
    return ("symlink", target)


DIRECTORY = ("directory", 0o755)


def complete(found: Mapping[bytes, Any]) -> Tree:
    """Add the directories above, and make files of bytes."""
    made: Tree = {b".": DIRECTORY}
    for name, what in found.items():
        parts = name.split(b"/")
        for depth in range(1, len(parts)):
            made.setdefault(b"/".join(parts[:depth]), DIRECTORY)
        made[name] = file(what) if isinstance(what, bytes) else what
    return made


def write(top: str, found: Mapping[bytes, Any]) -> None:
    """Write a tree into an empty directory."""
    made = complete(found)
    at = os.fsencode(top)
    for name in sorted(made, key=lambda name: (name != b".", name.replace(b"/", b"\0"))):
        kind, *rest = made[name]
        path = os.path.join(at, name)
        if kind == "directory":
            if name != b".":
                os.mkdir(path)
        elif kind == "symlink":
            os.symlink(rest[0], path)
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            with open(path, "wb") as opened:
                opened.write(rest[1])
        if kind != "symlink":
            os.chmod(path, rest[0])


def read(top: str | bytes) -> Tree:
    """Read a tree, by following paths: what the code under test is compared with."""
    at = os.fsencode(top)
    found: Tree = {}
    for directory, names, files in os.walk(at):
        for name in [b"", *names, *files]:
            path = os.path.join(directory, name) if name else directory
            if name in names and not os.path.islink(path):
                continue
            one = _one(path)
            if one is not None:
                found[os.path.relpath(path, at)] = one
    return found


def _one(path: bytes) -> tuple[Any, ...] | None:
    status = os.lstat(path)
    mode = status.st_mode & 0o1777
    if stat.S_ISLNK(status.st_mode):
        return ("symlink", os.readlink(path))
    if stat.S_ISDIR(status.st_mode):
        return ("directory", mode)
    if stat.S_ISFIFO(status.st_mode):
        return ("fifo", mode)
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb") as opened:
            return ("file", mode, opened.read())
    return None


class Bench:
    """A temporary directory with trees, and what is open of them."""

    def __init__(self, root: str, closing: ExitStack) -> None:
        self.root, self.closing = root, closing
        self.spool = self.open(f"{root}/spool", os.O_RDWR | os.O_CREAT)
        os.mkdir(f"{root}/blobs")
        self.blobs = self.open(f"{root}/blobs")
        self._made = 0
        self.base: TreeState | None = None
        self.branches: dict[str, TreeState] = {}

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        return self.closing.enter_context(trees.opened(path, flags))

    def new(self) -> str:
        self._made += 1
        path = f"{self.root}/{self._made}"
        os.mkdir(path)
        return path

    def plain(self, found: Mapping[bytes, Any]) -> TreeState:
        """A tree that is a plain directory, which shares nothing with others."""
        top = self.new()
        write(top, found)
        opened = self.open(top)
        return TreeState(opened, [Layer(opened, top)])

    def merge(
        self, base: Mapping[bytes, Any], branches: Mapping[str, Mapping[bytes, Any]], policy: Policy | None = None,
        **more: Any,
    ) -> Merge:  # fmt: skip
        """Merge trees that are plain directories."""
        self.base = self.plain(base)
        self.branches = {name: self.plain(found) for name, found in branches.items()}
        return merge(self.base, self.branches, policy, spool=self.spool, blobs=self.blobs, **more)

    def result(self, merged: Merge, base: Mapping[bytes, Any]) -> Tree:
        """Apply decisions to a tree."""
        found = complete(base)
        for name, decision in merged.decisions.items():
            if decision.entry is None or decision.entry.kind != "directory":
                for other in [other for other in found if other.startswith(name + b"/")]:
                    del found[other]
            if decision.entry is None:
                found.pop(name, None)
            elif decision.entry.kind == "file":
                found[name] = ("file", decision.entry.mode, self.content(name, decision))
            elif decision.entry.kind == "symlink":
                found[name] = ("symlink", decision.entry.target)
            else:
                found[name] = (decision.entry.kind, decision.entry.mode)
        return found

    def content(self, name: bytes, decision: Any) -> bytes:
        content, size = decision.content, decision.entry.size
        if isinstance(content, FromBranch):
            opened = os.open(name, os.O_RDONLY, dir_fd=self.branches[content.branch].view)
            with open(opened, "rb") as found:
                data = found.read()
        elif isinstance(content, FromSpool):
            data = read_piece(self.spool, name, content.offset, content.length)
        else:
            assert isinstance(content, FromBlob)
            data = self.blob(content.sha256)
        assert len(data) == size
        return data

    def blob(self, sha256: str) -> bytes:
        with open(f"{self.root}/blobs/{sha256}", "rb") as opened:
            return opened.read()

    def layer(self, merged: Merge) -> MergedLayer:
        assert self.base is not None
        views = {name: state.view for name, state in self.branches.items()}
        return MergedLayer(merged, self.base.view, views, spool=self.spool, blobs=self.blobs)

    # -- overlays, as root --------------------------------------------------------------------------------------------

    @contextmanager
    def changing(self, lowers: list[str]) -> Iterator[tuple[str, str]]:
        """A new upper directory above others, and where it is mounted for a block."""
        upper, work, at = self.new(), self.new(), self.new()
        os.chmod(upper, stat.S_IMODE(os.stat(lowers[0]).st_mode))
        with trees.overlay(lowers, upper, work, at):
            yield upper, at

    def stacked(self, layers: list[str]) -> TreeState:
        """The merged view of layers, uppermost first; the lowest is plain."""
        from sandkeepd.providers.common.views import open_merged

        view = open_merged(layers, self.root)
        self.closing.callback(os.close, view)
        lowest = layers[-1]
        return TreeState(view, [Layer(self.open(path), path, None if path == lowest else "trusted") for path in layers])


@contextmanager
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as root, ExitStack() as closing:
        yield Bench(root, closing)


# -- random trees -----------------------------------------------------------------------------------------------------

PLACES = [b"a", b"b", b"B", b"d", b"d/a", b"d/e", b"d/e/f", b"x", b"x/a", b"h\xff"]
LINES = [b"one\n", b"two\n", b"three\n", b"}\n", b"\n", b"four\r\n", b"end"]


def grow(random: Random, found: Mapping[bytes, Any], times: int) -> Tree:
    """Change a tree at random."""
    made = complete(found)
    for _ in range(times):
        name = random.choice(PLACES)
        kind = random.randrange(12)
        old = made.get(name)
        if kind < 5 and old and old[0] == "file":
            made[name] = file(_edited(random, old[2]), old[1])
        elif kind == 5 and old and old[0] in ("file", "directory"):
            made[name] = (old[0], random.choice([0o644, 0o755, 0o700]), *old[2:])
        elif kind in (6, 7):
            _clear(made, name)
        elif kind == 8:
            _put(made, name, link(random.choice([b"a", b"/etc/passwd", b".."])))
        elif kind == 9:
            _put(made, name, DIRECTORY)
        elif kind == 10:
            _put(made, name, file(random.choice([b"\0bin", b"\0bin2", b""])))
        else:
            _put(made, name, file(b"".join(random.choices(LINES, k=random.randrange(8)))))
    return made


def _edited(random: Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    at = random.randrange(len(lines) + 1)
    lines[at : at + random.randrange(2)] = random.choices(LINES, k=random.randrange(3))
    return b"".join(lines)


def _clear(made: Tree, name: bytes) -> None:
    for other in [other for other in made if other == name or other.startswith(name + b"/")]:
        del made[other]


def _put(made: Tree, name: bytes, what: tuple[Any, ...]) -> None:
    parts = name.split(b"/")
    for depth in range(1, len(parts)):
        above = b"/".join(parts[:depth])
        if made.get(above, ("",))[0] != "directory":
            made[above] = DIRECTORY
    if what[0] != "directory" or made.get(name, ("",))[0] != "directory":
        _clear(made, name)
    made[name] = what
