"""The event stream as server-sent events: complete, in order, resumed behind the last one, and only for owners."""

import http.client
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.support.gateway import SESSIONS, Gateway, plain
from tests.support.patience import patient

pytestmark = pytest.mark.needs("bwrap", "root")

EVENTS = "/api/sandbox/events/"


class Told(NamedTuple):
    """An event of a stream."""

    id: str
    type: str
    data: Any


@contextmanager
def following(gateway: Gateway, path: str = EVENTS, **headers: str) -> Iterator[Iterator[Told]]:
    """Follow a stream of events."""
    connection = gateway.connection()
    connection.request("GET", path, headers={"X-Api-Key": gateway.key, **headers})
    response = connection.getresponse()
    assert (response.status, response.getheader("content-type")) == (200, "text/event-stream")
    try:
        yield _events(response)
    finally:
        response.close()
        connection.close()


def _events(response: Any) -> Iterator[Told]:
    fields: dict[str, str] = {}
    for line in response:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif fields:
            if "data" in fields:
                yield Told(fields["id"], fields["event"], msgspec.json.decode(fields["data"]))
            fields = {}


def until(events: Iterator[Told], kind: str) -> list[Told]:
    """Events up to the first of a type."""
    found = []
    for event in events:
        found.append(event)
        if event.type == kind:
            return found
    raise AssertionError(f"the stream ended before {kind}")


def is_cut(events: Iterator[Told]) -> bool:
    """Read to the end of a stream that is cut off; False if nothing more comes and it is not."""
    try:
        for _ in events:
            pass
    except TimeoutError:
        return False
    except (OSError, http.client.HTTPException):
        return True
    return True


def test_events_that_there_are_and_those_that_come(gateway: Gateway) -> None:
    with following(gateway) as events:
        assert until(events, "image.created")
        gateway.make("box")
        come = until(events, "session.started")
        positions = [event.data["position"] for event in come]
        assert positions == sorted(positions)
        assert {event.type for event in come} >= {"session.start_requested", "sandbox.created"}
        assert all(event.data["type"] == event.type for event in come)


def test_a_key_sees_no_path_of_the_host(gateway: Gateway) -> None:
    gateway.make("hidden")
    assert gateway.ask("POST", f"{SESSIONS}hidden/snapshot/", {}).status == 201
    assert gateway.ask("DELETE", f"{SESSIONS}hidden/").status == 204
    with following(gateway) as events:
        found = until(events, "session.stopped")
    assert {"sandbox.created", "snapshot.stored"} <= {event.type for event in found}
    assert gateway.daemon.root.encode() not in msgspec.json.encode(found)
    [asked] = [event.data["data"] for event in found if event.type == "snapshot.create_requested"][:1]
    assert asked["places"][0]["path"].startswith("hidden/snp_")


@pytest.mark.parametrize("way", ["header", "query"])
def test_a_stream_goes_on_behind_the_last_event(gateway: Gateway, way: str) -> None:
    with following(gateway) as events:
        first, second = next(events), next(events)
    path, headers = (EVENTS, {"Last-Event-ID": first.id}) if way == "header" else (f"{EVENTS}?after={first.id}", {})
    with following(gateway, path, **headers) as events:
        assert next(events) == second


def test_filters(gateway: Gateway) -> None:
    session = gateway.make("filtered")
    with following(gateway, f"{EVENTS}?type=sandbox&sandbox={session['sandbox_id']}") as events:
        assert next(events).type == "sandbox.create_requested"
        assert until(events, "sandbox.created")
    gateway.ask("POST", f"{SESSIONS}filtered/exec/", {"command": "true"})
    with following(gateway, f"{SESSIONS}filtered/stream/") as events:
        seen = until(events, "process.exited")
        assert {event.data["stream"] for event in seen} >= {session["sandbox_id"]}
    with following(gateway, f"{EVENTS}?after=now") as events:
        gateway.ask("DELETE", f"{SESSIONS}filtered/")
        assert until(events, "session.stopped")[0].type != "image.create_requested"


def test_only_the_owners_events(gateway: Gateway) -> None:
    with gateway.daemon.connect() as client:
        other = client.key.create("stranger").key
        client.image.create(f"{gateway.daemon.root}/image", owner="key:stranger", labels={"only": "theirs"})
    with following(gateway, EVENTS, **{"X-Api-Key": other}) as events:
        assert [event.data["data"]["owner"] for event in until(events, "image.create_requested")] == ["key:stranger"]


def test_a_key_sees_no_other_caller(gateway: Gateway) -> None:
    """The image was made for it by an administrator, its session by itself."""
    gateway.make("own")
    with following(gateway) as events:
        found = {event.type: event.data["meta"] for event in until(events, "session.started")}
    assert found["image.create_requested"] == {}
    assert found["session.start_requested"]["owner"] == "key:ci"
    gateway.ask("DELETE", f"{SESSIONS}own/")


def test_who_sends_while_following_is_dropped(gateway: Gateway) -> None:
    head = f"GET {EVENTS} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {gateway.key}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with plain(gateway.path) as sock:
        sock.sendall(head.encode())
        assert sock.recv(65536).split()[1] == b"200"
        sock.sendall(b"1\r\nx\r\n")
        dropped_by = time.monotonic() + patient(60)
        with suppress(ConnectionResetError):
            while sock.recv(65536):  # who is not dropped gets something every 15 s
                assert time.monotonic() < dropped_by


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("after=nonsense", 400, "invalid"),
        ("after=log_00000000000000000000000000:1", 409, "wrong_log"),
        ("type=UPPER", 400, "invalid"),
        ("sandbox=none", 404, "not_found"),
        ("surplus=1", 400, "invalid"),
        ("after=now&after=now", 400, "invalid"),
        ("after=%ff", 400, "invalid"),
    ],
)
def test_a_refused_stream_is_a_problem(gateway: Gateway, query: str, status: int, code: str) -> None:
    assert gateway.ask("GET", f"{EVENTS}?{query}").problem == (status, code)


def test_a_removed_key_ends_its_streams(gateway: Gateway) -> None:
    with gateway.daemon.connect() as client:
        key = client.key.create("short").key
        with following(gateway, EVENTS, **{"X-Api-Key": key}) as events:
            client.key.remove("short")
            assert is_cut(events)


def test_a_stop_of_the_daemon_ends_streams(gateway: Gateway) -> None:
    with following(gateway, f"{EVENTS}?after=now") as events:
        assert gateway.daemon.stop() == 0
        assert is_cut(events)
    gateway.daemon.start()
