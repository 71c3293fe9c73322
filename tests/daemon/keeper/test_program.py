"""The keeper's program, as that by which processes in terminals begin: the one that is installed, and one made of its
source just now.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.patience import patient

from sandkeepd.keeper import program as keeper

KEEPER = Path(keeper.__file__).parent
BUILD = Path(__file__).parents[3] / "scripts" / "build-keeper"
MACHINE = os.uname().machine
SIGNALS = [number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP)]


def _built(directory: Path) -> str:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    subprocess.run([str(BUILD), MACHINE], check=True, env={**os.environ, "KEEPER_OUT": str(directory)})
    return str(directory / f"keeper.{MACHINE}")


@pytest.fixture(scope="module", params=["installed", "built"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if keeper.why_missing():
        pytest.skip(f"there is no program for {MACHINE}")
    directory = tmp_path_factory.mktemp("program")
    if request.param == "built":
        return _built(directory)
    keeper.install(str(directory))
    return str(directory / keeper.NAME)


def run(program: str, *words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = subprocess.run([program, *words], capture_output=True, text=True, env=env, check=False, timeout=patient(60))
    return done.returncode, done.stdout, done.stderr


def ignoring(program: str, *words: str) -> str:
    """Run it as a shell does that ignores everything."""

    def ignore() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    done = subprocess.run(
        [program, *words], capture_output=True, text=True, check=True, preexec_fn=ignore, timeout=patient(60)
    )
    return done.stdout


def test_it_stays_where_it_is(program: str) -> None:
    """A process in a terminal belongs to a session already."""
    script = "set -- $(cat /proc/$$/stat); echo $5 $6"
    group, session = run(program, "-", "/bin/sh", "-c", script)[1].split()
    assert (int(group), int(session)) == (os.getpgid(0), os.getsid(0))


def test_every_signal_does_what_it_does_by_default(program: str) -> None:
    said = ignoring(program, "-", "grep", "SigIgn", "/proc/self/status")
    assert int(said.split()[1], 16) & 0x7FFF_FFFF == 0


def test_variables_replace_those_of_the_same_name_and_no_others(program: str) -> None:
    there = {"PATH": "/usr/bin:/bin", "A": "old", "AB": "kept", "B": "gone"}
    code, stdout, _ = run(program, "-", "A=new=1", "B=", "C= \n'\"$", "env", "-0", env=there)
    assert code == 0
    assert sorted(stdout.rstrip("\0").split("\0")) == ["A=new=1", "AB=kept", "B=", "C= \n'\"$", "PATH=/usr/bin:/bin"]


def test_hundreds_of_variables_and_words(program: str) -> None:
    settings = [f"V{number}={'x' * number}" for number in range(1000)]
    words = [f"word {number}" for number in range(5000)]
    script = 'echo $# "${#V999}"; shift 4999; echo "$1"'
    code, stdout, _ = run(program, "-", *settings, "sh", "-c", script, "sh", *words)
    assert (code, stdout) == (0, "5000 999\nword 4999\n")


def test_a_program_is_looked_for_as_everywhere(program: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (first / "tool").write_text("not to be run\n")
    (second / "tool").write_text("#!/bin/sh\necho found $1\n")
    (second / "tool").chmod(0o755)
    (second / "text").write_text("echo a text $1\n")
    (second / "text").chmod(0o755)
    path = f"PATH=/nowhere:{tmp_path / 'no' / 'directory'}:{first}:{second}"
    assert run(program, "-", path, "tool", "it") == (0, "found it\n", "")
    assert run(program, "-", path, "text", "it") == (0, "a text it\n", "")
    assert run(program, "-", "PATH=/bin", str(second / "text"), "it") == (0, "a text it\n", "")
    assert run(program, "-", "PATH=" + "/x" * 3000 + f":{second}", "tool", "it") == (0, "found it\n", "")


@pytest.mark.parametrize(
    ("word", "code", "why"),
    [
        ("no-such-program", 127, "not found"),
        ("/no/such/program", 127, "not found"),
        ("/etc/passwd/x", 127, "not found"),
        ("", 127, "not found"),
        ("/etc", 126, "permission denied"),
        ("/etc/passwd", 126, "permission denied"),
    ],
)
def test_what_cannot_be_run(program: str, word: str, code: int, why: str) -> None:
    assert run(program, "-", word) == (code, "", f"{word}: {why}\n")


def test_called_wrongly(program: str) -> None:
    for words in ((), ("-",), ("-", "A=1"), ("x",), ("-c", "x"), ("-s", "echo", "x")):
        assert run(program, *words) == (125, "", "")


def test_it_needs_no_library(program: str) -> None:
    assert b"ld-linux" not in Path(program).read_bytes()
    assert Path(program).stat().st_size < 32768


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_there_is_one_for_every_machine_that_is_common(machine: str, number: int) -> None:
    data = (KEEPER / f"keeper.{machine}").read_bytes()
    assert data[:5] == b"\x7fELF\x02"
    assert int.from_bytes(data[18:20], "little") == number


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("name", ["keeper", "statx"])
def test_what_is_installed_is_made_of_its_source(name: str, machine: str, tmp_path: Path) -> None:
    """Byte for byte, where the compiler is the one that the program says it was made by."""
    compiler = "cc" if machine == MACHINE else f"{machine}-linux-gnu-gcc"
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no compiler for {machine}: {compiler}")
    kept, built = KEEPER / f"{name}.{machine}", tmp_path / f"{name}.{machine}"
    subprocess.run([str(BUILD), machine], check=True, env={**os.environ, "KEEPER_OUT": str(tmp_path)})
    recorded, here = _made_by(kept), _made_by(built)
    if recorded != here:
        pytest.skip(f"{kept.name} was made by {recorded}, and the compiler here is {here}")
    assert built.read_bytes() == kept.read_bytes(), f"make it of its source: scripts/build-keeper {machine}"


def _made_by(program: Path) -> str:
    """The compiler and its version, as it has written into the section `.comment`."""
    found = re.search(rb"(GCC: \([^)]*\) [0-9.]+|clang version [^\0]*)\0", program.read_bytes())
    assert found is not None, f"{program} does not say what it was made by"
    return found[1].decode()


def test_a_program_that_was_just_put_there_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when something that was started meanwhile has had the descriptor by which it was written."""
    chmod, children = os.fchmod, []

    def fork_meanwhile(descriptor: int, mode: int) -> None:
        chmod(descriptor, mode)
        words = [sys.executable, "-S", "-c", "import time; time.sleep(0.3)"]
        children.append(subprocess.Popen(words, pass_fds=[descriptor]))

    monkeypatch.setattr(os, "fchmod", fork_meanwhile)
    keeper.install(str(tmp_path))
    done = subprocess.run([tmp_path / keeper.NAME, "-", "true"], check=False)
    assert [child.wait() for child in children] == [0]
    assert done.returncode == 0
