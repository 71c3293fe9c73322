"""Sandboxes at Modal, beside Modal's SDK that does the same by hand, in the same run and in turns.

The service is the double of the tests: what it takes for a sandbox is the same for both, and it has no precedence. By
hand, 16 threads make a sandbox each by the SDK's blocking interface, and wait for the end of a first command in it.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import modal
import trio
from benches import fair
from benches.daemon import daemon, seconds
from benches.docker import ms
from benches.kubernetes import Threads
from benches.table import Row, show
from tests.support.kubernetes.images import BUSYBOX, unpack
from tests.support.modal.accounts import account_at
from tests.support.modal.service import Modal, start_modal

from sandkeep.blocking import connect
from sandkeep.ids import PROCESS, SANDBOX, new_id
from sandkeep.model import SandboxSpec
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.processes import Launch
from sandkeepd.providers.modal.provider import open_modal

CROWD, AT_ONCE = 50, 16
ROUNDS = 3
EXECS = 100
QUIET_S = 5.0
"""Seconds for which the sandboxes are left alone, and the daemon is to ask nothing."""

MOST_CREATE, MOST_EXEC, MOST_DURABLE_EXEC = 1.5, 0.5, 1.0


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


class Ours:
    """A daemon, and what its clients do at once."""

    def __init__(self, client: Any, root: str) -> None:
        self.client = client
        made = client.image.create(BUSYBOX, provider="modal")
        self.image, self.modal_image = made.image_id, made.modal_image_id
        self._threads = Threads(lambda: connect(f"{root}/sock"))
        self.boxes: list[str] = []

    def make_crowd(self) -> None:
        self.boxes += self._threads.each(lambda client, _: client.sandbox.create(self.image).sandbox_id, range(CROWD))

    def clear(self) -> None:
        self._threads.each(lambda client, box: client.sandbox.terminate(box), self.boxes)
        self.boxes.clear()


def crowd_rows(ours: Ours, by_hand: ByHand, service: Modal) -> Iterator[Row]:
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    quiet = 0
    for _ in range(ROUNDS):
        times["bare"].append(seconds(by_hand.make_crowd))
        by_hand.clear()
        times["ours"].append(seconds(ours.make_crowd))
        time.sleep(QUIET_S)  # what the creation left behind is over
        service.forget_calls()
        time.sleep(QUIET_S)
        quiet += sum(service.calls()["counts"].values())
        ours.clear()
    ratio = median(times["ours"]) / median(times["bare"])
    figure, floor = (f"{median(taken):.2f} s" for taken in times.values())
    case = f"{CROWD} sandboxes made at Modal, {AT_ONCE} at a time"
    yield Row(case, figure, f"the SDK, with a first exec {floor}", ratio, f"<= {MOST_CREATE}", ratio <= MOST_CREATE)
    yield Row(f"calls to Modal in {QUIET_S:.0f} s by {CROWD} idle sandboxes", str(quiet), "-", "-", "0", not quiet)


async def channel_times(service: Modal, image_id: str, by_hand: ByHand, state: str) -> tuple[list[float], list[float]]:
    """Seconds of `true` by a provider alone, from the request to the exit code, and by the SDK."""
    ours, bare = [], []
    made = await trio.to_thread.run_sync(by_hand.make)
    async with open_modal(state, log_id="log_bench", account=account_at(service)) as provider:
        box, caller = new_id(SANDBOX), Caller(uid=os.geteuid(), gid=os.getegid())
        details = {"modal_image_id": image_id}
        plan = provider.plan(box, "img_1", SandboxSpec(), caller, [], details=details, owner="uid:0")
        instance = await provider.create(box, "img_1", SandboxSpec(), {}, plan)
        for _ in range(EXECS):
            begun = time.perf_counter()
            process = new_id(PROCESS)
            await instance.launch(Launch(process_id=process, command=["true"], quick=True))
            await instance.wait(process)
            ours.append(time.perf_counter() - begun)
            instance.forget(process)
            bare.append(seconds(lambda: by_hand.exec(made)))
        await provider.terminate(box, {}, {})
    made.terminate()
    return ours, bare


def request_times(ours: Ours, by_hand: ByHand) -> tuple[list[float], list[float]]:
    """Seconds of `true` by a request of the Python client, with its commits, and by the SDK."""
    box, made = ours.client.sandbox.create(ours.image).sandbox_id, by_hand.make()
    both = [
        (seconds(lambda: ours.client.sandbox.exec(box, ["true"])), seconds(lambda: by_hand.exec(made)))
        for _ in range(EXECS)
    ]
    ours.client.sandbox.terminate(box)
    made.terminate()
    return [mine for mine, _ in both], [bare for _, bare in both]


def exec_row(what: str, times: tuple[list[float], list[float]], most: float) -> Row:
    ours, bare = times
    ratio = median(ours) / median(bare)
    beside = f"Sandbox.exec and wait {ms(bare)}"
    return Row(f"exec true at Modal, {what}", ms(ours), beside, ratio, f"<= {most}", ratio <= most)


@contextmanager
def ordinary_service(place: Path) -> Iterator[Modal]:
    """A service, which is neither figure nor floor, and to which the SDK in this process is set up."""
    images = unpack(place / "images")
    with ExitStack() as stack:
        with fair.ordinary():
            service = stack.enter_context(start_modal(place / "service", images))
        os.environ.update(service.environment)
        yield service


@fair.conditions()
def run() -> list[Row]:
    with (
        tempfile.TemporaryDirectory(prefix="skb-", dir=os.environ.get("SANDKEEP_BENCH_DIR")) as place,
        ordinary_service(Path(place)) as service,
        daemon(**service.environment) as (client, root),
    ):
        ours = Ours(client, root)
        by_hand = ByHand(ours.modal_image)
        alone = trio.run(channel_times, service, ours.modal_image, by_hand, f"{place}/state")
        durable = request_times(ours, by_hand)
        rows = [
            exec_row("provider alone", alone, MOST_EXEC),
            exec_row("both commits durable", durable, MOST_DURABLE_EXEC),
            *crowd_rows(ours, by_hand, service),
        ]
        modal.Client.from_env().close()
        return rows


if __name__ == "__main__":
    show(run())
