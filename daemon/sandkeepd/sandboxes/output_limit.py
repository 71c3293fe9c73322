"""Retention of output: at most ``SANDKEEP_RETAIN_OUTPUT`` bytes of each sandbox, and no more of an owner than the quota
of journals, which is measured here, with the times of output.

None of this is on record. The end of a process records its output's size, so a missing journal is reported as such; and
a journal with a dropped beginning has a hole. Old output goes with the events; see `retention`.
"""

import errno
import logging
import sys
from functools import partial
from typing import Final

import trio

from sandkeep.protocol.clock import now_us
from sandkeep.settings.daemon import RETAIN_OUTPUT
from sandkeep_store.threads import Threads, in_thread
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.contract.provider import Provider
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.output_times import OutputTimes

logger = logging.getLogger("sandkeepd")

EVERY_S: Final = 30.0


class OutputLimit:
    """The task that drops excess output."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._times = OutputTimes(core.log.directory)
        self._looked_at: dict[str, int] = {}
        self._warned: set[str] = set()
        self._in_own_thread = Threads(1)

    async def run(self) -> None:
        """Look after all sandboxes at once and every half minute, until cancelled."""
        with_times = await in_thread(self._times.sandboxes)
        gone = [name for name in with_times if name not in self._core.state.sandboxes]
        await in_thread(self._times.forget, gone)
        while True:
            await self.trim()
            await trio.sleep(EVERY_S)

    async def trim(self) -> None:
        """Drop present excess. A sandbox without activity since is skipped."""
        most = RETAIN_OUTPUT()
        sandboxes = self._core.state.sandboxes
        self._looked_at = {name: at for name, at in self._looked_at.items() if name in sandboxes}
        self._warned &= sandboxes.keys()
        for sandbox in list(sandboxes.values()):
            if sandbox.active or self._looked_at.get(sandbox.sandbox_id) != sandbox.position:
                first = sandbox.sandbox_id not in self._looked_at  # what an earlier daemon left is swept
                self._looked_at[sandbox.sandbox_id] = sandbox.position
                await self._trim_one(sandbox, sys.maxsize if most is None else most, sweeps=first)
        quotas = self._core.quotas
        quotas.forget_journals()
        for owner in quotas.with_excess_journals():
            await self._drop_ended(owner)

    async def measure(self, sandbox: SandboxState) -> None:
        """Measure the output of a sandbox, for its owner's quota."""
        await self._trim_one(sandbox, sys.maxsize)

    async def drop(self, sandbox: SandboxState) -> None:
        """Drop the output of all processes of a sandbox that have ended."""
        await self._trim_one(sandbox, 0)

    async def _drop_ended(self, owner: str) -> None:
        """Drop the output of an owner's ended sandboxes, oldest first, until the rest is within the quota."""
        quotas = self._core.quotas
        ended = [s for s in self._core.state.sandboxes.values() if s.owner == owner and s.hidden]
        for sandbox in sorted(ended, key=lambda sandbox: sandbox.ended_us or 0):
            if not quotas.has_excess_journals(owner):
                return
            if quotas.journals_of(sandbox.sandbox_id):
                await self.drop(sandbox)

    async def _trim_one(self, sandbox: SandboxState, most: int, *, sweeps: bool = False) -> None:
        name = sandbox.sandbox_id
        provider = self._core.providers.get(sandbox.requested.provider)
        if provider is None:
            return
        running = sandbox.active  # no copy: it has processes launched during the listing
        began_us = now_us()
        try:
            trim = provider.trim_output
            dropped = await self._in_own_thread(trim, name, running, most)
            if sweeps or dropped.processes:
                is_gone = partial(_is_gone, provider, name)
                await self._in_own_thread(self._times.sweep, name, running, is_gone)
            times_bytes = await self._in_own_thread(self._times.size, name)
        except FileNotFoundError:  # it is being made, or went to the archive
            return
        except OSError as error:
            self._warn_once(
                name, "files cannot have holes there" if error.errno == errno.EOPNOTSUPP else str(error.strerror)
            )
            return
        self._warned.discard(name)
        self._core.quotas.measured(name, dropped.kept_bytes + times_bytes, began_us)
        if dropped.processes or dropped.cut_bytes:
            extra = {"sandbox_id": name, "processes": dropped.processes, "cut_bytes": dropped.cut_bytes}
            logger.info("output dropped", extra=extra)

    def _warn_once(self, sandbox_id: str, why: str) -> None:
        """Log that it does not work, once until it does: the code inside may be the reason."""
        if sandbox_id not in self._warned:
            self._warned.add(sandbox_id)
            logger.warning("output is not kept within its bounds", extra={"sandbox_id": sandbox_id, "why": why})


def _is_gone(provider: Provider, sandbox_id: str, process_id: str) -> bool:
    """Return True if a process that has ended has no journals any more."""
    return all(provider.read_ended(sandbox_id, process_id, stream, 0, 0).missing for stream in ("stdout", "stderr"))
