"""The README's quickstart and its Python, and the two-minute tour, run as they stand there."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.documents import blocks
from tests.support.patience import patient

pytestmark = pytest.mark.needs("bwrap")


def test_the_quickstart_and_the_tour(new_daemon: Any, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "file").write_text("of the project\n")
    place = new_daemon()
    env = {**place.env, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    script = "set -eu\n" + "".join(blocks("README.md", "sh") + blocks("docs/tutorial/tour.md", "sh"))
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path / "project", env=env, capture_output=True, text=True, timeout=patient(100)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("it exited with 3", "HELLO", "6 characters", "1\n2\n3", "sandbox.created", "sound"):
        assert line in done.stdout


def test_the_python(shared_daemon: Any, tmp_path: Path) -> None:
    (example,) = blocks("README.md", "python")
    example = example.replace("/path/to/project", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", example], env=shared_daemon.env, capture_output=True, text=True, timeout=patient(60)
    )
    assert (done.returncode, done.stdout) == (0, "0 b'hello\\n'\n"), done.stderr
