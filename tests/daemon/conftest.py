"""What tests of the daemon's parts share: where a daemon inside the test keeps its state, and something to copy."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import daemon_in

from sandkeep.demo import traces


@pytest.fixture
def state_dir(places: str, fakes_end: None, tmp_path: Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def fakes_end(tmp_path: Path) -> Iterator[None]:
    """The fake sandboxes of a test's daemons end with it; they would outlive those, as real ones do."""
    yield
    for pid in traces.processes(str(tmp_path)):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def source(tmp_path: Path) -> str:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "hello").write_text("hello\n")
    return str(folder)


@pytest.fixture(scope="module")
def provider(request: pytest.FixtureRequest) -> str:
    """Whose sandboxes a test of `keeping` is about; local ones, unless it is marked otherwise."""
    return str(getattr(request, "param", "local"))


@pytest.fixture(scope="module")
def image_of(provider: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """How an image of a directory is made for that provider."""
    if provider == "local":
        return {}
    return {"provider": "docker", "base": request.getfixturevalue("dockerd").guest()}


@pytest.fixture(scope="module")
def keeping_daemon(provider: str, request: pytest.FixtureRequest, places: str) -> Iterator[Any]:
    """A daemon that has this provider, for all tests of a file."""
    if provider == "local":
        yield request.getfixturevalue("shared_daemon")
        return
    with daemon_in(places, DOCKER_HOST=request.getfixturevalue("dockerd").host) as daemon:
        daemon.start()
        yield daemon
