"""Snapshots and restores of sandboxes through a real daemon, beside what a person would do by hand.

The floors are programs: GNU tar piped through ISA-L at level 1 into a file that is synced, as ours is; `tar -czf`;
find, tar and ISA-L for what changed, synced as well; `tar -xzf`, which leaves the files in the page cache, as ours
does. The tree is of pieces of sources and programs, see `pack.grow`.

What a round made is removed after the last one only, on both sides: ext4 gives no number of a file anew that was
removed a moment ago, and looks through all of these for each new file, so that a round would pay for the one before it.
And the memory of a file that is written anew is at hand, while a virtual machine has to ask for that of a new one.
Before a restore and its floor all is written to the disk: what was restored comes there in the background.
"""

import io
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from benches import fair
from benches.daemon import daemon
from benches.engines import engine
from benches.pack import BYTES, FILES, grow, in_turns, row
from benches.table import Row, show
from isal import igzip
from tests.support import rootfs
from tests.support.engine import PrivateEngine

from sandkeep import transfer

ROUNDS = 7
INCREMENTS = 21
CHANGED = 10
MEMORY = "/dev/shm"

_ISAL = """
import os, sys
from isal import igzip_threaded
with open(sys.argv[1], "wb") as file:
    with igzip_threaded.open(file, "wb", compresslevel=1, threads=2) as out:
        while chunk := sys.stdin.buffer.read(1 << 20):
            out.write(chunk)
    file.flush()
    os.fsync(file.fileno())
"""
_numbers = count()


def at_most(most: float) -> tuple[str, Callable[[float], bool]]:
    """A target, and whether it is met."""
    return f"<= {most:g}", lambda ratio: ratio <= most


# -- whole ------------------------------------------------------------------------------------------------------------


def packed_by_hand(directory: str, target: str) -> None:
    tar = subprocess.Popen(["tar", "-C", directory, "-cf", "-", "."], stdout=subprocess.PIPE)
    subprocess.run([sys.executable, "-c", _ISAL, target], stdin=tar.stdout, check=True)
    assert tar.wait() == 0


def full_row(client: Any, root: str, source: str, box: str, where: str) -> Row:
    pairs = in_turns(lambda: client.snapshot.create(box), lambda: packed_by_hand(source, fresh(root)), ROUNDS)
    return row(f"snapshot of {size()}, {where}", "tar, ISA-L level 1, fsync", pairs, *at_most(1.3))


def gzip_row(client: Any, root: str, source: str, box: str) -> Row:
    def slowly() -> None:
        subprocess.run(["tar", "-C", source, "-czf", fresh(root), "."], check=True)

    pairs = in_turns(lambda: client.snapshot.create(box), slowly, 3)
    return row(f"snapshot of {size()}, of the image", "tar -czf", pairs, "<= 1/8", lambda ratio: ratio <= 1 / 8)


def fresh(root: str) -> str:
    """A name for one more archive by hand."""
    return f"{root}/by-hand-{next(_numbers)}.tar.gz"


def size() -> str:
    return f"{BYTES // 10**6} MB in {FILES:,} files"


# -- what changed -----------------------------------------------------------------------------------------------------


def change(client: Any, box: str) -> list[str]:
    """Write files in the sandbox; answer their names."""
    number = next(_numbers)
    names = [f"{folder}/changed-{number}" for folder in range(CHANGED)]
    client.sandbox.exec(box, f"for name in {' '.join(names)}; do head -c 20000 /dev/urandom >$name; done; sync .")
    return names


def changes_by_hand(upper: str, names: list[str], target: str) -> None:
    """Look through what differs from the image; pack and compress what is new of that."""
    subprocess.run(["find", upper, "-printf", r"%y %i %C@ %P\0"], stdout=subprocess.DEVNULL, check=True)
    packed = subprocess.run(["tar", "-C", upper, "-cf", "-", *names], stdout=subprocess.PIPE, check=True)
    with open(target, "wb") as file:
        file.write(igzip.compress(packed.stdout, 1))
        file.flush()
        os.fsync(file.fileno())


def incremental_row(client: Any, root: str, box: str, what: str) -> Row:
    upper = f"{root}/state/sandboxes/{box}/upper"
    client.snapshot.create(box, incremental=True)
    names: list[str] = []

    def differently() -> None:
        names[:] = change(client, box)

    pairs = in_turns(
        lambda: client.snapshot.create(box, incremental=True),
        lambda: changes_by_hand(upper, names, fresh(root)),
        INCREMENTS,
        differently,
    )
    what = f"incremental snapshot, {CHANGED} files changed, {what}"
    return row(what, "find, tar, ISA-L in this process, fsync", pairs, *at_most(3))


# -- the pause --------------------------------------------------------------------------------------------------------


def pause_rows() -> Iterator[Row]:
    """The milliseconds for which a sandbox is frozen, by what it has changed, of a full snapshot, of an incremental one
    and of a fork.
    """
    with daemon() as (client, root):
        os.mkdir(f"{root}/empty")
        image = client.image.create(f"{root}/empty").image_id
        little, much = (client.sandbox.create(image).sandbox_id for _ in range(2))
        for what, stop in {
            "snapshot": client.snapshot.create,
            "fork": client.sandbox.fork,
            "incremental snapshot": lambda box: client.snapshot.create(box, incremental=True),
        }.items():
            pairs = []
            for turn in range(ROUNDS + 1):
                pause_s = {}
                for box, megabytes in [(little, 1), (much, 40)][:: 1 if turn % 2 else -1]:
                    client.sandbox.exec(box, f"head -c {megabytes}000000 /dev/urandom >changed; sync .")
                    pause_s[box] = stop(box).pause_ms / 1e3
                if turn:
                    pairs.append((pause_s[much], pause_s[little]))
            yield row(f"pause, {what}, 40 MB changed", "1 MB changed", pairs, *at_most(3))


# -- in a container ---------------------------------------------------------------------------------------------------


def image_with(made: PrivateEngine, source: str, name: str) -> str:
    """An image of the engine's with a tree in its workspace."""

    def archive() -> bytes:
        packed = io.BytesIO(rootfs.tools())
        with tarfile.open(fileobj=packed, mode="a") as tar:
            tar.add(source, "work")
        return packed.getvalue()

    return made.image(name, archive, "ENV PATH=/usr/bin:/bin:/usr/sbin:/sbin", "WORKDIR /work")


def docker_rows() -> Iterator[Row]:
    """Increments of a container beside those of a local sandbox with the same files."""
    with engine() as made, daemon() as (client, root):
        for scale in (10, 1):
            files, source = FILES // scale, f"{root}/source-{scale}"
            grow(source, files, BYTES // scale)
            reference = image_with(made, source, f"bench/workspace:{scale}")
            boxes = [
                client.sandbox.create(client.image.create(source).image_id).sandbox_id,
                client.sandbox.create(client.image.create(reference, provider="docker").image_id).sandbox_id,
            ]
            for box in boxes:
                client.snapshot.create(box, incremental=True)
            local, docker = boxes
            pairs = in_turns(
                lambda box=docker: client.snapshot.create(box, incremental=True),
                lambda box=local: client.snapshot.create(box, incremental=True),
                INCREMENTS,
                lambda boxes=boxes: [change(client, box) for box in boxes],
            )
            what = f"{CHANGED} files changed, {files:,} in the image"
            yield row(f"Docker: incremental snapshot, {what}", "the same of a local sandbox", pairs, *at_most(3))


# -- back -------------------------------------------------------------------------------------------------------------


def restore_row(client: Any, root: str, box: str, where: str) -> Row:
    """Each restore is of a snapshot of its own: what was unpacked of one is there for all sandboxes."""
    snapshots = [client.snapshot.create(box) for _ in range(ROUNDS + 1)]
    archive = snapshots[0].places[0].uri
    left, number = iter(snapshots), count()

    def ours() -> None:
        client.snapshot.restore(next(left).snapshot_id)

    def by_hand() -> None:
        place = f"{root}/unpacked-{next(number)}"
        os.mkdir(place)
        subprocess.run(["tar", "-C", place, "-xzf", archive], check=True)

    pairs = in_turns(ours, by_hand, ROUNDS, settle=os.sync)
    return row(f"restore of {size()}, {where}", "tar -xzf", pairs, *at_most(1.3))


def restore_rows(directory: str | None, where: str) -> Iterator[Row]:
    with daemon(directory) as (client, root):
        grow(f"{root}/source", FILES, BYTES)
        box = client.sandbox.create(client.image.create(f"{root}/source").image_id).sandbox_id
        yield restore_row(client, root, box, where)


# -- all --------------------------------------------------------------------------------------------------------------


def snapshot_rows() -> Iterator[Row]:
    with daemon() as (client, root):
        source = f"{root}/source"
        grow(source, FILES, BYTES)
        box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
        yield full_row(client, root, source, box, "of the image")
        yield gzip_row(client, root, source, box)
        yield incremental_row(client, root, box, f"{FILES:,} files in the image")
        os.mkdir(f"{root}/empty")
        inside = client.sandbox.create(client.image.create(f"{root}/empty").image_id).sandbox_id
        transfer.copy_in(client, f"{source}/.", inside, "/workspace")
        yield full_row(client, root, source, inside, "written inside")
        yield incremental_row(client, root, inside, f"{FILES:,} files written inside")


def many_rows() -> Iterator[Row]:
    with daemon() as (client, root):
        small(f"{root}/source", 10 * FILES)
        box = client.sandbox.create(client.image.create(f"{root}/source").image_id).sandbox_id
        yield incremental_row(client, root, box, f"{10 * FILES:,} files in the image")


def small(top: str, files: int) -> None:
    """Very many files with next to nothing in them."""
    for number in range(files):
        folder = f"{top}/{number // 100}"
        if number % 100 == 0:
            os.makedirs(folder)
        with open(f"{folder}/{number}", "wb") as file:
            file.write(random.randbytes(100))


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "snapshots": snapshot_rows,
    "many": many_rows,
    "docker": docker_rows,
    "pause": pause_rows,
    "restore": lambda: restore_rows(None, "on disk"),
    "restore-in-memory": lambda: restore_rows(MEMORY, "in memory"),
}


@fair.conditions()
def run(parts: list[str] | None = None) -> list[Row]:
    return [each for part in parts or PARTS for each in PARTS[part]()]


if __name__ == "__main__":
    show(run(sys.argv[1:]))
