"""Running `true` in a sandbox, beside a bare bubblewrap that runs it; and 64 at once.

This is the provider alone, from the request to the exit code; the daemon adds two durable appends.
"""

import time
from statistics import median

import trio
from benches import fair
from benches.sandboxes import BARE, by_hand, create, image, ms, provider, timed
from benches.table import Row, show

from sandkeep.ids import PROCESS, new_id
from sandkeepd.contract.processes import Launch
from sandkeepd.providers.local.provider import LocalInstance

ROUNDS = 150
AT_ONCE = 64


async def _one(instance: LocalInstance) -> None:
    process_id = new_id(PROCESS)
    await instance.launch(Launch(process_id=process_id, command=["true"]))
    await instance.wait(process_id)
    instance.forget(process_id)


async def _together(instance: LocalInstance) -> float:
    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(_one, instance)
    return AT_ONCE / (time.perf_counter() - start)


async def _measure() -> list[Row]:
    ours: list[float] = []
    floor: list[float] = []
    async with provider() as local:
        instance, plan = await create(local, image(local, 10, 1000))
        for _ in range(ROUNDS):
            start = time.perf_counter()
            await _one(instance)
            ours.append((time.perf_counter() - start) * 1e3)
            floor.append(timed(lambda: by_hand([*BARE, "sh", "-c", "true"])))
        rates = [await _together(instance) for _ in range(5)]
        await local.terminate(instance.sandbox_id, plan, instance.handle)
    ratio = median(ours) / median(floor)
    rate, bare = median(rates), 1e3 / median(floor)
    return [
        Row("exec true, provider alone, p50", ms(ours), f"{ms(floor)} bare bwrap", ratio, "<= 1.2", ratio <= 1.2),
        Row(
            f"exec true, {AT_ONCE} at once",
            f"{rate:.0f}/s",
            f"{bare:.0f}/s bwrap, one after another",
            rate / bare,
            ">= 1",
            rate >= bare,
        ),
    ]


@fair.conditions()
def run() -> list[Row]:
    return trio.run(_measure)


if __name__ == "__main__":
    show(run())
