"""Copies in passes of trees that change at any step of a pass: the last one is the tree."""

import errno
import os
import threading
from pathlib import Path
from random import Random
from tempfile import TemporaryFile

import pytest
import trio
from tests.store.archives.trees.test_changes import looked_at
from tests.support.trees import Gardener, described, opened

from sandkeep_store.archives.trees import changes, passes
from sandkeep_store.archives.trees.pack import write
from sandkeep_store.archives.trees.passes import PassCopy, Passes
from sandkeep_store.archives.trees.spool import Spool, SpooledTree
from sandkeep_store.archives.trees.unpack import unpack
from sandkeep_store.threads import Threads

pytestmark = pytest.mark.needs("root")

PASSES = 3
BEGIN, MEANWHILE = 60, 12


def swap(top: bytes, chance: Random) -> None:
    """Exchange two directories, whose files do not notice."""
    names = [entry.path for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)]
    if len(names) > 1:
        one, two = chance.sample(sorted(names), 2)
        os.rename(one, top + b"/aside")
        os.rename(two, one)
        os.rename(top + b"/aside", two)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("way", ["directory", "spool"])
def test_the_last_pass_makes_it_the_tree(tmp_path: Path, seed: int, way: str) -> None:
    chance = Random(seed)
    (source := tmp_path / "source").mkdir()
    (target := tmp_path / "target").mkdir()
    gardener = Gardener(str(source), chance)
    gardener.work(BEGIN)
    left = 0

    def meanwhile() -> None:
        nonlocal left
        if left and chance.random() < 0.4:
            left -= 1
            if chance.random() < 0.3:
                swap(os.fsencode(source), chance)
            else:
                gardener.work(1)

    with opened(str(source)) as tree, opened(str(target)) as into, TemporaryFile() as file:
        spool = Spool(tree, file.fileno(), meanwhile)
        copy: Passes = spool if way == "spool" else PassCopy(tree, into, meanwhile)
        for number in range(PASSES + 1):
            now = looked_at(source)
            names = sorted(now, key=changes.tree_order)
            todo = copy.outdated(now, names)
            left = MEANWHILE if number < PASSES else 0
            is_complete = copy.update(now, names, todo)
        assert is_complete
        copy.finish()
        if way == "spool":
            unpack_spooled(spool, names, target)
    assert described(str(target)) == described(str(source))


def unpack_spooled(spool: Spool, names: list[bytes], target: Path) -> None:
    with TemporaryFile() as archive:
        source = SpooledTree(spool, names)
        expected = source.count_bytes()
        made = write(source, archive.fileno(), "none", source.remarks)
        assert expected == made.data_bytes
        archive.seek(0)
        unpack(archive.fileno(), str(target), limits=made.limits)


@pytest.mark.parametrize("way", ["directory", "spool"])
def test_a_copy_ends_when_its_call_is_cancelled(tmp_path: Path, way: str) -> None:
    (source := tmp_path / "source").mkdir()
    (target := tmp_path / "target").mkdir()
    (source / "file").touch()
    now, is_cancelled, outcomes = looked_at(source), threading.Event(), list[bool]()

    def work() -> None:
        with opened(str(source)) as tree, opened(str(target)) as into, TemporaryFile() as file:
            copy = Spool(tree, file.fileno()) if way == "spool" else PassCopy(tree, into)
            is_cancelled.wait()
            outcomes.append(copy.update(now, list(now), list(now)))

    async def cancel(call: trio.CancelScope) -> None:
        call.cancel()
        is_cancelled.set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as call:
                nursery.start_soon(cancel, call)
                await Threads(1)(work)

    trio.run(main)
    assert outcomes == []


def test_a_copy_leaves_space_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_SPARE_BYTES", 1 << 60)
    (source := tmp_path / "source").mkdir()
    (target := tmp_path / "target").mkdir()
    (source / "file").write_text("content")
    with opened(str(source)) as tree, opened(str(target)) as into:
        now = looked_at(source)
        with pytest.raises(OSError) as caught:
            PassCopy(tree, into).update(now, list(now), list(now))
    assert caught.value.errno == errno.ENOSPC
