"""One inotify instance for the whole daemon: a reader that waits for a file to grow adds a watch here.

The kernel limits instances and watches by uid, so other programs can have taken all of them. Files without a watch are
polled, until one is available again.
"""

import errno
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

import trio
from inotify_simple import INotify, flags

logger: Final = logging.getLogger("sandkeepd")

Callback = Callable[[], None]

_CHANGES: Final = flags.MODIFY | flags.MASK_ADD  # the code inside can give one file two names

_AT_ONCE: Final = 4
"""Files reported per round of the event loop, when many have grown at once."""

_OVERFLOWN: Final = -1
"""The watch descriptor of the event that says that events were lost."""

_REFUSED: Final = (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The errors of a kernel that gives out no more watches or instances."""

MIN_PERIOD_S: Final = 0.02
MAX_PERIOD_S: Final = 0.25
"""Maximum seconds between polls of a file: it is polled soon after a change, then less and less often."""

_SLOWER: Final = 1.25

RETRY_S: Final = 5.0
"""Seconds between attempts to get inotify back."""

SHORTAGE: Final = (
    "the kernel gives out no more inotify watches to this user: files are polled, so commands answer up to a quarter "
    "of a second late; raise fs.inotify.max_user_watches and max_user_instances, or end what has taken them"
)


class _Polled:
    """A file that is looked at now and then, for want of a watch. Holds a descriptor of its own."""

    def __init__(self, fd: int, callback: Callback) -> None:
        self.fd = os.dup(fd)
        self.callback = callback
        self._seen = self._look()
        self.poll_soon()

    def poll_soon(self) -> None:
        """Look at it soon."""
        self.period_s = MIN_PERIOD_S
        self.due = trio.current_time() + MIN_PERIOD_S

    def has_changed(self, now: float) -> bool:
        """Look at it; the next time sooner or later, by whether it has changed."""
        seen, self._seen = self._seen, self._look()
        changed = seen != self._seen
        self.period_s = MIN_PERIOD_S if changed else min(MAX_PERIOD_S, self.period_s * _SLOWER)
        self.due = now + self.period_s
        return changed

    def _look(self) -> tuple[int, int]:
        found = os.fstat(self.fd)
        return found.st_size, found.st_mtime_ns


class Watcher:
    """Calls back, in its task `run`, when watched files grow. Watches of one file share a descriptor."""

    def __init__(self) -> None:
        self._inotify: INotify | None = None
        self._callbacks: dict[int, list[Callback]] = {}
        self._polled: dict[int, _Polled] = {}
        self._moved: dict[int, int] = {}
        self._last = _OVERFLOWN
        self._due: dict[Callback, float] = {}
        self._sleep = trio.CancelScope()
        self._warned = False
        self._start()

    @property
    def problem(self) -> str | None:
        """The problem that some files are polled; None otherwise."""
        return SHORTAGE if self._polled or self._inotify is None else None

    def add(self, fd: int, callback: Callback) -> int:
        """Watch the open file `fd`, which may be closed afterwards. Returns the key for `remove`."""
        watch = self._add_watch(fd)
        if watch is not None:
            self._callbacks.setdefault(watch, []).append(callback)
            return watch
        self._last -= 1  # below all watch descriptors, and below that of lost events
        self._polled[self._last] = _Polled(fd, callback)
        self._poll_later()
        return self._last

    def _start(self) -> bool:
        """Open inotify, if available; return True on success."""
        if self._inotify is None:
            try:
                self._inotify = INotify(nonblocking=True)
            except OSError as error:
                self._check(error)
                return False
            self._sleep.cancel()  # `run` is to wait for that, too
        return True

    def _add_watch(self, fd: int) -> int | None:
        """The descriptor of a watch; None where there is none to be had."""
        if not self._start():
            return None
        assert self._inotify is not None
        try:
            return int(self._inotify.add_watch(f"/proc/self/fd/{fd}", _CHANGES))
        except OSError as error:
            self._check(error)
            return None

    def _check(self, error: OSError) -> None:
        """Raise an unexpected error. The first shortage is logged, until files go back to inotify."""
        if error.errno not in _REFUSED:
            raise error
        if not self._warned:
            self._warned = True
            logger.warning(SHORTAGE)
        self._due.setdefault(self._retry_inotify, trio.current_time() + RETRY_S)
        self._wake()

    def remove(self, watch: int, callback: Callback) -> None:
        """Stop calling back. Safe when the file, and its watch with it, is gone."""
        watch = self._moved.pop(watch, watch)
        polled = self._polled.pop(watch, None)
        if polled is not None:
            os.close(polled.fd)
            return
        callbacks = self._callbacks.get(watch, [])
        if callback in callbacks:
            callbacks.remove(callback)
        if callbacks or watch not in self._callbacks:
            return
        del self._callbacks[watch]
        assert self._inotify is not None
        try:
            self._inotify.rm_watch(watch)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    def poll_soon(self, watch: int) -> None:
        """Something is about to happen to that file: one that is polled is looked at soon."""
        if watch in self._polled:
            self._polled[watch].poll_soon()
            self._poll_later()

    @contextmanager
    def watching(self, fd: int, callback: Callback) -> Iterator[None]:
        """Watch the open file `fd` for the length of a block."""
        watch = self.add(fd, callback)
        try:
            yield
        finally:
            self.remove(watch, callback)

    def call_later(self, callback: Callback, seconds: float) -> None:
        """Call back once, after so long. One that is waiting for that already does not wait longer."""
        self._due.setdefault(callback, trio.current_time() + seconds)
        self._wake()

    def _wake(self) -> None:
        self._sleep.deadline = min(self._due.values(), default=math.inf)

    def cancel_call(self, callback: Callback) -> None:
        """Do not call back later."""
        self._due.pop(callback, None)

    async def run(self) -> None:
        """Wait for events and call back, until cancelled."""
        while True:
            self._sleep = trio.CancelScope(deadline=min(self._due.values(), default=math.inf))
            with self._sleep:
                if self._inotify is None:
                    await trio.sleep_forever()
                await trio.lowlevel.wait_readable(self._inotify.fileno())
            if not self._sleep.cancelled_caught:
                await self._dispatch()
            self._call_due()

    def _call_due(self) -> None:
        now = trio.current_time()
        for callback in [callback for callback, due in self._due.items() if due <= now]:
            del self._due[callback]
            callback()

    # Without inotify

    def _poll_later(self) -> None:
        due = min((polled.due for polled in self._polled.values()), default=math.inf)
        if due < self._due.get(self._poll, math.inf):
            self._due[self._poll] = due
            self._wake()

    def _poll(self) -> None:
        now = trio.current_time()
        for watch, polled in list(self._polled.items()):
            # a callback may have removed a later one
            if polled.due <= now and watch in self._polled and polled.has_changed(now):
                polled.callback()
        self._poll_later()

    def _retry_inotify(self) -> None:
        """Go back to inotify, as far as that gives out watches again."""
        had = self._inotify
        if not self._start() or (had is not None and not self._polled):
            return
        for name, polled in list(self._polled.items()):
            watch = self._add_watch(polled.fd)
            if watch is None:
                return
            self._callbacks.setdefault(watch, []).append(polled.callback)
            self._moved[name] = watch
            del self._polled[name]
            os.close(polled.fd)
            polled.callback()  # for changes after the last poll
        self._warned = False
        logger.info("the kernel gives out inotify watches again: no file is polled any more")

    # With it

    async def _dispatch(self) -> None:
        assert self._inotify is not None
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
        if self._inotify is not None:
            self._inotify.close()
        for polled in self._polled.values():
            os.close(polled.fd)
        self._polled.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
