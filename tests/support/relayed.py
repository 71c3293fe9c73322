"""A pod's keeper without a pod, in a directory of its own, and connections to it that can be cut."""

import os
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio
from tests.support.patience import patient

from sandkeep.model import Isolation
from sandkeepd.host.hostile_files import HostileRoot
from sandkeepd.keeper import program
from sandkeepd.keeper.client import KeeperInstance
from sandkeepd.keeper.relay import Relay
from sandkeepd.keeper.watcher import Watcher

MOST_BYTES = 64 << 20


class Pod:
    """What is in a pod: a keeper that serves `directory`. It ends, with its processes, at `close`."""

    def __init__(self, root: Path, *limits: str) -> None:
        self.directory = root / "pod"
        self.mirror = root / "mirror"
        self.mirror.mkdir()
        self.program = program.on_host(str(root))
        argv = [self.program, "-p", str(self.directory), *limits]
        self.keeper = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        assert self.keeper.stdout is not None
        assert self.keeper.stdout.readline() == b"ready\n"

    def close(self) -> None:
        """End it all."""
        assert self.keeper.stdout is not None
        self.keeper.stdout.close()
        for pid in self._children():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self.keeper.kill()
        self.keeper.wait()

    def _children(self) -> list[int]:
        text = Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children").read_text()
        return [int(word) for word in text.split()]

    def relay(self, *, most_bytes: int = MOST_BYTES) -> Relay:
        """The daemon's side."""
        return Relay(HostileRoot(str(self.mirror)).tree(), most_bytes=most_bytes)

    def instance(self, watcher: Watcher) -> KeeperInstance:
        """What the daemon makes of the mirror."""
        return KeeperInstance(
            "sbx_1", HostileRoot(str(self.mirror)).tree(), watcher,
            isolation=Isolation(mechanism="none", files="copy"), handle={},
            env={"PATH": os.environ["PATH"]}, working_dir="/", inside=str(self.directory), fed=True,
        )  # fmt: skip

    @asynccontextmanager
    async def connection(self, *before: str) -> AsyncIterator["Cut"]:
        """A connection to the relay in the pod, which `before` starts, if that is something else."""
        argv = [*before, self.program, "-r", str(self.directory)]
        process = await trio.lowlevel.open_process(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        stream = Cut(process.stdin, process.stdout, process)
        try:
            yield stream
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def journals(self, process_id: str) -> list[tuple[bytes, bytes]]:
        """The journals of a process, in the pod and in the mirror."""
        places = [f"out/p/{process_id}.{end}" for end in ("stdout", "stderr")]
        return [((self.directory / place).read_bytes(), (self.mirror / place).read_bytes()) for place in places]


class Cut(trio.abc.Stream):
    """A connection that is cut when so many bytes have gone each way, with all that is under way."""

    def __init__(self, to: trio.abc.SendStream, back: trio.abc.ReceiveStream, process: trio.Process) -> None:
        self.process = process
        self.left = {"to": 1 << 60, "back": 1 << 60}
        self.pause_s = 0.0
        self._to = to
        self._back = back

    def cut_after(self, to: int, back: int) -> None:
        """Cut it then."""
        self.left = {"to": to, "back": back}

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        piece = bytes(data)[: self.left["to"]]
        self.left["to"] -= len(piece)
        await self._to.send_all(piece)
        if len(piece) < len(data):
            raise trio.BrokenResourceError

    async def wait_send_all_might_not_block(self) -> None:
        await self._to.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.sleep(self.pause_s)
        data = bytes(await self._back.receive_some(max_bytes))
        piece = data[: self.left["back"]]
        self.left["back"] -= len(piece)
        if len(piece) < len(data):
            raise trio.BrokenResourceError
        return piece

    async def aclose(self) -> None:
        await self._to.aclose()
        await self._back.aclose()


async def keep_connecting(pod: Pod, relay: Relay, chance: random.Random) -> None:
    """Connect again and again: each connection breaks after a while, and sometimes its relay is killed, or stays."""
    while True:
        async with pod.connection() as stream:
            stream.cut_after(chance.randrange(20_000), chance.randrange(60_000))
            with trio.move_on_after(chance.random()):
                await relay.run(stream)
            if chance.random() < 0.5:
                stream.process.send_signal(chance.choice((signal.SIGTERM, signal.SIGKILL)))
            elif chance.random() < 0.5:
                stream.process.send_signal(signal.SIGSTOP)


@asynccontextmanager
async def connected(pod: Pod, relay: Relay, before: Sequence[str] = ()) -> AsyncIterator[Cut]:
    """A connection that is served for the length of a block, from when all is in the mirror."""
    async with trio.open_nursery() as nursery, pod.connection(*before) as stream:
        nursery.start_soon(relay.run, stream)
        with trio.fail_after(patient(30)):
            await relay.connected.wait()
        yield stream
        nursery.cancel_scope.cancel()
