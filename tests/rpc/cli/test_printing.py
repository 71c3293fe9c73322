"""Whatever leaves for a terminal, of every command, against a daemon all of whose texts drive terminals."""

import json
import os
import pty
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from tests.rpc.cli.lying import HOSTILE, LyingDaemon

from sandkeep.cli import run
from sandkeep.cli.display import progress
from sandkeep.cli.root import sandkeep
from sandkeep.protocol import printable

OURS = re.compile("\x1b\\[(?:0|1|2|31|32|33|36)m|\r\x1b\\[K|\r(?=[^\n]*\x1b\\[K)|\x1b\\[K|\r\n")
"""Colours, and the line of progress."""

DRAWN = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Format characters that one can see."""

NO_DAEMON = {"daemon", "demo", "completion", "manual", "help", "store repair"}
"""They run another program, or print only what is in the package."""

RAW = {"exec", "run", "shell", "attach", "logs", "artifact cat", "branch show", "stats"}
"""They show the output of the user's process, or a file as it is, or a screen, on a terminal."""

NO_DOCUMENT = {
    "run", "exec", "shell", "attach", "logs", "artifact cat", "branch show",  # the output of a process, or a file
    "cp", "session export", "snapshot export", "snapshot import", "branch commit", "branch resolve",  # ask for more
}  # fmt: skip
"""They get no whole document from a daemon that only lies."""

WORDS = {
    "-- COMMAND...": ["--", "true"], "SRC": ["web1:/x"], "DST": ["/dev/null"], "FILE": ["/dev/null"],
    "DIRECTORY": ["/tmp"], "POSITION": ["1"], "METHOD": ["daemon.status"], "PATH=BRANCH...": ["a=web1"],
}  # fmt: skip
OPTIONS = {
    "restore": ["--at", "1"], "update": ["--cpus", "1"], "rm": ["web1"], "attach-shared": ["--token", "t"],
    "prune": ["--yes"], "session ensure": ["web1", "--image", "web1"], "branch resolve": ["--rest", "base"],
}  # fmt: skip
"""What a command needs besides its required arguments."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command of the tree, by its words."""
    pending: list[tuple[str, click.Command]] = [("", sandkeep)]
    while pending:
        words, command = pending.pop()
        if not isinstance(command, click.Group):
            yield words, command
            continue
        context = click.Context(command)
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None and (words, name) != ("", "sandbox"):
                pending.append((f"{words} {name}".strip(), inner))


COMMANDS = dict(sorted(commands()))
ASKING = sorted(COMMANDS.keys() - NO_DAEMON)


def line_of(words: str) -> list[str]:
    """A whole command line: with each argument that has to be given."""
    command = COMMANDS[words]
    arguments = []
    for param in command.params:
        if isinstance(param, click.Argument) and param.required:
            metavar = param.make_metavar(click.Context(command))
            arguments += WORDS.get(metavar, ["web1"])
    return [*words.split(), *OPTIONS.get(words, []), *arguments]


def on_terminal(arguments: Sequence[str], *, out: int | None = None) -> tuple[int, str]:
    """Run the command in a fork, on a terminal. With `out` its stdout goes there."""
    child, ours = pty.fork()
    if child == 0:
        code = 99
        try:
            if out is not None:
                os.dup2(out, 1)
            sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115  # pytest has its own
            code = run([*arguments])
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    said = b""
    try:
        while data := os.read(ours, 65536):
            said += data
    except OSError:  # so Linux says that the other end is closed
        pass
    os.close(ours)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.decode()


@pytest.fixture(scope="module")
def lying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LyingDaemon]:
    path = tmp_path_factory.mktemp("lying") / "sock"
    daemon = LyingDaemon(path)
    before = dict(os.environ)
    os.environ |= {"SANDKEEP_SOCKET": str(path), "TERM": "xterm", "SANDKEEP_STATE_DIR": str(path.parent)}
    yield daemon
    os.environ.clear()
    os.environ |= before
    daemon.close()


def unsafe(text: str) -> list[str]:
    return re.findall(
        r"[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0041]", text
    )


def check(said: str, words: str) -> None:
    assert "Traceback" not in said, said
    assert not unsafe(OURS.sub("", said)), (words, said)


@pytest.mark.parametrize("words", [words for words in ASKING if words not in RAW])
def test_lines_for_people_drive_no_terminal(lying: LyingDaemon, words: str) -> None:
    lying.fails = False
    check(on_terminal(line_of(words))[1], words)


@pytest.mark.parametrize("words", ASKING)
def test_errors_and_progress_drive_no_terminal(lying: LyingDaemon, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(lying, "fails", True)
    monkeypatch.setattr(lying, "delay_s", 0.02)
    code, said = on_terminal(line_of(words))
    assert code not in (0, 99), said
    assert "evil" in said or words == "snapshot import", said  # an archive that is none is refused here
    check(said, words)


@pytest.mark.parametrize(
    "words", [words for words in ASKING if any(p.name == "as_json" for p in COMMANDS[words].params)]
)
def test_documents_are_escaped_and_have_the_same_value(lying: LyingDaemon, words: str, tmp_path: Path) -> None:
    lying.fails = False
    with open(tmp_path / "out", "w+b") as out:
        code, said = on_terminal(_with_json(words), out=out.fileno())
        out.seek(0)
        text = out.read().decode()
    check(said, words)
    if words in NO_DOCUMENT:
        assert not unsafe(text.replace("\n", "")), text
        return
    assert code in (0, 1, 124), (code, said, text)
    assert not unsafe(text), text
    assert words == "store rebuild" or HOSTILE in _texts(json.loads(text.splitlines()[0]))


def _with_json(words: str) -> list[str]:
    line = line_of(words)
    at = line.index("--") if "--" in line else len(line)
    return [*line[:at], "--json", *line[at:]]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def test_words_that_were_typed_drive_no_terminal_either(lying: LyingDaemon) -> None:
    for line in (
        [HOSTILE.replace("\0", "")],
        ["ls", HOSTILE.replace("\0", "")],
        ["ls", "--" + HOSTILE.replace("\0", "")],
    ):
        code, said = on_terminal(line)
        assert (code, "evil" in said) == (2, True)
        check(said, line[0])


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_table_has_every_control_separator_and_format_character() -> None:
    hidden = [
        chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) in ("Cc", "Cf", "Zl", "Zp") and n not in DRAWN
    ]
    assert not [character for character in hidden if printable.plain(character) == character]
    assert not [
        character for character in hidden if character not in "\n\t" and printable.lines(character) == character
    ]
    assert not [c for c in hidden if c.encode() in printable.document(c) and c >= " "]


def test_letters_and_marks_that_nobody_sees_are_in_the_table() -> None:
    for unseen in "\u034f\u115f\u1160\u17b4\u180b\u3164\ufe0f\uffa0\U000e0100":
        assert printable.plain(f"box{unseen}") == printable.lines(f"box{unseen}") == "box\ufffd"
        assert unseen.encode() not in printable.document(unseen)


@pytest.mark.parametrize("form", [printable.plain, printable.lines])
def test_other_text_stays_as_it_is(form: Callable[[str], str]) -> None:
    for text in ("plain", "naïve 世界 🙂 e\u0301", "a\u00a0b", "\u0600", "\ue000", "\U000f0000"):
        assert form(text) == text


def test_a_document_has_the_same_value_for_a_parser() -> None:
    value = {"a": [HOSTILE, "naïve 世界 🙂", 'quote " and \\'], HOSTILE: None}
    encoded = printable.document(value)
    assert msgspec.json.decode(encoded) == json.loads(encoded) == value
    assert not unsafe(encoded.decode())
    assert "naïve 世界 🙂".encode() in encoded
