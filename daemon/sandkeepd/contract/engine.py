"""An engine that may be down for a while.

Every operation that needs the engine raises `provider_unavailable` at once, with ``engine`` in the error's data. The
daemon retries recorded work with growing intervals; `recovered` cuts an interval short.
"""

from typing import Protocol


class Recovering(Protocol):
    """`provider.engine`: present when the provider depends on an engine."""

    async def recovered(self) -> None:
        """Wait until the engine answers again, after an error that it did not."""
        ...
