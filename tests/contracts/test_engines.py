"""An engine that is absent skips its tests with a reason, and fails them where SANDKEEP_REQUIRE names it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2]
CONFTEST = (HERE / "tests" / "conftest.py").read_text()
TEST = "import pytest\n\n@pytest.mark.needs('runsc')\ndef test_it():\n    pass\n"


@pytest.mark.parametrize(
    ("program", "required", "told"),
    [
        ("no-such-program", "", "1 skipped"),
        ("no-such-program", "bwrap", "no-such-program is not installed"),
        ("no-such-program", "bwrap runsc", "SANDKEEP_REQUIRE names runsc"),
        ("no-such-program", "runsc", "1 error"),
        ("sh", "runsc", "1 passed"),
    ],
)
def test_engines(tmp_path: Path, program: str, required: str, told: str) -> None:
    assert '_program("runsc")' in CONFTEST
    (tmp_path / "conftest.py").write_text(CONFTEST.replace('_program("runsc")', f'_program("{program}")'))
    (tmp_path / "test_one.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = needs(engine)\n")
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", "-p", "no:trio", "."]
    env = {**os.environ, "SANDKEEP_REQUIRE": required, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told in done.stdout
