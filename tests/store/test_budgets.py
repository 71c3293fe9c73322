"""Memory of long work is charged to its owner, and given back when the work ends."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.expect import refused

from sandkeep.errors import StateError
from sandkeep.system.descriptors import closing_fd
from sandkeep_store import budgets
from sandkeep_store.archives.trees.changes import take_catalogue
from sandkeep_store.budgets import Table, charging
from sandkeep_store.merging.compare import changes
from sandkeep_store.merging.trees import TreeState
from sandkeep_store.threads import Threads, working_for
from sandkeep_store.turns import Turns

MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(budgets, "MOST_BYTES", 2 * MEBIBYTE)
    yield
    assert not budgets._used


def take(size: int, name: str = "") -> None:
    Table(name).grow(size)


def test_all_work_of_an_owner_has_one_budget() -> None:
    with charging("one"):
        take(MEBIBYTE)
        with charging("one"):
            take(MEBIBYTE)
            error = refused("quota_exceeded", take, MEBIBYTE)
            with charging("two"):
                take(2 * MEBIBYTE)
        take(MEBIBYTE)
    assert error.data == {"quota": "memory_bytes", "used": 3 * MEBIBYTE, "limit": 2 * MEBIBYTE}


def test_one_table_after_the_other_counts_as_the_largest() -> None:
    with charging("one"):
        for size in (1, 2, 1, 2):
            take(size * MEBIBYTE, "catalogue")
        refused("quota_exceeded", take, 3 * MEBIBYTE, "catalogue")


def compare_with_nothing(tree: int) -> None:
    with tempfile.TemporaryDirectory() as other, closing_fd(os.open(other, os.O_RDONLY)) as empty:
        changes(TreeState(empty), TreeState(tree))


@pytest.mark.parametrize("read", [take_catalogue, compare_with_nothing])
async def test_trees_beyond_it_are_refused(tmp_path: Path, read: Callable[[int], object]) -> None:
    top = tmp_path / ("d" * 200)
    top.mkdir()
    for number in range(6_000):
        (top / str(number)).touch()
    in_turns = Threads(3, turns=Turns(1))
    with (
        closing_fd(os.open(tmp_path, os.O_RDONLY)) as tree,
        working_for("one"),
        pytest.raises(StateError) as caught,
    ):
        await in_turns(read, tree)
    assert caught.value.code == "quota_exceeded"
