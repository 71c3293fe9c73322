"""The order in which the files of tests begin where several processes run them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]

LONGEST: Final = (
    "contracts/test_how_to.py",
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
    "contracts/test_engines.py",
    "crash/test_kubernetes.py",
    "daemon/providers/local/test_disks.py",
    "contracts/test_modal_double_service.py",
    "daemon/providers/docker/test_build_limits.py",
)
"""The files of few tests that take longest, the longest first (2026-11-28). A wrong place costs seconds at most."""


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sort tests by file: those of `LONGEST`, then by their number, as xdist does. A long file that begins last leaves
    the other processes without work.
    """
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    counts = Counter(item.path for item in items)
    return sorted(items, key=lambda item: (places.get(item.path, len(places)), -counts[item.path], item.path))
