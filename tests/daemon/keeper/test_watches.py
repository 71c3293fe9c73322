"""A kernel that gives out no inotify watches: files are polled meanwhile, and the daemon goes on."""

import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
from tests.conftest import RunningDaemon, daemon_in
from tests.support import ceilings
from tests.support.patience import patient
from tests.support.users import NOBODY, as_user, command_as

from sandkeepd.keeper import watcher as module
from sandkeepd.keeper.watcher import SHORTAGE, Watcher

PATIENCE_S = patient(60.0)


def confined(work: Callable[[Watcher], Awaitable[None]], **most: int) -> None:
    """Run `work` with a watcher, in a process of its own that has these ceilings."""

    async def watch() -> None:
        with Watcher() as watcher:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watcher.run)
                with trio.fail_after(PATIENCE_S):
                    await work(watcher)
                nursery.cancel_scope.cancel()

    def run() -> None:
        ceilings.enter(**most)
        trio.run(watch)

    as_user(os.geteuid(), run)


class Grown:
    """A file, and whether the watcher has told of its growth."""

    def __init__(self, path: Path, watcher: Watcher) -> None:
        self._file = path.open("ab", buffering=0)
        self._told = trio.Event()
        self._watcher = watcher
        self.watch = watcher.add(self._file.fileno(), self._tell)

    def _tell(self) -> None:
        self._told.set()

    async def grows(self) -> None:
        """Have it grow, and be told."""
        self._told = trio.Event()
        self._file.write(b"x")
        await self._told.wait()

    def leave(self) -> None:
        """Watch it no more."""
        self._watcher.remove(self.watch, self._tell)
        self._file.close()


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.02)


@pytest.mark.usefixtures("again")
@pytest.mark.parametrize("ceiling", ["max_inotify_instances", "max_inotify_watches"])
def test_files_are_polled_until_there_are_watches(ceiling: str, tmp_path: Path) -> None:
    """Those that are polled go back to inotify, as soon as that can be had."""

    async def work(watcher: Watcher) -> None:
        files = [Grown(tmp_path / str(number), watcher) for number in range(3)]
        for _ in range(2):
            for file in files:
                await file.grows()
        assert watcher.problem == SHORTAGE
        files.pop().leave()
        ceilings.put(ceiling, 100)
        while watcher.problem:
            await trio.sleep(0)
        assert not watcher._polled
        for file in files:
            await file.grows()
            file.leave()
        assert not watcher._callbacks
        assert not watcher._moved

    confined(work, **{ceiling: 0})


@pytest.mark.usefixtures("again")
def test_those_that_have_watches_keep_them(tmp_path: Path) -> None:
    async def work(watcher: Watcher) -> None:
        before, after = Grown(tmp_path / "before", watcher), Grown(tmp_path / "after", watcher)
        assert watcher._inotify is not None
        assert (before.watch > 0, after.watch > 0) == (True, False)
        for _ in range(3):
            await before.grows()
            await after.grows()
        opened = len(os.listdir("/proc/self/fd"))
        after.leave()  # its file, and what it was polled by
        assert len(os.listdir("/proc/self/fd")) == opened - 2
        assert watcher.problem is None

    confined(work, max_inotify_watches=1)


def test_an_idle_file_is_looked_at_less_often(tmp_path: Path) -> None:
    async def work(watcher: Watcher) -> None:
        file = Grown(tmp_path / "file", watcher)
        polled = watcher._polled[file.watch]
        while polled.period_s < module.MAX_PERIOD_S:
            await trio.sleep(0.01)
        watcher.poll_soon(file.watch)
        assert polled.period_s == module.MIN_PERIOD_S
        while polled.period_s < module.MAX_PERIOD_S:
            await trio.sleep(0.01)
        await file.grows()
        assert polled.period_s < module.MAX_PERIOD_S  # it may have been looked at again by now

    confined(work, max_inotify_instances=0)


@pytest.fixture
def starved(places: str, request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    """A user's daemon for which the kernel has nothing of that kind."""
    with daemon_in(places) as daemon:
        os.chmod(daemon.root, 0o777)
        inside = [sys.executable, ceilings.__file__, f"{request.param}=0", "--", *daemon.program]
        daemon.program = command_as(NOBODY, inside)
        daemon.env["HOME"] = daemon.root
        daemon.start()
        yield daemon


@pytest.mark.needs("bwrap", "root")
@pytest.mark.parametrize("starved", ["max_inotify_instances", "max_inotify_watches"], indirect=True)
def test_a_daemon_without_inotify_serves(starved: RunningDaemon, source: str, places: str) -> None:
    with starved.connect() as client:
        image = client.image.create(shutil.copytree(source, f"{starved.root}/source")).image_id
        box = client.sandbox.create(image).sandbox_id
        assert client.sandbox.exec(box, ["cat", "hello"]).stdout == b"hello\n"
        client.process.launch(box, "read word; echo got $word; exit 3", name="reader", stdin=True)
        client.process.write_stdin(box, "reader", b"it\n")
        assert client.process.read(box, "reader", wait_s=PATIENCE_S).stdout == b"got it\n"
        assert client.process.wait(box, "reader", timeout_s=PATIENCE_S).exit_code == 3
        (local,) = (each for each in client.daemon.capabilities().providers if each.provider == "local")
        assert (local.features["file_watches"].works, local.features["file_watches"].why) == (False, SHORTAGE)
        client.sandbox.terminate(box)
