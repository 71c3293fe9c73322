"""Snapshots, forks and restores of local sandboxes through a real daemon, beside what a person would do by hand.

The floors are programs of their own: GNU tar piped through ISA-L at level 1 into a file, find and the same for what
changed, an overlay mount plus a bare bubblewrap plus `cp -a`, and `tar -xzf`. Rounds are in turns.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
from itertools import count
from typing import Any

from benches.daemon import daemon, mount_overlay, run_bare, seconds
from benches.table import Row, show

from sandkeep import transfer

FILES = 10_000
BYTES = 200 * 10**6
ROUNDS = 7
FORK_ROUNDS = 15
MANY = 100
CHANGED = 10

_ISAL = """
import sys
from isal import igzip_threaded
with igzip_threaded.open(sys.argv[1], "wb", compresslevel=1, threads=2) as out:
    while chunk := sys.stdin.buffer.read(1 << 20):
        out.write(chunk)
"""
_numbers = count()


def tree(top: str, files: int, size: int) -> str:
    """A directory of files that are half text and half noise, as projects are."""
    words = [word.encode() for word in ("import", "return", "value", "self", "def", "class", "for", "name", "0x%x")]
    chance = random.Random(7)
    text = b" ".join(chance.choices(words, k=size))[: size - size // 2]
    for number in range(files):
        folder = f"{top}/{number // 100}"
        if number % 100 == 0:
            os.makedirs(folder)
        with open(f"{folder}/{number}", "wb") as file:
            file.write(text + chance.randbytes(size // 2))
    return top


def packed_by_hand(directory: str, target: str, *arguments: str) -> None:
    tar = subprocess.Popen(["tar", "-C", directory, "-cf", "-", *(arguments or ["."])], stdout=subprocess.PIPE)
    subprocess.run([sys.executable, "-c", _ISAL, target], stdin=tar.stdout, check=True)
    assert tar.wait() == 0


def by_median(values: list[float]) -> str:
    return f"{statistics.median(values) * 1e3:.0f} ms"


def row(case: str, ours: list[float], what: str, floor: list[float], most: float) -> Row:
    ratio = statistics.median(ours) / statistics.median(floor)
    return Row(case, by_median(ours), f"{what} {by_median(floor)}", ratio, f"<= {most:g}", ratio <= most)


def full_rows(client: Any, root: str, source: str, box: str, where: str) -> list[Row]:
    ours, floor = [], []
    for _ in range(ROUNDS):
        target = f"{root}/by-hand-{next(_numbers)}.tar.gz"
        floor.append(seconds(lambda target=target: packed_by_hand(source, target)))
        os.unlink(target)
        begun = seconds(lambda: client.snapshot.create(box, name="bench"))
        ours.append(begun)
        client.snapshot.delete(client.snapshot.list(name="bench").snapshots[-1].snapshot_id)
    case = f"snapshot of {BYTES // 10**6} MB in {FILES:,} files, {where}"
    return [row(case, ours, "tar, ISA-L level 1", floor, 1.3)]


def gzip_row(client: Any, root: str, source: str, box: str) -> Row:
    target = f"{root}/slow.tar.gz"
    slow = seconds(lambda: subprocess.run(["tar", "-C", source, "-czf", target, "."], check=True))
    ours = seconds(lambda: client.snapshot.create(box))
    return Row(
        "the same beside tar -czf",
        f"{ours * 1e3:.0f} ms",
        f"{slow * 1e3:.0f} ms",
        slow / ours,
        ">= 8",
        slow >= 8 * ours,
    )


def change(client: Any, box: str, number: int) -> list[str]:
    names = [f"{folder}/changed-{number}" for folder in range(CHANGED)]
    client.sandbox.exec(box, f"for name in {' '.join(names)}; do head -c 20000 /dev/urandom >$name; done; sync .")
    return names


def incremental_row(client: Any, root: str, box: str, state_dir: str, what: str) -> Row:
    upper = f"{state_dir}/sandboxes/{box}/upper"
    client.snapshot.create(box, incremental=True)
    ours, floor = [], []
    for number in range(FORK_ROUNDS):
        names = change(client, box, number)
        target = f"{root}/by-hand-{next(_numbers)}.tar.gz"

        def by_hand(names: list[str] = names, target: str = target) -> None:
            subprocess.run(["find", upper, "-printf", r"%y %i %C@ %P\0"], stdout=subprocess.DEVNULL, check=True)
            packed_by_hand(upper, target, *names)

        floor.append(seconds(by_hand))
        ours.append(seconds(lambda: client.snapshot.create(box, incremental=True)))
    return row(f"incremental snapshot, {CHANGED} files changed, {what}", ours, "find, tar, ISA-L", floor, 3)


def fork_rows(client: Any, root: str, boxes: dict[str, tuple[str, str]], state_dir: str) -> list[Row]:
    rows, medians = [], []
    for size, (box, source) in boxes.items():
        change(client, box, 0)
        upper = f"{state_dir}/sandboxes/{box}/upper"
        ours, floor = [], []
        for _ in range(FORK_ROUNDS):
            place = f"{root}/fork-{next(_numbers)}"

            def by_hand(place: str = place, source: str = source, upper: str = upper) -> None:
                mount_overlay(source, place)
                run_bare()
                subprocess.run(["cp", "-a", "-T", upper, f"{place}/copy"], check=True)

            floor.append(seconds(by_hand))
            subprocess.run(["umount", f"{place}/merged"], check=True)
            ours.append(seconds(lambda box=box: end(client, client.sandbox.fork(box).sandboxes)))
        rows.append(row(f"fork of a sandbox, {size} image", ours, "overlay mount, bwrap, cp -a", floor, 3))
        medians.append(statistics.median(ours))
    ratio = medians[1] / medians[0]
    rows.append(
        Row(
            "fork, 2 GB beside 200 MB",
            f"{medians[1] * 1e3:.0f} ms",
            f"{medians[0] * 1e3:.0f} ms",
            ratio,
            "<= 1.25",
            ratio <= 1.25,
        )
    )
    box = next(iter(boxes.values()))[0]
    many = seconds(lambda: end(client, client.sandbox.fork(box, count=MANY).sandboxes))
    times = many / medians[0]
    rows.append(
        Row(
            f"{MANY} forks at once",
            f"{many * 1e3:.0f} ms",
            f"one {medians[0] * 1e3:.0f} ms",
            times,
            "<= 60",
            times <= 60,
        )
    )
    return rows


_made: list[str] = []


def end(_: Any, sandboxes: list[Any]) -> None:
    """They are ended when the time was taken."""
    _made.extend(made.sandbox_id for made in sandboxes)


def clear(client: Any) -> None:
    while _made:
        client.sandbox.terminate(_made.pop())


def restore_row(client: Any, root: str, box: str) -> Row:
    snapshot = client.snapshot.create(box)
    archive = snapshot.places[0].uri
    ours, floor = [], []
    for _ in range(ROUNDS):
        place = f"{root}/unpacked-{next(_numbers)}"
        os.mkdir(place)
        floor.append(seconds(lambda place=place: subprocess.run(["tar", "-C", place, "-xzf", archive], check=True)))
        subprocess.run(["rm", "-rf", place], check=True)
        begun = seconds(lambda: end(client, [client.snapshot.restore(snapshot.snapshot_id)]))
        ours.append(begun)
        clear(client)
    return row(f"restore of {BYTES // 10**6} MB in {FILES:,} files", ours, "tar -xzf", floor, 1.3)


def run() -> list[Row]:
    rows: list[Row] = []
    with daemon() as (client, root):
        state_dir = f"{root}/state"
        source = tree(f"{root}/source", FILES, BYTES // FILES)
        image = client.image.create(source).image_id
        box = client.sandbox.create(image).sandbox_id
        rows += full_rows(client, root, source, box, "of the image")
        rows.append(gzip_row(client, root, source, box))
        rows.append(restore_row(client, root, box))
        inside = client.sandbox.create(client.image.create(empty(root)).image_id).sandbox_id
        transfer.copy_in(client, f"{source}/.", inside, "/workspace")
        rows += full_rows(client, root, source, inside, "written inside")
        rows.append(incremental_row(client, root, inside, state_dir, f"{FILES:,} files written inside"))
        rows.append(incremental_row(client, root, box, state_dir, f"{FILES:,} files in the image"))
        large = tree(f"{root}/many", 10 * FILES, 100)
        many = client.sandbox.create(client.image.create(large).image_id).sandbox_id
        rows.append(incremental_row(client, root, many, state_dir, f"{10 * FILES:,} files in the image"))
        shutil.rmtree(large)
        huge = reserved(f"{root}/huge")
        boxes = {
            "200 MB": (box, source),
            "2 GB": (client.sandbox.create(client.image.create(huge).image_id).sandbox_id, huge),
        }
        rows += fork_rows(client, root, boxes, state_dir)
        clear(client)
    return rows


def empty(root: str) -> str:
    os.mkdir(f"{root}/empty")
    return f"{root}/empty"


def reserved(top: str) -> str:
    """2 GB in as many files, whose blocks are reserved and not written."""
    for number in range(FILES):
        folder = f"{top}/{number // 100}"
        if number % 100 == 0:
            os.makedirs(folder)
        with open(f"{folder}/{number}", "wb") as file:
            os.truncate(file.fileno(), 10 * BYTES // FILES)
    return top


if __name__ == "__main__":
    show(run())
