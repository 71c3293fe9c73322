"""Expect an error, or wait for something that others bring about."""

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from tests.support.patience import patient

from sandkeep.errors import SandkeepError

DEADLINE_S = patient(60.0)
"""Only a test that fails takes so long."""

_SHORTEST_S, _LONGEST_S = 0.005, 0.03


def _pause_s(waited_s: float) -> float:
    """Return the pause before the next look: a third of the time so far. To look takes a processor from the others."""
    return min(max(waited_s / 3, _SHORTEST_S), _LONGEST_S)


def refused(code: str, call: Callable[..., Any], *arguments: Any, **more: Any) -> SandkeepError:
    """Call something that fails with that code; return the error."""
    with pytest.raises(SandkeepError) as caught:
        call(*arguments, **more)
    assert caught.value.code == code, caught.value
    return caught.value


async def refused_async(code: str, call: Awaitable[Any]) -> SandkeepError:
    """Await something that fails with that code; return the error."""
    with trio.fail_after(DEADLINE_S), pytest.raises(SandkeepError) as caught:
        await call
    assert caught.value.code == code, caught.value
    return caught.value


def until(true: Callable[[], Any], seconds: float = DEADLINE_S, *, seen: Callable[[], Any] | None = None) -> Any:
    """Poll until the answer is true, and return it. The failure shows the last answer, and what was `seen` instead."""
    began = time.monotonic()
    while not (answer := true()):
        waited_s = time.monotonic() - began
        assert waited_s < seconds, _in_vain(true, seconds, seen() if seen else answer)
        time.sleep(_pause_s(waited_s))
    return answer


async def until_async(true: Callable[[], Any]) -> Any:
    """Poll as `until` does, while other tasks go on."""
    began = time.monotonic()
    while not (answer := true()):
        waited_s = time.monotonic() - began
        assert waited_s < DEADLINE_S, _in_vain(true, DEADLINE_S, answer)
        # Not trio's clock: a test may have one that stands still.
        await trio.to_thread.run_sync(time.sleep, _pause_s(waited_s))
    return answer


def _in_vain(true: Callable[[], Any], seconds: float, seen: Any) -> str:
    try:
        awaited = inspect.getsource(true).strip()
    except (OSError, TypeError):  # a method of C, or a partial
        awaited = repr(true)
    shown = seen if isinstance(seen, str) else repr(seen)
    return f"waited {seconds} s in vain for: {awaited}\nIt was: {shown}"
