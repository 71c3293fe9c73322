"""Modal's own mock servicer beside our double: what it refuses of a sandbox's calls, the double refuses as well.

Its servicer has one sandbox that always runs, and starts processes on this machine, so a daemon cannot run on it.
It runs with the release of the client that it is of, and two packages of which Sandkeep needs none:

    pip install --no-deps --target $SANDKEEP_SOURCES/modal-packages modal==1.5.4 pyjwt pytest-asyncio
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.sources.repositories import repository
from tests.support.modal.refusals import CASES, Case, answer, stderr_into_stdout

pytestmark = [pytest.mark.needs(name) for name in ("source:modal-client", "modal")]

PACKAGES = "modal-packages"


@pytest.fixture(scope="module")
def theirs() -> Iterator[dict[str, Any]]:
    packages = repository(PACKAGES)
    if not packages.is_dir():
        pytest.skip(f"{packages} is not there: {__doc__.strip().splitlines()[-1].strip()}")
    conftest = repository("modal-client") / "py/test/conftest.py"
    argv = [sys.executable, "tests/sources/modal_servicer.py", str(conftest)]
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.communicate(b"")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_its_servicer_refuses(theirs: dict[str, Any], case: Case) -> None:
    """`tests/contracts/test_modal_double_refusals.py` says the same of our double."""
    status = answer(theirs, case)
    assert status == ("UNKNOWN" if case is stderr_into_stdout else CASES[case])
