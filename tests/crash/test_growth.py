"""The daemon dies at every step of archiving, redacting and dropping output; the next one finishes it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.crash import growing
from tests.crash.growing import HERE, MARKER, OUTPUT, POINTS, RUNNING
from tests.crash.story import check_intents, events_of
from tests.support.patience import patient

from sandkeep.events import LOG_STREAM
from sandkeep_store.upkeep import offline, segments
from sandkeepd.host.hostile_files import HostileRoot
from sandkeepd.keeper import journal, journal_trimming
from sandkeepd.sandboxes.output_times import OutputTimes

MIB = 1024**2


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """In memory, if that can be had: what survives a kill is the same there."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="skt-", dir=memory if os.access(memory, os.W_OK) else None) as made:
        growing.make(f"{made}/made")
        yield Path(made)


@pytest.fixture(scope="module")
def lives(root: Path) -> dict[str, tuple[int, int]]:
    """How the daemon that dies ended, and the one after it, for every point."""
    command = [sys.executable, "-m", "tests.crash.growing", str(root), *POINTS]
    said = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=patient(120), cwd=Path(__file__).parents[2]
    )
    lines = [line.split() for line in said.stdout.splitlines()]
    assert said.stderr == ""
    return {point: (int(first), int(second)) for point, first, second in lines}


@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_every_point(root: Path, lives: dict[str, tuple[int, int]], point: str) -> None:
    assert lives[point] == (signal.SIGKILL, 0)
    state_dir = str(root / point)
    facts = events_of(state_dir)
    head = facts[-1].position
    names = segments.names(state_dir)
    lines = [line for name in names for line in segments.events(f"{state_dir}/archive/{name}")]
    assert {fact.position for fact in facts} | {line.position for line in lines} == set(range(1, head + 1))
    assert offline.verify(state_dir).problems == []
    check_intents([fact for fact in facts if fact.stream == LOG_STREAM])
    check_redacted(root, state_dir)
    check_output(state_dir)
    assert not [name for name in os.listdir(f"{state_dir}/archive") if name.startswith(".")]


def check_redacted(root: Path, state_dir: str) -> None:
    """Two events hold their words no more, and nothing else does; what is beside them is as it was."""
    there, positions = everything(state_dir), positions_of_log(state_dir)
    for process_id, position in growing.held(str(root / "made")).items():
        words = f'{MARKER} of {process_id}"'.encode()
        redacted = process_id in ("prc_seen", "prc_sbx_1_3")
        assert (words in there) == (not redacted and position in positions), words
    facts = {fact.stream: fact for fact in events_of(state_dir) if fact.type == "process.launch_requested"}
    assert msgspec.json.decode(facts["prc_seen"].data)["command"] == ["[redacted]"]


def positions_of_log(state_dir: str) -> set[int]:
    return {fact.position for fact in events_of(state_dir)}


def everything(state_dir: str) -> bytes:
    """What is in all files, one after the other. Segments are packed, and looked at apart."""
    found = [Path(folder, name).read_bytes() for folder, _, names in os.walk(state_dir) for name in names]
    lines = [line for name in segments.names(state_dir) for line in segments.events(f"{state_dir}/archive/{name}")]
    assert {line.stream for line in lines if b"[redacted]" in bytes(line.data)} == {"prc_sbx_1_3"}
    assert not [line for line in lines if f'{MARKER} of prc_sbx_1_3"'.encode() in bytes(line.data)]
    return b"\0".join(found)


def check_output(state_dir: str) -> None:
    """Of what ended and is archived nothing is left; what runs has its end, whole, and the rest is within bounds."""
    assert os.listdir(f"{state_dir}/sandboxes") == [HERE]
    out_dir = f"{state_dir}/sandboxes/{HERE}/out"
    kept = {fact.stream for fact in events_of(state_dir) if fact.type == "process.launch_requested"}
    left = {name.partition(".")[0] for name in os.listdir(f"{out_dir}/p")}
    assert RUNNING in left <= kept
    times = OutputTimes(state_dir)
    assert times.sandboxes() == [HERE]
    assert RUNNING in set(os.listdir(f"{state_dir}/output-times/{HERE}")) <= left
    assert times.load(HERE, RUNNING)[-1] == (4, 40, 2)
    chunk = journal.read_journal(HostileRoot(out_dir).tree(), RUNNING, "stdout", 0, len(OUTPUT))
    assert (chunk.size, chunk.data == OUTPUT[chunk.offset :]) == (len(OUTPUT), True)
    with os.scandir(f"{out_dir}/p") as files:
        assert sum(max(journal_trimming.FILE_BYTES, file.stat().st_blocks * 512) for file in files) <= MIB
    assert os.stat(f"{out_dir}/exits").st_blocks * 512 <= 3 * journal.MAX_BACKLOG_BYTES
