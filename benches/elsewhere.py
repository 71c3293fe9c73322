"""The common parts of benches of sandboxes elsewhere: a crowd of clients, commands, and their rows."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benches import fair
from benches.daemon import seconds
from benches.docker import ms
from benches.table import Row
from tests.support.kubernetes.images import BUSYBOX, DoubleT, with_images

from sandkeep.blocking import connect
from sandkeep.ids import PROCESS, SANDBOX, new_id
from sandkeep.model import SandboxSpec
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.processes import Launch

AT_ONCE = 16
ROUNDS = 3
EXECS = 100
QUIET_S = 5.0
"""Seconds for which the sandboxes are left alone, and the daemon is to ask nothing."""

Times = tuple[list[float], list[float]]
"""Seconds of ours, and of the floor, in turns."""


class Threads:
    """Work done by threads, each with a client of its own that `make` makes."""

    def __init__(self, make: Callable[[], Any], at_once: int = AT_ONCE) -> None:
        self._make = make
        self._mine = threading.local()
        self._pool = ThreadPoolExecutor(at_once)

    def each(self, work: Callable[[Any, Any], Any], what: Iterator[Any] | range | list[Any]) -> list[Any]:
        def one(item: Any) -> Any:
            if not hasattr(self._mine, "client"):
                self._mine.client = self._make()
            return work(self._mine.client, item)

        return list(self._pool.map(one, what))


class Ours:
    """A daemon, and what its clients do at once."""

    def __init__(self, client: Any, root: str, provider: str, at_once: int = AT_ONCE) -> None:
        self.client = client
        self.image = client.image.create(BUSYBOX, provider=provider)
        self._threads = Threads(lambda: connect(f"{root}/sock"), at_once)
        self.boxes: list[str] = []

    def one(self) -> str:
        """Make a sandbox; return its id."""
        return str(self.client.sandbox.create(self.image.image_id).sandbox_id)

    def make(self, number: int) -> None:
        image = self.image.image_id
        self.boxes += self._threads.each(lambda client, _: client.sandbox.create(image).sandbox_id, range(number))

    def clear(self) -> None:
        self._threads.each(lambda client, box: client.sandbox.terminate(box), self.boxes)
        self.boxes.clear()

    def exec_times(self, box: str, by_hand: Callable[[], None]) -> Times:
        """Seconds of `true` by a request of the Python client, with its commits, and by hand."""
        both = [(seconds(lambda: self.client.sandbox.exec(box, ["true"])), seconds(by_hand)) for _ in range(EXECS)]
        return [ours for ours, _ in both], [bare for _, bare in both]


async def provider_times(
    opened: AbstractAsyncContextManager[Any], details: dict[str, Any], by_hand: Callable[[Any], None]
) -> Times:
    """Seconds of `true` by a provider alone, from the request to the exit code, and by hand, given the instance."""
    ours, bare = [], []
    async with opened as provider:
        box, caller = new_id(SANDBOX), Caller(uid=os.geteuid(), gid=os.getegid())
        plan = provider.plan(box, "img_1", SandboxSpec(), caller, [], details=details, owner="uid:0")
        instance = await provider.create(box, "img_1", SandboxSpec(), {}, plan)
        for _ in range(EXECS):
            begun = time.perf_counter()
            process = new_id(PROCESS)
            await instance.launch(Launch(process_id=process, command=["true"], quick=True))
            await instance.wait(process)
            ours.append(time.perf_counter() - begun)
            instance.forget(process)
            bare.append(seconds(lambda: by_hand(instance)))
        await provider.terminate(box, {}, {})
    return ours, bare


def exec_row(case: str, times: Times, beside: str, most: float) -> Row:
    ours, bare = times
    ratio = median(ours) / median(bare)
    return Row(f"exec true {case}", ms(ours), f"{beside} {ms(bare)}", ratio, f"<= {most}", ratio <= most)


def crowd_row(case: str, times: Times, beside: str, most: float, at_once: int = AT_ONCE) -> Row:
    ours, bare = map(median, times)
    ratio = ours / bare
    case = f"{case}, {at_once} at a time"
    return Row(case, f"{ours:.2f} s", f"{beside} {bare:.2f} s", ratio, f"<= {most}", ratio <= most)


@contextmanager
def ordinary(
    start: Callable[[Path, dict[str, str]], AbstractContextManager[DoubleT]],
) -> Iterator[tuple[Path, DoubleT]]:
    """Yield a directory, and a double of a service, which is neither figure nor floor."""
    with ExitStack() as stack:
        with fair.ordinary():
            made = stack.enter_context(with_images(start, "skb-", os.environ.get("SANDKEEP_BENCH_DIR")))
        yield made
