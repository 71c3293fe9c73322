"""Daemons with other constants than the product's, such as leases of some seconds instead of a minute.

The ratios stay: a lease is renewed before it is lost, and lost here before it expires elsewhere.
"""

import sys
from typing import Any

from tests.support.patience import patient

_RULES = "sandkeep_store.locks.rules"

QUICK: dict[str, Any] = {
    "sandkeepd.sharing.keeping.LOOK_S": 0.2,
    "sandkeepd.sharing.keeping.WAITER_LOOK_S": 0.2,
    "sandkeepd.sharing.keeping.LOST_LOOK_S": 0.3,
    "sandkeepd.sharing.attaching.LOOK_S": 0.2,
    "sandkeepd.locks.leases.RETRY_S": 0.2,
    "sandkeepd.locks.publish.RETRY_S": 0.3,
    "sandkeepd.locks.publish.LAST_S": 2.0,
    "sandkeepd.snapshots.archives.FIRST_PATIENCE_S": 2.0,
    "sandkeepd.sharing.handover.FIRST_PATIENCE_S": 2.0,
    "sandkeep_store.locks.gcs.ANSWER_S": 0.7,
    "sandkeep_store.locks.gcs.PATIENCE_S": 1.0,
    "sandkeep_store.locks.s3.ANSWER_S": 0.7,
    "sandkeep_store.locks.s3.PATIENCE_S": 1.0,
    "sandkeep_store.buckets.answers.SHORTEST_READ_S": 0.7,
    "sandkeep_store.buckets.answers.READ_S": 1.0,
    f"{_RULES}.POLL_S": 0.2,
}
"""Waits that are shorter by the factor by which leases are. They are patience with services: see `leases_of`."""


def leases_of(lease_s: float) -> dict[str, Any]:
    """Return the constants of leases of so many seconds: lost after three fifths, of which the product takes more.

    All of them are longer where tests have more patience, as the services are as busy as the tests.
    """
    lease_s = patient(lease_s)
    return {
        **{name: patient(value) for name, value in QUICK.items()},
        f"{_RULES}.LEASE_S": lease_s,
        f"{_RULES}.WAITER_S": lease_s,
        f"{_RULES}.MARGIN_S": lease_s * 0.4,
        f"{_RULES}.RENEW_AFTER_S": lease_s * 0.2,
    }


def program(constants: dict[str, Any], more: str = "") -> list[str]:
    """Return the command of a daemon with these constants, by their full names, that runs `more` at its start."""
    return [sys.executable, "-c", f"{_TEXT.format(constants=constants)}\n{more}\n{_RUN}"]


_TEXT = """\
import importlib
for name, value in {constants!r}.items():
    module, _, constant = name.rpartition(".")
    module = importlib.import_module(module)
    assert hasattr(module, constant), name
    setattr(module, constant, value)
"""
_RUN = """\
import runpy
runpy.run_module("sandkeepd.main", run_name="__main__")
"""
