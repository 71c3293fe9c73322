"""`sandkeep ls` as a whole process beside `python3 -c pass`: pairs of them in turns, and the median of their ratios."""

import os
import statistics
import subprocess
import sys
import tempfile
import time

from benches import fair
from benches.table import Row

from sandkeep.demo.house import DemoDaemon

PAIRS = 40
MOST = 8.0


def _time(command: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


@fair.conditions()
def run() -> list[Row]:
    script = os.path.join(os.path.dirname(sys.executable), "sandkeep")
    place = DemoDaemon()
    try:
        place.start()
        with tempfile.TemporaryDirectory() as project, place.connect() as client:
            fair.check(client.daemon.status().pid)
            image = client.image.create(project)
            for _ in range(3):
                client.sandbox.create(image.image_id)
        pairs = [
            (_time([script, "ls"], place.environment), _time([sys.executable, "-c", "pass"], place.environment))
            for _ in range(PAIRS)
        ]
    finally:
        place.clear(keep=False)
    figure, floor = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
    ratio = statistics.median(ours / bare for ours, bare in pairs)
    return [
        Row(
            "`sandkeep ls`, 3 sandboxes",
            f"{figure:.0f} ms",
            f"`python3 -c pass` {floor:.0f} ms",
            ratio,
            f"<= {MOST:g}",
            ratio <= MOST,
        )
    ]
