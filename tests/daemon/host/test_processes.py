"""Processes of the host: what they inherit, and how they are told apart."""

import ctypes
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import trio

from sandkeep.errors import ProviderError
from sandkeepd.host import processes
from sandkeepd.host.processes import run_tool, spawn


def test_the_daemons_keys_stay_with_it() -> None:
    """A session keyring is handed down to every program, whatever its uid."""
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of the system calls are those of x86_64")
    libc = ctypes.CDLL(None, use_errno=True)
    here = ctypes.c_int(-3)
    found: list[int] = []

    def search() -> int:
        return int(libc.syscall(250, 10, here, b"user", b"sandkeep-test", 0))

    def with_a_key() -> None:
        libc.syscall(250, 1, None)
        libc.syscall(248, b"user", b"sandkeep-test", b"secret", 6, here)
        found.append(search())
        found.append(processes.in_fresh_thread(search))

    thread = threading.Thread(target=with_a_key)
    thread.start()
    thread.join()
    if found[0] < 0:
        pytest.skip("this kernel keeps no keys")
    assert found[1] < 0


@pytest.mark.needs("root")
async def test_only_ones_own_processes_bear_a_sandboxes_mark() -> None:
    """Otherwise another user could have a sandbox never end, by starting processes that look like its own."""
    with subprocess.Popen(["setpriv", "--reuid", "40001", "sleep", "1000"], env={"PATH": "/usr/bin", "M": "x"}) as one:
        try:
            while Path(f"/proc/{one.pid}/cmdline").read_bytes() != b"sleep\x001000\x00":
                await trio.lowlevel.checkpoint()
            assert processes.find_by_environment({"M": "x"}, {0, 40_002}) == []
            assert processes.find_by_environment({"M": "x"}, {40_001}) == [one.pid]
        finally:
            one.kill()


# -- tools of the host ------------------------------------------------------------------------------------------------


def test_a_tool_is_run_to_its_end_and_heard_on_both_pipes() -> None:
    done = run_tool(["sh", "-c", "head -c 300000 /dev/zero; echo no >&2; pwd; exit 3"])
    assert (done.returncode, len(done.stdout)) == (3, 300_000 + len(os.getcwd()) + 1)
    assert done.stderr == b"no\n"
    assert run_tool(["sh", "-c", "kill -9 $$"]).returncode == -signal.SIGKILL


def test_a_tool_with_an_error_for_each_file_of_a_tree_fills_no_memory() -> None:
    done = run_tool(["sh", "-c", "echo first >&2; head -c 9000000 /dev/zero >&2; echo done"])
    assert done.stdout == b"done\n"
    assert done.stderr.startswith(b"first\n")
    assert len(done.stderr) < 200_000


def test_a_tool_that_is_missing_or_does_not_end_is_told_of() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ProviderError, match="nonesuch is missing: install it"):
        run_tool(["nonesuch"])
    with pytest.raises(ProviderError, match="sleep did not finish"):
        run_tool(["sleep", "1000"], timeout_s=0.01)
    assert os.listdir("/proc/self/fd") == before


def test_a_program_that_is_not_there_is_an_error_as_of_the_system() -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere/tool"):
        spawn(["/nowhere/tool"], stdin=0, output=1)
    with pytest.raises(ValueError, match="null byte"):
        spawn(["true", "a\0b"], stdin=0, output=1)


@pytest.mark.parametrize("large_fd_table", [False, True])
def test_what_is_started_has_the_descriptors_that_it_is_given(large_fd_table: bool) -> None:
    """And a table for many more if there is to be room, which those have, too, that it starts."""
    reading, writing = os.pipe()
    script = "exec sh -c 'readlink /proc/self/fd/511 || echo none; grep FDSize /proc/self/status; ls /proc/$$/fd'"
    pid = spawn(["sh", "-c", script], stdin=reading, output=writing, more=[reading], large_fd_table=large_fd_table)
    os.close(writing)
    with open(reading) as file:
        last, size, *numbers = file.read().splitlines()
    assert os.waitpid(pid, 0)[1] == 0
    assert last == ("/dev/null" if large_fd_table else "none")
    assert (int(size.split()[1]) >= 512) == large_fd_table
    assert {"0", "1", "2", "3"} <= set(numbers)
