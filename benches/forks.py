"""Forks of local sandboxes through a real daemon, beside an overlay mount, a bare bubblewrap and `cp -a` by hand."""

import os
import statistics
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from benches import fair
from benches.daemon import daemon, mount_overlay, run_bare, seconds
from benches.pack import FILES, row
from benches.snapshots import at_most, change
from benches.table import Row, show

ROUNDS = 15
MANY, MANY_ROUNDS = 100, 3
SIZES = {"200 MB": 200 * 10**6, "2 GB": 2 * 10**9}


class Forked:
    """A sandbox over an image of some size, with some files changed, that is forked in turns with the same by hand."""

    def __init__(self, client: Any, root: str, label: str) -> None:
        self._client = client
        self._root = f"{root}/{label.replace(' ', '')}"
        self._source = reserved(f"{self._root}/source", SIZES[label])
        self._box = client.sandbox.create(client.image.create(self._source).image_id).sandbox_id
        self._upper = f"{root}/state/sandboxes/{self._box}/upper"
        self._number = 0
        self._made: list[str] = []
        change(client, self._box)

    def fork(self, times: int = 1) -> None:
        made = self._client.sandbox.fork(self._box, count=times).sandboxes
        self._made += [each.sandbox_id for each in made]

    def by_hand(self) -> None:
        self._number += 1
        place = f"{self._root}/{self._number}"
        mount_overlay(self._source, place)
        run_bare()
        subprocess.run(["cp", "-a", "-T", self._upper, f"{place}/copy"], check=True)

    def clear(self) -> None:
        while self._made:
            self._client.sandbox.terminate(self._made.pop())
        while self._number:
            subprocess.run(["umount", f"{self._root}/{self._number}/merged"], check=True)
            subprocess.run(["rm", "-rf", f"{self._root}/{self._number}"], check=True)
            self._number -= 1


def reserved(top: str, size: int) -> str:
    """Files whose blocks are reserved and not written: a fork reads none of them."""
    for number in range(FILES):
        folder = f"{top}/{number // 100}"
        if number % 100 == 0:
            os.makedirs(folder)
        with open(f"{folder}/{number}", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size // FILES)
    return top


def one_rows(boxes: dict[str, Forked]) -> Iterator[Row]:
    """Forks of the small and of the large one come in turns as well, since they are compared."""
    pairs: dict[str, list[tuple[float, float]]] = {label: [] for label in boxes}
    for turn in range(ROUNDS + 1):
        for label, box in list(boxes.items())[:: 1 if turn % 2 else -1]:
            ours, bare = in_turn(box.fork, box.by_hand, first=turn % 4 < 2)
            if turn:
                pairs[label].append((ours, bare))
            box.clear()
    for label in boxes:
        case = f"fork of a sandbox, {label} image in {FILES:,} files"
        yield row(case, "overlay mount, bwrap, cp -a", pairs[label], *at_most(3))
    small, large = ([ours for ours, _ in each] for each in pairs.values())
    yield row("fork, 2 GB image", "200 MB image", list(zip(large, small, strict=True)), *at_most(1.25))


def in_turn(mine: Callable[[], None], floor: Callable[[], None], *, first: bool) -> tuple[float, float]:
    works = [mine, floor] if first else [floor, mine]
    took = {}
    for work in works:
        os.sync()  # what the one before made comes to the disk in the background
        took[work] = seconds(work)
    return took[mine], took[floor]


def many_row(box: Forked) -> Row:
    """One beside a hundred: that one is the median of several around it, as it is a hundredth of the time."""
    pairs = []
    for _ in range(MANY_ROUNDS):
        ones = [seconds(box.fork) for _ in range(3)]
        box.clear()
        many = seconds(lambda: box.fork(MANY))
        box.clear()
        ones += [seconds(box.fork) for _ in range(3)]
        box.clear()
        pairs.append((many, statistics.median(ones)))
    return row(f"{MANY} forks of one sandbox at once", "one", pairs, *at_most(60))


@fair.conditions()
def run() -> list[Row]:
    with daemon() as (client, root):
        boxes = {label: Forked(client, root, label) for label in SIZES}
        return [*one_rows(boxes), many_row(boxes["200 MB"])]


if __name__ == "__main__":
    show(run())
