"""The host uids that one root daemon has claimed for its sandboxes, in the registry that all daemons share.

A uid is claimed before the intent to make its sandbox goes on record, so that every recorded uid is claimed. A claim
that did not get on record is released: at once, or by `reconcile` after a death in between. A uid is released when no
process has it any more, and then rests for `REST_S` before it is reused. If processes of it cannot be ended it is not
reused until the next boot.

A daemon also keeps its claims in memory, and restores them in a registry that was removed. Meanwhile no other daemon
gets a uid that has a process.
"""

import logging
import os
import secrets
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

import trio

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError, SetupError
from sandkeep.settings.daemon import UID_BASE, UID_RANGE
from sandkeep_store.threads import in_thread
from sandkeepd.host.uids import processes
from sandkeepd.host.uids.accounts import Accounts
from sandkeepd.host.uids.registry import Entry, Registry, now

logger: Final = logging.getLogger("sandkeepd")

REST_S: Final = 300
"""Seconds a uid rests after its sandbox. A range of 65,535 then lasts for 218 sandboxes a second, for ever."""

RENEW_PERIOD_S: Final = 10.0
SWEEP_EVERY: Final = 6
"""So many renewals pass between two looks through all entries."""

_TRIES: Final = 100


class Claims:
    """The claims of log `log_id`, in `home`, on `UID_RANGE` uids from `base`, which itself owns shared images."""

    def __init__(
        self, registry: Registry, *, base: int, log_id: str, home: str, accounts: Accounts | None = None
    ) -> None:
        self._registry = registry
        self._base = base
        self._log_id = log_id
        self._home = home
        self._accounts = accounts or Accounts()
        self._claimed: dict[int, str] = {}  # of several threads, so each access is one step of the dict's own
        self._base_is_claimed = False

    # Claiming

    def claim(self, sandbox_id: str, avoid: Collection[int | None] = ()) -> int:
        """Claim a free uid, not one to `avoid`, for a sandbox to go on record. Raises `provider_unavailable`."""
        self._claim_base()
        for _ in range(_TRIES):
            uid = self._base + 1 + secrets.randbelow(UID_RANGE - 1)
            if uid not in avoid and self._try_claim(uid, sandbox_id):
                return uid
        return self._claim_among_all(sandbox_id, avoid)

    def _claim_among_all(self, sandbox_id: str, avoid: Collection[int | None]) -> int:
        """The same where hardly one is free: look at all."""
        self.sweep()
        known = self._registry.entries()
        free = [uid for uid in range(self._base + 1, self._base + UID_RANGE) if uid not in known and uid not in avoid]
        secrets.SystemRandom().shuffle(free)
        for uid in free:
            if self._try_claim(uid, sandbox_id):
                return uid
        raise ProviderError(
            "provider_unavailable",
            f"of {UID_RANGE - 1} host uids from {self._base} on none is free: terminate sandboxes, wait {REST_S} s "
            f"until uids have rested, or have {UID_BASE.name} name a range that no account, subuid or subgid is in",
        )

    def _try_claim(self, uid: int, sandbox_id: str) -> bool:
        if self._accounts.owner(uid) is not None or processes.has_any(uid):
            return False
        if not self._registry.add(uid, self._entry(sandbox_id)):
            return False
        self._claimed[uid] = sandbox_id
        failpoints.reach("uid.claimed")
        return True

    def _claim_base(self) -> None:
        """Keep the owner of our images from being given to a sandbox of a daemon whose range begins elsewhere."""
        if self._base_is_claimed or self._registry.add(self._base, Entry("images")):
            self._base_is_claimed = True
            return
        found = self._registry.read(self._base)
        if found is not None and found.is_stale:
            with self._registry.locked():
                self._registry.replace(self._base, Entry("images"))
        elif found is not None and found.state != "images":
            raise SetupError(
                "not_configured",
                f"{UID_BASE.name}={self._base} is the host uid of a sandbox of {found.log_id or 'another log'}: "
                "give all root daemons of this machine the same, or ranges that do not overlap",
            )
        self._base_is_claimed = True

    def reclaim(self, sandbox_id: str, uid: int) -> bool:
        """Claim the uid of a sandbox on record, even if it rests since that. False if it is another's, or cannot be."""
        for _ in range(2):
            found = self._registry.read(uid)
            if found is None:
                if self._accounts.owner(uid) is not None:
                    return False
                done = self._registry.add(uid, self._entry(sandbox_id))
            elif found.is_stale or (found.state == "resting" and self._is_ours(found, sandbox_id)):
                done = self._replace_entry(uid, sandbox_id, found)
            else:
                done = found.state == "claimed" and self._is_ours(found, sandbox_id)
                if not done:
                    return False
            if done:
                self._claimed[uid] = sandbox_id
                return True
        return False

    def _replace_entry(self, uid: int, sandbox_id: str, seen: Entry) -> bool:
        """Replace an entry by a claim, if it is unchanged since `seen`."""
        with self._registry.locked():
            if self._registry.read(uid) != seen:
                return False
            self._registry.replace(uid, self._entry(sandbox_id))
        return True

    def _entry(self, sandbox_id: str) -> Entry:
        return Entry("claimed", self._log_id, sandbox_id, self._home)

    def _is_ours(self, entry: Entry, sandbox_id: str | None = None) -> bool:
        """Tell if it is an entry of our log. The state directory may have been moved since, but not copied."""
        if entry.log_id != self._log_id or entry.is_stale or sandbox_id not in (None, entry.sandbox_id):
            return False
        return entry.home == self._home or not os.path.lexists(entry.home)

    # Giving back

    def withdraw(self, uid: int) -> None:
        """Give back a uid whose sandbox did not get on record, so that nothing ever ran with it."""
        sandbox_id = self._claimed.pop(uid, None)
        found = self._registry.read(uid)
        if found is not None and found.state == "claimed" and self._is_ours(found, sandbox_id):
            self._registry.remove(uid)

    def end(self, sandbox_id: str, uid: int) -> None:
        """Kill all processes of a recorded sandbox's uid, if it is claimed for that sandbox. Blocks."""
        if self._is_claimed(sandbox_id, uid):
            processes.kill_all_of(uid)

    def release(self, sandbox_id: str, uid: int) -> None:
        """The same, and give the uid back once no process has it. Safe to repeat. Blocks.

        Never raises for a registry that cannot be used: the uid then stays claimed until a daemon of this log starts.
        """
        try:
            if self._is_claimed(sandbox_id, uid):
                ended = processes.kill_all_of(uid)
                failpoints.reach("uid.emptied")
                self._claimed.pop(uid, None)
                self._registry.replace(uid, self._entry(sandbox_id)._replace(state="resting" if ended else "stuck"))
                failpoints.reach("uid.released")
                if not ended:
                    logger.warning("uid not given out again", extra={"uid": uid, "why": _stuck_message(uid)})
        except SandkeepError as error:
            logger.warning("uid not given back", extra={"uid": uid, "sandbox_id": sandbox_id, "why": error.message})
        finally:
            self._claimed.pop(uid, None)

    def _is_claimed(self, sandbox_id: str, uid: int) -> bool:
        """Return True if the sandbox of ours has the uid; claim it if the registry has no entry."""
        found = self._registry.read(uid)
        if found is None or found.is_stale:
            return self.reclaim(sandbox_id, uid)
        return found.state == "claimed" and self._is_ours(found, sandbox_id)

    def uid_of(self, sandbox_id: str) -> int | None:
        """The uid that is claimed for a sandbox of ours that is not on record."""
        with suppress(SandkeepError):
            for uid, entry in self._registry.entries().items():
                if entry.state == "claimed" and self._is_ours(entry, sandbox_id):
                    return uid
        return None

    # Bringing the registry and the record together

    def reconcile(self, on_record: Mapping[int, str]) -> list[str]:
        """Claim uids on record (uid -> sandbox), release our other claims; return warnings. Blocks."""
        for uid, sandbox_id in on_record.items():
            self._is_claimed(sandbox_id, uid)
        messages = list[str]()
        for uid, entry in sorted(self._registry.entries().items()):
            if not self._is_ours(entry):
                continue
            if entry.state == "claimed" and uid not in on_record and uid not in self._claimed:
                self.release(entry.sandbox_id, uid)
            elif entry.state == "stuck":
                messages.append(f"host uid {uid} of sandbox {entry.sandbox_id}: {_stuck_message(uid)}")
        return messages

    def renew(self) -> None:
        """Restore missing claims of ours. Blocks."""
        if self._base_is_claimed:
            self._registry.add(self._base, Entry("images"))
        for uid, sandbox_id in list(self._claimed.items()):
            found = self._registry.read(uid)
            if found is not None and found.state == "claimed" and self._is_ours(found, sandbox_id):
                continue
            if self._claimed.get(uid) == sandbox_id and not self.reclaim(sandbox_id, uid):
                self._claimed.pop(uid, None)
                logger.warning("uid claimed by another", extra={"uid": uid, "sandbox_id": sandbox_id})

    def sweep(self) -> None:
        """Remove entries of rested uids and of earlier boots, and let uids of vanished logs rest. Blocks."""
        with self._registry.locked():
            for uid, entry in self._registry.entries().items():
                if entry.is_stale or (entry.state == "resting" and now() - entry.since >= REST_S):
                    self._registry.remove(uid)
                elif entry.state == "claimed" and self._is_orphan(uid, entry):
                    self._registry.replace(uid, entry._replace(state="resting", boot="", since=0))

    def _is_orphan(self, uid: int, entry: Entry) -> bool:
        """Tell if nobody will ever give that back. A daemon that we are wrong about takes it up again; see `renew`."""
        if now() - entry.since < REST_S or uid in self._claimed or processes.has_any(uid):
            return False
        return os.path.isabs(entry.home) and not os.path.lexists(entry.home)

    async def keep(self) -> None:
        """Keep the registry in order. Runs until cancelled."""
        why = ""
        while True:
            for _ in range(SWEEP_EVERY):
                await trio.sleep(RENEW_PERIOD_S)
                try:
                    await in_thread(self.renew)
                except SandkeepError as error:
                    if error.message != why:
                        logger.warning("cannot keep the uid registry", extra={"why": error.message})
                    why = error.message
            with suppress(SandkeepError):  # another daemon does it
                await in_thread(self.sweep)


def _stuck_message(uid: int) -> str:
    pids = processes.pids_of(uid)
    numbers = ", ".join(map(str, pids[:5])) or "that ended too late"
    return f"processes of it could not be ended ({numbers}), so nobody gets it before the machine is booted"
