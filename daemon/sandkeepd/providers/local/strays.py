"""All objects of the local provider on this machine, of every kind, and their logs.

An object is taken for ours only by proof. A directory holds a file with its log's id; a control group has that id in
its name; a sandbox's first process, and each that runs unisolated with its tmux, was started with it among its
variables, and by a user whom the daemon has for that sandbox: anybody can set variables. The namespaces of a sandbox
live as long as its first process. A mount is its directory's. Directories without a log's id were hardly begun, and are
ours, since they are in our state directory.
"""

import os
from typing import Final

from sandkeep.ids import is_log_id, is_name
from sandkeep.settings.daemon import UID_RANGE
from sandkeepd.host import mounts
from sandkeepd.host.cgroups import freezer
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.cgroups.groups import Hierarchies, log_and_sandbox
from sandkeepd.host.processes import find_by_variables, is_in_child_namespace, kill_all, real_uid
from sandkeepd.providers.common.inside import LOG_MARK, MARK
from sandkeepd.providers.common.layout import Layout

MOST_REPORTED: Final = 50
"""Maximum number of reported objects of other logs, each a sentence."""


class Strays:
    """One look at everything. `sandboxes` are those of our log, owned or not; `foreign` are the objects of others.

    With `uid_base`, the first uid that root's daemon assigns, processes of all users are looked at. Blocks, all of it.
    """

    def __init__(self, layout: Layout, hierarchies: Hierarchies, log_id: str, *, uid_base: int | None) -> None:
        self.sandboxes: set[str] = set()
        self.foreign: list[str] = []
        self._layout = layout
        self._hierarchies = hierarchies
        self._log_id = log_id
        self._uids = {os.geteuid()} if uid_base is None else None
        self._assigned = range(0) if uid_base is None else range(uid_base, uid_base + UID_RANGE)

    def scan(self) -> None:
        """Find all that there is."""
        self._scan_directories()
        self._scan_processes()
        self._scan_groups()
        self._scan_mounts()
        self.foreign.sort(key=lambda what: not what.startswith("directory"))  # those in our own place come first
        more = len(self.foreign) - MOST_REPORTED
        if more > 0:
            self.foreign[MOST_REPORTED:] = [f"and {more} more"]

    def _scan_directories(self) -> None:
        for sandbox_id in filter(is_name, self._layout.found()[0]):
            log_id = self._layout.log_of_sandbox(sandbox_id)
            if log_id in (None, self._log_id):
                self.sandboxes.add(sandbox_id)
            else:
                self.foreign.append(f"directory {self._layout.sandbox(sandbox_id)} of log {log_id}")

    def _scan_processes(self) -> None:
        others: dict[tuple[str, str], list[int]] = {}
        for pid, sandbox_id, log_id in self._processes():
            if log_id != self._log_id:
                others.setdefault((sandbox_id, log_id), []).append(pid)
            elif self._is_ours(pid, sandbox_id):
                self.sandboxes.add(sandbox_id)
        for (sandbox_id, log_id), pids in others.items():
            numbers = ", ".join(map(str, pids[:5])) + (", …" if len(pids) > 5 else "")
            self.foreign.append(f"sandbox {sandbox_id} of log {log_id}: pid {numbers}")

    def _processes(self) -> list[tuple[int, str, str]]:
        """Return the first processes of sandboxes, and those that run unisolated: pid, sandbox and log."""
        found = []
        for pid, values in find_by_variables([MARK, LOG_MARK], self._uids):
            try:
                inside = is_in_child_namespace(pid)  # code inside can set any variables
            except OSError:
                continue
            if not inside and is_name(values[MARK]) and is_log_id(values[LOG_MARK]):
                found.append((pid, values[MARK], values[LOG_MARK]))
        return found

    def _is_ours(self, pid: int, sandbox_id: str) -> bool:
        """Tell if a process that names our log has a user for that: the daemon's own, one that it assigns, or the one
        to whom it gave the sandbox's files, which without isolation is the caller.
        """
        try:
            uid = real_uid(pid)
            if uid == os.geteuid() or uid in self._assigned:
                return True
            return uid == os.lstat(f"{self._layout.sandbox(sandbox_id)}/upper").st_uid
        except OSError:
            return False

    def _scan_groups(self) -> None:
        for directory in self._hierarchies.found():
            whose = log_and_sandbox(directory)
            if whose is not None and whose[0] == self._log_id:
                self.sandboxes.add(whose[1])
            else:
                self.foreign.append(f"control group {directory}" + (f" of log {whose[0]}" if whose else ""))

    def _scan_mounts(self) -> None:
        """Find mounts in our own namespace: the provider makes none, but an administrator may have mounted a sandbox's
        files.
        """
        for place in mounts.below(self._layout.sandboxes):
            sandbox_id = place.removeprefix(self._layout.sandboxes).strip("/").partition("/")[0]
            if is_name(sandbox_id) and self._layout.log_of_sandbox(sandbox_id) in (None, self._log_id):
                self.sandboxes.add(sandbox_id)
            else:
                self.foreign.append(f"mount {place}")

    def thaw(self, sandbox_id: str) -> None:
        """Thaw a suspended sandbox of ours: frozen processes do not end."""
        for directory in self._groups(sandbox_id):
            freezer.thaw({"freezer": directory})

    def kill(self, sandbox_id: str) -> None:
        """Kill the processes of a sandbox of ours, of any user."""
        kill_all(
            lambda: [
                pid
                for pid, name, log_id in self._processes()
                if (name, log_id) == (sandbox_id, self._log_id) and self._is_ours(pid, name)
            ]
        )

    def remove_groups(self, sandbox_id: str) -> None:
        """Remove the control groups of a sandbox of ours, and kill their processes."""
        groups = self._groups(sandbox_id)
        kill_all(lambda: cgroups.members(groups))
        cgroups.remove(groups)

    def _groups(self, sandbox_id: str) -> dict[str, str]:
        return {d: d for d in self._hierarchies.found() if log_and_sandbox(d) == (self._log_id, sandbox_id)}
