"""What broke the command when it was attacked: streams that are closed or full, terminals that vanish, odd words."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandkeep.errors import CallerError


@pytest.fixture(scope="module")
def box(shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A sandbox for all tests of this file."""
    source = tmp_path_factory.mktemp("source")
    (source / "hello").write_text("hello\n")
    with shared_daemon.connect() as client:
        sandbox_id = client.sandbox.create(client.image.create(str(source)).image_id).sandbox_id
        yield str(sandbox_id)
        client.sandbox.terminate(sandbox_id)


@pytest.mark.parametrize(("words", "code"), [(("ls",), 1), (("exec", "BOX", "--", "echo", "hi"), 125)])
def test_output_that_cannot_be_written_is_told_in_a_sentence(
    shared_daemon: Any, box: str, words: tuple[str, ...], code: int
) -> None:
    with open("/dev/full", "wb") as full:
        done = shared_daemon.cli(
            *(box if word == "BOX" else word for word in words),
            capture_output=False, stdout=full, stderr=subprocess.PIPE,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        code,
        b"sandkeep: standard input or output failed: No space left on device\n",
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_not_mistaken_for_the_connection(shared_daemon: Any, box: str, closed: str) -> None:
    command = [*shared_daemon.command, "exec", box, "--", "sh", "-c", "echo out; echo err >&2; exit 3"]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command],
        env=shared_daemon.env, capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stdout == (b"" if ">&- " in f"{closed} ".replace("2>&- ", "") else b"out\n")
    assert done.stderr == (b"" if "2>&-" in closed else b"err\n")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused(shared_daemon: Any, box: str, number: float) -> None:
    """Sent as null it would mean that there is no limit."""
    with shared_daemon.connect() as client, pytest.raises(CallerError) as caught:
        client.sandbox.exec(box, "true", timeout_s=number)
    assert (caught.value.code, caught.value.data["field"]) == ("invalid", "timeout_s")
    assert shared_daemon.cli("exec", box, "--timeout", str(number), "--", "true").returncode == 125


def test_an_image_of_nothing_is_not_one_of_the_present_directory(shared_daemon: Any, tmp_path: Path) -> None:
    """As of a shell variable that is not set."""
    done = shared_daemon.cli("image", "create", "", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_terminal_that_goes_away_ends_the_command(shared_daemon: Any, box: str) -> None:
    command = [*shared_daemon.command, "exec", box, "--", "sh", "-c", "trap 'exit 9' HUP; echo up; sleep 60 & wait"]
    with subprocess.Popen(command, env=shared_daemon.env, stdout=subprocess.PIPE) as running:
        late = threading.Timer(30, running.kill)
        late.start()
        assert running.stdout is not None
        assert running.stdout.readline() == b"up\n"
        running.send_signal(signal.SIGHUP)
        assert running.wait() == 9
        late.cancel()
