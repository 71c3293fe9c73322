"""Events as lines, tables and facts: what a reader sees, and that a sandbox cannot drive the reader's terminal."""

from typing import Any

import pytest

from sandkeep.cli.display import output, timeline
from sandkeep.events import EVENTS
from sandkeep.model import Event, Moment

PROCESS = "prc_01kaaaaaaaaaaaaaaaaax7k2m9"
SNAPSHOT = "snp_01kaaaaaaaaaaaaaaaaax7k2m9"


def event(type_: str, data: dict[str, object], stream: str = PROCESS, position: int = 7, **more: Any) -> Event:
    return Event(
        position=position,
        time="2026-11-21T12:03:04.123456Z",
        type=type_,
        version=1,
        stream=stream,
        revision=1,
        data=data,
        meta={},
        **more,
    )


def kept(status: str = "ready", name: str | None = "mine\x1b") -> Moment:
    time = "2026-11-21T12:03:04.123456Z"
    return Moment(kind="snapshot", source_id=SNAPSHOT, position=7, time=time, status=status, name=name)


def test_a_moment_that_was_kept_has_a_sign_and_its_whole_id() -> None:
    stored = event("snapshot.stored", {"member_count": 3, "size_bytes": 7}, moment=kept())
    assert timeline.history_line(stored, 1.5, timeline.Names()) == (
        f"    7 ◆     1.500  snapshot.stored               {SNAPSHOT}  mine�  3 files, 7 B"
    )
    deleted = event("snapshot.stored", {"member_count": 3, "size_bytes": 7}, moment=kept("deleted", None))
    assert timeline.history_line(deleted, 1.5, timeline.Names()) == (
        f"    7 ◇     1.500  snapshot.stored               {SNAPSHOT}  deleted  3 files, 7 B"
    )
    restored = event("sandbox.restored", {"snapshot_id": SNAPSHOT}, moment=kept())
    assert timeline.history_line(restored, 1.5, timeline.Names()) == (
        f"    7 ◆     1.500  sandbox.restored              {SNAPSHOT}  mine�"
    )


def test_a_moment_that_was_not_kept_has_none() -> None:
    started = event("process.started", {"pid": 4})
    assert timeline.history_line(started, 1.5, timeline.Names()) == (
        "    7       1.500  process.started               prc…x7k2m9  pid 4"
    )


def test_a_line_has_position_time_type_subject_and_what_matters() -> None:
    exited = event("process.exited", {"exit_code": 3, "stdout_bytes": 2048, "stderr_bytes": 0})
    assert timeline.line(exited, timeline.Names()) == (
        "    7  12:03:04.123  process.exited                prc…x7k2m9  exit 3  2.0 KB out"
    )


def test_a_process_goes_by_its_name_once_that_was_seen() -> None:
    names = timeline.Names()
    names.of(event("process.launch_requested", {"name": "web", "command": ["httpd"]}))
    assert names.of(event("process.started", {"pid": 4})) == "web"


def test_the_longest_type_keeps_the_columns() -> None:
    lines = [timeline.line(event(kind, {}), timeline.Names()) for kind in EVENTS]
    assert {line.index("prc…x7k2m9") for line in lines} == {len("    7  12:03:04.123  ") + max(map(len, EVENTS)) + 2}


@pytest.mark.parametrize("kind", sorted(EVENTS))
def test_every_event_can_be_shown_even_without_its_fields(kind: str) -> None:
    assert kind in timeline.line(event(kind, {}), timeline.Names())


def test_an_event_of_a_newer_daemon_says_what_it_says_about_itself() -> None:
    assert timeline.detail(event("sandbox.teleported", {"reason": "why not"})) == "why not"


def test_control_characters_never_reach_the_terminal() -> None:
    hostile = event("process.launch_requested", {"name": None, "command": ["\x1b]0;title\x07", "a\nb", "\x9b31m"]})
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in timeline.detail(hostile))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1536, "1.5 KB"), (512 * 1024**2, "512 MB"), (3 * 1024**4, "3.0 TB"), (None, "-")],
)
def test_sizes(count: int | None, text: str) -> None:
    assert output.size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"), (200_000, "2d")])
def test_spans(seconds: float, text: str) -> None:
    assert output.span(seconds) == text


def test_a_table_is_whole_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("A", "B"), [("x", "y" * 200), ("long", "z")])
    assert capsys.readouterr().out == f"A     B\nx     {'y' * 200}\nlong  z\n"


def test_a_table_is_cut_to_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "terminal_width", lambda: 20)
    output.table(("A", "B"), [("x", "y" * 200)])
    assert capsys.readouterr().out.splitlines()[1] == "x  " + "y" * 16 + "…"


def test_facts_leave_out_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    output.facts([("one", 1), ("none", None), ("empty", ""), ("zero", 0)])
    assert capsys.readouterr().out == "one   1\nzero  0\n"
