"""Every operation on a session in every state: it is made ready first, with the files that it had."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused, until

from sandkeep import transfer
from sandkeep.protocol.methods import METHODS

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.needs("root")]


def copy_out(client: Any, name: str) -> None:
    with client.with_descriptors("sandbox.copy_out", name, path="file") as handed:
        [pipe] = handed.receive()
        with open(pipe, "rb") as archive:
            assert b"mine\n" in archive.read()


def copy_in(client: Any, name: str) -> None:
    transfer.copy_in(client, "/etc/passwd", name, "copied")


USES: dict[str, Callable[[Any, str], object]] = {
    "sandbox.exec": lambda client, name: client.sandbox.exec(name, "cat file"),
    "process.launch": lambda client, name: client.process.launch(name, ["true"]),
    "sandbox.read_file": lambda client, name: client.sandbox.read_file(name, path="file"),
    "sandbox.write_file": lambda client, name: client.sandbox.write_file(name, path="other", data=b""),
    "sandbox.list_dir": lambda client, name: client.sandbox.list_dir(name, path="."),
    "sandbox.copy_out": copy_out,
    "sandbox.copy_in": copy_in,
    "sandbox.fork": lambda client, name: client.sandbox.fork(name),
    "sandbox.diff": lambda client, name: client.sandbox.diff(name),
    "branch.diff": lambda client, name: client.branch.diff(name),
    "snapshot.create": lambda client, name: client.snapshot.create(name),
    "artifact.export": lambda client, name: client.artifact.export(name, "file"),
    "session.ensure": lambda client, name: client.session.ensure(id=name),
}
"""Every method that makes a session ready first, and a call of it."""

ELSEWHERE = {"checkpoint.create"}
"""For gVisor."""


def ready(client: Any, name: str) -> None:
    """It is, already."""


def suspended(client: Any, name: str) -> None:
    client.sandbox.suspend(name)


def terminated(client: Any, name: str) -> None:
    assert client.session.close(name).status == "terminated"


def expired(client: Any, name: str) -> None:
    client.snapshot.create(name)
    client.session.close(name)
    client.session.ensure(id=name, idle_timeout_s=0.5)
    until(lambda: client.session.get(name).status == "expired")
    client.session.ensure(id=name, idle_timeout_s=0)
    client.session.close(name)


def ended_by_order(client: Any, name: str) -> None:
    client.snapshot.create(name)
    client.sandbox.terminate(name)
    assert client.session.get(name).status == "terminated"


def failed(client: Any, name: str) -> None:
    """Somebody kills its first process. What is in its files is saved when it is used again."""
    events = client.sandbox.history(name).events
    [created] = [event for event in events if event.type == "sandbox.created"]
    os.kill(created.data["handle"]["first"]["pid"], signal.SIGKILL)
    until(lambda: client.session.get(name).status == "failed")


STATES = (ready, suspended, terminated, expired, ended_by_order, failed)


def test_each_method_that_revives_is_here() -> None:
    assert {*USES, *ELSEWHERE} == {name for name, row in METHODS.items() if row.revives} | {"session.ensure"}


@pytest.mark.parametrize("method", USES)
@pytest.mark.parametrize("reach", STATES, ids=lambda reach: reach.__name__)
def test_it_is_made_ready_first(client: Any, image: str, reach: Callable[[Any, str], None], method: str) -> None:
    name = f"{reach.__name__}-{method}".replace("_", "-")
    client.session.ensure(id=name, image=image)
    client.sandbox.exec(name, "echo mine >file")
    reach(client, name)
    USES[method](client, name)
    assert client.session.get(name).status == "ready"
    assert client.sandbox.exec(name, "cat file").stdout == b"mine\n"
    client.session.close(name, snapshot=False)
    for sandbox in client.sandbox.list().sandboxes:
        client.sandbox.terminate(sandbox.sandbox_id)


@pytest.mark.parametrize("reach", STATES, ids=lambda reach: reach.__name__)
def test_looking_brings_nothing_back(client: Any, image: str, reach: Callable[[Any, str], None]) -> None:
    name = f"look-{reach.__name__}".replace("_", "-")
    client.session.ensure(id=name, image=image)
    reach(client, name)
    before = client.session.get(name)
    client.session.heartbeat(name)
    client.sandbox.get(name)
    client.session.list(all=True)
    client.snapshot.list(sandbox_id=name)
    assert client.session.get(name).starts == before.starts
    client.session.close(name, snapshot=False)


def test_a_damaged_snapshot_is_told_and_only_fresh_gives_it_up(client: Any, image: str, shared_daemon: Any) -> None:
    client.session.ensure(id="damaged", image=image)
    client.sandbox.exec("damaged", "head -c 100000 /dev/urandom >file")
    [snapshot] = client.session.close("damaged").snapshot_ids
    [place] = client.snapshot.get(snapshot).places
    archive = Path(place.uri.removeprefix("file://"))
    archive.write_bytes(archive.read_bytes()[:-5000])
    for _ in range(2):
        refused("snapshot_corrupt", client.sandbox.exec, "damaged", "true")
        session = client.session.get("damaged")
        assert (session.status, session.error_code) == ("failed", "snapshot_corrupt")
    refused("snapshot_corrupt", client.session.ensure, id="damaged")
    fresh = client.session.ensure(id="damaged", fresh=True)
    assert (fresh.created, fresh.restored_from) == (True, None)
    assert client.sandbox.list_dir("damaged", path=".").entries == []
