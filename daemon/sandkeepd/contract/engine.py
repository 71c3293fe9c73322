"""An engine that may be down for a while.

Whatever needs the engine raises `provider_unavailable` at once, with ``engine`` in the error's data. What is on record
and has to be done is then tried again, with growing pauses between; `recovered` cuts a pause short.
"""

from typing import Protocol


class Recovering(Protocol):
    """`provider.engine`: there when the provider depends on an engine."""

    async def recovered(self) -> None:
        """Wait until the engine answers again, of which an error has told that it did not."""
        ...
