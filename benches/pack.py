"""Archives of trees, in this process, beside what a person would do by hand: 200 MB of 10,000 files, as projects have.

`python -m benches.pack quick` takes a tenth of the tree, to see that all still works; its figures say little.
"""

import glob
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from benches import fair
from benches.daemon import seconds
from benches.table import Row, show
from isal import igzip

from sandkeep_store.archives.tar.inspect import inspect
from sandkeep_store.archives.trees.pack import NO_LIMITS, pack, write
from sandkeep_store.archives.trees.tree import Tree
from sandkeep_store.archives.trees.unpack import unpack

ROUNDS = 7
OWNER = (70_001, 70_001)
FILES, BYTES, CHANGED = 10_000, 200_000_000, 10
HAND = 'tar -C "$1" -cf - . | "$3" -m isal.igzip -1 >"$2"'
ZSTD = 'tar -C "$1" -cf - . | zstd -q -3 -T2 >"$2"'
GZIP = 'tar -C "$1" -czf "$2" .'
UNZIP = 'mkdir "$2" && tar -C "$2" -xzf "$1"'
BY_LIST = 'cd "$1" && find . -print0 | tar --null --no-recursion -T - -cf -'
Pair = tuple[float, float]


def grow(top: str, files: int, size: int) -> None:
    """Make a tree of files of all sizes, two thirds of them pieces of sources and the others of programs."""
    random = Random(7)
    library = os.path.dirname(os.__file__)
    sources = _joined(f"{library}/**/*.py")
    programs = _joined(f"{library}/lib-dynload/*.so") + _joined(os.path.realpath(sys.executable))
    weights = [random.lognormvariate(0, 1.5) for _ in range(files)]
    for number, weight in enumerate(weights):
        folder = f"{top}/{number % 50}/{number % 17}"
        os.makedirs(folder, exist_ok=True)
        left = int(weight * size / sum(weights))
        pool = sources if number % 3 else programs
        with open(f"{folder}/{number}", "wb") as file:
            while left > 0:
                start = random.randrange(len(pool) * 3 // 4)
                left -= file.write(pool[start : start + left])


def _joined(pattern: str) -> bytes:
    found = []
    for path in sorted(glob.glob(pattern, recursive=True)):
        if "site-packages" not in path:
            with open(path, "rb") as file:
                found.append(file.read())
    return b"".join(found)


def by_hand(script: str, *words: str) -> None:
    subprocess.run(["sh", "-c", script, "sh", *words, sys.executable], check=True)


def packed(tree: str, target: str, codec: str = "gzip") -> None:
    with _opened(tree) as top, _opened(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as output:
        pack(top, output, codec=codec, reader=OWNER)  # type: ignore[arg-type]


class _opened:  # noqa: N801 - as `open`
    def __init__(self, path: str, flags: int = os.O_RDONLY) -> None:
        self._descriptor = os.open(path, flags, 0o600)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def in_turns(
    mine: Callable[[], None],
    floor: Callable[[], None],
    rounds: int = ROUNDS,
    clear: Callable[[], object] = lambda: None,
    settle: Callable[[], object] = lambda: None,
) -> list[Pair]:
    """Times of both, each as often first as the other, after one of each for warmth. `clear` comes before each pair,
    `settle` before each of both.
    """

    def timed(work: Callable[[], None]) -> float:
        settle()
        return seconds(work)

    pairs = []
    for turn in range(rounds + 1):
        clear()
        if turn % 2:
            ours, bare = timed(mine), timed(floor)
        else:
            bare, ours = timed(floor), timed(mine)
        if turn:
            pairs.append((ours, bare))
    return pairs


def row(case: str, what: str, pairs: list[Pair], target: str, kept: Callable[[float], bool]) -> Row:
    ratio = statistics.median(mine / bare for mine, bare in pairs)
    mine, bare = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
    return Row(case, f"{mine:.0f} ms", f"{bare:.0f} ms {what}", ratio, target, kept(ratio))


def packing(root: str, case: str) -> list[Row]:
    tree, out, hand = f"{root}/tree", f"{root}/out", f"{root}/hand"
    gzip = in_turns(lambda: packed(tree, out), lambda: by_hand(HAND, tree, hand))
    slow = in_turns(lambda: packed(tree, out), lambda: by_hand(GZIP, tree, hand), 1)
    zstd = in_turns(lambda: packed(tree, out, "zstd"), lambda: by_hand(ZSTD, tree, hand))
    rows = [
        row(f"snapshot to .tar.gz, {case}", "tar, isal -1", gzip, "<= 1.3", lambda ratio: ratio <= 1.3),
        row(f"snapshot to .tar.gz, {case}", "tar czf", slow, "<= 1/8", lambda ratio: ratio <= 1 / 8),
    ]
    if shutil.which("zstd"):
        rows.append(
            row(f"snapshot to .tar.zst, {case}", "tar, zstd -3 -T2", zstd, "<= 1.5", lambda ratio: ratio <= 1.5)
        )
    return rows


def restoring(root: str, case: str) -> list[Row]:
    packed(f"{root}/tree", f"{root}/archive")
    number = iter(range(1000))

    def ours() -> None:
        with _opened(f"{root}/archive") as archive:
            unpack(archive, f"{root}/back{next(number)}", owner=OWNER, limits=NO_LIMITS, durable=False)

    def bare() -> None:
        by_hand(UNZIP, f"{root}/archive", f"{root}/back{next(number)}")

    def look() -> None:
        with _opened(f"{root}/archive") as archive:
            inspect(archive, NO_LIMITS)

    def clear() -> None:
        subprocess.run(["sh", "-c", 'rm -rf "$1"/back*; sync -f "$1"', "sh", root], check=True)

    pairs = in_turns(ours, bare, clear=clear)
    looks = in_turns(look, lambda: by_hand('"$2" -m isal.igzip -dc "$1" >/dev/null', f"{root}/archive"))
    clear()
    return [
        row(f"restore: inspect and extract, {case}", "tar -xzf", pairs, "<= 1.3", lambda ratio: ratio <= 1.3),
        row(f"inspect, {case}", "isal -d", looks, "-", lambda _: True),
    ]


def incremental(root: str, files: int) -> Row:
    """What an overlay holds after some files were changed, beside reading and compressing just that."""
    upper, out = f"{root}/upper{files}", f"{root}/out"
    for number in range(CHANGED):
        os.makedirs(f"{upper}/{number}", exist_ok=True)
        with open(f"{upper}/{number}/{number}", "wb") as file:
            file.write(os.urandom(20_000))

    def ours() -> None:
        with _opened(upper) as top, _opened(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as output:
            source = Tree(top, overlay="trusted", reader=OWNER)
            write(source, output, "gzip", source.remarks)

    def bare() -> None:
        done = subprocess.run(["sh", "-c", BY_LIST, "sh", upper], check=True, stdout=subprocess.PIPE)
        with open(f"{root}/hand", "wb") as file:
            file.write(igzip.compress(done.stdout, 1))

    pairs = in_turns(ours, bare, 30)
    case = f"incremental of {CHANGED} changed files"
    return row(case, "find, tar, isal here", pairs, "<= 3", lambda ratio: ratio <= 3)


@contextmanager
def planted(scale: int, directory: str | None = None) -> Iterator[str]:
    """A directory with the tree in it."""
    with tempfile.TemporaryDirectory(prefix="skb-pack-", dir=directory) as root:
        os.chmod(root, 0o755)
        grow(f"{root}/tree", FILES // scale, BYTES // scale)
        subprocess.run(["chown", "-R", "{}:{}".format(*OWNER), f"{root}/tree"], check=True)
        yield root


@fair.conditions()
def run(scale: int = 1) -> list[Row]:
    """`scale` divides the tree. Restores are made in memory: how a disk writes 200 MB varies by more than that."""
    case = f"{BYTES // scale / 1e6:.0f} MB in {FILES // scale:,} files"
    with planted(scale) as root:
        rows = [*packing(root, case), incremental(root, FILES // scale)]
    with planted(scale, "/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        return [*rows, *restoring(root, case)]


if __name__ == "__main__":
    show(run(10 if "quick" in sys.argv[1:] else 1))
