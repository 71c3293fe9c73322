"""The command's words: what is refused before a daemon is asked, and with which exit code."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from sandkeep.cli.options import Pair, Size
from sandkeep.cli.root import (
    COMMANDS,
    IMAGE_COMMANDS,
    SANDBOX_COMMANDS,
    STORE_COMMANDS,
    image,
    sandbox,
    sandkeep,
    store,
)


def cli(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandkeep.cli", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        env={**os.environ, "SANDKEEP_SOCKET": "/nonexistent/sock", **env},
    )


def everything() -> list[tuple[click.Group, str]]:
    tables = ((sandkeep, COMMANDS), (image, IMAGE_COMMANDS), (sandbox, SANDBOX_COMMANDS), (store, STORE_COMMANDS))
    return [(group, name) for group, table in tables for name in table]


@pytest.mark.parametrize(("group", "name"), everything(), ids=lambda value: getattr(value, "name", value))
def test_every_command_of_the_tables_is_there_and_explains_itself(group: click.Group, name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert command.help


@pytest.mark.parametrize(("group", "name"), everything(), ids=lambda value: getattr(value, "name", value))
def test_every_command_answers_in_json(group: click.Group, name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    if isinstance(command, click.Group) or name in ("demo", "daemon", "completion", "manual", "help"):
        return  # their answers are for people and shells
    assert "as_json" in {parameter.name for parameter in command.params}


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


def test_a_word_that_is_nearly_a_command_is_guessed() -> None:
    assert "Did you mean 'events'?" in cli("event").stderr


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
