"""Resolution by hunk: a branch decides what clashes, and the clean edits of all others stay."""

from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.merging.stacks import Tree, bench, complete, file, grow, link
from tests.store.merging.test_merge import edited

from sandkeep.errors import CallerError
from sandkeep_store.merging.model import Dropped, Merge, Policy, from_document, to_document
from sandkeep_store.merging.resolve import Delete, Resolution, TakeBase, TakeBranch, TakeContent, TakeHunks, resolve

LINES = [b"1\n", b"2\n", b"3\n", b"4\n", b"5\n", b"6\n", b"7\n"]


def lines(**changed: str) -> bytes:
    """The text with some of its lines changed, such as ``_3="three"``."""
    return b"".join(changed[f"_{n + 1}"].encode() + b"\n" if f"_{n + 1}" in changed else x for n, x in enumerate(LINES))


BASE = {b"m": lines()}
FIVE = {
    "b1": {b"m": lines(_1="b1")}, "b2": {b"m": lines(_5="b2")}, "b3": {b"m": lines(_7="b3")},
    "b4": {b"m": lines(_3="b4")}, "b5": {b"m": lines(_3="b5")},
}  # fmt: skip


def resolved(
    base: Mapping[bytes, Any], branches: Mapping[str, Mapping[bytes, Any]], *steps: Mapping[bytes, Resolution]
) -> tuple[Tree, Merge]:
    """Resolve conflicts in steps, between which the merge is on the disk."""
    with bench() as at:
        merged = from_document(to_document(at.merge(base, branches)))
        for resolutions in steps:
            merged = from_document(to_document(resolve(merged, resolutions, blobs=at.blobs, now_ns=5)))
        return at.result(merged, base), merged


def outcome_of(merged: Merge) -> list[tuple[bytes, str, Any]]:
    """The conflicts that are left, without what tells how they were decided."""
    return [(each.path, each.kind, [hunk.start for hunk in each.hunks]) for each in merged.conflicts]


def test_clean_edits_of_other_branches_stay() -> None:
    for order in (sorted(FIVE), sorted(FIVE, reverse=True), ["b4", "b1", "b5", "b3", "b2"]):
        tree, merged = resolved(BASE, {name: FIVE[name] for name in order}, {b"m": TakeBranch("b5")})
        assert tree[b"m"][2] == lines(_1="b1", _3="b5", _5="b2", _7="b3")
        decision = merged.decisions[b"m"]
        assert (decision.how, decision.branches) == ("resolved", ("b1", "b2", "b3", "b5"))
        assert (merged.conflicts, merged.dropped) == ([], [])


def test_the_base_decides_only_what_clashes() -> None:
    tree, merged = resolved(BASE, FIVE, {b"m": TakeBase()})
    assert tree[b"m"][2] == lines(_1="b1", _5="b2", _7="b3")
    assert merged.decisions[b"m"].branches == ("b1", "b2", "b3")
    only_clashes = {name: FIVE[name] for name in ("b4", "b5")}
    assert resolved(BASE, only_clashes, {b"m": TakeBase()})[1].decisions == {}


def test_a_whole_version_lists_the_hunks_that_it_drops() -> None:
    tree, merged = resolved(BASE, FIVE, {b"m": TakeBranch("b5", whole=True)})
    assert tree[b"m"][2] == lines(_3="b5")
    assert merged.decisions[b"m"].branches == ("b5",)
    assert merged.dropped == [Dropped(path=b"m", branch=f"b{n}", hunks=1, lines=2) for n in (1, 2, 3, 4)]
    tree, merged = resolved(BASE, FIVE, {b"m": TakeBase(whole=True)})
    assert (tree[b"m"][2], merged.decisions) == (lines(), {})
    assert [each.branch for each in merged.dropped] == sorted(FIVE)
    assert [each.hunks for each in resolved(BASE, FIVE, {b"m": Delete()})[1].dropped] == [1] * 5
    assert resolved(BASE, FIVE, {b"m": TakeContent(b"own")})[1].dropped == []


def test_an_edit_that_the_whole_version_has_too_is_not_dropped() -> None:
    branches = {"a": {b"m": lines(_1="same", _3="a")}, "b": {b"m": lines(_1="same", _3="b", _6="b")}}
    _, merged = resolved(BASE, branches, {b"m": TakeBranch("a", whole=True)})
    assert merged.dropped == [Dropped(path=b"m", branch="b", hunks=2, lines=4)]


def test_clashes_of_others_stay_open() -> None:
    branches = {
        "a": {b"m": lines(_1="a", _4="a")}, "b": {b"m": lines(_1="b", _7="b")}, "c": {b"m": lines(_4="c")},
    }  # fmt: skip
    tree, merged = resolved(BASE, branches, {b"m": TakeBranch("b")})
    assert outcome_of(merged) == [(b"m", "content", [3])]
    assert tree == complete(BASE)
    with pytest.raises(CallerError, match="has no change in the conflict"):
        resolved(BASE, branches, {b"m": TakeBranch("b")}, {b"m": TakeBranch("b")})
    tree, merged = resolved(BASE, branches, {b"m": TakeBranch("b")}, {b"m": TakeBranch("a")})
    assert tree[b"m"][2] == lines(_1="b", _4="a", _7="b")
    assert merged.decisions[b"m"].branches == ("a", "b")


def test_single_hunks_are_decided() -> None:
    branches = {name: {b"m": lines(_1=name, _4=name, **own)} for name, own in (("a", {"_7": "a"}), ("b", {}))}
    tree, merged = resolved(BASE, branches, {b"m": TakeHunks({0: "a", 3: "b"})})
    assert tree[b"m"][2] == lines(_1="a", _4="b", _7="a")
    tree, merged = resolved(BASE, branches, {b"m": TakeHunks({3: "b"})}, {b"m": TakeHunks({0: None})})
    assert tree[b"m"][2] == lines(_4="b", _7="a")
    assert merged.decisions[b"m"].branches == ("a", "b")
    for wrong in ({1: "a"}, {0: "c"}):
        with pytest.raises(CallerError) as caught:
            resolved(BASE, branches, {b"m": TakeHunks(wrong)})
        assert caught.value.code == "invalid"


def test_a_policy_and_a_resolution_decide_one_file_together() -> None:
    branches = {"a": {b"m": lines(_1="a", _4="a")}, "b": {b"m": lines(_1="b")}, "c": {b"m": lines(_4="c")}}
    with bench() as at:
        merged = from_document(to_document(at.merge(BASE, branches, Policy(rule="ours", branch="b"))))
        assert outcome_of(merged) == [(b"m", "content", [3])]
        done = resolve(merged, {b"m": TakeBranch("c")}, blobs=at.blobs, now_ns=5)
        assert at.result(done, BASE)[b"m"][2] == lines(_1="b", _4="c")


# -- conflicts that are not of hunks ----------------------------------------------------------------------------------


def test_an_edit_that_is_preferred_to_a_deletion_brings_all_edits() -> None:
    branches = {"a": {b"m": lines(_1="a")}, "b": {b"m": lines(_7="b")}, "c": {}}
    for policy, step in ((Policy(rule="ours", branch="a"), {}), (Policy(), {b"m": TakeBranch("a")})):
        with bench() as at:
            done = resolve(at.merge(BASE, branches, policy), step, blobs=at.blobs, now_ns=5)
            assert at.result(done, BASE)[b"m"][2] == lines(_1="a", _7="b")
            assert done.decisions[b"m"].branches == ("a", "b")
    tree, merged = resolved(BASE, branches, {b"m": TakeBranch("c")})
    assert tree == complete({})
    assert [(each.branch, each.hunks) for each in merged.dropped] == [("a", 1), ("b", 1)]


def test_bytes_go_with_the_clean_mode_of_another() -> None:
    base = {b"m": file(b"\0base")}
    branches = {"a": {b"m": file(b"\0a")}, "b": {b"m": file(b"\0b")}, "c": {b"m": file(b"\0base", 0o755)}}
    tree, merged = resolved(base, branches, {b"m": TakeBranch("a")})
    assert tree[b"m"] == ("file", 0o755, b"\0a")
    assert merged.decisions[b"m"].branches == ("a", "c")
    assert merged.dropped == [Dropped(path=b"m", branch="b")]
    assert resolved(base, branches, {b"m": TakeBase()})[0][b"m"] == ("file", 0o755, b"\0base")
    assert resolved(base, branches, {b"m": TakeBranch("a", whole=True)})[0][b"m"] == ("file", 0o644, b"\0a")


def test_modes_that_clash_beside_text_are_decided_after_it() -> None:
    branches = {
        "a": {b"m": file(lines(_1="a"))}, "b": {b"m": file(lines(_1="b"), 0o755)}, "c": {b"m": file(lines(), 0o700)},
    }  # fmt: skip
    _, merged = resolved(BASE, branches, {b"m": TakeBranch("a")})
    assert outcome_of(merged) == [(b"m", "mode", [])]
    tree, _ = resolved(BASE, branches, {b"m": TakeBranch("a")}, {b"m": TakeBranch("c")})
    assert tree[b"m"] == ("file", 0o700, lines(_1="a"))


def test_what_a_conflict_of_kinds_drops_is_listed() -> None:
    base = {b"d/x": b"x\n", b"d/y": b"y\n"}
    branches = {"a": {b"d": b"file\n"}, "b": {**base, b"d/x": b"b\n"}, "c": {**base, b"d/y": b"c\n"}}
    tree, merged = resolved(base, branches, {b"d": TakeBranch("b")})
    assert tree == complete({**base, b"d/x": b"b\n"})
    assert (b"d/y", "c") in {(each.path, each.branch) for each in merged.dropped}
    tree, merged = resolved(base, branches, {b"d": TakeBranch("a")})
    assert tree == complete({b"d": b"file\n"})
    assert {(each.path, each.branch) for each in merged.dropped} == {(b"d/x", "b"), (b"d/y", "c")}


def test_a_target_is_a_branchs() -> None:
    branches = {"a": {b"m": link(b"a")}, "b": {b"m": link(b"b")}, "c": {b"m": link(b"c")}}
    tree, merged = resolved({b"m": link(b"x")}, branches, {b"m": TakeBranch("b")})
    assert tree[b"m"] == ("symlink", b"b")
    assert [each.branch for each in merged.dropped] == ["a", "c"]


# -- properties -------------------------------------------------------------------------------------------------------


def a_version(random: Random, text: bytes) -> Any:
    """Edit a text in some places; or delete it, or make it another kind of file, or change its mode."""
    kind = random.randrange(14)
    if kind == 0:
        return None
    if kind == 1:
        return file(b"\0" + random.choice([b"1", b"2"]))
    found = text.splitlines(keepends=True)
    for _ in range(random.randrange(4)):
        place = random.randrange(len(found) + 1)
        found[place : place + random.randrange(3)] = random.choices([b"p\n", b"q\n", b"r\n"], k=random.randrange(3))
    return file(b"".join(found), random.choice([0o644, 0o644, 0o644, 0o755, 0o700]))


def flat(tree: Tree) -> Tree:
    """The files of a tree's top: paths that decide nothing for one another, as a directory does, or names in case."""
    kinds = {name: found[0] for name, found in tree.items() if b"/" not in name and name != b"B"}
    return {name: tree[name] for name, kind in kinds.items() if name == b"." or kind != "directory"}


def by_branch(at: Any, merged: Merge, branch: str) -> Merge:
    """Resolve each conflict by a branch, one after the other, where it takes part."""
    for conflict in merged.conflicts:
        if branch in conflict.branches:
            with suppress(CallerError):  # it changed other lines than those that clash
                merged = resolve(merged, {conflict.path: TakeBranch(branch)}, blobs=at.blobs, now_ns=5)
    return from_document(to_document(merged))


def assert_like_ours(base: Mapping[bytes, Any], branches: Mapping[str, Any], order: list[str]) -> None:
    """Compare the resolution of each conflict by a branch with the merge that prefers it; then by the others."""
    with bench() as at, bench() as beside:
        ours = at.merge(base, branches, Policy(rule="ours", branch=order[0]))
        merged = beside.merge(base, {name: branches[name] for name in sorted(order, reverse=True)}, Policy())
        for place, branch in enumerate(order):
            merged = by_branch(beside, merged, branch)
            ours = by_branch(at, ours, branch) if place else ours
            assert outcome_of(merged) == outcome_of(ours)
            assert beside.result(merged, base) == at.result(ours, base)
            assert {name: found.branches for name, found in merged.decisions.items()} == {
                name: found.branches for name, found in ours.decisions.items()
            }
        assert merged.conflicts == []


@given(st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_a_branch_by_hunk_is_the_policy_ours(random: Random) -> None:
    text = b"".join(b"line %d\n" % number for number in range(random.randrange(1, 14)))
    base = {b"m": text} if random.randrange(5) else {}
    versions = {name: a_version(random, text) for name in random.sample("abcde", random.randrange(2, 6))}
    branches = {name: {} if found is None else {b"m": found} for name, found in versions.items()}
    assert_like_ours(base, branches, random.sample([*branches], len(branches)))


@given(st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_several_paths_by_hunk_are_the_policy_ours(random: Random) -> None:
    base = flat(grow(random, {}, 14))
    branches = {name: flat(grow(random, base, 6)) for name in "abc"}
    assert_like_ours(base, branches, random.sample("abc", 3))


@pytest.mark.soak
@given(st.randoms(use_true_random=False))
@settings(max_examples=400, deadline=None)
def test_many_branches_by_hunk_are_the_policy_ours(random: Random) -> None:
    test_a_branch_by_hunk_is_the_policy_ours.hypothesis.inner_test(random)  # type: ignore[attr-defined]


def test_the_edited_line_is_that_of_the_branch() -> None:
    branches = {"a": {b"p": edited(2, b"a\n")}, "b": {b"p": edited(2, b"b\n")}}
    assert resolved({b"p": edited(0)}, branches, {b"p": TakeBranch("b")})[0][b"p"][2] == branches["b"][b"p"]
