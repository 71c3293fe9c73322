"""Ending a local sandbox, and clearing away what there is of it, whole or half made. Everything here blocks."""

import os
import signal
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from sandkeepd import cgroups, freezer
from sandkeepd.hostprocess import kill_all, kill_known, marked, owned_by, pids_where
from sandkeepd.providers.local_bubblewrap import marks
from sandkeepd.providers.local_layout import TEMPORARY, Layout
from sandkeepd.providers.local_plan import Plan, Planner
from sandkeepd.providers.local_start import Handle
from sandkeepd.providers.local_strays import Strays


class Clearing:
    """Ends and clears the sandboxes of the log `log_id`. All of it is safe to repeat."""

    def __init__(self, layout: Layout, log_id: str, planner: Planner) -> None:
        self._layout = layout
        self._log_id = log_id
        self._planner = planner

    def end(self, sandbox_id: str, plan: Plan, handle: dict[str, Any]) -> None:
        """Kill what there is: the first process of the namespace takes all the others with it."""
        _doom(plan.cgroups)
        known = plan.mechanism == "bubblewrap" and bool(handle)
        if handle:
            kill_known(msgspec.convert(handle, Handle).first)
        if not known:
            kill_all(lambda: marked(marks(sandbox_id, self._log_id), {os.geteuid(), plan.uid or 0}))
            if plan.mechanism == "bubblewrap" and plan.uid is not None:
                kill_all(lambda: pids_where(owned_by(plan.uid or -1)))
        if plan.cgroups:
            kill_all(lambda: cgroups.members(plan.cgroups))
            cgroups.remove(plan.cgroups)

    def clear(self, sandbox_id: str) -> None:
        """Remove the files of a sandbox that has ended, all but its journals. That can take long."""
        directory = self._layout.sandbox(sandbox_id)
        self._layout.tidy(sandbox_id)
        self._layout.discard([f"{directory}/{name}" for name in TEMPORARY])

    def plan_of_stray(self, sandbox_id: str, taken: Collection[int | None]) -> Plan:
        """What the plan of a sandbox that no event owns must have said, from what there is of it. `taken` are the host
        uids of others.
        """
        try:
            owner = os.lstat(f"{self._layout.sandbox(sandbox_id)}/upper").st_uid
        except OSError:
            owner = None
        return self._planner.of_stray(sandbox_id, owner, taken)

    def remove_stray(self, strays: Strays, sandbox_id: str, taken: Collection[int | None], *, forgotten: bool) -> None:
        """Remove what is left of a sandbox that no event owns, its journals only when it is `forgotten`."""
        directory = self._layout.sandbox(sandbox_id)
        strays.thaw(sandbox_id)
        strays.kill(sandbox_id)
        strays.unmount(directory)
        self.end(sandbox_id, self.plan_of_stray(sandbox_id, taken), {})
        strays.remove_groups(sandbox_id)
        if forgotten:
            self._layout.discard([directory])
        else:
            self.clear(sandbox_id)


def _doom(groups: Mapping[str, str]) -> None:
    """What stands still does not end before it goes on; it is killed first, so as to do nothing more."""
    if freezer.stand_still(groups):
        for pid in cgroups.members(groups):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    freezer.thaw(groups)
