"""Quotas of owners, met by ordinary users on a real daemon; each test has a user of its own."""

import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.support.expect import until
from tests.support.inside import inside
from tests.support.users import as_client

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError, SetupError
from sandkeep.settings.daemon import QUOTA, QUOTAS
from sandkeepd.sandboxes.output_limit import OutputLimit
from sandkeepd.sandboxes.output_times import Mark, OutputTimes

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("bwrap")]

MIB = 1024**2
LIMITS = "sandboxes=3,memory=256M,disk=40M,images=150K,snapshots=150K,checkpoints=1K,artifacts=1K,journals=1M,calls=3"
FIRST_UID = 41_000
USERS = count(FIRST_UID)


@pytest.fixture(scope="module")
def daemon(places: str) -> Iterator[RunningDaemon]:
    """A daemon with small quotas. One user has a larger one."""
    quota = f"{LIMITS}; uid:40999: sandboxes=4"
    with daemon_in(places, SANDKEEP_QUOTA=quota, SANDKEEP_MEMORY_LIMIT="16M") as made:
        made.start()
        yield made


@pytest.fixture
def uid() -> int:
    return next(USERS)


@pytest.fixture
def folder(places: str) -> str:
    """A directory of 100 KB that cannot be compressed, which every user can read."""
    made = Path(tempfile.mkdtemp(dir=places))
    made.chmod(0o755)
    (made / "data").write_bytes(os.urandom(100_000))
    (made / "data").chmod(0o644)
    return str(made)


def refused(call: Callable[[], Any]) -> tuple[str, dict[str, Any], str]:
    """The code, the data and the message of an error."""
    try:
        call()
    except SandkeepError as error:
        return error.code, error.data, error.message
    raise AssertionError("it was not refused")


def used(client: Any, quota: str, owner: str | None = None) -> int:
    return next(q.used for q in client.quota.get(owner=owner).quotas if q.quota == quota)


def test_creates_at_once_stay_within_the_quota_together(daemon: RunningDaemon, uid: int, folder: str) -> None:
    def work(client: Any) -> Any:
        image = client.image.create(folder).image_id
        outcomes: list[str] = []

        def create() -> None:
            with connect(daemon.socket) as own:
                try:
                    outcomes.append(own.sandbox.create(image).sandbox_id)
                except SandkeepError as error:
                    outcomes.append(error.data["quota"])

        for _ in range(2):  # at most three calls at a time
            threads = [threading.Thread(target=create) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        made = [one for one in outcomes if one not in QUOTAS]
        code, data, message = refused(lambda: client.sandbox.fork(made[0]))
        client.sandbox.terminate(made[0])
        two = refused(lambda: client.sandbox.fork(made[1], count=2))[0]
        left = used(client, "sandboxes")
        client.sandbox.fork(made[1])
        return sorted(outcomes), made, (code, data, message), two, left, used(client, "sandboxes")

    outcomes, made, (code, data, message), two, left, after = as_client(daemon, uid, work)
    assert outcomes == ["sandboxes"] * 3 + sorted(made)
    assert code == two == "quota_exceeded"
    assert data == {"quota": "sandboxes", "owner": f"uid:{uid}", "used": 3, "limit": 3}
    assert "sandkeep rm" in message
    assert (left, after) == (2, 3)


def test_promised_memory(daemon: RunningDaemon, uid: int, folder: str) -> None:
    def work(client: Any) -> Any:
        image = client.image.create(folder).image_id
        first = client.sandbox.create(image, memory_bytes=200 * MIB).sandbox_id
        code, data, _ = refused(lambda: client.sandbox.create(image, memory_bytes=57 * MIB))
        small = client.sandbox.create(image, memory_bytes=56 * MIB).sandbox_id
        full = used(client, "memory")
        client.sandbox.terminate(first)
        client.sandbox.create(image, memory_bytes=200 * MIB)
        client.sandbox.terminate(small)
        return code, data["quota"], full, used(client, "memory")

    assert as_client(daemon, uid, work) == ("quota_exceeded", "memory", 256 * MIB, 200 * MIB)


def test_artifacts(daemon: RunningDaemon, uid: int, folder: str) -> None:
    def work(client: Any) -> tuple[str, str, int]:
        box = client.sandbox.create(client.image.create(folder).image_id).sandbox_id
        client.sandbox.write_file(box, path="f", data=b"x" * 600)
        codes = []
        for _ in range(2):
            try:
                codes.append(client.artifact.export(box, "f").status)
            except SandkeepError as error:
                codes.append(error.code)
        client.sandbox.terminate(box)
        return codes[0], codes[1], used(client, "artifacts")

    assert as_client(daemon, uid, work) == ("ready", "disk_limit", 600)
    with daemon.connect() as client:  # of root, who is exempt
        assert work(client) == ("ready", "ready", 1200)


def test_promised_disks(daemon: RunningDaemon, uid: int, folder: str) -> None:
    def work(client: Any) -> Any:
        image = client.image.create(folder).image_id
        first = client.sandbox.create(image, disk_bytes=30 * MIB).sandbox_id
        code, data, _ = refused(lambda: client.sandbox.fork(first))
        client.sandbox.terminate(first)
        return code, data["quota"], used(client, "disk")

    assert as_client(daemon, uid, work) == ("quota_exceeded", "disk", 0)


def test_an_image_that_no_quota_allows_is_not_even_copied(daemon: RunningDaemon, uid: int, folder: str) -> None:
    with open(f"{folder}/data", "r+b") as file:
        file.truncate(1 << 39)
    code, _, message = as_client(daemon, uid, lambda client: refused(lambda: client.image.create(folder)))
    assert code == "quota_exceeded"
    assert "0 B of 150 KB used, 512 GB more asked for" in message


def test_images(daemon: RunningDaemon, uid: int, folder: str) -> None:
    images = Path(daemon.state_dir, "images")

    def work(client: Any) -> Any:
        first = client.image.create(folder).image_id
        before = used(client, "images")
        code, _, message = refused(lambda: client.image.create(folder, clean=True))
        same = client.image.create(folder).image_id
        kept = used(client, "images")
        client.image.remove(first)
        again = client.image.create(folder, clean=True).image_id
        return code, message, same == first, before, kept, again

    existed = set(os.listdir(images)) if images.exists() else set()
    code, message, same, before, kept, again = as_client(daemon, uid, work)
    assert code == "quota_exceeded"
    assert "sandkeep image rm" in message
    assert same
    assert before == kept >= 100_000
    assert set(os.listdir(images)) - existed == {again}


def test_snapshots(daemon: RunningDaemon, uid: int, folder: str) -> None:
    def work(client: Any) -> Any:
        box = client.sandbox.create(client.image.create(folder).image_id).sandbox_id
        first = client.snapshot.create(box)
        code, _, message = refused(lambda: client.snapshot.create(box))
        promoted = refused(lambda: client.snapshot.promote(first.snapshot_id))[2]
        kept = used(client, "snapshots")
        client.snapshot.delete(first.snapshot_id)
        none = used(client, "snapshots")
        second = client.snapshot.create(box)
        return code, message, promoted, first.size_bytes, kept, none, second.status

    code, message, promoted, size, kept, none, status = as_client(daemon, uid, work)
    assert code == "quota_exceeded"
    assert "sandkeep snapshot rm" in message
    assert "quota of images" in promoted
    assert (kept, none, status) == (size, 0, "ready")


@pytest.mark.needs("runsc")
def test_a_checkpoint_that_does_not_fit_leaves_the_sandbox_running(
    daemon: RunningDaemon, uid: int, folder: str
) -> None:
    def work(client: Any) -> Any:
        image = client.image.create(folder, provider="gvisor").image_id
        box = client.sandbox.create(image, memory_bytes=200 * MIB).sandbox_id
        code, _, message = refused(lambda: client.checkpoint.create(box))
        kept = [checkpoint.status for checkpoint in client.checkpoint.list(all=True).checkpoints]
        return code, message, kept, used(client, "checkpoints"), client.sandbox.exec(box, "true").exit_code

    code, message, kept, left, exit_code = as_client(daemon, uid, work)
    assert (code, kept, left, exit_code) == ("quota_exceeded", ["failed"], 0, 0)
    assert "sandkeep checkpoint rm" in message


def test_pending_calls(daemon: RunningDaemon, uid: int, folder: str) -> None:
    def work(client: Any) -> Any:
        box = client.sandbox.create(client.image.create(folder).image_id).sandbox_id
        client.process.launch(box, command=["cat"], name="job", stdin=True)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(daemon.socket)
            params = {"sandbox_id": box, "name": "job"}
            for number in range(3):
                call = {"jsonrpc": "2.0", "id": number, "method": "process.wait", "params": params}
                waiting.sendall(json.dumps(call).encode() + b"\n")
            while used(client, "calls") < 3:
                pass
            code, data, _ = refused(lambda: client.sandbox.exec(box, "true"))
        while used(client, "calls"):
            pass
        return code, data["quota"], client.sandbox.exec(box, "true").exit_code

    assert as_client(daemon, uid, work) == ("quota_exceeded", "calls", 0)


def test_a_restart_keeps_the_counts_and_drops_what_exceeds_the_journals(
    new_daemon: Callable[[], RunningDaemon], uid: int, folder: str
) -> None:
    daemon = new_daemon()
    daemon.env["SANDKEEP_QUOTA"] = LIMITS
    daemon.start()

    def work(client: Any) -> Any:
        image = client.image.create(folder).image_id
        first, second = (client.sandbox.create(image, memory_bytes=64 * MIB).sandbox_id for _ in range(2))
        client.snapshot.create(first)
        for _ in range(2):
            client.sandbox.exec(first, "head -c 700000 /dev/zero")
        code, data, _ = refused(lambda: client.sandbox.exec(second, "true"))
        client.sandbox.terminate(first)
        return second, code, data["quota"], client.quota.get()

    second, code, quota, before = as_client(daemon, uid, work)
    assert (code, quota) == ("quota_exceeded", "journals")
    daemon.stop()
    daemon.start()

    until(lambda: "output dropped" in daemon.said())  # before its first look a daemon knows of no journals

    def after(client: Any) -> Any:
        assert used(client, "journals") < MIB
        return client.quota.get(), client.sandbox.exec(second, "true").exit_code

    now, exit_code = as_client(daemon, uid, after)
    assert exit_code == 0
    exact = ("sandboxes", "memory", "disk", "images", "snapshots", "checkpoints")
    assert [q for q in now.quotas if q.quota in exact] == [q for q in before.quotas if q.quota in exact]
    assert {q.quota: q.used for q in now.quotas}["memory"] == 64 * MIB


def test_administrators_see_all_and_are_not_limited(daemon: RunningDaemon, uid: int, folder: str) -> None:
    code, data, _ = as_client(daemon, uid, lambda client: refused(lambda: client.quota.get(owner="uid:0")))
    assert (code, data["field"]) == ("permission_denied", "owner")
    assert not as_client(daemon, uid, lambda client: client.quota.get(owner=f"uid:{uid}")).exempt
    image = as_client(daemon, uid, lambda client: client.image.create(folder)).image_id
    with daemon.connect() as root:
        made = [root.sandbox.create(image).sandbox_id for _ in range(4)]
        mine, theirs = root.quota.get(), root.quota.get(owner="uid:40999")
        assert used(root, "images", f"uid:{uid}") >= 100_000
        for one in made:
            root.sandbox.terminate(one)
    assert mine.exempt
    assert mine.quotas[0].used >= 4 > mine.quotas[0].limit
    assert (theirs.exempt, theirs.quotas[0].limit, theirs.quotas[0].used) == (False, 4, 0)


async def test_an_administrator_can_be_limited(tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKEEP_QUOTA", "sandboxes=1")
    monkeypatch.setenv("SANDKEEP_QUOTA_ADMIN", "1")
    async with inside(str(tmp_path / "state")) as daemon:
        image = await daemon.image(folder)
        box = (await daemon.call("sandbox.create", image_id=image)).sandbox_id
        with pytest.raises(SandkeepError, match="quota of sandboxes"):
            await daemon.call("sandbox.create", image_id=image)
        await daemon.call("sandbox.exec", sandbox_id=box, command="head -c 100000 /dev/zero")
        assert daemon.core.quotas.used("uid:0", "journals") == 100_000
        limit = OutputLimit(daemon.core)
        await limit.trim()
        before = daemon.core.quotas.used("uid:0", "journals")
        assert before >= 100_000
        OutputTimes(daemon.core.log.directory).append(box, "prc_1", [Mark(1, number, 0) for number in range(1000)])
        await daemon.call("sandbox.exec", sandbox_id=box, command="true")
        await limit.trim()
        assert daemon.core.quotas.used("uid:0", "journals") >= before + 24_000  # times of output count
        await daemon.call("sandbox.terminate", sandbox_id=box)
        assert daemon.core.quotas.used("uid:0", "sandboxes") == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lots", "'lots' is no quota"),
        ("sandboxes", "give sandboxes a whole number"),
        ("sandboxes=-1", "give sandboxes a whole number"),
        ("sandboxes=1.5", "give sandboxes a whole number"),
        ("memory=many", "give a size such as"),
        ("memory=64G,,disk=1G", "'' is no quota"),
        ("alice: sandboxes=1", "'alice' is no owner"),
        ("uid:1000:", "'' is no quota"),
    ],
)
def test_garbage_is_refused(text: str, why: str) -> None:
    with pytest.raises(SetupError, match=why):
        QUOTA({"SANDKEEP_QUOTA": text})


def test_what_is_not_set_keeps_its_default() -> None:
    assert QUOTA({}) == {"": QUOTAS}
    set_to = QUOTA({"SANDKEEP_QUOTA": "memory=1.5G, calls=unlimited; uid:7: disk=1T;"})
    assert set_to == {"": {**QUOTAS, "memory": 3 * 2**29, "calls": None}, "uid:7": {"disk": 2**40}}
