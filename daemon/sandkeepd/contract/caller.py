"""A call as providers see it: its caller's credentials, and the receiver of its progress."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final

from msgspec import Struct

Progress = Callable[[str], Awaitable[None]]


async def no_progress(_sentence: str) -> None:
    """Tell nobody."""


STARTING: Final[ContextVar[Progress]] = ContextVar("STARTING", default=no_progress)
"""Tells whoever waits for the sandbox that this task makes why it takes so long; a provider need not."""


class Caller(Struct, frozen=True, kw_only=True):
    """The credentials with which a host path is accessed."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
