"""The way to a keeper: its FIFO of request lines."""

import os
from typing import Final

import trio

from sandkeep.errors import ProviderError
from sandkeepd.keeper import fifo
from sandkeepd.keeper.place import CONTROL, Place

REQUEST_DEADLINE_S: Final = 30.0
"""Seconds a request may wait for room in the FIFO, and for the keeper's answer."""


class Channel:
    """Sends request lines to one sandbox's keeper."""

    def __init__(self, sandbox_id: str, place: Place) -> None:
        self._sandbox_id = sandbox_id
        self._place = place
        self._turn = trio.Lock()

    async def send(self, *lines: bytes, deadline_s: float = REQUEST_DEADLINE_S) -> None:
        """Put request lines into the FIFO, waiting for room. Several at once stay together among those that do the
        same.

        Raises `provider_unavailable`.
        """
        fd = self._place.open_fifo(CONTROL)
        if fd is None:
            raise ProviderError(
                "provider_unavailable", f"sandbox {self._sandbox_id} has lost its request channel: terminate it"
            )
        try:
            with trio.fail_after(deadline_s):
                if len(lines) == 1:
                    await fifo.write_line(fd, lines[0])
                    return
                async with self._turn:
                    for line in lines:
                        await fifo.write_line(fd, line)
        except trio.TooSlowError:
            raise self.silent(deadline_s) from None
        finally:
            os.close(fd)

    def silent(self, seconds: float) -> ProviderError:
        """The error for a keeper that does not take a request, or does not answer one, in that time."""
        message = f"sandbox {self._sandbox_id} did not answer for {seconds:.0f} s: terminate it if that goes on"
        return ProviderError("provider_unavailable", message, sandbox_id=self._sandbox_id)
