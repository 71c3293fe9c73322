"""The two clocks that a lease goes by."""

import time
from typing import Final, NamedTuple


class Instant(NamedTuple):
    """One moment on both clocks, in seconds: `wall` since 1970, `steady` since some moment of this machine's own."""

    wall: float
    steady: float


class Clock:
    """The machine's clocks. The steady one goes on while the machine is asleep, which the usual monotonic one does not.
    Tests use their own.
    """

    def now(self) -> Instant:
        """Return this moment."""
        return Instant(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


SYSTEM: Final = Clock()
