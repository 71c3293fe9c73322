"""Host uids of local sandboxes, one for each, recorded in the machine's registry. See `Claiming`."""

import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

import msgspec

from sandkeep.errors import ProviderError, SandkeepError
from sandkeepd.contract.claims import Claiming
from sandkeepd.host.uids.allocation import Claims
from sandkeepd.providers.local.plan import Plan

logger: Final = logging.getLogger("sandkeepd")


class UidClaims(Claiming):
    """The uids that root's daemon assigns; a user's daemon has none, and no `UidClaims`."""

    def __init__(self, uids: Claims) -> None:
        self._uids = uids

    def claim(self, sandbox_id: str, plan: Plan, taken: Collection[int | None]) -> Plan:
        """Claim a uid for a plan that needs one. Raises `provider_unavailable`."""
        uid = self._uids.claim(sandbox_id, taken)
        return msgspec.structs.replace(plan, uid=uid, gid=uid)

    def claim_again(self, sandbox_id: str, plan: dict[str, Any]) -> dict[str, Any]:
        uid = msgspec.convert(plan, Plan).own_uid
        if uid is None or self._uids.reclaim(sandbox_id, uid):
            return plan
        uid = self._uids.claim(sandbox_id)
        return {**plan, "uid": uid, "gid": uid}

    def withdraw(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        uid = msgspec.convert(plan, Plan).own_uid
        if uid is not None:
            with suppress(SandkeepError):  # then the next start does it
                self._uids.withdraw(uid)

    def require(self, sandbox_id: str, plan: Plan) -> None:
        """Raise `provider_unavailable` when the uid of a plan no longer belongs to the sandbox."""
        if plan.own_uid is None or self._uids.reclaim(sandbox_id, plan.own_uid):
            return
        message = f"the host uid {plan.own_uid} of sandbox {sandbox_id} was taken by another user"
        raise ProviderError("provider_unavailable", f"{message}: fork it, or restore a snapshot of it")

    def claim_running(self, sandbox_id: str, plan: Plan) -> None:
        """Claim the uid of a sandbox that may run for it. If that is impossible, log a warning; the sandbox is not
        ended.
        """
        try:
            self.require(sandbox_id, plan)
        except SandkeepError as error:
            logger.warning("cannot claim a uid", extra={"sandbox_id": sandbox_id, "why": error.message})
