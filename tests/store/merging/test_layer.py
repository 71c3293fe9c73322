"""Layers of merges: unpacked over the base, or flattened with it, they are the merged tree."""

import os
import tarfile
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.merging.stacks import Bench, Tree, bench, complete, file, grow, link, read, write
from tests.store.merging.test_merge import CONFLICTS, X, Y

from sandkeep.errors import SandkeepError
from sandkeep_store.archives.tar.members import Member
from sandkeep_store.archives.trees import layers, pack
from sandkeep_store.archives.trees.overlay import unpack_layer
from sandkeep_store.archives.trees.unpack import unpack
from sandkeep_store.merging.merge import merge
from sandkeep_store.merging.model import Merge, Policy
from sandkeep_store.merging.resolve import Delete, TakeBase, TakeBranch, TakeContent, resolve

OURS = Policy(rule="ours", branch="a")


def written(at: Bench, merged: Merge, owner: tuple[int, int] | None = None) -> int:
    output = at.open(f"{at.new()}/layer", os.O_RDWR | os.O_CREAT)
    layer = at.layer(merged)
    pack.write(layer, output, "none", layer.remarks, owner=owner)
    return output


def flattened(at: Bench, merged: Merge) -> Tree:
    """The tree, by way of one archive of all."""
    assert at.base is not None
    whole = at.open(f"{at.new()}/whole", os.O_RDWR | os.O_CREAT)
    layers.flatten([written(at, merged)], whole, base=at.base.view, codec="none")  # type: ignore[arg-type]
    target = f"{at.root}/flat"
    unpack(whole, target)
    return read(target)


@given(st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_flattened_over_plain_trees(random: Random) -> None:
    base = grow(random, {}, 14)
    branches = {name: grow(random, base, 5) for name in "abc"}
    with bench() as at:
        merged = at.merge(base, branches, random.choice([Policy(), OURS, Policy(rule="union")]))
        assert flattened(at, merged) == at.result(merged, base)


@pytest.mark.needs("root")
@pytest.mark.parametrize("seed", range(8))
def test_over_overlays(seed: int) -> None:
    random = Random(seed)
    with bench() as at:
        lowest = at.new()
        write(lowest, grow(random, {}, 14))
        middle, base = grown_from(at, [lowest], random, 6)
        at.base = at.stacked([middle, lowest])
        trees = {}
        for name in "ab":
            upper, trees[name] = grown_from(at, [middle, lowest], random, 5)
            at.branches[name] = at.stacked([upper, middle, lowest])
        merged = merge(at.base, at.branches, OURS, spool=at.spool, blobs=at.blobs)
        assert merged.conflicts == []
        assert seen_over(at, [middle, lowest], merged) == at.result(merged, base)


def grown_from(at: Bench, lowers: list[str], random: Random, times: int) -> tuple[str, Tree]:
    """An upper directory in which a sandbox changed the tree at random."""
    with at.changing(lowers) as (upper, mounted):
        before = read(mounted)
        after = grow(random, before, times)
        for name in sorted(before, key=lambda name: name.count(b"/"), reverse=True):
            if name != b"." and after.get(name, ("",))[0] != before[name][0]:
                path = os.path.join(os.fsencode(mounted), name)
                os.rmdir(path) if before[name][0] == "directory" else os.unlink(path)
        for name in sorted(after, key=lambda name: name.replace(b"/", b"\0")):
            put(os.path.join(os.fsencode(mounted), name), before.get(name), after[name])
        assert read(mounted) == after
        return upper, after


def put(path: bytes, old: Any, new: Any) -> None:
    if old == new:
        return
    if new[0] == "symlink":
        if old and old[0] == "symlink":
            os.unlink(path)
        os.symlink(new[1], path)
        return
    if new[0] == "directory":
        os.makedirs(path, exist_ok=True)
    else:
        with open(path, "wb") as opened:
            opened.write(new[2])
    os.chmod(path, new[1])


def seen_over(at: Bench, lowers: list[str], merged: Merge) -> Tree:
    target = f"{at.root}/unpacked"
    unpack_layer(written(at, merged), target, overlay="trusted", owner=None)
    view = at.stacked([target, *lowers]).view
    return read(f"/proc/self/fd/{view}/.")


@pytest.mark.parametrize("name", CONFLICTS)
def test_resolved_conflicts_without_the_trees(name: str) -> None:
    base, mine, others, expected = CONFLICTS[name]
    [path] = expected
    for resolution in (TakeBranch("a"), TakeBranch("b"), TakeBase(), Delete(), TakeContent(b"given")):
        if isinstance(resolution, TakeContent) and (expected[path] == "case" or "director" in name):
            continue
        with bench() as at:
            merged = at.merge(base, {"a": mine, "b": others})
            done = resolve(merged, {path: resolution}, blobs=at.blobs, now_ns=5)
            wanted = at.result(done, base)
            assert flattened(at, done) == wanted


def members(at: Bench, merged: Merge) -> list[Member]:
    return list(at.layer(merged))


def test_deletions_are_told_once_and_replacements_not_at_all() -> None:
    base = {b"d/x/1": X, b"d/y": X, b"k/1": X, b"k/2": X, b"f": X, b"g/1": X}
    with bench() as at:
        merged = at.merge(base, {"a": {b"k/2": X, b"f/n": Y, b"g": Y}, "b": base})
        found = [(member.name, member.kind) for member in members(at, merged)]
    assert found == [
        (b".", "directory"), (b".wh.d", "file"), (b"f", "directory"), (b"f/.wh..wh..opq", "file"), (b"f/n", "file"),
        (b"g", "file"), (b"k", "directory"), (b"k/.wh.1", "file"),
    ]  # fmt: skip


@pytest.mark.needs("root")
def test_a_directory_in_place_of_a_file_shows_nothing_of_lower_layers() -> None:
    with bench() as at:
        lowest, middle, upper = at.new(), at.new(), at.new()
        write(lowest, {b"f/hidden": X})
        write(middle, {b"f": X})
        write(upper, {b"f/n": Y})
        at.base, at.branches = at.stacked([middle, lowest]), {"a": at.stacked([upper, middle, lowest])}
        merged = merge(at.base, at.branches, spool=at.spool, blobs=at.blobs)
        target = f"{at.root}/unpacked"
        unpack_layer(written(at, merged), target, overlay="trusted")
        assert os.getxattr(f"{target}/f", "trusted.overlay.opaque") == b"y"


def test_attributes_and_times() -> None:
    base = {b"d/f": file(b"1", 0o640), b"d": ("directory", 0o1777)}
    with bench() as at:
        at.base, top = at.plain(base), at.new()
        write(top, {b"d/f": file(b"2", 0o6755), b"d": ("directory", 0o1777)})
        os.utime(f"{top}/d/f", ns=(1, 1_234_567_890))
        at.branches = {"a": at.plain({})}
        opened = at.open(top)
        at.branches = {"a": type(at.base)(opened, [type(at.base.layers[0])(opened, top)])}
        merged = merge(at.base, at.branches, spool=at.spool, blobs=at.blobs)
        found = {member.name: member for member in members(at, merged)}
        assert (found[b"d/f"].mtime_ns, found[b"d/f"].mode) == (1_234_567_890, 0o755)
        assert found[b"d"].mode == 0o1777
        assert found[b"d/f"].uid == os.geteuid()


def test_hard_links_of_one_branch() -> None:
    with bench() as at:
        at.base, top = at.plain({}), at.new()
        write(top, {b"d/one": X, b"other": X})
        os.link(f"{top}/d/one", f"{top}/two")
        os.link(f"{top}/d/one", f"{top}/a")
        opened = at.open(top)
        at.branches = {"a": type(at.base)(opened, [type(at.base.layers[0])(opened, top)])}
        merged = merge(at.base, at.branches, spool=at.spool, blobs=at.blobs)
        found = [(member.name, member.kind, member.target) for member in members(at, merged)]
        assert found[1:] == [
            (b"a", "file", b""), (b"d", "directory", b""), (b"d/one", "hard link", b"a"), (b"other", "file", b""),
            (b"two", "hard link", b"a"),
        ]  # fmt: skip
        tree = flattened(at, merged)
        assert tree == complete({b"d/one": X, b"other": X, b"two": X, b"a": X})
        assert os.stat(f"{at.root}/flat/a").st_nlink == 3


def test_large_sparse_files_keep_their_holes() -> None:
    with bench() as at:
        at.base, top = at.plain({}), at.new()
        with open(f"{top}/big", "wb") as opened:
            opened.seek(1 << 36)
            opened.write(b"x" * 100_000)
        os.chmod(f"{top}/big", 0o644)
        fd = at.open(top)
        at.branches = {"a": type(at.base)(fd, [type(at.base.layers[0])(fd, top)])}
        merged = merge(at.base, at.branches, spool=at.spool, blobs=at.blobs)
        output = written(at, merged)
        assert os.fstat(output).st_size < 4 << 20
        [member] = [member for member in members(at, merged) if member.name == b"big"]
        assert member.whole_size == (1 << 36) + 100_000


def test_names_that_are_marks_are_refused() -> None:
    with bench() as at:
        for base, branch in (({}, {b"d/.wh.x": X}), ({b".wh.x": X}, {})):
            merged = at.merge(base, {"a": branch})
            with pytest.raises(SandkeepError) as caught:
                members(at, merged)
            assert caught.value.code == "invalid"


def test_a_file_that_changed_meanwhile_is_refused() -> None:
    for change in ("longer", "link", "gone"):
        with bench() as at:
            merged = at.merge({b"f": X}, {"a": {b"f": Y}})
            [layer] = at.branches["a"].layers
            path = f"{layer.key}/f"
            if change == "longer":
                with open(path, "ab") as opened:
                    opened.write(b"more")
            else:
                os.unlink(path)
                if change == "link":
                    os.symlink("/etc/passwd", path)
            with pytest.raises(SandkeepError) as caught:
                members(at, merged)
            assert caught.value.code == "conflict"


def test_a_lost_blob_is_told() -> None:
    with bench() as at:
        merged = at.merge({b"f": X}, {"a": {b"f": Y}, "b": {}})
        done = resolve(merged, {b"f": TakeBranch("a")}, blobs=at.blobs, now_ns=5)
        for name in os.listdir(f"{at.root}/blobs"):
            os.unlink(f"{at.root}/blobs/{name}")
        with pytest.raises(SandkeepError) as caught:
            members(at, done)
        assert caught.value.code == "snapshot_missing"


def test_members_belong_to_the_owner() -> None:
    with bench() as at:
        merged = at.merge({b"d/f": X}, {"a": {b"d/f": Y, b"l": link(b"x")}})
        os.lseek(output := written(at, merged, (70_001, 70_002)), 0, os.SEEK_SET)
        with open(output, "rb", closefd=False) as opened, tarfile.open(fileobj=opened) as archive:
            assert {(member.uid, member.gid) for member in archive} == {(70_001, 70_002)}
