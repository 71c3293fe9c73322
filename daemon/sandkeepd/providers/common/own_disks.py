"""The disks of a provider's sandboxes: whether there can be any, and their sizes. A chosen limit is exact, or refused.

See `disks` for the disks themselves.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from sandkeep.errors import SandkeepError, SetupError
from sandkeep.model import Capability
from sandkeep_store.threads import Threads
from sandkeepd.providers.common.disks import Disks, probe, why_not_growing
from sandkeepd.providers.common.layout import Layout

logger: Final = logging.getLogger("sandkeepd")

APPROXIMATE: Final = "approximate"
"""The enforcement of a limit that code inside can exceed: it is measured, or holds for each process alone."""

ONLY_ROOT: Final = "only root's daemon can mount file systems of a limited size"

_MEASURED: Final = "the default limit is approximate: measured every 10 s"
_NO_DISK: Final = (
    "it was created without disk_bytes, so its limit is approximate and cannot be made exact while it runs: create "
    "another with disk_bytes"
)


def refused(reason: str) -> SetupError:
    """Return the error for a disk limit that cannot be exact."""
    message = f"disk_bytes: an exact limit is not possible here: {reason}: leave out disk_bytes"
    return SetupError("not_supported", message, field="disk_bytes")


def limit_feature(own_disks: Capability, *, suspends: bool) -> Capability:
    """Return the capability to limit disk usage; it works if the limit that a caller chooses is exact."""
    default = f"{_MEASURED}, and suspended when exceeded" if suspends else f"{_MEASURED}, but not enforced"
    if own_disks.works:
        return Capability(works=True, why=f"exact with --disk; {default}")
    return Capability(works=False, why=f"--disk is refused, as {own_disks.why}; {default}")


def growth_feature(own_disks: Capability) -> Capability:
    """Return the capability to let disks grow."""
    reason = why_not_growing() if own_disks.works else own_disks.why
    return Capability(works=reason is None, why=reason)


class OwnDisks:
    """The disks of a provider's sandboxes. `for_engine`: a container engine has to see them."""

    def __init__(self, layout: Layout, in_thread: Threads, *, root: bool, for_engine: bool = False) -> None:
        self.disks = Disks(layout, for_engine=for_engine)
        self._layout = layout
        self._in_thread = in_thread
        self._root = root
        self._lock = trio.Lock()
        self._capability = Capability(works=False)

    async def capability(self) -> Capability:
        """Try, until it has once succeeded, whether sandboxes can have disks of their own."""
        if not self._root:
            return Capability(works=False, why=ONLY_ROOT)
        async with self._lock:
            if not self._capability.works:
                self._layout.prepare()
                self._capability = await self._in_thread(probe, self._layout.trash)
        return self._capability

    async def require(self) -> None:
        """Raise `not_supported` where sandboxes cannot have disks."""
        capability = await self.capability()
        if not capability.works:
            raise refused(capability.why or "")

    async def attach(self, sandbox_id: str) -> None:
        """Mount the disk of a sandbox, if it has one and the start of the daemon could not. Raises
        `provider_unavailable`.
        """
        if self._layout.has_disk(sandbox_id):
            await self._in_thread(self.disks.attach, sandbox_id)

    async def reserve(self, sandbox_id: str, previous_bytes: int, disk_bytes: int) -> None:
        """Reserve the bytes of a disk that is about to grow. Raises `not_supported`, `storage_unavailable`."""
        if not self._layout.has_disk(sandbox_id):
            message = f"disk_bytes: {_NO_DISK}"
        elif disk_bytes > previous_bytes and (reason := why_not_growing()) is not None:
            message = f"the sandbox's disk cannot grow: {reason}: run the daemon with it"
        elif disk_bytes < previous_bytes:
            message = f"the sandbox has a disk of its own, of {previous_bytes} bytes, which cannot shrink: give more"
        else:
            return await self._shielded(partial(self.disks.reserve, sandbox_id, disk_bytes))
        raise SetupError("not_supported", message, field="disk_bytes")

    async def fit(self, sandbox_id: str, disk_bytes: int) -> None:
        """Let the disk of a sandbox, if it has one, be of that size. Raises `provider_unavailable`."""
        if self._layout.has_disk(sandbox_id):
            async with self._lock:  # of two that grow the same disk at once, the kernel refuses one
                await self._shielded(partial(self.disks.fit, sandbox_id, disk_bytes))

    async def fit_found(self, sandbox_id: str, disk_bytes: int) -> None:
        """Do as `fit` with a disk of an earlier daemon. A sandbox runs also on one that cannot grow."""
        try:
            await self.fit(sandbox_id, disk_bytes)
        except SandkeepError as error:
            logger.warning("the disk of sandbox %s is not of the recorded size: %s", sandbox_id, error)

    async def _shielded(self, work: Callable[[], None]) -> None:
        with trio.CancelScope(shield=True):
            await self._in_thread(work)
