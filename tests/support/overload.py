"""Many clients at once, of which some have sandboxes made, used and ended while the others only ask."""

import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio
from tests.support.log_stories import Append, created, ending, requested, write


def seed(state_dir: str, sandboxes: int) -> None:
    """Put that many sandboxes on record that have ended, by way of the store. Before the daemon's first start."""
    write(f"{state_dir}/events.db", itertools.chain(*(_life(f"old-{number}") for number in range(sandboxes))))


def _life(box: str) -> list[Append]:
    return [[(box, box, requested("uid:0"))], [(box, box, created())], *ending(box)]


class Client:
    """One connection, one call after the other. Each answer is that to its question, or this raises."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._data = b""
        self.answers = 0

    async def call(self, method: str, **params: Any) -> Any:
        self.answers += 1
        number = self.answers
        asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        await self._stream.send_all(msgspec.json.encode(asked) + b"\n")
        answer = await self._next()
        while "method" in answer:  # it tells how it is getting on
            answer = await self._next()
        assert answer["id"] == number
        assert "result" in answer, (method, answer)
        return answer["result"]

    async def _next(self) -> Any:
        while b"\n" not in self._data:
            data = await self._stream.receive_some(1 << 18)
            assert data, "it was dropped"
            self._data += bytes(data)
        line, _, self._data = self._data.partition(b"\n")
        return msgspec.json.decode(line)


class Crowd:
    """The clients. Those that work have each a sandbox; those that ask go on until all that work are through, each with
    pauses of `pause_s` in between.
    """

    def __init__(self, path: str, image_id: str, workers: int, askers: int, rounds: int, pause_s: float = 0) -> None:
        self._path, self._image_id, self._rounds, self._pause_s = path, image_id, rounds, pause_s
        self._workers, self._askers = workers, askers
        self.asked: list[int] = []
        self.began: list[int] = []
        self.ended: list[int] = []
        self.most_running = 0
        self.most_resident = 0
        self._through = trio.Event()
        self._gates = {name: Gate(workers) for name in ("created", "used")}
        self._seen = trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(self._askers):
                nursery.start_soon(self._with_client, self._ask, number)
            async with trio.open_nursery() as working:
                for number in range(self._workers):
                    working.start_soon(self._with_client, self._work, number)
            self._through.set()

    async def _with_client(self, what: Callable[[Client, int], Awaitable[None]], number: int) -> None:
        async with await trio.open_unix_socket(self._path) as stream:
            await what(Client(stream), number)

    async def _work(self, client: Client, number: int) -> None:
        """Have a sandbox made; when all are, use them and end every other and make it anew; then end them all."""
        box = f"box-{number}"
        self.began.append(number)
        await client.call("sandbox.create", image_id=self._image_id, name=box)
        self.ended.append(number)
        await self._gates["created"].pass_()
        for turn in range(self._rounds):
            done = await client.call("sandbox.exec", sandbox_id=box, command=f"echo {turn}")
            assert (done["exit_code"], done["stdout"]) == (0, msgspec.json.decode(msgspec.json.encode(b"%d\n" % turn)))
        if number % 2:
            await client.call("sandbox.terminate", sandbox_id=box)
            box += "-again"
            await client.call("sandbox.create", image_id=self._image_id, name=box)
        await client.call("process.launch", sandbox_id=box, name="web", command=["sleep", "1000"])
        await self._gates["used"].pass_()
        if self._askers and not self._pause_s:  # or all would stand still during a pause
            await self._seen.wait()
        assert (await client.call("sandbox.terminate", sandbox_id=box))["status"] == "stopped"

    async def _ask(self, client: Client, number: int) -> None:
        """Ask for something small again and again, and now and then for more."""
        while not self._through.is_set():
            await client.call("daemon.ping")
            await client.call("sandbox.get", sandbox_id=f"old-{number}")
            if number == 0:
                await self._look(client)
            elif number % 10 == 0:
                await client.call("sandbox.list", all=True, limit=100)
            if self._pause_s:
                await trio.sleep(self._pause_s * random.uniform(0.5, 1.5))
        if number % 10:
            self.asked.append(client.answers)

    async def _look(self, client: Client) -> None:
        all_run = self._gates["used"].is_open
        status = await client.call("daemon.status")
        self.most_running = max(self.most_running, status["sandboxes"].get("running", 0))
        self.most_resident = max(self.most_resident, status["resident_bytes"])
        if all_run:
            self._seen.set()


class Gate:
    """Lets nobody through before so many have come."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._open = trio.Event()

    @property
    def is_open(self) -> bool:
        """True once so many have come."""
        return self._open.is_set()

    async def pass_(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._open.set()
        await self._open.wait()
