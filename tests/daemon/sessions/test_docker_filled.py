"""Sessions of containers that are brought back: their last files lie in their own volume, not in an image."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.crash.test_docker import left_in
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.snapshots import sh

from sandkeep import failpoints

pytestmark = [pytest.mark.needs("docker"), pytest.mark.needs("root")]


@pytest.fixture(scope="module")
def provider() -> str:
    return "docker"


@pytest.fixture(scope="module")
def client(keeping_daemon: Any) -> Any:
    with keeping_daemon.connect() as client:
        yield client


@pytest.fixture(scope="module")
def image(client: Any, dockerd: Any) -> str:
    """An image with files in its workspace, which belong to the user of its sandboxes."""
    made = "mkdir -p /workspace/gone /workspace/stays && echo image >/workspace/stays/file"
    text = f"FROM {dockerd.guest()}\nUSER 0\nRUN {made} && chown -R 1234:1234 /workspace\nUSER 1234:1234\n"
    return str(client.image.create(dockerd.derived("filled", text), provider="docker").image_id)


def filled(dockerd: Any, client: Any, session_id: str) -> Path:
    """Where the files lie that a session was brought back with."""
    sandbox_id = client.session.get(session_id).sandbox_id
    mine = [one for one in dockerd.get("/volumes")["Volumes"] if sandbox_id in (one["Labels"] or {}).values()]
    [place] = [one["Mountpoint"] for one in mine]
    return Path(place).parent / "filled"


def bring_back(client: Any, session_id: str) -> str:
    """Close a session, and bring it back; return the snapshot of its files."""
    client.session.close(session_id)
    return str(client.session.ensure(id=session_id).session.restored_from)


def has_image(dockerd: Any, snapshot_id: str) -> bool:
    status, _ = dockerd.ask("GET", f"/images/sandkeep-files:{snapshot_id}/json")
    return bool(status == 200)


SHOW = "ls; cat stays/file mine 2>&1"


def test_its_files_are_those_of_the_snapshot_and_none_of_its_image(client: Any, dockerd: Any, image: str) -> None:
    client.session.ensure(id="back", image=image)
    sh(client, "back", "rmdir gone; echo mine >mine; ln mine other; ln -s mine link; chmod 700 mine; mkfifo fifo")
    for _ in range(2):
        snapshot = bring_back(client, "back")
        assert sh(client, "back", SHOW) == "fifo\nlink\nmine\nother\nstays\nimage\nmine\n"
        assert sh(client, "back", "stat -c '%a %h' mine; readlink link") == "700 2\nmine\n"
        assert not has_image(dockerd, snapshot)
        assert filled(dockerd, client, "back").is_dir()
    client.session.close("back", snapshot=False)


def test_snapshots_forks_and_differences_have_all_of_them(client: Any, dockerd: Any, image: str) -> None:
    client.session.ensure(id="used", image=image)
    sh(client, "used", "rmdir gone; echo mine >mine; echo old >old")
    began = bring_back(client, "used")
    sh(client, "used", "rm old; echo new >new")
    shown = "mine\nnew\nstays\nimage\nmine\n"
    part = client.snapshot.create("used", incremental=True)
    assert part.parent_id == began
    assert part.member_count == len([".", "run", "workspace", "new", ".wh.old"]), "it holds what changed since then"
    changes = {one.path: one.change for one in client.sandbox.diff("used").files}
    assert changes == {"new": "added", "old": "deleted"}
    box = client.session.get("used").sandbox_id
    forked = client.sandbox.fork(box).sandboxes[0].sandbox_id
    restored = client.snapshot.restore(part.snapshot_id).sandbox_id
    client.session.close("used", snapshot=False)
    for sandbox in (forked, restored):
        assert sh(client, sandbox, SHOW) == shown
        client.sandbox.terminate(sandbox)


def test_they_are_there_once_the_container_is_started_again(client: Any, dockerd: Any, image: str) -> None:
    client.session.ensure(id="again", image=image)
    sh(client, "again", "echo mine >mine; rmdir gone")
    bring_back(client, "again")
    sh(client, "again", "echo more >more")
    box = client.session.get("again").sandbox_id
    dockerd.ask("POST", "/containers/sandbox-again/kill")
    until(lambda: client.sandbox.get(box).status in ("lost", "failed"))
    workspace = filled(dockerd, client, "again").parent / "_data"
    subprocess.run(["umount", str(workspace)], check=True)  # as the engine does when it is started again
    client.sandbox.resume(box)
    assert sh(client, box, SHOW) == "mine\nmore\nstays\nimage\nmine\n"
    client.session.close("again", snapshot=False)


def test_an_image_stays_as_long_as_a_session_was_brought_back_on_it(client: Any, dockerd: Any) -> None:
    own = client.image.create(dockerd.guest(), provider="docker", clean=True).image_id
    client.session.ensure(id="needs", image=own)
    snapshot = bring_back(client, "needs")
    client.snapshot.delete(snapshot)
    refused("in_use", client.image.remove, own)
    client.session.close("needs", snapshot=False)
    client.image.remove(own)


def test_files_of_others_come_back_by_an_image(client: Any, dockerd: Any) -> None:
    made = "mkdir -p /workspace/of && chown 1234:1234 /workspace && chown 7:7 /workspace/of"
    text = f"FROM {dockerd.guest()}\nUSER 0\nRUN {made}\n"
    image = client.image.create(dockerd.derived("others", text + "USER 1234:1234\n"), provider="docker").image_id
    client.session.ensure(id="others", image=image)
    snapshot = bring_back(client, "others")
    assert has_image(dockerd, snapshot)
    assert sh(client, "others", "stat -c %u of") == "7\n"
    client.session.close("others", snapshot=False)


def test_a_daemon_that_dies_over_them_leaves_nothing_half_done(
    new_daemon: Callable[[], RunningDaemon], dockerd: Any
) -> None:
    daemon = new_daemon()
    daemon.start(DOCKER_HOST=dockerd.host)
    with daemon.connect() as client:
        own = client.image.create(dockerd.guest(), provider="docker").image_id
        client.session.ensure(id="killed", image=own)
        sh(client, "killed", "echo mine >mine")
        client.session.close("killed")
    daemon.stop()
    daemon.start(**{failpoints.SETTING: "session.filled"}, DOCKER_HOST=dockerd.host)
    with daemon.connect(patience_s=0) as client:
        refused("not_ready", lambda: client.session.ensure(id="killed"))
    assert daemon.process is not None
    daemon.process.wait(patient(60))
    daemon.start(**{failpoints.SETTING: ""}, DOCKER_HOST=dockerd.host)
    with daemon.connect() as client:
        assert sh(client, "killed", "cat mine") == "mine\n"
        client.session.close("killed", snapshot=False)
        for snapshot in client.snapshot.list().snapshots:
            client.snapshot.delete(snapshot.snapshot_id)
        client.image.remove(own)
    daemon.stop()
    assert left_in(dockerd, daemon.state_dir) == []
