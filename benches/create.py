"""Creating a sandbox from images of 200 MB and 2 GB, beside an overlay mount and a bare bubblewrap."""

import os
import subprocess
import tempfile
import time
from statistics import median

import trio
from benches import fair
from benches.sandboxes import BARE, by_hand, create, image, ms, provider, timed
from benches.table import Row, show

from sandkeepd.providers.local.provider import LocalProvider

ROUNDS = 20
FILES = 10_000
SIZES = {"200 MB": 200 * 10**6, "2 GB": 2 * 10**9}


def _floor(lower: str) -> float:
    """Mount and run, as programs do; taking it down again is not counted."""
    place = tempfile.mkdtemp(prefix="sandkeep-floor-", dir=os.path.dirname(os.path.dirname(os.path.dirname(lower))))
    for name in ("upper", "work", "merged"):
        os.mkdir(f"{place}/{name}")
    options = f"lowerdir={lower},upperdir={place}/upper,workdir={place}/work"

    def both() -> None:
        by_hand(["mount", "-t", "overlay", "-o", options, "overlay", f"{place}/merged"])
        by_hand([*BARE, "--bind", f"{place}/merged", "/workspace", "sh", "-c", "true"])

    took = timed(both)
    subprocess.run(["umount", f"{place}/merged"], check=True)
    return took


async def _case(local: LocalProvider, image_ids: dict[str, str]) -> list[Row]:
    ours: dict[str, list[float]] = {size: [] for size in image_ids}
    floor: list[float] = []
    for _ in range(ROUNDS):
        for size, image_id in image_ids.items():
            start = time.perf_counter()
            instance, plan = await create(local, image_id)
            ours[size].append((time.perf_counter() - start) * 1e3)
            await local.terminate(instance.sandbox_id, plan, instance.handle)
        floor.append(_floor(f"{local.layout.image(image_id)}/root"))
    small, large = (median(samples) for samples in ours.values())
    ratio = small / median(floor)
    return [
        Row("create, 200 MB image", ms(ours["200 MB"]), f"{ms(floor)} overlay + bwrap", ratio, "<= 4", ratio <= 4),
        Row(
            "create, 2 GB image",
            ms(ours["2 GB"]),
            f"{small:.1f} ms for 200 MB",
            large / small,
            "<= 1.25",
            large <= 1.25 * small,
        ),
    ]


async def _measure() -> list[Row]:
    async with provider() as local:
        return await _case(local, {size: image(local, FILES, number) for size, number in SIZES.items()})


@fair.conditions()
def run() -> list[Row]:
    return trio.run(_measure)


if __name__ == "__main__":
    show(run())
