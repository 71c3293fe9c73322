"""`sandbox.stats` of one sandbox and of a hundred, beside reading the same files of the same groups and nothing else.

The floor is what no reader of these files can do without: opening each, reading it and closing it, in one process. What
is above it is the request, the thread that reads, the numbers' way out of the text, and the answer as JSON.
"""

import glob
import os
from statistics import median
from typing import Any

from benches import fair
from benches.daemon import daemon, per_cent, seconds, tree
from benches.table import Row, show

BOXES = 100
ROUNDS = {1: 300, BOXES: 40}
MOST = {1: 8.0, BOXES: 3.0}

FILES = {
    "cpuacct": ("cpuacct.usage", "cpuacct.stat"),
    "memory": (
        "memory.usage_in_bytes", "memory.stat", "memory.max_usage_in_bytes", "memory.limit_in_bytes",
        "memory.oom_control",
    ),
    "pids": ("pids.current", "pids.max", "cgroup.procs"),
    "blkio": ("blkio.throttle.io_service_bytes_recursive",),
    "": (
        "cpu.stat", "cpu.max", "memory.stat", "memory.current", "memory.peak", "memory.max", "memory.events", "io.stat",
        "pids.current", "pids.max",
    ),
}  # fmt: skip
"""What is read of a group: in each hierarchy of version 1, and in version 2."""


def paths(log_id: str, box: str) -> list[str]:
    """Those that are there, and what the processes themselves tell where no group counts input and output."""
    found = []
    for group in glob.glob(f"/sys/fs/cgroup/**/{log_id}.{box}", recursive=True):
        hierarchy = group.split("/")[4]
        names = FILES.get(hierarchy if not os.path.exists(f"{group}/cgroup.controllers") else "", ())
        found += [f"{group}/{name}" for name in names]
        if hierarchy == "pids":
            with open(f"{group}/cgroup.procs") as procs:
                found += [f"/proc/{pid}/io" for pid in procs.read().split()]
    return [path for path in found if os.path.exists(path)]


def read(files: list[str]) -> None:
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.read(descriptor, 65536)
        os.close(descriptor)


def row(client: Any, files: dict[str, list[str]], count: int) -> Row:
    boxes = list(files)[:count]
    wanted = [path for box in boxes for path in files[box]]
    asked = {"sandbox_id": boxes[0]} if count == 1 else {}
    ours, floor = [], []
    for _ in range(ROUNDS[count]):
        floor.append(seconds(lambda: read(wanted)))
        ours.append(seconds(lambda: client.sandbox.stats(**asked)))
    ratio = median(ours) / median(floor)
    what = "one sandbox" if count == 1 else f"{count} sandboxes"
    return Row(
        f"sandbox.stats of {what}",
        f"p50 {median(ours) * 1e3:.2f}, p99 {per_cent(ours, 0.99) * 1e3:.1f} ms",
        f"reading {len(wanted)} files {median(floor) * 1e3:.2f} ms",
        ratio,
        f"<= {MOST[count]:g}",
        ratio <= MOST[count],
    )


@fair.conditions()
def run() -> list[Row]:
    with daemon() as (client, root):
        image_id = client.image.create(tree(root, "small", 10, 1000)).image_id
        log_id = client.daemon.status().log_id
        boxes = [client.sandbox.create(image_id).sandbox_id for _ in range(BOXES)]
        files = {box: paths(log_id, box) for box in boxes}
        return [row(client, files, count) for count in (1, BOXES)]


if __name__ == "__main__":
    show(run())
