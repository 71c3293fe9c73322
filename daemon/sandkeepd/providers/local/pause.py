"""Suspending local sandboxes, by the control group that freezes them.

What others do to that group, such as an administrator, is not told by the kernel: it is looked at, now and then.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import trio

from sandkeep.model import Capability
from sandkeepd.host.cgroups import freezer
from sandkeepd.host.cgroups.freezer import Freezer
from sandkeepd.providers.common.keeper_provider import HeldInstance

LOOK_S: Final = 5.0
"""How often it is looked at whether somebody else has frozen sandboxes, or thawed them."""

NO_FREEZER: Final = "there is no writable freezer control group"
WHY_NOT_SUSPENDED: Final = f"{NO_FREEZER}: start the daemon as a service"


def suspension(*, freezer: bool) -> Capability:
    """What works of it, for `Provider.capabilities`."""
    return Capability(works=freezer, why=None if freezer else WHY_NOT_SUSPENDED)


class Freezable(HeldInstance):
    """A sandbox that is suspended by its control group, where it has one for that."""

    _freezer: Freezer | None = None

    def have_freezer(self, groups: Mapping[str, str], mark: str) -> None:
        """Take note of its groups, and of their state. `mark` is there while it stands still only to be read."""
        freezer.recover(groups, mark)
        self._freezer = freezer.freezer_of(groups, mark)
        self.no_pauses = None if self._freezer else WHY_NOT_SUSPENDED
        self.look()

    def look(self) -> None:
        """Take note of whether it is suspended, whoever brought that about."""
        suspended = self._freezer.is_suspended() if self._freezer else False
        if suspended is not None:
            self.pause.set(suspended)

    async def suspend(self) -> None:
        """See `Pausing.suspend`."""
        assert self._freezer is not None
        await trio.to_thread.run_sync(self._freezer.suspend)
        self.pause.set(True)

    async def resume(self) -> None:
        """See `Pausing.resume`."""
        assert self._freezer is not None
        await trio.to_thread.run_sync(self._freezer.resume)
        self.pause.set(False)


async def keep_looking(instances: Mapping[str, Freezable]) -> None:
    """Look at them all, now and then, until cancelled."""
    while True:
        await trio.sleep(LOOK_S)
        await look_at(list(instances.values()))


async def look_at(instances: Iterable[Freezable]) -> None:
    """Look at some once, letting others go on."""
    for instance in instances:
        instance.look()
        await trio.lowlevel.checkpoint()
