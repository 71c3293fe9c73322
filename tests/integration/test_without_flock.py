"""Shared documents on a mount where flock(2) fails, as it does on many: nothing rests on it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Make
from tests.support.changed import program
from tests.support.expect import refused
from tests.support.patience import patient
from tests.support.sharing import ID, Cluster, metadata

from sandkeep.errors import StateError

pytestmark = pytest.mark.needs("bwrap", "root")

WITHOUT_FLOCK = """
import errno, fcntl, os
real = fcntl.flock
def flock(file, how):
    path = os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}") + "/"
    if "/shared/locks/" in path or "/shared/metadata/" in path:
        raise OSError(errno.ENOLCK, "no locks here", path)
    if "/shared/" not in path:  # archives lie there, each under a name of its own
        real(file, how)
fcntl.flock = flock
"""


def test_nothing_of_what_is_shared_rests_on_flock(new_daemon: Any, shared: dict[str, str], source: Path) -> None:
    group = Cluster(new_daemon, 3, shared, source)
    for daemon in group.daemons:
        daemon.program = program({}, WITHOUT_FLOCK)
    group.start()
    fences = [group.create() and metadata(shared["SANDBOX_METADATA_MOUNT_PATH"])["fence"]]

    def attach(at: int) -> int | None:
        try:
            group.attach(at, timeout_s=patient(60))
        except StateError:  # the other one waits for it already
            return None
        return at

    for turn in range(2):
        [at] = group.standing()
        group.sh(at, f"echo {turn} >>mine")
        with ThreadPoolExecutor(2) as pool:
            assert [one for one in pool.map(attach, {0, 1, 2} - {at}) if one is not None]
        [at] = group.standing()
        assert group.sh(at, "cat mine").split() == [str(number) for number in range(turn + 1)]
        fences.append(metadata(shared["SANDBOX_METADATA_MOUNT_PATH"])["fence"])
    assert fences == sorted(set(fences))


@pytest.mark.needs("gcs")
def test_a_mount_of_metadata_alone_is_refused(cluster: Make, in_gcs: dict[str, str], tmp_path: Path) -> None:
    """Beside a bucket of metadata it is not written to."""
    mount = tmp_path / "mount"
    mount.mkdir(mode=0o700)
    settings = {**in_gcs, "SANDBOX_METADATA_MOUNT_PATH": str(mount)}
    alone = {name: value for name, value in settings.items() if name != "SANDBOX_METADATA_BUCKET"}
    group = cluster(1, settings=alone)
    with group.daemons[0].connect() as client:
        error = refused("not_configured", client.sandbox.create, group.image, gcs_sandbox_id=ID)
        assert "SANDBOX_METADATA_MOUNT_PATH alone does not do" in error.message
        assert error.data["setting"] == "SANDBOX_METADATA_BUCKET"
        assert client.lock.list(all=True).locks == []
    group.daemons[0].stop()
    group.daemons[0].start(SANDBOX_METADATA_BUCKET=in_gcs["SANDBOX_METADATA_BUCKET"])
    group.create()
    assert list(mount.iterdir()) == []
