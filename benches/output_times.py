"""The daemon's processor time for the times of output, beside the least that a mark costs.

The floor is what no program can do without that notes how long two files were when: the status of both, and an append
of 24 bytes to a file that is opened for it. What is above it is waiting for the files to grow, and the turns of a loop.
"""

import os
import struct
import time
from collections.abc import Callable
from typing import Any

from benches import fair
from benches.daemon import daemon
from benches.table import Row, show

from sandkeepd.sandboxes.output_times import OutputTimes

SECONDS = 10.0
FLOOR_MARKS = 5000
CASES = {
    "one process that prints without end": (1, "while :; do echo x; done", 150.0),
    "100 processes, a line a second each": (100, "while :; do echo x; sleep 1; done", 100.0),
    "100 processes, 10 lines a second each": (100, "while :; do echo x; sleep 0.1; done", 10.0),
}
"""By case how many processes, what they do, and how many floors a mark may take at most."""


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def floor_us(root: str) -> float:
    """Processor time of a mark, in microseconds."""
    files = [f"{root}/stdout", f"{root}/stderr"]
    for path in files:
        open(path, "w").close()
    begun = time.process_time()
    for _ in range(FLOOR_MARKS):
        sizes = [os.stat(path).st_size for path in files]
        descriptor = os.open(f"{root}/marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, struct.pack("<QQQ", time.time_ns() // 1000, *sizes))
        os.close(descriptor)
    return (time.process_time() - begun) / FLOOR_MARKS * 1e6


def share(pid: int) -> float:
    """Share of a processor that a process takes for a while."""
    begun, before = time.perf_counter(), cpu_s(pid)
    time.sleep(SECONDS)
    return (cpu_s(pid) - before) / (time.perf_counter() - begun)


def row(client: Any, case: str, box: str, marks: Callable[[], int], root: str) -> Row:
    count, script, most = CASES[case]
    pid = client.daemon.status().pid
    idle = share(pid)
    for _ in range(count):
        client.process.launch(box, ["sh", "-c", script])
    time.sleep(2)
    before, floor = marks(), floor_us(root)
    ours, made = share(pid) - idle, marks() - before
    for process in client.process.list(sandbox_id=box).processes:
        client.process.signal(box, process.name, signal="KILL")
    each = ours * SECONDS / max(1, made) * 1e6
    figure = f"{ours:.1%} of a processor, {made / SECONDS:.0f} marks/s, {each:.0f} us each"
    ratio = each / floor
    return Row(f"times of output: {case}", figure, f"{floor:.0f} us", ratio, f"<= {most:g}", ratio <= most)


@fair.conditions()
def run() -> list[Row]:
    with daemon() as (client, root):
        os.mkdir(f"{root}/empty")
        image_id = client.image.create(f"{root}/empty").image_id
        times = OutputTimes(f"{root}/state")
        rows = []
        for case in CASES:
            box = client.sandbox.create(image_id).sandbox_id
            directory = f"{root}/state/output-times/{box}"
            marks = lambda: sum(len(times.load(box, name)) for name in os.listdir(directory))  # noqa: B023, E731
            rows.append(row(client, case, box, marks, root))
            client.sandbox.terminate(box)
    return rows


if __name__ == "__main__":
    show(run())
