"""The suite of providers as an ordinary user, whose daemon has no root: a file of its own, since it takes a minute."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.support.users import command_as

SUITES = "provider", "local", "enemy_sandbox", "strays"
OTHERS = "plain or docker or (none and not provider) or (gvisor and enemy)"
ALIKE = (
    "cannot_be_run or words_and or variable or every_byte or besides_its or nul_and or same_id or hundreds or unreaped"
    " or whole_group or interrupt or at_once_is_not or input or by_offset or forged"
    " or its_code or working_directory or do_not_mix or was_cut or kills_all or planted"
)
"""Tests of the keeper and its journals. A user's local sandboxes have all of that, and the keeper is the same."""


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    "without",
    [
        pytest.param(f"{OTHERS} or speaks_without_end or ((gvisor or none) and provider and ({ALIKE}))", id="few"),
        pytest.param(OTHERS, marks=pytest.mark.soak, id="all"),
    ],
)
def test_all_of_this_as_an_ordinary_user(without: str) -> None:
    uid = 30_123
    with tempfile.TemporaryDirectory(prefix="sandkeep-user-") as base:
        os.chown(base, uid, uid)
        suite = [
            sys.executable, "-B", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
            "--basetemp", f"{base}/tmp", "-k", f"not ({without})",
            *(str(Path(__file__).with_name(f"test_{name}.py")) for name in SUITES),
        ]  # fmt: skip
        done = subprocess.run(
            command_as(uid, suite), cwd=Path(__file__).parents[2],
            env={**os.environ, "HOME": base, "SANDKEEP_REQUIRE": "bwrap"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
