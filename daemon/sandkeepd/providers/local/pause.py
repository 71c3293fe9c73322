"""Suspending local sandboxes, by the control group that freezes them.

The kernel does not report changes that others make to that group, such as an administrator: it is polled.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio

from sandkeepd.host.cgroups import freezer
from sandkeepd.host.cgroups.freezer import Freezer
from sandkeepd.host.threads import in_ending_thread
from sandkeepd.keeper.pause import Pause, Pauses

LOOK_S: Final = 5.0
"""Seconds between polls for sandboxes frozen or thawed from outside."""

NO_FREEZER: Final = "there is no writable freezer control group"
WHY_NOT_SUSPENDED: Final = f"{NO_FREEZER}: start the daemon as a service"


class FreezerPauses(Pauses):
    """Suspends a sandbox by its control group, if it has a freezer. `mark` exists while the sandbox is frozen only
    to be read.
    """

    def __init__(self, pause: Pause, groups: Mapping[str, str], mark: str) -> None:
        freezer.recover(groups, mark)
        self._freezer: Freezer | None = freezer.freezer_of(groups, mark)
        super().__init__(pause, None if self._freezer else WHY_NOT_SUSPENDED)
        self.refresh()

    def refresh(self) -> None:
        """Read from the kernel if it is suspended, by the daemon or from outside."""
        suspended = self._freezer.is_suspended() if self._freezer else False
        if suspended is not None:
            self.pause.set(suspended)

    async def suspend(self) -> None:
        assert self._freezer is not None
        await in_ending_thread(self._freezer.suspend)
        self.pause.set(True)

    async def resume(self) -> None:
        assert self._freezer is not None
        await in_ending_thread(self._freezer.resume)
        self.pause.set(False)


async def poll_freezers(frozen: Callable[[], Sequence[FreezerPauses]]) -> None:
    """Poll them all periodically, until cancelled, yielding to other tasks between two."""
    while True:
        await trio.sleep(LOOK_S)
        for pauses in frozen():
            pauses.refresh()
            await trio.lowlevel.checkpoint()
