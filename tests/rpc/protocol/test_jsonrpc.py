"""The protocol, byte by byte: what arrives in any pieces, right or wrong, becomes the same messages."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from sandkeep.errors import CODES, SandkeepError, error_from
from sandkeep.protocol import jsonrpc
from sandkeep.protocol.jsonrpc import Batch, Fault, Request, parse
from sandkeep.protocol.lines import MAX_LINE_BYTES, LineBuffer

CALL = b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"}'
NOTE = b'{"jsonrpc":"2.0","method":"daemon.ping","params":{}}'

MESSAGES = {
    "call": CALL,
    "notification": NOTE,
    "string id": '{"jsonrpc":"2.0","id":"ä€𝄞","method":"x","params":{"a":"ü"}}'.encode(),
    "null id": b'{"jsonrpc":"2.0","id":null,"method":"x"}',
    "batch": b"[" + CALL + b", " + NOTE + b", 5]",
    "empty batch": b"[]",
    "nested batch": b"[[" + CALL + b"]]",
    "not json": b'{"jsonrpc":"2.0","id":1,',
    "no request": b'{"id":7,"result":1}',
    "not utf-8": b'{"jsonrpc":"2.0","id":"\xc3","method":"x"}',
    "carriage return": CALL + b"\r",
}


def shown(message: Any) -> Any:
    """A message in a form that can be compared."""
    match message:
        case Batch():
            return [shown(one) for one in message.messages]
        case Request():
            return (message.method, bytes(message.id), bytes(message.params))
        case Fault():
            return (message.number, message.message, bytes(message.id))


def fault(line: bytes) -> tuple[int, Any]:
    """The number and the id with which a line is refused."""
    message = parse(line)
    assert isinstance(message, Fault)
    answer = json.loads(message.answer())
    assert answer["jsonrpc"] == "2.0"
    assert answer["error"]["data"]["code"] == "invalid"
    return answer["error"]["code"], answer["id"]


# -- in pieces --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_the_same_at_every_split_point(name: str) -> None:
    stream = MESSAGES[name] + b"\n"
    whole = [shown(parse(line)) for line in LineBuffer().feed(stream)]
    assert len(whole) == 1
    for split in range(len(stream) + 1):
        buffer = LineBuffer()
        lines = buffer.feed(stream[:split]) + buffer.feed(stream[split:])
        assert [shown(parse(line)) for line in lines] == whole, split


def test_all_messages_one_byte_at_a_time() -> None:
    buffer = LineBuffer()
    stream = b"\n".join(MESSAGES.values()) + b"\n"
    lines = [line for number in range(len(stream)) for line in buffer.feed(stream[number : number + 1])]
    assert lines == list(MESSAGES.values())
    assert len(buffer) == 0


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line and line)), st.data())
def test_lines_survive_any_pieces(lines: list[bytes], data: st.DataObject) -> None:
    stream, buffer, found = b"".join(line + b"\n" for line in lines), LineBuffer(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += buffer.feed(stream[:size])
        stream = stream[size:]
    assert found == lines


def test_empty_lines_are_skipped() -> None:
    assert LineBuffer().feed(b"\n\n" + CALL + b"\n\n") == [CALL]


# -- too long ---------------------------------------------------------------------------------------------------------


def test_the_longest_line_passes_and_one_byte_more_does_not() -> None:
    buffer = LineBuffer()
    longest = b"x" * MAX_LINE_BYTES
    assert buffer.feed(longest) == []
    assert buffer.feed(b"\n") == [longest]
    assert not buffer.overflowed
    assert buffer.feed(CALL + b"\n" + longest + b"x\n" + CALL + b"\n") == [CALL]
    assert buffer.overflowed
    assert buffer.feed(CALL + b"\n") == []


@pytest.mark.parametrize("piece", [64 * 1024, 1024 * 1024])
def test_an_endless_line_holds_no_more_than_the_limit(piece: int) -> None:
    buffer = LineBuffer()
    for _ in range(17 * 1024 * 1024 // piece):
        buffer.feed(b"x" * piece)
        assert len(buffer) <= MAX_LINE_BYTES
    assert buffer.overflowed
    assert len(buffer) == 0


# -- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"1", b"-1", b"0", b"1.5", b"1e3", b'""', b'"a"', b'"\\u00e4"', b"null", b"9" * 100])
def test_an_id_is_given_back_byte_for_byte(text: bytes) -> None:
    request = parse(b'{"jsonrpc":"2.0","method":"x","id":' + text + b"}")
    assert isinstance(request, Request)
    assert request.wants_answer
    assert bytes(request.id) == text
    assert jsonrpc.result(request.id, b"{}") == b'{"jsonrpc":"2.0","id":' + text + b',"result":{}}'


@pytest.mark.parametrize("text", [b"true", b"false", b"{}", b"[]", b"[1]", b'"' + b"x" * 300 + b'"', b"9" * 257])
def test_what_is_no_id_is_refused_and_not_repeated(text: bytes) -> None:
    assert fault(b'{"jsonrpc":"2.0","method":"x","id":' + text + b"}") == (jsonrpc.INVALID_REQUEST, None)


def test_a_request_without_an_id_is_a_notification() -> None:
    request = parse(NOTE)
    assert isinstance(request, Request)
    assert not request.wants_answer


def test_the_last_of_two_equal_members_counts() -> None:
    assert shown(parse(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a","method":"b"}')) == ("b", b"2", b"{}")


# -- not a request ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"nul",
        b"   ",
        b'{"jsonrpc":"2.0","method":"x","id":NaN}',
        b'{"jsonrpc":"2.0","method":"x","id":1,"params":{"a":NaN}}',
        b'{"jsonrpc":"2.0","method":"x","id":1,"params":{"a":Infinity}}',
        b'{"jsonrpc":"2.0","method":"x","id":1,"params":{"a":01}}',
        b'{"jsonrpc":"2.0","method":"x","id":1} {}',
        b'{"jsonrpc":"2.0","method":"x","id":1,"params":{"a":"\\ud800"}}',
        b'{"jsonrpc":"2.0","method":"\xff","id":1}',
        b'{"jsonrpc":"2.0","method":"x","id":1,"params":{"a":"\xe2\x82"}}',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"x","id":1}',
        b'{"jsonrpc":"2.0","method":"x","id":1,"params":' + b"[" * 200_000,
        b"[" * 200_000 + b"]" * 200_000,
        b'{"a":' * 200_000,
    ],
)
def test_what_is_not_json_is_a_parse_error_without_an_id(line: bytes) -> None:
    assert fault(line) == (jsonrpc.PARSE_ERROR, None)


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b"5", None),
        (b'"text"', None),
        (b"null", None),
        (b"{}", None),
        (b'{"id":7}', 7),
        (b'{"jsonrpc":"2.0","id":7}', 7),
        (b'{"jsonrpc":"1.0","id":7,"method":"x"}', 7),
        (b'{"jsonrpc":2.0,"id":7,"method":"x"}', 7),
        (b'{"id":7,"method":"x"}', 7),
        (b'{"jsonrpc":"2.0","id":"s","method":5}', "s"),
        (b'{"jsonrpc":"2.0","id":7,"method":null}', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":{}}', 7),
        (b'{"jsonrpc":"2.0","id":[7],"method":5}', None),
    ],
)
def test_what_is_no_request_is_refused_with_its_id(line: bytes, request_id: Any) -> None:
    assert fault(line) == (jsonrpc.INVALID_REQUEST, request_id)


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_keeps_its_order_and_its_faults() -> None:
    message = parse(b" [" + CALL + b",1," + NOTE + b",[" + CALL + b"]] ")
    assert isinstance(message, Batch)
    assert [type(one) for one in message.messages] == [Request, Fault, Request, Fault]


def test_an_empty_batch_is_one_fault() -> None:
    assert fault(b"[]") == (jsonrpc.INVALID_REQUEST, None)


def test_a_batch_has_a_limit_that_costs_no_memory() -> None:
    full = parse(b"[" + b",".join([CALL] * jsonrpc.MAX_BATCH) + b"]")
    assert isinstance(full, Batch)
    assert len(full.messages) == jsonrpc.MAX_BATCH
    assert fault(b"[" + b",".join([b"1"] * (jsonrpc.MAX_BATCH + 1)) + b"]") == (jsonrpc.INVALID_REQUEST, None)
    assert fault(b"[" + b"1," * (8 * 1024 * 1024 - 1) + b"1]") == (jsonrpc.INVALID_REQUEST, None)


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES)
def test_every_error_survives_the_way_to_the_client(code: str) -> None:
    sent = error_from(code, "Something: do this.", {"sandbox_id": "sbx_1"})
    answer = jsonrpc.parse_answer(jsonrpc.error(jsonrpc.Raw(b"7"), sent))
    assert answer.id == 7
    assert answer.error is not None
    assert answer.error.code == {"invalid": -32602, "internal": -32603}.get(code, -32000)
    received = answer.error.to_exception()
    assert type(received) is type(sent)
    assert (received.code, received.message, received.data) == (sent.code, sent.message, sent.data)


def test_an_error_of_a_newer_daemon_is_still_an_error() -> None:
    line = (
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"m","data":{"code":"brand_new","message":5,"x":1}}}'
    )
    answer = jsonrpc.parse_answer(line)
    assert answer.error is not None
    failure = answer.error.to_exception()
    assert isinstance(failure, SandkeepError)
    assert failure.data == {"unknown_code": "brand_new", "x": 1}


def test_a_request_reads_back_as_it_was_made() -> None:
    line = jsonrpc.request(3, "sandbox.exec", {"command": ["true"], "stdin": b"\x00"})
    assert line.endswith(b"\n")
    assert shown(parse(line[:-1])) == ("sandbox.exec", b"3", b'{"command":["true"],"stdin":"AA=="}')
    assert shown(parse(jsonrpc.request(UNSET, "rpc.hello", {})[:-1])) == ("rpc.hello", b"", b"{}")


# -- anything at all --------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NEARLY = st.fixed_dictionaries(
    {}, optional={"jsonrpc": st.just("2.0") | JSON, "method": st.text(max_size=8) | JSON, "id": JSON, "params": JSON}
)


@given(
    st.binary(max_size=200)
    | st.sampled_from([*MESSAGES.values()]).flatmap(lambda line: st.permutations(list(line)).map(bytes))
)
def test_no_bytes_can_make_it_raise(line: bytes) -> None:
    answer_all(parse(line))


@given(NEARLY | st.lists(NEARLY, max_size=4) | JSON)
def test_no_json_can_make_it_raise(value: Any) -> None:
    answer_all(parse(json.dumps(value, ensure_ascii=False).encode(errors="replace")))


def answer_all(message: jsonrpc.Message) -> None:
    """Whatever came, an answer to it is one line of JSON."""
    for one in message.messages if isinstance(message, Batch) else [message]:
        answer = (
            one.answer()
            if isinstance(one, Fault)
            else jsonrpc.result(one.id if one.wants_answer else jsonrpc.NULL_ID, b"{}")
        )
        assert b"\n" not in answer
        assert json.loads(answer)["jsonrpc"] == "2.0"
