"""The stream protocol's wire format."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeep.errors import CallerError
from sandkeep.protocol import frames
from sandkeep.protocol.frames import AttachQuery, EventsQuery, FilesQuery, LogsQuery


@given(st.sampled_from([1, 2, 3]), st.integers(0, 2**63), st.binary(max_size=100))
def test_output_comes_out_as_it_went_in(stream: int, offset: int, data: bytes) -> None:
    frame = frames.pack_output(stream, offset, data)
    assert len(frame) == frames.HEADER_BYTES + len(data) == 9 + len(data)
    assert frames.parse_output(frame) == (stream, offset, data)


def test_a_frame_is_a_byte_and_eight_more_for_the_offset() -> None:
    assert frames.pack_output(2, 258, b"x") == b"\x02\0\0\0\0\0\0\x01\x02x"


@given(st.binary(max_size=40))
def test_any_other_bytes_are_no_output(data: bytes) -> None:
    if len(data) >= 9 and data[0] in (1, 2, 3):
        assert frames.parse_output(data).data == data[9:]
    else:
        with pytest.raises(ValueError):
            frames.parse_output(data)


@given(st.binary(min_size=1, max_size=200))
def test_a_path_of_any_bytes_goes_through_a_target(path: bytes) -> None:
    target = frames.parse_target(frames.target("files", "sbx_1", path=path, op="put"))
    assert target.parts == ("v1", "files", "sbx_1")
    assert frames.parse_query(FilesQuery, target.query) == FilesQuery(path=path, op="put")


@given(st.text(min_size=1, max_size=20))
def test_a_name_of_any_letters_is_one_part(name: str) -> None:
    assert frames.parse_target(frames.target("logs", "sbx_1", name)).parts == ("v1", "logs", "sbx_1", name)


def test_a_query_is_read_as_forms_are() -> None:
    assert frames.parse_target("/v1/files/b?path=a+b%2Bc%20d&&op=get").query == {"path": b"a b+c d", "op": b"get"}


def test_what_is_not_asked_is_left_out() -> None:
    assert frames.target("events", after=None, sandbox="sbx_1") == "/v1/events?sandbox=sbx_1"
    assert frames.target("logs", "s", "p", follow=True, stdout=0) == "/v1/logs/s/p?follow=1&stdout=0"


def test_queries_have_defaults_and_types() -> None:
    asked = frames.parse_query(LogsQuery, {"stdout": b"12", "follow": b"1"})
    assert asked == LogsQuery(stdout=12, stderr=0, follow=True)
    assert frames.parse_query(EventsQuery, {"after": b"now"}) == EventsQuery(after="now")
    assert frames.parse_query(AttachQuery, {"rows": b"10", "read_only": b"true"}) == AttachQuery(
        rows=10, read_only=True
    )


@pytest.mark.parametrize(
    ("wanted", "query"),
    [
        (LogsQuery, {"stdout": b"-1"}),
        (LogsQuery, {"stdout": b"1.5"}),
        (LogsQuery, {"stdin": b"1"}),
        (LogsQuery, {"follow": b"perhaps"}),
        (EventsQuery, {"type": b"Sandbox"}),
        (AttachQuery, {"rows": b"0"}),
        (AttachQuery, {"term": b"-x"}),
        (FilesQuery, {"path": b""}),
        (FilesQuery, {"path": b"a", "op": b"remove"}),
        (FilesQuery, {}),
    ],
)
def test_a_query_that_is_wrong_is_refused(wanted: type[msgspec.Struct], query: dict[str, bytes]) -> None:
    with pytest.raises(msgspec.ValidationError):
        frames.parse_query(wanted, query)  # type: ignore[type-var]


@pytest.mark.parametrize("name", ["token", "Token", "access_token", "authorization", "to%6Ben"])
def test_a_token_in_a_target_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(CallerError) as caught:
        frames.parse_target(f"/v1/events?{name}=skt_0_secret")
    assert caught.value.code == "invalid"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("target", ["/v1/logs/%ff/p", "/v1/events?a=1&a=2", "/v1/events?%ff=1"])
def test_a_target_that_is_wrong_is_refused(target: str) -> None:
    with pytest.raises(CallerError, match="invalid"):
        frames.parse_target(target)


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(CallerError, match="after: is not UTF-8"):
        frames.parse_query(EventsQuery, {"after": b"\xff"})


def test_messages_are_objects_with_a_kind() -> None:
    assert json.loads(frames.encode(frames.CaughtUp())) == {"kind": "caught_up"}
    assert json.loads(frames.encode(frames.Resize(rows=2, cols=3))) == {"kind": "resize", "rows": 2, "cols": 3}
    assert frames.decode_from_client(b'{"kind":"eof","more":1}') == frames.Eof()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"kind":"exit"}', '{"kind":"resize","rows":0,"cols":1}', '{"kind":"end","sha256":"x"}']
)
def test_what_a_client_may_not_say_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.decode_from_client(text)


def test_an_error_arrives_as_what_it_was() -> None:
    error = CallerError("not_found", "there is no such thing", sandbox_id="sbx_1")
    back = frames.refusal_of(frames.encode(frames.Refusal(error=frames.wire_error(error))))
    assert isinstance(back, CallerError)
    assert (back.code, back.message, back.data) == (error.code, error.message, error.data)
    assert frames.refusal_of(b"<html>") is None
