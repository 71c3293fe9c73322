"""Sandboxes in a real cluster, which `SANDKEEP_CLUSTER` names, beside the official client and `kubectl`.

Without it there is nothing to measure. It has to have agent-sandbox; see `tests/cluster/README.md`. Its servers have no
precedence; where they run on this machine, they share it with both.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benches import fair
from benches.copy import in_turns
from benches.daemon import daemon, seconds
from benches.docker import ms
from benches.elsewhere import ROUNDS, Ours, Times, crowd_row, exec_row
from benches.kubernetes import BESIDE, ByHand, alone_row
from benches.table import Row, show
from tests.support.kubernetes import live

FEW, FEW_AT_ONCE = 30, 8
MANY, MANY_AT_ONCE = 100, 16
ALONE = 10
COPIED_BYTES = 50_000_000
MOST_EXEC, MOST_CREATE, MOST_COPY = 0.1, 1.1, 1.0


def crowd(client: Any, root: str, pod: str, box: str, number: int, at_once: int) -> Row:
    ours, by_hand = Ours(client, root, "kubernetes", at_once), ByHand(live.LiveCluster(), box, pod, at_once)
    times: Times = [], []
    for _ in range({1: ALONE, FEW: ROUNDS}.get(number, 1)):
        with by_hand.watching():
            times[1].append(seconds(lambda: by_hand.make_crowd(number)))
        times[0].append(seconds(lambda: ours.make(number)))
        ours.clear()
    what = f"{number} made in a real cluster"
    return crowd_row(what, times, "the official client, the same requests", MOST_CREATE, at_once)


def copy_rows(client: Any, root: str, box: str, pod: str, place: Path) -> Iterator[Row]:
    """A file of 50 MB of random bytes, in and out, by whole commands."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return
    (place / "file").write_bytes(os.urandom(COPIED_BYTES))

    environment = {**os.environ, "SANDKEEP_SOCKET": f"{root}/sock", "KUBECONFIG": str(live.LiveCluster.kubeconfig)}

    def cp(program: str, source: object, target: object) -> None:
        command = [program, "cp", str(source), str(target)]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

    there = client.sandbox.exec(box, ["pwd"]).stdout.decode().strip()
    sandkeep = os.path.join(os.path.dirname(sys.executable), "sandkeep")
    put = list(
        in_turns(
            lambda turn: cp(sandkeep, place / "file", f"{box}:ours{turn}"),
            lambda turn: cp(kubectl, place / "file", f"{pod}:{there}/theirs{turn}"),
            lambda _: None,
        )
    )
    got = list(
        in_turns(
            lambda turn: cp(sandkeep, f"{box}:ours0", place / f"ours{turn}"),
            lambda turn: cp(kubectl, f"{pod}:{there}/ours0", place / f"theirs{turn}"),
            lambda _: None,
        )
    )
    assert (place / "ours0").read_bytes() == (place / "file").read_bytes() == (place / "theirs0").read_bytes()
    for pairs, way in ((put, "into"), (got, "out of")):
        times = [ours for ours, _ in pairs], [bare for _, bare in pairs]
        ours, bare = map(median, times)
        case = f"{COPIED_BYTES / 1e6:.0f} MB {way} a pod of a real cluster"
        yield Row(case, ms(times[0]), f"kubectl cp {ms(times[1])}", ours / bare, f"<= {MOST_COPY}", ours <= bare)


@fair.conditions()
def run() -> list[Row]:
    if not live.is_wanted():
        return []
    with (
        tempfile.TemporaryDirectory() as made,
        daemon(KUBECONFIG=str(live.LiveCluster.kubeconfig)) as (client, root),
    ):
        ours = Ours(client, root, "kubernetes")
        box = ours.one()
        pod = f"sandbox-{box.removeprefix('sbx_')}"
        by_hand = ByHand(live.LiveCluster(), box, pod)
        rows = [alone_row("of a real cluster, provider alone", live.LiveCluster(), by_hand, f"{made}/state")]
        durable = ours.exec_times(box, lambda: by_hand.exec(pod))
        rows.append(exec_row("in a pod of a real cluster, both commits durable", durable, BESIDE, MOST_EXEC))
        rows += [crowd(client, root, pod, box, *which) for which in ((1, 1), (FEW, FEW_AT_ONCE), (MANY, MANY_AT_ONCE))]
        rows += copy_rows(client, root, box, pod, Path(made))
        client.sandbox.terminate(box)
        return rows


if __name__ == "__main__":
    show(run())
