"""Merges in a public repository's history, beside git's."""

from pathlib import Path

import pytest
from tests.sources.repositories import repository
from tests.store.merging.histories import check, replay_history

pytestmark = pytest.mark.needs("source:cloud-run-sandbox")


def test_public_history_merges_as_git_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(replay_history(repository("cloud-run-sandbox"), 200, tmp_path), capsys)
