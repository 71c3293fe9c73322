"""The instance lock: one at a time, gone with its process, and with nothing else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandkeep.errors import StateError
from sandkeepd.host.instance_lock import lock_file

TAKEN = StateError("conflict", "another is here")

HOLDER = """
import os, sys, time
from sandkeep.errors import StateError
from sandkeepd.host.instance_lock import lock_file

with lock_file(sys.argv[1], StateError("conflict", "another is here")):
    child = os.fork()
    if not child:
        time.sleep(600)
    print(child, flush=True)
    time.sleep(600)
"""


def test_one_at_a_time_also_in_one_process(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with lock_file(path, TAKEN):
        for _ in range(2):  # the first attempt has not let go of what is held
            with pytest.raises(StateError), lock_file(path, TAKEN):
                pass
        call = "lock_file(sys.argv[1], SystemExit(7)).__enter__()"
        other = f"import sys; from sandkeepd.host.instance_lock import lock_file; {call}"
        assert subprocess.run([sys.executable, "-c", other, path], check=False).returncode == 7
    assert not os.path.exists(path)
    with lock_file(path, TAKEN):
        pass


def test_a_child_of_a_killed_holder_does_not_hold_it(tmp_path: Path) -> None:
    """As one does that was being spawned: it has the descriptor until it executes its program."""
    path = str(tmp_path / "lock")
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(StateError), lock_file(path, TAKEN):
                pass
            holder.kill()
            holder.wait()
            os.kill(child, 0)
            assert os.path.exists(f"/proc/{child}/fd")
            with lock_file(path, TAKEN):
                pass
        finally:
            os.kill(child, signal.SIGKILL)
