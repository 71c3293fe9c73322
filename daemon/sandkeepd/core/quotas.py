"""Quotas of owners: sums of the objects on record, and of those about to be.

The sums are kept as events are committed, so that a check costs the same however many objects there are, and follow
from the state alone, so that a new daemon begins with the same ones. An object that is about to go on record is
reserved, without a wait between the check and the reservation, until its next event is committed.

Exact are all quotas but ``journals``: the output of a process that was launched since the last measurement counts when
it ends, everything else when it is measured.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, NamedTuple

from sandkeep import events
from sandkeep.errors import CallerError, StateError
from sandkeep.model import QuotaList, QuotaUsage, SandboxSpec
from sandkeep.protocol.amounts import size
from sandkeep.protocol.methods import QuotaQuery
from sandkeep.settings.daemon import COUNTED_QUOTAS, QUOTA, QUOTA_ADMIN, QUOTAS
from sandkeep_store.eventlog.log import Recorded
from sandkeep_store.views.state import State
from sandkeepd.core.access import Request

FREES: Final = {
    "sandboxes": "terminate sandboxes (`sandkeep rm`)",
    "memory": "terminate sandboxes, or ask for less memory (`--memory`)",
    "disk": "terminate sandboxes that have a disk, or ask for less (`--disk`)",
    "images": "remove images (`sandkeep image rm`)",
    "snapshots": "delete snapshots (`sandkeep snapshot rm`), or abandon merges (`sandkeep branch abandon`)",
    "checkpoints": "delete checkpoints (`sandkeep checkpoint rm`)",
    "artifacts": "remove artifacts (`sandkeep artifact rm`)",
    "journals": "terminate sandboxes: the output of ended ones is dropped within a minute, oldest first",
    "calls": "wait until some of your calls are answered",
}
"""The remedy for each quota."""

SPARE_CALLS: Final = 16
"""Calls beyond the quota that end something: those under way may be waiting for nothing else."""

_ENDING: Final = ("session.close", "sandbox.terminate")

Amounts = Mapping[str, int]


class Share(NamedTuple):
    """Share of one object in its owner's quotas. `session` is the key of the session that an artifact is of."""

    owner: str
    amounts: Amounts
    session: str | None = None


def of_sandbox(spec: SandboxSpec) -> dict[str, int]:
    """Return what a sandbox takes. One without limits of its own promises nothing."""
    return {"sandboxes": 1, "memory": spec.memory_bytes or 0, "disk": spec.disk_bytes or 0}


class Quotas:
    """The quotas of all owners. Raises `not_configured` for a malformed setting."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._limits = QUOTA()
        self._holds_for_admins = QUOTA_ADMIN()
        self._used: dict[str, dict[str, int]] = {}
        self._recorded: dict[str, Share] = {}
        self._reserved: dict[str, Share] = {}
        self._artifacts: Counter[str] = Counter()
        self._journals: dict[str, int] = {}
        self._measured_us: dict[str, int] = {}
        for stream in chain(
            state.sandboxes, state.images, state.snapshots, state.checkpoints, state.artifacts, state.merges
        ):  # fmt: skip
            self._record(stream)

    def limit(self, owner: str, quota: str) -> int | None:
        """Return an owner's limit; None for none."""
        return self._limits.get(owner, {}).get(quota, self._limits[""][quota])

    def used(self, owner: str, quota: str) -> int:
        """Return what is used of an owner's quota, reservations included."""
        return self._used.get(owner, {}).get(quota, 0)

    # -- checks -------------------------------------------------------------------------------------------------------

    def require(self, request: Request[Any] | None, owner: str, quota: str, spare: int = 0) -> None:
        """Raise `quota_exceeded` if nothing is left of a quota: for objects whose size is not known yet. `spare` is
        what may be used beyond it.
        """
        limit = self.limit(owner, quota)
        if limit is not None and self.used(owner, quota) >= limit + spare and not self._is_exempt(request):
            raise self.exceeded(owner, quota)

    def most(self, request: Request[Any] | None, owner: str, quota: str) -> int | None:
        """Return the limit that holds for a request, whatever is used of it; None for none."""
        return None if self._is_exempt(request) else self.limit(owner, quota)

    def reserve(self, request: Request[Any] | None, owner: str, objects: Mapping[str, Amounts]) -> None:
        """Reserve what objects take, by their streams, until the next event of each, or `release`. An object that has a
        reservation gets the new one instead.

        Raises `quota_exceeded`, and changes nothing then.
        """
        asked: dict[str, int] = {}
        for stream, amounts in objects.items():
            _add(asked, amounts)
            if stream in self._reserved:
                _add(asked, self._reserved[stream].amounts, -1)
        for quota, amount in asked.items():
            limit = self.limit(owner, quota)
            over = limit is not None and self.used(owner, quota) + amount > limit
            if amount > 0 and limit is not None and over and not self._is_exempt(request):
                raise self.exceeded(owner, quota, amount)
        for stream, amounts in objects.items():
            self._put(self._reserved, stream, Share(owner, amounts))

    def release(self, *streams: str) -> None:
        """End reservations."""
        for stream in streams:
            self._put(self._reserved, stream, None)

    @contextmanager
    def calling(self, request: Request[Any]) -> Iterator[None]:
        """Count a call for the length of a block. Raises `quota_exceeded`."""
        spare = SPARE_CALLS if request.method.name in _ENDING else 0
        self.require(request, request.owner, "calls", spare)
        used = self._used.setdefault(request.owner, {})
        _add(used, {"calls": 1})
        try:
            yield
        finally:
            _add(used, {"calls": -1})

    def _is_exempt(self, request: Request[Any] | None) -> bool:
        return request is None or (request.admin and not self._holds_for_admins)

    def exceeded(self, owner: str, quota: str, more: int = 0) -> StateError:
        """Return the error for a quota that does not allow `more`; 0 if it is not known how much."""
        used, limit = self.used(owner, quota), self.limit(owner, quota)
        assert limit is not None
        figures = f"{_shown(quota, used)} of {_shown(quota, limit)} used"
        asked = f", {_shown(quota, more)} more asked for" if more else ""
        message = f"the quota of {quota} of {owner} does not allow it ({figures}{asked}): {FREES[quota]}"
        return StateError("quota_exceeded", message, quota=quota, owner=owner, used=used, limit=limit)

    # -- counting -----------------------------------------------------------------------------------------------------

    def committed(self, fact: Recorded) -> None:
        """Count an event that the state has followed."""
        if isinstance(fact.event, events.ProcessExited):
            self._count_output(fact, fact.event)
            return
        if fact.stream in self._reserved:
            self.release(fact.stream)
        self._record(fact.stream)

    def _count_output(self, fact: Recorded, event: events.ProcessExited) -> None:
        process = self._state.processes.get(fact.stream)
        if process is None or process.requested_us <= self._measured_us.get(process.sandbox_id, 0):
            return  # it was measured while it ran, and will be again
        sandbox_id = process.sandbox_id
        size = event.stdout_bytes + event.stderr_bytes
        if size:
            self._journals[sandbox_id] = self._journals.get(sandbox_id, 0) + size
            self._record(sandbox_id)

    def _record(self, stream: str) -> None:
        share = self._share_of(stream)
        if share is not None or stream in self._recorded:
            self._put(self._recorded, stream, share)

    def _share_of(self, stream: str) -> Share | None:
        """Return what an object on record takes; None if that is nothing."""
        state = self._state
        if (sandbox := state.sandboxes.get(stream)) is not None:
            amounts = {} if sandbox.hidden else of_sandbox(sandbox.spec)
            if stream in self._journals:
                amounts["journals"] = self._journals[stream]
            return Share(sandbox.owner, amounts) if amounts else None
        if (image := state.images.get(stream)) is not None:
            made = image.created if not image.ended else None
            return Share(image.owner, {"images": made.size_bytes}) if made is not None else None
        if (snapshot := state.snapshots.get(stream)) is not None:
            if snapshot.stored is None or not snapshot.has_archive:
                return None
            return Share(snapshot.owner, {"snapshots": snapshot.stored.size_bytes})
        if (artifact := state.artifacts.get(stream)) is not None:
            if artifact.exported is None or not artifact.alive:
                return None
            return Share(artifact.owner, {"artifacts": artifact.exported.size_bytes}, artifact.requested.session_id)
        if (merge := state.merges.get(stream)) is not None:
            return Share(merge.owner, {"snapshots": merge.size_bytes}) if merge.waits and merge.size_bytes else None
        if (checkpoint := state.checkpoints.get(stream)) is not None:
            files = checkpoint.stored.files if checkpoint.stored is not None and checkpoint.alive else ()
            return Share(checkpoint.owner, {"checkpoints": sum(file.size_bytes for file in files)}) if files else None
        return None

    def _put(self, shares: dict[str, Share], stream: str, share: Share | None) -> None:
        before = shares.pop(stream, None)
        if before is not None:
            _add(self._used[before.owner], before.amounts, -1)
            self._count_artifact(before, -1)
        if share is not None:
            shares[stream] = share
            _add(self._used.setdefault(share.owner, {}), share.amounts)
            self._count_artifact(share, 1)

    def _count_artifact(self, share: Share, change: int) -> None:
        if share.session is not None:
            self._artifacts[share.session] += change
            if not self._artifacts[share.session]:
                del self._artifacts[share.session]

    def artifacts_of(self, session: str) -> int:
        """Return the number of a session's artifacts."""
        return self._artifacts[session]

    # -- journals -----------------------------------------------------------------------------------------------------

    def measured(self, sandbox_id: str, size: int, began_us: int) -> None:
        """Note the size of a sandbox's journals, by a measurement that began at that time."""
        if sandbox_id in self._state.sandboxes:
            self._journals[sandbox_id], self._measured_us[sandbox_id] = size, began_us
            self._record(sandbox_id)

    def journals_of(self, sandbox_id: str) -> int:
        """Return the size of a sandbox's journals, as far as it is known."""
        return self._journals.get(sandbox_id, 0)

    def forget_journals(self) -> None:
        """Forget the journals of sandboxes that are no longer on record."""
        for sandbox_id in self._journals.keys() - self._state.sandboxes.keys():
            del self._journals[sandbox_id]
            self._measured_us.pop(sandbox_id, None)
            self._record(sandbox_id)

    def with_excess_journals(self) -> list[str]:
        """Return the owners whose journals exceed their quota, but for root and the daemon's user, who are exempt."""
        exempt = () if self._holds_for_admins else ("uid:0", f"uid:{os.geteuid()}")
        return [owner for owner in self._used if owner not in exempt and self.has_excess_journals(owner)]

    def has_excess_journals(self, owner: str) -> bool:
        """Return True if an owner's journals exceed their quota."""
        limit = self.limit(owner, "journals")
        return limit is not None and self.used(owner, "journals") > limit

    # -- the method ---------------------------------------------------------------------------------------------------

    def get_now(self, request: Request[QuotaQuery]) -> QuotaList:
        """Show an owner's quotas. Raises `permission_denied` for another's, unless an administrator asks."""
        owner = request.params.owner or request.owner
        if not request.sees(owner):
            raise CallerError("permission_denied", "owner: others' quotas are for administrators", field="owner")
        quotas = [
            QuotaUsage(
                quota=quota, used=self.used(owner, quota), limit=self.limit(owner, quota),
                unit="count" if quota in COUNTED_QUOTAS else "bytes", frees=FREES[quota],
            )
            for quota in QUOTAS
        ]  # fmt: skip
        return QuotaList(owner=owner, exempt=owner == request.owner and self._is_exempt(request), quotas=quotas)


def _add(sums: dict[str, int], amounts: Amounts, sign: int = 1) -> None:
    for quota, amount in amounts.items():
        sums[quota] = sums.get(quota, 0) + sign * amount


def _shown(quota: str, amount: int) -> str:
    return str(amount) if quota in COUNTED_QUOTAS else size(amount)
