"""Cost of a disk of its own for a sandbox: creation, fork, incremental snapshot with `--disk` and without, in turns.

The target is a difference, so the ratio is to ten milliseconds. Both have the same few changed files.
"""

import functools
from collections.abc import Iterator
from statistics import median
from typing import Any

from benches import fair
from benches.daemon import daemon, seconds
from benches.pack import grow
from benches.table import Row, show

ROUNDS = 25
GIB = 1 << 30
MOST_MS = 10.0


class Boxes:
    """A sandbox with a disk and one without, over the same image."""

    def __init__(self, client: Any, image_id: str) -> None:
        self._client, self._image_id = client, image_id
        self._made: list[str] = []
        self._kept = {size: client.sandbox.create(image_id, disk_bytes=size).sandbox_id for size in (None, GIB)}
        for box in self._kept.values():
            client.sandbox.exec(box, "head -c 1000000 /dev/urandom >changed; sync .")

    def create(self, size: int | None) -> None:
        self._made.append(self._client.sandbox.create(self._image_id, disk_bytes=size).sandbox_id)

    def fork(self, size: int | None) -> None:
        self._made.append(self._client.sandbox.fork(self._kept[size]).sandboxes[0].sandbox_id)

    def snapshot(self, size: int | None) -> None:
        self._client.snapshot.create(self._kept[size], incremental=True)

    def _clear(self) -> None:
        while self._made:
            self._client.sandbox.terminate(self._made.pop())

    def rows(self) -> Iterator[Row]:
        for what, work in {"create": self.create, "fork": self.fork, "snapshot": self.snapshot}.items():
            took: dict[int | None, list[float]] = {None: [], GIB: []}
            for turn in range(ROUNDS + 1):
                for size in (None, GIB) if turn % 2 else (GIB, None):
                    spent = seconds(functools.partial(work, size)) * 1e3
                    if turn:
                        took[size].append(spent)
                    self._clear()
            plain, own = median(took[None]), median(took[GIB])
            case = f"{what} of a sandbox with a disk of 1 GiB: milliseconds more"
            more, limit = (own - plain) / MOST_MS, f"<= {MOST_MS:g} ms"
            yield Row(case, f"{own:.1f} ms", f"{plain:.1f} ms without", more, limit, more <= 1)


@fair.conditions()
def run() -> list[Row]:
    with daemon() as (client, root):
        source = f"{root}/source"
        grow(source, 200, 20 * 10**6)
        return list(Boxes(client, client.image.create(source).image_id).rows())


if __name__ == "__main__":
    show(run())
