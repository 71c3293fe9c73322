"""Faults that tests inject into requests."""

import asyncio
import re
from typing import Any

import msgspec


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """Requests to disturb, and how.

    The next `times` requests (None: all) whose method and path with query contain the patterns wait `delay` seconds.
    Then they hang until the client leaves (`hang`), lose their connection (`drop`), or fail with `status`; with
    `after`, only once the request was carried out.
    """

    method: str = ""
    path: str = ""
    times: int | None = 1
    delay: float = 0
    hang: bool = False
    drop: bool = False
    status: int | None = None
    reason: str | None = None
    message: str = "injected fault"
    retry_after: int | None = None
    after: bool = False

    async def disturb(self) -> None:
        """Wait for the delay, or for ever."""
        await asyncio.sleep(self.delay)
        if self.hang:
            await asyncio.get_running_loop().create_future()


class Faults:
    """The faults that are set, the oldest first."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, options: dict[str, Any]) -> None:
        """Set a fault. Raises msgspec.ValidationError."""
        self._faults.append(msgspec.convert(options, Fault))

    def clear(self) -> None:
        """Remove all."""
        self._faults.clear()

    def remaining(self) -> list[dict[str, Any]]:
        """The faults that are still set."""
        return [msgspec.to_builtins(fault) for fault in self._faults]

    def match(self, method: str, path: str) -> Fault | None:
        """The fault that hits this request; counts it."""
        for fault in self._faults:
            if re.search(fault.method, method) and re.search(fault.path, path):
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self._faults.remove(fault)
                return fault
        return None
