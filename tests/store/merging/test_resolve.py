"""Resolution of conflicts, when the trees of the branches are gone."""

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.merging.stacks import DIRECTORY, Tree, bench, complete, file, grow, link
from tests.store.merging.test_merge import CONFLICTS, TEXT, X, Y, edited

from sandkeep.errors import CallerError
from sandkeep_store.merging.model import Merge, from_document, to_document
from sandkeep_store.merging.resolve import Delete, Resolution, TakeAll, TakeBase, TakeBranch, TakeContent, resolve


def resolved(
    base: Mapping[bytes, Any], branches: Mapping[str, Mapping[bytes, Any]], resolutions: Mapping[bytes, Resolution]
) -> tuple[Tree, Merge]:
    """Resolve the conflicts of a merge that was on the disk meanwhile."""
    with bench() as at:
        merged = from_document(to_document(at.merge(base, branches)))
        done = from_document(to_document(resolve(merged, resolutions, blobs=at.blobs, now_ns=5)))
        return at.result(done, base), done


@pytest.mark.parametrize("name", CONFLICTS)
def test_a_branch_or_the_base_is_taken(name: str) -> None:
    base, mine, others, expected = CONFLICTS[name]
    [path] = expected
    for branch, wanted in (("a", mine), ("b", others)):
        found, merged = resolved(base, {"a": mine, "b": others}, {path: TakeBranch(branch)})
        assert merged.conflicts == []
        assert {decision.how for decision in merged.decisions.values()} <= {"resolved", "taken", "alike"}
        if name == "modes of a new directory":
            wanted = {**mine, **others, b"d": wanted[b"d"]}
        if name == "deleted directory":
            wanted = {**others} if branch == "b" else {}
            wanted.pop(b"d/q", None)
            wanted |= {b"d/q": b""} if branch == "b" and b"d/q" in found else {}
        assert found == complete(wanted)
    found, _ = resolved(base, {"a": mine, "b": others}, {path: TakeBase()})
    assert found.get(path) == complete(base).get(path) or name == "modes of a new directory"


@pytest.mark.parametrize("name", CONFLICTS)
def test_the_path_is_deleted(name: str) -> None:
    base, mine, others, expected = CONFLICTS[name]
    [path] = expected
    if name == "modes of a new directory":
        return
    found, _ = resolved(base, {"a": mine, "b": others}, {path: Delete()})
    assert not [other for other in found if other == path or other.startswith(path + b"/")]
    assert found == complete({k: v for k, v in found.items() if k in base or k in (b".", b"d")})


def test_content_is_given() -> None:
    branches = {"a": {b"p": edited(2)}, "b": {b"p": file(edited(2, b"B\n"), 0o755)}}
    found, merged = resolved({b"p": TEXT}, branches, {b"p": TakeContent(b"own")})
    assert found[b"p"] == ("file", 0o755, b"own")
    entry = merged.decisions[b"p"].entry
    assert entry is not None
    assert entry.mtime_ns == 5
    found, _ = resolved({b"p": TEXT}, branches, {b"p": TakeContent(b"own", 0o4700)})
    assert found[b"p"] == ("file", 0o700, b"own")
    found, _ = resolved({b"p/x": X}, {"a": {b"p": X}, "b": {b"p/x": Y}}, {b"p": TakeContent(b"own")})
    assert found == complete({b"p": file(b"own")})


def test_a_mode_is_resolved_without_the_content() -> None:
    branches = {"a": {b"p": file(edited(1), 0o755)}, "b": {b"p": file(edited(9), 0o700)}}
    both = edited(9, text=edited(1))
    for resolution, mode in ((TakeBranch("a"), 0o755), (TakeBranch("b"), 0o700), (TakeBase(), 0o644)):
        assert resolved({b"p": TEXT}, branches, {b"p": resolution})[0][b"p"] == ("file", mode, both)


def test_directories_go_with_the_last_conflict_in_them() -> None:
    base = {b"d/e/x": X, b"d/e/y": X, b"d/z": X}
    branches = {"a": {}, "b": {b"d/e/x": Y, b"d/e/y": Y, b"d/z": X}}
    found, merged = resolved(base, branches, {b"d/e/x": TakeBranch("a")})
    assert found == complete({b"d/e/y": X})
    assert set(merged.deferred) == {b"d", b"d/e"}
    assert resolved(base, branches, {b"d/e/x": Delete(), b"d/e/y": TakeBranch("a")})[0] == complete({})
    assert resolved(base, branches, {b"d/e/x": Delete(), b"d/e/y": TakeBranch("b")})[0] == complete({b"d/e/y": Y})


def test_names_that_differ_in_case_may_stay() -> None:
    branches = {"a": {b"d/X/1": X}, "b": {b"d/x/2": Y}}
    assert resolved({}, branches, {b"d/X": TakeAll()})[0] == complete({b"d/X/1": X, b"d/x/2": Y})


def test_what_makes_no_sense_is_refused() -> None:
    base, branches = {b"p": X, b"q": X}, {"a": {b"p": Y}, "b": {b"p": link(b"q")}}
    case = {"a": {b"X": X}, "b": {b"x": X}}
    modes = {"a": {b"d": ("directory", 0o700)}, "b": {}}
    for trees, path, resolution in (
        ((base, branches), b"q", TakeBase()),
        ((base, branches), b"p", TakeBranch("c")),
        ((base, branches), b"p", TakeAll()),
        (({}, case), b"X", TakeContent(b"")),
    ):
        with pytest.raises(CallerError):
            resolved(*trees, {path: resolution})
    assert resolved({b"d": DIRECTORY}, modes, {b"d": Delete()})[0] == complete({})


@given(st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_any_resolutions_give_a_tree(random: Random) -> None:
    base = grow(random, {}, 14)
    branches = {name: grow(random, base, 5) for name in "ab"}
    with bench() as at:
        merged = at.merge(base, branches)
        resolutions: dict[bytes, Resolution] = {}
        for conflict in merged.conflicts:
            choices: list[Resolution] = [TakeBase(), TakeBase(whole=True)]
            choices += [TakeBranch(name, whole) for name in conflict.branches for whole in (True, False)]
            resolutions[conflict.path] = random.choice(choices)
        done = resolve(merged, resolutions, blobs=at.blobs, now_ns=5)
        found = at.result(done, base)
        assert done.conflicts == []
        assert done.deferred == {}
        for name in found:
            assert found[name.rpartition(b"/")[0] or b"."][0] == "directory"
        for conflict in merged.conflicts:
            choice = resolutions[conflict.path]
            if isinstance(choice, TakeBranch) and choice.whole and conflict.kind != "case":
                stays = any(name.startswith(conflict.path + b"/") for name in found)
                assert found.get(conflict.path) == branches[choice.branch].get(conflict.path) or stays


def test_a_file_that_stays_as_it_was_keeps_its_directory() -> None:
    base, branches = {b"d/x": X, b"d/y": X}, {"a": {}, "b": {b"d/x": Y, b"d/y": Y}}
    with bench() as at:
        merged = resolve(at.merge(base, branches), {b"d/x": TakeBase()}, blobs=at.blobs, now_ns=5)
        done = resolve(merged, {b"d/y": Delete()}, blobs=at.blobs, now_ns=5)
        assert at.result(done, base) == complete({b"d/x": X})


def test_a_new_directory_stays_while_something_is_in_it() -> None:
    base, mine, others, _ = CONFLICTS["modes of a new directory"]
    found, _ = resolved(base, {"a": mine, "b": others}, {b"d": TakeBase()})
    assert found == complete({b"d": ("directory", 0o700), b"d/x": X, b"d/y": X})
