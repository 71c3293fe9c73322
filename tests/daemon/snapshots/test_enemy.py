"""Enemies of snapshots: clients, sandboxes and moments that would lose files, stop the daemon, or have it do harm."""

import fcntl
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.disks import mount, umount
from tests.support.expect import refused, until
from tests.support.snapshots import archive, exported, imported, layers, sh, tree
from tests.support.users import let_in

from sandkeep import archives
from sandkeep_store.archives.tar.depth import MOST_LEVELS
from sandkeepd.snapshots.snapshots import MOST_BENEATH

pytestmark = pytest.mark.needs("bwrap")

THREADS = 40
"""So many the daemon has for what blocks."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("source")
    let_in(made)
    (made / "file").write_text("from the image\n")
    return str(made)


@pytest.fixture(scope="module")
def image(client: Any, source: str) -> str:
    return str(client.image.create(source).image_id)


def fails_no_defect(daemon: RunningDaemon) -> None:
    assert "unforeseen failure" not in daemon.said()
    assert "Traceback" not in daemon.said()


# -- clients ----------------------------------------------------------------------------------------------------------


def test_clients_that_send_nothing_keep_nobody_waiting(shared_daemon: Any, client: Any, box: str) -> None:
    with ExitStack() as waiting:
        for number in range(THREADS):
            if number % 8 == 0:
                other = waiting.enter_context(shared_daemon.connect())
            handed = waiting.enter_context(other.with_descriptors("snapshot.import", 10))
            [pipe] = handed.receive()
            waiting.callback(os.close, pipe)
        assert sh(client, box, "echo here") == "here\n"
        assert client.snapshot.create(box).status == "ready"


def test_an_archive_that_never_comes_does_not_keep_the_daemon(new_daemon: Callable[[], RunningDaemon]) -> None:
    daemon = new_daemon()
    daemon.start()
    with daemon.connect() as client, client.with_descriptors("snapshot.import", 10) as handed:
        [pipe] = handed.receive()
    try:
        with daemon.connect() as client:
            until(lambda: [one.status for one in client.snapshot.list(all=True).snapshots] == ["failed"])
        assert daemon.stop() == 0
    finally:
        os.close(pipe)


def test_who_is_given_an_archive_can_only_read_it(client: Any, box: str) -> None:
    whole = client.snapshot.create(box).snapshot_id
    sh(client, box, "echo more >more")
    part = client.snapshot.create(box, incremental=True).snapshot_id
    for snapshot in (whole, part):
        with client.with_descriptors("snapshot.export", snapshot) as handed:
            [given] = handed.receive()
            assert fcntl.fcntl(given, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            os.close(given)
            handed.answer()


# -- moments ----------------------------------------------------------------------------------------------------------


def test_many_that_began_with_the_same_files_end_at_once(shared_daemon: Any, client: Any, box: str) -> None:
    sh(client, box, "for n in $(seq 300); do echo $n >$n; done")
    for _ in range(3):
        made = [one.sandbox_id for one in client.sandbox.fork(box, count=6).sandboxes]
        with ThreadPoolExecutor(len(made)) as pool:

            def end(one: str) -> None:
                with shared_daemon.connect() as other:
                    other.sandbox.terminate(one)

            list(pool.map(end, made))
    until(lambda: layers(shared_daemon) == [])
    fails_no_defect(shared_daemon)


def test_collecting_while_snapshots_are_made_takes_none(shared_daemon: Any, client: Any, image: str) -> None:
    boxes = [client.sandbox.create(image).sandbox_id for _ in range(2)]
    done = threading.Event()
    found: list[str] = []
    rounds = 0

    def collect() -> None:
        nonlocal rounds
        with shared_daemon.connect() as other:
            while not done.is_set():
                found.extend(other.snapshot.gc().archives)
                rounds += 1

    with ThreadPoolExecutor(3) as pool:
        collecting = pool.submit(collect)

        def keep(box: str) -> list[str]:
            with shared_daemon.connect() as other:
                return [other.snapshot.create(box).snapshot_id for _ in range(15)]

        kept = [snapshot for made in pool.map(keep, boxes) for snapshot in made]
        done.set()
        collecting.result()
    assert rounds > 2
    assert found == []
    for snapshot in kept:
        assert exported(client, snapshot)
    for box in boxes:
        client.sandbox.terminate(box)


# -- places -----------------------------------------------------------------------------------------------------------


def test_a_state_directory_that_was_moved_keeps_its_snapshots(
    new_daemon: Callable[[], RunningDaemon], source: str
) -> None:
    daemon = new_daemon()
    daemon.start()
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
        sh(client, box, "echo work >work")
        snapshot = client.snapshot.create(box).snapshot_id
        client.sandbox.terminate(box)
    daemon.stop()
    moved = f"{daemon.root}/moved"
    os.rename(daemon.state_dir, moved)
    daemon.state_dir = daemon.env["SANDKEEP_STATE_DIR"] = moved
    daemon.start()
    with daemon.connect() as client:
        assert client.snapshot.gc().archives == []
        made = client.snapshot.restore(snapshot).sandbox_id
        assert sh(client, made, "cat work") == "work\n"
        client.sandbox.terminate(made)
        client.snapshot.delete(snapshot)
        assert len(client.snapshot.gc().archives) <= 1
    assert [str(path) for path in Path(moved, "archives").rglob("snp_*")] == []


def test_an_archive_that_grew_in_its_bucket_is_not_taken(
    new_daemon: Callable[[], RunningDaemon], source: str, s3_bucket: str, s3: Any
) -> None:
    daemon = new_daemon()
    daemon.start(SANDBOX_S3_BUCKET=s3_bucket)
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
        snapshot = client.snapshot.create(box)
        [place] = [place for place in snapshot.places if place.where == "s3"]
        s3.client().put_object(Bucket=s3_bucket, Key=place.path, Body=bytes(1 << 20))
        told = refused("snapshot_corrupt", lambda: client.snapshot.restore(snapshot.snapshot_id))
        assert "bytes" in told.message
        client.sandbox.terminate(box)


# -- chains -----------------------------------------------------------------------------------------------------------


def test_a_chain_ends_where_nothing_could_be_restored_of_it(client: Any, box: str) -> None:
    made = []
    for number in range(MOST_BENEATH + 3):
        sh(client, box, f"echo {number} >n{number}")
        made.append(client.snapshot.create(box, incremental=True))
    parents = {one.snapshot_id: one.parent_id for one in made}
    last: str | None = made[-1].snapshot_id
    depth = 0
    while last is not None:
        last, depth = parents[last], depth + 1
    assert depth == MOST_BENEATH + 1
    deepest = made[MOST_BENEATH].snapshot_id
    refused("conflict", lambda: client.snapshot.create(box, parent_id=deepest))
    before = tree(client, box)
    restored = client.snapshot.restore(made[-1].snapshot_id).sandbox_id
    assert tree(client, restored) == before
    sh(client, restored, "echo own >own")
    refused("not_supported", lambda: client.snapshot.create(restored, incremental=True))
    assert client.snapshot.create(restored).status == "ready"
    client.sandbox.terminate(restored)


# -- sandboxes --------------------------------------------------------------------------------------------------------


def test_directories_as_deep_as_trees_may_be_come_back(client: Any, box: str) -> None:
    down = f"$(printf 'a/%.0s' $(seq {MOST_LEVELS - 1}))"
    sh(client, box, f"d={down}; mkdir -p $d; echo deep >${{d}}file")
    snapshot = client.snapshot.create(box).snapshot_id
    fork = client.sandbox.fork(box).sandboxes[0].sandbox_id
    restored = client.snapshot.restore(snapshot).sandbox_id
    for one in (fork, restored):
        assert sh(client, one, f"cat {down}file") == "deep\n"
    image = client.snapshot.promote(snapshot).image_id
    above = client.sandbox.create(image).sandbox_id
    sh(client, above, "echo more >more")
    assert exported(client, client.snapshot.create(above, incremental=True).snapshot_id)
    for one in (fork, restored, above):
        client.sandbox.terminate(one)


@pytest.mark.parametrize("files", [1, 3000])  # of few and of many, which are looked at by other means
def test_deeper_directories_are_refused_in_every_kind_of_snapshot(client: Any, box: str, files: int) -> None:
    first = client.snapshot.create(box).snapshot_id
    down = f"$(printf 'a/%.0s' $(seq {MOST_LEVELS}))"
    sh(client, box, f"d={down}; mkdir -p $d; cd $d; seq {files} | xargs touch")
    for more in ({}, {"incremental": True}, {"incremental": True, "parent_id": first}):
        refused("tree_too_deep", lambda more=more: client.snapshot.create(box, **more))
    sh(client, box, "rm -r a")
    assert client.snapshot.create(box).status == "ready"


def test_links_of_links_in_an_image_survive_an_export(client: Any, image: str) -> None:
    made = archive(
        ("dir/file", "x"),
        ("one", lambda info: (setattr(info, "type", b"2"), setattr(info, "linkname", "dir"))),
        ("two", lambda info: (setattr(info, "type", b"1"), setattr(info, "linkname", "one"))),
    )
    beneath = client.snapshot.promote(imported(client, made).snapshot_id).image_id
    box = client.sandbox.create(beneath).sandbox_id
    sh(client, box, "rm one")
    part = client.snapshot.create(box, incremental=True).snapshot_id
    again = client.snapshot.restore(imported(client, exported(client, part)).snapshot_id).sandbox_id
    assert sh(client, again, "readlink two; ls") == "dir\ndir\ntwo\n"
    client.sandbox.terminate(box)
    client.sandbox.terminate(again)


# -- full disks -------------------------------------------------------------------------------------------------------


@pytest.mark.needs("root")
def test_a_full_disk_loses_nothing_and_is_told_as_one(
    new_daemon: Callable[[], RunningDaemon], source: str, tmp_path: Path
) -> None:
    """Archives, and copies for restores, are on a disk of their own that takes less and less."""
    daemon = new_daemon()
    # Not below the daemon's place: whoever copies our mount namespace meanwhile would be taken for a process of ours.
    small = str(tmp_path / "small")
    os.mkdir(small, 0o700)
    mount("-t", "tmpfs", "-o", "size=10m,mode=0700", "none", small)
    try:
        daemon.start(SANDBOX_SNAPSHOT_DIR=f"{small}/archives")
        with daemon.connect() as client:
            box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
            sh(client, box, "head -c 2M /dev/urandom >noise")
            first = client.snapshot.create(box).snapshot_id
            sh(client, box, "head -c 12M /dev/urandom >more")
            refused("storage_unavailable", lambda: client.snapshot.create(box))
            refused("storage_unavailable", lambda: client.snapshot.create(box, incremental=True))
            noise = archive(("noise", os.urandom(12 << 20).hex()))
            refused("storage_unavailable", lambda: imported(client, noise))
            assert os.listdir(f"{small}/archives/.partial") == []
            sh(client, box, "rm more; echo part >part")
            part = client.snapshot.create(box, incremental=True).snapshot_id
            with open(f"{small}/filler", "wb") as filler, suppress(OSError):
                while True:
                    filler.write(bytes(1 << 16))
            refused("storage_unavailable", lambda: exported(client, part))  # it is put together there
            refused("storage_unavailable", lambda: client.snapshot.create(box))
            assert sh(client, client.snapshot.restore(part).sandbox_id, "cat part") == "part\n"
            assert exported(client, first)
            os.unlink(f"{small}/filler")
            assert exported(client, part)
            for one in client.sandbox.list().sandboxes:
                client.sandbox.terminate(one.sandbox_id)
        fails_no_defect(daemon)
    finally:
        daemon.clear()
        umount(small)


# -- the command line -------------------------------------------------------------------------------------------------


def test_devices_and_links_are_written_to_and_not_replaced(client: Any, box: str, tmp_path: Path) -> None:
    snapshot = client.snapshot.create(box).snapshot_id
    null, full = tmp_path / "null", tmp_path / "full"
    pipe, link, there = tmp_path / "pipe", tmp_path / "link", tmp_path / "there"
    os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    archives.export_to(client, snapshot, str(null))
    assert stat.S_ISCHR(null.stat().st_mode)
    assert "No space" in refused("invalid", lambda: archives.export_to(client, snapshot, str(full))).message
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        archives.export_to(client, snapshot, str(pipe))
        assert read.result() == exported(client, snapshot)
    link.symlink_to(there)
    archives.export_to(client, snapshot, str(link))
    assert link.is_symlink()
    assert there.read_bytes() == exported(client, snapshot)
    assert "directory" in refused("invalid", lambda: archives.export_to(client, snapshot, str(tmp_path))).message
    assert sorted(os.listdir(tmp_path)) == ["full", "link", "null", "pipe", "there"]
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with open(pipe, "wb"):
        refused("invalid", lambda: archives.import_from(client, str(pipe)))
    os.close(reading)
