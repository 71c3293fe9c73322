"""The hand-over of a gVisor sandbox between two daemons over GCS, and what a client that follows it sees of it.

The floor is the same by hand, of a process that holds as much: `runsc checkpoint`, each file of it up and down by the
client library, `runsc restore`; and one look of a waiter at the lock, which is a second. The service is the emulator,
in a process of its own. The image was moved before, as it is once for all.
"""

import itertools
import os
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trio
from benches import fair
from benches.buckets import bucket
from benches.daemon import daemon, seconds
from benches.gvisor import HOLD, HeldRaw, an_image, in_turn
from benches.pack import row
from benches.runsc import Raw, raw
from benches.snapshots import at_most
from benches.table import Row, show

from sandkeep.compat import cloud_run
from sandkeep.errors import StateError
from sandkeep_store.buckets.gcs_client import connect
from sandkeepd.providers.gvisor import runsc

MEGABYTES = 64
ROUNDS = 8
POLL_S = 1.0
ID = "moved"
MOST = 1.5
SHARED = ("SANDBOX_LOCK_BUCKET", "SANDBOX_METADATA_BUCKET", "SANDBOX_CHECKPOINT_BUCKET", "FILESYSTEM_SNAPSHOT_BUCKET")
STREAM = {"SANDKEEP_STREAM": "tls://127.0.0.1:0", "SANDKEEP_HANDOVER_STOP": "0", "SANDKEEP_CLOUD_RUN_IMAGE": "none"}


class Moving:
    """A sandbox that one of two daemons has, whose process holds memory."""

    def __init__(self, clients: Sequence[Any], image_id: str) -> None:
        self._clients = itertools.cycle(clients[::-1])
        made = clients[0].sandbox.create(image_id, provider="gvisor", gcs_sandbox_id=ID, enable_handoff=True)
        self.token = made.sandbox_token
        clients[0].process.launch(ID, ["python3", "-c", HOLD, str(MEGABYTES)], name="holder")
        next(clients[0].read_output(ID, "holder"))

    def move(self) -> float:
        """Seconds until the daemon that has it not has it running."""
        to = next(self._clients)
        return seconds(lambda: to.sandbox.attach_shared(ID, self.token, timeout_s=60))


class MovedByHand:
    """The same with `runsc` and the client library."""

    def __init__(self, by_hand: Raw, root: str) -> None:
        self._held = HeldRaw(by_hand, root, MEGABYTES)
        self._image = Path(f"{root}/saved-{MEGABYTES}")

    def move(self) -> float:
        """Seconds of what is to be done, and one look."""
        saved = self._held.save()
        carried = seconds(self._carry)
        restored = self._held.restore()
        self._held.forget()
        return saved + carried + restored + POLL_S

    def _carry(self) -> None:
        place = connect().client.bucket("bench")
        files = list(self._image.iterdir())
        for file in files:
            place.blob(file.name).upload_from_filename(str(file))
            file.unlink()
        for file in files:
            place.blob(file.name).download_to_filename(str(file))

    def end(self) -> None:
        self._held.end()


def moving_row(moving: Moving, by_hand: Raw, root: str) -> Row:
    bare = MovedByHand(by_hand, root)
    pairs = [in_turn(turn % 2 == 0, moving.move, bare.move) for turn in range(ROUNDS + 1)]
    bare.end()
    what = "checkpoint, upload, download, restore by hand, and one look"
    return row(f"gVisor: hand-over over GCS, {MEGABYTES} MB held", what, pairs[1:], *at_most(MOST))


def seen_row(moving: Moving, access: Any) -> Row:
    """Measure the time for which a client that follows has no command answered."""
    gaps: list[float] = []
    begun, over = threading.Event(), threading.Event()
    follower = threading.Thread(target=lambda: trio.run(follow, moving.token, access, begun, over, gaps))
    follower.start()
    longest = []
    for _ in range(ROUNDS):
        begun.wait(60)
        gaps.clear()
        moving.move()
        begun.clear()
        begun.wait(60)
        longest.append(max(gaps))
    over.set()
    follower.join()
    figure = f"{statistics.median(longest) * 1e3:.0f} ms"
    return Row(f"gVisor: no answer to a client that follows, {MEGABYTES} MB held", figure, "-", "-", "-", True)


async def follow(token: str, access: Any, begun: threading.Event, over: threading.Event, gaps: list[float]) -> None:
    """Run one command after another wherever the sandbox is; note the seconds from answer to answer."""
    async with cloud_run.attach(access.addresses[0], ID, token, access.token, pin=access.pin) as sandbox:
        answered = time.perf_counter()
        while not over.is_set():
            try:
                await sandbox.run("bash", "true")
            except StateError:
                continue  # it ran while the sandbox left
            now = time.perf_counter()
            gaps.append(now - answered)
            answered = now
            begun.set()


@fair.conditions()
def run() -> Sequence[Row]:
    if runsc.program() is None or os.geteuid():
        return [Row("hand-over: needs root, and runsc", "-", "-", "-", "-", False)]
    with bucket("gcs") as settings, ExitStack() as running:
        os.environ["STORAGE_EMULATOR_HOST"] = settings["STORAGE_EMULATOR_HOST"]
        given = {**settings, **STREAM, **dict.fromkeys(SHARED, "bench")}
        (one, root), (other, _) = (running.enter_context(daemon(**given)) for _ in range(2))
        image_id = an_image(one, root)
        files = f"{root}/state/images/{image_id}/root"
        by_hand = running.enter_context(raw(f"{root}/raw", files, os.stat(files).st_uid))
        moving = Moving([one, other], image_id)
        rows = [moving_row(moving, by_hand, root)]
        has = one if ROUNDS % 2 else other
        rows.append(seen_row(moving, has.stream.access()))
        return rows


if __name__ == "__main__":
    show(run())
