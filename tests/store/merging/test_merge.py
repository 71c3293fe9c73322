"""Merges of trees: what is clean, each kind of conflict, policies, and that the order of branches is nothing."""

import os
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.merging.stacks import DIRECTORY, Tree, bench, complete, file, grow, link

from sandkeep.errors import CallerError, SandkeepError
from sandkeep_store.merging.model import Merge, Policy, from_document, to_document

TEXT = b"".join(b"line %d\n" % number for number in range(12))
FAIL, UNION, MARKERS, OURS = Policy(), Policy(rule="union"), Policy(rule="markers"), Policy(rule="ours", branch="b")


def edited(line: int, new: bytes = b"new\n", text: bytes = TEXT) -> bytes:
    return text.replace(b"line %d\n" % line, new)


def outcome(
    base: Mapping[bytes, Any], branches: Mapping[str, Mapping[bytes, Any]], policy: Policy = FAIL
) -> tuple[Tree, dict[bytes, str], Merge]:
    """The resulting tree, the conflicts, and the merge."""
    with bench() as at:
        merged = at.merge(base, branches, policy)
        assert from_document(to_document(merged)) == merged
        return at.result(merged, base), {conflict.path: conflict.kind for conflict in merged.conflicts}, merged


def clean(base: Any, branches: Any, policy: Policy = FAIL) -> Tree:
    found, conflicts, _ = outcome(base, branches, policy)
    assert conflicts == {}
    return found


# -- properties -------------------------------------------------------------------------------------------------------


@given(st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_identity_and_idempotence(random: Random) -> None:
    base = grow(random, {}, 12)
    branch = grow(random, base, 6)
    assert clean(base, {"a": base, "b": base}) == base
    assert clean(base, {"a": branch, "b": base}) == branch
    assert clean(base, {"a": branch, "b": branch, "c": branch}) == branch


@given(st.randoms(use_true_random=False), st.sampled_from([FAIL, UNION, MARKERS, OURS]))
@settings(max_examples=25, deadline=None)
def test_the_order_of_branches_does_not_matter(random: Random, policy: Policy) -> None:
    base = grow(random, {}, 14)
    branches = {name: grow(random, base, 5) for name in "abc"}
    with bench() as at:
        documents, results = set(), []
        for order in ["abc", "cab", "bca"]:
            merged = at.merge(base, {name: branches[name] for name in order}, policy)
            found = at.result(merged, base)
            results.append((found, [(conflict.path, conflict.kind) for conflict in merged.conflicts]))
            documents.add(tuple((name, one.how, one.branches) for name, one in merged.decisions.items()))
            for name in found:  # the result is a tree
                parent = name.rpartition(b"/")[0] or b"."
                assert found[parent][0] == "directory"
    assert results[0] == results[1] == results[2]
    assert len(documents) == 1


@given(st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_what_one_branch_alone_changed_is_in_the_result_or_in_a_conflict(random: Random) -> None:
    base = grow(random, {}, 14)
    branches = {name: grow(random, base, 4) for name in "ab"}
    found, _, merged = outcome(base, branches)
    owned = [path for conflict in merged.conflicts for path in conflict.paths]
    for name in {*base, *branches["a"], *branches["b"]}:
        mine, others = branches["a"].get(name), branches["b"].get(name)
        if others == base.get(name) != mine and not any(name == path or name.startswith(path + b"/") for path in owned):
            stays = (
                mine is None
                and base[name][0] == "directory"
                and any(other.startswith(name + b"/") for other in [*found, *owned])
            )
            assert found.get(name) == mine or stays


# -- clean merges -----------------------------------------------------------------------------------------------------


def test_different_paths_and_different_lines() -> None:
    base = {b"f": TEXT, b"g": b"g", b"h": b"h"}
    branches = {"a": {**base, b"f": edited(1), b"n": b"n"}, "b": {b"f": edited(8), b"g": b"g", b"e": DIRECTORY}}
    found, conflicts, merged = outcome(base, branches)
    assert conflicts == {}
    assert found == complete({b"f": edited(8, text=edited(1)), b"g": b"g", b"n": b"n", b"e": DIRECTORY})
    told = {name: (one.how, one.branches) for name, one in merged.decisions.items()}
    assert told == {
        b"e": ("taken", ("b",)), b"f": ("merged", ("a", "b")), b"h": ("taken", ("b",)), b"n": ("taken", ("a",)),
    }  # fmt: skip


def test_five_branches() -> None:
    branches = {f"b{number}": {b"f": edited(2 * number, b"%d\n" % number)} for number in range(5)}
    assert clean({b"f": TEXT}, branches)[b"f"][2].count(b"line") == 7


def test_content_and_mode_are_merged_separately() -> None:
    found, _, merged = outcome({b"f": TEXT}, {"a": {b"f": edited(1)}, "b": {b"f": file(TEXT, 0o755)}})
    assert found[b"f"] == ("file", 0o755, edited(1))
    assert (merged.decisions[b"f"].how, merged.decisions[b"f"].branches) == ("merged", ("a", "b"))
    both = clean({b"f": TEXT}, {"a": {b"f": file(edited(1), 0o755)}, "b": {b"f": file(edited(9), 0o755)}})
    assert both[b"f"] == ("file", 0o755, edited(9, text=edited(1)))


def test_directories_are_deleted_only_if_nothing_is_left() -> None:
    base = {b"d/e/f": b"f", b"d/g": b"g"}
    assert clean(base, {"a": {}, "b": base}) == complete({})
    assert clean(base, {"a": {}, "b": {**base, b"d/e/new": b"n"}}) == complete({b"d/e/new": b"n"})
    chmodded = {**base, b"d/e": ("directory", 0o700)}
    assert clean(base, {"a": {}, "b": {**chmodded, b"d/e/new": b"n"}}) == complete(
        {b"d/e": ("directory", 0o700), b"d/e/new": b"n"}
    )
    assert outcome(base, {"a": {}, "b": chmodded})[1] == {b"d/e": "deleted"}


def test_a_file_that_became_a_directory_against_its_deletion() -> None:
    base = {b"f": b"f", b"d/x": b"x"}
    assert clean(base, {"a": {b"f/n": b"n", b"d/x": b"x"}, "b": {b"d/x": b"x"}}) == complete(
        {b"f/n": b"n", b"d/x": b"x"}
    )
    assert clean(base, {"a": {b"f": b"f", b"d": b"file"}, "b": {b"f": b"f"}}) == complete({b"f": b"f", b"d": b"file"})


def test_converted_line_endings() -> None:
    crlf = TEXT.replace(b"\n", b"\r\n")
    assert clean({b"f": TEXT}, {"a": {b"f": crlf}, "b": {b"f": edited(3)}})[b"f"][2] == edited(3).replace(
        b"\n", b"\r\n"
    )


# -- conflicts --------------------------------------------------------------------------------------------------------

X, Y = file(b"x\n"), file(b"y\n")
CONFLICTS = {
    "content": ({b"p": b"1\n"}, {b"p": b"2\n"}, {b"p": b"3\n"}, {b"p": "content"}),
    "binary": ({b"p": b"\0"}, {b"p": b"\0a"}, {b"p": b"\0b"}, {b"p": "binary"}),
    "one binary": ({b"p": b"1\n"}, {b"p": b"2\n"}, {b"p": b"\0b"}, {b"p": "binary"}),
    "deleted": ({b"p": b"1\n"}, {}, {b"p": b"2\n"}, {b"p": "deleted"}),
    "deleted and chmod": ({b"p": b"1\n"}, {}, {b"p": file(b"1\n", 0o755)}, {b"p": "deleted"}),
    "deleted directory": ({b"d/p": b"1\n", b"d/q": b""}, {}, {b"d/p": b"2\n", b"d/q": b""}, {b"d/p": "deleted"}),
    "deleted and a link": ({b"p": b"1\n"}, {}, {b"p": link(b"q")}, {b"p": "deleted"}),
    "added": ({}, {b"p": b"1\n"}, {b"p": b"2\n"}, {b"p": "added"}),
    "added with modes": ({}, {b"p": X}, {b"p": file(b"x\n", 0o755)}, {b"p": "mode"}),
    "added links": ({}, {b"p": link(b"a")}, {b"p": link(b"b")}, {b"p": "added"}),
    "added binaries": ({}, {b"p": b"\0a"}, {b"p": b"\0b"}, {b"p": "added"}),
    "mode": ({b"p": X}, {b"p": file(b"x\n", 0o755)}, {b"p": file(b"x\n", 0o700)}, {b"p": "mode"}),
    "modes of a directory": (
        {b"d/x": X}, {b"d": ("directory", 0o700), b"d/x": X}, {b"d": ("directory", 0o750), b"d/x": X}, {b"d": "mode"}
    ),
    "modes of a new directory": (
        {}, {b"d": ("directory", 0o700), b"d/x": X}, {b"d": ("directory", 0o750), b"d/y": X}, {b"d": "mode"}
    ),
    "symlink": ({b"p": link(b"1")}, {b"p": link(b"2")}, {b"p": link(b"3")}, {b"p": "symlink"}),
    "kind": ({b"p": X}, {b"p": link(b"2")}, {b"p": Y}, {b"p": "kind"}),
    "kind of two new ones": ({}, {b"p": X}, {b"p/x": Y}, {b"p": "kind"}),
    "directory for an edited file": ({b"p": X}, {b"p/x": X}, {b"p": Y}, {b"p": "kind"}),
    "file for a directory with a new file": ({b"p/x": X}, {b"p": X}, {b"p/x": X, b"p/n": Y}, {b"p": "kind"}),
    "file for a directory with an edit": ({b"p/x": X}, {b"p": X}, {b"p/x": Y}, {b"p": "kind"}),
    "file for one deep": ({b"p/q/x": X}, {b"p": X}, {b"p/q/x": X, b"p/q/n/m": Y}, {b"p": "kind"}),
    "fifo": ({b"p": X}, {b"p": ("fifo", 0o644)}, {b"p": Y}, {b"p": "kind"}),
    "case": ({}, {b"Read": X}, {b"read": X}, {b"Read": "case"}),
    "case of directories": ({}, {b"d/X/1": X}, {b"d/x/2": X}, {b"d/X": "case"}),
    "case beyond ASCII": ({}, {"\u00c4".encode(): X}, {"\u00e4".encode(): X}, {"\u00c4".encode(): "case"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFLICTS)
def test_conflicts(name: str) -> None:
    base, mine, others, expected = CONFLICTS[name]
    for branches in ({"a": mine, "b": others}, {"a": others, "b": mine}, {"a": mine, "b": others, "c": base}):
        found, conflicts, merged = outcome(base, branches)
        assert conflicts == expected
        [conflict] = merged.conflicts
        assert set(conflict.branches) == {"a", "b"}
        if conflict.kind not in ("mode", "case"):
            assert found.get(conflict.path) == complete(base).get(conflict.path)


def test_a_name_that_one_branch_has_in_both_cases_is_its_own_matter() -> None:
    both = {b"Read": X, b"read": Y}
    assert clean({}, {"a": both, "b": {b"read": Y}}) == complete(both)
    assert clean(both, {"a": {b"Read": X, b"read": X}, "b": both}) == complete({b"Read": X, b"read": X})
    assert clean({b"read": X}, {"a": {b"Read": X, b"read": X}, "b": {b"read": X}}) == complete({b"Read": X, b"read": X})
    renamed = {"a": {b"Read": X}, "b": {b"read": Y}}
    assert outcome({b"read": X}, renamed)[1] == {b"read": "deleted"}
    assert outcome({b"read": X}, renamed, UNION)[1] == {b"Read": "case"}


def test_a_conflict_has_all_that_is_needed_to_show_it() -> None:
    with bench() as at:
        merged = at.merge({b"p": TEXT}, {"a": {b"p": edited(2, b"\xff\n")}, "b": {b"p": file(edited(2), 0o700)}})
        [conflict] = merged.conflicts
        assert at.blob(conflict.base.sha256) == TEXT
        assert at.blob(conflict.branches["b"].sha256) == edited(2)
        assert conflict.branches["b"].entry.mode == conflict.mode == 0o700  # type: ignore[union-attr]
        [hunk] = conflict.hunks
        assert (hunk.start, hunk.base) == (2, ["line 2\n"])
        assert hunk.branches == {"a": ["\\xff\n"], "b": ["new\n"]}
        assert not conflict.is_cut
        assert sorted(os.listdir(f"{at.root}/blobs")) == sorted({
            version.sha256 for version in (conflict.base, *conflict.branches.values())
        })  # fmt: skip
        large = at.merge({b"p": b""}, {"a": {b"p": b"x" * 300_000}, "b": {b"p": b"y" * 300_000}}).conflicts[0]
        assert large.is_cut


# -- policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFLICTS)
def test_ours_takes_the_branch_wherever_it_takes_part(name: str) -> None:
    base, mine, others, _ = CONFLICTS[name]
    branches = {"a": mine, "b": others, "c": base}
    for preferred, wanted in (("a", mine), ("b", others)):
        found, conflicts, _ = outcome(base, branches, Policy(rule="ours", branch=preferred))
        if name != "modes of a new directory" and "deleted directory" not in name:
            assert found == complete(wanted)
        assert conflicts == {}
    assert outcome(base, branches, Policy(rule="ours", branch="c"))[1] == CONFLICTS[name][3]


def test_ours_keeps_what_does_not_clash() -> None:
    branches = {"a": {b"p": edited(1, b"A\n", edited(9))}, "b": {b"p": edited(1, b"B\n")}}
    assert clean({b"p": TEXT}, branches, OURS)[b"p"][2] == edited(1, b"B\n", edited(9))


def test_union() -> None:
    base = {b"p": b"1\n", b"e": b"1\n"}
    branches = {"b": {b"p": b"B\n", b"n": b"b\n"}, "a": {b"p": b"A\n", b"n": b"a\n", b"e": b"2\n"}}
    assert clean(base, branches, UNION) == complete({b"p": b"A\nB\n", b"n": b"a\nb\n", b"e": b"2\n"})
    for name in ("binary", "symlink", "mode", "kind", "added binaries", "case"):
        base, mine, others, expected = CONFLICTS[name]
        assert outcome(base, {"a": mine, "b": others}, UNION)[1] == expected


def test_markers() -> None:
    found, conflicts, merged = outcome({b"p": b"1\n"}, {"b": {b"p": b"B\n"}, "a": {b"p": b"A\n"}}, MARKERS)
    assert conflicts == {}
    assert found[b"p"][2] == b"<<<<<<< a\nA\n||||||| base\n1\n=======\nB\n>>>>>>> b\n"
    assert merged.decisions[b"p"].how == "policy:markers"
    for name in ("binary", "symlink", "mode", "kind", "added binaries", "case", "deleted"):
        base, mine, others, expected = CONFLICTS[name]
        assert outcome(base, {"a": mine, "b": others}, MARKERS)[1] == expected


def test_takes_are_a_branchs_whatever_the_others_did() -> None:
    base = {b"d/x": X, b"d/y": X, b"e": X}
    branches = {"a": {b"d/x": Y, b"d/n": Y, b"e": Y}, "b": {b"d/y": Y, b"e": X}, "c": {b"e": file(b"z\n")}}
    assert clean(base, branches, Policy(takes={b"d/": "a", b"e": "c"})) == complete(
        {b"d/x": Y, b"d/n": Y, b"e": file(b"z\n")}
    )
    assert clean(base, branches, Policy(takes={b"d": "c", b"d/y": "b", b"e": "b"})) == complete({b"d/y": Y, b"e": X})
    assert clean(base, {"a": {}, "b": base, "c": base}, Policy(takes={b"d/x": "b"})) == complete({b"d/x": X})
    assert clean(base, branches, Policy(takes={b".": "a"})) == complete(branches["a"])


def test_takes_that_do_not_fit_together_are_a_conflict() -> None:
    branches = {"a": {b"p/x": X}, "b": {}, "c": {b"p": Y}}
    assert outcome({}, branches, Policy(takes={b"p": "b", b"p/x": "a"}))[1] == {b"p": "kind"}
    assert outcome({}, branches, Policy(takes={b"p": "c", b"p/x": "a"}))[1] == {b"p": "kind"}


def test_a_policy_names_branches() -> None:
    for policy in (Policy(rule="ours"), Policy(rule="ours", branch="x"), Policy(takes={b"p": "x"})):
        with pytest.raises(CallerError) as caught:
            outcome({}, {"a": {}}, policy)
        assert caught.value.code == "invalid"


# -- limits and faults ------------------------------------------------------------------------------------------------


def test_progress_can_end_the_work() -> None:
    class Ended(Exception):
        pass

    with bench() as at:

        def end(count: int) -> None:
            if os.listdir(f"{at.root}/blobs"):
                raise Ended

        with pytest.raises(Ended):
            at.merge({b"p": b"\0"}, {"a": {b"p": b"\0a"}, "b": {b"p": b"\0b"}}, progress=end)
        assert os.listdir(f"{at.root}/blobs") == []


def test_a_disk_that_is_full_is_named() -> None:
    with bench() as at:
        at.spool = at.open("/dev/full", os.O_RDWR)
        with pytest.raises(SandkeepError) as caught:
            at.merge({b"p": TEXT}, {"a": {b"p": edited(1)}, "b": {b"p": edited(9)}})
        assert caught.value.code == "storage_unavailable"


def test_a_damaged_document_is_refused() -> None:
    with pytest.raises(SandkeepError) as caught:
        from_document(b"\x80")
    assert caught.value.code == "snapshot_corrupt"
