"""Who is told to have been OOM-killed: who was, and of whom that cannot be said is not."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.boxes import Box, group_of, new_box
from tests.support.expect import until

from sandkeep import events
from sandkeep_store.views.processes import ProcessState
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.cgroups import usage
from sandkeepd.host.processes import OOM_SCORE_ADJ
from sandkeepd.sandboxes.oom import OomWatcher

MIB = 1 << 20
EAT = "x = bytearray(300 << 20)"
KILLED = 137

REQUEST = events.ProcessLaunchRequested(sandbox_id="sbx", name=None, command=["true"])


def features(client: Any) -> dict[str, Any]:
    """What the local provider can do here."""
    [local] = [one for one in client.daemon.capabilities().providers if one.provider == "local"]
    return dict(local.features)


def process(process_id: str, **more: object) -> ProcessState:
    return ProcessState(
        process_id=process_id,
        sandbox_id="sbx",
        name=process_id,
        requested=REQUEST,
        requested_us=0,
        **more,  # type: ignore[arg-type]
    )


class Counted:
    """A sandbox whose kernel counts as the test says."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "memory.events"
        self.count(0)

    def oom_kills(self) -> int | None:
        return usage.oom_kills({"memory": str(self.file.parent)})

    def count(self, killed: int) -> None:
        self.file.write_text(f"oom {killed}\noom_kill {killed}\n")


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    return Counted(tmp_path)


def kills_of(counted: object) -> OomWatcher:
    return OomWatcher(counted)  # type: ignore[arg-type]  # it has all that is asked for


def test_one_kill_is_told_of_one_process(counted: Counted) -> None:
    kills = kills_of(counted)
    for name in ("a", "b", "c"):
        kills.begin(name)
    counted.count(2)
    assert kills.attribute(process("a"), KILLED)
    assert not kills.attribute(process("a"), KILLED)  # asked again
    kills.begin("late")
    assert kills.attribute(process("b"), KILLED)
    assert not kills.attribute(process("c"), KILLED)
    assert not kills.attribute(process("late"), KILLED)


def test_what_was_killed_before_a_process_began_was_not_that(counted: Counted) -> None:
    kills = kills_of(counted)
    counted.count(5)
    kills.begin("a")
    assert not kills.attribute(process("a"), KILLED)
    kills.begin("b")
    counted.count(6)
    assert kills.attribute(process("b"), KILLED)


@pytest.mark.parametrize(
    ("how", "exit_code"),
    [({"timed_out": True}, KILLED), ({"last_signal": "KILL"}, KILLED), ({}, 143), ({}, 0), ({}, None)],
    ids=["its time was up", "it was told to", "another signal", "well", "unknown"],
)
def test_another_reason_is_not_that_one(counted: Counted, how: dict[str, object], exit_code: int | None) -> None:
    kills = kills_of(counted)
    for name in ("a", "b"):
        kills.begin(name)
    counted.count(1)
    assert not kills.attribute(process("a", **how), exit_code)
    assert kills.attribute(process("b", last_signal="TERM"), KILLED)


def test_where_nobody_counts_nothing_is_told(counted: Counted) -> None:
    silent = kills_of(SimpleNamespace(oom_kills=lambda: None))
    silent.begin("a")
    assert not silent.attribute(process("a"), KILLED)
    kills = kills_of(counted)
    for name in ("a", "b"):
        kills.begin(name)
    counted.count(1)
    kills.forget("b")
    assert not kills.attribute(process("b"), KILLED)
    assert not kills.attribute(process("unheard-of"), KILLED)
    counted.file.unlink()  # the sandbox has gone
    assert not kills.attribute(process("a"), KILLED)


# -- real sandboxes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def box(shared_daemon: RunningDaemon, client: Any, image: str) -> Iterator[Box]:
    memory = features(client)["limit_memory"]
    if memory.why:
        pytest.skip(memory.why)
    with new_box(shared_daemon, image, memory_bytes=64 * MIB) as made:
        yield made


ONE_OF_FOUR = """import glob, os, time
open(f"begun.{os.getpid()}", "w").close()
while len(glob.glob("begun.*")) < 4: time.sleep(0.001)
x = bytearray(MIB << 20)
while not os.path.exists("go"): time.sleep(0.01)
"""
"""Eats at the same moment as three others, and holds what it has."""

SENTENCE = "out of memory: the OOM killer ended it; the sandbox's limit is 64 MB"


@pytest.mark.needs("bwrap", "root")
@pytest.mark.parametrize("command", [["python3", "-c", EAT], ["sh", "-c", f"python3 -c '{EAT}'"]], ids=["itself", "sh"])
def test_what_eats_too_much_is_told(box: Box, command: list[str]) -> None:
    done = box.client.sandbox.exec(box.id, command)
    assert (done.exit_code, done.oom_killed, done.error) == (KILLED, True, SENTENCE)
    ended = box.client.process.get(box.id, done.process_id)
    assert (ended.oom_killed, ended.error, ended.status) == (True, SENTENCE, "exited")


@pytest.mark.needs("bwrap", "root")
def test_people_are_told(box: Box) -> None:
    """By `exec` on stderr, by `wait`, in lists, in the history, and in a document."""
    eats = ["--", "python3", "-c", EAT]
    done = box.daemon.cli("exec", box.id, *eats)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (KILLED, b"", f"sandkeep: {SENTENCE}\n")
    assert json.loads(box.daemon.cli("exec", box.id, "--json", *eats).stdout)["oom_killed"]
    box.daemon.cli("run", box.id, "eater", "--detach", *eats)
    waited = box.daemon.cli("wait", box.id, "eater")
    assert (waited.returncode, waited.stderr.decode()) == (KILLED, f"sandkeep: {SENTENCE}\n")
    assert b"out of memory" in box.daemon.cli("ps", box.id, "--all").stdout
    assert b"exit 137  out of memory" in box.daemon.cli("history", box.id).stdout
    plainly = box.daemon.cli("exec", box.id, "--", "sh", "-c", "kill -9 $$")
    assert (plainly.returncode, plainly.stderr) == (KILLED, b"")


@pytest.mark.needs("bwrap", "root")
def test_who_kills_himself_is_not(box: Box) -> None:
    box.client.process.launch(box.id, ["sleep", "1000"], name="other")
    done = box.client.sandbox.exec(box.id, ["sh", "-c", "kill -9 $$"])
    assert (done.exit_code, done.oom_killed, done.error) == (KILLED, False, None)
    assert box.client.sandbox.exec(box.id, ["python3", "-c", EAT]).oom_killed
    box.client.process.signal(box.id, "other", signal="KILL")
    other = box.client.process.wait(box.id, "other")
    assert (other.exit_code, other.oom_killed) == (KILLED, False)


@pytest.mark.needs("bwrap", "root")
def test_who_had_a_time_limit_is_told_by_that(box: Box) -> None:
    done = box.client.sandbox.exec(box.id, ["sleep", "1000"], timeout_s=0.2)
    assert (done.exit_code, done.timed_out, done.oom_killed) == (124, True, False)


@pytest.mark.needs("bwrap", "root")
def test_several_at_once_are_no_more_than_were_killed(box: Box) -> None:
    def kills() -> int:
        return int(box.client.sandbox.stats(sandbox_id=box.id).sandboxes[0].oom_kills)

    before = kills()
    for number in range(4):
        eat = ONE_OF_FOUR.replace("MIB", str(40 + number))
        box.client.process.launch(box.id, ["python3", "-c", eat], name=f"eater-{number}")
    until(lambda: kills() >= before + 3)  # there is room for one
    box.write("go", b"")
    ended = [box.client.process.wait(box.id, f"eater-{number}") for number in range(4)]
    told = [one for one in ended if one.oom_killed]
    assert len(told) == kills() - before
    assert {one.exit_code for one in told} == {KILLED}


@pytest.mark.needs("bwrap", "root")
def test_a_later_daemon_knows_it_of_what_runs_on(running_daemon: RunningDaemon, tmp_path: Path) -> None:
    with running_daemon.connect() as client:
        image = client.image.create(str(tmp_path)).image_id
        if features(client)["limit_memory"].why:
            pytest.skip("no memory control group")
        sandbox = client.sandbox.create(image, memory_bytes=64 * MIB).sandbox_id
        client.sandbox.exec(sandbox, ["python3", "-c", EAT])
        go = f"while [ ! -e go ]; do sleep 0.05; done; exec python3 -c '{EAT}'"
        client.process.launch(sandbox, ["sh", "-c", go], name="eater")
        goes = "while [ ! -e gone ]; do sleep 0.05; done; kill -9 $$"
        client.process.launch(sandbox, ["sh", "-c", goes], name="other")
    running_daemon.kill()
    running_daemon.start()
    with running_daemon.connect() as client:
        client.sandbox.write_file(sandbox, path="go", data=b"")
        assert client.process.wait(sandbox, "eater").oom_killed
        client.sandbox.write_file(sandbox, path="gone", data=b"")
        told = [client.process.wait(sandbox, name).oom_killed for name in ("eater", "other")]
        assert told == [True, False]


@pytest.mark.needs("bwrap", "root")
def test_a_sandbox_that_ends_by_it_says_so(running_daemon: RunningDaemon, tmp_path: Path) -> None:
    """As when nothing else is left to be killed. Here its first process is ended by us, after the kernel had killed."""
    with running_daemon.connect() as client:
        image = client.image.create(str(tmp_path)).image_id
        if features(client)["limit_memory"].why:
            pytest.skip("no memory control group")
        for eats in (True, False):
            sandbox = client.sandbox.create(image, memory_bytes=64 * MIB).sandbox_id
            assert client.sandbox.exec(sandbox, ["python3", "-c", EAT if eats else ""]).oom_killed is eats
            for pid in cgroups.members({"pids": str(group_of(sandbox))}):
                with suppress(ProcessLookupError):  # with the first of a namespace all others end
                    os.kill(pid, signal.SIGKILL)
            until(lambda sandbox=sandbox: client.sandbox.get(sandbox).status == "failed")
            assert ("memory" in client.sandbox.get(sandbox).error) is eats


@pytest.mark.needs("bwrap")
def test_code_inside_is_killed_before_the_daemon(shared_daemon: RunningDaemon, source: str) -> None:
    with shared_daemon.connect() as client:
        image = client.image.create(source).image_id
        with new_box(shared_daemon, image) as box:
            inside = box.sh("cat /proc/self/oom_score_adj")
        pid = client.daemon.status().pid
    assert int(inside) == OOM_SCORE_ADJ > int(Path(f"/proc/{pid}/oom_score_adj").read_text())
