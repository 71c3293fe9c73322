"""Comparison of trees: what it finds is what a walk through both finds, and shared layers cost nothing."""

import os
import stat
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.merging.stacks import DIRECTORY, Bench, Tree, bench, file, grow, link, read, write
from tests.support.trees import Gardener

from sandkeep.errors import CallerError, StateError
from sandkeep_store.archives.trees.changes import tree_order
from sandkeep_store.merging.compare import Change, changes
from sandkeep_store.merging.trees import Entry, Layer, TreeState, open_file, walk


def told(change: Change) -> tuple[Any, Any, bool]:
    return _entry(change.before), _entry(change.after), change.content


def _entry(entry: Entry | None) -> Any:
    return entry and (entry.kind, *([entry.target] if entry.kind == "symlink" else [entry.mode]), entry.size)


def expected(before: Tree, after: Tree) -> dict[bytes, Any]:
    found = {}
    for name in sorted({*before, *after}, key=tree_order):
        old, new = before.get(name), after.get(name)
        if old != new:
            both = bool(old and new and old[0] == new[0] == "file")
            found[name] = (_told(old), _told(new), both and old[2] != new[2])
    return found


def _told(one: Any) -> Any:
    return one and (*one[:2], len(one[2]) if one[0] == "file" else 0)


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_plain_trees(random: Random) -> None:
    before = grow(random, {}, 12)
    after = grow(random, before, 8)
    with bench() as at:
        found = changes(at.plain(before), at.plain(after))
    assert {name: told(change) for name, change in found.items()} == expected(before, after)
    assert list(found) == sorted(found, key=tree_order)


def grown(at: Bench, lowers: list[str], random: Random, times: int) -> tuple[str, Tree]:
    """A new upper directory, and the tree that is seen through it."""
    with at.changing(lowers) as (upper, mounted):
        Gardener(mounted, random).work(times)
        return upper, read(mounted)


@pytest.mark.needs("root")
@pytest.mark.parametrize("seed", range(10))
def test_overlays(seed: int) -> None:
    """Stacks as sandboxes make them: siblings, descendants, and trees with other layers at their end."""
    random = Random(seed)
    with bench() as at:
        base = at.new()
        Gardener(base, random).work(30)
        middle, in_middle = grown(at, [base], random, 12)
        trees = [([base], read(base)), ([middle, base], in_middle)]
        for _ in range(2):
            upper, seen = grown(at, [middle, base], random, 12)
            top, above = grown(at, [upper, middle, base], random, 8)
            trees += [([upper, middle, base], seen), ([top, upper, middle, base], above)]
        states = [(at.stacked(layers), seen) for layers, seen in trees]
        for before, old in states:
            for after, new in states:
                found = changes(before, after)
                assert {name: told(change) for name, change in found.items()} == expected(old, new)


@pytest.mark.needs("root")
def test_replaced_and_opaque_directories() -> None:
    """As Docker unpacks layers: a directory above a whiteout or a file, without a mark of its own."""
    with bench() as at:
        base, gone, again = at.new(), at.new(), at.new()
        write(base, {b"d/x": b"x", b"d/s/y": b"y", b"f": b"f", b"same": b"same"})
        os.mknod(f"{gone}/d", stat.S_IFCHR, 0)
        write(again, {b"d/n": b"n", b"f/x": b"new"})
        states = [at.stacked([base]), at.stacked([gone, base]), at.stacked([again, gone, base])]
        seen = [sorted(changes(states[0], state)) for state in states]
        assert seen[0] == []
        assert seen[1] == [b"d", b"d/s", b"d/s/y", b"d/x"]
        assert seen[2] == [b"d/n", b"d/s", b"d/s/y", b"d/x", b"f", b"f/x"]
        opaque = at.new()
        write(opaque, {b"d/x": b"x"})
        os.setxattr(f"{opaque}/d", "trusted.overlay.opaque", b"y")
        assert sorted(changes(states[0], at.stacked([opaque, base]))) == [b"d/s", b"d/s/y"]
        os.setxattr(opaque, "trusted.overlay.opaque", b"y")  # means nothing to the kernel
        assert sorted(changes(states[0], at.stacked([opaque, base]))) == [b"d/s", b"d/s/y"]


@pytest.mark.needs("root")
def test_whiteouts_that_are_attributes() -> None:
    """Of Linux 6.7: an empty file with an attribute, in a directory that has one. Older kernels show the file."""
    with bench() as at:
        base, above = at.new(), at.new()
        write(base, {b"d/x": b"x", b"d/y": b"y"})
        write(above, {b"d/x": b""})
        os.setxattr(f"{above}/d", "trusted.overlay.opaque", b"x")
        os.setxattr(f"{above}/d/x", "trusted.overlay.whiteout", b"y")
        before, after = at.stacked([base]), at.stacked([above, base])
        shown = "x" in os.listdir(os.open("d", os.O_RDONLY, dir_fd=after.view))
        assert {name: told(change)[1] for name, change in changes(before, after).items()} == {
            b"d/x": ("file", 0o644, 0) if shown else None
        }


@pytest.mark.needs("root")
def test_shared_layers_are_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []

    def noted(top: int, *rest: Any) -> Any:
        walked.append(top)
        return walk(top, *rest)

    monkeypatch.setattr("sandkeep_store.merging.compare.walk", noted)
    with bench() as at:
        base = at.new()
        write(base, {b"d/%d" % number: b"x" for number in range(50)})
        uppers = [at.new(), at.new()]
        for upper in uppers:
            write(upper, {b"d/1": upper.encode()})
        before, after = at.stacked([uppers[0], base]), at.stacked([uppers[1], base])
        assert list(changes(before, after)) == [b"d/1"]
        assert walked == [before.layers[0].fd, after.layers[0].fd]


def test_names_are_left_out() -> None:
    with bench() as at:
        before = at.plain({b"a/.git/x": b"1", b"k": b"1"})
        after = at.plain({b"a/.git/x": b"2", b".git": b"", b"k": b"2", b"new/.git/y": b"", b"new/z": b""})
        assert list(changes(before, after, [b".git"])) == [b"k", b"new", b"new/z"]


def test_links_are_not_followed_and_fifos_not_opened() -> None:
    with bench() as at:
        before = at.plain({b"d/x": b"1", b"p": ("fifo", 0o644), b"f": b"1"})
        after = at.plain({b"d": link(b"/etc"), b"p": ("fifo", 0o600), b"f": ("fifo", 0o644)})
        found = changes(before, after)
        assert list(found) == [b"d", b"d/x", b"f", b"p"]
        assert found[b"d/x"].after is None


def test_devices_and_sockets_are_absent() -> None:
    import socket

    with bench() as at, socket.socket(socket.AF_UNIX) as listening:
        before = at.plain({b"f": b"1"})
        top = at.new()
        listening.bind(f"{top}/f")
        opened = at.open(top)
        found = changes(before, TreeState(opened, [Layer(opened, top)]))
        assert list(found) == [b"f"]
        assert found[b"f"].after is None


def test_large_files_with_holes_are_compared_by_their_data() -> None:
    """A terabyte, which nobody reads."""
    with bench() as at:
        tops = [at.new() for _ in range(3)]
        for top, last in zip(tops, [b"1", b"1", b"2"], strict=True):
            with open(f"{top}/f", "wb") as opened:
                opened.seek((1 << 40) - 1)
                opened.write(last)
            os.chmod(f"{top}/f", 0o600 if last == b"1" else 0o644)
        states = [TreeState(opened, [Layer(opened, top)]) for top in tops for opened in [at.open(top)]]
        assert changes(states[0], states[1]) == {}
        assert changes(states[0], states[2])[b"f"].content


def test_what_cannot_be_read_is_named() -> None:
    with bench() as at:
        states = at.plain({b"d/f": b""}), at.plain({b"d/f": b"", b"d": ("directory", 0)})
        content = at.plain({b"f": file(b"1", 0)}), at.plain({b"f": file(b"2", 0)})
        user = os.geteuid()
        os.seteuid(user or 65_534)  # root reads everything
        try:
            for before, after in (states, content):
                with pytest.raises(CallerError) as caught:
                    changes(before, after)
                assert caught.value.code == "permission_denied"
                assert caught.value.data["member"] in ("d", "f")
        finally:
            os.seteuid(user)


def test_a_path_that_is_too_long_is_named() -> None:
    with bench() as at:
        before, top = at.plain({}), at.new()
        here = os.open(top, os.O_RDONLY)
        for _ in range(17):
            os.mkdir(b"n" * 250, dir_fd=here)
            below = os.open(b"n" * 250, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        opened = at.open(top)
        with pytest.raises(CallerError) as caught:
            changes(before, TreeState(opened, [Layer(opened, top)]))
        assert caught.value.code == "invalid"


def test_modes_and_empty_directories_count() -> None:
    with bench() as at:
        before = at.plain({b"e": DIRECTORY, b"f": file(b"x", 0o644), b"g": file(b"", 0o644)})
        after = at.plain({b".": ("directory", 0o700), b"n": DIRECTORY, b"f": file(b"x", 0o755), b"g": file(b"")})
        found = changes(before, after)
        assert list(found) == [b".", b"e", b"f", b"n"]
        assert not found[b"f"].content


def test_only_regular_files_are_opened() -> None:
    with bench() as at:
        view = at.plain({b"p": ("fifo", 0o644), b"l": link(b"f"), b"d/f": b"", b"f": b"", b"k": link(b"d")}).view
        os.close(open_file(view, b"d/f"))
        for name in (b"p", b"l", b"d", b"k/f", b"none", b"f/x"):
            with pytest.raises(StateError) as caught:
                open_file(view, name)
            assert caught.value.code == "conflict"
