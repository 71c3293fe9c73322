"""What people see: tables and timelines at 80 columns, colours where they may be, progress that goes away."""

import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.expect import until
from tests.support.golden import EXAMPLES
from tests.support.patience import patient

from sandkeep.cli.display import layout, output, progress, timeline
from sandkeep.cli.display.layout import Column
from sandkeep.events import EVENTS

ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
WIDE = "世界" * 60
HOSTILE = "\x1b]0;owned\x07\u202egnp.exe\u200b\n"


def on_screen(command: list[str], env: dict[str, str], columns: int) -> str:
    """What a command writes to a terminal that is so wide, stdout and stderr alike, to its end."""
    ours, its = pty.openpty()
    ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    running = subprocess.Popen(
        command, env={"TERM": "xterm", **env}, stdin=its, stdout=its, stderr=its, start_new_session=True
    )
    os.close(its)
    said = b""
    try:
        while data := os.read(ours, 65536):
            said += data
    except OSError:  # that is how Linux says that the other end is closed
        pass
    os.close(ours)
    running.wait(patient(60))
    return said.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def screen(shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Runs a command on a screen, with a daemon that has a little to show."""
    source = tmp_path_factory.mktemp("source")
    (source / "hello").write_text("hello\n")
    with shared_daemon.connect() as client:
        image = client.image.create(str(source), labels={"note": HOSTILE})
        first = client.sandbox.create(image.image_id, labels={"who": HOSTILE})
        named = client.sandbox.create(image.image_id, name="api-tests")
        client.process.launch("api-tests", ["sh", "-c", "echo hello; exit 3"], name="migrate")
        client.process.wait("api-tests", "migrate")
        client.process.launch("api-tests", ["sh", "-c", "sleep 1000", WIDE], name="web")
        client.process.launch("api-tests", ["sh", "-c", "sleep 1000", HOSTILE], name="a-name-of-27-letters-or-so")
        client.process.launch(first.sandbox_id, ["sleep", "1000"], name="worker")
    ids = {image.image_id: "IMG_", first.sandbox_id: "SBX_", named.sandbox_id: "API_"}

    def show(*words: str, columns: int = 80, **env: str) -> str:
        words = tuple(next((id_ for id_, name in ids.items() if name == word), word) for word in words)
        text = on_screen([*shared_daemon.command, *words], {**shared_daemon.env, "NO_COLOR": "", **env}, columns)
        for id_, name in ids.items():
            text = text.replace(id_, name.ljust(len(id_), "."))
        return text

    yield show
    with shared_daemon.connect() as client:
        for sandbox in ("api-tests", first.sandbox_id):
            client.sandbox.terminate(sandbox)


def bare(text: str) -> list[str]:
    """Lines without colours, with times, pids and generated ids that are always the same."""
    for pattern, instead in (
        (ESCAPE.pattern, ""),
        (r"\b\d+[smh]( +)(?=\S)", lambda age: "9s" + " " * (len(age[0]) - 2)),
        (r"\d\d:\d\d:\d\d(\.\d+)?", lambda time: "12:34:56.789"[: len(time[0])]),
        (r"\d{4}-\d\d-\d\d", "2026-11-21"),
        (r"(?m)^( +\d+ . ) +\d+\.\d{3}  ", r"\1    0.012  "),
        (r"\bpid \d+", "pid 3"),
        (r"host uid \d+", lambda uid: "host uid 1900001234"[: len(uid[0])]),
        (r"\b(img|sbx|prc)…\w{6}\b", r"\1…x7k2m9"),
    ):
        text = re.sub(pattern, instead, text)
    return text.splitlines()


COMMANDS = [
    ("ls",), ("ls", "--all"), ("ps",), ("ps", "api-tests", "--all"), ("ps", "--all"), ("history", "api-tests"),
    ("events",), ("image", "ls"), ("image", "get", "IMG_"), ("get", "api-tests"), ("get", "SBX_"),
    ("status",), ("capabilities",),
]  # fmt: skip


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("columns", [60, pytest.param(80, marks=pytest.mark.soak), 120])
def test_nothing_is_wider_than_the_screen(screen: Callable[..., str], columns: int) -> None:
    for words in COMMANDS:
        for line in bare(screen(*words, columns=columns)):
            assert layout.width(line) <= columns or len(line.split()) <= 2, (words, line)


@pytest.mark.needs("bwrap")
def test_what_sandboxes_say_does_not_drive_the_terminal(screen: Callable[..., str]) -> None:
    for words in COMMANDS:
        text = ESCAPE.sub("", screen(*words, TERM="xterm"))
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u200b]", text), words


@pytest.mark.needs("bwrap")
def test_sandboxes_at_80_columns(screen: Callable[..., str]) -> None:
    assert bare(screen("ls")) == [
        "SANDBOX                         NAME       STATUS   AGE  LABELS     IMAGE  PROCS",
        f"SBX_..........................             running  9s   who=�]0;…  {shortened(screen)}  1",
        f"API_..........................  api-tests  running  9s              {shortened(screen)}  2",
    ]


def shortened(screen: Callable[..., str]) -> str:
    """The image's id as far as there is room for it, which ends with what tells it from others."""
    (found,) = set(re.findall(r"…\w{4}(?= )", screen("ls")))
    return str(found)


@pytest.mark.needs("bwrap")
def test_sandboxes_at_60_columns_lose_the_image_and_at_120_nothing(screen: Callable[..., str]) -> None:
    assert bare(screen("ls", columns=60))[0] == "SANDBOX                         NAME       STATUS   AGE"
    assert bare(screen("ls", columns=120))[1].endswith("who=�]0;owned��gnp.exe�⏎  IMG_..........................  1")


@pytest.mark.needs("bwrap")
def test_processes_of_a_sandbox_at_80_columns(screen: Callable[..., str]) -> None:
    assert bare(screen("ps", "api-tests", "--all")) == [
        "NAME                        STATUS    AGE  COMMAND",
        "migrate                     exited 3  9s   sh -c 'echo hello; exit 3'",
        "web                         running   9s   sh -c 'sleep 1000' '世界世界世界世界…",
        "a-name-of-27-letters-or-so  running   9s   sh -c 'sleep 1000' '�]0;owned��gnp.e…",
    ]


@pytest.mark.needs("bwrap")
def test_processes_of_all_sandboxes_fold_under_their_sandboxes(screen: Callable[..., str]) -> None:
    """Ids and names are needed for the next command: none is cut."""
    assert bare(screen("ps")) == [
        "SANDBOX",
        "  NAME                        STATUS   AGE  COMMAND",
        "API_..........................",
        "  web                         running  9s   sh -c 'sleep 1000' '世界世界世界世…",
        "  a-name-of-27-letters-or-so  running  9s   sh -c 'sleep 1000' '�]0;owned��gnp.…",
        "SBX_..........................",
        "  worker                      running  9s   sleep 1000",
    ]


@pytest.mark.needs("bwrap")
def test_a_history_at_80_columns(screen: Callable[..., str]) -> None:
    assert bare(screen("history", "api-tests")) == [
        "api-tests, from 2026-11-21 12:34:56.789 UTC",
        "    6       0.012  sandbox.create_requested      from img…x7k2m9, as api-tests",
        "    7       0.012  sandbox.created               bubblewrap, overlay, host uid …",
        "    8       0.012  process.launch_requested      migrate     sh -c 'echo hello;…",
        "    9       0.012  process.started               migrate     pid 3",
        "   10       0.012  process.exited                migrate     exit 3  6 B out",
        "   11       0.012  process.launch_requested      web         sh -c 'sleep 1000'…",
        "   12       0.012  process.started               web         pid 3",
        "   13       0.012  process.launch_requested      a-name-of-27-letters-or-so  sh…",
        "   14       0.012  process.started               a-name-of-27-letters-or-so  pi…",
    ]


@pytest.mark.needs("bwrap")
def test_events_at_80_columns(screen: Callable[..., str]) -> None:
    shown = bare(screen("events", "--sandbox", "api-tests"))
    assert shown[:6] == [
        "2026-11-21 UTC",
        "    6  12:34:56  sandbox.create_requested      sbx…x7k2m9  from img…x7k2m9, as …",
        "    7  12:34:56  sandbox.created               sbx…x7k2m9  bubblewrap, overlay,…",
        "    8  12:34:56  process.launch_requested      migrate     sh -c 'echo hello; e…",
        "    9  12:34:56  process.started               migrate     pid 3",
        "   10  12:34:56  process.exited                migrate     exit 3  6 B out",
    ]


@pytest.mark.needs("bwrap")
def test_exit_codes_are_seen_at_60_columns(screen: Callable[..., str]) -> None:
    assert bare(screen("history", "api-tests", columns=60))[2:] == [
        "    7       0.012  sandbox.created  bubblewrap, overlay, ho…",
        "    8       0.012  process.launch_requested  migrate  sh -c…",
        "    9       0.012  process.started  migrate  pid 3",
        "   10       0.012  process.exited  migrate  exit 3  6 B out",
        "   11       0.012  process.launch_requested  web  sh -c 'sl…",
        "   12       0.012  process.started  web  pid 3",
        "   13       0.012  process.launch_requested  a-name-of…  sh…",
        "   14       0.012  process.started  a-name-of…  pid 3",
    ]
    shown = bare(screen("events", "--sandbox", "api-tests", columns=60))
    assert "   10  12:34:56  process.exited  migrate  exit 3  6 B out" in shown


# -- colours ----------------------------------------------------------------------------------------------------------


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    ("words", "env", "coloured"),
    [
        ((), {}, True),
        ((), {"NO_COLOR": "1"}, False),
        ((), {"TERM": "dumb"}, False),
        (("--color", "never"), {}, False),
        (("--color=always",), {"NO_COLOR": "1"}, True),
    ],
)
def test_colours_are_for_those_who_want_them(
    screen: Callable[..., str], words: tuple[str, ...], env: dict[str, str], coloured: bool
) -> None:
    assert ("\x1b[32mrunning\x1b[0m" in screen("ls", *words, **env)) is coloured


@pytest.mark.needs("bwrap")
def test_piped_there_is_no_colour_and_nothing_is_cut(shared_daemon: Any, screen: Callable[..., str]) -> None:
    assert "\x1b" not in shared_daemon.cli("ls").stdout.decode()
    assert WIDE in shared_daemon.cli("ps", "api-tests").stdout.decode()
    assert "\x1b[32m" in shared_daemon.cli("ls", "--color=always").stdout.decode()


# -- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_shown_on_a_terminal_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = pty.openpty()
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(its, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        said = b""
        with progress.progress("making an image") as told:
            while b"making an image" not in said:
                said += screen.read(4096)
            told(f"copying {HOSTILE}")
            while b"copying" not in said:
                said += screen.read(4096)
        while not said.endswith(b"\r\x1b[K"):
            said += screen.read(4096)
    assert b"\n" not in said
    assert b"\x07" not in said


def test_progress_says_nothing_into_a_pipe(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with progress.progress("making an image") as told:
        told("copying")
    assert capfd.readouterr() == ("", "")


@pytest.mark.needs("bwrap")
def test_what_is_done_at_once_shows_no_progress(screen: Callable[..., str], tmp_path: Path) -> None:
    until(lambda: re.fullmatch(r"img_\w+\n", screen("image", "create", str(tmp_path))))


# -- columns ----------------------------------------------------------------------------------------------------------


def test_a_name_is_whole_beside_labels_that_are_cut_and_an_id_is_not() -> None:
    columns = ["SANDBOX", Column("LABELS", least=4, spare=True), output.identifier("IMAGE", least=5)]
    for image, shown in (("py:3.12", "py:3.12"), ("img_01m7yz4jy0je6j6dpxsvvqycq0", "…ycq0")):
        _, row = output.table_lines(columns, [("one", "team=web," * 9, image)], 30)
        assert row.split()[-1] == shown, row
        assert len(row) <= 30


def test_below_headings_columns_that_can_be_spared_go_before_the_last_is_cut_to_nothing() -> None:
    columns = ["IMAGE", "NAME", Column("KIND", least=9, spare=True), "SOURCE"]
    lines = [*output.table_lines(columns, [("img_01m7yz4jy0je6j6dpxsvvqycq0", "web", "directory", "/srv/project")], 22)]
    assert [line.split() for line in lines[1:]] == [["NAME", "SOURCE"], [lines[2]], ["web", "/srv/project"]]


def test_sentences_of_a_table_are_whole_on_a_narrow_terminal() -> None:
    columns = ["QUOTA", Column("FREED BY", least=20, wraps=True)]
    lines = [*output.table_lines(columns, [("disk", "remove files, or ask for less"), ("calls", "wait")], 28)]
    assert [line.split() for line in lines] == [
        ["QUOTA", "FREED", "BY"], ["disk", "remove", "files,", "or", "ask"], ["for", "less"], ["calls", "wait"],
    ]  # fmt: skip
    assert max(map(len, lines)) <= 28


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("世界", 4), ("é", 1), ("e\u0301", 1), ("", 0), ("\uff21", 2)]
)
def test_text_is_as_wide_as_terminals_show_it(text: str, columns: int) -> None:
    assert layout.width(text) == columns


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("世界世界", 6, "世界…"),
        ("世界世界", 7, "世界世…"),
        ("ab", None, "ab"),
    ],
)
def test_text_is_cut_by_columns(text: str, columns: int | None, shown: str) -> None:
    assert layout.cut(text, columns) == shown


@pytest.mark.parametrize(
    ("columns", "shown"), [(12, "img_01m8x7k2"), (10, "img…m8x7k2"), (8, "img…x7k2"), (7, "…m8x7k2"), (5, "…x7k2")]
)
def test_ids_are_cut_to_their_kinds_and_ends(columns: int, shown: str) -> None:
    assert layout.cut_id("img_01m8x7k2", columns) == shown


@pytest.mark.parametrize(("columns", "shown"), [(9, "abcdefghi"), (8, "abcd…ghi"), (3, "a…i"), (2, "a…"), (1, "…")])
def test_ids_are_cut_in_their_middles(columns: int, shown: str) -> None:
    assert layout.cut_middle("abcdefghi", columns) == shown


def test_a_word_that_is_too_long_for_a_line_is_not_cut() -> None:
    assert layout.wrap("one two /a/long/path three", 8) == ["one two", "/a/long/path", "three"]


def shown_widths(columns: list[Column], row: list[str], room: int | None) -> dict[str, int]:
    return {column.title: wanted for column, _, wanted in layout.fit(columns, [row], room)}


def test_columns_give_way_from_the_last_and_the_spare_ones_go_first_of_all() -> None:
    columns = [Column("ID"), Column("A", least=2, spare=True), Column("B", least=4)]
    row = ["x" * 10, "y" * 6, "z" * 8]
    assert shown_widths(columns, row, None) == {"ID": 10, "A": 6, "B": 8}
    assert shown_widths(columns, row, 26) == {"ID": 10, "A": 6, "B": 6}
    assert shown_widths(columns, row, 22) == {"ID": 10, "A": 4, "B": 4}
    assert shown_widths(columns, row, 18) == {"ID": 10, "B": 4}
    columns = [Column("ID"), Column("A", least=2, spare=True), Column("B", least=4), Column("C", spare=True)]
    row.append("c" * 9)
    assert shown_widths(columns, row, 22) == {"ID": 10, "A": 4, "B": 4}  # what C leaves goes to A


# -- events -----------------------------------------------------------------------------------------------------------


def test_every_event_has_words_of_its_own_or_a_usual_field() -> None:
    others = {kind: {*EVENTS[kind].__struct_fields__} for kind in EVENTS if kind not in timeline.DETAILS}
    usual = {"message", "reason", "signal"}
    assert {*timeline.DETAILS} <= {*EVENTS}
    assert [kind for kind, fields in others.items() if fields - {"position"} and not fields & usual] == []


@pytest.mark.parametrize("kind", sorted(EVENTS))
def test_every_golden_event_is_told(kind: str) -> None:
    """None falls back to what a newer daemon's events get."""
    for example in EXAMPLES:
        if example.type == kind:
            data = json.loads(example.data)
            if kind in timeline.DETAILS:
                timeline.DETAILS[kind](data)
            elif "code" in data:
                assert (
                    timeline.detail(cast("Any", SimpleNamespace(type=kind, data=data)))
                    == f"{data['message']} [{data['code']}]"
                )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.000"), (12.3456, "12.346"), (3725, "1h02m05s"), (273_900, "76h05m00s"), (900_000, "10d10h00m")],
)
def test_times_since_the_beginning(seconds: float, text: str) -> None:
    assert timeline.elapsed(seconds) == text
    assert len(text) <= 9


def test_facts_tell_a_repeated_name_once(capsys: pytest.CaptureFixture[str]) -> None:
    output.facts([("limit", "a"), ("limit", "b"), ("note", "c")])
    assert capsys.readouterr().out == "limit  a\n       b\nnote   c\n"
