"""React to what happens in sandboxes, and miss nothing: here, tell of every process that did not end well.

    python examples/react.py TOKEN_FILE

The token in the file says how far this program has come. It goes on from there when it is started again, whatever was
restarted meanwhile, it or the daemon. An event is handled before its token is kept: one that was being handled when
the program was killed is handled again, so do what may be done twice.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import sandkeep.blocking
from sandkeep.errors import SandkeepError
from sandkeep.model import Event

PATIENCE_S = 60.0


def main(token_file: Path) -> None:
    """Handle events until somebody ends this program."""
    if not token_file.exists():
        keep(token_file, now())
    for event, after in events(token_file.read_text()):
        handle(event)
        keep(token_file, after)


def handle(event: Event) -> None:
    """What this program is for."""
    if event.type == "process.exited" and event.data["exit_code"] != 0:
        print(f"{event.stream} exited with {event.data['exit_code']}", flush=True)
    elif event.type in ("process.lost", "process.timed_out"):
        print(f"{event.stream}: {event.type}", flush=True)


def now() -> str:
    """The token of this moment."""
    with sandkeep.blocking.connect(client="react.py") as client:
        return client.event.list(after="now").next


def events(token: str) -> Iterator[tuple[Event, str]]:
    """Events after a token, each with the token to go on from; over as many connections as it takes."""
    gone = None
    while True:
        try:
            with sandkeep.blocking.connect(client="react.py") as client:
                following = client.follow_events(after=token, type="process")
                for event in following:
                    gone, token = None, following.token or token
                    yield event, token
        except SandkeepError as error:
            gone = gone or time.monotonic()
            if error.code != "not_ready" or time.monotonic() - gone > PATIENCE_S:
                raise
            time.sleep(0.2)  # the daemon is being restarted


def keep(token_file: Path, token: str) -> None:
    """Write the token, whole or not at all."""
    made = token_file.with_suffix(".new")
    made.write_text(token)
    os.replace(made, token_file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
