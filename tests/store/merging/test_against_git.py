"""Merges compared with git's: wherever both are clean, the trees are the same.

What differs is counted. Measured on 2026-11-29 with git 2.39: of 300 random histories, with moved files, 59 % are clean
on both sides with the same tree, 40.7 % conflict on both, and 1 conflicts here alone, by a mode; of 200 reverts and
cherry-picks in a public repository (`tests/sources/test_merges.py`) 48.5 % and 51.5 %. On 2026-11-26, with a judge that
detected renames: of 800 merges of a file of few different lines 80.5 % and 19.4 %, and 1 conflicts here alone.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.store.merging.histories import (
    Repository,
    Triple,
    check,
    compare,
    dense_triple,
    random_triple,
    replay_history,
)
from tests.support.soak import times

ROOT = Path(__file__).parents[3]


def replay(count: int, seed: int, path: Path, make: Callable[[Random], Triple] = random_triple) -> Counter[str]:
    random = Random(seed)
    triples = [make(random) for _ in range(count)]
    repository = Repository(str(path))
    repository.add(triples)
    return Counter(
        compare(triple, repository.merge(f"a{number}", f"b{number}")) for number, triple in enumerate(triples)
    )


def test_judge_detects_no_renames(tmp_path: Path) -> None:
    lines = b"".join(b"%d\n" % number for number in range(50))
    base, moved, edited = ({name: ("file", 0o644, data)} for name, data in (
        (b"old", lines), (b"new", lines), (b"old", lines.replace(b"25\n", b"X\n")),
    ))  # fmt: skip
    repository = Repository(str(tmp_path))
    repository.add([(base, moved, edited)])
    judged = repository.merge("a0", "b0")
    assert judged.conflicts == [b"old"]
    assert compare((base, moved, edited), judged) == "both conflict: deleted"


def test_random_histories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = replay(60, 1, tmp_path)
    check(results, capsys)
    assert results["both clean"] >= 15
    assert sum(count for what, count in results.items() if what.startswith("both conflict")) >= 10


@pytest.mark.soak
def test_many_random_histories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(replay(times(1000), 2, tmp_path), capsys)


def test_files_of_few_different_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(replay(25, 4, tmp_path, dense_triple), capsys)


@pytest.mark.soak
def test_many_files_of_few_different_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(replay(times(800), 5, tmp_path, dense_triple), capsys)


def test_this_repositorys_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(replay_history(ROOT, 10, tmp_path), capsys)


@pytest.mark.soak
def test_much_of_this_repositorys_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(replay_history(ROOT, times(300), tmp_path), capsys)
