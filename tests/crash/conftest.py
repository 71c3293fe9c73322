"""The project of which all stories make images."""

import pytest


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("source")
    (made / "file").write_text("content\n")
    made.chmod(0o755)
    return str(made)
