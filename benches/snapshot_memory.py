"""The memory of a daemon that makes a snapshot of 2 GB and sends it to a bucket, over what it has when idle.

The bytes are noise, so that the archive is as large as the files. The library of the bucket's service is loaded by the
first snapshot, so it counts too.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benches import fair
from benches.archives import BIG_MIB, MOST_MIB
from benches.buckets import bucket
from benches.daemon import daemon
from benches.table import Row, show

MIB = 1 << 20
FILE_MIB = 16


def noise(top: str) -> str:
    """Files of so many bytes together; in none does anything come twice that a compressor would see."""
    os.makedirs(top)
    content = os.urandom(FILE_MIB * MIB)
    for number in range(BIG_MIB // FILE_MIB):
        with open(f"{top}/{number}", "wb") as file:
            file.write(content)
    return top


def memory_mib(pid: int, line: str) -> float:
    with open(f"/proc/{pid}/status") as status:
        return next(int(each.split()[1]) for each in status if each.startswith(line)) / 1024


def forget_peak(pid: int) -> None:
    with open(f"/proc/{pid}/clear_refs", "w") as peaks:
        peaks.write("5")


def peaks(client: Any, root: str) -> tuple[float, float]:
    """Of a snapshot, and of a restore of it, each over what the daemon had before the first."""
    box = client.sandbox.create(client.image.create(noise(f"{root}/source")).image_id).sandbox_id
    pid = client.daemon.status().pid
    idle = memory_mib(pid, "VmRSS")
    forget_peak(pid)
    snapshot = client.snapshot.create(box, archive="bucket")
    assert snapshot.size_bytes > BIG_MIB * MIB, snapshot
    made = memory_mib(pid, "VmHWM") - idle
    forget_peak(pid)
    client.snapshot.restore(snapshot.snapshot_id)
    return made, memory_mib(pid, "VmHWM") - idle


def rows(where: str) -> Iterator[Row]:
    with bucket(where) as environment:
        os.environ.update(environment)
        try:
            with daemon() as (client, root):
                measured = peaks(client, root)
        finally:
            for name in environment:
                del os.environ[name]
    for what, mib in zip(("snapshot of 2 GB to", "restore of 2 GB from"), measured, strict=True):
        case = f"the daemon's memory for a {what} {where.upper()}, over idle"
        yield Row(case, f"{mib:.0f} MiB", "-", mib / MOST_MIB, f"<= {MOST_MIB:.0f} MiB", mib <= MOST_MIB)


@fair.conditions()
def run(services: Sequence[str] = ("gcs", "s3")) -> list[Row]:
    return [row for where in services for row in rows(where)]


if __name__ == "__main__":
    show(run(sys.argv[1:] or ("gcs", "s3")))
