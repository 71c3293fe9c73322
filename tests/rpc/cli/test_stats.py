"""`stats`: one table, a table that follows, JSON, and text that Prometheus' own parser reads."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.boxes import new_box
from tests.support.expect import until
from tests.support.screen import Screen

from sandkeep.cli.commands.stats import COLUMNS, SORTS, busy
from sandkeep.cli.display import output
from sandkeep.cli.display.prometheus import FAMILIES, PREFIX, exposition
from sandkeep.model import SandboxStats
from sandkeep.settings.daemon import MEMORY_LIMIT

MIB = 1 << 20


def sample(sandbox_id: str, at_s: float = 0, **more: Any) -> SandboxStats:
    at = f"2026-11-21T20:00:{at_s:09.6f}Z"
    return SandboxStats(sandbox_id=sandbox_id, provider="local", owner="uid:0", sampled_at=at, **more)


FULL = sample(
    "sbx_1", cpu_s=1.25, cpu_user_s=1.0, cpu_system_s=0.25, cpus_limit=1.5, memory_bytes=7, memory_peak_bytes=8,
    memory_limit_bytes=9, pids=3, pids_limit=10, pids_refused=4, disk_bytes=11, disk_limit_bytes=12,
    io_read_bytes=2**62, io_written_bytes=0, oom_kills=0,
    running_processes=2, timeouts=5,
)  # fmt: skip


# -- Prometheus -------------------------------------------------------------------------------------------------------


def parsed(text: str) -> dict[tuple[str, str, str], float]:
    """Name, sandbox and mode of each sample, and its value, as a real parser has it."""
    return {
        (one.name, one.labels["sandbox_id"], one.labels.get("mode", "")): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_every_value_comes_through_a_real_parser() -> None:
    found = parsed(exposition([FULL]))
    fields = {(f"{PREFIX}{f.name}", "sbx_1", mode): field for f in FAMILIES for mode, field in f.fields.items()}
    assert found == {key: getattr(FULL, field) for key, field in fields.items()}
    about = {"sandbox_id", "provider", "owner", "name", "session_id", "sampled_at", "created_at", "expires_at"}
    assert set(fields.values()) == set(SandboxStats.__struct_fields__) - about


def test_types_and_names_are_as_they_should_be() -> None:
    """Counters end in _total and nothing else does, each family has one HELP and one TYPE, and samples follow these."""
    text = exposition([FULL, sample("sbx_2", cpu_s=1.0)])
    for family in text_string_to_metric_families(text):
        names = {one.name for one in family.samples}
        assert family.documentation
        assert family.type == ("counter" if names.pop().endswith("_total") else "gauge")
        assert not names
    lines = text.splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert len(names) == len(set(names)) == len(FAMILIES)
    assert all(name.removesuffix("_total").islower() for name in names)
    assert [line for line in lines if not line.strip() or line.startswith("# EOF")] == []


def test_what_is_not_known_has_no_sample_and_no_metric() -> None:
    known = {(f"{PREFIX}{name}", "sbx_1", "") for name in ("running_processes", "timeouts_total")}
    assert set(parsed(exposition([sample("sbx_1")]))) == known
    assert "memory" not in exposition([sample("sbx_1"), sample("sbx_2", pids=1)])
    assert exposition([]) == ""


def test_labels_come_through_whatever_is_in_them() -> None:
    odd = 'a"b\\c\nd\\n{},=# é'
    family, _ = text_string_to_metric_families(exposition([msgspec.structs.replace(sample("sbx_1"), owner=odd)]))
    assert family.samples[0].labels == {"sandbox_id": "sbx_1", "provider": "local", "owner": odd}


# -- rates ------------------------------------------------------------------------------------------------------------


def test_a_rate_is_cpu_time_by_time() -> None:
    before = [sample("a", 1, cpu_s=1.0), sample("b", 1, cpu_s=5.0), sample("gone", 1, cpu_s=5.0)]
    now = [sample("a", 3, cpu_s=2.0), sample("b", 3, cpu_s=4.0), sample("new", 3, cpu_s=9.0), sample("unknown", 3)]
    assert busy(before, now, {}) == {"a": 0.5, "b": 0.0}
    assert busy(now, now, {"a": 0.5}) == {"a": 0.5}  # the same instant tells nothing
    assert busy(now, before, {"a": 0.5}) == {"a": 0.5}  # nor does a clock that was set back


@pytest.mark.parametrize("name", SORTS)
def test_it_can_be_sorted_by_what_is_not_known(name: str) -> None:
    assert SORTS[name](sample("a"), {}) == 0


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_the_table_fits(width: int) -> None:
    name = "sbx_01m7zwhahepm9b7qqe33zkked0"
    row = (
        name,
        "1600%/1600%",
        "123456.7s",
        "1023 GB/1.5 TB",
        "4000000/4000000",
        "999 GB/1023 GB",
        "1.5 TB",
        "1.5 TB",
        "12",
        "8d",
        "23h",
    )
    lines = list(output.table_lines(COLUMNS, [row], width))
    assert max(map(len, lines)) <= max(width, len(row[3]) + len(row[4]) + len(row[1]) + 6)
    if width >= 80:
        assert lines[1].split()[0] in (name, output.cut_middle(name, len(lines[1].split()[0])))
        assert "1023 GB/1.5 TB" in lines[1]


# -- the command ------------------------------------------------------------------------------------------------------

SPIN = """
import time
while True:
    until = time.process_time() + 0.02
    while time.process_time() < until:
        pass
    time.sleep(0.03)
"""
"""Uses two fifths of a processor, and leaves the rest to other tests."""


@pytest.fixture(scope="module")
def boxes(shared_daemon: Any, image: str) -> Iterator[tuple[str, str]]:
    """One with limits in which something is busy, and one at rest."""
    with (
        new_box(shared_daemon, image, name="at-rest"),
        new_box(shared_daemon, image, name="at-work", memory_bytes=64 * MIB, pids=50) as busy,
    ):
        busy.client.process.launch("at-work", ["python3", "-c", SPIN], name="spin")
        until(lambda: busy.client.sandbox.stats(sandbox_id="at-work").sandboxes[0].cpu_s > 0.3)
        yield "at-work", "at-rest"


pytestmark = pytest.mark.needs("bwrap", "root")


def test_one_table_where_there_is_no_terminal(shared_daemon: Any, boxes: tuple[str, str]) -> None:
    done = shared_daemon.cli("stats")
    assert (done.returncode, done.stderr) == (0, b"")
    titles, first, second = done.stdout.decode().splitlines()
    assert titles.split() == [column.title for column in COLUMNS]
    assert [first.split()[0], second.split()[0]] == list(boxes)  # the busier one first
    assert first.split()[1] == "-"  # one sample tells no rate
    assert "/64 MB" in first
    assert "/50" in first
    assert shared_daemon.cli("stats", "at-rest").stdout.decode().splitlines()[1].startswith("at-rest ")


def test_as_a_document(shared_daemon: Any, boxes: tuple[str, str]) -> None:
    found = json.loads(shared_daemon.cli("stats", "--json").stdout)
    assert {one["name"] for one in found} == set(boxes)
    [one] = json.loads(shared_daemon.cli("stats", "at-work", "at-work", "--json").stdout)
    assert (one["memory_limit_bytes"], one["running_processes"]) == (64 * MIB, 1)


def test_for_prometheus(shared_daemon: Any, boxes: tuple[str, str]) -> None:
    done = shared_daemon.cli("stats", "--prometheus")
    found = parsed(done.stdout.decode())
    assert done.stdout.endswith(b"\n")
    with shared_daemon.connect() as client:
        at_work, at_rest = (client.sandbox.get(box).sandbox_id for box in boxes)
    assert found[PREFIX + "cpu_seconds_total", at_work, ""] > found[PREFIX + "cpu_seconds_total", at_rest, ""]
    assert found[PREFIX + "memory_limit_bytes", at_work, ""] == 64 * MIB
    assert found[PREFIX + "memory_limit_bytes", at_rest, ""] == MEMORY_LIMIT({})
    assert (PREFIX + "cpu_limit_cpus", at_rest, "") not in found


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["sbx_none"], 1, "there is no sandbox"),
        (["--json", "--prometheus"], 2, "cannot be combined"),
        (["--interval", "0"], 2, "--interval"),
        (["--sort", "size"], 2, "--sort"),
    ],
)
def test_what_makes_no_sense(shared_daemon: Any, words: list[str], code: int, said: str) -> None:
    done = shared_daemon.cli("stats", *words)
    assert (done.returncode, said in done.stderr.decode()) == (code, True)


# -- on a terminal ----------------------------------------------------------------------------------------------------


@pytest.fixture
def screen(tmp_path: Path, shared_daemon: Any, boxes: tuple[str, str]) -> Iterator[Screen]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    env = {**kept, "SANDKEEP_SOCKET": shared_daemon.socket, "SK": " ".join(shared_daemon.command)}
    made = Screen(tmp_path, env, rows=10, cols=80)
    yield made
    made.close()


def rows(seen: str) -> list[list[str]]:
    return [line.split() for line in seen.splitlines()]


def is_table(seen: str) -> bool:
    """Whether rates are shown: from the second sample on."""
    return seen.startswith("SANDBOX") and rows(seen)[1][1].endswith("%") and rows(seen)[1][0] == "at-work"


@pytest.mark.needs("tmux")
def test_the_table_follows_and_q_ends_it(screen: Screen) -> None:
    before = screen.modes()
    screen.open("$SK stats --interval 0.1; stty -a | grep -o ' icanon.* echo '")
    seen = screen.until(lambda seen: is_table(seen) and int(rows(seen)[1][1].rstrip("%")) > 5)
    assert "cursor_flag=0" in screen.modes()
    times = {seen}
    screen.until(lambda seen: times.add(seen) or len(times) > 3)  # type: ignore[func-returns-value]
    screen.press("Left", "x")  # other keys do nothing
    screen.paste(b"\x1b[D\x1bOAq")  # also not when they come together with one that does
    screen.until_prompt()
    assert "SANDBOX" not in screen.shown()
    assert "icanon" in screen.shown()
    assert screen.modes() == before


@pytest.mark.needs("tmux")
def test_it_follows_the_size_of_the_terminal_and_ctrl_c_ends_it(screen: Screen) -> None:
    before = screen.modes()
    screen.open("$SK stats --interval 60; echo it was $?")
    assert "WRITTEN" in screen.until("at-rest")
    screen.resize(10, 44)  # at once, and not after the interval
    narrow = screen.until(lambda seen: "at-rest" in seen and "WRITTEN" not in seen)
    assert max(map(len, narrow.splitlines())) <= 44
    screen.resize(2, 80)
    screen.until("more lines")
    screen.resize(10, 80)
    screen.until(lambda seen: "WRITTEN" in seen and "at-rest" in seen)
    screen.press("C-c")
    screen.until("it was 130")
    assert screen.modes() == before


@pytest.mark.needs("tmux")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_in_good_order(screen: Screen, number: int, code: int) -> None:
    before = screen.modes()
    screen.open("$SK stats at-rest --interval 60; echo it was $?")
    screen.until("at-rest")
    os.kill(screen.child(), number)
    screen.until(f"it was {code}")
    assert screen.modes() == before


@pytest.mark.needs("tmux")
def test_somebody_else_has_the_terminal_while_it_is_stopped(screen: Screen) -> None:
    before = screen.modes()
    screen.open("$SK stats --interval 0.1")
    screen.until(is_table)
    screen.press("C-z")
    screen.until("Stopped")
    assert screen.modes() == before
    screen.enter("fg")
    screen.until(is_table)
    screen.type("q")
    screen.until_prompt()
    assert screen.modes() == before


@pytest.mark.needs("tmux")
def test_it_ends_with_the_last_that_was_named(screen: Screen, shared_daemon: Any, boxes: tuple[str, str]) -> None:
    with shared_daemon.connect() as client:
        image = client.sandbox.get(boxes[0]).image_id
        client.sandbox.create(image, name="short")
        screen.open("$SK stats short at-rest --interval 0.1")
        screen.until("short")
        client.sandbox.terminate("short")
        screen.until(lambda seen: "short" not in seen and "at-rest" in seen)
        screen.type("q")
        screen.until_prompt()
        client.sandbox.create(image, name="shorter")
        screen.open("$SK stats shorter --interval 0.1; echo it was $?")
        screen.until("shorter")
        client.sandbox.terminate("shorter")
        screen.until("it was 0")
        assert "the sandbox has ended" in screen.shown()


@pytest.mark.needs("tmux")
@pytest.mark.parametrize("word", ["--once", "--json", "--prometheus"])
def test_on_a_terminal_it_can_be_had_once(screen: Screen, word: str) -> None:
    before = screen.modes()
    screen.enter(f"clear; $SK stats {word}; echo it was $?")
    screen.until("it was 0")
    assert screen.modes() == before


def test_names_complete(shared_daemon: Any, boxes: tuple[str, str]) -> None:
    found = until(lambda: shared_daemon.cli("sandkeep stats at-", "", env={"_SANDKEEP_COMPLETE": "bash"}).stdout)
    assert b"at-work" in found
    assert b"at-rest" in found
