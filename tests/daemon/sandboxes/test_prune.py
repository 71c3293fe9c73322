"""`store.prune`: what nobody needs goes, on record, and nothing else."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.users import as_client, let_in

from sandkeep.demo import traces

pytestmark = pytest.mark.needs("bwrap")

OUTPUT_BYTES = 200_000


def ended(client: Any, image: str) -> tuple[str, str]:
    """A sandbox that has ended, and its process, with output."""
    box = client.sandbox.create(image).sandbox_id
    process = client.process.launch(box, f"head -c {OUTPUT_BYTES} /dev/zero").process_id
    client.process.wait(box, process)
    client.sandbox.terminate(box)
    return box, process


def image_of(client: Any, directory: Path, name: str, **options: Any) -> str:
    source = directory / name
    source.mkdir()
    let_in(source)
    (source / "name").write_text(name)
    return str(client.image.create(source, **options).image_id)


def journals(daemon: RunningDaemon, box: str) -> int:
    return sum(path.stat().st_size for path in Path(daemon.state_dir, "sandboxes", box).rglob("prc_*"))


def test_what_nothing_needs_goes_and_is_on_record(running_daemon: RunningDaemon, tmp_path: Path) -> None:
    with running_daemon.connect() as client:
        used, unused, named = (image_of(client, tmp_path, name) for name in ("used", "unused", "named"))
        based = image_of(client, tmp_path, "based")
        client.image.tag(named, "mine:1")
        pinned = image_of(client, tmp_path, "pinned")
        client.session.ensure("s", image=pinned)
        client.session.close("s", snapshot=False)
        running = client.sandbox.create(used).sandbox_id
        lively = client.process.launch(running, f"head -c {OUTPUT_BYTES} /dev/zero").process_id
        client.process.wait(running, lively)
        saved = client.sandbox.create(based).sandbox_id
        increment = client.snapshot.create(saved, incremental=True).snapshot_id
        client.sandbox.terminate(saved)
        box, process = ended(client, used)
        said = client.store.prune(dry_run=True)
        assert said.dry_run
        assert (box in said.sandboxes, said.images) == (True, [unused])
        assert said.output_bytes >= OUTPUT_BYTES
        assert journals(running_daemon, box) == OUTPUT_BYTES
        assert client.store.prune(older_than_s=3600).sandboxes == []
        done = client.store.prune()
        assert (done.images, done.sandboxes, done.left) == (said.images, said.sandboxes, [])
        assert journals(running_daemon, box) == 0
        assert "`sandkeep prune`" in refused("compacted", lambda: client.process.read(box, process)).message
        assert client.process.get(box, process).exit_code == 0
        assert len(client.process.read(running, lively).stdout) > 0
        types = [event.type for event in client.follow_events(follow=False)]
        assert types.count("output.remove_requested") == types.count("output.removed") == 1
        assert types.count("image.removed") == 1
        again = client.store.prune()
        assert (again.images, again.sandboxes) == ([], [])
        assert client.store.prune(all=True).images == [named]
        assert client.snapshot.restore(increment).status == "running"
        assert client.session.ensure("s").session.status == "ready"
        assert client.quota.get().quotas


@pytest.mark.needs("root")
def test_an_ordinary_user_prunes_what_is_his(running_daemon: RunningDaemon, tmp_path: Path) -> None:
    with running_daemon.connect() as client:
        theirs = image_of(client, tmp_path, "theirs", owner="uid:40001")
        mine = image_of(client, tmp_path, "mine", owner="uid:40000")
        box, _ = ended(client, image_of(client, tmp_path, "roots"))
    done = as_client(running_daemon, 40000, lambda client: client.store.prune())
    assert (done.images, done.sandboxes) == ([mine], [])
    with running_daemon.connect() as client:
        assert client.image.get(theirs).status == "ready"
        report = client.store.prune()
        assert box in report.sandboxes
        assert theirs in report.images


def test_an_interrupted_prune_is_finished_by_the_next_daemon(
    new_daemon: Callable[[], RunningDaemon], tmp_path: Path
) -> None:
    daemon = new_daemon()
    daemon.start(SANDKEEP_FAILPOINT="OutputRemoval.begun")
    with daemon.connect(patience_s=0) as client:
        box, _ = ended(client, image_of(client, tmp_path, "image"))
        with pytest.raises(Exception, match="daemon"):
            client.store.prune()
    assert daemon.process is not None
    daemon.process.wait(patient(60))
    assert journals(daemon, box) == OUTPUT_BYTES
    daemon.start()
    until(lambda: journals(daemon, box) == 0)


def test_the_files_of_a_removed_image_are_deleted_in_the_background(
    running_daemon: RunningDaemon, tmp_path: Path
) -> None:
    with running_daemon.connect() as client:
        image = image_of(client, tmp_path, "large")
        client.image.remove(image)
        directory = Path(running_daemon.state_dir, "images", image)
        assert not directory.exists(), "it is out of the way when that is answered"
        until(lambda: os.listdir(Path(running_daemon.state_dir, "trash")) == [])
    assert traces.mounts(str(directory)) == []
