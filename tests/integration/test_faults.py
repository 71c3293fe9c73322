"""Shared sandboxes over buckets that fail: hand-over, creation, detachment and attachment through services that are
overloaded, silent, slow or gone, and owners that were stopped for too long.

Leases last some seconds here and not a minute, and the waits of the daemons are shorter by as much; the soak has the
product's own.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from threading import Event
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from tests.conftest import RunningDaemon
from tests.support.changed import leases_of, program
from tests.support.expect import refused, until
from tests.support.faults import Fault, FaultyLine, Request
from tests.support.patience import patient
from tests.support.sharing import ID, Cluster, of_gcs

from sandkeep_store.locks.open import open_store

pytestmark = pytest.mark.needs("bwrap", "root", "gcs", "s3")

PLACES = ("gcs", "s3")
SHORT_S, STEADY_S = 4.0, 20.0
"""Leases that are to be lost, and those that are not, in seconds. None is the product's, with all that goes with it."""

LOST = [("s3", SHORT_S), *(pytest.param(*one, marks=pytest.mark.soak) for one in (("gcs", SHORT_S), ("gcs", None)))]

METADATA, LOCK = f"sandboxes/{ID}/sandkeep.json", f"sandboxes/{ID}/lock.json"


class Faulty(Cluster):
    """Daemons that reach one bucket, each by a line of its own."""

    lines: list[FaultyLine]
    bucket: str
    where: str

    def document(self, path: str) -> Any:
        """Return a document of the bucket, which is read beside the lines."""
        found = open_store(self.where).read(path)
        return msgspec.json.decode(found.content) if found is not None else {}

    def owners(self) -> list[Any]:
        """Return the acquisitions of the lock, by their fences. None began before the one before it had ended, or was
        to be given back: another may have it before that is on record.
        """
        locks: list[Any] = []
        given_back: dict[str, Any] = {}
        for daemon in self.daemons:
            with daemon.connect() as client:
                until(lambda client=client: not [one for one in client.lock.list().locks if one.status == "releasing"])
                locks += [lock for lock in client.lock.list(all=True).locks if lock.acquired_at is not None]
                orders = client.follow_events(follow=False, type="lock.release_requested")
                given_back |= {order.stream: order.time for order in orders}
        locks.sort(key=lambda lock: lock.fence)
        for former, following in pairwise(locks):
            assert former.fence < following.fence
            assert former.ended_at is not None, former
            assert given_back.get(former.lock_id, former.ended_at) <= following.acquired_at, (former, following)
        return locks

    def files(self, at: int) -> list[str]:
        return self.sh(at, "cat mine").split()


New = Callable[..., Faulty]


@pytest.fixture
def group(request: Any, new_daemon: Any, source: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[New]:
    lines: list[FaultyLine] = []
    daemons: list[RunningDaemon] = []
    with ExitStack() as ends:

        def make(place: str, lease_s: float | None, constants: Mapping[str, Any] = MappingProxyType({})) -> Faulty:
            service, bucket = request.getfixturevalue(place), request.getfixturevalue(f"{place}_bucket")
            made = Faulty(new_daemon, 2, {}, source)
            monkeypatch.setenv("SANDBOX_S3_BUCKET", bucket)  # for this process, which looks into it
            made.bucket, made.where = bucket, f"{'gs' if place == 'gcs' else place}://{bucket}"
            made.lines = [ends.enter_context(FaultyLine(service.port)) for _ in made.daemons]
            for daemon, line in zip(made.daemons, made.lines, strict=True):
                there = {"STORAGE_EMULATOR_HOST": line.url, **of_gcs(bucket)}
                if place == "s3":
                    there = {"SANDBOX_S3_ENDPOINT_URL": line.url, "SANDBOX_S3_BUCKET": bucket}
                daemon.env |= there
                daemon.program = program({**(leases_of(lease_s) if lease_s else {}), **constants})
            lines.extend(made.lines)
            daemons.extend(made.daemons)
            made.start()
            return made

        yield make
        for line in lines:
            line.mend()
        for daemon in daemons:  # while their lines are there
            daemon.clear()


ALONE: list[tuple[tuple[Fault, ...], int]] = [
    ((429,), 4), ((503,), 4), (("silent",), 15), (("down",), 4), (("slow",), 1)
]  # fmt: skip


@pytest.mark.parametrize(
    ("faults", "every"),
    [((429, 503, "silent", "down", "slow"), 6), *(pytest.param(*alone, marks=pytest.mark.soak) for alone in ALONE)],
)
@pytest.mark.parametrize("place", PLACES)
def test_everything_is_done_in_spite_of_them(group: New, place: str, faults: tuple[Fault, ...], every: int) -> None:
    two = group(place, STEADY_S)
    for line in two.lines:
        line.fail(*faults, every=every)
    two.create()
    two.sh(0, "echo one >>mine")
    two.attach(1)
    two.sh(1, "echo two >>mine")
    with two.daemons[1].connect() as client:
        client.sandbox.detach(ID)
    two.attach(0, timeout_s=patient(60))
    assert two.files(0) == ["one", "two"]
    assert max(line.failed for line in two.lines) >= len(faults)
    assert two.standing() == [0]
    assert len(two.owners()) == 3


def refuses(line: FaultyLine, fault: Fault, path: str) -> None:
    """Refuse all writes to an object."""
    line.fail(fault, matching=lambda request: request.writes and request.is_about(path))


@pytest.mark.parametrize(
    ("place", "fault", "path"),
    [
        ("gcs", "silent", "filesystem_snapshots"),
        ("gcs", 503, METADATA),
        ("s3", "silent", ".tar.gz"),
        ("s3", 429, METADATA),
    ],
)
def test_who_cannot_save_it_keeps_it_and_says_why(group: New, place: str, fault: Fault, path: str) -> None:
    two = group(place, STEADY_S)
    made = two.create()
    two.sh(0, "echo one >>mine")
    with two.daemons[0].connect() as client:
        client.process.launch(ID, "while :; do echo x >>log; sleep 0.05; done", name="writer")
    first = two.document(METADATA)
    refuses(two.lines[0], fault, path)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(refused, "conflict", two.attach, 1, timeout_s=patient(40))
        until(lambda: "lock.handover_failed" in two.history(0, made.sandbox_id))
        until(lambda: two.get(0).status == "running")
        if path == METADATA:  # only then can it be told
            two.lines[0].mend()
        error = waiting.result(patient(60))
    assert "did not hand it over" in error.message
    assert error.data["cause"] == "provider_unavailable"
    with two.daemons[0].connect() as client:
        [lock] = client.lock.list().locks
        assert (lock.status, lock.fence) == ("held", first["fence"])
        [writer] = client.process.list(ID).processes
        assert writer.status == "running"
    assert two.document(METADATA)["fence"] == first["fence"]
    two.lines[0].mend()
    two.attach_next(1)
    assert two.files(1) == ["one"]
    assert len(two.owners()) == 2


@pytest.mark.parametrize("place", ["gcs", pytest.param("s3", marks=pytest.mark.soak)])
def test_who_attaches_and_cannot_tell_it_gives_it_back(group: New, place: str) -> None:
    """It is there for others, who find what was saved last."""
    two = group(place, STEADY_S)
    two.create()
    two.sh(0, "echo one >>mine")
    refuses(two.lines[1], 503, METADATA)
    refused("provider_unavailable", two.attach, 1)
    two.lines[1].mend()
    until(lambda: two.standing() == [])
    two.attach_next(0, timeout_s=patient(30))
    assert two.files(0) == ["one"]
    assert len(two.owners()) == 3


def test_what_could_not_be_told_is_not_made(group: New) -> None:
    two = group("gcs", STEADY_S)
    refuses(two.lines[0], 503, METADATA)
    refused("provider_unavailable", two.create)
    two.lines[0].mend()
    until(lambda: two.standing() == [])
    with two.daemons[0].connect() as client:
        until(lambda: client.lock.list().locks == [])
    two.create()
    assert two.standing() == [0]


@pytest.mark.parametrize(("place", "lease_s"), LOST)
def test_an_owner_that_reaches_nothing_stops_before_another_has_it(
    group: New, place: str, lease_s: float | None
) -> None:
    two = group(place, lease_s)
    made = two.create()
    two.sh(0, "echo one >>mine")
    with two.daemons[0].connect() as client:
        client.snapshot.create(ID)
        client.process.launch(ID, "while :; do date +%s%N >>log; sleep 0.02; done", name="writer")
    two.sh(0, "echo never-saved >>mine")
    two.lines[0].fail("down")
    two.attach_next(1, timeout_s=patient(120))
    assert two.files(1) == ["one"]
    until(lambda: two.get(0, made.sandbox_id).status == "suspended")
    second = two.document(METADATA)
    with two.daemons[0].connect() as client:
        stopped = [
            event for event in client.sandbox.history(made.sandbox_id).events if event.type == "sandbox.suspended"
        ]
    first, *others = two.owners()
    last = others[-1]  # an attempt to attach it may have failed after it had the lock
    assert first.status == "expired"
    assert stopped[-1].time < others[0].acquired_at
    two.lines[0].mend()
    until(lambda: two.get(0, made.sandbox_id).moved_to is not None)
    assert two.get(0, made.sandbox_id).status == "suspended"
    assert two.document(METADATA)["fence"] == second["fence"] == last.fence
    assert two.standing() == [1]


def test_a_handover_that_outlasts_the_lease_starts_nothing_again(group: New) -> None:
    """It fails when the lock is another's, so that the sandbox stays suspended."""
    two = group("gcs", SHORT_S, {"sandkeepd.snapshots.archives.FIRST_PATIENCE_S": 3.0})
    made = two.create()
    two.sh(0, "echo one >>mine")
    with two.daemons[0].connect() as client:
        client.snapshot.create(ID)
    saving = two.lines[0].hold(lambda request: request.method == "PUT" and "upload_id" in request.target)
    with ThreadPoolExecutor(1) as pool:
        attaching = pool.submit(two.attach, 1, timeout_s=patient(60))
        assert saving.arrived.wait(patient(60))
        two.lines[0].fail("down")
        attaching.result(patient(60))
    saving.let_go()
    with two.daemons[0].connect() as client:
        until(lambda: client.snapshot.list(sandbox_id=made.sandbox_id, all=True).snapshots[-1].status != "creating")
    two.lines[0].mend()
    until(lambda: two.get(0, made.sandbox_id).moved_to is not None)
    assert two.get(0, made.sandbox_id).status == "suspended"
    assert "lock.handover_failed" not in two.history(0, made.sandbox_id), "it failed too soon"
    assert "sandbox.resumed" not in two.history(0, made.sandbox_id)
    assert two.standing() == [1]
    assert two.files(1) == ["one"]
    two.owners()


@pytest.mark.parametrize("place", ["gcs", pytest.param("s3", marks=pytest.mark.soak)])
def test_when_a_bucket_is_back_its_last_owner_goes_on(group: New, place: str) -> None:
    """Nobody reached it for longer than a lease lasts. Nothing is lost, and then it is handed over as ever."""
    two = group(place, SHORT_S)
    made = two.create()
    two.sh(0, "echo one >>mine")
    for line in two.lines:
        line.fail("silent")
    refused("provider_unavailable", two.attach, 1, timeout_s=3)
    until(lambda: two.get(0).status == "suspended")
    with two.daemons[0].connect() as client:
        assert client.lock.get(ID).status in ("expired", "acquiring", "failed")
    first = two.document(LOCK)["ownerId"].encode()
    taken = Event()

    def reads_metadata_after(request: Request) -> bool:
        if request.writes and request.is_about("lock.json") and first not in request.body:
            taken.set()
        return taken.is_set() and not request.writes and request.is_about("sandkeep.json")

    two.lines[0].mend()
    two.lines[0].fail(
        400, matching=reads_metadata_after
    )  # not tried again: it has the lock, and cannot see if others had it meanwhile
    until(lambda: two.lines[0].failed)
    assert two.get(0).status == "suspended"
    for line in two.lines:
        line.mend()
    until(lambda: two.get(0).status == "running")
    assert two.files(0) == ["one"]
    two.attach_next(1, timeout_s=patient(30))
    assert two.files(1) == ["one"]
    assert len(two.owners()) >= 3
    until(lambda: two.get(0, made.sandbox_id).status == "stopped")
    assert two.get(0, made.sandbox_id).terminated_reason == "handed_over"


@pytest.mark.parametrize(("place", "lease_s"), LOST)
def test_an_owner_that_was_stopped_for_too_long_writes_over_nothing(
    group: New, place: str, lease_s: float | None
) -> None:
    """Not even by a request that it had sent before, and which arrives after all."""
    two = group(place, lease_s)
    made = two.create()
    two.sh(0, "echo one >>mine")
    with two.daemons[0].connect() as client:
        client.snapshot.create(ID)
    line, first = two.lines[0], two.daemons[0].process
    assert first is not None
    before = two.document(LOCK)
    late = line.hold(lambda request: request.writes and request.is_about("sandkeep.json"))
    with two.daemons[0].connect() as client:
        client.process.launch(ID, "sleep 60", name="of-which-metadata-tell")
    assert late.arrived.wait(patient(60))
    first.send_signal(signal.SIGSTOP)
    try:
        two.attach_next(1, timeout_s=patient(120))
        two.sh(1, "echo two >>mine")
    finally:
        passed = len(line.answered)
        late.let_go()
        first.send_signal(signal.SIGCONT)
    until(lambda: two.get(0, made.sandbox_id).moved_to is not None)
    assert two.get(0, made.sandbox_id).status == "suspended"
    with two.daemons[0].connect() as client:
        refused("lock_lost", client.snapshot.create, made.sandbox_id)
        assert [lock.status for lock in client.lock.list(all=True).locks if lock.acquired_at] == ["expired"]
    # what arrived late is among them
    until(lambda: [one for one in line.answered[passed:] if one.writes and one.is_about("sandkeep.json")])
    writes = [request for request in line.answered[passed:] if request.writes and request.is_about(ID)]
    assert [request for request in writes if request.status == 200] == []
    assert two.document(METADATA)["fence"] == two.document(LOCK)["fence"] > before["fence"]
    assert two.document(LOCK)["ownerId"] != before["ownerId"]
    assert two.standing() == [1]
    assert two.files(1) == ["one", "two"]
