"""The channels of an exec, without a connection."""

import json
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeepd.providers.common.remote import MAX_SHOWN, Outcome, readable
from sandkeepd.providers.kubernetes.channels import (
    Demultiplexer,
    exec_path,
    outcome,
    resize_message,
    status_message,
)

MESSAGES = st.lists(st.binary(max_size=50), max_size=20)


@given(MESSAGES, st.randoms(use_true_random=False))
def test_any_pieces_of_messages(messages: list[bytes], random: "st.random.Random") -> None:  # type: ignore[name-defined]
    """Each byte gets to its message's channel, wherever the network cuts."""
    demultiplexer = Demultiplexer()
    for message in messages:
        cuts = sorted(random.choices(range(len(message) + 1), k=random.randrange(4)))
        pieces = [message[start:end] for start, end in zip([0, *cuts], [*cuts, len(message)], strict=True)]
        fed = [demultiplexer.feed(piece, is_last=number == len(pieces)) for number, piece in enumerate(pieces, 1)]
        assert b"".join(data for _, data in fed) == message[1:]
        assert {channel for channel, data in fed if data} <= set(message[:1])


@given(st.binary(max_size=300))
def test_no_status_fails(status: bytes) -> None:
    assert outcome(status).exit_code in (None, 0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["status", "details", "causes", "reason", "message", "other"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_status_of_any_shape_fails(document: object) -> None:
    found = outcome(json.dumps(document).encode())
    assert found.exit_code is None or 0 <= found.exit_code <= 255
    assert found.message.isprintable()


def test_a_status_that_nests_without_end() -> None:
    assert outcome(b"[" * 60_000).exit_code is None
    assert outcome(b'{"details":' * 5000).exit_code is None


@pytest.mark.parametrize(
    ("code", "expected"),
    [("0", 0), ("3", 3), ("255", 255), ("256", None), ("-1", None), ("٣", None), ("1e3", None), ("", None), (3, None)],
)
def test_exit_codes(code: object, expected: int | None) -> None:
    causes = [{"reason": "Other", "message": "7"}, {"reason": "ExitCode", "message": code}]
    document = {"status": "Failure", "message": "command terminated", "details": {"causes": causes}}
    assert outcome(json.dumps(document).encode()) == Outcome(expected, "command terminated")


def test_success() -> None:
    assert outcome(b'{"metadata":{},"status":"Success"}') == Outcome(0, "")


@given(st.text() | st.none() | st.integers())
def test_what_errors_show_is_one_short_line(text: object) -> None:
    line = readable(text)
    assert line.isprintable()
    assert len(line) <= MAX_SHOWN


def test_the_message_of_a_refusal() -> None:
    assert status_message(b'{"kind":"Status","message":"pods \\"x\\" not found"}') == 'pods "x" not found'
    assert status_message(b"404 page not found\n") == "404 page not found"
    assert status_message(b"\xff\x1b[2J\0") == "\ufffd [2J"


@given(st.text(min_size=1), st.lists(st.text(), min_size=1), st.text(min_size=1))
def test_paths_hold_any_words(pod: str, command: list[str], container: str) -> None:
    path = urlsplit(exec_path("some namespace", pod, command, container, stdin=True, tty=False))
    assert unquote(path.path) == f"/api/v1/namespaces/some namespace/pods/{pod}/exec"
    assert path.path.count("/") == 7
    words = [("command", word) for word in command]
    assert parse_qsl(path.query, keep_blank_values=True) == [
        *words, ("stdin", "true"), ("tty", "false"), ("container", container),
    ]  # fmt: skip


def test_sizes() -> None:
    assert resize_message(24, 80) == b'\x04{"Width":80,"Height":24}'
