"""A real daemon is asked to forget: no file of its state directory holds the words any more, and everything goes on."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.patience import patient

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError, StateError
from sandkeep.ids import new_id

pytestmark = pytest.mark.needs("bwrap")

MARKER = "xyzzy-4711"


@pytest.fixture
def client(running_daemon: RunningDaemon) -> Iterator[Any]:
    with running_daemon.connect() as client:
        yield client


@pytest.fixture
def image(client: Any, tmp_path: Path) -> str:
    tmp_path.chmod(0o755)
    return str(client.image.create(str(tmp_path)).image_id)


def with_marker(daemon: RunningDaemon) -> list[str]:
    """The files of the state directory that hold it, found by another process than the daemon."""
    command = ["grep", "-rlaF", "--devices=skip", MARKER, daemon.state_dir]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def positions(client: Any) -> list[int]:
    """The events that hold it."""
    return [event.position for event in client.event.list(limit=1000).events if MARKER in str(event.data)]


def test_a_command_that_ended_in_a_sandbox_that_runs(running_daemon: RunningDaemon, client: Any, image: str) -> None:
    box = client.sandbox.create(image, env={"KEPT": "value"}, working_dir="/tmp").sandbox_id
    command_id = new_id("cmd")
    command = ["sh", "-c", f"true {MARKER}; echo x >>ran; echo out; pwd; exit 4"]
    first = client.sandbox.exec(box, command, command_id=command_id)
    client.process.launch(box, name="job", command=["sh", "-c", f": {MARKER}; exit 3"])
    client.process.wait(box, "job")
    client.process.launch(box, name="lasting", command=["sh", "-c", "read line; exit $line"], stdin=True)
    client.sandbox.write_file(box, path=f"/tmp/{MARKER}", data=b"", parents=True)
    client.store.rebuild()
    found = positions(client)
    assert len(found) == 3
    assert any(name.endswith("metadata.json") for name in with_marker(running_daemon))
    for position in found:
        assert client.store.redact(position).places == ["log"]
    assert with_marker(running_daemon) == []
    assert positions(client) == []

    for _ in range(2):  # by this daemon, and by one that takes over
        assert client.sandbox.exec(box, command, command_id=command_id) == first
        with pytest.raises(StateError):
            client.sandbox.exec(box, "echo another", command_id=command_id)
        assert client.process.get(box, "job").command == ["[redacted]"]
        assert client.process.get(box, "job").exit_code == 3
        done = client.sandbox.exec(box, 'echo "$KEPT"; pwd')
        assert done.stdout == b"value\n/tmp\n"
        assert client.store.verify().problems == []
        running_daemon.kill()
        running_daemon.start()
    client.process.write_stdin(box, "lasting", data=b"7\n")
    assert client.process.wait(box, "lasting").exit_code == 7
    assert with_marker(running_daemon) == []


def test_what_a_sandbox_was_asked_to_be(running_daemon: RunningDaemon, client: Any, image: str) -> None:
    box = client.sandbox.create(image, env={"A": MARKER}, labels={"word": MARKER}).sandbox_id
    client.sandbox.exec(box, "true")
    (position,) = positions(client)
    with pytest.raises(StateError) as refused:
        client.store.redact(position)
    assert refused.value.code == "in_use"
    assert client.sandbox.exec(box, 'echo "$A"').stdout == f"{MARKER}\n".encode()
    client.sandbox.terminate(box)
    client.store.redact(position)
    view = client.sandbox.get(box)
    assert (view.status, view.spec.env, view.image_id) == ("stopped", {}, image)
    left = [name for name in with_marker(running_daemon) if "/out/p/" not in name]  # what it printed is no event
    assert left == []
    assert client.store.verify().problems == []


def test_an_image(running_daemon: RunningDaemon, client: Any, tmp_path: Path) -> None:
    source = tmp_path / MARKER
    source.mkdir()
    image = client.image.create(str(source), labels={"word": MARKER}).image_id
    box = client.sandbox.create(image).sandbox_id
    (position,) = positions(client)
    client.store.redact(position)
    assert client.image.get(image).source == "[redacted]"
    assert client.sandbox.exec(box, "exit 3").exit_code == 3
    other = client.sandbox.create(image).sandbox_id
    assert client.sandbox.exec(other, "exit 3").exit_code == 3
    assert with_marker(running_daemon) == []


def test_a_daemon_that_starts_finishes_what_another_had_begun(
    new_daemon: Callable[[], RunningDaemon], tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    daemon = new_daemon()
    daemon.start(SANDKEEP_FAILPOINT="redact.changed")
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(str(tmp_path)).image_id).sandbox_id
        client.sandbox.exec(box, f": {MARKER}; exit 3")
        (position,) = positions(client)
    with connect(daemon.socket, patience_s=0) as client, pytest.raises(SandkeepError):
        client.store.redact(position)
    assert daemon.process is not None
    daemon.process.wait(patient(60))
    daemon.start()
    with daemon.connect() as client:
        page = client.event.list()
        while "log.redacted" not in [event.type for event in page.events]:
            page = client.event.list(page.next, wait_s=10)
        while with_marker(daemon):  # a document is written after that
            client.daemon.ping()
        assert client.store.verify().problems == []


def test_what_is_not_there_or_nobody_s(running_daemon: RunningDaemon, client: Any) -> None:
    with pytest.raises(SandkeepError) as refused:
        client.store.redact(10**9)
    assert refused.value.code == "not_found"
    said = running_daemon.cli("store", "redact", "1")
    assert (said.returncode, b"has no data of a caller" in said.stderr) == (1, True)
