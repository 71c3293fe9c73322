"""Sandboxes at Modal, beside Modal's SDK that does the same by hand, in the same run and in turns.

The service is the double of the tests: what it takes for a sandbox is the same for both, and it has no precedence. By
hand, 16 threads make a sandbox each by the SDK's blocking interface, and wait for the end of a first command in it.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import modal
import trio
from benches import fair
from benches.daemon import daemon, seconds
from benches.elsewhere import AT_ONCE, QUIET_S, ROUNDS, Ours, Times, crowd_row, exec_row, ordinary, provider_times
from benches.table import Row, show
from tests.support.modal.accounts import account_at
from tests.support.modal.service import Modal, start_modal

from sandkeepd.providers.modal.provider import open_modal

CROWD = 50
MOST_CREATE, MOST_EXEC, MOST_DURABLE_EXEC = 1.5, 0.5, 1.0
BESIDE = "Sandbox.exec and wait"


class ByHand:
    """The SDK's public, blocking interface."""

    def __init__(self, image_id: str) -> None:
        self._app = modal.App.lookup("by-hand", create_if_missing=True)
        self._image = modal.Image.from_id(image_id)
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._made: list[Any] = []

    def make(self) -> Any:
        """Make a sandbox, and run a first command in it."""
        made = modal.Sandbox.create(
            "sleep", "100000", app=self._app, image=self._image, block_network=True, timeout=3600
        )
        self.exec(made)
        return made

    def make_crowd(self) -> None:
        self._made += self._pool.map(lambda _: self.make(), range(CROWD))

    def clear(self) -> None:
        list(self._pool.map(lambda made: made.terminate(), self._made))
        self._made.clear()

    def exec(self, made: Any) -> None:
        """Run `true` to its end."""
        code = made.exec("true").wait()
        assert code == 0, code


def crowd_rows(ours: Ours, by_hand: ByHand, service: Modal) -> Iterator[Row]:
    times: Times = [], []
    quiet = 0
    for _ in range(ROUNDS):
        times[1].append(seconds(by_hand.make_crowd))
        by_hand.clear()
        times[0].append(seconds(lambda: ours.make(CROWD)))
        time.sleep(QUIET_S)  # what the creation left behind is over
        service.forget_calls()
        time.sleep(QUIET_S)
        quiet += sum(service.calls()["counts"].values())
        ours.clear()
    yield crowd_row(f"{CROWD} sandboxes made at Modal", times, "the SDK, with a first exec", MOST_CREATE)
    yield Row(f"calls to Modal in {QUIET_S:.0f} s by {CROWD} idle sandboxes", str(quiet), "-", "-", "0", not quiet)


def exec_rows(ours: Ours, by_hand: ByHand, service: Modal, state_dir: str) -> Iterator[Row]:
    box, made = ours.one(), by_hand.make()
    opened = open_modal(state_dir, log_id="log_bench", account=account_at(service))
    details = {"modal_image_id": ours.image.modal_image_id}
    alone = trio.run(provider_times, opened, details, lambda _: by_hand.exec(made))
    yield exec_row("at Modal, provider alone", alone, BESIDE, MOST_EXEC)
    durable = ours.exec_times(box, lambda: by_hand.exec(made))
    yield exec_row("at Modal, both commits durable", durable, BESIDE, MOST_DURABLE_EXEC)
    ours.client.sandbox.terminate(box)
    made.terminate()


@fair.conditions()
def run() -> list[Row]:
    with ordinary(start_modal) as (place, service):
        os.environ.update(service.environment)  # of the SDK in this process
        with daemon(**service.environment) as (client, root):
            ours = Ours(client, root, "modal")
            by_hand = ByHand(ours.image.modal_image_id)
            rows = [*exec_rows(ours, by_hand, service, f"{place}/state"), *crowd_rows(ours, by_hand, service)]
            modal.Client.from_env().close()
            return rows


if __name__ == "__main__":
    show(run())
