"""The demo runs as shipped, tells the truth by its exit code, and leaves nothing however it ends."""

import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import until

from sandkeep.demo import traces
from sandkeep.demo.house import DemoDaemon
from sandkeep.demo.main import Demo
from sandkeep.demo.stage import Stage

pytestmark = pytest.mark.needs("bwrap")
COMMAND = [sys.executable, "-m", "sandkeep.cli", "demo"]
LIMIT_S = 120


def start(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    env = {**os.environ, "TMPDIR": str(tmp_path), "NO_COLOR": "1"}
    return subprocess.Popen([*COMMAND, *options], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@contextmanager
def ended_after(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A program that goes on for the length of a block, however that ends."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def nothing_is_left(tmp_path: Path, told: str) -> bool:
    """Whether there is neither a file, a process, a mount nor a control group of the sandboxes that `told` names."""
    boxes = set(re.findall(r"sbx_[0-9a-z]{26}", told))
    assert boxes, told
    groups = [group for box in boxes for group in glob.glob(f"/sys/fs/cgroup/**/*{box}*", recursive=True)]
    return glob.glob(f"{tmp_path}/*") == [] and traces.remaining(str(tmp_path)) == [] and groups == []


def events(told: str) -> list[str]:
    """The lines that show an event, in the order in which they came."""
    return [line for line in told.splitlines() if line.startswith("      ◦ ")]


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: a socket's has at most 107 bytes."""
    return tmp_path_factory.mktemp("d")


def test_the_demo(short: Path) -> None:
    with start(short, "--fast") as demo:
        assert demo.stdout is not None
        told = demo.stdout.read()
    assert demo.returncode == 0, told
    assert "✗" not in told
    assert "$? = 3" in told
    assert "the same" in told
    assert "\x1b" not in told
    assert max(len(line) for line in told.splitlines()) <= 80
    assert not re.search(r"Traceback|Error", told)
    before, sound, _ = told.partition("    sound: ")
    assert sound, told
    assert f"sound: {len(events(before))} events, 1 to" in told, "not every event was shown once"
    assert len(set(events(told))) == len(events(told))
    assert nothing_is_left(short, told)


class SlowToReturn(DemoDaemon):
    """A place whose daemon is started again only when the light has flashed more often than it once did in all."""

    starts = 0

    def start(self) -> int:
        self.starts += 1
        until(lambda: self.starts != 2 or self.flashes() > 18, LIMIT_S, seen=self.flashes)
        return super().start()

    def flashes(self) -> int:
        journals = glob.glob(f"{self.state_dir}/sandboxes/*/out/p/*.stdout")
        return sum(Path(journal).read_bytes().count(b"flash") for journal in journals)


def test_the_process_outlives_a_restart_however_long_that_takes(
    short: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    place = SlowToReturn()
    try:
        demo = Demo(place, Stage(fast=True))
        demo.start_a_daemon()
        demo.make_an_image()
        demo.make_a_sandbox()
        demo.restart_the_daemon()
        demo.end()
    finally:
        assert place.clear(keep=False) == []
    told = capsys.readouterr().out
    _, restarted, after = told.partition("$ sandkeep daemon &\n")[2].partition("$ sandkeep daemon &\n")
    assert restarted, told
    assert re.search(r"^    light +running", after, re.MULTILINE), told
    assert "daemon.started" in after.partition("process.exited")[0], told
    assert len(set(events(told))) == len(events(told)), told
    assert nothing_is_left(short, told)


@pytest.mark.parametrize(("number", "at"), [(signal.SIGINT, "flash 3"), (signal.SIGTERM, "$ kill $DAEMON")])
def test_an_interrupted_demo_cleans_up(short: Path, number: signal.Signals, at: str) -> None:
    """Also while its daemon stops, and is to be started again for that."""
    told = ""
    with start(short, "--fast") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            told += line
            if at in line:
                break
        demo.send_signal(number)
        rest = demo.stdout.read()
    assert demo.returncode == 130, rest
    assert not re.search("Traceback|✗", rest), rest
    assert nothing_is_left(short, told)


@pytest.mark.needs("root")
def test_a_mount_that_all_can_see_makes_nobody_a_leftover(tmp_path: Path) -> None:
    """What is found here is ended, so it must not be everybody."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=True)
    try:
        with ended_after(["sleep", "1000"]) as bystander:
            found = traces.processes(str(tmp_path))
            seen = traces.mounts(str(tmp_path))
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
    assert seen == [str(tmp_path)]
    assert bystander.pid not in found
    assert os.getppid() not in found


@pytest.mark.needs("root")
def test_a_namespace_made_while_something_is_mounted_there_makes_nobody_a_leftover(tmp_path: Path) -> None:
    """One that has a directory of the place mounted somewhere is one, by that alone."""
    (tmp_path / "own").mkdir()
    (tmp_path / "mounted").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path / "mounted"], check=True)
    bystander = ["unshare", "--mount", "sh", "-c", "echo; exec sleep 1000"]
    # Its command line tells nothing: the path is a variable's.
    user = ["unshare", "--mount", "sh", "-c", 'mount --bind "$OWN/own" /mnt && echo && unset OWN && exec sleep 1000']
    env = {**os.environ, "OWN": str(tmp_path)}
    try:
        with (
            ended_after(bystander, stdout=subprocess.PIPE) as first,
            ended_after(user, stdout=subprocess.PIPE, env=env) as second,
        ):
            assert first.stdout is not None
            assert second.stdout is not None
            assert first.stdout.readline() == second.stdout.readline() == b"\n"
            found = traces.processes(str(tmp_path))
    finally:
        subprocess.run(["umount", "--lazy", tmp_path / "mounted"], check=True)
    assert (first.pid in found, second.pid in found) == (False, True)
