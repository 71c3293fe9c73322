"""The command's words: help, what is refused before a daemon is asked, and with which exit code."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.support.patience import patient

from sandkeep.cli.exit_codes import EXIT_CODES
from sandkeep.cli.options import Command, Duration, Pair, Size, Time
from sandkeep.cli.root import COMMANDS, SUBJECTS, LazyGroup, sandkeep
from sandkeep.cli.tree import COMMON
from sandkeep.protocol.clock import now_us, parse_rfc3339

FOR_PEOPLE_AND_SHELLS = {"demo", "daemon", "completion", "manual", "help"}
"""Commands without an answer that a program would read."""


def cli(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandkeep.cli", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=patient(60),
        env={**os.environ, "SANDKEEP_SOCKET": "/nonexistent/sock", **env},
    )


def contexts(above: click.Context | None = None) -> Iterator[click.Context]:
    """Every command of the tree, in its context."""
    above = above or click.Context(sandkeep, info_name="sandkeep")
    assert isinstance(above.command, LazyGroup)
    for name in above.command.list_commands(above):
        command = above.command.get_command(above, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=above)
        yield context
        if isinstance(command, click.Group):
            yield from contexts(context)


EVERY = [pytest.param(context, id=context.command_path) for context in contexts()]
LEAVES = [parameter for parameter in EVERY if not isinstance(parameter.values[0].command, click.Group)]


# -- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", EVERY)
def test_every_command_explains_itself_in_80_columns(context: click.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert context.command.help
    assert [line for line in context.get_help().splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("context", LEAVES)
def test_every_option_is_documented(context: click.Context) -> None:
    for parameter in context.command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts
            assert parameter.is_flag or parameter.metavar or isinstance(parameter.type, click.Choice), parameter.opts


@pytest.mark.parametrize("context", LEAVES)
def test_every_command_answers_in_json(context: click.Context) -> None:
    if context.info_name not in FOR_PEOPLE_AND_SHELLS:
        assert {option for parameter in context.command.params for option in parameter.opts} >= set(COMMON)


@pytest.mark.parametrize("context", LEAVES)
def test_every_command_has_examples_which_are_shown_as_they_are_typed(context: click.Context) -> None:
    assert isinstance(context.command, Command)
    assert context.command.examples
    shown = context.get_help().partition("\nExamples:\n")[2].splitlines()
    assert shown == [f"  {line}" for line in context.command.examples]


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words after `sandkeep` of every such command of a line of shell."""
    line = re.sub(r"\$\(|<\(", " ; ", line).replace(")", " ; ")
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word.strip(";|&<>"):
            words.append(word)
            continue
        if "sandkeep" in words:
            yield words[words.index("sandkeep") + 1 :]
        words = [] if word.strip("<>") else [*words, "sandkeep-redirection"]


@pytest.mark.parametrize("context", LEAVES)
def test_every_example_is_a_command_that_would_run(context: click.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    assert isinstance(context.command, Command)
    own = context.command_path.removeprefix("sandkeep ").removeprefix("sandbox ").split()  # the same under their noun
    found = [words for line in context.command.examples for words in simple_commands(line)]
    assert any(words[: len(own)] == own for words in found), "no example is of the command itself"
    for words in found:
        cut = words.index("sandkeep-redirection") if "sandkeep-redirection" in words else len(words)
        parse(words[:cut])


def parse(words: list[str]) -> None:
    """Parse as the real command does, down to the last argument, and run nothing."""
    context = sandkeep.make_context("sandkeep", list(words))
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("words", ["lls", "ls --alll", "logs $BOX", "store verify --state-dirr x", "cp"])
def test_an_example_that_would_not_run_is_noticed(words: str) -> None:
    with pytest.raises(click.UsageError):
        parse(shlex.split(words))


def test_the_help_names_every_command_once_and_under_its_subject() -> None:
    shown = cli("--help").stdout
    listed = re.findall(r"^  ([a-z-]+) +[A-Z]", shown.partition("Images:")[2].partition("Exit codes:")[0], re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    assert [name for names in SUBJECTS.values() for name in names if name not in COMMANDS] == []
    assert [subject for subject in SUBJECTS if f"\n{subject}:\n" not in shown] == []


def test_the_help_has_the_exit_codes() -> None:
    shown = " ".join(cli("--help").stdout.partition("Exit codes:")[2].split())
    assert shown == " ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())


def test_help_may_be_typed_before_the_command() -> None:
    assert cli("help", "image", "create").stdout == cli("image", "create", "--help").stdout
    assert cli("help").stdout == cli("--help").stdout
    assert cli("help", "nonsense").returncode == 2
    assert cli("help", "ls", "ls").returncode == 2


def test_without_a_command_the_help_is_shown_and_nothing_was_done() -> None:
    done = cli()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Sandboxes:" in done.stderr


def test_help_lists_the_commands_without_importing_them() -> None:
    code = "import sys; from sandkeep.cli import run; run(['--help']); print('sandkeep.blocking' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in COMMANDS)
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("image", "nonsense"),
        ("exec",),
        ("exec", "box"),
        ("create",),
        ("create", "img", "--memory", "much"),
        ("create", "img", "--network", "wifi"),
        ("create", "img", "--env", "=x"),
        ("create", "img", "--secret", "NOT_SET_ANYWHERE"),
        ("create", "img", "--label", "bare"),
        ("logs", "box", "name", "--since", "-1"),
        ("logs", "box", "name", "--stream", "stdwhat"),
        ("run", "box", "name", "--detach", "--interactive", "--", "cat"),
        ("rpc", "daemon.ping", "{"),
        ("rpc", "daemon.ping", "[]"),
    ],
)
def test_wrong_usage_exits_with_2(words: tuple[str, ...]) -> None:
    done = cli(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "guess"), [(("event",), "'events'"), (("image", "creat"), "'create'"), (("ls", "--al"), "'--all'")]
)
def test_a_word_that_is_nearly_one_is_guessed(words: tuple[str, ...], guess: str) -> None:
    done = cli(*words)
    assert done.returncode == 2
    assert re.search(f"Did you mean (one of: )?{guess}", done.stderr)


def test_wrong_usage_is_a_document_for_programs() -> None:
    done = cli("ls", "--nonsense", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "invalid"
    assert cli("exec", "box", "--nonsense", "--", "ls", "--json").stdout == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("ls",), 1),
        (("status",), 1),
        (("store", "verify"), 1),
        (("rpc", "daemon.ping"), 1),
        (("exec", "box", "--", "true"), 125),
        (("run", "box", "name", "--", "true"), 125),
        (("wait", "box", "name"), 125),
    ],
)
def test_without_a_daemon_one_sentence_says_what_to_do(words: tuple[str, ...], code: int) -> None:
    done = cli(*words)
    assert done.returncode == code
    assert done.stdout == ""
    assert "/nonexistent/sock" in done.stderr
    assert "sandkeep daemon" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_socket_may_be_named_before_or_after_the_command() -> None:
    assert "/nowhere/a" in cli("--socket", "/nowhere/a", "ls").stderr
    assert "/nowhere/b" in cli("--socket", "/nowhere/a", "ls", "--socket", "/nowhere/b").stderr


def test_the_daemons_own_options_reach_it() -> None:
    done = cli("daemon", "--help")
    assert done.returncode == 0
    assert "--state-dir" in done.stdout


def test_the_version() -> None:
    done = cli("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("sandkeep ")


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("64k", 65536), ("512M", 512 * 1024**2), ("1.5GiB", 1610612736)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


def test_a_pair_may_hold_equals_signs_and_nothing() -> None:
    pair = Pair(from_environment=False)
    assert pair.convert("K=a=b", None, None) == ("K", "a=b")
    assert pair.convert("K=", None, None) == ("K", "")


def test_a_pair_takes_its_value_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    assert Pair(from_environment=True).convert("TOKEN", None, None) == ("TOKEN", "s3cret")


def test_a_wrong_secret_is_not_repeated_in_the_message() -> None:
    assert "s3cret" not in cli("create", "img", "--secret", "=s3cret").stderr


def test_no_command_needs_trio(tmp_path: Path) -> None:
    code = "import sys; from sandkeep.cli import run; run(['ls']); sys.exit('trio' in sys.modules)"
    env = {**os.environ, "SANDKEEP_SOCKET": str(tmp_path / "none")}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False).returncode == 0


# -- words before and after `--` --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("exec -- sh", "SANDBOX must stand before `--`, as in: sandkeep exec SANDBOX -- COMMAND..."),
        ("exec -it -- sh", "SANDBOX must stand before `--`"),
        ("shell -- sh", "SANDBOX must stand before `--`"),
        ("run web1 -- sleep 1", "NAME must stand before `--`, as in: sandkeep run SANDBOX NAME -- COMMAND..."),
        ("run web1 sleep 1", "put `--` before the command, as in: sandkeep run SANDBOX NAME -- COMMAND..."),
        ("run --detach -- sleep 1", "SANDBOX and NAME must stand before `--`"),
        ("exec box ls -- -l", "'ls' stands before `--`"),
        ("exec box ls -l", "Options of the program go after `--`, as in: sandkeep exec SANDBOX -- COMMAND..."),
        ("exec '' -- sh", "'SANDBOX': it is empty"),
        ("run box '' -- sh", "'NAME': it is empty"),
        ("get ''", "'SANDBOX': it is empty"),
        ("image rm ''", "'IMAGE...': it is empty"),
        ("cp file :/tmp", "':/tmp' names no sandbox before the colon: maybe a variable is not set"),
        ("cp box:file :", "':' names no sandbox before the colon"),
    ],
)
def test_no_word_of_a_program_stands_in_for_a_missing_name(line: str, refusal: str) -> None:
    done = cli(*shlex.split(line))
    assert done.returncode == 2
    assert refusal in " ".join(done.stderr.split())


def test_a_program_may_have_dashes_of_its_own() -> None:
    """These parse, and ask the daemon, which is not there."""
    for line in ("exec box -- git checkout -- file", "exec box ls", "run box n -dit -- sh -c 'x -- y'", "shell box"):
        assert "Usage" not in cli(*shlex.split(line)).stderr, line
    assert cli("exec", "--help", "--", "sh").returncode == 0


# -- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("10s", 10),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("0s", 0),
    ],
)
def test_lengths_of_time_are_read(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "s", "10x", "1h 30m", "30m1h", "1e", "nan", "inf", "\u0661s"])
def test_what_is_no_length_of_time_is_refused_with_forms_that_are(text: str) -> None:
    done = cli("exec", "box", "--timeout", text, "--", "true")
    assert done.returncode == 2
    assert "give one such as 90 (seconds), 10s or 1h30m" in " ".join(done.stderr.split())


def test_every_option_of_a_time_takes_units() -> None:
    """A unit in the option's own name, or none: the same text works for all."""
    for context in (parameter.values[0] for parameter in LEAVES):
        for option in context.command.params:
            if isinstance(option, click.Option) and option.metavar in ("SECONDS", "TIME"):
                assert option.metavar == "TIME", (context.command_path, option.opts)
                option.type.convert("10s", option, context)


@pytest.mark.parametrize("text", ["10", "soon", "2026-11-22", "-10m", ""])
def test_what_is_no_moment_is_refused(text: str) -> None:
    assert cli("events", "--since", text).returncode == 2


def test_a_moment_is_a_time_or_how_long_ago_it_was() -> None:
    ago = parse_rfc3339(Time().convert("10m", None, None))
    assert 0 <= now_us() - 600_000_000 - ago < 300_000_000
    assert Time().convert("2026-11-22T09:00:00Z", None, None) == "2026-11-22T09:00:00Z"
