"""The daemon's place under systemd: what it tells the service manager, and the sockets that it is given.

Both protocols are plain. ``NOTIFY_SOCKET`` names a datagram socket, and a message is one datagram of ``NAME=value``
lines. ``LISTEN_FDS`` counts the sockets that were opened beforehand; they are the descriptors from 3 on. Without these
variables everything here does nothing, so the daemon does not care who started it.

What is promised
    ``READY=1`` comes when requests are answered. ``WATCHDOG=1`` comes for as long as the event loop runs and the event
    log's writer answers: not from a thread that would go on when those do not. A manager that is gone harms nobody.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Final

import trio

from sandkeep_store.eventlog.log import EventLog
from sandkeepd.app.socket_activation import MOST_DIGITS, PassedSockets, take_passed

logger: Final = logging.getLogger("sandkeepd")

SEND_DEADLINE_S: Final = 0.5
"""Seconds a message may wait for a manager that reads nothing; then it is dropped, and later ones do not wait."""

PING_AGAIN_S: Final = 1.0
"""After how long a ping that was not taken is sent again."""

STATUS_PERIOD_S: Final = 1.0
"""Minimum seconds between changes of the status line."""

REFRESH_S: Final = 15.0
"""Maximum seconds until the status line shows facts without an event, such as a disk that is full again."""

EXTEND_PERIOD_S: Final = 5.0
EXTEND_BY_S: Final = 30.0
"""Seconds that a start with progress requests, each `EXTEND_PERIOD_S`."""


class Manager:
    """The service manager, or nobody: `address` is empty then.

    `watchdog_s` is the time after which the manager takes a silent daemon for dead; None when it does not look.
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None, passed: PassedSockets | None = None) -> None:
        self.watchdog_s = watchdog_s if address else None
        self.passed = passed if passed is not None else PassedSockets()
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._last_status = ""
        self._is_deaf = False
        self._owes_ready = False
        self.on_stopping: Callable[[], None] = lambda: None
        """Called when the daemon begins to stop."""

    @property
    def listens(self) -> bool:
        """True if there is a service manager to notify."""
        return bool(self._address)

    def tell(self, *lines: str) -> bool:
        """Send one message; whether it was taken. A manager that does not take it is passed over: the daemon's work is
        more important.
        """
        if not self._address:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(0 if self._is_deaf else SEND_DEADLINE_S)
                sock.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            self._is_deaf = True  # all the daemon's work waits with it, so once is enough
            logger.debug("the service manager does not hear", extra={"why": str(error)})
            return False
        self._is_deaf = False
        return True

    def ready(self, status: str) -> None:
        """Requests are answered from now on, or again."""
        self._last_status = status
        self._owes_ready = not self.tell("READY=1", f"MAINPID={os.getpid()}", f"STATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        """Send a one-line status for people, if it has changed."""
        if status != self._last_status and self.tell(f"STATUS={_one_line(status)}"):
            self._last_status = status

    def reloading(self) -> None:
        """Settings are being read again; `ready` must follow."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, reason: str) -> None:
        """The end begins."""
        self.on_stopping()
        self._last_status = ""
        self.tell("STOPPING=1", f"STATUS=stopping: {_one_line(reason)}; sandboxes go on")

    @contextlib.contextmanager
    def starting(self, progress: Callable[[], int]) -> Iterator[None]:
        """Extend the manager's timeout during the block, which may hold the event loop, while `progress` rises.

        A start that reads a long event log gets the time that it needs; one that hangs gets none.
        """
        if not self.listens:
            yield
            return
        done = threading.Event()
        thread = threading.Thread(target=self._extend, args=(progress, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _extend(self, progress: Callable[[], int], done: threading.Event) -> None:
        reached = progress()
        while not done.wait(EXTEND_PERIOD_S):
            before, reached = reached, progress()
            if reached != before:
                status = f"STATUS=reading the event log, at position {reached}"
                self.tell(f"EXTEND_TIMEOUT_USEC={EXTEND_BY_S * 1e6:.0f}", status)

    async def watchdog(self, alive: Callable[[], Awaitable[None]]) -> None:
        """Say at half of the watchdog's time that the daemon lives, each time `alive` has returned.

        Runs until cancelled, or returns at once when nobody looks.
        """
        while self.watchdog_s is not None:
            await alive()
            pause_s = self.watchdog_s / 2
            await trio.sleep(pause_s if self.tell("WATCHDOG=1") else min(pause_s, PING_AGAIN_S))

    async def keep_status(self, text: Callable[[], str], log: EventLog) -> None:
        """Keep the status line up to date: after events, and now and then. Runs until cancelled.

        Readiness is sent until it is received: the manager would take the start for failed otherwise.
        """
        seen = log.head
        while self.listens:
            if self._owes_ready:
                self.ready(text())
            else:
                with trio.move_on_after(REFRESH_S):
                    await log.wait(seen)
                seen = log.head
                self.status(text())
            await trio.sleep(STATUS_PERIOD_S)


def take_environment(environ: MutableMapping[str, str] = os.environ) -> Manager:
    """The manager that the environment names. Its variables are taken out, as they are not meant for children.

    Raises `not_configured` for descriptors that are not the sockets that this daemon can serve.
    """
    address = environ.pop("NOTIFY_SOCKET", "")
    watchdog_s = _watchdog_s(environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", ""))
    if not address.startswith(("/", "@")) or len(address) < 2:
        address = ""
    return Manager(address, watchdog_s, take_passed(environ))


def _watchdog_s(usec: str, pid: str) -> float | None:
    meant_for_us = not pid or pid == str(os.getpid())
    return number(usec) / 1e6 if meant_for_us and number(usec) else None


def number(text: str) -> int:
    """A count that the environment says; 0 when it says none."""
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else 0


def _one_line(text: str) -> str:
    return " ".join(text.split())
