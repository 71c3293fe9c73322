"""The command, against the daemon of a file."""

from typing import Any

import pytest


@pytest.fixture(scope="module")
def cli(shared_daemon: Any) -> Any:
    return shared_daemon.cli
