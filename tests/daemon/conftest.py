"""What tests of the daemon's parts share: where a daemon inside the test keeps its state, and something to copy."""

from pathlib import Path

import pytest


@pytest.fixture
def state_dir(places: str, tmp_path: Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def source(tmp_path: Path) -> str:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "hello").write_text("hello\n")
    return str(folder)
