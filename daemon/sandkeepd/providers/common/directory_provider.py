"""The common part of the providers whose sandboxes begin with directories of this machine."""

import functools
import os
from typing import NamedTuple, TypeVar

import trio
from msgspec import Struct, field

from sandkeep.errors import SetupError
from sandkeep.model import Capability
from sandkeep.settings.daemon import MEMORY_LIMIT
from sandkeepd.contract.instance import Ending
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.cgroups.groups import Hierarchies, Limits
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.capabilities import capability
from sandkeepd.providers.common.directory_images import DirectoryImages, require_directories
from sandkeepd.providers.common.keeper_provider import HeldInstance, KeeperProvider
from sandkeepd.providers.common.layers import Layer, Layers

DirectoryInstanceT = TypeVar("DirectoryInstanceT", bound=HeldInstance)


class Lower(NamedTuple):
    """A directory of files that a sandbox begins with, and their owner's uid."""

    root: str
    uid: int


class DirectoryPlan(Struct, frozen=True, kw_only=True):
    """The part of a plan that these providers share. The sandbox begins with `layers`, each of which hides parts of the
    next, and, with `over_image`, with the image beneath them. `held_by` names the enforcer of each limit. `updated`:
    limits of its groups were changed, and are compared when it is adopted.
    """

    limits: Limits
    disk_bytes: int
    layers: list[Layer] = field(default_factory=list)
    over_image: bool = True
    cgroups: dict[str, str] = field(default_factory=dict)
    held_by: dict[str, str] = field(default_factory=dict)
    updated: bool = False


def enforcer(limit: str, controller: str, hierarchies: Hierarchies, *, or_rlimit: bool = False) -> str:
    """Return the enforcer of a limit. Raises `not_supported` when there is none."""
    if hierarchies.has(controller):
        return "cgroup"
    if or_rlimit:
        return "rlimit"
    message = f"{limit} cannot be limited here: the daemon needs a writable {controller} control group"
    raise SetupError("not_supported", message, field=limit)


def counting(hierarchies: Hierarchies) -> Capability:
    """Return the capability to count the usage of sandboxes."""
    uncounted = ", ".join(hierarchies.uncounted())
    why = f"there are no writable control groups that count {uncounted}: start the daemon as a service"
    return capability(not uncounted, why)


class DirectoryProvider(KeeperProvider[DirectoryInstanceT]):
    """The part of a `KeeperProvider` that is the same for these providers. `first` names a sandbox's first process."""

    first: str

    def __init__(
        self, state_dir: str, log_id: str, watcher: Watcher, nursery: trio.Nursery, *, uid_base: int, disk_limit: int,
        threads: int = 16,
    ) -> None:  # fmt: skip
        super().__init__(state_dir, log_id, watcher, nursery, threads=threads)
        self.root = os.geteuid() == 0
        self._uid_base = uid_base
        self._disk_limit = disk_limit
        self.store = Layers(self.layout, log_id, uid_base if self.root else None)
        self.images = DirectoryImages(self.layout, log_id, self.in_thread, self.store.uid, nursery)

    @functools.cached_property
    def hierarchies(self) -> Hierarchies:
        """The control groups that the daemon can use."""
        return Hierarchies(log_id=self.log_id)

    def default_memory(self) -> int | None:
        return MEMORY_LIMIT() if self.hierarchies.has("memory") else None

    async def lowers(self, image_id: str, plan: DirectoryPlan) -> list[Lower]:
        """Return the layers that a sandbox of that plan begins with. Raises `not_found` when one is missing."""
        lowers = [
            Lower(self.store.root(layer.name), self._uid_base if layer.uid is None else layer.uid)
            for layer in plan.layers
        ]
        if plan.over_image:
            lowers.append(Lower(self.images.root(image_id), self._uid_base))
        await require_directories(lower.root for lower in lowers)
        return lowers

    async def _why_ended(self, instance: DirectoryInstanceT) -> Ending:
        starved = cgroups.ran_out_of_memory(instance.cgroups)
        how = "ended after it had used up its memory" if starved else "was ended from outside"
        return Ending(kind="failed", message=f"{self.first} {how}")
