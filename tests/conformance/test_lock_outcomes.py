"""Locks in buckets that answer anything: a write is refused, put off, failed or not answered, carried out or not.

Whatever is answered, an owner is one whom the document names, nobody is told that he lost what is his, and what is
given back is free.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.support.gcs import Fault
from tests.support.locking import TestClock

from sandkeep.errors import SandkeepError
from sandkeep_store.buckets import s3_client
from sandkeep_store.locks import gcs as locks_gcs
from sandkeep_store.locks import s3 as locks_s3
from sandkeep_store.locks.lease import Attempt, Lease, Locks
from sandkeep_store.locks.open import open_store
from sandkeep_store.locks.store import DocumentStore, path_of

ENDLESS = float("inf")


class World(NamedTuple):
    """A bucket, its clock, and what becomes of the next writes."""

    store: DocumentStore
    clock: TestClock
    faults: list[Fault]

    def locks(self) -> Locks:
        return Locks(self.store, self.clock, clock_tolerance_s=ENDLESS)

    def document(self) -> dict[str, Any]:
        found = self.store.read(path_of("box"))
        assert found is not None
        document: dict[str, Any] = msgspec.json.decode(found.content)
        return document


@pytest.fixture(
    params=[pytest.param("gcs", marks=pytest.mark.needs("gcs")), pytest.param("s3", marks=pytest.mark.needs("s3"))]
)
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    bucket, service = (request.getfixturevalue(name) for name in (f"{request.param}_bucket", request.param))
    monkeypatch.setattr(locks_s3, "ANSWER_S", 2.0)
    monkeypatch.setattr(s3_client, "SECONDS_AN_ATTEMPT", 100)
    if request.param == "s3":
        monkeypatch.setenv("SANDBOX_S3_BUCKET", bucket)
    made = World(
        open_store(f"{'gs' if request.param == 'gcs' else 's3'}://{bucket}"),
        TestClock(),
        service.storage.faults if request.param == "gcs" else service.faults,
    )
    made.locks().acquire("other").release()  # S3 is tried before the first write
    return made


@pytest.fixture(params=[412, 429, 500, 503, None], ids=["412", "429", "500", "503", "silence"])
def status(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[False, True], ids=["not carried out", "carried out"])
def applied(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[1, *(pytest.param(count, marks=pytest.mark.soak) for count in (3, 20))])
def fault(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, status: int | None, applied: bool
) -> list[Fault]:
    """So many writes have that fault; the first of them is carried out, or none, as the others come too late."""
    monkeypatch.setattr(locks_gcs, "PATIENCE_S", 60 if request.param == 1 else 0.2)
    return [Fault(status, applied), *[Fault(status, False)] * (request.param - 1)]


def attempt(world: World, faults: list[Fault], call: Callable[[], Any]) -> Any:
    """What a call answers under these faults; None when it is told that its store is not to be relied on."""
    world.faults[:] = faults
    try:
        return call()
    except SandkeepError as error:
        if error.code not in ("provider_unavailable", "lock_contended"):
            raise
        return None
    finally:
        world.faults.clear()


def test_who_is_told_that_he_has_it_has_it(world: World, fault: list[Fault]) -> None:
    lease = attempt(world, fault, lambda: world.locks().acquire("box"))
    assert len(fault) > 1 or lease is not None
    if isinstance(lease, Lease):
        document = world.document()
        assert (document["ownerId"], document["fence"]) == (lease.owner_id, lease.fence.number)
        lease.renew()
        assert lease.release() is True
    world.clock.sleep(61)
    later = world.locks().acquire("box")
    assert lease is None or later.fence.number > lease.fence.number
    later.renew()


def test_an_owner_keeps_what_is_his(world: World, fault: list[Fault]) -> None:
    lease = world.locks().acquire("box")
    world.clock.sleep(20)
    attempt(world, fault, lease.renew)
    assert lease.lost is None
    world.clock.sleep(1)
    lease.renew()
    document = world.document()
    assert (document["ownerId"], document["expiresAt"]) == (lease.owner_id, world.clock.wall + 60)


def test_what_is_given_back_is_free(world: World, fault: list[Fault]) -> None:
    lease = world.locks().acquire("box")
    given = attempt(world, fault, lease.release)
    assert given is not False
    assert lease.release() is True
    assert world.document()["expiresAt"] == 0
    later = world.locks().acquire("box")
    assert later.fence.number > lease.fence.number
    assert lease.release() is True
    later.renew()


def test_who_waits_gets_it_from_an_owner_who_keeps_what_is_his(world: World, fault: list[Fault]) -> None:
    lease = world.locks().acquire("box")
    waits = Attempt(world.locks(), "box", timeout_s=30)
    attempt(world, fault, waits.step)
    assert not isinstance(waits.step(), Lease)
    lease.renew()
    assert lease.waiter == world.document()["waitingOwnerId"]
    assert lease.waiter is not None
    assert lease.release() is True
    later = attempt(world, fault, waits.step)
    if not isinstance(later, Lease):  # it is told to try again
        later = waits.step()
    assert isinstance(later, Lease)
    later.renew()


def test_who_gives_up_waits_no_more(world: World, fault: list[Fault]) -> None:
    lease = world.locks().acquire("box")
    waits = Attempt(world.locks(), "box", timeout_s=30)
    waits.step()
    attempt(world, fault, waits.cancel)
    waits.cancel()
    assert lease.look() is None
    lease.renew()
