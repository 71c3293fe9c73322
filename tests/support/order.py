"""The order in which the files of tests are read, and begin, where several processes run them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

Collected = TypeVar("Collected", bound=pytest.Item | pytest.Collector)

TESTS: Final = Path(__file__).parents[1]

LONGEST: Final = (
    "contracts/test_how_to.py",
    "conformance/test_ordinary_user.py",
    "daemon/providers/docker/test_foreign_images.py",
    "daemon/providers/docker/test_snapshots.py",
    "crash/test_docker.py",
    "daemon/branches/test_branches.py",
    "daemon/snapshots/test_forks.py",
    "crash/test_keeping.py",
    "rpc/demo/test_demo.py",
    "integration/test_losses.py",
    "contracts/test_kubernetes_examples.py",
    "contracts/test_kubernetes_snapshots.py",
    "daemon/checkpoints/test_checkpoints.py",
    "integration/test_handover.py",
    "crash/test_damage.py",
    "crash/test_starts.py",
    "contracts/test_examples.py",
    "contracts/test_installation.py",
    "daemon/providers/docker/test_disks.py",
    "daemon/app/test_shares.py",
    "daemon/keeper/test_removed_directory.py",
    "contracts/test_engines.py",
    "crash/test_kubernetes.py",
    "daemon/providers/local/test_disks.py",
    "contracts/test_modal_double_service.py",
    "daemon/providers/docker/test_build_limits.py",
)
"""The files of few tests that take longest, the longest first (2026-11-29). A wrong place costs seconds at most."""


def rotated(entries: Sequence[Collected], config: pytest.Config) -> list[Collected]:
    """Return a directory's entries from a worker's share on, and then those before it.

    The first process to import a file of tests rewrites its assertions, which takes longer than all else of its
    collection, and keeps the result for the others. In one order all would rewrite each file at the same moment.
    """
    worker: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
    first = len(entries) * int(worker["workerid"].removeprefix("gw")) // int(worker["workercount"])
    return [*entries[first:], *entries[:first]]


def by_file(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sort tests by file, so that each process has the same, wherever it began."""
    return sorted(items, key=lambda item: item.path)


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sort tests by file: those of `LONGEST`, then by what their tests take, roughly. A long file that begins last
    leaves the other processes without work.
    """
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    weights = Counter[Path]()
    for item in items:
        weights[item.path] += _weight(item)
    return sorted(items, key=lambda item: (places.get(item.path, len(places)), -weights[item.path], item.path))


def _weight(item: pytest.Item) -> int:
    """Return about how many tenths of a second a test takes: more with an engine, and with a daemon of its own."""
    engines = {name for marker in item.iter_markers("needs") for name in marker.args}
    names = getattr(item, "fixturenames", ())
    return 1 + 9 * bool(engines & {"docker", "runsc"}) + 4 * ("new_daemon" in names)
