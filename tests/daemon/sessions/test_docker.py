"""Sessions of Docker sandboxes, on a real engine: the container's name and labels, which each revival has again."""

import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import PrivateEngine
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.snapshots import exported, names
from tests.support.users import as_user

from sandkeep import archives

pytestmark = [pytest.mark.needs("docker"), pytest.mark.needs("root")]

ID = "0b7c1a52-6f3e-4c0b-9a59-0d5d3a1f2e44"
LEFT = "22222222-6f3e-4c0b-9a59-0d5d3a1f2e44"
FOREIGN = "11111111-6f3e-4c0b-9a59-0d5d3a1f2e44"


@pytest.fixture(scope="module")
def provider() -> str:
    return "docker"


@pytest.fixture(scope="module")
def client(keeping_daemon: Any) -> Any:
    with keeping_daemon.connect() as client:
        yield client


def container(dockerd: Any, session: Any) -> dict[str, Any]:
    """The container of a session, as the engine shows it."""
    found: dict[str, Any] = dockerd.get(f"/containers/{session.ref.removeprefix('docker://')}/json")
    return found


def test_the_container_has_the_sessions_name_and_labels(client: Any, dockerd: Any) -> None:
    first = client.session.ensure(
        id=ID, image=dockerd.guest(), cpus=0.5, memory_bytes=64 << 20, user="1000:1000", disk_bytes=1 << 30
    ).session
    assert first.ref == f"docker://sandbox-{ID}"
    found = container(dockerd, first)
    assert found["Name"] == f"/sandbox-{ID}"
    assert found["Config"]["Labels"]["astraforge.sandbox.session"] == ID
    assert found["Config"]["Labels"]["astraforge.sandbox.user"] == first.owner == "uid:0"
    assert (found["HostConfig"]["NanoCpus"], found["HostConfig"]["Memory"]) == (500_000_000, 64 << 20)
    assert (found["Config"]["User"], found["Config"]["Hostname"]) == ("1000:1000", f"sandbox-{ID}")
    client.sandbox.exec(ID, "echo mine >file")
    client.session.close(ID)
    assert client.sandbox.exec(ID, "cat file /proc/sys/kernel/hostname").stdout == f"mine\nsandbox-{ID}\n".encode()
    second = client.session.get(ID)
    assert second.sandbox_id != first.sandbox_id
    assert container(dockerd, second)["Name"] == f"/sandbox-{ID}"


def test_another_owners_session_of_that_id_has_a_suffix(client: Any, dockerd: Any, keeping_daemon: Any) -> None:
    client.session.ensure(id=ID)
    image = dockerd.guest()
    client.image.publish(image, owners=["uid:1000"])

    def ensure() -> Any:
        with keeping_daemon.connect() as mine:
            return mine.session.ensure(id=ID, image=image)

    made = as_user(1000, ensure)
    assert made.created
    assert made.session.ref.startswith(f"docker://sandbox-{ID}.")
    marks = container(dockerd, made.session)["Config"]["Labels"]
    assert (marks["sandkeep.session"], marks["sandkeep.owner"]) == (ID, "uid:1000")
    assert client.session.get(ID).owner == "uid:0"


def test_a_foreign_container_of_that_name_is_left_alone(client: Any, dockerd: Any) -> None:
    status, _ = dockerd.ask("POST", f"/containers/create?name=sandbox-{FOREIGN}", {"Image": dockerd.guest()})
    assert status == 201
    session = client.session.ensure(id=FOREIGN, image=dockerd.guest()).session
    assert session.ref.startswith(f"docker://sandbox-{FOREIGN}.")
    assert session.note is None
    assert client.sandbox.exec(FOREIGN, "true").exit_code == 0


def test_a_container_that_astraforge_left_is_told(client: Any, dockerd: Any, tmp_path: Path) -> None:
    """By the commands that the session names. The user of its label is one of AstraForge's, and nobody's here."""
    image, name = dockerd.guest(), f"sandbox-{LEFT}"
    marks = {"astraforge.sandbox.session": LEFT, "astraforge.sandbox.user": "7"}
    body = {
        "Image": image, "Labels": marks, "Cmd": ["sh", "-c", "echo theirs >/workspace/file"],
        "Volumes": {"/workspace": {}},
    }  # fmt: skip
    assert dockerd.ask("POST", f"/containers/create?name={name}", body)[0] == 201
    dockerd.ask("POST", f"/containers/{name}/start")
    dockerd.ask("POST", f"/containers/{name}/wait")
    made = client.session.ensure(id=LEFT, image=image).session
    assert made.ref.startswith(f"docker://{name}.")
    assert f"`docker cp {name}:/workspace - >FILE`" in str(made.note)
    archive = str(tmp_path / "left.tar")
    with open(archive, "wb") as file:
        copying = ["docker", "-H", dockerd.host, "cp", f"{name}:/workspace", "-"]
        subprocess.run(copying, stdout=file, check=True, timeout=patient(60))
    snapshot = archives.import_from(client, archive, image_id=image).snapshot_id
    client.session.close(LEFT, snapshot=False)
    dockerd.ask("DELETE", f"/containers/{name}?force=true&v=true")
    again = client.session.ensure(id=LEFT, restore_snapshot_id=snapshot).session
    assert (again.ref, again.note) == (f"docker://{name}", None)
    assert client.sandbox.exec(LEFT, "cat file").stdout == b"theirs\n"


def test_a_container_that_somebody_removed_is_told(client: Any, dockerd: Any) -> None:
    """Its last changes are lost with it, which the session says; the files of its snapshot are not."""
    session = client.session.ensure(id="removed", image=dockerd.guest()).session
    client.sandbox.exec("removed", "echo 1 >file")
    snapshot = client.snapshot.create("removed").snapshot_id
    client.sandbox.exec("removed", "echo 2 >file")
    dockerd.ask("DELETE", f"/containers/{container(dockerd, session)['Id']}?force=true&v=true")
    assert client.sandbox.exec("removed", "cat file").stdout == b"1\n"
    again = client.session.get("removed")
    assert again.restored_from == snapshot
    assert "are lost" in str(again.note)


def test_concurrent_calls_have_one_container(keeping_daemon: Any, dockerd: Any) -> None:
    image = dockerd.guest()

    def ensure(_: int) -> Any:
        with keeping_daemon.connect() as client:
            return client.session.ensure(id="crowded", image=image)

    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(ensure, range(20)))
    assert [one.created for one in made].count(True) == 1
    assert len({one.session.sandbox_id for one in made}) == 1
    assert len(dockerd.containers("sandkeep.session=crowded")) == 1


def test_files_stay_while_the_engine_is_away(new_daemon: Any) -> None:
    """Without `live-restore` it takes the containers along, and what is in them is there when it is back."""
    engine, daemon = PrivateEngine(tempfile.mkdtemp(prefix="skt-engine-"), live_restore=False), new_daemon()
    try:
        engine.start()
        daemon.start(DOCKER_HOST=engine.host)
        with daemon.connect() as client:
            for name in ("used", "closed"):
                client.session.ensure(id=name, image=engine.guest())
                client.sandbox.exec(name, "echo mine >file")
            engine.stop()
            until(lambda: {client.sandbox.get(name).status for name in ("used", "closed")} == {"lost"})
            refused("provider_unavailable", client.sandbox.exec, "used", "true")
            refused("provider_unavailable", client.session.close, "closed")
            engine.start()
            client.session.close("closed")
            for name in ("used", "closed"):
                assert client.sandbox.exec(name, "cat file").stdout == b"mine\n"
                client.session.close(name, snapshot=False)
    finally:
        engine.clear()


def test_ids_of_any_length_are_names_of_hosts(client: Any, dockerd: Any) -> None:
    for name in ("a" * 64, "a_b.-", "A" * 63 + "."):
        session = client.session.ensure(id=name, image=dockerd.guest()).session
        assert session.ref == f"docker://sandbox-{name}"
        client.session.close(name, snapshot=False)


def saved(client: Any, session_id: str) -> Any:
    """Close a session; return the newest snapshot of it."""
    sandbox_id = client.session.get(session_id).sandbox_id
    client.session.close(session_id)
    return client.snapshot.list(sandbox_id=sandbox_id).snapshots[-1]


def test_its_snapshots_hold_the_workspace_as_nothing_else_can_have_changed(client: Any, dockerd: Any) -> None:
    image = dockerd.guest()
    client.session.ensure(id="small", image=image)
    client.sandbox.exec("small", "echo 1 >file")
    for number in (1, 2):
        snapshot = saved(client, "small")
        assert snapshot.include == ["/workspace"]
        assert set(names(exported(client, snapshot.snapshot_id))) == {".", "workspace", "workspace/file"}
        assert client.sandbox.exec("small", "cat file; ls /etc/passwd").stdout == f"{number}\n/etc/passwd\n".encode()
        client.sandbox.exec("small", f"echo {number + 1} >file")
    chosen = client.snapshot.create("small", include=["file"])
    assert chosen.include == ["/workspace/file"]
    client.session.close("small", snapshot=False)


def test_its_snapshots_hold_a_root_that_can_have_changed(new_daemon: Any, dockerd: Any) -> None:
    """Also once roots are read-only, as the session goes on with what was changed before."""
    daemon = new_daemon()
    daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_READ_ONLY="0")
    with daemon.connect() as client:
        client.session.ensure(id="whole", image=dockerd.guest(), user="0:0")
        client.sandbox.exec("whole", "echo mine >/etc/mine; echo 1 >file")
        first = saved(client, "whole")
    daemon.kill()
    daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_READ_ONLY="1")
    with daemon.connect() as client:
        assert client.sandbox.exec("whole", "cat /etc/mine file").stdout == b"mine\n1\n"
        for snapshot in (first, saved(client, "whole")):
            assert snapshot.include == []
            assert {"etc/mine", "workspace/file"} <= set(names(exported(client, snapshot.snapshot_id)))
        client.session.close("whole", snapshot=False)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("sandbox.exec", {"command": "echo 1"}),
        ("process.launch", {"command": "echo 1"}),
        ("sandbox.write_file", {"path": "new", "data": b"1"}),
        ("sandbox.read_file", {"path": "file"}),
        ("sandbox.list_dir", {"path": "."}),
        ("artifact.export", {"path": "file"}),
        ("snapshot.create", {}),
    ],
)
def test_a_use_at_the_moment_of_its_containers_end_brings_it_back(
    client: Any, dockerd: Any, method: str, more: dict[str, Any]
) -> None:
    """The daemon does not know of the end yet, so the call gets as far as the sandbox that is no more."""
    made = client.session.ensure(id=method, image=dockerd.guest()).session
    client.sandbox.exec(method, "echo mine >file")
    client.snapshot.create(method)
    found = container(dockerd, made)["Id"]
    dockerd.ask("POST", f"/containers/{found}/kill")
    noun, verb = method.split(".")
    getattr(getattr(client, noun), verb)(method, **more)
    assert client.sandbox.exec(method, "cat file").stdout == b"mine\n"
    assert client.session.get(method).starts == 2
    client.session.close(method, snapshot=False)
