"""The daemon as a newcomer runs it: in the background, waited for, stopped."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.expect import until
from tests.support.patience import patient


@pytest.fixture
def daemon(new_daemon: Callable[[], RunningDaemon]) -> RunningDaemon:
    return new_daemon()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_runs_in_the_background_until_it_is_stopped(daemon: RunningDaemon) -> None:
    begun = daemon.cli("daemon", "--detach")
    assert begun.returncode == 0, begun.stderr
    pid = int(begun.stdout)
    try:
        with daemon.connect(patience_s=0) as client:
            assert client.daemon.status().pid == pid
        log = Path(daemon.state_dir, "daemon.log")
        assert str(log) in begun.stderr.decode()
        assert "ready" in log.read_text()
        assert log.stat().st_mode & 0o777 == 0o600
        assert os.getsid(pid) == pid
        second = daemon.cli("daemon", "--detach")
        assert second.returncode == 1
        assert "already listening" in second.stderr.decode()
        stopped = daemon.cli("daemon", "stop")
        assert stopped.returncode == 0, stopped.stderr
        assert not runs(pid), "it has ended when that returns"
    finally:
        if runs(pid):
            os.kill(pid, signal.SIGKILL)
    again = daemon.cli("daemon", "stop")
    assert again.returncode == 1
    assert "nothing to stop: no daemon is listening" in again.stderr.decode()
    assert "sandkeep daemon" not in again.stderr.decode(), "who stops one is not told to start one"


def test_why_it_does_not_start_is_said(daemon: RunningDaemon) -> None:
    done = daemon.cli("daemon", "--detach", env={"SANDKEEP_LOG_LEVEL": "loud"})
    assert done.returncode == 1
    assert "SANDKEEP_LOG_LEVEL" in done.stderr.decode()
    assert done.stdout == b""
    Path(daemon.root, "file").write_text("")
    done = daemon.cli("daemon", "--detach", "--state-dir", f"{daemon.root}/file/state")
    assert done.returncode == 1
    assert "--state-dir" in done.stderr.decode()


def test_a_daemon_that_starts_is_waited_for(daemon: RunningDaemon) -> None:
    assert daemon.cli("status").returncode == 1
    assert daemon.cli("status", "--wait", "10ms").returncode == 1
    import subprocess

    waiting = subprocess.Popen([*daemon.command, "status", "--wait"], env=daemon.env, stdout=subprocess.PIPE)
    daemon.start()
    said, _ = waiting.communicate(timeout=patient(120))
    assert waiting.returncode == 0
    assert b"healthy    yes" in said
    assert daemon.cli("status", "--wait", "--json").returncode == 0


def test_stop_takes_no_other_option(daemon: RunningDaemon) -> None:
    done = daemon.cli("daemon", "stop", "--detach")
    assert done.returncode == 2


@pytest.mark.needs("bwrap")
def test_what_runs_goes_on(daemon: RunningDaemon, tmp_path: Path) -> None:
    assert daemon.cli("daemon", "-d").returncode == 0
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(tmp_path).image_id).sandbox_id
        client.process.launch(box, "sleep 1000", name="long")
    assert daemon.cli("daemon", "stop").returncode == 0
    daemon.start()

    def status() -> Any:
        with daemon.connect() as client:
            return client.process.get(box, "long").status

    until(lambda: status() == "running")


def test_a_prune_of_nothing_asks_nothing(daemon: RunningDaemon) -> None:
    import pty
    import subprocess

    daemon.start()
    keyboard, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [*daemon.command, "prune"], env=daemon.env, stdin=terminal, capture_output=True, timeout=patient(60)
        )
    finally:
        os.close(terminal)
        os.close(keyboard)
    assert done.returncode == 0, done.stderr
    assert b"[y/N]" not in done.stderr
    assert b"0 B were freed" in done.stderr
