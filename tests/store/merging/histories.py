"""Merges by git, to compare ours with: three trees of files, in a repository of their own.

The judge is `git merge -s recursive -X no-renames`: `merge-tree`, and the strategy ort, detect renames before git 2.50
whatever `merge.renames` says.
"""

import hashlib
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.store.merging.stacks import bench, complete

Files = dict[bytes, tuple[Any, ...]]
"""Path to ("file", mode, data) or ("symlink", target)."""

Triple = tuple[Files, Files, Files]
"""Base, and two branches."""


class Merged(NamedTuple):
    """A tree as git tells of it, path to mode and digest, without the paths in conflict; and these."""

    tree: dict[bytes, tuple[str, str]]
    conflicts: list[bytes]


class Repository:
    """A bare repository, to which only the environment given here applies."""

    def __init__(self, path: str, objects: str | None = None) -> None:
        self.path = path
        self._env = {
            "PATH": os.environ["PATH"], "HOME": path, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
        }  # fmt: skip
        subprocess.run(["git", "init", "-q", "--bare", path], env=self._env, check=True, capture_output=True)
        if objects is not None:
            with open(f"{path}/objects/info/alternates", "w") as file:
                file.write(f"{objects}\n")

    def run(self, *argv: str, given: bytes = b"", codes: Sequence[int] = (0,)) -> bytes:
        done = subprocess.run(
            ["git", *argv], cwd=self.path, env=self._env, input=given, capture_output=True, check=False
        )  # fmt: skip
        assert done.returncode in codes, done.stderr
        return done.stdout

    def add(self, triples: Sequence[Triple]) -> None:
        """Commit each triple as a base with two children."""
        stream = []
        for number, triple in enumerate(triples):
            for name, files in zip(("base", "a", "b"), triple, strict=True):
                stream.append(b"commit refs/heads/%s%d\nmark :%d\n" % (name.encode(), number, _mark(number, name)))
                stream.append(b"committer a <a@b> 1 +0000\ndata 0\n")
                if name != "base":
                    stream.append(b"from :%d\ndeleteall\n" % _mark(number, "base"))
                stream += [_modified(path, one) for path, one in files.items()]
        self.run("fast-import", "--quiet", given=b"".join(stream))

    def merge(self, first: str, second: str) -> Merged:
        """Merge two commits in a work tree of their own, which leaves the repository as it was."""
        work = f"{self.path}/work"
        os.mkdir(work)
        here = (f"--git-dir={self.path}", f"--work-tree={work}")
        try:
            self.run(*here, "checkout", "-q", "--force", "--detach", first)
            # With the differences that git's default strategy takes, which detects renames and cannot be kept from it.
            strategy = ("-s", "recursive", "-X", "no-renames", "-X", "diff-algorithm=histogram")
            self.run(*here, "merge", "-q", "--no-commit", *strategy, second, codes=(0, 1))
            return self._index()
        finally:
            shutil.rmtree(work)
            with suppress(FileNotFoundError):
                os.unlink(f"{self.path}/index")

    def _index(self) -> Merged:
        tree, conflicts = {}, {}
        for line in self.run("ls-files", "--stage", "-z").split(b"\0")[:-1]:
            about, path = line.split(b"\t", 1)
            mode, digest, stage = about.decode().split()
            if stage == "0":
                tree[path] = mode, digest
            else:
                conflicts[path] = None
        return Merged(tree, list(conflicts))

    def tree(self, name: str) -> dict[bytes, tuple[str, str]]:
        found = {}
        for line in self.run("ls-tree", "-r", "-z", "--full-tree", name).split(b"\0")[:-1]:
            about, path = line.split(b"\t", 1)
            mode, _, digest = about.decode().split()
            found[path] = mode, digest
        return found

    def blobs(self, digests: Iterable[str]) -> dict[str, bytes]:
        wanted = sorted(set(digests))
        output = self.run("cat-file", "--batch", given="".join(f"{digest}\n" for digest in wanted).encode())
        found, position = {}, 0
        for digest in wanted:
            end = output.index(b"\n", position)
            size = int(output[position:end].split()[2])
            found[digest] = output[end + 1 : end + 1 + size]
            position = end + 2 + size
        return found


def _mark(number: int, name: str) -> int:
    return 3 * number + 1 + ("base", "a", "b").index(name)


def _modified(path: bytes, one: tuple[Any, ...]) -> bytes:
    return b"M %s inline %s\ndata %d\n%s\n" % (mode_of(one).encode(), path, len(one[-1]), one[-1])


def mode_of(one: tuple[Any, ...]) -> str:
    if one[0] == "symlink":
        return "120000"
    return "100755" if one[1] & 0o100 else "100644"


def told(files: Mapping[bytes, Any]) -> dict[bytes, tuple[str, str]]:
    """A tree of ours, as git would tell of it."""
    return {
        path: (mode_of(one), hashlib.sha1(b"blob %d\0%s" % (len(one[-1]), one[-1])).hexdigest())
        for path, one in files.items()
        if one[0] != "directory"
    }


def compare(triple: Triple, git: Merged) -> str:
    """Merge a triple; say how that compares with git."""
    base, first, second = triple
    with bench() as at:
        merged = at.merge(base, {"a": first, "b": second})
        ours = told(at.result(merged, complete(base)))
    kinds = ",".join(sorted({conflict.kind for conflict in merged.conflicts}))
    if merged.conflicts and git.conflicts:
        mine = {path for conflict in merged.conflicts for path in conflict.paths}
        inside = all(
            any(path == place or path.startswith(place + b"/") for place in mine) for path in _real(git, triple)
        )
        return f"both conflict: {kinds}" if inside else f"both conflict, elsewhere: {kinds}"
    if merged.conflicts:
        return f"only ours conflicts: {kinds}"
    if git.conflicts:
        return "only git conflicts"
    return "both clean" if ours == git.tree else "both clean, but different"


def _real(git: Merged, triple: Triple) -> list[bytes]:
    """The paths in conflict, without those to which git moved a file from a directory's place."""
    return [path for path in git.conflicts if any(path in files for files in triple)]


def summary(results: Counter[str]) -> str:
    total = results.total()
    return "; ".join(f"{what}: {count} ({100 * count / total:.1f} %)" for what, count in results.most_common())


MOST_DIFFERENT = 0.01
"""Share of the merges of which only one side conflicts, or both at different paths; of few merges, one may."""


def check(results: Counter[str], capsys: pytest.CaptureFixture[str]) -> None:
    if results.total() > 100:
        with capsys.disabled():
            print(f"\n{summary(results)}")
    assert results["both clean, but different"] == 0
    different = sum(count for what, count in results.items() if what.startswith("only") or "elsewhere" in what)
    assert different < max(2, MOST_DIFFERENT * results.total())


# -- histories of repositories -----------------------------------------------------------------------------------------


def commits(repository: Path) -> list[str]:
    """A repository's history, the oldest first."""
    try:
        argv = ["git", "-c", "safe.directory=*", "rev-list", "--first-parent", "--reverse", "HEAD"]
        return subprocess.run(argv, cwd=repository, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return []


def objects(repository: Path) -> str:
    argv = ["git", "-c", "safe.directory=*", "rev-parse", "--path-format=absolute", "--git-path", "objects"]
    return subprocess.run(argv, cwd=repository, capture_output=True, text=True, check=True).stdout.strip()


def triples(known: list[str], random: Random, count: int) -> Iterator[tuple[str, str, str]]:
    """Reverts of a commit some commits later, and cherry-picks of one onto an earlier commit."""
    for number in range(count):
        place, distance = random.randrange(12, len(known) - 12), random.choice([1, 1, 3, 10])
        if number % 2:
            yield known[place], known[place + distance], known[place - 1]
        else:
            yield known[place - 1], known[place - 1 - distance], known[place]


def replay_history(history: Path, count: int, path: Path) -> Counter[str]:
    """Compare reverts and cherry-picks of a repository's commits."""
    known = commits(history)
    if len(known) < 50:
        pytest.skip("there is no history of 50 commits")
    repository = Repository(str(path), objects(history))
    changes = [changed(repository, names) for names in triples(known, Random(3), count)]
    repository.add(changes)
    return Counter(compare(triple, repository.merge(f"a{n}", f"b{n}")) for n, triple in enumerate(changes))


def changed(repository: Repository, names: tuple[str, str, str]) -> Triple:
    """Return three commits' files, but for those that are the same in all: without renames they decide nothing."""
    trees = [repository.tree(name) for name in names]
    paths = {path for tree in trees[1:] for path in {*tree, *trees[0]} if tree.get(path) != trees[0].get(path)}
    blobs = repository.blobs(tree[path][1] for tree in trees for path in paths if path in tree)
    base, first, second = (
        {path: as_file(tree[path][0], blobs[tree[path][1]]) for path in paths if path in tree} for tree in trees
    )
    return base, first, second


def as_file(mode: str, data: bytes) -> Files:
    return ("symlink", data) if mode == "120000" else ("file", int(mode, 8) & 0o777, data)  # type: ignore[return-value]


# -- random histories -------------------------------------------------------------------------------------------------

_LINES = [b"}\n", b"\n", b"    return\n", b"{\n"]


def random_triple(random: Random) -> Triple:
    base: Files = {}
    for number in range(random.randrange(2, 7)):
        directory = random.choice([b"", b"src/", b"src/deep/", b"doc/"])
        base[directory + b"f%d" % number] = ("file", 0o644, _text(random, random.randrange(1, 60)))
    return base, _history(random, base), _history(random, base)


def _text(random: Random, count: int) -> bytes:
    return b"".join(_line(random) for _ in range(count))


def _line(random: Random) -> bytes:
    return random.choice(_LINES) if random.random() < 0.35 else b"line %d\n" % random.randrange(400)


def _history(random: Random, base: Files) -> Files:
    files = dict(base)
    for _ in range(random.randrange(1, 6)):
        _step(random, files)
    return files


def _step(random: Random, files: Files) -> None:
    path = random.choice([*files, b"new%d" % random.randrange(4)])
    kind = random.random()
    old = files.get(path)
    if old is None and any(other.startswith(path + b"/") for other in files):
        return
    if old is None:
        files[path] = ("file", 0o644, _text(random, random.randrange(3)))
    elif kind < 0.06:
        del files[path]
    elif kind < 0.09:
        files[path] = ("symlink", random.choice([b"there", b"elsewhere"]))
    elif kind < 0.12:
        del files[path]
        files[path + b"/inner"] = ("file", 0o644, b"inner\n")
    elif kind < 0.18 and old[0] == "file":
        files[path] = ("file", old[1] ^ 0o111, old[2])
    elif kind < 0.24:
        files[b"moved/" + path.replace(b"/", b"-")] = files.pop(path)
    elif old[0] == "file":
        files[path] = ("file", old[1], _edited(random, old[2]))


def _edited(random: Random, text: bytes, new: Callable[[int], list[bytes]] | None = None) -> bytes:
    new = new or (lambda count: [_line(random) for _ in range(count)])
    lines = text.splitlines(keepends=True)
    at = random.randrange(len(lines) + 1)
    kind = random.random()
    if kind < 0.4:
        lines[at : at + 1] = new(1)
    elif kind < 0.7:
        lines[at:at] = new(random.randrange(1, 4))
    elif kind < 0.9:
        del lines[at : at + random.randrange(1, 4)]
    else:  # a block is moved
        block = lines[at : at + 4]
        del lines[at : at + 4]
        place = random.randrange(len(lines) + 1)
        lines[place:place] = block
    return b"".join(lines)


def dense_triple(random: Random) -> Triple:
    """One file of few different lines, in which it is not clear which lines correspond."""
    distinct = random.choice([3, 8, 20, 60])

    def new(count: int) -> list[bytes]:
        return [b"%d\n" % random.randrange(distinct) for _ in range(count)]

    text = b"".join(new(random.randrange(30, 300)))
    versions = [text, text, text]
    for number in (1, 2):
        for _ in range(random.randrange(1, 6)):
            versions[number] = _edited(random, versions[number], new)
    base, first, second = ({b"f": ("file", 0o644, version)} for version in versions)
    return base, first, second
