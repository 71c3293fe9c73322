"""One inotify instance for the whole daemon: who wants to know when a file grows adds a watch here."""

import errno
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

import trio
from inotify_simple import INotify, flags

from sandkeep.errors import ProviderError

Callback = Callable[[], None]

_CHANGES: Final = flags.MODIFY | flags.MASK_ADD  # the code inside can have two names for what is one file to the kernel

_AT_ONCE: Final = 4
"""How many files one round of the event loop is told of, when many have grown at once."""

_OVERFLOWN: Final = -1
"""The watch descriptor of the event that says that events were lost."""


class Watcher:
    """Calls back when watched files are written to. `run` is its one task; callbacks run in it and must be quick.

    The kernel counts a file once however often it is watched, so watches of one file share a descriptor here.
    """

    def __init__(self) -> None:
        self._inotify = INotify(nonblocking=True)
        self._callbacks: dict[int, list[Callback]] = {}
        self._due: dict[Callback, float] = {}
        self._sleep = trio.CancelScope()

    def add(self, fd: int, callback: Callback) -> int:
        """Watch the open file `fd`, which may be closed afterwards. Answers what `remove` wants.

        Raises `provider_unavailable` when the kernel gives out no more watches.
        """
        try:
            watch = self._inotify.add_watch(f"/proc/self/fd/{fd}", _CHANGES)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                message = "all file watches of this user are in use: raise fs.inotify.max_user_watches"
                raise ProviderError("provider_unavailable", message) from None
            raise
        self._callbacks.setdefault(watch, []).append(callback)
        return int(watch)

    def remove(self, watch: int, callback: Callback) -> None:
        """Stop calling back. Safe when the file, and its watch with it, is gone."""
        callbacks = self._callbacks.get(watch, [])
        if callback in callbacks:
            callbacks.remove(callback)
        if callbacks or watch not in self._callbacks:
            return
        del self._callbacks[watch]
        try:
            self._inotify.rm_watch(watch)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    @contextmanager
    def watching(self, fd: int, callback: Callback) -> Iterator[None]:
        """Watch the open file `fd` for the length of a block."""
        watch = self.add(fd, callback)
        try:
            yield
        finally:
            self.remove(watch, callback)

    def later(self, callback: Callback, seconds: float) -> None:
        """Call back once, after so long. One that is waiting for that already does not wait longer."""
        self._due.setdefault(callback, trio.current_time() + seconds)
        self._sleep.deadline = min(self._due.values())

    def never(self, callback: Callback) -> None:
        """Do not call back later."""
        self._due.pop(callback, None)

    async def run(self) -> None:
        """Wait for events and call back, until cancelled."""
        while True:
            self._sleep = trio.CancelScope(deadline=min(self._due.values(), default=math.inf))
            with self._sleep:
                await trio.lowlevel.wait_readable(self._inotify.fileno())
            if not self._sleep.cancelled_caught:
                await self._dispatch()
            self._call_late()

    def _call_late(self) -> None:
        now = trio.current_time()
        for callback in [callback for callback, due in self._due.items() if due <= now]:
            del self._due[callback]
            callback()

    async def _dispatch(self) -> None:
        watches = {event.wd: event.mask for event in self._inotify.read(timeout=0)}
        if _OVERFLOWN in watches:
            watches = dict.fromkeys(self._callbacks, 0)
        for done, (watch, mask) in enumerate(watches.items(), 1):
            for callback in list(self._callbacks.get(watch, ())):
                callback()
            if mask & flags.IGNORED:  # the file is gone; the kernel may give its number to another
                self._callbacks.pop(watch, None)
            if done % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Let go of all watches."""
        self._inotify.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def grown(fd: int, beyond: int) -> bool:
    """Whether the open file is longer than `beyond`."""
    return os.fstat(fd).st_size > beyond
