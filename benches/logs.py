"""`sandkeep logs` of a gigabyte, to a file on the same disk and through a pipe, beside `cat` of the journal itself.

SANDKEEP_BENCH_MB=100 python -m benches.logs
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

from benches import fair
from benches.daemon import daemon
from benches.table import Row, show

MEGABYTES = int(os.environ.get("SANDKEEP_BENCH_MB", "1024"))
ROUNDS = 5


def to_file(command: Sequence[str], path: str) -> float:
    """Seconds until the command has written its output there, into a new file."""
    begun = time.perf_counter()
    with open(path, "wb") as file:
        subprocess.run(command, stdout=file, check=True)
    took = time.perf_counter() - begun
    assert os.path.getsize(path) == MEGABYTES << 20
    os.unlink(path)
    return took


def through_pipe(command: Sequence[str], path: str) -> float:  # noqa: ARG001  # it has the shape of `to_file`
    """Seconds until another process has read it all from a pipe."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        counted = subprocess.run(["wc", "-c"], stdin=process.stdout, capture_output=True, check=True)
    took = time.perf_counter() - begun
    assert int(counted.stdout) == MEGABYTES << 20
    return took


@fair.conditions()
def run() -> list[Row]:
    rows = []
    with daemon() as (client, root):
        os.mkdir(f"{root}/empty")
        box = client.sandbox.create(client.image.create(f"{root}/empty").image_id).sandbox_id
        process = client.process.launch(box, ["head", "-c", f"{MEGABYTES}M", "/dev/urandom"], name="writer")
        client.process.wait(box, "writer")
        journal = f"{root}/state/sandboxes/{box}/out/p/{process.process_id}.stdout"
        logs = [sys.executable, "-m", "sandkeep.cli", "--socket", f"{root}/sock", "logs", box, "writer"]
        for label, measured in (("to a file", to_file), ("through a pipe", through_pipe)):
            pairs = [
                (measured(["cat", journal], f"{root}/copy"), measured(logs, f"{root}/copy")) for _ in range(ROUNDS)
            ]
            cat, ours = (median(samples) for samples in zip(*pairs, strict=True))
            ratio = median(floor / figure for floor, figure in pairs)
            case = f"sandkeep logs of {MEGABYTES:,} MB, {label}"
            speeds = [f"{MEGABYTES / took:.0f} MB/s" for took in (ours, cat)]
            rows.append(Row(case, speeds[0], f"cat {speeds[1]}", ratio, ">= 0.5", ratio >= 0.5))
    return rows


if __name__ == "__main__":
    show(run())
