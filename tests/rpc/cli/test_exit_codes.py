"""Exit codes as `EXIT_CODES` tells them in the help, the manual and the reference, one by one."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.boxes import new_box
from tests.support.expect import until
from tests.support.patience import patient

from sandkeep.cli.exit_codes import EXIT_CODES

pytestmark = pytest.mark.needs("bwrap")

CASES = [
    (0, ("ls",)),
    (1, ("get", "nobody")),
    (1, ("ls", "--socket", "/nonexistent/sock")),
    (2, ("ls", "--nonsense")),
    (2, ()),
    (124, ("exec", "box", "--timeout", "0.05", "--", "sleep", "1000")),
    (124, ("wait", "box", "long", "--timeout", "0.05")),
    (125, ("exec", "nobody", "--", "true")),
    (125, ("wait", "box", "nobody")),
    (7, ("exec", "box", "--", "sh", "-c", "exit 7")),
    (137, ("exec", "box", "--", "sh", "-c", "kill -9 $$")),
]


@pytest.fixture(scope="module")
def box(shared_daemon: Any, image: str) -> Iterator[str]:
    with new_box(shared_daemon, image, name="box") as made:
        made.client.process.launch("box", ["sleep", "1000"], name="long")
        yield "box"


@pytest.mark.parametrize(("code", "words"), CASES)
def test_a_command_exits_with(shared_daemon: Any, box: str, code: int, words: tuple[str, ...]) -> None:
    assert shared_daemon.cli(*words).returncode == code


def test_an_interrupted_command_exits_with_130(shared_daemon: Any, box: str) -> None:
    command = [*shared_daemon.command, "events", "--follow", "--json"]
    with subprocess.Popen(command, env=shared_daemon.env, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        until(lambda: b"unix_stream" in Path(f"/proc/{running.pid}/wchan").read_bytes())  # it waits for more
        running.send_signal(signal.SIGINT)
        assert running.wait(patient(60)) == 130


def test_a_command_whose_reader_has_gone_exits_with_141(shared_daemon: Any, box: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = shared_daemon.cli("events", capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_every_code_of_the_table_is_tested() -> None:
    assert {code for code, _ in CASES} - {7, 137} | {130, 141, "any"} == set(EXIT_CODES)
