"""Snapshots and forks of Docker sandboxes, with a real daemon on a real engine."""

import io
import mmap
import os
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.support.engine import PrivateEngine
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.snapshots import archive, exported, imported, names, sh, write_mapped

import sandkeep
from sandkeep import transfer
from sandkeep.errors import ProviderError

pytestmark = pytest.mark.needs("docker")

DOCKERFILE = """
FROM {}
ENV GREETING=hello
WORKDIR /workspace
RUN mkdir -p sub gone /opt/tool && echo old >gone/old && echo image >file && echo tool >/opt/tool/one \
    && mkdir -p /opt/moved/in /opt/mode && echo deep >/opt/moved/in/file && echo same >/opt/mode/file \
    && mkdir -m 750 -p /opt/deep && mkdir -m 711 /opt/deep/er && echo 1 >/opt/deep/er/file \
    && ln file sub/hard && chown -R 1234:1234 /workspace /opt && echo root >sub/roots
USER 1234:1234
"""

CHANGE = """
rm file; echo new >new; rm -r gone; mkdir gone; echo y >gone/young; ln -s /etc/passwd link; mkdir -m 700 closed
echo s >closed/secret; chmod 000 closed/secret; rm -r /opt/tool; mkdir /opt/tool; echo other >/opt/tool/two
ln new sub/link2; mv /opt/moved /opt/away; chmod 711 /opt/mode; echo more >>/opt/deep/er/file
"""

LIST = r"""
cd / && find opt workspace etc/passwd etc/group -type d -exec stat -c '%n %F %a %u:%g' {} + \
  -o -name hard -exec stat -c '%N %F %a %u:%g' {} + -o -exec stat -c '%N %F %a %u:%g %h' {} +
find opt workspace -type f -exec sha256sum {} + 2>/dev/null; echo "$GREETING $(pwd) $(id -u)"
"""


GUEST = "test/kept-guest:1"


class World:
    """A daemon with an engine, and an image with files in its workspace and elsewhere."""

    def __init__(self, daemon: RunningDaemon, engine: PrivateEngine, client: Any) -> None:
        self.daemon = daemon
        self.engine = engine
        self.client = client
        reference = engine.derived("test/kept:1", DOCKERFILE.format(engine.busybox()))
        self.image = str(client.image.create(reference, provider="docker").image_id)

    def box(self, **options: Any) -> str:
        return str(self.client.sandbox.create(self.image, **options).sandbox_id)

    def tree(self, box: str) -> set[str]:
        """All that can be seen in a sandbox where something can change."""
        return set(sh(self.client, box, LIST).splitlines())

    def restored(self, snapshot_id: str) -> set[str]:
        """The same of a new sandbox with the files of a snapshot."""
        box = str(self.client.snapshot.restore(snapshot_id).sandbox_id)
        try:
            return self.tree(box)
        finally:
            self.client.sandbox.terminate(box)

    def containers(self, box: str) -> list[str]:
        """The names of a sandbox's containers."""
        return [one["Names"][0] for one in self.engine.containers(f"sandkeep.sandbox={box}")]

    def volumes(self, box: str) -> list[str]:
        """The volumes that are a sandbox's own."""
        found = self.engine.get("/volumes")["Volumes"] or ()
        return [volume["Name"] for volume in found if (volume["Labels"] or {}).get("sandkeep.sandbox") == box]

    def kept(self) -> set[str]:
        """The names under which the engine keeps files."""
        tags = {name for image in self.engine.get("/images/json") for name in image["RepoTags"] or ()}
        return {name.partition(":")[2] for name in tags if name.startswith("sandkeep-files:")}


@pytest.fixture(scope="module")
def world(dockerd: PrivateEngine, places: str) -> Iterator[World]:
    with daemon_in(places, DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_READ_ONLY="false") as daemon:
        daemon.start()
        with daemon.connect() as client:
            yield World(daemon, dockerd, client)


@pytest.fixture
def client(world: World) -> Any:
    return world.client


@pytest.fixture
def box(world: World) -> Iterator[str]:
    made = world.box()
    yield made
    world.client.sandbox.terminate(made)


def test_a_restored_sandbox_has_exactly_the_files_of_the_snapshot(world: World, client: Any, box: str) -> None:
    sh(client, box, CHANGE)
    before = world.tree(box)
    full = client.snapshot.create(box)
    changed = client.snapshot.create(box, incremental=True)
    sh(client, box, "echo later >later; rm new")
    assert (full.kind, changed.kind, changed.parent_id) == ("full", "incremental", full.snapshot_id)
    assert full.pause_ms > 0
    assert changed.size_bytes < full.size_bytes / 20
    assert world.restored(full.snapshot_id) == before
    assert world.restored(changed.snapshot_id) == before
    whole = exported(client, changed.snapshot_id)
    assert {"workspace/new", "opt/tool/two", "bin/busybox"} <= set(names(whole))
    assert not {"workspace/file", "opt/tool/one", "workspace/.wh.file"} & set(names(whole))
    until(lambda: world.kept() == set())


def test_processes_stand_still_while_all_of_it_is_read_and_go_on(client: Any, box: str) -> None:
    """What a program writes first is read first, and long before the other, and yet is not behind it."""
    sh(client, box, "head -c 64m /dev/zero >/opt/large && touch /opt/one two")
    writer = "i=0; while :; do i=$((i+1)); echo $i >>/opt/one; echo $i >>two; done"
    client.process.launch(box, ["sh", "-c", writer], name="writer")
    until(lambda: sh(client, box, "cat two") != "")
    made = client.snapshot.create(box, include=["/opt", "/workspace"])
    before = sh(client, box, "wc -l <two")
    until(lambda: sh(client, box, "wc -l <two") != before)
    client.process.signal(box, "writer", "KILL")
    with tarfile.open(fileobj=io.BytesIO(exported(client, made.snapshot_id))) as tar:
        one, two = (tar.extractfile(name).read().count(b"\n") for name in ("opt/one", "workspace/two"))
    assert 0 <= one - two <= 1
    assert two > 0


@pytest.mark.soak
def test_snapshots_of_what_was_restored_build_on_it(world: World, client: Any, box: str) -> None:
    sh(client, box, CHANGE)
    first = client.snapshot.create(box, incremental=True).snapshot_id
    second = client.snapshot.restore(first).sandbox_id
    sh(client, second, "echo more >more; rm gone/young; rm /opt/tool/two; chmod 755 closed")
    before = world.tree(second)
    made = client.snapshot.create(second, incremental=True)
    assert made.parent_id == first
    client.sandbox.terminate(second)
    assert world.restored(made.snapshot_id) == before
    client.snapshot.delete(first)
    assert world.restored(made.snapshot_id) == before


def test_forks_begin_with_the_files_of_one_moment_and_go_their_own_ways(world: World, client: Any, box: str) -> None:
    sh(client, box, CHANGE)
    before = world.tree(box)
    forked = client.sandbox.fork(box, count=3)
    sh(client, box, "echo source >mine")
    boxes = [one.sandbox_id for one in forked.sandboxes]
    assert forked.pause_ms > 0
    for number, one in enumerate(boxes):
        assert world.tree(one) == before
        sh(client, one, f"echo {number} >mine; rm new")
    assert [sh(client, one, "cat mine") for one in (*boxes, box)] == ["0\n", "1\n", "2\n", "source\n"]
    assert sh(client, box, "cat new") == "new\n"
    [again] = client.sandbox.fork(boxes[0]).sandboxes
    client.sandbox.terminate(boxes[0])
    assert sh(client, again.sandbox_id, "cat mine; ls new 2>&1 | wc -l") == "0\n1\n"
    assert len(world.kept()) == 2
    for one in (*boxes[1:], again.sandbox_id):
        client.sandbox.terminate(one)
    until(lambda: world.kept() == set())


LARGE = """
FROM {}
WORKDIR /srv/work
RUN mkdir -m 700 closed && echo old >closed/file && head -c 20000000 /dev/urandom >large && mkdir -m 751 /srv/work/in \
    && echo 1 >in/one && echo 2 >in/two && rm in/one
RUN rm in/two && echo 3 >in/three
"""
"""An image with much in its workspace, which is in a directory of a directory, and in several layers."""


def bytes_of(world: World, box: str) -> int:
    """Return the number of bytes on the disk for a sandbox's own files."""
    [name] = world.volumes(box)
    volume = f"{world.engine.root}/data/volumes/{name}"
    layer = world.engine.container_of(box)["GraphDriver"]["Data"]["UpperDir"]
    done = subprocess.run(["du", "-sxcB1", volume, layer], capture_output=True, check=True)
    return int(done.stdout.splitlines()[-1].split()[0])


@pytest.fixture
def large(world: World, client: Any) -> Iterator[str]:
    reference = world.engine.derived("test/kept-large:1", LARGE.format(world.engine.busybox()))
    made = str(client.sandbox.create(client.image.create(reference, provider="docker").image_id).sandbox_id)
    yield made
    client.sandbox.terminate(made)


LOOK = "cd /srv && (find work -exec stat -c '%N %F %a %u:%g' {} +; find work -type f -exec sha256sum {} +) | sort"


def test_what_changed_is_all_that_an_increment_and_a_fork_take(world: World, client: Any, large: str) -> None:
    assert sh(client, large, "ls in") == "three\n"
    sh(client, large, "echo more >>closed/file; rm in/three; echo 4 >in/four")
    before = sh(client, large, LOOK)
    first = client.snapshot.create(large, incremental=True)
    [fork] = (one.sandbox_id for one in client.sandbox.fork(large).sandboxes)
    assert (first.parent_id, first.size_bytes < 10_000) == (None, True)
    assert sh(client, fork, LOOK) == before
    assert max(bytes_of(world, large), bytes_of(world, fork)) < 1_000_000
    sh(client, large, "head -c 20000000 /dev/urandom >own; sleep 0.1")
    second = client.snapshot.create(large, incremental=True)
    sh(client, large, "echo yet more >>closed/file; rm in/four; rm -r in; mkdir -m 711 in; echo 5 >in/five")
    before = sh(client, large, LOOK)
    third = client.snapshot.create(large, incremental=True, parent_id=second.snapshot_id)
    assert (second.parent_id, third.parent_id) == (first.snapshot_id, second.snapshot_id)
    assert second.size_bytes > 20_000_000
    assert third.size_bytes < 10_000
    assert {name for name in names_in_archive(third) if name.startswith("srv")} == {
        "srv", "srv/work", "srv/work/closed", "srv/work/closed/file", "srv/work/in", "srv/work/in/five",
        "srv/work/in/.wh..wh..opq",
    }  # fmt: skip
    back = client.snapshot.restore(third.snapshot_id).sandbox_id
    assert sh(client, back, LOOK) == before
    assert bytes_of(world, back) < 1_000_000
    for one in (fork, back):
        client.sandbox.terminate(one)


def names_in_archive(snapshot: Any) -> list[str]:
    """The members of a snapshot's own archive, without those beneath it."""
    with tarfile.open(snapshot.places[0].uri) as tar:
        return [member.name.removeprefix("./") for member in tar]


def test_what_is_written_in_memory_is_in_the_next_increment(world: World, client: Any) -> None:
    reference = world.engine.derived("test/kept-python:1", f"FROM {world.engine.python()}\nWORKDIR /workspace\n")
    box = str(client.sandbox.create(client.image.create(reference, provider="docker").image_id).sandbox_id)
    transfer.copy_in(client, mmap.__file__, box, "/workspace")  # the image's Python comes without it
    write = write_mapped(client, box)
    sh(client, box, "sleep 0.1")
    for letter in (b"1", b"2"):
        write(letter)
        made = client.snapshot.create(box, incremental=True)
    sh(client, box, "sleep 0.1")
    for _ in range(2):  # the file has no other time, but may change without one
        made = client.snapshot.create(box, incremental=True)
    assert "workspace/mapped" in names_in_archive(made)
    restored = client.snapshot.restore(made.snapshot_id).sandbox_id
    assert sh(client, restored, "head -c 1 mapped") == "2"
    for one in (box, restored):
        client.sandbox.terminate(one)


def test_a_workspace_that_had_to_be_copied_is_kept_whole_once(world: World, client: Any) -> None:
    """As volumes of earlier versions are: its user could not write to the image's files."""
    dockerfile = f"FROM {world.engine.busybox()}\nWORKDIR /plain\nRUN echo 1 >one\nUSER 1234:1234\n"
    reference = world.engine.derived("test/kept-plain:1", dockerfile)
    box = str(client.sandbox.create(client.image.create(reference, provider="docker").image_id).sandbox_id)
    first = client.snapshot.create(box, incremental=True)
    sh(client, box, "rm one; echo 2 >two")
    second = client.snapshot.create(box, incremental=True)
    assert {"plain/one", "plain/.wh..wh..opq"} <= set(names_in_archive(first))
    assert [name for name in names_in_archive(second) if name.startswith("plain")] == [
        "plain", "plain/two", "plain/.wh.one",
    ]  # fmt: skip
    for made in (second.snapshot_id, client.sandbox.fork(box).sandboxes[0].sandbox_id):
        one = made if made.startswith("sbx") else client.snapshot.restore(made).sandbox_id
        assert sh(client, one, "cat *") == "2\n"
        client.sandbox.terminate(one)
    client.sandbox.terminate(box)


def test_a_workspace_outlives_restarts_of_the_engine_and_goes_with_its_sandbox(
    world: World, client: Any, box: str
) -> None:
    sh(client, box, "rm file; echo new >new")
    second = world.box()
    for number in range(2):
        world.engine.stop()
        world.engine.start()
        assert sh(client, box, f"echo {number} >>new; cat sub/roots") == "root\n"
        world.engine.ask("POST", f"/containers/sandbox-{box}/kill")
        until(lambda: client.sandbox.get(box).status in ("failed", "lost"))
        assert client.sandbox.resume(box).status == "running"
    assert sh(client, box, "cat new; ls file 2>&1 | wc -l") == "new\n0\n1\n1\n"
    client.sandbox.terminate(second)
    assert world.volumes(second) == []
    third = str(client.sandbox.fork(box).sandboxes[0].sandbox_id)
    client.sandbox.terminate(third)
    assert world.volumes(third) == []


def test_attributes_of_overlays_that_code_inside_sets_mean_nothing(world: World, client: Any) -> None:
    """Not even where it is root."""
    reference = world.engine.derived(
        "test/kept-root:1", f"FROM {world.engine.busybox()}\nRUN mkdir -p /workspace/d && echo 1 >/workspace/d/one\n"
    )
    box = str(client.sandbox.create(client.image.create(reference, provider="docker").image_id).sandbox_id)
    sh(client, box, "echo 2 >d/two; mkdir e; id -u | grep -x 0; ! mknod d/one2 c 0 0")
    pid = world.engine.container_of(box)["State"]["Pid"]
    for name, value in (("opaque", b"y"), ("redirect", b"/etc"), ("metacopy", b"")):
        for place in ("d", "e"):
            os.setxattr(f"/proc/{pid}/root/workspace/{place}", f"user.overlay.{name}", value)
    made = client.snapshot.create(box, incremental=True)
    look = "find . | sort; cat d/*"
    expected = ".\n./d\n./d/one\n./d/two\n./e\n1\n2\n"
    for one in (
        client.snapshot.restore(made.snapshot_id),
        client.sandbox.fork(box).sandboxes[0],
        client.sandbox.get(box),
    ):
        assert sh(client, one.sandbox_id, look) == expected
        client.sandbox.terminate(one.sandbox_id)


@pytest.mark.soak
def test_a_suspended_sandbox_stays_so_while_it_is_read(world: World, client: Any, box: str) -> None:
    sh(client, box, "echo new >new")
    client.sandbox.suspend(box)
    made = client.snapshot.create(box, incremental=True)
    [fork] = client.sandbox.fork(box).sandboxes
    assert client.sandbox.get(box).status == "suspended"
    assert world.engine.container_of(box)["State"]["Paused"]
    assert sh(client, fork.sandbox_id, "cat new") == "new\n"
    client.sandbox.terminate(fork.sandbox_id)
    client.sandbox.resume(box)
    assert world.restored(made.snapshot_id) == world.tree(box)


@pytest.mark.soak
def test_what_a_sandbox_left_can_be_kept_until_its_container_is_removed(world: World, client: Any, box: str) -> None:
    sh(client, box, CHANGE)
    before = world.tree(box)
    world.engine.ask("POST", f"/containers/sandbox-{box}/kill")
    until(lambda: client.sandbox.get(box).status == "failed")
    made = client.snapshot.create(box)
    assert made.pause_ms is None
    assert world.restored(made.snapshot_id) == before
    world.engine.ask("DELETE", f"/containers/sandbox-{box}?force=1&v=1")
    assert "was removed" in refused("not_ready", lambda: client.snapshot.create(box)).message


@pytest.mark.soak
def test_a_whole_archive_goes_out_and_comes_in_with_an_image(world: World, client: Any, box: str) -> None:
    sh(client, box, CHANGE)
    before = world.tree(box)
    made = client.snapshot.create(box, incremental=True)
    whole = exported(client, made.snapshot_id)
    brought = imported(client, whole, image_id=world.image)
    assert (brought.provider, brought.image_id, brought.root) == ("docker", world.image, "/")
    assert world.restored(brought.snapshot_id) == before


def test_an_archive_of_a_workspace_takes_the_place_of_the_images(
    world: World, client: Any, box: str, tmp_path: Path
) -> None:
    (tmp_path / "workspace" / "d").mkdir(parents=True)
    (tmp_path / "workspace" / "d" / "new").write_text("theirs\n")
    (tmp_path / "workspace" / "link").symlink_to("/bin/sh")
    os.link(tmp_path / "workspace" / "d" / "new", tmp_path / "workspace" / "hard")
    elsewhere = {line for line in world.tree(box) if "workspace" not in line}
    for words in (["workspace"], ["-C", "workspace", "."]):
        tar = ["tar", "-czf", "-", "--owner=4321", "--group=4321", "-C", tmp_path, *words]
        brought = imported(client, subprocess.run(tar, check=True, capture_output=True).stdout, image_id=world.image)
        assert (brought.provider, brought.root, brought.kind) == ("docker", "/", "incremental")
        assert brought.snapshot_id in refused("in_use", lambda: client.image.remove(world.image)).message
        new = str(client.snapshot.restore(brought.snapshot_id).sandbox_id)
        client.sandbox.restore(box, snapshot_id=brought.snapshot_id)
        for restored in (new, box):
            listed = sh(client, restored, "find . | sort; cat hard; readlink link; stat -c '%u %h' hard; touch d/more")
            assert listed.split() == [".", "./d", "./d/new", "./hard", "./link", "theirs", "/bin/sh", "1234", "2"]
            assert {line for line in world.tree(restored) if "workspace" not in line} == elsewhere
        part = client.snapshot.create(new, incremental=True)
        assert part.parent_id == brought.snapshot_id
        again = imported(client, exported(client, part.snapshot_id), image_id=world.image)
        assert (again.kind, world.restored(again.snapshot_id)) == ("full", world.tree(new))
        client.sandbox.terminate(new)


def test_a_workspace_below_directories_of_the_image_leaves_them_as_they_are(world: World, client: Any) -> None:
    dockerfile = (
        f"FROM {world.engine.busybox()}\nWORKDIR /home/dev/app\nRUN chmod 751 /home/dev && "
        "chown 1234:1234 /home/dev && echo old >old\nUSER 1234:1234\n"
    )
    reference = world.engine.derived("test/nested:1", dockerfile)
    image = client.image.create(reference, provider="docker").image_id
    twice = archive(("file", "one\n"), ("file", "two\n"))
    refused("snapshot_corrupt", lambda: imported(client, twice, image_id=image))
    brought = imported(client, archive(("file", "theirs\n")), image_id=image)
    box = client.snapshot.restore(brought.snapshot_id).sandbox_id
    assert sh(client, box, "pwd; ls; stat -c '%a %u' /home/dev; cat file") == "/home/dev/app\nfile\n751 1234\ntheirs\n"
    client.sandbox.terminate(box)
    client.snapshot.delete(brought.snapshot_id)
    client.image.remove(image)


@pytest.mark.soak
def test_a_snapshot_becomes_an_image(world: World, client: Any, box: str) -> None:
    sh(client, box, CHANGE)
    before = world.tree(box)
    made = client.snapshot.create(box, incremental=True).snapshot_id
    image = client.snapshot.promote(made)
    client.snapshot.delete(made)
    until(lambda: world.kept() == set())
    second = client.sandbox.create(image.image_id).sandbox_id
    assert world.tree(second) == before
    client.sandbox.terminate(second)
    client.image.remove(image.image_id)


def test_a_sandbox_gets_its_earlier_files_back(world: World, client: Any, box: str) -> None:
    sh(client, box, CHANGE)
    before = world.tree(box)
    client.process.launch(box, ["echo", "said before"], name="before")
    client.process.wait(box, "before")
    name = world.engine.container_of(box)["Config"]["Hostname"]
    snapshot = client.snapshot.create(box, incremental=True)
    sh(client, box, "rm -rf new gone /opt/tool; echo other >other; mkdir new")
    client.process.launch(box, ["sleep", "1000"])
    restored = client.sandbox.restore(box, snapshot.snapshot_id, end_processes=True)
    assert (restored.status, restored.restored_from) == ("running", snapshot.snapshot_id)
    assert world.tree(box) == before
    assert client.process.read(box, "before").stdout == b"said before\n"
    until(lambda: world.containers(box) == [f"/sandbox-{box}"])
    assert world.engine.container_of(box)["Config"]["Hostname"] == name
    assert len(world.volumes(box)) == 1
    sh(client, box, "echo on >on")
    assert client.snapshot.create(box, incremental=True).parent_id == snapshot.snapshot_id
    world.engine.ask("POST", f"/containers/sandbox-{box}/kill")
    until(lambda: client.sandbox.get(box).status == "failed")
    assert client.sandbox.resume(box).status == "running"
    assert sh(client, box, "cat on") == "on\n"


@pytest.mark.parametrize("cut", ["before", pytest.param("after", marks=pytest.mark.soak)])
def test_an_engine_that_goes_while_files_are_replaced_finds_one_container_when_it_is_back(
    world: World, client: Any, box: str, cut: str
) -> None:
    """Whether the restore came to its end by then, or not."""
    sh(client, box, "echo 1 >one")
    snapshot = client.snapshot.create(box, incremental=True)
    sh(client, box, "rm one")
    with ThreadPoolExecutor(1) as pool:
        restoring = pool.submit(client.sandbox.restore, box, snapshot.snapshot_id)
        until(lambda: len(world.containers(box)) == 2 or restoring.done())
        if cut == "after":
            until(restoring.done)
        world.engine.stop(signal.SIGKILL)
        error = restoring.exception(60)
    world.engine.start()
    until(lambda: len(world.containers(box)) == len(world.volumes(box)) == 1)
    until(lambda: world.containers(box) == [f"/sandbox-{box}"])
    if error is not None:
        until(lambda: world.kept() == set())
        client.sandbox.resume(box)
    assert sh(client, box, "ls one 2>/dev/null; true") == ("one\n" if error is None else "")


def test_files_that_cannot_be_taken_leave_a_sandbox_as_it_was(world: World, client: Any, box: str) -> None:
    sh(client, box, "echo mine >mine")
    snapshot = client.snapshot.create(box)
    place = Path(snapshot.places[0].uri)
    place.write_bytes(place.read_bytes()[:-1])
    refused("snapshot_corrupt", lambda: client.sandbox.restore(box, snapshot.snapshot_id))
    assert (client.sandbox.get(box).status, sh(client, box, "cat mine")) == ("running", "mine\n")
    until(lambda: world.kept() == set())


def test_some_paths_are_kept_and_others_not(client: Any, box: str) -> None:
    sh(client, box, CHANGE)
    some = client.snapshot.create(box, include=["/workspace/gone", "/opt/tool"], exclude=["/opt/tool/two"])
    assert names(exported(client, some.snapshot_id)) == [
        ".", "opt", "opt/tool", "workspace", "workspace/gone", "workspace/gone/young",
    ]  # fmt: skip


def test_paths_that_are_not_absolute_begin_at_the_workspace(client: Any, box: str) -> None:
    made = client.snapshot.create(box, include=["sub", "./gone"], exclude=["gone/old"])
    assert (made.include, made.exclude) == (["/workspace/sub", "/workspace/gone"], ["/workspace/gone/old"])
    assert names(exported(client, made.snapshot_id)) == [
        ".", "workspace", "workspace/gone", "workspace/sub", "workspace/sub/hard", "workspace/sub/roots",
    ]  # fmt: skip
    assert "workspace/gone/old" not in names(
        exported(client, client.snapshot.create(box, exclude=["gone"]).snapshot_id)
    )
    assert client.snapshot.create(box, include=["/"]).include == []


@pytest.mark.parametrize("path", ["/workspace", ".", "/workspace/gone"])
def test_a_part_takes_the_place_of_the_images(world: World, client: Any, box: str, path: str) -> None:
    """The rest is the image's: a container of the part alone would not even have a shell."""
    image = world.tree(box)
    sh(client, box, CHANGE)
    changed = world.tree(box)
    made = client.snapshot.create(box, include=[path])
    place = "/workspace/gone" if path.endswith("gone") else "/workspace"
    expected = {line for line in changed if f"{place}/" in f"/{line} "} | {
        line for line in image if f"{place}/" not in f"/{line} " and f"{place} " not in f"/{line} "
    }
    found = world.restored(made.snapshot_id)
    assert {line for line in found if f"{place}/" in f"/{line} "} == {
        line for line in expected if f"{place}/" in f"/{line} "
    }
    assert {line for line in found if "opt/" in line} == {line for line in image if "opt/" in line}
    assert refused("in_use", lambda: client.image.remove(world.image))
    client.snapshot.delete(made.snapshot_id)


def test_owners_modes_and_attributes_are_kept_and_holes_are_not_written_out(
    world: World, client: Any, box: str
) -> None:
    sh(client, box, "mkdir -m 2770 d; echo x >d/f; chmod 4755 d/f; touch -d 2001-02-03 d/f")
    sh(client, box, "mkfifo p; truncate -s 9M h; echo >/opt/theirs")
    upper = world.engine.container_of(box)["GraphDriver"]["Data"]["UpperDir"]
    os.chown(f"{upper}/opt/theirs", 4321, 4322)
    os.setxattr(f"{upper}/opt/theirs", "user.note", b"kept")
    [fork] = client.sandbox.fork(box).sandboxes
    look = "stat -c '%n %a %u:%g %F' d d/f p h /opt/theirs; date -r d/f +%F"
    assert sh(client, fork.sandbox_id, look).splitlines() == [
        "d 770 1234:1234 directory", "d/f 755 1234:1234 regular file", "p 644 1234:1234 fifo",
        "h 644 1234:1234 regular file", "/opt/theirs 644 4321:4322 regular file", "2001-02-03",
    ]  # fmt: skip
    [lower, *_] = world.engine.container_of(fork.sandbox_id)["GraphDriver"]["Data"]["LowerDir"].split(":")[1:]
    assert os.getxattr(f"{lower}/opt/theirs", "user.note") == b"kept"
    client.sandbox.terminate(fork.sandbox_id)
    sh(client, box, "truncate -s 900M h i")
    assert "holes" in refused("disk_limit", lambda: client.sandbox.fork(box)).message
    assert client.snapshot.create(box, incremental=True).size_bytes < 4 << 20
    sh(client, box, "rm i; touch .wh.d")
    assert "rename" in refused("invalid", lambda: client.sandbox.fork(box)).message
    until(lambda: world.kept() == set())


SWAPPER = """
mkdir real d; echo mine >real/file; echo mine >d/file
while :; do mv -T d away && ln -s {secret} d && rm d && mv -T away d; done
"""


def test_directories_that_are_swapped_for_links_lead_nowhere(
    world: World, client: Any, box: str, tmp_path: Path
) -> None:
    tmp_path.joinpath("file").write_text("the host's own\n")
    for place in ("/workspace", "/opt"):
        script = SWAPPER.format(secret=tmp_path)
        client.process.launch(box, ["sh", "-c", script], name=f"swapper-{place[1:]}", working_dir=place)
    until(lambda: sh(client, box, "cat /opt/real/file real/file || true") == "mine\nmine\n")
    for options in ({}, {"incremental": True}, {"include": ["/opt", "/workspace"]}):
        made = client.snapshot.create(box, **options)
        whole = exported(client, made.snapshot_id)
        with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
            inside = [one for one in tar if one.name in ("opt/d/file", "workspace/d/file") and one.isfile()]
            assert {tar.extractfile(one).read() for one in inside} <= {b"mine\n"}
    sh(client, box, f"ln -s {tmp_path} out; ln -s {tmp_path} /opt/out")
    for path in ("/opt/out/file", "/workspace/out/file"):
        refused("not_found", partial(client.snapshot.create, box, include=[path]))
    [fork] = client.sandbox.fork(box).sandboxes
    assert "host" not in sh(client, fork.sandbox_id, "cat d/file /opt/d/file 2>/dev/null; true")
    assert sh(client, fork.sandbox_id, "cat real/file") == "mine\n"
    client.sandbox.terminate(fork.sandbox_id)


@pytest.mark.soak
def test_what_is_kept_is_what_a_sandbox_alone_writes_to_a_disk(
    world: World, new_daemon: Callable[[], RunningDaemon]
) -> None:
    """On a read-only root, without a workspace in the image, and with workspaces of all kinds."""
    daemon = new_daemon()
    daemon.env["DOCKER_HOST"] = world.engine.host
    script = "echo 1 >/workspace/one; echo 2 >/tmp/two; echo 3 >/run/three"

    def made(client: Any) -> str:
        guest = world.engine.derived(GUEST, f"FROM {world.engine.busybox()}\nUSER 1234:1234\n")
        image = client.image.create(guest, provider="docker").image_id
        box = client.sandbox.create(image).sandbox_id
        sh(client, box, script)
        return str(box)

    daemon.start()
    with daemon.connect() as client:
        box = made(client)
        whole = names(exported(client, client.snapshot.create(box).snapshot_id))
        assert [name for name in whole if name.endswith(("/one", "/two", "/three"))] == ["workspace/one"]
        [fork] = client.sandbox.fork(box).sandboxes
        assert sh(client, fork.sandbox_id, "ls /workspace /tmp; id -u") == "/tmp:\n\n/workspace:\none\n1234\n"
    daemon.stop()
    for mode, why in (("user", "others write to"), ("none", "in memory")):
        daemon.start(SANDBOX_DOCKER_VOLUME_MODE=mode)
        with daemon.connect() as client:
            box = made(client)
            for work in (client.sandbox.fork, client.snapshot.create):
                assert why in refused("not_supported", partial(work, box)).message
            assert client.sandbox.get(box).status == "running"
        daemon.stop()


def test_an_engine_that_is_down_leaves_nothing_half_done(world: World, client: Any, box: str) -> None:
    sh(client, box, "echo 1 >one")
    made = client.snapshot.create(box)
    world.engine.stop()
    try:
        for work in (
            lambda: client.sandbox.fork(box, names=["never"]),
            lambda: client.snapshot.create(box),
            lambda: client.snapshot.restore(made.snapshot_id),
            lambda: client.sandbox.restore(box, made.snapshot_id),
            lambda: client.snapshot.promote(made.snapshot_id),
        ):
            refused("provider_unavailable", work)
        assert (client.sandbox.get(box).status, sh(client, box, "cat one")) == ("running", "1\n")
    finally:
        world.engine.start()
    assert client.snapshot.list(sandbox_id=box).snapshots == [made]
    assert [fork.name for fork in client.sandbox.fork(box, names=["never"]).sandboxes] == ["never"]
    client.sandbox.terminate("never")
    until(lambda: world.kept() == set())


def is_forked(client: Any, box: str, name: str) -> bool:
    """Fork a sandbox; False when the engine does not answer yet."""
    try:
        client.sandbox.fork(box, names=[name])
    except ProviderError:
        return False
    return True


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_goes_while_it_is_given_files(world: World, client: Any, box: str, number: int) -> None:
    sh(client, box, "head -c 200m /dev/urandom >large")
    place, half = f"{world.engine.root}/data/tmp", f"half-{number}"
    with ThreadPoolExecutor(1) as pool:
        forking = pool.submit(refused, "provider_unavailable", lambda: client.sandbox.fork(box, names=[half]))
        until(lambda: bool(os.listdir(place)) or forking.done())
        world.engine.send(number)
        forking.result(patient(60))
        if number == signal.SIGKILL:
            world.engine.stop(number)
            world.engine.start()
        else:
            world.engine.send(signal.SIGCONT)
    until(lambda: is_forked(client, box, half))  # a daemon that found it hanging asks again and again
    assert sh(client, half, "sha256sum large") == sh(client, box, "sha256sum large")
    client.sandbox.terminate(half)
    until(lambda: world.kept() == set())


def test_an_archive_cannot_say_what_is_gone_from_what_lies_beneath(world: World, client: Any) -> None:
    whole = archive(("workspace/.wh.file", "x"))
    error = refused("invalid", lambda: imported(client, whole, image_id=world.image))
    assert "marks deletions in layers" in error.message
    brought = imported(client, whole, image_id=world.image, files="root")
    assert (
        "marks deletions in layers" in refused("invalid", lambda: client.snapshot.restore(brought.snapshot_id)).message
    )
    until(lambda: world.kept() == set())


@pytest.mark.soak
def test_kept_files_that_nobody_needs_go_when_the_daemon_starts(world: World, places: str) -> None:
    daemon = RunningDaemon(tempfile.mkdtemp(dir=places))
    daemon.env["DOCKER_HOST"] = world.engine.host
    daemon.start()
    with daemon.connect() as client:
        image = client.image.create(world.engine.busybox(), provider="docker").image_id
        box = client.sandbox.create(image).sandbox_id
        [fork] = client.sandbox.fork(box).sandboxes
        log_id = world.engine.container_of(fork.sandbox_id)["Config"]["Labels"]["sandkeep.log"]
        [name] = world.kept()
        for other, log in (("frk_lost", log_id), ("frk_theirs", "log_00000000000000000000000000")):
            world.engine.derived(
                f"sandkeep-files:{other}", f"FROM {world.engine.busybox()}\nLABEL sandkeep.log={log}\n"
            )
        assert world.kept() == {name, "frk_lost", "frk_theirs"}
    daemon.stop()
    daemon.start()
    until(lambda: world.kept() == {name, "frk_theirs"})
    daemon.clear()
    world.engine.ask("DELETE", "/images/sandkeep-files:frk_theirs")


def said(world: World, *words: str) -> str:
    """What `sandkeep WORDS` prints that succeeds."""
    done = world.daemon.cli(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def test_the_same_as_it_is_typed(world: World, box: str, tmp_path: Path) -> None:
    def inside(sandbox: str, script: str) -> str:
        return said(world, "exec", sandbox, "--", "sh", "-c", script)

    inside(box, "echo 1 >one")
    full = said(world, "snapshot", "create", box)
    inside(box, "rm file; echo 2 >two")
    second = said(world, "snapshot", "create", box, "--incremental")
    fork = said(world, "fork", box)
    assert inside(fork, "echo 3 >three; cat one two; ls file 2>/dev/null | wc -l") == "1\n2\n0"
    assert said(world, "snapshot", "restore", full, "--over", box) == box
    assert inside(box, "cat one file; ls two three 2>/dev/null | wc -l") == "1\nimage\n0"
    said(world, "snapshot", "export", second, str(tmp_path / "work.tar.gz"))
    with tarfile.open(tmp_path / "work.tar.gz") as whole:
        there = {name.removeprefix("./") for name in whole.getnames()}
    assert {"workspace/one", "workspace/two", "opt/tool/one"} <= there
    assert not {"workspace/file", "workspace/three"} & there
    image = said(world, "snapshot", "promote", second)
    made = said(world, "create", image)
    assert inside(made, "cat one two; ls file 2>/dev/null | wc -l") == "1\n2\n0"
    said(world, "rm", fork, made)
    said(world, "image", "rm", image)


async def test_the_same_by_the_trio_client(world: World, box: str) -> None:
    async with sandkeep.connect(world.daemon.socket) as client:

        async def run(sandbox: str, script: str) -> bytes:
            ran = await client.sandbox.exec(sandbox, ["sh", "-c", script])
            assert ran.exit_code == 0, ran.stderr
            return bytes(ran.stdout)

        await run(box, "echo 1 >one")
        made = await client.snapshot.create(box, incremental=True)
        [fork] = (await client.sandbox.fork(box)).sandboxes
        await run(box, "rm one")
        assert await run(fork.sandbox_id, "cat one") == b"1\n"
        restored = await client.sandbox.restore(box, made.snapshot_id)
        assert (restored.status, restored.restored_from) == ("running", made.snapshot_id)
        assert await run(box, "cat one") == b"1\n"
        await client.sandbox.terminate(fork.sandbox_id)
