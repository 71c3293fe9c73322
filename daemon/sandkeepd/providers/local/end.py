"""Ending a local sandbox, and removing its directories, complete or half made. Everything here blocks."""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from sandkeepd.host import mounts
from sandkeepd.host.cgroups import freezer
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.processes import find_by_environment, kill_all, kill_process
from sandkeepd.host.uids.allocation import Claims
from sandkeepd.providers.common.disks import Disks
from sandkeepd.providers.common.inside import marks
from sandkeepd.providers.common.layout import Layout
from sandkeepd.providers.local.plan import Plan, Planner
from sandkeepd.providers.local.start import Handle
from sandkeepd.providers.local.strays import Strays

PARENT_S: Final = 0.01
"""Seconds that bubblewrap may take to end after the first process of its namespace."""


class Cleanup:
    """Ends sandboxes of the log `log_id`, and removes their files. All of it is safe to repeat.

    A process is killed only if it surely belongs to the sandbox: the first process on record, which the kernel tells
    from all others, the members of the sandbox's control groups, and the processes with the uid that is claimed for it
    alone. Processes marked by their environment variables as the sandbox's count only where there is nothing better:
    those of the daemon's own user, and without isolation those of the caller.
    """

    def __init__(self, layout: Layout, log_id: str, planner: Planner, claims: Claims | None) -> None:
        self._layout = layout
        self._disks = Disks(layout)
        self._log_id = log_id
        self._planner = planner
        self._claims = claims

    def end(self, sandbox_id: str, plan: Plan, handle: dict[str, Any]) -> None:
        """Kill its processes: the first process of the namespace takes all the others with it."""
        _kill_frozen(plan.cgroups)
        if handle:
            kill_process(msgspec.convert(handle, Handle).first)
        if not handle or plan.mechanism == "none":
            users = {os.geteuid()} if plan.mechanism == "bubblewrap" or plan.uid is None else {os.geteuid(), plan.uid}
            kill_all(lambda: find_by_environment(marks(sandbox_id, self._log_id), users))
        if plan.cgroups:
            if handle and plan.mechanism == "bubblewrap":
                _let_parent_end(plan.cgroups)
            kill_all(lambda: cgroups.members(plan.cgroups))
            cgroups.remove(plan.cgroups)

    def end_escaped(self, sandbox_id: str, plan: Plan) -> None:
        """Kill processes that still have the sandbox's own uid after its end, in any namespace."""
        if self._claims is not None and plan.own_uid is not None:
            self._claims.end(sandbox_id, plan.own_uid)

    def end_for_good(self, sandbox_id: str, plan: Plan) -> None:
        """Kill escaped processes, release the uid, and remove the files, all but the journals. That can take long."""
        if self._claims is not None and plan.own_uid is not None:
            self._claims.release(sandbox_id, plan.own_uid)
        self._disks.release(sandbox_id)
        self._layout.clear(sandbox_id)

    def plan_of_stray(self, sandbox_id: str) -> Plan:
        """Reconstruct the plan of a sandbox that no event owns."""
        uid = self._claims.uid_of(sandbox_id) if self._claims is not None else None
        return self._planner.plan_of_stray(sandbox_id, uid)

    def remove_stray(self, strays: Strays, sandbox_id: str, *, forgotten: bool) -> None:
        """Remove the remains of a sandbox that no event owns, its journals only when it is `forgotten`."""
        directory, plan = self._layout.sandbox(sandbox_id), self.plan_of_stray(sandbox_id)
        strays.thaw(sandbox_id)
        strays.kill(sandbox_id)
        for place in mounts.below(directory):
            if place != directory or not self._layout.has_disk(sandbox_id):
                mounts.unmount(place)
        self.end(sandbox_id, plan, {})
        strays.remove_groups(sandbox_id)
        self.end_for_good(sandbox_id, plan)
        if forgotten:
            self._layout.discard([directory])


def _let_parent_end(groups: Mapping[str, str]) -> None:
    """Give the parent of an ended first process time to reap it: a zombie still has the sandbox's uid, and it takes
    longer to see that it is only a zombie.
    """
    deadline = time.monotonic() + PARENT_S
    while cgroups.members(groups) and time.monotonic() < deadline:
        time.sleep(0.0002)


def _kill_frozen(groups: Mapping[str, str]) -> None:
    """Kill frozen processes before they are thawed: they end only when thawed, and must not run on before."""
    if freezer.are_frozen(groups):
        for pid in cgroups.members(groups):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    freezer.end(groups)
