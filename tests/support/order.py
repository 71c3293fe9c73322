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
    "crash/test_operations.py",
    "daemon/branches/test_branches.py",
    "daemon/snapshots/test_forks.py",
    "crash/test_keeping.py",
    "rpc/cli/test_usage.py",
    "contracts/test_modal_double.py",
    "rpc/demo/test_demo.py",
    "rpc/compat/test_gcri.py",
    "rpc/cli/test_branches.py",
    "integration/test_losses.py",
    "contracts/test_kubernetes_examples.py",
    "rpc/compat/agent_sandbox/test_pod_snapshot_client.py",
    "rpc/cli/test_completion.py",
    "contracts/test_kubernetes_snapshots.py",
    "daemon/sandboxes/test_suspend.py",
    "rpc/cli/test_look.py",
    "daemon/providers/docker/test_images.py",
    "daemon/checkpoints/test_checkpoints.py",
    "rpc/clients/test_transfer.py",
    "integration/test_handover.py",
    "crash/test_failpoints.py",
    "crash/test_damage.py",
    "crash/test_starts.py",
    "contracts/test_examples.py",
    "crash/test_growth.py",
    "contracts/test_engines.py",
    "crash/test_kubernetes.py",
    "daemon/checkpoints/test_faults.py",
    "daemon/providers/local/test_disks.py",
    "contracts/test_modal_double_service.py",
    "contracts/test_modal_double_faults.py",
    "rpc/cli/test_terminal.py",
    "daemon/host/test_host_commit.py",
    "rpc/clients/test_reconnect.py",
    "daemon/providers/docker/test_build_limits.py",
    "rpc/cli/test_sandboxes.py",
    "daemon/sessions/test_matrix.py",
    "crash/test_gvisor.py",
    "daemon/app/test_enemy_user.py",
    "contracts/test_lifecycles.py",
    "daemon/sandboxes/test_files.py",
    "daemon/snapshots/test_archive_paths.py",
    "daemon/providers/modal/test_life.py",
    "daemon/sandboxes/test_shared_pools.py",
    "rpc/cli/test_images.py",
    "contracts/test_kubernetes_rbac.py",
    "rpc/cli/test_columns.py",
    "contracts/test_kubernetes_kubelet.py",
    "daemon/providers/docker/test_life.py",
    "integration/test_faults.py",
    "daemon/snapshots/test_much_changed.py",
    "daemon/providers/gvisor/test_terminals.py",
    "crash/test_modal.py",
    "daemon/branches/test_commits.py",
    "daemon/snapshots/test_enemy.py",
    "contracts/test_kept_logs.py",
    "contracts/test_modal_double_network.py",
    "rpc/compat/test_astraforge.py",
    "rpc/compat/test_crafty_providers.py",
    "daemon/providers/gvisor/test_provider.py",
    "contracts/test_tour.py",
    "rpc/cli/test_processes.py",
    "daemon/snapshots/test_hostile_walks.py",
    "daemon/providers/docker/test_files.py",
)
"""The files that take longest, the longest first (2026-11-28). One in the wrong place costs seconds at most."""


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sort tests by file: those of `LONGEST`, then by their number, as xdist does. A long file that begins last leaves
    the other processes without work.
    """
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    counts = Counter(item.path for item in items)
    return sorted(items, key=lambda item: (places.get(item.path, len(places)), -counts[item.path], item.path))
