"""Named volumes on a real engine: as they are typed, of two owners, mounted, made at first use, and repeated."""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.daemon.api.test_repeats import Case, made_once
from tests.support.engine import PrivateEngine
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.snapshots import sh
from tests.support.users import NOBODY, as_user

from sandkeep import failpoints
from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("docker", "root", "busybox")

MOUNT = {"source": "cache", "target": "/cache"}
THEIRS = f"uid:{NOBODY}"


@pytest.fixture(scope="module")
def daemon(shared_daemon: Any, dockerd: Any) -> Any:
    shared_daemon.stop()
    shared_daemon.env |= {"DOCKER_HOST": dockerd.host, "SANDBOX_DOCKER_NETWORK": "none"}
    shared_daemon.start()
    return shared_daemon


@pytest.fixture(scope="module")
def image(daemon: Any, dockerd: Any) -> str:
    with daemon.connect() as client:
        return str(client.image.create(dockerd.busybox(), provider="docker").image_id)


@pytest.fixture
def client(daemon: Any) -> Iterator[Any]:
    with daemon.connect() as client:
        yield client
    with daemon.connect() as client:  # the daemon may be another
        for box in client.sandbox.list().sandboxes:
            client.sandbox.terminate(box.sandbox_id)
        for volume in client.volume.list().volumes:
            client.volume.remove(volume.name, owner=volume.owner)


def typed(daemon: Any, *words: str) -> str:
    done = daemon.cli(*words)
    assert done.returncode == 0, done.stderr.decode()
    return str(done.stdout.decode().strip())


def by_nobody(daemon: Any, work: Callable[[Any], Any]) -> Any:
    """The answer of `work` with a client of another user; an error as its code."""

    def body() -> Any:
        with connect(daemon.socket) as client:
            try:
                return work(client)
            except SandkeepError as error:
                return error.code

    return as_user(NOBODY, body)


def occupy(engine: PrivateEngine, volume: str) -> None:
    """Make a container of somebody else's that mounts a volume, by the engine's name."""
    mount = {"Type": "volume", "Source": volume, "Target": "/cache"}
    body = {"Image": engine.busybox(), "HostConfig": {"NetworkMode": "none", "Mounts": [mount]}}
    status, answer = engine.ask("POST", "/containers/create?name=theirs", body)
    assert status == 201, answer


def events_of(client: Any) -> list[str]:
    return [event.type for event in client.follow_events(type="volume", follow=False)]


def test_a_mistyped_directory_is_no_fault_of_the_engine(daemon: Any, image: str, tmp_path: Path) -> None:
    done = daemon.cli("create", image, "--volume", "./nosuch:/d", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        f"sandkeep: --volume ./nosuch:/d: the host has no {tmp_path}/nosuch: create it, or give the name of a volume "
        "[invalid]\n"
    )


def test_a_volume_as_it_is_typed(daemon: Any, client: Any, image: str) -> None:
    assert typed(daemon, "volume", "create", "cache") == "cache"
    boxes = [typed(daemon, "create", image, "--volume", "cache:/cache") for _ in range(2)]
    sh(client, boxes[0], "echo shared >/cache/file")
    assert sh(client, boxes[1], "cat /cache/file") == "shared\n"
    [shown] = json.loads(typed(daemon, "volume", "ls", "--json"))
    assert (shown["name"], shown["owner"], shown["sandbox_ids"]) == ("cache", "uid:0", boxes)
    heading, line = typed(daemon, "volume", "ls").splitlines()
    assert heading.split()[:3] == ["NAME", "OWNER", "AGE"]
    assert line.split()[:2] == ["cache", "uid:0"]
    done = daemon.cli("volume", "rm", "cache")
    assert (done.returncode, done.stdout) == (1, b"")
    assert all(box in done.stderr.decode() for box in boxes)
    typed(daemon, "rm", *boxes)
    assert json.loads(typed(daemon, "volume", "ls", "--json"))[0]["sandbox_ids"] == []
    assert typed(daemon, "volume", "rm", "cache") == "cache"
    assert json.loads(typed(daemon, "volume", "ls", "--json")) == []
    assert events_of(client)[-4:] == [
        "volume.create_requested", "volume.created", "volume.remove_requested", "volume.removed"
    ]  # fmt: skip


def test_handles_of_volumes_are_those_of_their_owner(daemon: Any, client: Any) -> None:
    """An administrator's handle of another user's volume does not stand for their own of the same name."""
    assert by_nobody(daemon, lambda nobody: repr(nobody.volumes.create("cache"))) == "<Volume cache>"
    mine = client.volumes.create("cache")
    assert (mine.id, mine.owner, mine.sandbox_ids) == ("cache", "uid:0", [])
    [theirs] = [volume for volume in client.volumes.list() if volume != mine]
    assert theirs.owner == THEIRS
    assert theirs.remove() is theirs
    assert client.volumes.list() == [mine]
    mine.remove()
    assert client.volumes.list() == []
    with pytest.raises(SandkeepError) as error:
        mine.remove()
    assert error.value.code == "not_found"


def test_what_cannot_be_done_is_refused_with_the_way_out(client: Any) -> None:
    before = events_of(client)
    assert "volume ls" in refused("not_found", client.volume.remove, "cache").message
    for call in (client.volume.create, client.volume.remove):
        assert "use docker, or copy files in" in refused("not_supported", call, "cache", provider="local").message
    refused("not_supported", client.volume.list, provider="local")
    refused("invalid", client.volume.create, "../cache")
    assert events_of(client) == before
    client.volume.create("cache")
    refused("conflict", client.volume.create, "cache")


def test_a_volume_is_in_use_as_long_as_a_sandbox_may_run_again(
    daemon: Any, client: Any, image: str, dockerd: Any
) -> None:
    box = client.sandbox.create(image, volumes=[MOUNT]).sandbox_id
    sh(client, box, "echo kept >/cache/file")
    client.sandbox.suspend(box)
    assert refused("in_use", client.volume.remove, "cache").data["sandbox_ids"] == [box]
    client.sandbox.resume(box)
    daemon.kill()
    daemon.start()
    with daemon.connect() as later:  # which has adopted it
        assert refused("in_use", later.volume.remove, "cache").data["sandbox_ids"] == [box]
        assert sh(later, box, "cat /cache/file") == "kept\n"
        later.sandbox.terminate(box)
        again = later.sandbox.create(image, volumes=[MOUNT]).sandbox_id
        assert sh(later, again, "cat /cache/file") == "kept\n"
        later.sandbox.terminate(again)
        later.volume.remove("cache")
        assert later.volume.list().volumes == []


def test_a_volume_of_a_container_of_others_stays(client: Any, image: str, dockerd: Any) -> None:
    """The engine refuses that; it is on record, and the volume can be removed later."""
    client.volume.create("cache")
    [volume] = client.volume.list().volumes
    occupy(dockerd, volume.engine_name)
    assert "docker ps --all" in refused("in_use", client.volume.remove, "cache").message
    assert events_of(client)[-1] == "volume.remove_failed"
    assert [each.name for each in client.volume.list().volumes] == ["cache"]
    assert dockerd.ask("DELETE", "/containers/theirs?force=1")[0] == 204
    client.volume.remove("cache")
    assert client.volume.list().volumes == []


def test_another_owner_has_other_volumes(daemon: Any, client: Any, image: str, dockerd: Any) -> None:
    box = client.sandbox.create(image, volumes=[MOUNT]).sandbox_id
    sh(client, box, "echo secret >/cache/file")
    assert by_nobody(daemon, lambda c: c.volume.list().volumes) == []
    assert by_nobody(daemon, lambda c: c.volume.remove("cache")) == "not_found"
    for call in ("create", "remove"):
        assert (
            by_nobody(daemon, lambda c, call=call: getattr(c.volume, call)("x", owner="uid:0")) == "permission_denied"
        )
    assert by_nobody(daemon, lambda c: c.volume.list(owner="uid:0")) == "permission_denied"
    theirs = client.image.create(dockerd.busybox(), provider="docker", owner=THEIRS).image_id
    mine = by_nobody(daemon, lambda c: c.sandbox.create(theirs, volumes=[MOUNT]).sandbox_id)
    assert sh(client, mine, "ls /cache") == ""
    assert by_nobody(daemon, lambda c: c.volume.list().volumes[0].sandbox_ids) == [mine]
    # By the engine's name of it there is no way either: that is a name as any other.
    [engine_name] = [each.engine_name for each in client.volume.list(owner="uid:0").volumes]
    mount = {**MOUNT, "source": engine_name}
    other = by_nobody(daemon, lambda c: c.sandbox.create(theirs, volumes=[mount]).sandbox_id)
    assert sh(client, other, "ls /cache") == ""
    client.volume.create("cache", owner="key:ci")
    seen = {(each.owner, each.name) for each in client.volume.list().volumes}
    assert seen == {("uid:0", "cache"), (THEIRS, "cache"), (THEIRS, engine_name), ("key:ci", "cache")}
    labels = dockerd.get(f"/volumes/{engine_name}")["Labels"]
    assert labels == {"sandkeep.owner": "uid:0", "sandkeep.volume": "cache"}  # made at first use
    assert sh(client, box, "cat /cache/file") == "secret\n"


def test_volumes_of_earlier_versions_have_no_labels_and_are_listed(client: Any, image: str, dockerd: Any) -> None:
    for name in ("sandkeep-volume-uid-0-old", f"sandkeep-volume-uid-{NOBODY}-old", "sandkeep-user-uid-0", "foreign"):
        assert dockerd.ask("POST", "/volumes/create", {"Name": name})[0] == 201
    try:
        found = [(each.owner, each.name) for each in client.volume.list().volumes]
        assert found == [("uid:0", "old"), (THEIRS, "old")]
        box = client.sandbox.create(image, volumes=[{"source": "old", "target": "/old"}]).sandbox_id
        sh(client, box, "echo kept >/old/file")
        [mine] = client.volume.list(owner="uid:0").volumes
        assert (mine.engine_name, mine.sandbox_ids) == ("sandkeep-volume-uid-0-old", [box])
        client.sandbox.terminate(box)
        assert [each.owner for each in client.volume.list(owner=THEIRS).volumes] == [THEIRS]
        client.volume.remove("old")
        assert [each.owner for each in client.volume.list().volumes] == [THEIRS]
    finally:
        for name in ("sandkeep-user-uid-0", "foreign"):
            assert dockerd.ask("DELETE", f"/volumes/{name}")[0] == 204


def test_each_change_is_made_once(daemon: Any, client: Any) -> None:
    """Also for a caller who gives it again when the volume has gone, or is there again."""
    client.volume.create("doomed")
    cases = {
        "volume.create": Case(
            lambda w: {"name": "cache"}, {"name": "other"},
            lambda w: w.made("volume.created") == 2,
        ),
        "volume.remove": Case(
            lambda w: {"name": "doomed"}, {"name": "cache"}, lambda w: w.made("volume.removed") == 1,
            between=lambda w, c: c.volume.create("doomed"),
        ),
    }  # fmt: skip
    before = events_of(client)

    class World:
        box = "none"

        def made(self, kind: str) -> int:
            with daemon.connect() as mine:
                return events_of(mine)[len(before) :].count(kind)

    made_once(daemon, World(), cases)
    with daemon.connect() as later:
        assert [each.name for each in later.volume.list().volumes] == ["cache", "doomed"]


# -- a daemon that dies before the engine is asked --------------------------------------------------------------------


@pytest.fixture
def begun(places: str) -> Iterator[tuple[Any, PrivateEngine, Callable[[], Any]]]:
    """A daemon that is dead, whose last order was to remove a volume; its engine; and the repeat of the order."""
    engine = PrivateEngine(tempfile.mkdtemp(prefix="skt-volumes-"))
    daemon = RunningDaemon(tempfile.mkdtemp(dir=places))
    daemon.env["DOCKER_HOST"] = engine.host
    try:
        engine.start()
        daemon.start()
        with daemon.connect() as client:
            client.volume.create("cache")
        daemon.stop()
        daemon.start(**{failpoints.SETTING: "VolumeRemoval.begun"})

        def remove() -> Any:
            with daemon.connect(patience_s=0) as client:
                return client.volume.remove("cache", command_id="the-removal")

        with pytest.raises(SandkeepError):
            remove()
        assert daemon.process is not None
        daemon.process.wait(patient(60))
        daemon.process = None
        yield daemon, engine, remove
    finally:
        daemon.clear()
        engine.clear()


def test_an_order_of_a_dead_daemon_is_finished_when_the_engine_is_there_again(begun: Any) -> None:
    daemon, engine, remove = begun
    engine.stop()
    daemon.start()
    assert "is finished when that answers" in refused("provider_unavailable", remove).message
    engine.start()
    with daemon.connect() as client:
        until(lambda: events_of(client)[-1] == "volume.removed")
        assert client.volume.list().volumes == []
    assert remove().name == "cache"


def test_an_order_of_a_dead_daemon_fails_when_the_volume_is_in_use_by_now(begun: Any) -> None:
    """To remove it whenever it is free would be too late."""
    daemon, engine, remove = begun
    occupy(engine, "sandkeep-volume-uid-0-cache")
    daemon.start()
    assert "docker ps --all" in refused("in_use", remove).message
    with daemon.connect() as client:
        assert events_of(client)[-1] == "volume.remove_failed"
        assert [each.name for each in client.volume.list().volumes] == ["cache"]
