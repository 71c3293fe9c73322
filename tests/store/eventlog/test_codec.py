"""Events to bytes and back, across versions of their shapes."""

from typing import Any

import msgspec
import pytest

from sandkeep.errors import CallerError
from sandkeep.events import EVENTS, MAX_EVENT_BYTES, Event, Meta, ProcessExited, SandboxAdopted, SandboxFailed
from sandkeep_store.eventlog.codec import CODEC, UPCASTS, Codec, UnknownEvent


class Weighed(Event, frozen=True, kw_only=True):
    """The third version of a shape that had a weight in pounds, then in grams, and now a name besides."""

    type = "test.weighed"
    version = 3
    grams: int
    name: str = ""


def _pounds_to_grams(document: dict[str, Any]) -> dict[str, Any]:
    return {"grams": round(document["pounds"] * 453.6)}


def _with_name(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "name": "unnamed"}


KINDS = {Weighed.type: Weighed}
WEIGHED = Codec(KINDS, {(Weighed.type, 1): _pounds_to_grams, (Weighed.type, 2): _with_name})


def test_an_event_comes_back_equal() -> None:
    event = ProcessExited(exit_code=137, stdout_bytes=1, stderr_bytes=2)
    assert CODEC.decode(1, event.type, event.version, CODEC.encode(event)) == event


def test_the_bytes_are_plain_json_without_type_and_version() -> None:
    assert CODEC.encode(ProcessExited(exit_code=1, stdout_bytes=2, stderr_bytes=3)) == (
        b'{"exit_code":1,"stdout_bytes":2,"stderr_bytes":3,"oom_killed":false,"limits_met":[]}'
    )
    assert CODEC.encode_meta(Meta(owner="uid:0")) == b'{"owner":"uid:0"}'


def test_fields_of_a_newer_shape_of_the_same_version_are_ignored() -> None:
    assert CODEC.decode(1, "sandbox.adopted", 1, b'{"added_later":true}') == SandboxAdopted()


@pytest.mark.parametrize(
    ("version", "document", "expected"),
    [
        (1, b'{"pounds":2}', Weighed(grams=907, name="unnamed")),
        (2, b'{"grams":5}', Weighed(grams=5, name="unnamed")),
        (3, b'{"grams":5,"name":"box"}', Weighed(grams=5, name="box")),
    ],
)
def test_older_versions_are_upcast_step_by_step(version: int, document: bytes, expected: Event) -> None:
    assert WEIGHED.decode(1, Weighed.type, version, document) == expected


def test_a_version_without_its_upcast_is_refused_when_the_codec_is_made() -> None:
    with pytest.raises(TypeError, match="no upcast from 2"):
        Codec(KINDS, {(Weighed.type, 1): _pounds_to_grams})


@pytest.mark.parametrize(
    ("type", "version", "document", "reason"),
    [
        ("sandbox.teleported", 1, b"{}", "no such type"),
        ("sandbox.adopted", 2, b"{}", "newest version known is 1"),
        ("sandbox.adopted", 0, b"{}", "newest version known is 1"),
        ("process.exited", 1, b'{"exit_code":"seven"}', "int"),
        ("process.exited", 1, b"{", "truncated"),
    ],
)
def test_what_is_not_known_names_position_type_and_version(
    type: str, version: int, document: bytes, reason: str
) -> None:
    with pytest.raises(UnknownEvent, match=reason) as caught:
        CODEC.decode(17, type, version, document)
    assert (caught.value.position, caught.value.type, caught.value.version) == (17, type, version)
    assert "position 17" in str(caught.value)


def test_an_event_that_is_too_large_is_refused_with_its_size() -> None:
    fits = SandboxFailed(message="x" * (MAX_EVENT_BYTES - len('{"message":""}')))
    assert len(CODEC.encode(fits)) == MAX_EVENT_BYTES
    with pytest.raises(CallerError) as caught:
        CODEC.encode(SandboxFailed(message=fits.message + "x"))
    assert caught.value.code == "invalid"
    assert caught.value.data == {"size_bytes": MAX_EVENT_BYTES + 1, "max_bytes": MAX_EVENT_BYTES}


def test_every_upcast_belongs_to_an_event_of_a_later_version() -> None:
    assert all(type in EVENTS and version < EVENTS[type].version for type, version in UPCASTS)


def test_decoders_are_made_on_first_use() -> None:
    codec = Codec()
    assert codec.shapes == {}
    assert codec.shape("sandbox.adopted") is codec.shape("sandbox.adopted")
    assert list(codec.shapes) == ["sandbox.adopted"]
    assert codec.shape("sandbox.teleported") is None
    assert isinstance(codec.decode(1, "sandbox.adopted", 1, b"{}"), msgspec.Struct)
