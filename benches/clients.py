"""200 commands at once from one client of each kind, beside 200 clients that have a connection each.

Figure and floor are of the same kind of client, connect anew each time, and are measured in turns: what one client
shares among its calls must not cost them anything.
"""

import asyncio
import statistics
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio
from benches import fair
from benches.daemon import daemon, seconds
from benches.table import Row, show

import sandkeep
from sandkeep import aio, blocking

AT_ONCE = 200
ROUNDS = 5
MOST = 1.2


def on_threads(path: str, box: str, clients: int) -> None:
    def execute(client: blocking.Client) -> None:
        assert client.sandbox.exec(box, ["true"]).exit_code == 0

    connected = [blocking.connect(path) for _ in range(clients)]
    threads = [threading.Thread(target=execute, args=(connected[n % clients],)) for n in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in connected:
        client.close()


def on_trio(path: str, box: str, clients: int) -> None:
    async def execute(client: sandkeep.Client) -> None:
        assert (await client.sandbox.exec(box, ["true"])).exit_code == 0

    async def with_client(tasks: int) -> None:
        async with sandkeep.connect(path) as client, trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(execute, client)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(with_client, AT_ONCE // clients)

    trio.run(main)


def on_asyncio(path: str, box: str, clients: int) -> None:
    async def execute(client: aio.Client) -> None:
        assert (await client.sandbox.exec(box, ["true"])).exit_code == 0

    async def with_client(tasks: int) -> None:
        async with aio.connect(path) as client:
            await asyncio.gather(*(execute(client) for _ in range(tasks)))

    async def main() -> None:
        await asyncio.gather(*(with_client(AT_ONCE // clients) for _ in range(clients)))

    asyncio.run(main())


KINDS: dict[str, Callable[[str, str, int], None]] = {"trio": on_trio, "asyncio": on_asyncio, "threads": on_threads}


def measure(kind: str, path: str, box: str) -> Row:
    work = KINDS[kind]
    took: dict[int, list[float]] = {1: [], AT_ONCE: []}
    for turn in range(ROUNDS + 1):
        for clients in (1, AT_ONCE) if turn % 2 else (AT_ONCE, 1):
            took[clients].append(seconds(partial(work, path, box, clients)))
    one, many = (statistics.median(times[1:]) for times in (took[1], took[AT_ONCE]))
    return Row(
        f"{AT_ONCE} execs at once from one client, {kind}",
        f"{one * 1000:.0f} ms",
        f"{many * 1000:.0f} ms, {AT_ONCE} clients",
        one / many,
        f"<= {MOST}",
        one / many <= MOST,
    )


@fair.conditions()
def run() -> list[Row]:
    with daemon() as (client, root):
        source = Path(root, "source")
        source.mkdir()
        box: Any = client.sandbox.create(client.image.create(str(source)).image_id)
        return [measure(kind, f"{root}/sock", box.sandbox_id) for kind in KINDS]


if __name__ == "__main__":
    show(run())
