"""Programs are installed into the system of a container: `create --writable-root`, as it is typed."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from docker import APIClient
from tests.support.expect import refused, until
from tests.support.patience import patient

pytestmark = pytest.mark.needs("docker", "root", "busybox")

INSTALL = """set -e
printf '#!/bin/sh\\necho installed\\n' >/usr/local-tool; chmod 755 /usr/local-tool
mkdir -p /opt/pkg; echo data >/opt/pkg/data; chown 1234:1234 /opt/pkg/data
rm /etc/old; mkdir -p /workspace; echo work >/workspace/work"""
CHECK = """/usr/local-tool; cat /opt/pkg/data; stat -c %u:%g /opt/pkg/data
test ! -e /etc/old && echo removed; cat /workspace/work"""
INSTALLED = "installed\ndata\n1234:1234\nremoved\nwork\n"


@pytest.fixture(scope="module")
def daemon(shared_daemon: Any, dockerd: Any) -> Any:
    shared_daemon.stop()
    shared_daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none")
    return shared_daemon


@pytest.fixture(scope="module")
def image(daemon: Any, dockerd: Any) -> str:
    reference = dockerd.derived("test/old:1", f"FROM {dockerd.tools()}\nRUN echo old >/etc/old\n")
    with daemon.connect() as client:
        return str(client.image.create(reference, provider="docker").image_id)


@pytest.fixture
def client(daemon: Any) -> Iterator[Any]:
    with daemon.connect() as client:
        yield client
        for box in client.sandbox.list().sandboxes:
            client.sandbox.terminate(box.sandbox_id)


def installed(daemon: Any, image: str, *words: str) -> str:
    """A sandbox into whose system something was installed."""
    done = daemon.cli("create", image, "--writable-root", *words)
    assert done.returncode == 0, done.stderr.decode()
    box = str(done.stdout.decode().strip())
    done = daemon.cli("exec", box, "--", "sh", "-c", INSTALL)
    assert done.returncode == 0, done.stderr.decode()
    return box


def check(client: Any, box: str) -> None:
    done = client.sandbox.exec(box, ["sh", "-c", CHECK])
    assert done.stdout.decode() == INSTALLED, done.stderr.decode()


def test_a_root_is_read_only_unless_it_is_asked_for(daemon: Any, client: Any, image: str) -> None:
    box = client.sandbox.create(image).sandbox_id
    assert b"Read-only" in client.sandbox.exec(box, ["sh", "-c", "echo x >/usr/x"]).stderr
    assert not client.sandbox.get(box).spec.writable_root
    check(client, installed(daemon, image))


def test_snapshots_and_forks_have_what_was_installed(daemon: Any, client: Any, image: str) -> None:
    box = installed(daemon, image)
    first = client.snapshot.create(box)
    restored = client.snapshot.restore(first.snapshot_id)
    assert restored.spec.writable_root
    check(client, restored.sandbox_id)
    for fork in client.sandbox.fork(box, count=2).sandboxes:
        check(client, fork.sandbox_id)
        client.sandbox.exec(fork.sandbox_id, ["sh", "-c", "echo own >/opt/pkg/data"])
    check(client, box)
    # An increment of the root's changes.
    client.sandbox.exec(box, ["sh", "-c", "echo more >/opt/more; rm /opt/pkg/data"])
    second = client.snapshot.create(box, incremental=True)
    assert second.kind == "incremental"
    grown = client.snapshot.restore(second.snapshot_id).sandbox_id
    assert client.sandbox.exec(grown, ["sh", "-c", "cat /opt/more; ls /opt/pkg"]).stdout == b"more\n"
    # And over the sandbox's own files.
    client.sandbox.restore(box, snapshot_id=first.snapshot_id)
    check(client, box)


def test_an_image_of_it_has_it_too(daemon: Any, client: Any, image: str) -> None:
    snapshot = client.snapshot.create(installed(daemon, image)).snapshot_id
    made = client.snapshot.promote(snapshot).image_id
    check(client, client.sandbox.create(made).sandbox_id)


def test_it_outlives_suspension_daemons_and_the_container(
    new_daemon: Callable[[], Any], dockerd: Any, image: str
) -> None:
    daemon = new_daemon()
    daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none")
    with daemon.connect() as client:
        own = client.image.create("test/old:1", provider="docker").image_id
        box = installed(daemon, own)
        client.sandbox.suspend(box)
        client.sandbox.resume(box)
        check(client, box)
    daemon.stop()
    daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none")
    with daemon.connect() as client:
        check(client, box)
        with APIClient(dockerd.host) as engine:
            engine.kill(f"sandbox-{box}", signal.SIGKILL)
        until(lambda: client.sandbox.get(box).status in ("failed", "lost"), patient(60))
        client.sandbox.resume(box)
        check(client, box)
        client.sandbox.terminate(box)


def test_what_is_refused_says_why(daemon: Any, client: Any, image: str, tmp_path: Any) -> None:
    done = daemon.cli("create", image, "--writable-root", "--disk", "1G")
    assert done.returncode == 1
    assert b"leave out --disk, or --writable-root" in done.stderr
    box = client.sandbox.create(image, writable_root=True).sandbox_id
    assert "exact" in refused("not_supported", client.sandbox.update, box, disk_bytes=1 << 30).message
    refused("invalid", client.sandbox.create, image, writable_root=True, read_only=True)
    local = client.image.create(str(tmp_path)).image_id
    assert "programs of the host" in refused("not_supported", client.sandbox.create, local, writable_root=True).message
    other = client.sandbox.create(image, writable_root=True).sandbox_id
    assert "workspace_only" in refused("not_supported", client.branch.merge, [box, other]).message
    for one in (box, other):
        client.sandbox.exec(one, ["sh", "-c", "mkdir -p /opt; echo x >/opt/x; echo $HOSTNAME >/workspace/$HOSTNAME"])
    done = daemon.cli("branch", "merge", box, other, "--workspace-only")
    assert done.returncode == 0, done.stderr.decode()
    merged = done.stdout.decode().strip()
    assert client.sandbox.get(merged).spec.writable_root
    assert len(client.sandbox.exec(merged, ["ls", "/workspace"]).stdout.split()) == 2
    assert client.sandbox.exec(merged, ["ls", "/opt/x"]).exit_code != 0


def test_the_administrator_may_forbid_it_and_older_sandboxes_keep_theirs(
    new_daemon: Callable[[], Any], dockerd: Any, image: str
) -> None:
    daemon = new_daemon()
    daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none")
    with daemon.connect() as client:
        own = client.image.create("test/old:1", provider="docker").image_id
        box = installed(daemon, own)
        snapshot = client.snapshot.create(box).snapshot_id
        client.sandbox.suspend(box)
    daemon.stop()
    daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none", SANDBOX_DOCKER_WRITABLE_ROOT="0")
    with daemon.connect() as client, APIClient(dockerd.host) as engine:
        client.sandbox.resume(box)
        containers = engine.containers(all=True)
        for line in (f"create {own} --writable-root", f"fork {box} --count 2", f"snapshot restore {snapshot}"):
            done = daemon.cli(*line.split())
            assert done.returncode == 1, line
            assert b"as the administrator set SANDBOX_DOCKER_WRITABLE_ROOT" in done.stderr, line
            assert b"`snapshot promote`" in done.stderr, line
        assert [one["Id"] for one in engine.containers(all=True)] == [one["Id"] for one in containers]
        assert [one.sandbox_id for one in client.sandbox.list(all=True).sandboxes] == [box]
        client.sandbox.restore(box, snapshot_id=snapshot)
        check(client, box)
        [container] = [name for one in engine.containers() for name in one["Names"] if box in name]
        engine.kill(container.removeprefix("/"), signal.SIGKILL)
        until(lambda: client.sandbox.get(box).status in ("failed", "lost"), patient(60))
        client.sandbox.resume(box)
        check(client, box)
        promoted = client.sandbox.create(client.snapshot.promote(snapshot).image_id).sandbox_id
        check(client, promoted)
        assert b"Read-only" in client.sandbox.exec(promoted, ["sh", "-c", "echo x >/usr/x"]).stderr
        for one in (box, promoted):
            client.sandbox.terminate(one)


def test_root_has_no_more_capabilities_than_it_needs(daemon: Any, client: Any, image: str) -> None:
    box = client.sandbox.create(image, writable_root=True).sandbox_id
    status = client.sandbox.exec(box, ["cat", "/proc/self/status"]).stdout.decode()
    [effective] = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    assert int(effective, 16) == sum(1 << number for number in (0, 1, 3, 4, 6, 7))
    assert any("CHOWN" in note for note in client.sandbox.get(box).isolation.notes)
    other = client.sandbox.create(image, writable_root=True, user="1000:1000").sandbox_id
    status = client.sandbox.exec(other, ["cat", "/proc/self/status"]).stdout.decode()
    assert "CapEff:\t0000000000000000" in status
