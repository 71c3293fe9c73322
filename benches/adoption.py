"""How long after READY a daemon that was killed has taken over everything that runs again.

The floor is what nobody can do without who takes over processes: a descriptor of each sandbox's first process, whose
start is looked at, and what the keeper has told, read from its file. It is measured in turns with the daemon's starts,
on the same sandboxes. READY itself stands beside that of a daemon with nothing on record, started in the same rounds.
"""

import os
import signal
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benches import fair
from benches.start import start_daemon
from benches.table import Row, show

from sandkeep.blocking import connect
from sandkeep.events import SandboxCreated
from sandkeep_store.eventlog.log import EventLog
from sandkeepd.host.processes import Identity, open_process

SANDBOXES = int(os.environ.get("SANDKEEP_BENCH_SANDBOXES", "200"))
PROCESSES = 5
ROUNDS = 5
MOST_S = 2.0
MOST_READY = 1.5


def populate(root: str) -> None:
    """Have a daemon make the sandboxes and what runs in them."""
    os.makedirs(f"{root}/image")
    with connect(f"{root}/sock") as client:
        image = client.image.create(f"{root}/image").image_id

    def make(_: int) -> None:
        with connect(f"{root}/sock") as client:
            box = client.sandbox.create(image).sandbox_id
            for number in range(PROCESSES):
                client.process.launch(box, ["sleep", "100000"], name=f"p{number}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(make, range(SANDBOXES)))


def kill(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(30)


def records(root: str) -> list[tuple[str, Identity]]:
    """Each sandbox's directory and first process, from the log."""
    found: list[tuple[str, Identity]] = []

    def note(fact: Any) -> None:
        if isinstance(fact.event, SandboxCreated):
            found.append((f"{root}/state/sandboxes/{fact.stream}", Identity(**fact.event.handle["first"])))

    log = EventLog.open(f"{root}/state/events.db")
    log.scan(note)
    log.close()
    return found


def bare(found: list[tuple[str, Identity]]) -> float:
    """The floor, in seconds."""
    begun = time.perf_counter()
    for directory, first in found:
        pidfd = open_process(first)
        assert pidfd is not None
        with open(f"{directory}/out/exits", "rb") as exits:
            assert exits.read().count(b" +") >= PROCESSES
        os.close(pidfd)
    return time.perf_counter() - begun


def adopted(root: str) -> tuple["subprocess.Popen[bytes]", float, float]:
    """A new daemon, how long it took to READY, and how long from there until it had adopted all."""
    process, ready = start_daemon(root)
    begun = time.perf_counter()
    with connect(f"{root}/sock") as client:
        while client.daemon.status().not_adopted:
            time.sleep(0.002)
        taken = time.perf_counter() - begun
        status = client.daemon.status()
        assert (status.sandboxes["running"], status.running_processes) == (SANDBOXES, SANDBOXES * PROCESSES), status
    return process, ready, taken


def clear(root: str) -> None:
    with connect(f"{root}/sock") as client:
        while boxes := client.sandbox.list(limit=50).sandboxes:
            for box in boxes:
                client.sandbox.terminate(box.sandbox_id)


@fair.conditions()
def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="skb-") as root, tempfile.TemporaryDirectory(prefix="skb-") as empty:
        os.chmod(root, 0o711)
        os.makedirs(f"{empty}/state", mode=0o700)
        process, _ = start_daemon(root)
        rounds = []
        try:
            populate(root)
            for _ in range(ROUNDS):
                kill(process)
                idle, least = start_daemon(empty)
                kill(idle)
                floor = bare(records(root))
                process, ready, taken = adopted(root)
                rounds.append((taken, floor, ready, least))
            clear(root)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    taken, floor, ready, least = (statistics.median(column) for column in zip(*rounds, strict=True))
    what = f"{SANDBOXES} sandboxes with {SANDBOXES * PROCESSES:,} processes"
    return [
        Row(
            f"adoption of {what}, after READY",
            f"{taken * 1000:.0f} ms",
            f"pidfds and answers, bare {floor * 1000:.0f} ms",
            taken / floor,
            f"<= {MOST_S:g} s",
            taken <= MOST_S,
        ),
        Row(
            f"start to READY before the adoption of {what}",
            f"{ready * 1000:.0f} ms",
            f"with an empty log {least * 1000:.0f} ms",
            ready / least,
            f"<= {MOST_READY:g}",
            ready / least <= MOST_READY,
        ),
    ]


if __name__ == "__main__":
    show(run())
