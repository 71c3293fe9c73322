"""How long a daemon takes from its start to READY, and how much memory it holds, with much on record.

The floor of the start is what no daemon can do without: importing its own modules, and a cursor over the rows of the
log. Both are measured in the same rounds as the start, each in a process of its own.
"""

import os
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

import trio
from benches import fair
from benches.table import Row, show

from sandkeep import events, ids, model
from sandkeep.events import Meta
from sandkeep_store.eventlog.log import EventLog, NewEvent

EVENTS = 100_000
ROUNDS = 7
IDLE_SANDBOXES = 1_000
MOST_IDLE_MIB = 90


def story(sandboxes: int, total: int) -> list[list[NewEvent]]:
    """A plausible log: sandboxes that were made and ended, and in between commands, three events each."""
    boxes = [ids.new_id(ids.SANDBOX) for _ in range(sandboxes)]
    isolation = model.Isolation(
        mechanism="bubblewrap", files="overlay", host_uid=1_900_000_001, limits={"pids": "cgroup"}
    )
    appends = []
    for box in boxes:
        asked = events.SandboxCreateRequested(
            owner="uid:0", image_id="img_1", provider="local", spec=model.SandboxSpec()
        )
        appends.append([NewEvent(box, asked, box), NewEvent(box, events.SandboxCreated(isolation=isolation), box)])
    while sum(map(len, appends)) < total - 2 * sandboxes:
        box, process = boxes[len(appends) % sandboxes], ids.new_id(ids.PROCESS)
        asked_for = events.ProcessLaunchRequested(sandbox_id=box, name=None, command=["sh", "-c", "make test"])
        ended = events.ProcessExited(exit_code=0, stdout_bytes=1234, stderr_bytes=0)
        appends.append([NewEvent(process, asked_for, box)])
        appends.append([NewEvent(process, events.ProcessStarted(pid=77), box), NewEvent(process, ended, box)])
    for box in boxes:
        ending = events.SandboxTerminateRequested(reason="requested")
        appends.append([NewEvent(box, ending, box), NewEvent(box, events.SandboxTerminated(reason="requested"), box)])
    return appends


async def fill(path: str, appends: list[list[NewEvent]]) -> None:
    log = EventLog.open(path)

    async def append(new: list[NewEvent]) -> None:
        await log.append(new, Meta(owner="uid:0", pid=4242, client="bench"))

    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for start in range(0, len(appends), 500):
            async with trio.open_nursery() as batch:
                for new in appends[start : start + 500]:
                    batch.start_soon(append, new)
        nursery.cancel_scope.cancel()
    log.close()


def start_daemon(root: str) -> tuple[subprocess.Popen[bytes], float]:
    """The daemon, and how long it took until it answered a connection."""
    path = f"{root}/sock"
    env = {
        **os.environ,
        "SANDKEEP_STATE_DIR": f"{root}/state",
        "SANDKEEP_SOCKET": path,
        "SANDKEEP_LOG_LEVEL": "warning",
    }
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "sandkeepd.main"], env=env)
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"}\n')
                client.recv(4096)
        except (FileNotFoundError, ConnectionError):
            time.sleep(0.001)
        else:
            took = time.perf_counter() - begun
            fair.check(process.pid)
            return process, took


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(30)


def timed(code: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begun


def cursor_seconds(path: str) -> float:
    """A cursor over every column of every row, in a fresh connection. No daemon may run."""
    db = sqlite3.connect(path)
    begun = time.perf_counter()
    for _ in db.execute("SELECT * FROM events ORDER BY position"):
        pass
    seconds = time.perf_counter() - begun
    db.close()
    return seconds


IMPORTS = "import sandkeepd.app.daemon, sandkeepd.app.logging, sandkeepd.main, sandkeepd.providers.local.provider"


def start_row() -> Row:
    with tempfile.TemporaryDirectory(prefix="skb-") as root:
        os.makedirs(f"{root}/state", mode=0o700)
        trio.run(fill, f"{root}/state/events.db", story(50, EVENTS))
        starts, imports, cursors = [], [], []
        for _ in range(ROUNDS):
            imports.append(timed(IMPORTS))
            cursors.append(cursor_seconds(f"{root}/state/events.db"))
            process, seconds = start_daemon(root)
            starts.append(seconds)
            stop(process)
    floor = [i + 3 * c for i, c in zip(imports, cursors, strict=True)]
    ratio = statistics.median(s / f for s, f in zip(starts, floor, strict=True))
    return Row(
        f"start to READY, {EVENTS:,} events",
        f"{statistics.median(starts) * 1000:.0f} ms",
        f"imports {statistics.median(imports) * 1000:.0f} + 3 x cursor {statistics.median(cursors) * 1000:.0f} ms",
        ratio,
        "<= 1.00",
        ratio <= 1.0,
    )


def idle_row() -> Row:
    with tempfile.TemporaryDirectory(prefix="skb-") as root:
        os.makedirs(f"{root}/state", mode=0o700)
        trio.run(fill, f"{root}/state/events.db", story(IDLE_SANDBOXES, 12 * IDLE_SANDBOXES))
        process, _ = start_daemon(root)
        time.sleep(3)  # what is written after a start has been written
        with open(f"/proc/{process.pid}/status") as status:
            resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024
        stop(process)
    case = f"idle with {IDLE_SANDBOXES:,} sandboxes on record"
    return Row(
        case, f"{resident:.0f} MiB", "-", resident / MOST_IDLE_MIB, f"<= {MOST_IDLE_MIB} MiB", resident <= MOST_IDLE_MIB
    )


@fair.conditions()
def run() -> list[Row]:
    return [start_row(), idle_row()]


if __name__ == "__main__":
    show(run())
