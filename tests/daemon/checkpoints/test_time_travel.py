"""Going back in time, with a real daemon and local sandboxes: what was the case then, and the files of then."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.json import encode
from tests.conftest import RunningDaemon
from tests.support.expect import refused
from tests.support.inside import inside
from tests.support.snapshots import sh

from sandkeep.errors import DataError
from sandkeep.events import Meta
from sandkeep.protocol.clock import now_us
from sandkeep_store.views.moments import Moment
from sandkeep_store.views.processes import RECENT_UNNAMED
from sandkeepd.checkpoints.time_travel import Asked

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture
def client(running_daemon: RunningDaemon) -> Iterator[Any]:
    with running_daemon.connect() as client:
        yield client


@pytest.fixture
def box(client: Any, source: str) -> str:
    image = client.image.create(source)
    return str(client.sandbox.create(image.image_id).sandbox_id)


def write(client: Any, box: str, text: str) -> None:
    client.sandbox.write_file(box, path="file", data=text.encode())


# -- what was the case ------------------------------------------------------------------------------------------------


def shown(client: Any, box: str) -> tuple[Any, ...]:
    """All that is answered about a sandbox now."""
    processes = client.process.list(box, all=True).processes
    return client.sandbox.get(box), processes, client.snapshot.list(box, all=True).snapshots


def then(client: Any, box: str, position: int) -> tuple[Any, ...]:
    """What is answered about it as it was."""
    found = client.event.state_at(box, position)
    return found.sandbox, found.processes, found.snapshots


def test_what_was_answered_is_answered_again(running_daemon: RunningDaemon, client: Any, box: str) -> None:
    """After each step of a life with all that there is, also by the next daemon, and when all is over."""
    seen: dict[int, tuple[Any, ...]] = {}
    steps = [
        lambda: client.process.launch(box, ["sleep", "1000"], name="web"),
        lambda: client.sandbox.exec(box, "echo out; exit 3"),
        lambda: write(client, box, "one"),
        lambda: client.snapshot.create(box, name="first"),
        lambda: (client.process.signal(box, "web", signal="KILL"), client.process.wait(box, "web")),
        lambda: client.sandbox.fork(box),
        lambda: client.snapshot.delete(client.snapshot.list(box).snapshots[0].snapshot_id),
        lambda: client.sandbox.terminate(box),
    ]
    for step in steps:
        step()
        now = shown(client, box)
        seen[client.daemon.status().position] = now
    assert {position: then(client, box, position) for position in seen} == seen
    running_daemon.kill()
    running_daemon.start()
    with running_daemon.connect() as other:
        assert {position: then(other, box, position) for position in seen} == seen


def test_a_position_that_there_is_not(client: Any, box: str) -> None:
    head = client.daemon.status().position
    begins = client.sandbox.history(box).events[0].position
    assert "ends" in refused("invalid", lambda: client.event.state_at(box, head + 1)).message
    assert refused("not_found", lambda: client.event.state_at(box, begins - 1)).data["first"] == begins
    refused("wrong_log", lambda: client.event.state_at(box, "log_another:1"))
    token = client.sandbox.history(box).next
    assert client.event.state_at(box, token).sandbox == client.sandbox.get(box)


def test_of_many_processes_the_last_are_answered(client: Any, box: str) -> None:
    for number in range(3):
        client.sandbox.exec(box, f"exit {number}")
    found = client.event.state_at(box, client.daemon.status().position, limit=2)
    assert ([process.exit_code for process in found.processes], found.left_out) == ([1, 2], 1)


# -- the files of then ------------------------------------------------------------------------------------------------


@pytest.fixture
def story(client: Any, box: str) -> dict[str, Any]:
    """A sandbox of which two snapshots were made, with something done before, between and after."""
    told: dict[str, Any] = {"begin": client.daemon.status().position}
    for text in ("one", "two"):
        write(client, box, text)
        kept = client.snapshot.create(box, name=text)
        told[text] = (kept.snapshot_id, client.daemon.status().position)
    write(client, box, "three")
    told["end"] = client.daemon.status().position
    return told


def read(client: Any, box: str) -> str:
    return str(client.sandbox.read_file(box, path="file").data.decode())


def test_the_newest_at_or_before_a_position_is_restored(client: Any, box: str, story: dict[str, Any]) -> None:
    (one, at_one), (two, at_two) = story["one"], story["two"]
    for position, used, text, between in (
        (at_one, one, "one", 0),
        (at_two - 1, one, "one", 2),  # a file was written, and the second snapshot requested
        (at_two, two, "two", 0),
        (story["end"], two, "two", 1),
    ):
        made = client.sandbox.restore_at(box, position)
        assert (made.moment.kind, made.moment.source_id, made.events_between) == ("snapshot", used, between)
        assert (made.distance_s == 0) is (between == 0)
        assert read(client, made.sandbox.sandbox_id) == text
        assert made.sandbox.restored_from == used
    assert read(client, box) == "three"


def test_the_newest_at_or_before_a_time_is_restored(client: Any, box: str, story: dict[str, Any]) -> None:
    """Its offset counts, and a snapshot of this very instant does."""
    times = {event.position: event.time for event in client.sandbox.history(box).events}
    (one, at_one), (two, at_two) = story["one"], story["two"]
    first = client.sandbox.restore_at(box, time=times[at_one])
    assert (first.moment.source_id, first.moment.time, first.distance_s) == (one, times[at_one], 0)
    zoned = datetime.fromisoformat(times[at_two]).astimezone(timezone(timedelta(hours=-3, minutes=30)))
    assert client.sandbox.restore_at(box, time=zoned.isoformat(" ")).moment.source_id == two
    last = client.sandbox.restore_at(box, time=times[story["end"]])
    assert (last.moment.source_id, last.events_between) == (two, 1)
    passed = datetime.fromisoformat(times[story["end"]]) - datetime.fromisoformat(times[at_two])
    assert last.distance_s == passed.total_seconds()


def test_after_the_end_and_without_the_deleted(client: Any, box: str, story: dict[str, Any]) -> None:
    client.sandbox.terminate(box)
    end = client.daemon.status().position
    assert client.sandbox.restore_at(box, end).moment.source_id == story["two"][0]
    client.snapshot.delete(story["two"][0])
    made = client.sandbox.restore_at(box, end)
    assert (made.moment.source_id, read(client, made.sandbox.sandbox_id)) == (story["one"][0], "one")
    client.snapshot.delete(story["one"][0])
    assert (
        "create one before you need it"
        in refused("snapshot_missing", lambda: client.sandbox.restore_at(box, end)).message
    )


def test_of_what_came_before_anything_was_kept_the_oldest_is_named(
    client: Any, box: str, story: dict[str, Any]
) -> None:
    _, at_one = story["one"]
    error = refused("snapshot_missing", lambda: client.sandbox.restore_at(box, at_one - 1))
    assert error.data["oldest"] == at_one
    assert "the oldest is snapshot one, " in error.message


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({}, "invalid"),
        ({"position": 1, "time": "2026-01-01T00:00:00Z"}, "invalid"),
        ({"position": 10**9}, "invalid"),
        ({"position": "log_another:3"}, "wrong_log"),
        ({"time": "yesterday"}, "invalid"),
        ({"time": "2026-01-01T00:00:00"}, "invalid"),
        ({"time": "2226-01-01T00:00:00Z"}, "invalid"),
        ({"time": "2001-01-01T00:00:00Z"}, "snapshot_missing"),
    ],
)
def test_moments_that_there_are_not(client: Any, box: str, asked: dict[str, Any], code: str) -> None:
    client.snapshot.create(box)
    before = client.daemon.status().position
    refused(code, lambda: client.sandbox.restore_at(box, **asked))
    assert client.daemon.status().position == before


def test_it_is_as_the_sandbox_was_asked_to_be(client: Any, box: str, story: dict[str, Any]) -> None:
    """Not as the one was whose snapshot it began with; and that counts as a moment of it."""
    began = client.snapshot.restore(story["one"][0], labels={"of": "itself"}, env={"A": "1"}).sandbox_id
    write(client, began, "changed")
    end = client.daemon.status().position
    made = client.sandbox.restore_at(began, end, name="mine", labels={"more": "2"}, env={"B": "2"})
    assert made.moment.source_id == story["one"][0]
    assert made.moment.position > story["end"]
    assert made.sandbox.name == "mine"
    assert made.sandbox.spec.labels == {"of": "itself", "more": "2"}
    assert sh(client, "mine", "echo $A$B; cat file") == "12\none"
    refused("conflict", lambda: client.sandbox.restore_at(began, end, name="mine"))


def test_its_secrets_have_to_be_given_again(client: Any, box: str, source: str) -> None:
    image = client.sandbox.get(box).image_id
    secret = client.sandbox.create(image, secrets={"TOKEN": "x"}).sandbox_id
    client.snapshot.create(secret)
    end = client.daemon.status().position
    refused("secret_missing", lambda: client.sandbox.restore_at(secret, end))
    made = client.sandbox.restore_at(secret, end, secrets={"TOKEN": "y"}).sandbox
    assert sh(client, made.sandbox_id, "echo $TOKEN") == "y\n"


def test_after_files_were_replaced_those_count(client: Any, box: str, story: dict[str, Any]) -> None:
    """Of a moment before it, what was there before; after it, what was put there."""
    client.sandbox.restore(box, story["one"][0])
    write(client, box, "four")
    end = client.daemon.status().position
    made = client.sandbox.restore_at(box, end)
    assert (made.moment.source_id, read(client, made.sandbox.sandbox_id)) == (story["one"][0], "one")
    before = client.sandbox.restore_at(box, story["end"])
    assert (before.moment.source_id, read(client, before.sandbox.sandbox_id)) == (story["two"][0], "two")


def test_a_repeat_answers_what_was_used_then(running_daemon: RunningDaemon, client: Any, box: str, story: Any) -> None:
    """Though that was deleted since, and the daemon died."""
    asked = {"sandbox_id": box, "position": story["end"], "command_id": "c"}
    first = client.call("sandbox.restore_at", asked)
    client.snapshot.delete(story["two"][0])
    running_daemon.kill()
    running_daemon.start()
    with running_daemon.connect() as other:
        again = other.call("sandbox.restore_at", asked)
        assert again["sandbox"]["sandbox_id"] == first["sandbox"]["sandbox_id"]
        assert {**again, "sandbox": None} == {**first, "sandbox": None}
        types = [event.type for event in other.sandbox.history(again["sandbox"]["sandbox_id"]).events]
        assert types.count("sandbox.create_requested") == 1


# -- what went into the archive, or out of the log --------------------------------------------------------------------


async def test_what_was_archived_is_told(state_dir: str, source: str) -> None:
    """A position there is refused with the first that is not, later ones tell what may be missing, and of what is not
    known nothing is counted.
    """
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        for _ in range(RECENT_UNNAMED + 5):
            await daemon.call("sandbox.exec", sandbox_id="box", command="true")
        log, head = daemon.core.log, daemon.core.log.head
        assert (await daemon.call("event.state_at", sandbox_id="box", position=head)).note is None
        await daemon.retention.archive(now_us() + 1, Meta())
        with pytest.raises(DataError) as gone:
            await daemon.call("event.state_at", sandbox_id="box", position=log.first_position - 1)
        assert (gone.value.code, gone.value.data["first"]) == ("compacted", log.first_position)
        with pytest.raises(DataError) as gone:
            await daemon.call("sandbox.restore_at", sandbox_id="box", position=1)
        assert gone.value.code == "compacted"
        then = await daemon.call("event.state_at", sandbox_id="box", position=head)
        assert then.sandbox == await daemon.call("sandbox.get", sandbox_id="box")
        assert "in the archive" in then.note
        box, made = daemon.box(), then.sandbox
        asked = Asked(now_us(), head)
        for position, between in ((log.first_position - 1, None), (head, 0)):
            moment = Moment(kind="snapshot", source_id="s", owner="o", position=position, time_us=0, status="ready")
            answer = await daemon.kept.time_travel._answer(box, asked, moment, made)
            assert answer.events_between == between
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_what_was_redacted_does_not_come_back(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        await daemon.call("sandbox.exec", sandbox_id="box", command="echo hunter2 >/dev/null")
        head = daemon.core.log.head
        events = (await daemon.call("sandbox.history", sandbox_id="box")).events
        [launched] = [event.position for event in events if event.type == "process.launch_requested"]
        assert b"hunter2" in encode(await daemon.call("event.state_at", sandbox_id="box", position=head))
        await daemon.call("store.redact", position=launched)
        for position in (launched, head):
            assert b"hunter2" not in encode(await daemon.call("event.state_at", sandbox_id="box", position=position))
        await daemon.call("sandbox.terminate", sandbox_id="box")
