"""Losses: owners that die in each step of a handover, lose their lock, or cannot reach it."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Make
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.sharing import ID, metadata

from sandkeep import failpoints
from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("bwrap", "root")

STEPS = (
    "Handover.begun", "handover.saved", "handover.published", "Handover.acted", "Handover.recorded", "LockReturn.begun",
    "lock.given_back", "LockReturn.recorded", "Termination.begun",
)  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_the_owner_dies_in_a_step_of_the_handover(cluster: Make, step: str) -> None:
    """Whoever waits gets it from the next daemon, or from the place where it was saved; and it is at one of them."""
    group = cluster()
    made = group.create()
    group.sh(0, "echo mine >mine")
    first = group.daemons[0]
    first.stop()
    first.start(**{failpoints.SETTING: step})
    with ThreadPoolExecutor(1) as pool:
        attaching = pool.submit(
            group.attach, 1, timeout_s=patient(60)
        )  # not less: the first may take long to notice it
        assert first.process is not None
        assert first.process.wait(patient(60)) != 0
        first.process = None
        first.start()
        with suppress(SandkeepError):  # the next daemon has it, and the handover has failed
            attaching.result(patient(120))
    if group.standing() != [1]:
        group.attach_next(1, timeout_s=patient(60))
    assert group.sh(1, "cat mine") == "mine\n"
    until(lambda: group.get(0, made.sandbox_id).status == "stopped")
    assert group.standing() == [1]


def test_who_lost_the_lock_stands_still(cluster: Make) -> None:
    """An administrator freed it, and another daemon attached: the first one's sandbox writes nothing, and is there."""
    group = cluster()
    made = group.create(enable_handoff=False)
    with group.daemons[0].connect() as client:
        client.snapshot.create(ID)
    group.sh(0, "echo later >later")
    group.rob(1)
    until(lambda: group.get(0, made.sandbox_id).moved_to is not None)
    assert group.get(0, made.sandbox_id).status == "suspended"
    assert group.standing() == [1]
    with group.daemons[0].connect() as client:
        refused("not_ready", client.sandbox.exec, made.sandbox_id, "true")
        refused("lock_lost", client.snapshot.create, made.sandbox_id)
        refused("lock_lost", client.sandbox.detach, made.sandbox_id)
        fence = metadata(group.daemons[0].env["SANDBOX_METADATA_MOUNT_PATH"])["fence"]
        client.sandbox.terminate(made.sandbox_id)
    assert metadata(group.daemons[0].env["SANDBOX_METADATA_MOUNT_PATH"])["fence"] == fence
    assert group.sh(1, "ls") == "file\n"


def test_who_lost_it_gets_it_back_when_the_other_is_done(cluster: Make) -> None:
    """By attaching it, without an end of what is left of it, which would be the end of nothing else."""
    group = cluster()
    made = group.create(enable_handoff=False)
    with group.daemons[0].connect() as client:
        client.snapshot.create(ID)
    group.sh(0, "echo lost >lost")
    group.rob(1)
    until(lambda: group.get(0, made.sandbox_id).moved_to is not None)
    with group.daemons[0].connect() as client:
        refused("lock_timeout", client.sandbox.attach_shared, ID, group.token, timeout_s=3)
        assert client.sandbox.get(made.sandbox_id).status == "suspended"  # nothing was lost by trying
        assert "rm would end what is left" in refused("lock_lost", client.sandbox.detach, made.sandbox_id).message
    group.sh(1, "echo there >there")
    with group.daemons[1].connect() as client:
        client.sandbox.detach(ID)
    again = group.attach(0)
    assert again.sandbox_id != made.sandbox_id
    assert group.sh(0, "ls") == "file\nthere\n"
    assert group.get(0, made.sandbox_id).terminated_reason == "attached_again"
    assert group.standing() == [0]
    with group.daemons[0].connect() as client:
        error = refused("in_use", client.sandbox.attach_shared, ID, group.token)
    assert "rm would end it for all" in error.message


def test_who_lost_the_lock_to_nobody_takes_it_again(cluster: Make) -> None:
    group = cluster()
    made = group.create()
    done = group.daemons[1].cli("lock", "release", ID, "--force")
    assert done.returncode == 0
    assert b"loses sandbox-1f2e" in done.stderr
    until(lambda: "lock.lost" in group.history(0, made.sandbox_id))
    until(lambda: group.history(0, made.sandbox_id).count("lock.acquired") == 2)
    until(lambda: group.get(0, made.sandbox_id).status == "running")
    group.sh(0, "echo mine >mine")
    group.attach(1)
    assert group.sh(1, "cat mine") == "mine\n"


def test_who_dies_when_it_has_the_lock_again_goes_on(cluster: Make) -> None:
    """The next daemon reads in the metadata if anybody had it meanwhile."""
    group = cluster()
    made = group.create()
    first = group.daemons[0]
    first.stop()
    first.start(**{failpoints.SETTING: "LockAcquisition.recorded"})
    group.daemons[1].cli("lock", "release", ID, "--force")
    assert first.process is not None
    first.process.wait(patient(60))
    first.process = None
    first.start()
    assert "lock.lost" in group.history(0, made.sandbox_id)
    until(lambda: group.get(0, made.sandbox_id).status == "running")
    with first.connect() as client:
        fence = client.lock.get(ID).fence
        until(lambda: metadata(first.env["SANDBOX_METADATA_MOUNT_PATH"])["fence"] == fence)
        client.sandbox.suspend(ID)
    first.stop()
    first.start()
    group.attach(1)  # its owner's suspension holds; it is handed over as it is
    history = group.history(0, made.sandbox_id)
    assert "sandbox.resumed" not in history[max(at for at, kind in enumerate(history) if kind == "sandbox.adopted") :]
    assert group.standing() == [1]


def test_a_restarted_daemon_goes_on_with_what_it_shares(cluster: Make) -> None:
    group = cluster()
    made = group.create()
    group.sh(0, "echo mine >mine")
    group.daemons[0].kill()
    group.daemons[0].start()
    until(lambda: group.get(0, made.sandbox_id).status == "running")
    group.attach(1)
    assert group.sh(1, "cat mine") == "mine\n"


@pytest.mark.parametrize("step", ["lock.taken", "LockAcquisition.recorded", "SandboxCreation.begun"])
def test_who_dies_while_it_attaches_takes_nothing(cluster: Make, step: str) -> None:
    group = cluster()
    group.create()
    group.sh(0, "echo mine >mine")
    second = group.daemons[1]
    second.stop()
    second.start(**{failpoints.SETTING: step})
    with pytest.raises(SandkeepError):
        group.attach(1, timeout_s=patient(60), patience_s=0)
    assert second.process is not None
    second.process.wait(patient(60))
    second.process = None
    second.start()
    group.attach(1, timeout_s=patient(90))
    assert group.sh(1, "cat mine") == "mine\n"
    assert group.standing() == [1]


@pytest.mark.needs("runsc")
@pytest.mark.parametrize("step", ["begun", "acted", "recorded"])
def test_who_dies_while_it_takes_the_image_takes_it_again(cluster: Make, step: str) -> None:
    group = cluster(provider="gvisor")
    group.create()
    group.sh(0, "echo mine >mine")
    second = group.daemons[1]
    second.stop()
    second.start(**{failpoints.SETTING: f"SharedImageCreation.{step}"})
    with pytest.raises(SandkeepError):
        group.attach(1, patience_s=0)
    assert second.process is not None
    second.process.wait(patient(60))
    second.process = None
    assert group.standing() == [0]
    second.start()
    group.attach(1)
    assert group.sh(1, "cat mine file") == "mine\nfrom the image\n"
    with second.connect() as client:
        assert len(client.image.list().images) == 1


def test_a_damaged_document_is_told(cluster: Make, shared: dict[str, str]) -> None:
    group = cluster()
    group.create()
    path = Path(shared["SANDBOX_METADATA_MOUNT_PATH"], "sandboxes", ID, "sandkeep.json")
    good = path.read_bytes()
    hostile: list[bytes] = [
        b"", b"{", b"[]", b"\xff" * 100, b"[" * 100_000, b'{"sandbox_id": 7}',
        good.replace(b'"path": null', b'"path": "../../etc/passwd"'),
        good.replace(b'"network": "none"', b'"network": "everything"'),
    ]  # fmt: skip
    for content in hostile:
        assert content != good
        path.write_bytes(content)
        with group.daemons[1].connect() as client:
            error: Any = None
            try:
                client.sandbox.attach_shared(ID, group.token, timeout_s=1)
            except SandkeepError as caught:
                error = caught
        assert error is not None
        assert error.code in ("snapshot_corrupt", "lock_timeout", "lock_damaged"), content[:100]
    with group.daemons[1].connect() as client:
        assert client.sandbox.list(all=True).sandboxes == []
        assert client.daemon.status().healthy
