"""Faults that tests inject into requests to doubles."""

import asyncio
from typing import Any, Generic, Protocol, TypeVar

import msgspec


class Disturbance(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A fault of the next `times` requests that it matches (None: all): they wait `delay` seconds, or `hang`.

    Then they lose their connection (`drop`), or fail with the `message`; with `after`, once they were carried out.
    """

    times: int | None = 1
    delay: float = 0
    hang: bool = False
    drop: bool = False
    message: str = "injected fault"
    after: bool = False

    async def disturb(self) -> None:
        """Wait for the delay, or for ever."""
        await asyncio.sleep(self.delay)
        if self.hang:
            await asyncio.get_running_loop().create_future()


class _Matching(Protocol):
    times: int | None

    def matches(self, *request: str) -> bool:
        """Return True if the fault is meant for this request."""


F = TypeVar("F", bound=_Matching)


class Faults(Generic[F]):
    """The faults that are set, the oldest first."""

    def __init__(self, kind: type[F]) -> None:
        self._kind = kind
        self._faults: list[F] = []

    def control(self, method: str, options: dict[str, Any]) -> Any:
        """Set a fault (POST), remove all (DELETE), or return those that are still set (GET). Raises
        msgspec.ValidationError.
        """
        if method == "GET":
            return [msgspec.to_builtins(fault) for fault in self._faults]
        if method == "POST":
            self._faults.append(msgspec.convert(options, self._kind))
        else:
            self._faults.clear()
        return {}

    def match(self, *request: str) -> F | None:
        """The fault that hits this request; counts it."""
        for fault in self._faults:
            if fault.matches(*request):
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self._faults.remove(fault)
                return fault
        return None
