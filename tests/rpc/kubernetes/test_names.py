"""Names and label values: valid, and never one for two texts."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeep.kubernetes.names import is_object_name, label_value, object_name

LABEL_RULE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
NAME_RULE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LIKE_NAMES = st.text("ab1-_.:AB\n é", max_size=70) | st.text(max_size=200)


@given(LIKE_NAMES, st.integers(20, 63))
def test_an_object_name_is_valid(text: str, limit: int) -> None:
    name = object_name(text, limit)
    assert NAME_RULE.fullmatch(name)
    assert len(name) <= limit


@given(LIKE_NAMES)
def test_a_label_value_is_valid(text: str) -> None:
    value = label_value(text)
    assert LABEL_RULE.fullmatch(value)
    assert len(value) <= 63
    assert bool(value) == bool(text)


@pytest.mark.parametrize("made", [object_name, label_value])
@pytest.mark.parametrize("text", ["a", "counter-10", "a" * 63])
def test_a_valid_text_stays_as_it_is(made: object, text: str) -> None:
    assert callable(made)
    assert made(text) == text


def test_an_owner_is_recognized_in_its_label() -> None:
    assert re.fullmatch("uid-1000-[0-9a-f]{16}", label_value("uid:1000"))
    assert label_value("key:Build.7").startswith("key-Build.7-")


@pytest.mark.parametrize("made", [object_name, label_value])
def test_no_two_texts_share_a_name(made: object) -> None:
    """Neither those that differ in characters that are not allowed, nor a text that is another's name."""
    assert callable(made)
    texts = ["a:b", "a_b:", "a-b", "A:B", "a::b", "a" * 64, "a" * 65, ":", "::", "7", "x-7"]
    texts += [made(text) for text in ("a:b", "a" * 64)]
    assert len({made(text) for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("text", "valid"), [("a", True), ("a.b-c", True), ("A", False), ("a/b", False), ("a\n", False), ("a" * 254, False)]
)
def test_names_of_objects_are_recognized(text: str, valid: bool) -> None:
    assert is_object_name(text) is valid
