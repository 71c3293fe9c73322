"""What the stories of many files begin with."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory of which images are made, with one file."""
    made = tmp_path_factory.mktemp("source")
    Path(made, "file").write_text("content\n")
    made.chmod(0o755)
    return str(made)
