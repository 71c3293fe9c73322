"""Blocking calls in threads of which one runs at a time: the test says which, and no scheduler decides."""

import threading
from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """Raised in an actor where it is killed, and wherever it would pause afterwards."""


class Actor(threading.Thread):
    """A blocking call that runs from `go_on` to its next `pause`, or to its end. End each, by `kill` at the latest."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._sent: Any = None
        self._said: Any = None
        self._killed = False
        self._mine, self._theirs = threading.Lock(), threading.Lock()
        self._mine.acquire()
        self._theirs.acquire()
        self.start()

    @staticmethod
    def current() -> "Actor | None":
        """Return the actor that this code runs in."""
        thread = threading.current_thread()
        return thread if isinstance(thread, Actor) else None

    def go_on(self, sent: Any = None) -> Any:
        """Let it run with what its `pause` is to return; return what it says at its next one."""
        self._sent = sent
        self._mine.release()
        self._theirs.acquire()
        return self._said

    def pause(self, said: Any = None) -> Any:
        """Say something, and stand still until it is this actor's turn. To be called by itself."""
        if not self._killed:
            self._said = said
            self._theirs.release()
            self._mine.acquire()
        if self._killed:
            raise Killed
        return self._sent

    def kill(self) -> None:
        """End it where it is."""
        if not self.ended:
            self._killed = True
            self.go_on()
        self.join()

    def run(self) -> None:
        """See `Thread.run`."""
        self._mine.acquire()
        try:
            if not self._killed:
                self.result = self._call()
        except BaseException as error:
            self.error = error
        self.ended = True
        self._theirs.release()
