"""The double of Modal's service ends with its parent, and leaves nothing behind."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.kubernetes.images import BUSYBOX
from tests.support.modal.boxes import new_app
from tests.support.modal.sdk import open_sdk
from tests.support.modal.service import Modal, start_modal

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("busybox"), pytest.mark.needs("modal")]

PARENT = """
import dataclasses, json, sys
from pathlib import Path
from tests.support.modal.service import start_modal

with start_modal(Path(sys.argv[1]), json.loads(sys.argv[2])) as service:
    print(json.dumps(dataclasses.asdict(service)), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(roots: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", PARENT, str(tmp_path / "service"), json.dumps(roots)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def start_sandbox(service: Modal) -> int:
    """Start a sandbox with an orphan in it; return the pid of its first process."""
    with open_sdk(service) as sdk:
        made = sdk.Sandbox.create(app=new_app(sdk), image=sdk.Image.from_registry(BUSYBOX))
        process = made.exec("sh", "-c", "sleep 100000 & echo started")
        assert next(iter(process.stdout)) == "started\n"
    (found,) = service.sandboxes()
    return int(found["pid"])


def has_ended(pid: int) -> bool:
    """Return True if a process is gone, or only waits for a parent that takes its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for_end(*pids: int) -> None:
    for pid in pids:
        until(lambda pid=pid: has_ended(pid))


def test_it_ends_with_what_it_started(roots: dict[str, str], tmp_path: Path) -> None:
    with start_modal(tmp_path / "service", roots) as service:
        pid = start_sandbox(service)
        assert not has_ended(pid)
    wait_for_end(pid, service.pid)
    until(lambda: os.listdir(tmp_path / "service" / "files") == [])
    assert (tmp_path / "service" / "log").read_text() == ""


@pytest.mark.parametrize("victim", ["parent", "service"])
def test_a_sudden_end_leaves_nothing(parent: subprocess.Popen[bytes], tmp_path: Path, victim: str) -> None:
    assert parent.stdout
    service = Modal(**json.loads(parent.stdout.readline()))
    pid = start_sandbox(service)
    handle = os.pidfd_open(parent.pid if victim == "parent" else service.pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [])
    finally:
        os.close(handle)
    wait_for_end(pid)
    if victim == "parent":
        wait_for_end(service.pid)
    until(lambda: os.listdir(tmp_path / "service" / "files") == [])


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "service" / "files").mkdir(parents=True)
    with pytest.raises(RuntimeError, match="FileExistsError"), start_modal(tmp_path / "service"):
        pass


def test_an_unknown_fault_is_refused(roots: dict[str, str], tmp_path: Path) -> None:
    def refusal(**options: Any) -> int:
        with pytest.raises(OSError, match="400") as caught:
            service.fault("TaskExecStart", **options)
        caught.value.close()  # type: ignore[attr-defined]
        return int(caught.value.code)  # type: ignore[attr-defined]

    with start_modal(tmp_path / "service", roots) as service:
        assert refusal(unknown=True) == 400
