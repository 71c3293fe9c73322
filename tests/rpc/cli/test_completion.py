"""Completion as people get it: real shells on a pseudo-terminal, a real daemon, and names that mean harm."""

import os
import pty
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.expect import until
from tests.support.patience import patient

from sandkeep.cli.commands.completion import SCRIPTS
from sandkeep.cli.splitting import quoted, split

PATIENCE_S = patient(60.0)
INTERACTIVE = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
LOAD = {
    "bash": "source <(sandkeep completion bash)",
    "zsh": "autoload -U compinit; compinit -u -D; bindkey -e; source <(sandkeep completion zsh)",
    "fish": "sandkeep completion fish | source",
}
SHELLS = [pytest.param(shell, marks=() if shell == "bash" else pytest.mark.needs(shell)) for shell in INTERACTIVE]
HOSTILE = [
    "plain", "two words", "it's", 'say "hi"', "$(touch pwned)", "`touch pwned`", "a;touch pwned", "a&touch pwned",
    "back\\slash",
    "star*", "what?", "bang!bang", "~tilde", "#hash", "a>pwned", "${HOME}", "[x]", "{a,b}", "é世界", "-rf",
]  # fmt: skip
WORST = ["two words", "it's", "$(touch pwned)", "a;touch pwned", "back\\slash", "star*", "é世界"]


class Shell:
    """An interactive shell in which keys are pressed."""

    def __init__(self, shell: str, env: dict[str, str], cwd: Path) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            words = INTERACTIVE[shell]
            os.execvpe(words[0], words, {**os.environ, **env, "TERM": "xterm", "PS1": "$ ", "COLUMNS": "500"})
        self.said = b""
        self.type(f"stty cols 500; {LOAD[shell]}; echo REA''DY\n")
        self.up_to(b"READY\r")

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def up_to(self, mark: bytes) -> bytes:
        """What it says up to a mark."""
        deadline = time.monotonic() + PATIENCE_S
        while mark not in self.said:
            assert select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))[0], self.said
            self.said += os.read(self.terminal, 65536)
        before, _, self.said = self.said.partition(mark)
        return before

    def completed(self, line: str) -> list[str]:
        """The words that the shell has after a tab at the end of `line`, as it gives them to a program."""
        self.type(f"{line}\t\x05\x01./show \x05 E''ND\n")
        shown = self.up_to(b"<END>\r")
        return [word.decode() for word in re.findall(rb"<([^\r\n]*)>\r", shown)]

    def completed_as(self, line: str, wanted: list[str]) -> list[str]:
        """The same, again if it is not what is wanted: an answer that comes too late is none."""
        for _ in range(5):
            words = self.completed(line)
            if words == wanted:
                break
        return words

    def close(self) -> None:
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the command, and a program that shows its words."""
    place = tmp_path_factory.mktemp("completion")
    for name, text in (
        ("bin/sandkeep", f'#!/bin/sh\nexec {sys.executable} -m sandkeep.cli "$@"\n'),
        ("here/show", "#!/bin/sh\nprintf '<%s>\\n' \"$@\"\n"),
    ):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    return place


@pytest.fixture(scope="module")
def box(shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    source = tmp_path_factory.mktemp("source")
    for name in HOSTILE:
        (source / name).write_text("x")
    (source / "new\nline").write_text("x")
    (source / "dir").mkdir()
    (source / "dir" / "inner").write_text("x")
    with shared_daemon.connect() as client:
        image = client.image.create(str(source), name="py")
        client.sandbox.create(image.image_id, name="api-tests")
        client.process.launch("api-tests", ["true"], name="migrate")
        client.process.wait("api-tests", "migrate")
        client.process.launch("api-tests", ["sleep", "1000"], name="web")
        yield image.image_id
        client.sandbox.terminate("api-tests")


@pytest.fixture
def env(shared_daemon: Any, place: Path) -> dict[str, str]:
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    return {**shared_daemon.env, "PATH": path, "HOME": str(place), "LC_ALL": "C.UTF-8"}


# -- in real shells ---------------------------------------------------------------------------------------------------

LINES = {
    "sandkeep capa": "sandkeep capabilities",
    "sandkeep image cre": "sandkeep image create",
    "sandkeep image untag p": "sandkeep image untag py",
    "sandkeep help store ver": "sandkeep help store verify",
    "sandkeep get api": "sandkeep get api-tests",
    "sandkeep get 'api": "sandkeep get api-tests",
    'sandkeep get "api': "sandkeep get api-tests",
    "sandkeep get --js": "sandkeep get --json",
    "sandkeep create IM": "sandkeep create IMAGE",
    "sandkeep create x --network ho": "sandkeep create x --network host",
    "sandkeep create x --network=ho": "sandkeep create x --network=host",
    "sandkeep create x --provider lo": "sandkeep create x --provider local",
    "sandkeep logs api-tests mi": "sandkeep logs api-tests migrate",
    "sandkeep kill api-tests w": "sandkeep kill api-tests web",
    "sandkeep kill api-tests mi": "sandkeep kill api-tests mi",
    "sandkeep kill api-tests web --signal KI": "sandkeep kill api-tests web --signal KILL",
    "sandkeep events --type process.ex": "sandkeep events --type process.exited",
    "sandkeep rpc sandbox.hi": "sandkeep rpc sandbox.history",
    "sandkeep nonsense api": "sandkeep nonsense api",
    "sandkeep exec api-tests -- api": "sandkeep exec api-tests -- api",
    "PAGER=cat sandkeep get api": "PAGER=cat sandkeep get api-tests",
}
OF_THE_SHELL = {line: word for line, word in LINES.items() if re.search("""['"=]|--|api$|capa$""", line)}
"""Lines for which the shell's own script counts, as with quotes. The command completes all else, alike for all."""


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("shell", SHELLS)
def test_words_are_completed(shell: str, env: dict[str, str], box: str, place: Path) -> None:
    try_lines(shell, env, box, place, LINES if shell == "bash" else OF_THE_SHELL)


@pytest.mark.soak
@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("shell", SHELLS[1:])
def test_all_words_are_completed_in_every_shell(shell: str, env: dict[str, str], box: str, place: Path) -> None:
    try_lines(shell, env, box, place, LINES)


def try_lines(shell: str, env: dict[str, str], box: str, place: Path, lines: dict[str, str]) -> None:
    running = Shell(shell, env, place / "here")
    wanted = {line.replace("IM", box[:12]): words.replace("IMAGE", box).split() for line, words in lines.items()}
    got = {line: running.completed_as(line, words) for line, words in wanted.items()}
    running.close()
    assert got == wanted


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("shell", SHELLS)
def test_the_files_of_a_sandbox_are_completed_and_hostile_names_stay_words(
    shell: str, env: dict[str, str], box: str, place: Path
) -> None:
    """Each is completed from as few letters as tell it from the others, and reaches a program as it is."""
    try_files(shell, env, place, WORST)


@pytest.mark.soak
@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("shell", SHELLS)
def test_all_files_are_completed_in_every_shell(shell: str, env: dict[str, str], box: str, place: Path) -> None:
    try_files(shell, env, place, HOSTILE)


def try_files(shell: str, env: dict[str, str], place: Path, names: list[str]) -> None:
    running = Shell(shell, env, place / "here")
    lines = {
        "sandkeep cp api": ["sandkeep", "cp", "api-tests:"],
        "sandkeep cp api-tests:di": ["sandkeep", "cp", "api-tests:dir/"],
        "sandkeep cp api-tests:dir/": ["sandkeep", "cp", "api-tests:dir/inner"],
        "sandkeep cp api-tests:/etc/pass": ["sandkeep", "cp", "api-tests:/etc/passwd"],
        **{
            f"sandkeep cp {beginning}": ["sandkeep", "cp", f"api-tests:{name}"]
            for name in names
            for beginning in beginnings(shell, name)
        },
    }
    got = {line: running.completed_as(line, words) for line, words in lines.items()}
    running.close()
    assert got == lines
    assert sorted(os.listdir(place / "here")) == ["show"], "a name was executed"


def beginnings(shell: str, name: str) -> list[str]:
    """How its first letters are typed."""
    first = next(name[:count] for count in range(1, 9) if sum(other.startswith(name[:count]) for other in HOSTILE) == 1)
    bare = "".join(letter if letter.isalnum() else f"\\{letter}" for letter in first)
    single = "'api-tests:" + first if "'" not in first else '"api-tests:' + first
    return [f"api-tests:{bare}", *([single] if shell != "zsh" else [])]


# -- what a shell is told ---------------------------------------------------------------------------------------------


def ask(shell: str, line: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandkeep.cli", line, " \t\n\"'@><=;|&(:"],
        env={**env, "_SANDKEEP_COMPLETE": shell}, capture_output=True, text=True, timeout=patient(60),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_sandbox_is_described(env: dict[str, str], box: str) -> None:
    for shell, gap in (("zsh", ":"), ("fish", "\t")):
        by_id, by_name = until(lambda shell=shell: ask(shell, "sandkeep get ", env).stdout).splitlines()
        assert re.fullmatch(rf"word\tsbx_\w{{26}}{gap}running, \d+[sm]", by_id)
        assert re.fullmatch(rf"word\tapi-tests{gap}running, \d+[sm]", by_name)


@pytest.mark.parametrize(
    "line", ["", "sandkeep", "sandkeep x y z", "sandkeep get 'a\"", "sandkeep --socket", "\\", "'"]
)
def test_a_line_that_makes_no_sense_is_met_with_silence(env: dict[str, str], line: str) -> None:
    done = ask("bash", line, env)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_daemon_there_is_silence(env: dict[str, str]) -> None:
    done = ask("bash", "sandkeep get ", {**env, "SANDKEEP_SOCKET": "/nonexistent/sock"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("backlog", [0, 8])
def test_a_daemon_that_hangs_is_not_waited_for(env: dict[str, str], tmp_path: Path, backlog: int) -> None:
    """It accepts nobody, or hears what nobody answers; the words that need no daemon are still there."""
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as hanging, socket.socket(socket.AF_UNIX) as waiting:
        hanging.bind(path)
        hanging.listen(backlog)
        waiting.connect(path)
        done = ask("bash", "sandkeep get ", {**env, "SANDKEEP_SOCKET": path})
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert ask("bash", "sandkeep get --js", {**env, "SANDKEEP_SOCKET": path}).stdout == "word\t--json\n"


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_the_script_is_printed(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandkeep.cli", "completion", shell], capture_output=True, text=True, check=True
    )
    assert "_SANDKEEP_COMPLETE" in done.stdout
    assert done.stderr == ""


# -- splitting and quoting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words", "quote"),
    [
        ("", [""], ""),
        ("a  b ", ["a", "b", ""], ""),
        ("a 'b c", ["a", "b c"], "'"),
        ("a 'b'\"c\"d", ["a", "bcd"], ""),
        ('a "b\\"c\\d', ["a", 'b"c\\d'], '"'),
        ("a b\\ c", ["a", "b c"], ""),
        ("a ''", ["a", ""], ""),
        ("a $(b", ["a", "$(b"], ""),
        ("a \\", ["a", ""], ""),
    ],
)
def test_a_line_is_split_as_a_shell_does(line: str, words: list[str], quote: str) -> None:
    found = split(line)
    assert [word.text for word in found] == words
    assert found[-1].quote == quote


@pytest.mark.parametrize(
    ("word", "kept"), [("box:/e", 4), ("--a=b", 4), ("box\\:/e", 0), ("'box:/e", 0), ("b'ox:/e", 1), ("b'o'x:/e", 4)]
)
def test_bash_replaces_only_what_stands_after_the_last_break(word: str, kept: int) -> None:
    assert split(word)[-1].kept_prefix(":=") == kept


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1), min_size=1, max_size=20))
def test_what_is_quoted_is_read_back_by_bash(names: list[str]) -> None:
    words = [f"{quote}{quoted(name, quote)}{quote}" for name in names for quote in ("", "'", '"')]
    script = f"printf '%s\\0' {' '.join(words)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.decode().split("\0")[:-1] == [name for name in names for _ in range(3)]


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])), st.sampled_from(["", "'", '"']))
def test_what_is_quoted_is_split_back(name: str, quote: str) -> None:
    assert split(f"{quote}{quoted(name, quote)}")[-1].text == name
