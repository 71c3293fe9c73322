"""Patterns of files to leave out: `find` and our own program agree on what is left, and both with Docker."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.patience import patient

from sandkeep.errors import CallerError
from sandkeep.system import ignore
from sandkeepd.contract.caller import Caller
from sandkeepd.host import caller_paths
from sandkeepd.host.caller_paths import LeftOut

FILES = (
    "a", "a.pyc", "Dockerfile", ".git/config", "docs/a.html", "docs/b.html", "docs/deep/c.html", "docs/deep/a.txt",
    "src/main.py", "src/main.pyc", "src/.git/x", "src/node_modules/m/i.js", "node_modules/m/i.js", "build/out/x",
    "build/keep/y", "a b/c", "we(ird)+/x{1}", "back\\slash", "new\nline", "zz/1", "zz/2", "zz/3",
)  # fmt: skip

IGNORES = {
    "nothing": "",
    "comments": "# a\n\n  a  \n#docs",
    "a name is at the top only": "node_modules\n.git",
    "at any depth": "**/node_modules\n**/.git",
    "wildcards": "*.pyc\n*/*.pyc\ndocs/?.html",
    "a directory": "docs/",
    "from the root": "/docs/deep",
    "all but": "*\n!src\n!docs/a.html",
    "an exception in a hidden directory": "build\n!build/keep",
    "the last one counts": "docs\n!docs/deep\ndocs/deep/a.txt",
    "an exception first": "!docs/a.html\ndocs",
    "brackets": "zz/[12]\n[^a]*file",
    "special characters": "we(ird)+/x{1}\na b\nback\\\\slash",
    "a line's end in a name": "new?line",
    "everything below": "docs/**\nsrc/**/i.js",
    "in the middle": "**/deep/**",
    "many stars": "**/*o*e/**/i*j*\n*o*s/**/?*h*l\n**/s**/m*n*.py*\n*e*k*/**/*f*e*",
    "every": "**",
    "every but": "**\n!**/*.py",
    "dots": "./docs/../src",
    "several of each": "build\nsrc\n*.pyc\nzz/2\n!build/keep\n!src/main.py\n!zz\nsrc/.git\nzz/1\nbuild/out\nzz/3",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("x")
    return top


def by_find(tree: Path, text: str) -> set[str]:
    words = ["find", ".", *ignore.find_expression(ignore.patterns(text)), *ignore.PRINT]
    env = {"LC_ALL": "C", "PATH": os.environ["PATH"]}
    done = subprocess.run(words, cwd=tree, capture_output=True, check=True, env=env)
    return {os.fsdecode(entry.split(b" ", 2)[2]) for entry in done.stdout.split(b"\0") if entry} - {"."}


@pytest.mark.parametrize("text", IGNORES.values(), ids=IGNORES)
def test_find_and_the_program_agree(tree: Path, text: str) -> None:
    (tree / ".dockerignore").write_text(text)
    words = [sys.executable, "-I", "-S", ignore.__file__, str(tree)]
    done = subprocess.run(words, capture_output=True, check=True)
    expected = {os.fsdecode(path) for path in done.stdout.split(b"\0") if path}
    assert by_find(tree, text) == expected


def test_no_pattern_takes_forever(tmp_path: Path) -> None:
    name = "a" * 60
    (tmp_path / f"{name}/{name}/{name}").mkdir(parents=True)
    for pattern in ("*a" * 30 + "*b", "**/a*a*a*a*a*a/" * 8 + "b", "/".join(["*a*a*a*a*a*a*a*a*b"] * 3)):
        (tmp_path / ".dockerignore").write_text(pattern)
        words = [sys.executable, "-I", "-S", ignore.__file__, str(tmp_path)]
        done = subprocess.run(words, capture_output=True, check=True, timeout=patient(60))
        assert done.stdout.count(b"\0") == 4


def test_what_is_left(tree: Path) -> None:
    """A few by hand, as Docker has them."""
    left = by_find(tree, IGNORES["all but"])
    assert {"./src/main.py", "./docs/a.html"} <= left
    assert not {"./a", "./docs/b.html", "./docs"} & left
    assert "./build/keep/y" in by_find(tree, IGNORES["an exception in a hidden directory"])
    assert "./src/node_modules/m/i.js" in by_find(tree, IGNORES["a name is at the top only"])
    assert not any("node_modules" in path for path in by_find(tree, IGNORES["at any depth"]))
    assert by_find(tree, "**") == set()


def test_a_directory_that_is_left_out_is_not_entered() -> None:
    assert "-prune" in ignore.find_expression(ignore.patterns("data"))
    assert "-prune" in ignore.find_expression(ignore.patterns("data\n!src/x"))
    assert "-prune" not in ignore.find_expression(ignore.patterns("data\n!data/x"))
    assert "-prune" not in ignore.find_expression(ignore.patterns("*\n!src"))


def test_many_names_are_tried_at_once() -> None:
    """One by one a thousand took find seconds for ten thousand files. No expression has too many."""
    names = [f"{number:04d}{'x.' * 500}" for number in range(1000)]
    words = ignore.find_expression(ignore.patterns("*\n" + "\n".join(f"!{name[:10]}" for name in names)))
    assert words.count("-regex") < 10
    words = ignore.find_expression(ignore.patterns("\n".join(names)))
    assert max(map(len, words)) < 2 * 4096


@pytest.mark.parametrize("text", ["[a", "[a\\]b]"])
def test_malformed_patterns(text: str) -> None:
    with pytest.raises((ValueError, re.error), match="bracket"):
        ignore.find_expression(ignore.patterns(text))


def test_an_exception_reaches_nothing_that_is_never_copied(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "x").write_text("x")
    (tmp_path / "file").write_text("x")
    caller = Caller(uid=os.geteuid(), gid=os.getegid(), groups=())
    left_out = LeftOut(patterns=["*", "!state", "!file"])
    words = caller_paths._left_out(str(tmp_path), caller, left_out)
    survey = caller_paths._survey(str(tmp_path), caller, [str(tmp_path / "state")], words)
    with open(survey.names, "rb") as names:
        assert set(names.read().split(b"\0")) == {b".", b"./file", b""}


@pytest.mark.parametrize("text", ["ok\na\0b", "ok\n" + "**/" * 400])
def test_what_find_cannot_take_is_a_fault_of_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / ".sandkeepignore").write_text(text)
    caller = Caller(uid=os.geteuid(), gid=os.getegid(), groups=())
    with pytest.raises(CallerError, match=r"\.sandkeepignore: line 2 is no pattern"):
        caller_paths._left_out(str(tmp_path), caller, LeftOut(by_file=True))


def test_find_has_a_limit_of_memory(tmp_path: Path) -> None:
    """A caller's names and patterns make it build automata of any size."""
    caller = Caller(uid=os.geteuid(), gid=os.getegid(), groups=())
    (tmp_path / "file").touch()
    words = ["-exec", "sh", "-c", "ulimit -v >limit", ";"]
    with open(caller_paths._survey(str(tmp_path), caller, [], words).names, "rb"):
        assert (tmp_path / "limit").read_text() == f"{caller_paths._MOST_MEMORY_KIB}\n"
