"""Files in Docker sandboxes: all that `test_files` asks of local ones, in an image with GNU's tools."""

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.daemon.test_files import *  # noqa: F403  # every test of that file is one of this

pytestmark = pytest.mark.needs("docker")

for name in (
    "test_all_of_this_with_a_users_own_daemon",
    "test_what_is_no_file_is_refused_at_once",  # these take a Python inside,
    "test_links_that_are_swapped_lead_nowhere",
    "test_a_full_disk_is_told_and_nothing_is_left",  # and this a home directory of its own
):
    del globals()[name]


@pytest.fixture(scope="module")
def shared_daemon(places: str, dockerd: Any) -> Iterator[RunningDaemon]:
    daemon = RunningDaemon(tempfile.mkdtemp(dir=places))
    os.chmod(daemon.root, 0o711)
    daemon.env |= {"DOCKER_HOST": dockerd.host, "SANDKEEP_DOCKER_BASE": dockerd.guest()}
    daemon.start()
    yield daemon
    daemon.clear()


@pytest.fixture(scope="module")
def image(shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("project")
    (root / "hello").write_text("hello\n")
    (root / "sub").mkdir()
    (root / "sub" / "inner").write_text("inner\n")
    with shared_daemon.connect() as client:
        return str(client.image.create(str(root), provider="docker").image_id)
