"""Differences and merges of texts: properties, and the places at which git clashes."""

from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandkeep_store.merging import clashes
from sandkeep_store.merging.diff import diff, numbered, split_lines
from sandkeep_store.merging.text import Clash, Kept, Taken, TextMerge, is_text, merge_text

lines = st.lists(st.integers(0, 4), max_size=14)
text = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"}\n", b"\n", b"x\r\n"]), max_size=10).map(b"".join)
texts = st.one_of(text, st.builds(bytes.__add__, text, st.sampled_from([b"end", b"a"])))


def applied(first: list[int], second: list[int]) -> list[int]:
    result, position, end = [], 0, -1
    for hunk in diff(first, second):
        assert hunk.start > end  # hunks are apart
        result += [*first[position : hunk.start], *second[hunk.new_start : hunk.new_end]]
        position = end = hunk.end
        assert hunk.start < hunk.end or hunk.new_start < hunk.new_end
    return result + first[position:]


@given(lines, lines)
@settings(max_examples=400, deadline=None)
def test_hunks_make_one_text_of_the_other(first: list[int], second: list[int]) -> None:
    assert applied(first, second) == second
    assert diff(first, first) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([0] * 100_000, [0] * 100_100),
        ([0] * 50_000 + [1] + [0] * 50_000, [0] * 30_000 + [2] + [0] * 70_000),
        ([0, 1] * 50_000, [0, 1, 1] * 33_000),
        (list(range(50_000)), list(range(50_000))[::-1]),
        (Random(1).choices(range(2), k=30_000), Random(2).choices(range(2), k=30_000)),
        (Random(1).choices(range(900), k=30_000), Random(2).choices(range(900), k=30_000)),
    ],
    ids=["equal", "moved", "alternating", "reversed", "binary", "frequent"],
)
def test_work_is_bounded(first: list[int], second: list[int]) -> None:
    assert applied(first, second) == second


def test_an_insertion_among_equal_lines_is_at_the_last_place() -> None:
    assert [tuple(hunk) for hunk in diff([0, 1, 1, 1, 2], [0, 1, 1, 1, 1, 2])] == [(4, 4, 4, 5)]
    assert [tuple(hunk) for hunk in diff([0, 1, 1, 1, 2], [0, 1, 2])] == [(2, 4, 2, 2)]


def test_a_group_ends_where_the_other_text_has_one_too() -> None:
    """As in git, at the last such place."""
    assert [tuple(hunk) for hunk in diff([0, 0], [1, 0, 1])] == [(0, 0, 0, 1), (1, 2, 2, 3)]
    assert [tuple(hunk) for hunk in diff([0, 1, 1], [1, 2])] == [(0, 2, 0, 0), (3, 3, 1, 2)]


def test_only_line_feeds_end_lines() -> None:
    assert split_lines(b"a\r\nb\rc\x0bd\x85\n\nlast") == [b"a\r\n", b"b\rc\x0bd\x85\n", b"\n", b"last"]
    assert split_lines(b"") == []
    assert b"".join(split_lines(b"a\n\n")) == b"a\n\n"
    assert numbered([[b"a", b"b"], [b"b", b"a"]]) == [[0, 1], [1, 0]]


@given(texts, texts)
@settings(max_examples=200, deadline=None)
def test_identity_and_idempotence(base: bytes, version: bytes) -> None:
    assert merge_text(base, [base, base]).text() == base
    assert merge_text(base, [version, base]).text() == version
    assert merge_text(base, [version, version, version]).text() == version


@given(texts, st.lists(texts, min_size=2, max_size=3))
@settings(max_examples=200, deadline=None)
def test_the_order_of_versions_does_not_matter(base: bytes, versions: list[bytes]) -> None:
    first = shape(merge_text(base, versions), list(range(len(versions))))
    for order in permutations(range(len(versions))):
        assert shape(merge_text(base, [versions[number] for number in order]), list(order)) == first


def shape(merge: TextMerge, order: list[int]) -> list[object]:
    found: list[object] = []
    for region in merge.regions:
        if isinstance(region, Clash):
            found.append((region.base, {order[number]: lines for number, lines in region.versions.items()}))
        elif isinstance(region, Taken):
            found.append((region.lines, {order[number] for number in region.by}))
        else:
            found.append(region.lines)
    return found


TEN = [b"%d\n" % number for number in range(10)]


def edited(*edits: tuple[int, int, bytes]) -> bytes:
    found = list(TEN)
    for start, end, new in reversed(edits):
        found[start:end] = [new] if new else []
    return b"".join(found)


def test_hunks_apart_merge_and_those_that_touch_clash() -> None:
    base = b"".join(TEN)
    merged = merge_text(base, [edited((2, 3, b"A\n")), edited((4, 5, b"B\n")), edited((6, 7, b""))])
    assert merged.text() == edited((2, 3, b"A\n"), (4, 5, b"B\n"), (6, 7, b""))
    assert merged.regions[:3] == [Kept(TEN[:2]), Taken([b"A\n"], frozenset([0]), [b"2\n"]), Kept(TEN[3:4])]
    touching = merge_text(base, [edited((2, 3, b"A\n")), edited((3, 4, b"B\n"))])
    assert touching.clashes == [Clash(TEN[2:4], {0: [b"A\n", b"3\n"], 1: [b"2\n", b"B\n"]}, 2)]
    inserted = merge_text(base, [edited((3, 3, b"A\n")), edited((3, 3, b"B\n"))])
    assert inserted.clashes == [Clash([], {0: [b"A\n"], 1: [b"B\n"]}, 3)]


def test_hunks_are_joined_transitively() -> None:
    base = b"".join(TEN)
    versions = [edited((1, 3, b"A\n")), edited((3, 5, b"B\n")), edited((5, 6, b"C\n"))]
    [clash] = merge_text(base, versions).clashes
    assert clash.base == TEN[1:6]
    assert clash.versions[2] == [*TEN[1:5], b"C\n"]


def test_equal_changes_are_taken_once() -> None:
    merged = merge_text(b"".join(TEN), [edited((2, 3, b"A\n")), edited((2, 3, b"A\n"), (8, 9, b"B\n"))])
    assert merged.text() == edited((2, 3, b"A\n"), (8, 9, b"B\n"))
    assert merged.regions[1] == Taken([b"A\n"], frozenset([0, 1]), [b"2\n"])


def test_converted_endings_do_not_clash_with_edits() -> None:
    base = b"".join(TEN)
    converted = base.replace(b"\n", b"\r\n")
    assert merge_text(base, [converted, edited((2, 3, b"A\n"))]).text() == edited((2, 3, b"A\n")).replace(
        b"\n", b"\r\n"
    )
    assert merge_text(converted, [base, edited((2, 3, b"A\n")).replace(b"\n", b"\r\n")]).text() == edited(
        (2, 3, b"A\n")
    )
    clash = merge_text(base, [edited((2, 3, b"A\n")).replace(b"\n", b"\r\n"), edited((2, 3, b"B\n"))]).clashes[0]
    assert clash == Clash([b"2\r\n"], {0: [b"A\r\n"], 1: [b"B\r\n"]}, 2)
    mixed = base.replace(b"3\n", b"3\r\n")
    assert merge_text(mixed, [mixed, converted]).text() == converted


def test_a_last_line_without_an_ending_is_a_line() -> None:
    assert merge_text(b"a\nb", [b"a\nb\n", b"x\na\nb"]).text() == b"x\na\nb\n"
    assert merge_text(b"a\nb", [b"a\nb\n", b"a\nc"]).clashes


def test_text_is_what_git_takes_for_text() -> None:
    assert is_text(b"")
    assert is_text(b"x" * 8000 + b"\0")
    assert not is_text(b"x" * 7999 + b"\0")


# -- policies ---------------------------------------------------------------------------------------------------------


CLASH = merge_text(b"1\nold\n2\n", [b"1\nsame\nA\n2\n", b"1\nsame\nB\n2\n", b"1\nsame\nA\n2\n"])


def test_one_version_may_be_chosen() -> None:
    assert clashes.choose(CLASH, {CLASH.clashes[0].start: 1}).text() == b"1\nsame\nB\n2\n"
    assert clashes.choose(CLASH, {CLASH.clashes[0].start: None}).text() == b"1\nold\n2\n"
    assert clashes.choose(CLASH, {0: 1}).clashes == CLASH.clashes


def test_all_versions_may_be_united() -> None:
    assert clashes.unite(CLASH).text() == b"1\nsame\nA\nB\n2\n"
    assert clashes.unite(merge_text(b"", [b"A", b"B"])).text() == b"A\nB"
    assert clashes.unite(merge_text(b"", [b"A\n", b"B\n"])).text() == b"A\nB\n"
    assert clashes.unite(merge_text(b"x\ny\n", [b"x\n", b"x\nz\n"])).text() == b"x\nz\n"


def test_markers_are_those_of_git() -> None:
    assert clashes.mark(CLASH, ["a", "b", "c"]).text() == (
        b"1\nsame\n<<<<<<< a, c\nA\n||||||| base\nold\n=======\nB\n>>>>>>> b\n2\n"
    )
    three = merge_text(b"old", [b"A", b"B", b"C"])
    assert clashes.mark(three, ["a", "b\n", "c"]).text() == (
        b"<<<<<<< a\nA\n||||||| base\nold\n======= b\nB\n======= c\nC\n>>>>>>> c\n"
    )
    crlf = merge_text(b"1\r\n", [b"A\r\n", b"B\r\n"])
    assert clashes.mark(crlf, ["a", "b"]).text().count(b"\r\n") == clashes.mark(crlf, ["a", "b"]).text().count(b"\n")
