"""Archives to a bucket and back, beside the client library's own upload and download, and the memory that it takes.

`python -m benches archives`. Figures are of whole transfers between a file and a service on this machine, in turns.
The memory is that of a fresh process which imported nothing but the stores' interface, so the library counts too.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benches import fair
from benches.buckets import bucket
from benches.daemon import seconds
from benches.table import Row, show

from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.buckets.config import Root

PAIRS = 7
SIZE = 200_000_000
MOST = 1.3
BIG_MIB = 2048
MOST_MIB = 64.0


# -- time -------------------------------------------------------------------------------------------------------------


def library(where: str) -> tuple[Callable[[str, str], None], Callable[[str, str], None]]:
    """How the library itself sends a file, and has one."""
    if where == "gcs":
        from sandkeep_store.buckets.gcs_client import connect

        gcs = connect().client.bucket("bench")
        return (
            lambda path, file: gcs.blob(path).upload_from_filename(file, if_generation_match=0),
            lambda path, file: gcs.blob(path).download_to_filename(file),
        )
    from sandkeep_store.buckets.s3_client import connect as connect_s3

    s3 = connect_s3()
    return (
        lambda path, file: s3.upload_file(file, "bench", path),
        lambda path, file: s3.download_file("bench", path, file),
    )


def send(store: ArchiveStore, path: str, name: str) -> None:
    with open(name, "rb", buffering=0) as file:
        store.write(path, file)


def have(store: ArchiveStore, path: str, name: str) -> None:
    with store.read(path) as archive, open(name, "wb", buffering=0) as file:
        file.writelines(archive)


Times = dict[str, float]
"""Of one transfer up and one down."""


def pairs(where: str, root: str, store: ArchiveStore) -> Iterator[tuple[Times, Times]]:
    """How long it took us, and the library. Each is as often first as the other."""
    upload, download = library(where)
    source, target = f"{root}/source", f"{root}/had"
    for turn in range(PAIRS + 1):
        ours = {
            "up": partial(send, store, f"ours/{turn}", source),
            "down": partial(have, store, f"ours/{turn}", target),
        }
        bare = {"up": partial(upload, f"bare/{turn}", source), "down": partial(download, f"bare/{turn}", target)}
        took: dict[int, Times] = {0: {}, 1: {}}
        for way in ("up", "down"):
            for who in (0, 1) if turn % 2 else (1, 0):
                took[who][way] = seconds((ours, bare)[who][way])
        store.delete(f"ours/{turn}")
        store.delete(f"bare/{turn}")
        if turn:  # the first is for warmth alone
            yield took[0], took[1]


def shown(times: list[Times]) -> str:
    up, down = (SIZE / 1e6 / statistics.median(each[way] for each in times) for way in ("up", "down"))
    return f"up {up:.0f}, down {down:.0f} MB/s"


def timed(where: Any) -> Iterator[Row]:
    with bucket(where) as environment, tempfile.TemporaryDirectory(prefix="bench-") as root:
        os.environ.update(environment)
        with open(f"{root}/source", "wb") as file:
            file.write(os.urandom(SIZE))
        mine, bare = zip(*pairs(where, root, open_store(Root(where, "bench"))), strict=True)
        both = (sum(a.values()) / sum(b.values()) for a, b in zip(mine, bare, strict=True))
        ratio = statistics.median(both)
        case = f"an archive of {SIZE / 1e6:.0f} MB to {where.upper()} and back"
        yield Row(case, shown(list(mine)), f"the library's own {shown(list(bare))}", ratio, f"<= {MOST}", ratio <= MOST)
        for way, words in (("up", "to"), ("down", "from")):
            ratio = statistics.median(a[way] / b[way] for a, b in zip(mine, bare, strict=True))
            ours, floor = (statistics.median(each[way] for each in times) * 1e3 for times in (mine, bare))
            case = f"an archive of {SIZE / 1e6:.0f} MB {words} {where.upper()} alone"
            yield Row(case, f"{ours:.0f} ms", f"the library's own {floor:.0f} ms", ratio, f"<= {MOST}", ratio <= MOST)


# -- memory -----------------------------------------------------------------------------------------------------------

MEASURE = """
import sys
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.buckets.config import Root

MIB = 1 << 20

def kilobytes(line):
    with open("/proc/self/status") as status:
        return next(int(words.split()[1]) for words in status if words.startswith(line))

def source():
    chunk = bytes(range(256)) * 4096
    for _ in range(int(sys.argv[2])):
        yield chunk

idle = kilobytes("VmRSS")
store = open_store(Root(sys.argv[1], "bench"))
store.write("big", source())
up = kilobytes("VmHWM")
with open("/proc/self/clear_refs", "w") as peaks:
    peaks.write("5")
with store.read("big") as archive:
    assert sum(map(len, archive)) == int(sys.argv[2]) * MIB
store.delete("big")
print((up - idle) / 1024, (kilobytes("VmHWM") - idle) / 1024)
"""


def memory(where: str) -> Iterator[Row]:
    with bucket(where) as environment:
        command = [sys.executable, "-c", MEASURE, where, str(BIG_MIB)]
        told = subprocess.run(
            command, env={**os.environ, **environment}, check=True, capture_output=True, text=True
        ).stdout.split()
        for what, mib in zip(("up", "down"), map(float, told), strict=True):
            case = f"memory for {BIG_MIB >> 10} GB {what} {'to' if what == 'up' else 'from'} {where.upper()}, over idle"
            yield Row(case, f"{mib:.0f} MiB", "-", mib / MOST_MIB, f"<= {MOST_MIB:.0f} MiB", mib <= MOST_MIB)


@fair.conditions()
def run() -> list[Row]:
    return [row for where in ("gcs", "s3") for row in (*timed(where), *memory(where))]


if __name__ == "__main__":
    show(run())
