"""A real cluster in place of the double, for whoever has one and names its kubeconfig by ``SANDKEEP_CLUSTER``."""

import os
from pathlib import Path
from typing import Any, Final

import pytest

SWITCH: Final = "SANDKEEP_CLUSTER"
_ALONE: Final = "only the double does that at a test's word"


def is_wanted() -> bool:
    """Return True if tests are to run against a real cluster."""
    return bool(os.environ.get(SWITCH))


def require_saving() -> None:
    """Skip the test if it runs against a real cluster."""
    if is_wanted():
        pytest.skip("of a real cluster it is unknown whether it saves pods")


class LiveCluster:
    """A real cluster, with the methods of `Cluster`. Tests that need more of it than it does by itself are skipped."""

    kubeconfig = Path(os.environ.get(SWITCH, ""))

    def script(self, **options: Any) -> None:
        """Skip the test, unless it has everything go its usual way."""
        if any(options.values()):
            pytest.skip(_ALONE)

    def control(self, method: str, what: str, body: Any = None) -> Any:
        """Skip the test, unless it removes faults."""
        if method != "DELETE":
            pytest.skip(_ALONE)

    def write_kubeconfig(self, path: Path, token: str, namespace: str = "default") -> Path:
        """Skip the test."""
        pytest.skip("its accounts are not the tests' to make")

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"{name}: {_ALONE}")
