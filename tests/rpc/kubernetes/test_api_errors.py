"""Whose fault a refusal of the API server is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeep.errors import SandkeepError
from sandkeep.kubernetes.api_errors import error_of


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "invalid"),
        (401, "not_configured"),
        (403, "not_configured"),
        (404, "not_found"),
        (409, "conflict"),
        (422, "invalid"),
        (429, "provider_unavailable"),
        (500, "provider_unavailable"),
        (0, "provider_unavailable"),
    ],
)
def test_each_status_has_its_code(status: int, code: str) -> None:
    error = error_of(status, json.dumps({"kind": "Status", "message": "pods is\n forbidden."}), "listing pods")
    assert error.code == code
    assert error.message.startswith("listing pods: pods is forbidden")


def test_a_body_that_is_no_status_is_told_as_it_is() -> None:
    assert error_of(404, "404 page not found\n", "x").message == "x: 404 page not found"
    assert error_of(500, b"<html>\xff", "x").message == "x: <html>\ufffd"
    assert error_of(503, None, "x").message == "x: the cluster answered HTTP status 503"
    assert len(error_of(503, "y" * 100_000, "x").message) < 2000


@given(st.integers(), st.none() | st.text() | st.binary() | st.sampled_from(["null", "[]", "7", '{"message": 7}']))
def test_any_answer_is_an_error(status: int, body: str | bytes | None) -> None:
    assert isinstance(error_of(status, body, "x"), SandkeepError)
