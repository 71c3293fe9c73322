"""`sandkeep cp` of a tree, in and out, as whole commands, beside `tar | tar` by hand on the same filesystem.

The tree is a project as there are many: 2,000 files, most of them small, some of megabytes, 200 MB in all.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

from benches import fair
from benches.daemon import daemon, seconds
from benches.table import Row, show

PAIRS = 8
MOST = 1.5
Pair = tuple[float, float]
SIZES = ((1700, 4_000), (250, 100_000), (46, 1_500_000), (4, 25_000_000))
"""How many files of how many bytes."""


def project(top: str) -> int:
    """Make the tree; answer how many bytes are in its files."""
    number = total = 0
    for count, size in SIZES:
        for _ in range(count):
            folder = f"{top}/{number % 20}/{number % 7}"
            os.makedirs(folder, exist_ok=True)
            with open(f"{folder}/{number}", "wb") as file:
                file.write(os.urandom(size))
            number, total = number + 1, total + size
    return total


def by_hand(source: str, target: str) -> None:
    os.mkdir(target)
    script = 'tar -C "$1" -cf - . | tar -C "$2" -xf -'
    subprocess.run(["sh", "-c", script, "sh", source, target], check=True)


def _row(name: str, total: int, pairs: list[Pair]) -> Row:
    ratio = statistics.median(mine / bare for mine, bare in pairs)
    figure, beside = (f"{statistics.median(values) * 1e3:.0f} ms" for values in zip(*pairs, strict=True))
    files = sum(count for count, _ in SIZES)
    case = f"`sandkeep cp` {name}, {total / 1e6:.0f} MB in {files:,} files"
    return Row(case, figure, f"{beside} tar, tar", ratio, f"<= {MOST}", ratio <= MOST)


def in_turns(ours: Callable[[int], None], bare: Callable[[int], None], clear: Callable[[int], None]) -> Iterator[Pair]:
    """Times of both, each as often first as the other; before them one of each, for warmth alone."""
    for turn in range(PAIRS + 1):
        if turn % 2:
            mine, floor = seconds(partial(ours, turn)), seconds(partial(bare, turn))
        else:
            floor, mine = seconds(partial(bare, turn)), seconds(partial(ours, turn))
        clear(turn)
        if turn:
            yield mine, floor


@fair.conditions()
def run() -> list[Row]:
    script = os.path.join(os.path.dirname(sys.executable), "sandkeep")
    with daemon() as (client, root):
        environment = {**os.environ, "SANDKEEP_SOCKET": f"{root}/sock"}
        source = f"{root}/project"
        total = project(source)
        os.mkdir(f"{root}/empty")
        box = client.sandbox.create(client.image.create(f"{root}/empty").image_id).sandbox_id

        def cp(source: str, target: str) -> None:
            subprocess.run([script, "cp", source, target], env=environment, check=True)

        def remove(turn: int) -> None:
            subprocess.run(["rm", "-rf", f"{root}/hand{turn}", f"{root}/out{turn}"], check=True)
            client.sandbox.exec(box, ["rm", "-rf", f"in{turn}"])

        def bare(turn: int) -> None:
            by_hand(source, f"{root}/hand{turn}")

        cp(source, f"{box}:kept")
        going_in = in_turns(lambda turn: cp(source, f"{box}:in{turn}"), bare, remove)
        going_out = in_turns(lambda turn: cp(f"{box}:kept", f"{root}/out{turn}"), bare, remove)
        return [_row("in", total, list(going_in)), _row("out", total, list(going_out))]


if __name__ == "__main__":
    show(run())
