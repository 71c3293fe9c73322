"""Follow the events during the demo, and show each as it is committed."""

import threading
from contextlib import suppress
from typing import Final

from sandkeep.cli.display.timeline import Names, clock, detail
from sandkeep.demo.house import LIMIT_S, DemoDaemon
from sandkeep.demo.stage import Stage
from sandkeep.errors import SandkeepError
from sandkeep.model import Event

POLL_S: Final = 10.0


class EventFollower:
    """A thread with a connection of its own, whose client waits for a daemon that is started again."""

    def __init__(self, house: DemoDaemon, stage: Stage) -> None:
        self._house = house
        self._stage = stage
        self._names = Names()
        self._token: str | None = None
        self._position = 0
        self._ended = False
        self._moved = threading.Condition()
        self.events: list[Event] = []

    def watch(self) -> None:
        """Start following the events, over all restarts: a second thread would show each of them again."""
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        try:
            with suppress(SandkeepError, OSError), self._house.connect(patience_s=LIMIT_S) as client:
                while True:
                    page = client.event.list(after=self._token, wait_s=POLL_S)
                    for event in page.events:
                        self._show(event)
                    self._token = page.next
        finally:
            with self._moved:
                self._ended = True  # nobody reads what we print, for one: catch_up is not to wait for us
                self._moved.notify_all()

    def _show(self, event: Event) -> None:
        self.events.append(event)
        line = f"{clock(event)}  {event.type:<26} {self._names.of(event)}  {detail(event)}"
        self._stage.event(line)
        with self._moved:
            self._position = event.position
            self._moved.notify_all()

    def catch_up(self) -> None:
        """Wait until every event that the log has now was shown. Raises TimeoutError."""
        with self._house.connect() as client:
            position = client.daemon.status().position
        with self._moved:
            self._moved.wait_for(lambda: self._ended or self._position >= position, LIMIT_S)
            if self._position < position:
                raise TimeoutError(f"the events up to {position} did not arrive, only those up to {self._position}")
