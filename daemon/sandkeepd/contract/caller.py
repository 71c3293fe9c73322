"""A call as providers see it: its caller's credentials, and the receiver of its progress."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

Progress = Callable[[str], Awaitable[None]]


class Caller(Struct, frozen=True, kw_only=True):
    """The credentials with which a host path is accessed."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
