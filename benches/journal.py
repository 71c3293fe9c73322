"""A process that writes much, into its journal, beside the same command redirected to a file.

SANDKEEP_BENCH_MB=1000 python -m benches.journal
"""

import os
import subprocess
import tempfile
import time
from statistics import median

import trio
from benches import fair
from benches.sandboxes import create, image, provider, timed
from benches.table import Row, show

from sandkeep.ids import PROCESS, new_id
from sandkeepd.contract.processes import Launch
from sandkeepd.host.processes import TOOL_ENV

MEGABYTES = int(os.environ.get("SANDKEEP_BENCH_MB", "200"))
ROUNDS = 5
COMMAND = ["head", "-c", f"{MEGABYTES}M", "/dev/zero"]


def _redirected(directory: str) -> None:
    with tempfile.TemporaryFile(dir=directory) as file:
        subprocess.run(COMMAND, stdout=file, env=TOOL_ENV, check=True)


async def _measure() -> list[Row]:
    ours: list[float] = []
    floor: list[float] = []
    async with provider() as local:
        instance, plan = await create(local, image(local, 10, 1000))
        for _ in range(ROUNDS):
            process_id = new_id(PROCESS)
            start = time.perf_counter()
            await instance.launch(Launch(process_id=process_id, command=COMMAND))
            await instance.wait(process_id)
            ours.append((time.perf_counter() - start) * 1e3)
            assert instance.read(process_id, "stdout", 0, 0).size == MEGABYTES << 20
            os.unlink(f"{local.layout.sandbox(instance.sandbox_id)}/out/p/{process_id}.stdout")
            floor.append(timed(lambda: _redirected(local.layout.state_dir)))
        await local.terminate(instance.sandbox_id, plan, instance.handle)
    speeds = [f"{MEGABYTES / median(samples) * 1e3:.0f} MB/s" for samples in (ours, floor)]
    ratio = median(floor) / median(ours)
    return [
        Row(f"journal, {MEGABYTES} MB of output", speeds[0], f"{speeds[1]} to a file", ratio, ">= 0.7", ratio >= 0.7)
    ]


@fair.conditions()
def run() -> list[Row]:
    return trio.run(_measure)


if __name__ == "__main__":
    show(run())
