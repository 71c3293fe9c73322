"""The lists on a terminal of 80 columns, in a real tmux: no line breaks, with long names, ids and wide characters.

`docs/explanation/screens.md` has the pictures. After a change of them, ``SANDKEEP_SCREENS=write`` with this test writes
them again.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.screen import Screen

pytestmark = pytest.mark.needs("bwrap", "tmux")

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "screens.md"
COLUMNS = 80
LONG = "a-name-of-64-letters-" + 43 * "x"
WIDE = "世界" * 30

COMMANDS = (
    "ls", "ls --all --filter label=team", "ps", "ps web-1 --all", "history web-1", "events --sandbox web-1",
    "stats --once", "diff web-1", "diff web-1 --stat", "create --help",
)  # fmt: skip


@pytest.fixture(scope="module")
def ids(shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A daemon with a little of everything; the ids that its lists show, and what they are called here."""
    source = tmp_path_factory.mktemp("source")
    (source / "main.py").write_text("print(1)\n" * 30)
    with shared_daemon.connect() as client:
        image = client.image.create(str(source)).image_id
        plain = client.sandbox.create(image).sandbox_id
        web = client.sandbox.create(image, name="web-1", labels={"team": "web", "why": WIDE}).sandbox_id
        long = client.sandbox.create(image, name=LONG).sandbox_id
        (fork,) = (one.sandbox_id for one in client.sandbox.fork(web, labels={"try": "2"}).sandboxes)
        script = (
            f"mkdir -p lib/{WIDE}; seq 99 >lib/{WIDE}/{'n' * 40}; echo 'print(2)' >main.py; rm -f gone; seq 9 >new.txt"
        )
        client.sandbox.exec(web, script)
        client.process.launch(web, ["sh", "-c", "echo built; exit 3"], name="build")
        client.process.wait(web, "build")
        for name, command in (("server", f"sleep 1000; {WIDE}"), (LONG, "sleep 1000")):
            client.process.launch(web, ["sh", "-c", command], name=name)
        ended = client.sandbox.create(image, name="old").sandbox_id
        client.sandbox.terminate(ended)
    yield {image: "img_01", plain: "sbx_01", web: "sbx_02", long: "sbx_03", fork: "sbx_04", ended: "sbx_05"}
    with shared_daemon.connect() as client:
        for sandbox in (plain, web, long, fork):
            client.sandbox.terminate(sandbox)


@pytest.fixture
def screen(tmp_path: Path, shared_daemon: Any) -> Iterator[Screen]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    env = {**kept, "SANDKEEP_SOCKET": shared_daemon.socket, "NO_COLOR": "1"}
    made = Screen(tmp_path, env, rows=120, cols=COLUMNS)
    made.enter(f'sandkeep() {{ {" ".join(shared_daemon.command)} "$@"; }}; clear')
    made.until_prompt()
    yield made
    made.close()


def picture(screen: Screen, line: str) -> list[str]:
    """The text that the command line shows, without the line itself and the prompt after it."""
    screen.enter(f"sandkeep {line}; echo the-end-$?")
    screen.until(lambda seen: re.search(r"^the-end-\d+\n\$$", seen, re.MULTILINE) is not None)
    first, *shown = screen.shown(joined=True).splitlines()
    assert first.endswith("echo the-end-$?")
    assert shown[-2:] == ["the-end-0", "$"], shown
    joined, broken = shown, screen.lines()[1:]
    assert [one.rstrip() for one in joined] == broken, "a line was broken"
    screen.enter("clear")
    screen.until(lambda seen: seen == "$")
    return broken[:-2]


def same_each_time(lines: list[str], ids: dict[str, str]) -> list[str]:
    """The lines with ids, times, sizes and numbers that are always the same, in as many columns."""
    text = "\n".join(lines)
    for number, process in enumerate(dict.fromkeys(re.findall(r"\bprc_\w{26}\b", text)), 1):
        text = text.replace(process, f"prc_{number:026}")
    for found, name in ids.items():
        kind, number = name.split("_")
        text = text.replace(found, f"{kind}_{number.rjust(26, '0')}")
        text = re.sub(rf"{kind}_\w*…{found[-6:]}\b", lambda cut, n=number: cut[0][:-6] + n.rjust(6, "0"), text)
        for length in range(4, 10):  # of its end
            text = re.sub(rf"(\b{kind}|(?<!\w))…{found[-length:]}\b", rf"\1…{number.rjust(length, '0')}", text)
    for pattern, instead in (
        (r"(img|sbx)_\w{2}…", r"\1_00…"),
        (r"(prc|frk)…\w{6}", r"\1…000001"),  # before ages: an id may end like one
        (r"(?m)\b\d+[smh]( *)(?= |$)", lambda age: "9s" + " " * (len(age[0]) - 2)),
        (r"\d\d:\d\d:\d\d(\.\d+)?", lambda time: "12:34:56.789"[: len(time[0])]),
        (r"\d{4}-\d\d-\d\d", "2026-11-28"),
        (r"(?m)^ +\d+( .) +\d+\.\d{3}  ", r"    7\1     0.012  "),
        (r"(?m)^ +\d+  (?=12:34)", "    7  "),
        (r"frozen for \d+ ms", "frozen for 7 ms"),
        (r"\bpid \d+", "pid 3"),
        (r"host uid \d*…?", lambda uid: "host uid 1900001234…"[: len(uid[0]) - 1] + uid[0][-1:]),
    ):
        text = re.sub(pattern, instead, text)  # type: ignore[arg-type]  # text, or a function of the match
    return [line.rstrip() for line in text.splitlines()]


def test_no_list_breaks_at_80_columns(screen: Screen, ids: dict[str, str]) -> None:
    for line in COMMANDS:
        assert picture(screen, line), line


@pytest.mark.needs("root")  # without, isolation is described in other words
def test_the_pictures_are_what_is_seen(screen: Screen, ids: dict[str, str]) -> None:
    seen = {line: same_each_time(picture(screen, line), ids) for line in COMMANDS if line != "create --help"}
    if os.environ.get("SANDKEEP_SCREENS") == "write":
        PAGE.write_text(INTRODUCTION + "".join(block(line, shown) for line, shown in seen.items()))
    kept = dict(re.findall(r"^## ([^\n]*)\n\n```text\n(.*?)\n```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    assert kept.keys() == seen.keys(), RENEW
    for line, shown in seen.items():
        if line == "stats --once":  # what sandboxes use differs each time, and with it their order and the widths
            assert {one.split()[0] for one in shown} == {one.split()[0] for one in kept[line].splitlines()}, RENEW
        else:
            assert shown == kept[line].splitlines(), "\n".join([RENEW, line, *shown])


def block(line: str, shown: list[str]) -> str:
    return "\n".join(["", f"## {line}", "", "```text", *shown, "```", ""])


RENEW = f"write it again: SANDKEEP_SCREENS=write python -m pytest {Path(__file__).name}, and look at the difference"

INTRODUCTION = """# Lists on a terminal

These are pictures of a terminal of 80 columns, taken by
[`test_columns.py`](../../tests/rpc/cli/test_columns.py) from a real one. No line breaks, however
long names are, and wide characters count twice. A column that does not fit is shortened or left
out; ids that are typed next never are. In a pipe everything is whole, and `--json` has all of it.
"""
