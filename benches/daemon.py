"""The main job through a real daemon: a command, a new sandbox, a process that writes much. Each beside its floor.

The floors are what a person would do by hand with the same tools, as processes of their own: a bare bubblewrap for a
command; mounting an overlay plus a bare bubblewrap for a sandbox; the same command with its output sent to a file.
Rounds are interleaved, so that ratios hold on a machine that others use too.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benches import fair
from benches.table import Row, show

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError

EXECS = 300
CREATES = 25
WRITES = 5
GIB = 1 << 30
START_S = 60.0

BARE_BWRAP = [
    *(
        "bwrap",
        "--unshare-all",
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/bin",
        "/bin",
        "--symlink",
        "usr/lib",
        "/lib",
    ),
    *(
        "--symlink",
        "usr/lib64",
        "/lib64",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
        "--",
        "sh",
        "-c",
        "true",
    ),
]


def seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def run_bare() -> None:
    subprocess.run(BARE_BWRAP, check=True)


@contextmanager
def daemon(directory: str | None = None, python: str = sys.executable, **environment: str) -> Iterator[tuple[Any, str]]:
    """A client of a real daemon, and the directory that it works in, a new one in `directory`. `python` is that of the
    environment whose daemon it is.
    """
    root = tempfile.mkdtemp(prefix="skb-", dir=directory or os.environ.get("SANDKEEP_BENCH_DIR"))
    env = {
        **os.environ,
        "SANDKEEP_STATE_DIR": f"{root}/state",
        "SANDKEEP_SOCKET": f"{root}/sock",
        "SANDKEEP_LOG_LEVEL": "warning",
        "SANDKEEP_RETAIN_OUTPUT": "unlimited",  # a gigabyte of journal is just beyond the default
        "SANDKEEP_DISK_LIMIT": "64G",  # measured: by `disk_bytes` a sandbox would get a disk of that size
        **environment,
    }
    process = subprocess.Popen([python, "-m", "sandkeepd.main"], env=env)
    try:
        with when_up(f"{root}/sock") as client:
            fair.check(process.pid)
            try:
                yield client, root
            finally:
                for sandbox in client.sandbox.list().sandboxes:
                    client.sandbox.terminate(sandbox.sandbox_id)
    finally:
        process.terminate()
        process.wait(30)
        subprocess.run(["rm", "-rf", root], check=True)


def when_up(path: str) -> Any:
    """A client, as soon as the daemon answers one: its socket is there a moment before it listens."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            client = connect(path, patience_s=0)
            client.daemon.ping()
        except SandkeepError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            client.close()
            return connect(path)


def tree(root: str, name: str, files: int, size: int) -> str:
    """A directory of `files` files of `size` bytes each."""
    top = f"{root}/{name}"
    content = os.urandom(size)
    for number in range(files):
        folder = f"{top}/{number // 100}"
        if number % 100 == 0:
            os.makedirs(folder)
        with open(f"{folder}/{number}", "wb") as file:
            file.write(content)
    return top


def per_cent(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def exec_row(client: Any, image_id: str) -> Row:
    box = client.sandbox.create(image_id).sandbox_id
    ours, bare = [], []
    for _ in range(EXECS):
        bare.append(seconds(run_bare))
        ours.append(seconds(lambda: client.sandbox.exec(box, ["true"])))
    client.sandbox.terminate(box)
    ratio = statistics.median(ours) / statistics.median(bare)
    return Row(
        "sandbox.exec true, both commits durable",
        f"p50 {statistics.median(ours) * 1e3:.2f}, p99 {per_cent(ours, 0.99) * 1e3:.1f} ms",
        f"bare bwrap p50 {statistics.median(bare) * 1e3:.2f}, p99 {per_cent(bare, 0.99) * 1e3:.1f} ms",
        ratio,
        "<= 1.5",
        ratio <= 1.5,
    )


def mount_overlay(lower: str, place: str) -> None:
    """By hand, with mount(8); the caller unmounts."""
    for name in ("upper", "work", "merged"):
        os.makedirs(f"{place}/{name}", exist_ok=True)
    options = f"lowerdir={lower},upperdir={place}/upper,workdir={place}/work"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, f"{place}/merged"]
    subprocess.run(command, check=True)


def create_row(client: Any, root: str, label: str, files: int, size: int) -> Row:
    source = tree(root, label.replace(" ", ""), files, size)
    image_id = client.image.create(source).image_id
    ours, floor, boxes = [], [], []
    for number in range(CREATES):
        place = f"{root}/by-hand-{label.replace(' ', '')}-{number}"
        by_hand = seconds(lambda place=place: mount_overlay(source, place)) + seconds(run_bare)
        subprocess.run(["umount", f"{place}/merged"], check=True)
        floor.append(by_hand)
        begun = time.perf_counter()
        boxes.append(client.sandbox.create(image_id).sandbox_id)
        ours.append(time.perf_counter() - begun)
    for box in boxes:
        client.sandbox.terminate(box)
    shutil.rmtree(source)
    ratio = statistics.median(ours) / statistics.median(floor)
    return Row(
        f"sandbox.create from {label}, {files:,} files",
        f"p50 {statistics.median(ours) * 1e3:.1f} ms",
        f"overlay mount + bare bwrap {statistics.median(floor) * 1e3:.1f} ms",
        ratio,
        "<= 4",
        ratio <= 4,
    )


def journal_row(client: Any, root: str, image_id: str) -> Row:
    """A gigabyte by `head`: through the journal, and into a file on the same disk."""
    box = client.sandbox.create(image_id).sandbox_id
    ours, plain = [], []
    for number in range(WRITES):
        plain.append(seconds(lambda: subprocess.run(f"head -c {GIB} /dev/zero >>{root}/plain", shell=True, check=True)))
        os.unlink(f"{root}/plain")
        name = f"writer-{number}"
        begun = time.perf_counter()
        client.process.launch(box, ["head", "-c", str(GIB), "/dev/zero"], name=name)
        ended = client.process.wait(box, name)
        ours.append(time.perf_counter() - begun)
        assert ended.stdout_bytes == GIB, ended
    client.sandbox.terminate(box)
    ratio = statistics.median(plain) / statistics.median(ours)
    return Row(
        "a process that writes 1 GiB, to its journal",
        f"{GIB / statistics.median(ours) / 1e6:.0f} MB/s",
        f"to a file {GIB / statistics.median(plain) / 1e6:.0f} MB/s",
        ratio,
        ">= 0.7",
        ratio >= 0.7,
    )


@fair.conditions()
def run() -> list[Row]:
    with daemon() as (client, root):
        small = client.image.create(tree(root, "small", 10, 1000)).image_id
        return [
            exec_row(client, small),
            create_row(client, root, "200 MB", 10_000, 20_000),
            create_row(client, root, "2 GB", 10_000, 200_000),
            journal_row(client, root, small),
        ]


if __name__ == "__main__":
    show(run())
