"""Shared sandboxes: made by one daemon, attached by another, handed over, detached, and never at two."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.conftest import Make
from tests.support.counting import counting
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.sharing import ID, metadata

pytestmark = pytest.mark.needs("bwrap", "root")

PLACES = ["shared", "in_gcs", "in_s3"]


@pytest.mark.parametrize("place", [PLACES[0], *(pytest.param(p, marks=pytest.mark.needs(p[3:])) for p in PLACES[1:])])
def test_created_attached_detached_and_attached_again(request: Any, cluster: Make, place: str) -> None:
    group = cluster(settings=request.getfixturevalue(place))
    made = group.create(labels={"team": "blue"}, command_id="once")
    assert len(made.sandbox_token) == 32
    with group.daemons[0].connect() as client:  # a repeated command tells the token again
        again = client.sandbox.create(
            group.image, gcs_sandbox_id=ID, enable_handoff=True, labels={"team": "blue"}, command_id="once"
        )
    assert (again.sandbox_id, again.sandbox_token) == (made.sandbox_id, made.sandbox_token)
    group.sh(0, "echo mine >mine")
    there = group.attach(1)
    assert (there.name, there.spec.labels, there.sandbox_token) == (ID, {"team": "blue"}, None)
    assert group.sh(1, "cat file mine; echo more >more") == "from the image\nmine\n"
    until(lambda: group.get(0, made.sandbox_id).moved_to is not None)
    until(lambda: group.get(0, made.sandbox_id).status == "stopped")
    left = group.get(0, made.sandbox_id)
    assert left.terminated_reason == "handed_over"
    assert left.moved_to[0].startswith("tls://127.0.0.1:")
    with group.daemons[0].connect() as client:
        error = refused("not_ready", client.sandbox.exec, made.sandbox_id, "true")
    assert (error.data["moved_to"], error.data["gcs_sandbox_id"]) == (left.moved_to, ID)
    with group.daemons[1].connect() as client:
        assert client.sandbox.detach(ID).terminated_reason == "detached"
        assert client.sandbox.detach(there.sandbox_id).status == "stopped"
    assert group.standing() == []
    group.attach(0, timeout_s=0)
    assert group.sh(0, "cat more") == "more\n"


def test_the_events_are_in_the_order_of_a_handover(cluster: Make) -> None:
    group = cluster()
    here = group.create().sandbox_id
    there = group.attach(1).sandbox_id
    until(lambda: "sandbox.terminated" in group.history(0, here))
    assert [kind for kind in group.history(0, here) if kind != "sandbox.moved"] == [
        "lock.acquire_requested", "lock.acquired", "sandbox.create_requested", "sandbox.created",
        "lock.handover_requested", "sandbox.suspend_requested", "sandbox.suspended", "snapshot.create_requested",
        "snapshot.stored", "lock.release_requested", "lock.released", "sandbox.terminate_requested",
        "sandbox.terminated",
    ]  # fmt: skip
    assert group.history(1, there) == [
        "lock.acquire_requested", "lock.acquired", "sandbox.create_requested", "sandbox.created",
    ]  # fmt: skip


@pytest.mark.needs("runsc")
@pytest.mark.parametrize(
    "place", [pytest.param("shared", marks=pytest.mark.soak), pytest.param("in_gcs", marks=pytest.mark.needs("gcs"))]
)
def test_processes_go_on_at_the_other_daemon(request: Any, cluster: Make, place: str) -> None:
    """Their memory moves, and the image with it, of which the other daemon has never heard."""
    group = cluster(provider="gvisor", settings=request.getfixturevalue(place))
    group.create()
    with group.daemons[0].connect() as client:
        client.process.launch(ID, counting("count", pause_s=0.05), name="counter")
    until(lambda: int(group.sh(0, "cat count || echo 0")) > 3)
    group.attach(1)
    with group.daemons[1].connect() as client:
        [counter] = client.process.list(ID).processes
    assert (counter.name, counter.status) == ("counter", "running")
    seen = int(group.sh(1, "cat count"))
    assert seen > 3
    until(lambda: int(group.sh(1, "cat count")) > seen)
    group.attach(0)  # and home again, where the image is
    assert int(group.sh(0, "cat count")) > seen


@pytest.mark.parametrize("missing", ["SANDBOX_LOCK_MOUNT_PATH", "SANDBOX_METADATA_MOUNT_PATH"])
def test_settings_are_checked_before_anything_is_done(
    cluster: Make, shared: dict[str, str], tmp_path: Path, missing: str
) -> None:
    group = cluster(1, settings={name: value for name, value in shared.items() if name != missing})
    with group.daemons[0].connect() as client:
        error = refused("not_configured", client.sandbox.create, group.image, gcs_sandbox_id=ID)
        assert error.data["setting"].startswith(missing.removesuffix("_MOUNT_PATH"))
        refused("not_configured", client.sandbox.attach_shared, ID, "0" * 32)
        assert client.sandbox.list(all=True).sandboxes == []
        assert client.lock.list(all=True).locks == []
        client.sandbox.create(group.image, name="ephemeral")
    assert [path for path in (tmp_path / "shared").rglob("*") if path.is_file()] == []


KNOWN = {
    "sandbox_id", "created_timestamp", "idle_timeout", "latest_sandbox_checkpoint", "enable_sandbox_checkpoint",
    "enable_sandbox_handoff", "enable_idle_timeout_auto_checkpoint",
}  # fmt: skip
"""The fields of cloud-run-sandbox's metadata: its reader fails at any other."""


@pytest.mark.needs("runsc")
def test_the_document_for_cloud_run_sandbox_has_its_keys_alone(cluster: Make, shared: dict[str, str]) -> None:
    group = cluster(1, provider="gvisor")
    group.create(idle_timeout_s=300)
    path = Path(shared["SANDBOX_METADATA_MOUNT_PATH"], "sandboxes", ID, "metadata.json")
    assert msgspec.json.decode(path.read_bytes())["latest_sandbox_checkpoint"] is None
    with group.daemons[0].connect() as client:
        client.sandbox.detach(ID)
    document = msgspec.json.decode(path.read_bytes())
    assert document.keys() == KNOWN
    assert document["latest_sandbox_checkpoint"].keys() == {"bucket", "path"}
    assert document["latest_sandbox_checkpoint"] == metadata(str(path.parents[2]))["latest_sandbox_checkpoint"]


@pytest.mark.parametrize(
    ("checkpoint", "code", "told"),
    [
        (None, "snapshot_missing", "never saved"),
        ({"bucket": "b", "path": "sandbox_checkpoints/ckpt_1760000000123456789"}, "not_supported", "ckpt_176"),
    ],
)
def test_documents_of_cloud_run_sandbox_are_read(
    cluster: Make, shared: dict[str, str], checkpoint: Any, code: str, told: str
) -> None:
    path = Path(shared["SANDBOX_METADATA_MOUNT_PATH"], "sandboxes", "sandbox-9a2c", "metadata.json")
    path.parent.mkdir(parents=True)
    document = dict.fromkeys(KNOWN, False) | {
        "sandbox_id": "sandbox-9a2c", "created_timestamp": 1760000000.123, "idle_timeout": 300,
        "latest_sandbox_checkpoint": checkpoint, "enable_sandbox_checkpoint": True,
    }  # fmt: skip
    path.write_bytes(msgspec.json.encode(document))
    group = cluster(1)
    with group.daemons[0].connect() as client:
        assert told in refused(code, client.sandbox.attach_shared, "sandbox-9a2c", "0" * 32).message
        assert client.lock.list(all=True).locks == []


@pytest.mark.needs("gcs")
def test_what_is_never_handed_over_needs_no_lock_bucket(cluster: Make, in_gcs: dict[str, str]) -> None:
    """Its lock is beside its metadata. Without `enable_checkpoint` it is required all the same."""
    group = cluster(2, settings={k: v for k, v in in_gcs.items() if "LOCK" not in k})
    group.create(enable_handoff=False, enable_checkpoint=True)
    group.sh(0, "echo mine >mine")
    with group.daemons[0].connect() as client:
        assert client.lock.list().locks[0].where == f"gs://{in_gcs['SANDBOX_METADATA_BUCKET']}"
        for options in ({}, {"enable_handoff": True, "enable_checkpoint": True}):
            error = refused("not_configured", client.sandbox.create, group.image, gcs_sandbox_id="other", **options)
            assert error.data["setting"] == "SANDBOX_LOCK_BUCKET"
        client.sandbox.detach(ID)
    group.attach(1)
    assert group.sh(1, "cat mine") == "mine\n"


@pytest.mark.parametrize("option", ["enable_handoff", "enable_checkpoint_at_idle", "enable_checkpoint"])
def test_what_is_saved_by_itself_needs_a_place_for_checkpoints(
    cluster: Make, shared: dict[str, str], option: str
) -> None:
    group = cluster(1, settings={k: v for k, v in shared.items() if "CHECKPOINT" not in k})
    with group.daemons[0].connect() as client:
        wanted = {"gcs_sandbox_id": ID, option: True}
        error = refused("not_configured", client.sandbox.create, group.image, **wanted)
        assert error.data["setting"] == "SANDBOX_CHECKPOINT_BUCKET"
        assert client.lock.list(all=True).locks == []
        refused("invalid", client.sandbox.create, group.image, **{option: True})
        client.sandbox.create(group.image, gcs_sandbox_id=ID)


def test_snapshots_of_a_shared_sandbox_need_a_shared_place(cluster: Make, shared: dict[str, str]) -> None:
    group = cluster(1, settings={k: v for k, v in shared.items() if "SNAPSHOT" not in k})
    with group.daemons[0].connect() as client:
        client.sandbox.create(group.image, gcs_sandbox_id=ID)
        plain = client.sandbox.create(group.image).sandbox_id
        assert refused("not_configured", client.snapshot.create, ID).data["setting"] == "FILESYSTEM_SNAPSHOT_BUCKET"
        client.snapshot.create(plain)
        refused("not_configured", client.sandbox.create, group.image, gcs_sandbox_id="other", enable_handoff=True)


def test_who_has_not_the_token_disturbs_nobody(cluster: Make) -> None:
    group = cluster()
    group.create()
    for token in ("0" * 32, group.token[:-1] + ("0" if group.token[-1] != "0" else "1"), group.token * 2):
        with group.daemons[1].connect() as client:
            refused("permission_denied", client.sandbox.attach_shared, ID, token)
            refused("permission_denied", client.sandbox.create, group.source and group.image, gcs_sandbox_id=ID) if (
                client.image.list().images
            ) else None
    with group.daemons[0].connect() as client:
        refused("permission_denied", client.sandbox.create, group.image, gcs_sandbox_id=ID)
        refused("permission_denied", client.sandbox.create, group.image, gcs_sandbox_id=ID, sandbox_token="0" * 32)
        [lock] = client.lock.list().locks
    assert lock.status == "held"
    assert "lock.handover_requested" not in group.history(0)
    with group.daemons[1].connect() as client:
        refused("not_found", client.sandbox.attach_shared, "sandbox-none", group.token)
        assert client.lock.list(all=True).locks == []
    document = metadata(group.daemons[0].env["SANDBOX_METADATA_MOUNT_PATH"])
    assert group.token not in str(document)


def test_without_handoff_it_is_not_given_up(cluster: Make) -> None:
    group = cluster()
    group.create(enable_handoff=False)
    with group.daemons[1].connect() as client:
        refused("lock_timeout", client.sandbox.attach_shared, ID, group.token, timeout_s=3)
    assert group.standing() == [0]
    document = metadata(group.daemons[0].env["SANDBOX_METADATA_MOUNT_PATH"])
    assert (document["enable_sandbox_handoff"], document["latest_sandbox_checkpoint"]) == (False, None)


def test_of_two_that_ask_one_gets_it(cluster: Make) -> None:
    """The other is told at once that somebody waits already, or that it has just been taken."""
    from concurrent.futures import ThreadPoolExecutor

    group = cluster(3)
    group.create()
    group.sh(0, "echo mine >mine")

    def attach(at: int) -> str:
        try:
            return str(group.attach(at, timeout_s=patient(60)).status)
        except Exception as error:  # each is looked at below
            return str(getattr(error, "code", error))

    with ThreadPoolExecutor(2) as pool:
        outcomes = sorted(pool.map(attach, (1, 2)))
    assert outcomes in (["lock_contended", "running"], ["running", "running"])
    [at] = group.standing()
    assert group.sh(at, "cat mine") == "mine\n"


def test_a_handover_that_fails_leaves_it_where_it_is(cluster: Make, shared: dict[str, str]) -> None:
    """And the daemon that waits is told why, long before its time is over."""
    group = cluster()
    group.create()
    group.sh(0, "echo mine >mine")
    with group.daemons[0].connect() as client:
        client.process.launch(ID, "while :; do echo x >>log; sleep 0.05; done", name="writer")
    place = shared["FILESYSTEM_SNAPSHOT_MOUNT_PATH"]
    os.rename(place, place + ".away")
    Path(place).write_text("a file")
    with group.daemons[1].connect() as client:
        error = refused("conflict", client.sandbox.attach_shared, ID, group.token, timeout_s=60)
    assert "did not hand it over" in error.message
    until(lambda: group.get(0).status == "running")
    with group.daemons[0].connect() as client:
        [lock] = client.lock.list().locks
        assert (lock.status, lock.handover_error is not None) == ("held", True)
        [writer] = client.process.list(ID).processes
        assert writer.status == "running"
        refused("conflict", client.sandbox.detach, ID)
    os.unlink(place)
    os.rename(place + ".away", place)
    group.attach(1)
    assert group.sh(1, "cat mine") == "mine\n"


def test_an_idle_one_is_saved_and_given_up(cluster: Make) -> None:
    group = cluster()
    made = group.create(enable_handoff=False, enable_checkpoint_at_idle=True, idle_timeout_s=3.0)
    group.sh(0, "echo mine >mine")
    until(lambda: group.get(0, made.sandbox_id).status == "stopped")
    assert group.get(0, made.sandbox_id).terminated_reason == "idle_timeout"
    group.attach(1, timeout_s=0)
    assert group.sh(1, "cat mine") == "mine\n"


def test_a_daemon_that_stops_hands_over(cluster: Make) -> None:
    group = cluster()
    made = group.create()
    group.sh(0, "echo mine >mine")
    group.daemons[0].stop()
    group.daemons[0].start(SANDKEEP_HANDOVER_STOP="30")  # before, it was to keep what it has
    assert group.get(0, made.sandbox_id).status == "running"
    group.daemons[0].stop()
    group.attach(1, timeout_s=0)
    assert group.sh(1, "cat mine") == "mine\n"
    group.daemons[0].start()
    assert group.get(0, made.sandbox_id).terminated_reason == "shutdown"


def test_terminating_it_ends_it_for_all(cluster: Make) -> None:
    group = cluster()
    group.create()
    with group.daemons[0].connect() as client:
        refused("in_use", client.lock.release, ID)
        client.sandbox.terminate(ID)
        until(lambda: client.lock.list().locks == [])
    with group.daemons[1].connect() as client:
        refused("not_found", client.sandbox.attach_shared, ID, group.token)
    first = group.token
    group.create()
    assert group.token != first


def test_secrets_are_given_again_where_only_files_move(cluster: Make) -> None:
    group = cluster()
    group.create(secrets={"TOKEN": "s3cret"})
    with group.daemons[1].connect() as client:
        assert refused("secret_missing", client.sandbox.attach_shared, ID, group.token).data["secrets"] == ["TOKEN"]
    assert group.standing() == [0]
    group.attach(1, secrets={"TOKEN": "s3cret"})
    assert group.sh(1, "echo $TOKEN") == "s3cret\n"
    assert "s3cret" not in str(metadata(group.daemons[0].env["SANDBOX_METADATA_MOUNT_PATH"]))
