"""The files of a local sandbox, and its freeze while they are read."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from msgspec import Struct

from sandkeepd.host.cgroups.pause import Pause, frozen, reading
from sandkeepd.host.processes import identify
from sandkeepd.providers.local.plan import Plan
from sandkeepd.providers.local.start import Handle


class SandboxFiles(Struct, frozen=True, kw_only=True):
    """The files of a sandbox. Its changes lie in `upper`, and hide parts of `lowers`, each of which hides parts of the
    next. The file `mark` exists while it is frozen only to be read.
    """

    plan: Plan
    handle: Handle
    upper: str
    lowers: list[str]
    mark: str
    end_reading: Callable[[], None] = lambda: None
    """Called by the thread of a reader that will not freeze it any more."""

    @property
    def first_pid(self) -> int | None:
        """The first process of its pid namespace, if it runs and has one."""
        first = self.handle.first
        return first.pid if self.plan.mechanism == "bubblewrap" and identify(first.pid) == first else None

    def reading(self) -> AbstractAsyncContextManager[Callable[[], None]]:
        """Hold the turn to freeze it. See `pause.reading`."""
        return reading(self.plan.cgroups, self.upper)

    def freeze(self) -> AbstractContextManager[Pause]:
        """Freeze it for the length of a block, in a turn. See `pause.frozen`."""
        return frozen(self.plan.cgroups, self.first_pid, self.mark)

    @property
    def owner(self) -> tuple[int, int]:
        """Return the uid and gid of the owner of its files, as the code inside sees it."""
        return self.plan.inner_uid, self.plan.inner_gid
