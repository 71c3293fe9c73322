"""A lock taken and given back on GCS, beside two conditional writes of the same bytes by the client library alone.

The service is the emulator, in a process of its own. Nobody else wants the lock. Its document is one that was released
here before, or it is new, or another daemon had it in between: then it has to be read first, beside the same floor.
"""

import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benches import fair
from benches.daemon import seconds
from benches.table import Row, show

from sandkeep_store.buckets.gcs_client import connect
from sandkeep_store.locks.gcs import GcsStore
from sandkeep_store.locks.lease import Locks

PAIRS = 300
WARMTH = 10
MOST = 1.25
BUCKET = "locks"
NUMBERS = itertools.count()
Work = Callable[[], None]
DOCUMENT = (
    b'{"ownerId":"7d1f6f5c-9a55-4c0e-8f0f-2b1f4a8d9c11","expiresAt":1795303780.123456,"waitingOwnerId":null,'
    b'"fence":1795303720123456}'
)
SERVICE = f"""
import sys, time
from tests.support.gcs import GcsEmulator
with GcsEmulator() as service:
    service.create_bucket({BUCKET!r})
    print(service.url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def service() -> Iterator[None]:
    """The emulator, found by STORAGE_EMULATOR_HOST."""
    root = Path(__file__).parents[1]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", SERVICE], cwd=root, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        os.environ["STORAGE_EMULATOR_HOST"] = process.stdout.readline().decode().strip()
        yield
    finally:
        os.environ.pop("STORAGE_EMULATOR_HOST", None)
        process.stdin.close()
        process.wait(10)


def by_the_library() -> None:
    """Write an object where there is none, and once more over that generation."""
    blob = connect().client.bucket(BUCKET).blob(f"bare/{next(NUMBERS)}/lock.json")
    blob.upload_from_string(DOCUMENT, content_type="application/json", if_generation_match=0)
    blob.upload_from_string(DOCUMENT, content_type="application/json", if_generation_match=blob.generation)


def released_here() -> Work:
    locks = Locks(GcsStore(BUCKET))
    return lambda: _take(locks, "again")


def new() -> Work:
    locks = Locks(GcsStore(BUCKET))
    return lambda: _take(locks, f"new{next(NUMBERS)}")


def released_elsewhere() -> Work:
    return lambda: _take(Locks(GcsStore(BUCKET)), "elsewhere")


def had_by_turns() -> Work:
    """Each remembers what it released itself, which is not what is there any more."""
    daemons = itertools.cycle([Locks(GcsStore(BUCKET)), Locks(GcsStore(BUCKET))])
    return lambda: _take(next(daemons), "turns")


def _take(locks: Locks, name: str) -> None:
    assert locks.acquire(name).release()


def row(name: str, ours: Work) -> Row:
    """Both in turns, each as often first as the other; a few before them for warmth."""
    mine, bare = [], []
    for turn in range(PAIRS + WARMTH):
        for work, times in ((ours, mine), (by_the_library, bare))[:: 1 if turn % 2 else -1]:
            times.append(seconds(work))
    ratio = statistics.median(mine[WARMTH:]) / statistics.median(bare[WARMTH:])
    figure, floor = (f"p50 {statistics.median(times[WARMTH:]) * 1e3:.2f} ms" for times in (mine, bare))
    floor = f"two conditional writes {floor}"
    return Row(f"a lock on GCS, {name}", figure, floor, ratio, f"<= {MOST}", ratio <= MOST)


@fair.conditions()
def run() -> list[Row]:
    with service():
        return [
            row("released here before", released_here()),
            row("that is new", new()),
            row("released by another daemon", released_elsewhere()),
            row("had by two daemons in turns", had_by_turns()),
        ]


if __name__ == "__main__":
    show(run())
