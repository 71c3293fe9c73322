"""Sessions: `ensure` of one that is ready beside `sandbox.get`, and bringing one back beside restoring a snapshot.

Calls are made in turns on two connections to the same daemon, client and daemon on processors of their own, as in
`benches.rpc`. Each revival and each restore is of a snapshot of its own, as what was unpacked of one is kept. A session
of a container is brought back beside the creation of a container of the same image.
"""

import contextlib
import os
import socket
import statistics
from typing import Any

import msgspec
from benches import fair
from benches.daemon import daemon, tree
from benches.engines import engine
from benches.rpc import CALLS_A_TURN, TURNS, _one_call, _server_of, awake, kept_on
from benches.snapshots import BYTES, FILES, at_most, grow, in_turns, row, size
from benches.table import Row, show

ROUNDS = 5
CONTAINERS = 10


def line(method: str, **params: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 17, "method": method, "params": params}) + b"\n"


def ensure_row(path: str) -> Row:
    """The session is ready, and its sandbox goes by the same name."""
    lines = line("session.ensure", id="pinned"), line("sandbox.get", sandbox_id="pinned")
    took: list[list[float]] = [[], []]
    with contextlib.ExitStack() as held:
        held.enter_context(awake())
        processors = sorted(os.sched_getaffinity(0))
        held.enter_context(kept_on(os.getpid(), processors[0]))
        sockets = [held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in lines]
        for sock in sockets:
            sock.connect(path)
        held.enter_context(kept_on(_server_of(sockets[0]), processors[-1]))
        for _ in range(TURNS):
            for sock, text, times in zip(sockets, lines, took, strict=True):
                times += [_one_call(sock, text) for _ in range(CALLS_A_TURN)]
    ours, floor = (statistics.median(times) for times in took)
    case = "session.ensure of one that is ready, one connection, p50"
    return Row(case, f"{ours:.0f} µs", f"{floor:.0f} µs sandbox.get", ours / floor, "at most 1.3", ours <= 1.3 * floor)


def revival_row(client: Any, root: str) -> Row:
    grow(f"{root}/source", FILES, BYTES)
    image = client.image.create(f"{root}/source").image_id
    left = iter(range(ROUNDS + 1))
    for number in range(ROUNDS + 1):
        client.session.ensure(id=f"s{number}", image=image)
        client.session.close(f"s{number}")
    box = client.sandbox.create(image).sandbox_id
    snapshots = iter([client.snapshot.create(box).snapshot_id for _ in range(ROUNDS + 1)])

    def ours() -> None:
        client.session.ensure(id=f"s{next(left)}")

    def restore() -> None:
        client.snapshot.restore(next(snapshots))

    pairs = in_turns(ours, restore, ROUNDS, settle=os.sync)
    return row(f"session brought back, {size()}", "snapshot.restore", pairs, *at_most(1.2))


def container_row() -> Row:
    """The workspace of each session has one small file."""
    with engine() as made, daemon() as (client, _):
        image = client.image.create(made.tools(), provider="docker").image_id
        for number in range(CONTAINERS + 1):
            client.session.ensure(id=f"s{number}", image=image)
            client.sandbox.exec(f"s{number}", "echo a >file")
            client.session.close(f"s{number}")
        left = iter(range(CONTAINERS + 1))

        def ours() -> None:
            client.session.ensure(id=f"s{next(left)}")

        def create() -> None:
            client.sandbox.create(image, provider="docker")

        pairs = in_turns(ours, create, CONTAINERS, settle=os.sync)
    return row("session of a container brought back", "sandbox.create", pairs, *at_most(1.2))


@fair.conditions()
def run() -> list[Row]:
    with daemon() as (client, root):
        image = client.image.create(tree(root, "image", 10, 1000)).image_id
        client.session.ensure(id="pinned", image=image)
        rows = [ensure_row(f"{root}/sock"), revival_row(client, root)]
    return [*rows, container_row()]


if __name__ == "__main__":
    show(run())
