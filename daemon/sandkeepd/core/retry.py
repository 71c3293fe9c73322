"""Retry an operation with exponential backoff until the engine answers."""

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import trio

from sandkeep.errors import ProviderError, SandkeepError, error_from
from sandkeep.system.backoff import pauses
from sandkeepd.contract.provider import Provider
from sandkeepd.core.core import Core, as_sandkeep_error

T = TypeVar("T")

logger = logging.getLogger("sandkeepd")

RETRY_S: Final = 1.0
MOST_RETRY_S: Final = 60.0
"""Maximum seconds between retries; the pause doubles with each failure."""


async def retry_until_done(
    work: Callable[[], Awaitable[T]],
    what: str,
    provider: Provider | None = None,
    *,
    deadline_s: float = math.inf,
    on_error: Callable[[SandkeepError], None] = lambda _: None,
    passing: tuple[type[SandkeepError], ...] = (),
    level: int = logging.WARNING,
) -> T:
    """Retry some work until it succeeds. An attempt is cancelled after `deadline_s`, and repeated.

    `on_error` is called with each failure, which is logged at `level`. Errors in `passing` are raised at once. A wait
    ends early when the engine of the `provider` answers again.
    """
    backoff = pauses(RETRY_S, MOST_RETRY_S)
    while True:
        try:
            with answering(provider, deadline_s):
                return await work()
        except passing:
            raise
        except Exception as unforeseen:  # noqa: BLE001  # any error means that it is not done
            error = as_sandkeep_error(unforeseen)
        on_error(error)
        pause_s = next(backoff)
        logger.log(level, "no answer yet", extra={"what": what, "why": error.message, "again_in_s": pause_s})
        with trio.move_on_after(pause_s):
            await _recovered(provider if "engine" in error.data else None)


async def insist(
    core: Core,
    streams: Sequence[str],
    work: Callable[[], Awaitable[object]],
    what: str,
    then: str,
    *,
    provider: str = "",
    deadline_s: float = math.inf,
) -> None:
    """Carry out an order, retrying until it succeeds. While an engine is down, or refuses the daemon, callers that wait
    for these streams get that error, with the consequence `then`. See `retry_until_done`.
    """

    def on_error(error: SandkeepError) -> None:
        if error.code == "not_configured" or (error.code == "provider_unavailable" and "engine" in error.data):
            core.stall(streams, error_from(error.code, f"{error.message}; {then}", error.data))

    try:
        await retry_until_done(work, what, core.providers.get(provider), deadline_s=deadline_s, on_error=on_error)
    finally:
        core.clear_stall(streams)


@contextmanager
def answering(provider: Provider | None, deadline_s: float) -> Iterator[None]:
    """Cancel a block after `deadline_s`, and raise `provider_unavailable` then."""
    try:
        with trio.fail_after(deadline_s):
            yield
    except trio.TooSlowError:
        message, engine = f"its provider did not answer within {deadline_s:g} s", provider.name if provider else None
        raise ProviderError("provider_unavailable", message, engine=engine) from None


async def _recovered(provider: Provider | None) -> None:
    if provider is not None and provider.engine is not None:
        await provider.engine.recovered()
    else:
        await trio.sleep_forever()
