"""Attacks on a shared sandbox: by its owner in the middle of a hand-over, and by writers to the bucket."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.conftest import Make
from tests.support.changed import program
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.sharing import ID, Cluster

from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("bwrap", "root")

SLOW = """
import os, trio
import sandkeepd.sharing.handover as handover
verify = handover.Handover._verify
async def slow(self, *given):
    await verify(self, *given)
    open({flag!r}, "w").close()
    while os.path.exists({flag!r}):
        await trio.sleep(0.02)
handover.Handover._verify = slow
"""
"""A hand-over that has saved the sandbox makes a file, and goes on when that is removed."""

LATE = """
import os, trio
from sandkeepd.locks.publish import Publisher
publish = Publisher.publish
async def slow(self, sandbox_id):
    await publish(self, sandbox_id)
    if sandbox_id in self._core.leaving:
        open({flag!r}, "w").close()
        while os.path.exists({flag!r}):
            await trio.sleep(0.02)
Publisher.publish = slow
"""
"""The same of one that has told other daemons of it."""


class Held:
    """A group whose first daemon stands still in the middle of a hand-over that the second has asked for."""

    def __init__(self, group: Cluster, flag: Path) -> None:
        self.group, self.flag = group, flag
        self._pool = ThreadPoolExecutor(2)
        self.outcome: Any = self._pool.submit(self._attach)
        until(flag.exists)

    def _attach(self) -> Any:
        try:
            return self.group.attach(1, timeout_s=patient(40))
        except SandkeepError as error:
            return error.code

    def at_once(self, call: Any) -> Any:
        """Begin a call; it is at the daemon when this returns."""
        future = self._pool.submit(call)
        time.sleep(0.3)
        return future

    def go_on(self) -> Any:
        os.unlink(self.flag)
        return self.outcome.result(patient(60))


@pytest.fixture(params=[SLOW, LATE], ids=["saved", "told"])
def held(request: Any, new_daemon: Any, shared: dict[str, str], source: Path, tmp_path: Path) -> Held:
    flag = tmp_path / "flag"
    group = Cluster(new_daemon, 2, shared, source)
    group.daemons[0].program = program({}, request.param.format(flag=str(flag)))
    group.start()
    group.create()
    group.sh(0, "echo old >file")
    return Held(group, flag)


def test_what_is_being_handed_over_stands_still(held: Held) -> None:
    with held.group.daemons[0].connect() as client:
        error = refused("not_ready", client.sandbox.resume, ID)
        assert "handed over" in error.message
        refused("not_ready", client.sandbox.exec, ID, "echo new >file")
    held.go_on()
    assert held.group.sh(1, "cat file") == "old\n"
    assert held.group.standing() == [1]


def test_what_is_terminated_just_before_it_is_given_up_is_given_up(held: Held) -> None:
    """Or ends for all: either way its owner is told which."""
    with held.group.daemons[0].connect() as client:
        made = client.sandbox.get(ID)
        ended = held.at_once(lambda: client.sandbox.terminate(ID))
        outcome = held.go_on()
        reason = ended.result(patient(60)).terminated_reason
    if reason == "requested":
        assert outcome in ("not_found", "conflict", "lock_timeout")
        assert held.group.standing() == []
        with held.group.daemons[1].connect() as client:
            refused("not_found", client.sandbox.attach_shared, ID, held.group.token, timeout_s=5)
    else:
        assert reason == "handed_over"
        until(lambda: held.group.get(0, made.sandbox_id).moved_to is not None)
        assert held.group.standing() == [1]


def test_who_lost_it_to_another_resumes_nothing(cluster: Make) -> None:
    group = cluster()
    made = group.create(enable_handoff=False)
    with group.daemons[0].connect() as client:
        client.snapshot.create(ID)
        group.rob(1)
        until(lambda: group.get(0, made.sandbox_id).moved_to is not None)
        error = refused("not_ready", client.sandbox.resume, made.sandbox_id)
        assert error.data["moved_to"] == group.get(0, made.sandbox_id).moved_to
    assert group.standing() == [1]


# -- who writes to the bucket -----------------------------------------------------------------------------------------


def spoil(group: Cluster, **changes: Any) -> None:
    """Change the metadata of a sandbox that nobody has: keys of `shared`, or of its `spec`."""
    path = Path(group.daemons[0].env["SANDBOX_METADATA_MOUNT_PATH"], "sandboxes", ID, "sandkeep.json")
    document = msgspec.json.decode(path.read_bytes())
    for key, value in changes.items():
        part = document["shared"] if key in document["shared"] else document["shared"]["spec"]
        part[key] = value
    path.write_bytes(msgspec.json.encode(document))


@pytest.fixture
def left(cluster: Make) -> Cluster:
    """A sandbox that was given up."""
    group = cluster()
    group.create()
    with group.daemons[0].connect() as client:
        client.sandbox.detach(ID)
    return group


@pytest.mark.parametrize(
    "changes",
    [
        {"isolation": "none"},
        {"network": "host"},
        {"volumes": [{"source": "/etc", "target": "/workspace/etc"}]},
    ],
)
def test_who_writes_to_the_bucket_is_no_administrator_here(left: Cluster, changes: Any) -> None:
    spoil(left, **changes)
    with left.daemons[1].connect() as client:
        error = refused("permission_denied", client.sandbox.attach_shared, ID, left.token)
    assert "allow_host" in error.message
    assert left.standing() == []


def test_an_administrator_may_accept_it(left: Cluster) -> None:
    spoil(left, network="host")
    assert left.attach(1, allow_host=True).spec.network == "host"


@pytest.mark.parametrize(
    ("spoilt", "code"),
    [
        ({"gcs_sandbox_id": "other"}, "snapshot_corrupt"),
        ({"token_sha256": "\N{SNOWMAN}"}, "permission_denied"),
        ({"token_sha256": ""}, "permission_denied"),
    ],
)
def test_metadata_that_was_spoilt_is_told(left: Cluster, spoilt: dict[str, Any], code: str) -> None:
    path = Path(left.daemons[0].env["SANDBOX_METADATA_MOUNT_PATH"], "sandboxes", ID, "sandkeep.json")
    real = msgspec.json.decode(path.read_bytes())["shared"]["spec"]["shared"]
    spoil(left, shared={**real, **spoilt})
    with left.daemons[1].connect() as client:
        refused(code, client.sandbox.attach_shared, ID, left.token)
    assert left.standing() == []


@pytest.mark.needs("runsc")
def test_no_directory_of_this_host_becomes_an_image(cluster: Make, source: Path) -> None:
    group = cluster(provider="gvisor")
    group.create()
    with group.daemons[0].connect() as client:
        client.sandbox.detach(ID)
    digest = "sha256:" + "1" * 64
    spoil(group, image={"provider": "gvisor", "digest": digest, "path": None, "source": str(source)})
    with group.daemons[1].connect() as client:
        refused("snapshot_corrupt", client.sandbox.attach_shared, ID, group.token)
        assert client.image.list().images == []
