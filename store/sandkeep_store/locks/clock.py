"""The two clocks that a lease goes by."""

import time
from typing import Final, NamedTuple, Protocol


class Instant(NamedTuple):
    """One moment on both clocks, in seconds: `wall` since 1970, `steady` since some moment of this machine's own."""

    wall: float
    steady: float


class Clock(Protocol):
    """A source of time. Tests use their own."""

    def now(self) -> Instant:
        """This moment."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's. Its steady clock goes on while the machine is asleep, which the usual monotonic one does not."""

    def now(self) -> Instant:
        """See `Clock.now`."""
        return Instant(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)


SYSTEM: Final = SystemClock()
