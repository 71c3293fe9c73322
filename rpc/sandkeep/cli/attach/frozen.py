"""A message for who waits for a process whose sandbox is suspended: nothing will come until it is resumed."""

from threading import Event as Signal
from threading import Thread
from typing import Any, Final, Self

from sandkeep.blocking import connect
from sandkeep.cli.display.output import note, plain
from sandkeep.cli.options import CLIENT_NAME, Frontend
from sandkeep.errors import SandkeepError

AFTER_S: Final = 1.0
"""Seconds of waiting after which the sandbox is looked at: short commands pay nothing."""


class SuspensionWatch:
    """For the length of a block, says once for each suspension that the sandbox is suspended, and why.

    A thread with a connection of its own follows the sandbox's events. It ends with the first event after the block, or
    with this program; its errors are not the command's.
    """

    def __init__(self, front: Frontend, sandbox_id: str) -> None:
        self._front = front
        self._sandbox_id = sandbox_id
        self._over = Signal()

    def __enter__(self) -> Self:
        Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        if self._over.wait(AFTER_S):
            return
        try:
            self._watch()
        except (SandkeepError, OSError):
            return

    def _watch(self) -> None:
        # Without patience: only the command's own connections wait for a daemon that has gone, and say so.
        with connect(self._front.socket, client=CLIENT_NAME, patience_s=0) as client:
            events = client.follow_events("now", sandbox_id=self._sandbox_id, type="sandbox.suspended")
            events.advance(client.event.list(after="now"))  # what comes after this look is an event
            sandbox = client.sandbox.get(self._sandbox_id)
            if sandbox.status == "suspended":
                self._tell(sandbox.suspended_reason)
            for event in events:
                if self._over.is_set():
                    return
                if event.position > sandbox.position:
                    self._tell(event.data.get("reason"))

    def _tell(self, reason: Any) -> None:
        if self._over.is_set():
            return
        why = f", {plain(reason)}" if reason else ""
        note(
            f"sandkeep: sandbox {self._sandbox_id} is suspended{why}: `sandkeep resume {self._sandbox_id}` continues it"
        )
