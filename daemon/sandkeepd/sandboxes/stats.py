"""Resource usage of running sandboxes: `sandbox.stats`."""

from collections.abc import Mapping, Sequence

import msgspec

from sandkeep.model import SandboxStats, SandboxStatsList
from sandkeep.protocol.clock import now_us, optional_rfc3339, rfc3339
from sandkeep.protocol.methods import StatsQuery
from sandkeep_store.threads import in_thread
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.paging import page
from sandkeepd.host.cgroups import usage
from sandkeepd.host.cgroups.usage import Usage
from sandkeepd.sandboxes.runtimes import Runtime, Runtimes

AT_ONCE = 32
"""Number of sandboxes measured by one thread before other work gets its turn."""

Sample = tuple[Usage, int]
"""A measurement, and its time, in microseconds since 1970."""


class Stats:
    """The handler."""

    def __init__(self, core: Core, runtimes: Runtimes) -> None:
        self._core = core
        self._runtimes = runtimes

    async def stats(self, request: Request[StatsQuery]) -> SandboxStatsList:
        """Measure one sandbox, or all that the caller has running. One that ends meanwhile is left out."""
        asked, following = self._asked(request)
        found: list[SandboxStats] = []
        for start in range(0, len(asked), AT_ONCE):
            part = asked[start : start + AT_ONCE]
            samples = await in_thread(_measure, [self._groups(sandbox) for sandbox in part])
            for sandbox, sample in zip(part, samples, strict=True):
                if sample is not None and sandbox.status == "running":
                    found.append(self._stats_of(sandbox, *sample))
        return SandboxStatsList(sandboxes=found, next=following)

    def _asked(self, request: Request[StatsQuery]) -> tuple[list[SandboxState], str | None]:
        query, state = request.params, self._core.state
        if query.sandbox_id is not None:
            sandbox = rules.sandbox(state, query.sandbox_id)
            rules.require_running(sandbox)
            return [sandbox], None
        shown = (s for s in state.sandboxes.values() if s.status == "running" and request.sees(s.owner))
        return page(shown, lambda sandbox: sandbox.sandbox_id, query.after, query.limit)

    def _groups(self, sandbox: SandboxState) -> Mapping[str, str]:
        """Return the directories of its control groups; empty while a starting daemon has not adopted it."""
        runtime = self._runtimes.by_id.get(sandbox.sandbox_id)
        return runtime.instance.cgroups if runtime is not None else {}

    def _stats_of(self, sandbox: SandboxState, found: Usage, at_us: int) -> SandboxStats:
        runtime = self._runtimes.by_id.get(sandbox.sandbox_id)
        used = limit = None
        if runtime is not None:
            found = _not_less(found, runtime)
            used, limit = runtime.instance.disk_usage()
        return SandboxStats(
            sandbox_id=sandbox.sandbox_id,
            provider=sandbox.requested.provider,
            owner=sandbox.owner,
            name=sandbox.name,
            session_id=sandbox.spec.session_id,
            created_at=rfc3339(sandbox.requested_us),
            expires_at=optional_rfc3339(self._core.state.expires_us(sandbox)),
            sampled_at=rfc3339(at_us),
            running_processes=len(sandbox.active),
            timeouts=sandbox.limits_met.get("time", 0),
            disk_bytes=used,
            disk_limit_bytes=limit,
            **msgspec.structs.asdict(found),
        )


def _not_less(found: Usage, runtime: Runtime) -> Usage:
    """Return the sample, with no less input and output than before: sums over processes may miss one that was just
    ending, and a client that computes rates would take that for a reset.
    """
    if found.io_read_bytes is None or found.io_written_bytes is None:
        return found
    before = runtime.io_seen
    runtime.io_seen = max(before[0], found.io_read_bytes), max(before[1], found.io_written_bytes)
    return msgspec.structs.replace(found, io_read_bytes=runtime.io_seen[0], io_written_bytes=runtime.io_seen[1])


def _measure(groups: Sequence[Mapping[str, str]]) -> list[Sample | None]:
    """Measure one after the other; None for one that has gone. Blocks."""
    return [None if found is None else (found, now_us()) for found in map(usage.measure, groups)]
