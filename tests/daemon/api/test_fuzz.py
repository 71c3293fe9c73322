"""Whatever is sent to the API, each request is answered once, nobody crashes, hangs or grows, and the next is served.

In this process are the real server, dispatch and parts, on real sockets; only the provider is the fake one. The seed
of each run is printed, and the same seed sends the same.
"""

import logging
import socket
from collections import Counter
from pathlib import Path
from random import Random, SystemRandom
from types import SimpleNamespace

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.daemon.api.test_server import Handler
from tests.support.fuzzing import Complaints, Grammar, Levels, Reply, replies, settled, shown, tasks_living, wanted
from tests.support.inside import Inside, inside
from tests.support.patience import patient
from tests.support.soak import times

from sandkeep.protocol.lines import LineBuffer
from sandkeepd.api.server import Server
from sandkeepd.core.peer import Peer

MESSAGES, MESSAGES_SOAK = 40_000, times(2_000_000)
AT_ONCE = 500
"""Lines that go over one connection."""

LAST = b'{"jsonrpc":"2.0","id":"the last one","method":"daemon.ping"}\n'
PATIENCE_S = patient(60)
"""What hangs is given up after that long."""


class Talk:
    """One connection: sends, in pieces of any size, and counts what comes back."""

    def __init__(self, sock: socket.socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self.came: Counter[bytes] = Counter()
        self.outcomes: Counter[str] = Counter()

    async def exchange(self, data: bytes, expected: Counter[bytes], chance: Random) -> None:
        """Send it all, and return when all the answers are there that are to come."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, data, chance)
            await self._receive(expected)

    async def _send(self, data: bytes, chance: Random) -> None:
        at = 0
        while at < len(data):
            size = chance.choice((1, 7, 500, 65536, 65536, 1 << 20))
            await self._stream.send_all(data[at : at + size])
            at += size

    async def _receive(self, expected: Counter[bytes]) -> None:
        lines = LineBuffer()
        missing = expected.total()
        while missing > 0:
            data = await self._stream.receive_some(1 << 18)
            assert data, f"it let go, with {missing} answers to come"
            for line in lines.feed(bytes(data)):
                came = replies(line)
                self.came.update(bytes(reply.id) for reply in came)
                self.outcomes.update(outcome(reply) for reply in came)
                missing -= len(came)
        assert self.came == expected

    async def cut(self, data: bytes) -> None:
        """Send it, and go without waiting for anything."""
        self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with trio.move_on_after(0):
            await self._stream.send_all(data)
        await self.close()

    async def close(self) -> None:
        await self._stream.aclose()


class Target:
    """The server, and connections to it as any user."""

    def __init__(self, daemon: Inside, nursery: trio.Nursery) -> None:
        self.server = Server(daemon.dispatch)
        self._nursery = nursery

    def talk(self, uid: int) -> Talk:
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setblocking(False)
        peer = Peer(uid=uid, gid=uid)
        self._nursery.start_soon(self.server._run, self.server._connection(theirs, peer), peer)
        return Talk(ours)

    async def emptied(self) -> None:
        """Wait until nobody is connected, and what they left has ended."""
        while self.server.statistics().connections:
            await trio.lowlevel.checkpoint()


def outcome(reply: Reply) -> str:
    """The code of an error, else that it went well."""
    if reply.result:
        return "fine"
    return str(msgspec.json.decode(reply.error)["data"]["code"])


async def exchange(target: Target, lines: list[bytes], uid: int, chance: Random) -> Counter[str]:
    """One connection's life: all is sent, all is answered once, and a ping behind it all is answered, too."""
    data = b"\n".join(lines) + b"\n" + LAST
    talk = target.talk(uid)
    try:
        with trio.fail_after(PATIENCE_S):
            await talk.exchange(data, wanted(data), chance)
    except BaseException:
        for line in lines:
            logging.getLogger("fuzz").error("%s", shown(line))
        raise
    await talk.close()
    return talk.outcomes


async def flood(directory: Path, messages: int, seed: int) -> None:
    """Send so many, from several users and over many connections, of which some are cut off."""
    print(f"seed {seed}")
    grammar, outcomes = Grammar(seed), Counter[str]()
    with Complaints() as complaints:
        async with inside(str(directory / "state")) as daemon, trio.open_nursery() as nursery:
            target = Target(daemon, nursery)
            sent, before, tasks = 0, None, tasks_living()
            while sent < messages:
                lines = [grammar.line() for _ in range(AT_ONCE)]
                outcomes += await exchange(target, lines, grammar.chance.choice((0, 1000, 1001)), grammar.chance)
                await target.talk(1000).cut(b"\n".join(lines[: AT_ONCE // 50]))
                await target.emptied()
                sent += AT_ONCE
                if before is None and sent >= messages // 5:
                    await settled(tasks)
                    before = Levels()
            assert before is not None
            await settled(tasks)
            Levels().check(before)
            assert target.server._holdings.of(0) == target.server._holdings.of(1000) == 0
            assert daemon.core.problems == []
            nursery.cancel_scope.cancel()
    assert complaints.said == []
    assert set(outcomes) >= {"fine", "invalid", "not_found", "permission_denied", "conflict", "not_supported"}
    assert "internal" not in outcomes


async def test_forty_thousand_messages(tmp_path: Path) -> None:
    await flood(tmp_path, MESSAGES, SystemRandom().randrange(10**9))


@pytest.mark.soak
async def test_two_million_messages(tmp_path: Path) -> None:
    await flood(tmp_path, MESSAGES_SOAK, SystemRandom().randrange(10**9))


# -- small ones, which hypothesis makes smaller still when they fail ---------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
REQUESTS = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0"),
        "method": st.sampled_from(["daemon.ping", "rpc.hello", "sandbox.get", "image.list", "x"]),
    },
    optional={"id": st.integers() | st.text(max_size=5) | JSON, "params": st.just({}) | JSON},
)
LINES = st.one_of(
    st.binary(max_size=40),
    JSON.map(msgspec.json.encode),
    REQUESTS.map(msgspec.json.encode),
    st.lists(REQUESTS | JSON, max_size=4).map(msgspec.json.encode),
)


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(LINES, max_size=8), st.integers(0, 2**32))
def test_each_request_is_answered_once(lines: list[bytes], seed: int) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            target = Target(SimpleNamespace(dispatch=Handler()), nursery)  # type: ignore[arg-type]
            await exchange(target, lines, 1000, Random(seed))
            await target.emptied()

    trio.run(run)
