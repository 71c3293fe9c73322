"""Work in threads: its progress, with a total if there is one, and its end when nobody waits for it."""

import os
import threading
from functools import partial
from pathlib import Path

import pytest
import trio
from tests.support.patience import patient

from sandkeepd.host import threads
from sandkeepd.host.threads import Meter, run_in_thread
from sandkeepd.providers.common import packing
from sandkeepd.providers.docker.build import PullLog

DEADLINE_S = patient(60.0)


@pytest.mark.parametrize(
    ("total", "shown"), [(None, "packing: 1.0 KB"), (4096, "packing: 1.0 KB of 4.0 KB, 25 %"), (10, "packing: 1.0 KB")]
)
async def test_progress_has_the_total(total: int | None, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PROGRESS_PERIOD_S", 0.001)
    seen, reported = threading.Event(), []

    async def progress(message: str) -> None:
        reported.append(message)
        if message == shown:
            seen.set()

    def work(moved: Meter) -> str:
        moved(1024)
        assert seen.wait(DEADLINE_S)
        return "done"

    assert await run_in_thread(work, progress, "packing", total_bytes=total) == "done"
    assert reported == ["packing", shown]


async def test_a_total_is_counted_once_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    counted: list[int] = []
    meter.count = lambda: counted.append(7) or 7
    monkeypatch.setattr(threads, "PROGRESS_PERIOD_S", 1e9)
    meter(1)
    assert meter.total_bytes is None
    monkeypatch.setattr(threads, "PROGRESS_PERIOD_S", -1.0)
    meter(2)
    meter(3)
    assert (meter.total_bytes, counted) == (7, [7])


async def test_work_that_nobody_waits_for_ends() -> None:
    begun, ended = trio.Event(), threading.Event()

    def work(moved: Meter) -> None:
        trio.from_thread.run_sync(begun.set)
        try:
            while not ended.wait(0.001):
                moved(0)
        except trio.Cancelled:
            ended.set()
            raise

    async def progress(message: str) -> None:
        pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_in_thread, work, progress, "working"))
        await begun.wait()
        nursery.cancel_scope.cancel()
    assert ended.is_set()


def test_the_bytes_of_a_tree_are_those_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "one").write_bytes(b"x" * 100)
    (tmp_path / "deep" / "er" / "two").write_bytes(b"x" * 11)
    (tmp_path / "deep" / "link").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    tree = os.open(tmp_path, os.O_RDONLY)
    try:
        assert packing.bytes_in(tree) == 111
    finally:
        os.close(tree)


def test_a_pull_has_the_total_of_the_layers_that_are_known() -> None:
    reported: list[str] = []
    log = PullLog("busybox", reported.append, lambda _: None)
    log._progress.report_if_due = reported.append  # type: ignore[method-assign]  # however soon
    for layer, current in (("a", 512), ("b", 1024)):
        log.receive({"id": layer, "status": "Downloading", "progressDetail": {"current": current, "total": 2048}})
    assert reported == ["pulling busybox: 512 B of 2.0 KB, 25 %", "pulling busybox: 1.5 KB of 4.0 KB, 37 %"]
