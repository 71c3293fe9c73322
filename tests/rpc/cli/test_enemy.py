"""What broke the command when it was attacked: streams that are closed or full, terminals that vanish, odd words."""

import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.boxes import Box
from tests.support.expect import until
from tests.support.patience import patient

from sandkeep.errors import CallerError


@pytest.fixture(scope="module")
def box(shared_box: Box) -> str:
    return shared_box.id


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
        env=shared_daemon.env, capture_output=True, stdin=subprocess.DEVNULL, timeout=patient(60),
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
    assert shared_daemon.cli("exec", box, "--timeout", str(number), "--", "true").returncode == 2


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


NOT_TEXT = b"\xff".decode(errors="surrogateescape")


@pytest.mark.parametrize(
    ("words", "code", "field"),
    [
        (("get", NOT_TEXT), 1, "SANDBOX"),
        (("exec", "BOX", "--", "echo", NOT_TEXT), 125, "COMMAND"),
        (("exec", "BOX", "--env", f"A={NOT_TEXT}", "--", "true"), 125, "--env"),
    ],
)
def test_words_that_are_not_utf_8_are_refused_by_name(
    shared_daemon: Any, box: str, words: tuple[str, ...], code: int, field: str
) -> None:
    done = shared_daemon.cli(*(box if word == "BOX" else word for word in words))
    assert (done.returncode, done.stdout) == (code, b"")
    assert done.stderr == f"sandkeep: {field}: must be valid UTF-8 [invalid]\n".encode()
    assert json.loads(shared_daemon.cli("get", box, NOT_TEXT, "--json").stdout)["error"]["code"] == "invalid"


def test_what_makes_no_sense_is_told_as_what_it_is(shared_daemon: Any, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    words = ["sh", "-c", 'cd gone && rmdir ../gone && "$@"', "sh", *shared_daemon.command, "image", "create", "."]
    done = subprocess.run(words, env=shared_daemon.env, cwd=tmp_path, capture_output=True, timeout=patient(60))
    assert (done.returncode, b"the working directory was removed" in done.stderr) == (1, True)
    done = shared_daemon.cli("--socket", "", "ls")
    assert (done.returncode, b"socket is empty" in done.stderr) == (1, True)
    done = shared_daemon.cli("image", "--json", "ls")
    assert (done.returncode, b"after the command, as in: sandkeep image COMMAND --json" in done.stderr) == (
        2,
        True,
    )
    done = shared_daemon.cli("events", "--type", "process.exitd")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"did you mean process.exited?" in done.stderr


@pytest.mark.needs("bwrap", "tmux")
def test_with_json_a_terminal_in_a_pipe_is_one_document(shared_daemon: Any, box: str) -> None:
    for name, script in (("quick", "echo shown; exit 3"), ("slower", "echo shown; sleep 0.2; exit 3")):
        done = shared_daemon.cli("run", box, name, "--tty", "--json", "--", "sh", "-c", script)
        assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (3, 3)


def test_what_nobody_hears_keeps_the_code(shared_daemon: Any, box: str) -> None:
    with open("/dev/full", "wb") as full:
        for words, code in ((("get", "nope"), 1), (("ls", "--bad"), 2), (("exec", "nope", "--", "true"), 125)):
            assert shared_daemon.cli(*words, capture_output=False, stderr=full).returncode == code


def test_quitting_leaves_what_was_run_and_ends_what_was_executed(shared_daemon: Any, box: str) -> None:
    """A command without a name that goes on unseen is of no use to anybody."""
    for verb, code in (("exec", (131,)), ("run", (0,))):
        words = [*shared_daemon.command, verb, box, *(["left"] if verb == "run" else []), "--"]
        with subprocess.Popen(
            [*words, "sh", "-c", "echo up; exec sleep 60"],
            env=shared_daemon.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as running:  # fmt: skip
            assert running.stdout is not None
            assert running.stdout.readline() == b"up\n"
            running.send_signal(signal.SIGQUIT)
            _, said = running.communicate(timeout=patient(60))
            assert running.returncode in code, said
    with shared_daemon.connect() as client:
        assert [process.name for process in client.process.list(sandbox_id=box).processes] == ["left"]
        client.process.signal(box, "left", signal="KILL")


def test_who_waits_and_who_follows_events_outlives_a_daemon(running_daemon: Any, tmp_path: Path) -> None:
    with running_daemon.connect() as client:
        sandbox = client.sandbox.create(client.image.create(str(tmp_path)).image_id).sandbox_id
        client.process.launch(sandbox, ["sh", "-c", "read line; exit 6"], name="slow", stdin=True)
    pipes = {"env": running_daemon.env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    wait = subprocess.Popen([*running_daemon.command, "wait", sandbox, "slow"], **pipes)
    events = subprocess.Popen(
        [*running_daemon.command, "events", "--follow", "--sandbox", sandbox, "--type", "process"], **pipes
    )
    with wait, events:
        assert events.stdout is not None
        assert b"process.launch_requested" in events.stdout.readline()
        assert b"process.started" in events.stdout.readline()
        with running_daemon.connect() as client:
            until(lambda: client.daemon.status().connections >= 3)  # `wait` may still be on its way
        running_daemon.kill()
        running_daemon.start()
        with running_daemon.connect() as client:
            client.process.write_stdin(sandbox, "slow", data=b"\n", eof=False)
        assert wait.wait(patient(30)) == 6, wait.communicate()
        assert b"exit 6" in events.stdout.readline()
        events.send_signal(signal.SIGINT)
        assert (events.wait(patient(30)), events.communicate()[0]) == (130, b"")
