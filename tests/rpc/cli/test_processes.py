"""`exec`, `run`, `logs`, `kill` and `wait` against a real daemon: bytes, codes, signals, input, restarts."""

import base64
import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.patience import patient

from sandkeep.cli.attach.session import Reader
from sandkeep.cli.options import Frontend
from sandkeep.model import ProcessOutput
from sandkeep.protocol.clock import now_us, parse_rfc3339, rfc3339
from sandkeepd.sandboxes.output_times import OutputTimes

pytestmark = pytest.mark.needs("bwrap")


@contextmanager
def started(daemon: Any, *words: str) -> Iterator[Any]:
    """A command that runs, with pipes to it. It is gone after the block, also when the block failed."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*daemon.command, *words], env=daemon.env, stdin=pipe, stdout=pipe, stderr=pipe) as command:
        try:
            yield command
        finally:
            command.kill()


def test_streams_stay_apart_and_the_code_is_the_commands(shared_daemon: Any, box: str) -> None:
    done = shared_daemon.cli("exec", box, "--", "sh", "-c", "printf out; printf err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out", b"err")


def test_every_byte_arrives_as_it_was(shared_daemon: Any, box: str) -> None:
    script = 'i=0; while [ $i -lt 256 ]; do printf "\\\\$(printf %03o $i)"; i=$((i+1)); done'
    done = shared_daemon.cli("exec", box, "--", "sh", "-c", script)
    assert done.stdout == bytes(range(256))


def test_much_output_is_whole(shared_daemon: Any, box: str) -> None:
    done = shared_daemon.cli("exec", box, "--", "sh", "-c", "head -c 9000000 /dev/zero | tr '\\0' x")
    assert done.stdout == b"x" * 9_000_000


def test_words_reach_the_command_as_they_are(shared_daemon: Any, box: str) -> None:
    words = ["", "a b", "$HOME", "'", '"', "\\", "--json", "--", "*", "é\n"]
    done = shared_daemon.cli("exec", box, "--", "printf", "%s|", *words)
    assert done.stdout.decode() == "".join(f"{word}|" for word in words)


def test_output_streams_while_the_command_runs(shared_daemon: Any, box: str) -> None:
    with started(
        shared_daemon, "exec", box, "--interactive", "--", "sh", "-c", "echo ready; read line; echo got $line"
    ) as command:
        assert command.stdout.readline() == b"ready\n"  # it came although the command has not ended
        command.stdin.write(b"this\n")
        command.stdin.flush()
        assert command.stdout.readline() == b"got this\n"
        assert command.wait(patient(30)) == 0


def test_input_is_passed_on_to_its_end(shared_daemon: Any, box: str) -> None:
    data = os.urandom(300_000)
    done = shared_daemon.cli("exec", box, "-i", "--", "cat", input=data)
    assert done.stdout == data


def test_without_interactive_there_is_no_input(shared_daemon: Any, box: str) -> None:
    assert shared_daemon.cli("exec", box, "--", "cat", input=b"not for you").stdout == b""


def test_input_that_nobody_reads_is_no_error(shared_daemon: Any, box: str) -> None:
    done = shared_daemon.cli("exec", box, "-i", "--", "true", input=b"x" * 200_000)
    assert (done.returncode, done.stderr) == (0, b"")


def test_environment_directory_and_secrets(shared_daemon: Any, box: str) -> None:
    options = ("--env", "A=1", "--env", "HERE", "--secret", "TOKEN", "--cwd", "/tmp")
    env = {"HERE": "from outside", "TOKEN": "s3cret"}
    done = shared_daemon.cli("exec", box, *options, "--", "sh", "-c", 'echo "$A,$HERE,$TOKEN,$(pwd)"', env=env)
    assert done.stdout == b"1,from outside,s3cret,/tmp\n"


def test_time_that_is_up_is_124_and_the_output_is_kept(shared_daemon: Any, box: str) -> None:
    for seconds in ("0.5", "20"):  # it may not have begun in the first of them
        done = shared_daemon.cli("exec", box, "--timeout", seconds, "--", "sh", "-c", "echo before; sleep 60")
        if done.stdout:
            break
    assert (done.returncode, done.stdout) == (124, b"before\n")


def test_a_command_that_is_not_there_is_127(shared_daemon: Any, box: str) -> None:
    assert shared_daemon.cli("exec", box, "--", "no-such-command").returncode == 127
    quoted = shared_daemon.cli("exec", box, "echo one two")
    assert quoted.returncode == 127
    assert b"leave out its quotes, or use -- sh -c 'echo one two'\n" in quoted.stderr


def test_sandkeeps_own_refusal_is_125(shared_daemon: Any, box: str) -> None:
    assert shared_daemon.cli("exec", "sbx_nowhere", "--", "true").returncode == 125
    assert shared_daemon.cli("exec", box, "--timeout", "-1", "--", "true").returncode == 125


def test_exec_in_json_is_one_document(shared_daemon: Any, box: str) -> None:
    done = shared_daemon.cli("exec", box, "--json", "--", "sh", "-c", "printf out; printf err >&2; exit 3")
    result = json.loads(done.stdout)
    assert done.returncode == 3
    assert base64.b64decode(result["stdout"]) == b"out"
    assert base64.b64decode(result["stderr"]) == b"err"
    assert (result["exit_code"], result["timed_out"], result["stdout_truncated"]) == (3, False, False)


def test_an_interrupt_goes_to_the_command(shared_daemon: Any, box: str) -> None:
    script = "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    with started(shared_daemon, "exec", box, "--", "sh", "-c", script) as command:
        assert command.stdout.readline() == b"ready\n"
        command.send_signal(signal.SIGINT)
        assert command.stdout.readline() == b"interrupted\n"
        assert command.wait(patient(30)) == 9


def test_a_second_interrupt_kills(shared_daemon: Any, box: str) -> None:
    script = "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done"
    with started(shared_daemon, "exec", box, "--", "sh", "-c", script) as command:
        assert command.stdout.readline() == b"ready\n"
        command.send_signal(signal.SIGINT)
        assert command.stdout.readline() == b"no\n"
        command.send_signal(signal.SIGINT)
        assert command.wait(patient(30)) == 137


def test_when_nobody_reads_the_output_the_command_ends(shared_daemon: Any, box: str) -> None:
    with started(shared_daemon, "exec", box, "--", "sh", "-c", "while :; do echo more; done") as command:
        command.stdout.readline()
        command.stdout.close()
        assert command.wait(patient(30)) == 141
        assert command.stderr is not None
        assert command.stderr.read() == b""
    with shared_daemon.connect() as client:
        assert client.sandbox.get(box).running_processes == 0 or _ends(client, box)


def _ends(client: Any, box: str) -> bool:
    for process in client.process.list(box).processes:
        client.process.wait(box, process.name, 30)
    return True


def test_a_detached_process_is_found_by_its_name(shared_daemon: Any, box: str) -> None:
    started = shared_daemon.cli(
        "run", box, "worker", "--detach", "--", "sh", "-c", "echo out; echo err >&2; exec sleep 60"
    )
    assert started.stdout.startswith(b"prc_")
    listed = shared_daemon.cli("ps", box).stdout.decode().splitlines()
    assert listed[0].split() == ["NAME", "STATUS", "AGE", "COMMAND"]
    assert listed[1].split()[:2] == ["worker", "running"]
    assert box in shared_daemon.cli("ps").stdout.decode()
    until(lambda: shared_daemon.cli("logs", box, "worker").stderr)
    assert shared_daemon.cli("kill", box, "worker").returncode == 0
    assert shared_daemon.cli("wait", box, "worker").returncode == 143
    assert shared_daemon.cli("ps", box).stdout.decode().count("\n") == 1
    assert "exited 143" in shared_daemon.cli("ps", box, "--all").stdout.decode()
    shown = shared_daemon.cli("logs", box, "worker")
    assert (shown.stdout, shown.stderr) == (b"out\n", b"err\n")


def test_a_name_is_taken_while_its_process_runs(shared_daemon: Any, box: str) -> None:
    shared_daemon.cli("run", box, "one", "--detach", "--", "sleep", "60")
    assert shared_daemon.cli("run", box, "one", "--detach", "--", "true").returncode == 125


def test_waiting_has_an_end(shared_daemon: Any, box: str) -> None:
    shared_daemon.cli("run", box, "slow", "--detach", "--", "sleep", "60")
    assert shared_daemon.cli("wait", box, "slow", "--timeout", "0.1").returncode == 124
    assert shared_daemon.cli("kill", box, "slow", "--signal", "kill").returncode == 0
    assert shared_daemon.cli("wait", box, "slow").returncode == 137


def test_logs_from_an_offset_of_one_stream(shared_daemon: Any, box: str) -> None:
    shared_daemon.cli("run", box, "two", "--", "sh", "-c", "printf 0123456789; printf abcdef >&2")
    done = shared_daemon.cli("logs", box, "two", "--offset", "4")
    assert (done.stdout, done.stderr) == (b"456789", b"ef")
    done = shared_daemon.cli("logs", box, "two", "--offset", "4", "--stream", "stdout", "--follow")
    assert (done.stdout, done.stderr) == (b"456789", b"")
    done = shared_daemon.cli("logs", box, "two", "--stream", "stderr")
    assert (done.stdout, done.stderr) == (b"", b"abcdef")
    pieces = [json.loads(line) for line in shared_daemon.cli("logs", box, "two", "--json").stdout.splitlines()]
    assert b"".join(base64.b64decode(piece["stdout"]) for piece in pieces) == b"0123456789"


def test_the_last_lines_of_the_logs(shared_daemon: Any, box: str) -> None:
    shared_daemon.cli("run", box, "lines", "--", "sh", "-c", "seq 1 300000; printf end; printf 'a\\n\\nb\\n' >&2")
    for count, out, err in [
        (0, b"", b""), (1, b"end", b"b\n"), (2, b"300000\nend", b"\nb\n"), (3, b"299999\n300000\nend", b"a\n\nb\n"),
    ]:  # fmt: skip
        done = shared_daemon.cli("logs", box, "lines", "--tail", str(count))
        assert (done.stdout, done.stderr) == (out, err)
    whole = b"".join(b"%d\n" % number for number in range(1, 300001)) + b"end"
    for count in (299_999, 300_001, 10**9):
        done = shared_daemon.cli("logs", box, "lines", "-n", str(count), "--follow", "--stream", "stdout")
        assert done.stdout == b"".join(whole.splitlines(keepends=True)[-count:])
    (piece,) = shared_daemon.cli("logs", box, "lines", "--tail", "1", "--json").stdout.splitlines()
    assert base64.b64decode(json.loads(piece)["stderr"]) == b"b\n"
    for other in (("--offset", "1"), ("--since", "10m")):
        assert shared_daemon.cli("logs", box, "lines", "--tail", "1", *other).returncode == 2


def test_logs_go_to_whatever_stdout_is(shared_daemon: Any, box: str, tmp_path: Path) -> None:
    shared_daemon.cli("run", box, "big", "--", "sh", "-c", "head -c 20000000 /dev/urandom | tee /dev/stderr")
    whole = tmp_path / "whole"
    with whole.open("wb") as file:
        assert shared_daemon.cli("logs", box, "big", stdout=file, capture_output=False, stderr=-3).returncode == 0
    data = whole.read_bytes()
    assert len(data) == 20_000_000
    with (tmp_path / "appended").open("ab") as file:  # which the kernel copies nothing to
        file.write(b"before")
        file.flush()
        shared_daemon.cli("logs", box, "big", "--stream", "stdout", stdout=file, stderr=file, capture_output=False)
    assert (tmp_path / "appended").read_bytes() == b"before" + data
    piped = shared_daemon.cli("logs", box, "big", "--offset", "5")
    assert (piped.stdout, piped.stderr) == (data[5:], data[5:])
    reading, writing = socket.socketpair()
    writing.setblocking(False)  # as somebody who shares our output may have done
    with reading, writing:
        words = [*shared_daemon.command, "logs", box, "big"]
        with subprocess.Popen(words, env=shared_daemon.env, stdout=writing, stderr=subprocess.DEVNULL) as command:
            writing.close()
            received = b"".join(iter(lambda: reading.recv(1 << 20), b""))
            assert command.wait(patient(30)) == 0
    assert received == data


def test_a_follower_far_behind_gets_every_byte_once(new_daemon: Any, tmp_path: Path) -> None:
    daemon = new_daemon()
    daemon.start()
    script = "echo ready; read x; seq 1 2000000; read x; echo end"
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(str(tmp_path)).image_id).sandbox_id
        client.process.launch(box, ["sh", "-c", script], name="much", stdin=True)
        with started(daemon, "logs", box, "much", "--follow") as command:
            assert command.stdout.readline() == b"ready\n"
            client.process.write_stdin(box, "much", data=b"\n")
            first = command.stdout.read(100_000)
            daemon.kill()  # what is behind comes from the journal itself
            daemon.start()
            with daemon.connect() as again:
                again.process.write_stdin(box, "much", data=b"\n", eof=True)
            rest = command.stdout.read()
            assert first + rest == b"".join(b"%d\n" % number for number in range(1, 2_000_001)) + b"end\n"
            assert command.wait(patient(30)) == 0
            said = command.stderr.read()
            assert not said or said.endswith(b" does not answer: waiting for it\n")  # which is told of a slow start


def test_followed_logs_stay_with_the_process_that_had_the_name(shared_daemon: Any, client: Any, box: str) -> None:
    client.process.launch(box, "echo first; read -r line; echo end", stdin=True, name="one")
    with started(shared_daemon, "logs", box, "one", "--follow") as command:
        assert command.stdout.readline() == b"first\n"
        command.send_signal(signal.SIGSTOP)
        client.process.write_stdin(box, "one", eof=True)
        client.process.wait(box, "one")
        client.process.launch(box, "echo something longer than both lines", name="one")
        command.send_signal(signal.SIGCONT)
        assert (command.stdout.read(), command.wait()) == (b"end\n", 0)


def test_logs_without_follow_end_while_the_process_writes_on(shared_daemon: Any, box: str) -> None:
    shared_daemon.cli("run", box, "endless", "--detach", "--", "sh", "-c", "while :; do echo more; done")
    assert shared_daemon.cli("logs", box, "endless").returncode == 0
    assert shared_daemon.cli("kill", box, "endless", "--signal", "KILL").returncode == 0


def test_logs_show_the_other_stream_of_a_journal_that_is_gone(shared_daemon: Any, box: str) -> None:
    gone = 'echo lost; echo kept >&2; f=$(readlink /proc/$$/fd/1); rm "$f"'
    for name, script, note in (
        ("removed", gone, b"the journal of stdout is not kept any more: SANDKEEP_RETAIN_OUTPUT says how much is"),
        ("odd", f'{gone}; ln -s /etc/passwd "$f"', b"the code in the sandbox replaced the journal of stdout"),
    ):
        shared_daemon.cli("run", box, name, "--", "sh", "-c", script)
        for options in ([], ["--follow"], ["--tail", "1"], ["--timestamps"]):
            done = shared_daemon.cli("logs", box, name, *options)
            assert (done.returncode, done.stdout) == (0, b"")
            shown, _, said = done.stderr.partition(b"\n")
            assert shown.split()[-1] == b"kept"
            assert said.startswith(b"sandkeep: " + note)


def test_logs_without_follow_end_although_the_process_goes_on(shared_daemon: Any, box: str) -> None:
    with started(shared_daemon, "run", box, "three", "-i", "--", "sh", "-c", "echo ready; read line") as command:
        assert command.stdout.readline() == b"ready\n"
        assert shared_daemon.cli("logs", box, "three").stdout == b"ready\n"
        command.communicate(b"end\n", timeout=patient(30))
        assert command.returncode == 0


def test_exec_does_not_notice_a_restart_of_the_daemon(new_daemon: Any, tmp_path: Path) -> None:
    daemon = new_daemon()
    daemon.start()
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(str(tmp_path)).image_id).sandbox_id
    script = "i=1; while [ ! -e go ]; do echo $i; i=$((i+1)); sleep 0.01; done; exit 5"
    with started(daemon, "exec", box, "--", "sh", "-c", script) as command:
        before = command.stdout.readline()
        daemon.kill()
        daemon.start()
        after = b"".join(command.stdout.readline() for _ in range(40))
        with daemon.connect() as client:
            client.sandbox.write_file(box, path="go", data=b"")
        numbers = (before + after + command.stdout.read()).split()
        assert numbers == [str(number).encode() for number in range(1, len(numbers) + 1)]
        assert len(numbers) > 40, "it went on after the restart"
        assert command.wait(patient(30)) == 5


def test_many_at_once(shared_daemon: Any, box: str) -> None:
    results: list[bytes] = [b""] * 8

    def run(number: int) -> None:
        results[number] = shared_daemon.cli("exec", box, "--", "echo", str(number)).stdout

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [f"{number}\n".encode() for number in range(8)]


@pytest.mark.needs("freezer")
@pytest.mark.parametrize("command", ["exec", "wait", "logs"])
def test_who_waits_for_a_suspended_sandbox_hears_of_it(shared_daemon: Any, box: str, command: str) -> None:
    with shared_daemon.connect() as client:
        script = ["sh", "-c", "echo ready; read line; exit 7"]
        words = ["exec", box, "-i", "--", *script]
        if command != "exec":
            client.process.launch(box, script, name="work", stdin=True)
            words = [command, box, "work", *(["--follow"] if command == "logs" else [])]
        with started(shared_daemon, *words) as waiting:
            if command != "wait":
                assert waiting.stdout.readline() == b"ready\n"
            client.sandbox.suspend(box)
            told = waiting.stderr.readline().decode()
            assert told == f"sandkeep: sandbox {box} is suspended: `sandkeep resume {box}` continues it\n"
            client.sandbox.resume(box)
            client.sandbox.suspend(box)
            assert waiting.stderr.readline().decode() == told
            client.sandbox.resume(box)
            if command == "exec":
                waiting.stdin.write(b"go\n")
                waiting.stdin.flush()
            else:
                client.process.write_stdin(box, "work", data=b"go\n")
            assert waiting.wait(patient(60)) == (0 if command == "logs" else 7)
            assert waiting.stderr.read() == b""


def _marked(daemon: Any, box: str, process_id: str, stdout: bytes, stderr: bytes = b"") -> str:
    """Wait until all that output has its time; return the time after it."""
    times = OutputTimes(daemon.state_dir)

    def is_marked() -> bool:
        marks = times.load(box, process_id)
        return bool(marks) and marks[-1][1:] == (len(stdout), len(stderr))

    until(is_marked)
    return rfc3339(now_us())


def _times(lines: str) -> list[int]:
    return [parse_rfc3339(line[:24]) for line in lines.split("\n") if line]


PRINTS_ITS_CLOCK = "date +%s%N; printf half; read x; echo -line; date +%s%N >&2; read x; date +%s%N; printf 'no\\rend'"


def test_each_line_has_the_time_at_which_it_came(shared_daemon: Any, box: str) -> None:
    with shared_daemon.connect() as client:
        process = client.process.launch(box, ["sh", "-c", PRINTS_ITS_CLOCK], name="work", stdin=True).process_id
        first = until(lambda: re.fullmatch(rb"\d+\nhalf", client.process.read(box, "work").stdout))[0]
        after_first = _marked(shared_daemon, box, process, first)
        with started(shared_daemon, "logs", box, "work", "--follow", "--timestamps", "--tail", "1") as following:
            assert re.fullmatch(rb"\S{24} half", following.stdout.read(29))
            client.process.write_stdin(box, "work", data=b"go\n")
            assert following.stdout.readline() == b"-line\n"
            second = until(lambda: client.process.read(box, "work").stderr)
            after_second = _marked(shared_daemon, box, process, first + b"-line\n", second)
            client.process.write_stdin(box, "work", data=b"go\n")
            assert re.fullmatch(rb"\S{24} \d+\n\S{24} no\rend", following.stdout.read())
            assert re.fullmatch(rb"\S{24} \d+\n", following.stderr.read())
            assert following.wait(patient(60)) == 0
        whole = client.process.read(box, "work")
        ended = client.process.get(box, "work").ended_at

    done = shared_daemon.cli("logs", box, "work", "--timestamps")
    out, err = done.stdout.decode(), done.stderr.decode()
    assert [re.sub(r"(?m)^\S{24} ", "", text).encode() for text in (out, err)] == [whole.stdout, whole.stderr]
    moments = [int(line) // 1000 for line in (first.split()[0], second, whole.stdout.split(b"\n")[2])]
    (at_first, at_half, at_last, at_end), (at_second,) = _times(out), _times(err)
    bounds = [parse_rfc3339(text) for text in (after_first, after_second, ended)]
    for began, at, seen in zip(moments, (at_first, at_second, at_last), bounds, strict=True):
        assert began - 1000 <= at <= seen  # shown are milliseconds
    assert at_first <= at_half <= bounds[0]
    assert at_last <= at_end <= bounds[2]

    since = shared_daemon.cli("logs", box, "work", "--since", after_first)
    assert (since.stdout, since.stderr) == (whole.stdout[len(first) :], second)
    since = shared_daemon.cli("logs", box, "work", "--since", after_second, "--timestamps", "--stream", "stdout")
    assert (since.stdout, since.stderr) == (out[out.index("-line\n") + 6 :].encode(), b"")
    assert shared_daemon.cli("logs", box, "work", "--since", "0s").stdout == b""
    assert shared_daemon.cli("logs", box, "work", "--since", "10m").stdout == whole.stdout
    (piece,) = shared_daemon.cli("logs", box, "work", "--json", "--timestamps").stdout.splitlines()
    times = json.loads(piece)["times"]
    assert times == sorted(times, key=lambda time: time["at"])
    assert (times[-1]["stdout_offset"], times[-1]["stderr_offset"]) == (len(whole.stdout), len(second))


def test_present_output_ends_though_more_comes_with_each_piece(shared_daemon: Any, box: str) -> None:
    pieces: list[bytes] = []
    with shared_daemon.connect() as client:
        client.process.launch(box, ["cat"], name="endless", stdin=True)

        def write_more(piece: ProcessOutput) -> None:
            pieces.append(piece.stdout)
            if len(pieces) < 4:
                client.process.write_stdin(box, "endless", data=b"more")
                until(lambda: client.process.read(box, "endless", piece.next_stdout_offset, wait_s=1).stdout)

        client.process.write_stdin(box, "endless", data=b"more")
        until(lambda: client.process.read(box, "endless").stdout)
        for times in (False, True):
            pieces.clear()
            with Reader(Frontend(shared_daemon.socket, as_json=False), box, "endless") as reader:
                reader.follow(write_more, follow=False, times=times)
            assert len(pieces) == 1
        client.process.signal(box, "endless", "KILL")


def test_a_byte_is_no_time(shared_daemon: Any, box: str) -> None:
    done = shared_daemon.cli("logs", box, "work", "--since", "1048576")
    assert done.returncode == 2
    assert b"or --offset for a byte" in done.stderr
