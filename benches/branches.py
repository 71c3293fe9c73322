"""Branches through a real daemon: many at once beside one and `cp -a`; merges beside git's of the same changes."""

import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benches import fair
from benches.daemon import daemon, seconds
from benches.forks import in_turn
from benches.pack import row
from benches.snapshots import at_most
from benches.table import Row, show

MANY, MANY_ROUNDS = 100, 3
MERGED, CHANGED, ROUNDS = 8, 50, 9
FILE_BYTES = 20_000
SMALL, LARGE = 10_000, 100_000
"""Files in the trees whose branches are merged."""

GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
_LINE = "one of the lines that all files are made of, with a number: {}\n"


def tree(top: Path, files: int, size: int) -> str:
    """Write text files, a hundred in each directory."""
    text = "".join(_LINE.format(number) for number in range(size // len(_LINE)))
    for number in range(files):
        folder = top / str(number // 100)
        if number % 100 == 0:
            folder.mkdir(parents=True)
        (folder / str(number)).write_text(f"{number}\n{text}")
    return str(top)


def changed(branch: int) -> list[str]:
    """The files that a branch changes: of a tree of any size, the same."""
    return [f"{number // 100}/{number}" for number in range(branch, CHANGED * 190, 190)][:CHANGED]


def edit(top: Path, branch: int) -> None:
    """Change a line in each of a branch's files."""
    for name in changed(branch):
        path = top / name
        path.write_text(path.read_text().replace("number: 3\n", f"number: {branch}, changed\n"))


class Many:
    """A sandbox of which branches are made."""

    def __init__(self, client: Any, source: str) -> None:
        self._client = client
        [self._box] = [s.sandbox_id for s in client.branch.create(source=source).sandboxes]
        self._made: list[str] = []

    def branch(self, count: int) -> None:
        self._made += [s.sandbox_id for s in self._client.branch.create(sandbox_id=self._box, count=count).sandboxes]

    def clear(self) -> None:
        while self._made:
            self._client.branch.remove(self._made.pop())


def many_rows(client: Any, source: str, root: str) -> Iterator[Row]:
    many = Many(client, source)
    beside_one, beside_copies = [], []
    for _ in range(MANY_ROUNDS):
        ones = [seconds(lambda: many.branch(1)) for _ in range(3)]
        many.clear()
        copy = seconds(lambda: subprocess.run(["cp", "-a", source, f"{root}/copy"], check=True))
        shutil.rmtree(f"{root}/copy")
        os.sync()  # what the copy made comes to the disk in the background
        hundred = seconds(lambda: many.branch(MANY))
        many.clear()
        ones += [seconds(lambda: many.branch(1)) for _ in range(3)]
        many.clear()
        beside_one.append((hundred, statistics.median(ones)))
        beside_copies.append((hundred, MANY * copy))
    what = f"{MANY} branches of 200 MB in {SMALL:,} files"
    yield row(what, "one", beside_one, *at_most(60))
    yield row(what, f"{MANY} times `cp -a`", beside_copies, *at_most(0.033))


class Branches:
    """Branches in sandboxes, which are merged again and again."""

    def __init__(self, client: Any, source: str) -> None:
        self._client = client
        made = client.branch.create(source=source, count=MERGED)
        self._boxes = [sandbox.sandbox_id for sandbox in made.sandboxes]
        for branch, box in enumerate(self._boxes):
            script = f"sed -i 's/number: 3$/number: {branch}, changed/' {' '.join(changed(branch))}"
            assert client.sandbox.exec(box, script).exit_code == 0
        self._merged: Any = None

    def merge(self) -> None:
        self._merged = self._client.branch.merge(self._boxes)

    def clear(self) -> None:
        assert (self._merged.merge.status, self._merged.merge.changed) == ("ready", MERGED * CHANGED)
        self._client.branch.remove(self._merged.sandbox.sandbox_id)

    def end(self) -> None:
        for box in self._boxes:
            self._client.branch.remove(box)


class Git:
    """The same branches in work trees of one repository."""

    def __init__(self, source: str, top: Path) -> None:
        self._main = top / "main"
        shutil.copytree(source, self._main)
        self._run(self._main, "init", "-q", "-b", "main")
        self._run(self._main, "config", "user.name", "bench")
        self._run(self._main, "config", "user.email", "bench@localhost")
        self._commit(self._main)
        self._trees = [top / f"branch{number}" for number in range(MERGED)]
        for number, place in enumerate(self._trees):
            self._run(self._main, "worktree", "add", "-q", "-b", f"branch{number}", str(place))
            self._run(place, "status")  # what was just checked out is looked at once more
            edit(place, number)

    def merge(self) -> None:
        for place in self._trees:
            self._commit(place)
        self._run(self._main, "merge", "-q", "-m", "merged", *(f"branch{number}" for number in range(MERGED)))

    def clear(self) -> None:
        for place in (self._main, *self._trees):
            self._run(place, "reset", "-q", *(["--hard"] if place == self._main else []), "HEAD~1")

    def _commit(self, place: Path) -> None:
        self._run(place, "add", "-A")
        self._run(place, "commit", "-q", "-m", "changed")

    def _run(self, place: Path, *words: str) -> None:
        subprocess.run(["git", "-C", str(place), *words], check=True, env={**os.environ, **GIT}, capture_output=True)


def merge_rows(client: Any, sources: dict[int, str], root: Path) -> Iterator[Row]:
    ours = {files: Branches(client, source) for files, source in sources.items()}
    git = Git(sources[SMALL], root / "git")
    beside_git, sizes = [], []
    for turn in range(ROUNDS + 1):
        mine, theirs = in_turn(ours[SMALL].merge, git.merge, first=turn % 2 == 0)
        ours[SMALL].clear()
        git.clear()
        if turn:
            beside_git.append((mine, theirs))
    for turn in range(ROUNDS + 1):
        large, small = in_turn(ours[LARGE].merge, ours[SMALL].merge, first=turn % 2 == 1)
        for branches in ours.values():
            branches.clear()
        if turn:
            sizes.append((large, small))
    for branches in ours.values():
        branches.end()
    what = f"merge of {MERGED} branches, {CHANGED} files changed in each"
    yield row(f"{what}, of {SMALL:,}", "git add, commit, merge", beside_git, *at_most(1))
    yield row(f"{what}, of {LARGE:,}", f"of {SMALL:,}", sizes, *at_most(1.25))


@fair.conditions()
def run() -> list[Row]:
    with daemon() as (client, root):
        place = Path(root, "trees")
        sources = {
            files: tree(place / str(files), files, FILE_BYTES if files == SMALL else 400) for files in (SMALL, LARGE)
        }
        return [*many_rows(client, sources[SMALL], root), *merge_rows(client, sources, place)]


if __name__ == "__main__":
    show(run())
