"""Whatever is sent to the stream server, before the handshake or after it, its connection ends and nobody else's.

In this process are the real server, its endpoints and a sandbox of the fake provider with processes to attach to.
"""

import socket
from collections import Counter
from pathlib import Path
from random import SystemRandom

import pytest
import trio
from tests.daemon.stream.test_door import frame, opening
from tests.support.expect import until_async
from tests.support.fuzzing import Complaints, Grammar, Levels, settled, tasks_living
from tests.support.inside import Inside, inside
from tests.support.patience import patient
from tests.support.soak import times
from tests.support.streams import message, websocket
from wsproto.frame_protocol import Opcode

from sandkeepd.stream.endpoints import endpoints
from sandkeepd.stream.server import Limits, StreamServer
from sandkeepd.stream.tokens import Tokens

FRAMES, FRAMES_SOAK = 20_000, times(1_000_000)
A_CONNECTION = 50
PATIENCE_S = patient(60)

TARGETS = (
    "/v1/events", "/v1/events?after=now", "/v1/events?type=process", "/v1/events?after=zzz", "/v1/events?sandbox=box",
    "/v1/logs/box/done", "/v1/logs/box/web?follow=1", "/v1/logs/box/done?stdout=5&stderr=99", "/v1/logs/box/none",
    "/v1/attach/box/web", "/v1/attach/box/web?stdout=0", "/v1/attach/box/web?read_only=1", "/v1/attach/box/done",
    "/v1/attach/box/web?rows=0", "/v1/logs/%2e%2e/x", "/v1/files/box?path=/nowhere", "/v1/none", "/", "/v1/events?%",
)  # fmt: skip
TEXTS = (
    '{"kind":"eof"}', '{"kind":"resize","rows":24,"cols":80}', '{"kind":"signal","signal":"CONT"}',
    '{"kind":"signal","signal":"XYZ"}', '{"kind":"resize","rows":0,"cols":-1}', '{"kind":"end","sha256":"x"}', "{}",
    "", "[]", '{"kind":"error"}', "null", "[" * 3000, '{"kind":"resize","rows":1e400}', '"\\ud800"',
)  # fmt: skip
HEADERS = (
    "", "Origin: http://elsewhere\r\n", "Authorization: Bearer skt_0_x\r\n", "Sec-WebSocket-Protocol: sandkeep.v1\r\n",
    "Sec-WebSocket-Protocol: other\r\n", "Sec-WebSocket-Extensions: permessage-deflate\r\n", "Content-Length: 9\r\n",
    "Transfer-Encoding: chunked\r\n", "Host: other\r\n", "X: " + "y" * 5000 + "\r\n", "Connection: close\r\n",
)  # fmt: skip


class Talker(Grammar):
    """Makes openings and frames, and spoils them."""

    def opening(self) -> bytes:
        """An opening request; of three, two are let in when they ask for something that there is."""
        chance = self.chance.random()
        asked = opening(self.chance.choice(TARGETS), more=self.chance.choice(HEADERS) if chance < 0.2 else "")
        if chance > 0.9:
            return self._spoiled(asked)
        return self._noise() + asked if chance > 0.87 else asked

    def frames(self, count: int) -> bytes:
        """So many of them, one after another; each twentieth connection has one that is spoiled."""
        made = [self._frame() for _ in range(count)]
        if self.chance.random() < 0.3:
            at = self.chance.randrange(count)
            made[at] = self._spoiled(made[at])
        return b"".join(made)

    def _frame(self) -> bytes:
        chance = self.chance.random()
        if chance < 0.45:
            return frame(Opcode.BINARY, self.chance.randbytes(self.chance.choice((0, 1, 30, 126, 3000))))
        if chance < 0.55:
            halves = [self.chance.randbytes(20) for _ in range(3)]
            first, second, third = halves
            return (
                frame(Opcode.BINARY, first, final=False)
                + frame(Opcode.PING, b"between")
                + frame(Opcode.CONTINUATION, second, final=False)
                + frame(Opcode.CONTINUATION, third)
            )
        if chance < 0.75:
            return frame(
                self.chance.choice((Opcode.PING, Opcode.PONG)), self.chance.randbytes(self.chance.randrange(126))
            )
        if chance < 0.97:
            return frame(Opcode.TEXT, self.chance.choice(TEXTS[:3] if chance < 0.93 else TEXTS).encode())
        close = self.chance.choice((b"", b"\x03\xe8", b"\x03\xe8bye", b"x", b"\x00\x00", b"\xff\xff", b"\x03\xed"))
        return frame(Opcode.CLOSE, close)


class Target:
    """The stream server of a daemon in this process."""

    def __init__(self, daemon: Inside, directory: Path, nursery: trio.Nursery) -> None:
        served = endpoints(daemon.core, daemon.dispatch, daemon.processes, daemon.sessions.activity)
        self.server = StreamServer(served, Tokens(str(directory)), limits=Limits(close_s=0.05))
        self._nursery = nursery

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._nursery.start_soon(self.server._serve_client, theirs)
        return ours

    async def attack(self, talker: Talker, outcomes: Counter[bytes]) -> None:
        """One connection: opening and frames, all sent without waiting, and then either an end or a cut."""
        sock = self.connect()
        sock.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        data = talker.opening() + talker.frames(A_CONNECTION)
        async with stream:
            if talker.chance.random() < 0.1:
                with trio.move_on_after(0):
                    await stream.send_all(data)
                return
            with trio.fail_after(PATIENCE_S):
                outcomes[await _spoken(stream, data)] += 1


async def _spoken(stream: trio.SocketStream, data: bytes) -> bytes:
    """Say it all and listen to the end; answers the status of the handshake."""
    heard = b""

    async def say() -> None:
        try:
            await stream.send_all(data)
            await stream.send_eof()
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(say)
        try:
            while got := await stream.receive_some(65536):
                heard = heard or bytes(got[9:12])
        except trio.BrokenResourceError:
            pass
    return heard


async def flood(directory: Path, source: str, frames: int, seed: int) -> None:
    """Send so many frames, over many connections, and look in between whether others are served."""
    print(f"seed {seed}")
    talker, outcomes = Talker(seed), Counter[bytes]()
    with Complaints() as complaints:
        async with inside(str(directory / "state")) as daemon, trio.open_nursery() as nursery:
            await _furnish(daemon, source)
            target = Target(daemon, directory, nursery)
            sent, before, tasks = 0, None, tasks_living()
            while sent < frames:
                for _ in range(10):
                    await target.attack(talker, outcomes)
                    sent += A_CONNECTION
                async with websocket(target.connect(), "/v1/events?after=now") as neighbour:
                    assert (await message(neighbour))["kind"] == "caught_up"
                if before is None and sent >= frames // 5:
                    await settled(tasks)
                    before = Levels()
            assert before is not None
            await settled(tasks)
            Levels().check(before)
            await until_async(lambda: not target.server.connections)  # the last of them may be going just now
            assert target.server._holdings.of(0) == 0
            await daemon.call("sandbox.terminate", sandbox_id="box")
            nursery.cancel_scope.cancel()
    assert complaints.said == []
    assert set(outcomes) >= {b"101", b"400", b"404"}
    assert outcomes[b"101"] > sum(outcomes.values()) // 4


async def _furnish(daemon: Inside, source: str) -> None:
    image_id = await daemon.image(source)
    await daemon.call("sandbox.create", image_id=image_id, name="box")
    await daemon.call(
        "process.launch", sandbox_id="box", name="web", command="trap '' TERM; exec cat >/dev/null", stdin=True
    )
    await daemon.call("process.launch", sandbox_id="box", name="done", command="echo out; echo err >&2")
    await daemon.call("process.wait", sandbox_id="box", name="done")


async def test_twenty_thousand_frames(tmp_path: Path, source: str) -> None:
    await flood(tmp_path, source, FRAMES, SystemRandom().randrange(10**9))


@pytest.mark.soak
async def test_four_million_frames(tmp_path: Path, source: str) -> None:
    await flood(tmp_path, source, FRAMES_SOAK, SystemRandom().randrange(10**9))
