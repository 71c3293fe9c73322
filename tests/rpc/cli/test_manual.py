"""The manual page: complete, clean roff, and in the package where `man` and the shells look."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from sandkeep.cli.commands.manual import man_page
from sandkeep.cli.exit_codes import EXIT_CODES
from sandkeep.cli.tree import entries
from sandkeep.settings.all import ALL_SETTINGS

ROOT = Path(__file__).parents[3]
MACROS = {".TH", ".SH", ".SS", ".PP", ".TP", ".RS", ".RE", ".EX", ".EE", ".B", ".BR", '.\\"'}


def rendered(page: str) -> str:
    """The text that the page holds, without macros and fonts."""
    text = re.sub(r"\\f[BIR]", "", re.sub(r"(?m)^\.\w+ ?", "", page)).replace("\\&", "")
    for escape, character in (("\\-", "-"), ("\\(aq", "'"), ("\\(ti", "~"), ("\\(ha", "^"), ("\\e", "\\")):
        text = text.replace(escape, character)
    return " ".join(text.split())


def test_it_uses_few_macros_and_no_line_is_taken_for_one() -> None:
    page = man_page()
    assert {line.split()[0] for line in page.splitlines() if line[:1] == "."} <= MACROS
    assert [line for line in page.splitlines() if line[:1] == "'" or not line.strip()] == []
    assert page.count(".RS") == page.count(".RE")
    assert page.count(".EX") == page.count(".EE")


def test_it_has_every_command_option_and_example() -> None:
    text = rendered(man_page())
    for _, found in entries():
        for entry in found:
            words = [entry.usage, *entry.prose, *entry.examples, *(part for record in entry.options for part in record)]
            assert [word for word in words if " ".join(word.replace("`", "").split()) not in text] == []


def test_it_has_every_exit_code_and_setting() -> None:
    text = rendered(man_page())
    assert [code for code, meaning in EXIT_CODES.items() if f"{code} {meaning}" not in text] == []
    assert [name for name in ALL_SETTINGS if f" {name} " not in text] == []


@pytest.mark.parametrize(
    "checker",
    [
        pytest.param(checker, marks=pytest.mark.needs(checker.split()[0]))
        for checker in ("groff -man -ww -z -", "mandoc -T lint -W style")
    ],
)
def test_it_is_clean(checker: str) -> None:
    done = subprocess.run(checker.split(), input=man_page().encode(), capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_the_package_brings_the_page_and_the_completions() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    shared = build["shared-data"]
    assert [path for path in shared if not (ROOT / path).is_file()] == []
    assert sorted(shared.values()) == [
        "share/bash-completion/completions/sandkeep",
        "share/fish/vendor_completions.d/sandkeep.fish",
        "share/man/man1/sandkeep.1",
        "share/zsh/site-functions/_sandkeep",
    ]
