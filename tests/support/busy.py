"""A daemon in which command after command runs, in rounds; a process of its own, so that its memory can be told.

After each round it does at once what otherwise comes with the days: it archives, and drops output. It says then, a JSON
document a line, how large it is and what lies on the disk, apart from the archive.
"""

import os
import sys
import time

import msgspec
import trio
from tests.support.inside import inside

from sandkeep.events import Meta
from sandkeep.protocol.clock import now_us
from sandkeep_store.upkeep import offline, segments
from sandkeepd.sandboxes.output_limit import OutputLimit

SIDE_BY_SIDE = 16


class Size(msgspec.Struct):
    execs: int
    resident_bytes: int
    disk_bytes: int
    files: int
    fold_s: float


async def work(state_dir: str, source: str, rounds: int, execs: int) -> None:
    async with inside(state_dir) as daemon:
        image = await daemon.image(source)
        box = (await daemon.call("sandbox.create", image_id=image)).sandbox_id
        for number in range(rounds):
            await many(daemon, box, execs)
            await daemon.retention.archive(now_us(), Meta())
            await OutputLimit(daemon.core).trim()
            await daemon.core.files.flush()
            fold_s = await trio.to_thread.run_sync(fold_seconds, daemon.core.log)
            size = Size((number + 1) * execs, resident_bytes(), *on_disk(state_dir), fold_s)
            os.write(1, msgspec.json.encode(size) + b"\n")
        view = await daemon.call("sandbox.get", sandbox_id=box)
        assert view.exec_count == rounds * execs
        await daemon.call("sandbox.terminate", sandbox_id=box)


async def many(daemon, box: str, execs: int) -> None:  # type: ignore[no-untyped-def]
    left = iter(range(execs))

    async def some() -> None:
        for number in left:
            done = await daemon.call("sandbox.exec", sandbox_id=box, command=f"echo {number}")
            assert done.stdout == b"%d\n" % number

    async with trio.open_nursery() as nursery:
        for _ in range(SIDE_BY_SIDE):
            nursery.start_soon(some)


def fold_seconds(log) -> float:  # type: ignore[no-untyped-def]
    begun = time.perf_counter()
    offline.fold(log)
    return time.perf_counter() - begun


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def on_disk(state_dir: str) -> tuple[int, int]:
    sizes = [
        os.lstat(f"{folder}/{name}").st_blocks * 512
        for folder, _, names in os.walk(state_dir)
        for name in names
        if not folder.endswith(segments.FOLDER)
    ]
    return sum(sizes), len(sizes)


if __name__ == "__main__":
    trio.run(work, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
