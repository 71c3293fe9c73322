"""Follows the events while the demo goes on, and shows each as it is committed."""

import threading
from contextlib import suppress
from typing import Final

from sandkeep.cli.timeline import Names, clock, detail
from sandkeep.demo.house import House
from sandkeep.demo.stage import Stage
from sandkeep.errors import SandkeepError
from sandkeep.model import Event

POLL_S: Final = 10.0
PATIENCE_S: Final = 10.0


class Witness:
    """A thread with a connection of its own. It ends with its daemon, and a new one goes on from its token."""

    def __init__(self, house: House, stage: Stage) -> None:
        self._house = house
        self._stage = stage
        self._names = Names()
        self._token: str | None = None
        self._position = 0
        self._moved = threading.Condition()
        self.events: list[Event] = []

    def watch(self) -> None:
        """Start following the daemon that runs now."""
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        with suppress(SandkeepError, OSError), self._house.connect() as client:
            while True:
                page = client.event.list(after=self._token, wait_s=POLL_S)
                for event in page.events:
                    self._show(event)
                self._token = page.next

    def _show(self, event: Event) -> None:
        self.events.append(event)
        line = f"{clock(event)}  {event.type:<26} {self._names.of(event)}  {detail(event)}"
        self._stage.event(line)
        with self._moved:
            self._position = event.position
            self._moved.notify_all()

    def catch_up(self) -> None:
        """Wait until every event that the log has now was shown."""
        with self._house.connect() as client:
            position = client.daemon.status().position
        with self._moved:
            self._moved.wait_for(lambda: self._position >= position, PATIENCE_S)
