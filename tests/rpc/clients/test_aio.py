"""The asyncio client beside its methods: copies, in threads, and terminals."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.boxes import Box, new_box
from tests.support.expect import until
from tests.support.patience import patient

from sandkeep import aio
from sandkeep.clients.dial import Daemon
from sandkeep.errors import CallerError, SandkeepError, StateError

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture
def made(shared_daemon: Any, image: str) -> Iterator[Box]:
    with new_box(shared_daemon, image) as one:
        yield one


def run(daemon: Any, body: Any) -> Any:
    async def main() -> Any:
        async with aio.connect(daemon.socket) as client:
            return await body(client)

    return asyncio.run(main())


def test_trees_are_copied_both_ways_and_across(shared_daemon: Any, made: Box, image: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "file").write_bytes(bytes(100_000))
    told: list[int] = []

    with new_box(shared_daemon, image) as other:

        async def body(client: aio.Client) -> None:
            copied = await aio.copy_in(client, tree, made.id, ".", progress=told.append)
            assert copied.size_bytes == 100_000
            await aio.copy_across(client, made.id, "tree", other.id, ".")
            await aio.copy_out(client, other.id, "tree/.", tmp_path / "out")
            with pytest.raises(CallerError, match="there is no"):
                await aio.copy_in(client, tmp_path / "nothing", made.id, ".")

        run(shared_daemon, body)
    assert (tmp_path / "out" / "sub" / "file").read_bytes() == bytes(100_000)
    assert told


def test_copies_of_many_tasks_run_at_once_while_others_go_on(shared_daemon: Any, made: Box, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)

    async def body(client: aio.Client) -> None:
        copies = [aio.copy_in(client, tmp_path / "file", made.id, f"copy{number}") for number in range(8)]
        await asyncio.gather(client.daemon.ping(), *copies)

    run(shared_daemon, body)
    assert made.sh("cat copy* | wc -c").strip() == b"8000"


def test_a_cancelled_copy_has_ended_and_left_nothing(shared_daemon: Any, image: str, tmp_path: Path) -> None:
    """Nobody inside reads, so it would go on for ever."""
    (tmp_path / "large").write_bytes(bytes(5_000_000))
    with new_box(shared_daemon, image, env={"PATH": "/workspace/bin:/usr/bin:/bin"}) as box:
        box.sh("mkdir bin; printf '%s\\n' '#!/bin/sh' '. /workspace/evil' >bin/tar; chmod +x bin/tar")
        box.write("evil", b"case $1 in --version) echo GNU;; *) sleep 1000;; esac")

        async def body(client: aio.Client) -> None:
            copy = asyncio.ensure_future(aio.copy_in(client, tmp_path / "large", box.id, "new"))
            while not await asyncio.to_thread(box.staged):
                pass
            copy.cancel()
            with pytest.raises(asyncio.CancelledError):
                await copy

        run(shared_daemon, body)
        until(box.is_tidy)
        assert b"new" not in box.sh("ls")


@pytest.mark.needs("tmux")
def test_a_terminal_is_typed_into_and_shown(shared_daemon: Any, made: Box) -> None:
    opened = len(os.listdir("/proc/self/fd"))

    async def body(client: aio.Client) -> None:
        await client.process.launch(
            made.id, "echo up; read line; stty size; echo got $line; exit 3", name="t", tty=True
        )
        async with aio.attach(client, made.id, "t", rows=30, cols=90) as terminal:
            await _seen(terminal, b"up")
            terminal.resize(31, 91)
            await terminal.send(b"hello\r")
            await _seen(terminal, b"got hello")
            async for _ in terminal:
                pass  # to its end
        assert (await client.process.wait(made.id, "t")).exit_code == 3
        with pytest.raises(SandkeepError, match="has ended"):
            async with aio.attach(client, made.id, "t"):
                pass

    run(shared_daemon, body)
    assert len(os.listdir("/proc/self/fd")) <= opened


def test_a_terminal_can_be_closed_while_a_task_reads() -> None:
    """The number of its descriptor may be another's at once: it is no longer watched, nor closed by a second call."""

    async def main() -> None:
        near, far = os.openpty()
        terminal = aio.Terminal(near)
        reader = asyncio.ensure_future(_rest(terminal))
        for _ in range(3):  # it waits
            await asyncio.sleep(0)
        terminal.close()
        assert not asyncio.get_running_loop().remove_reader(near)
        assert await asyncio.wait_for(reader, patient(60)) == b""
        terminal.close()
        os.close(far)

    asyncio.run(main())


def test_a_task_that_ends_its_sandbox_stays_cancelled_when_that_fails() -> None:
    async def main() -> None:
        client = aio.Client(Daemon("/nowhere", "test"))
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def fail() -> None:
            begun.set()
            await go_on.wait()
            raise StateError("not_ready", "it cannot be ended")

        task = asyncio.ensure_future(client._shield(fail))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert isinstance(caught.value.__cause__, StateError)

    asyncio.run(main())


async def _rest(terminal: aio.Terminal) -> bytes:
    return b"".join([data async for data in terminal])


async def _seen(terminal: aio.Terminal, wanted: bytes) -> None:
    data = b""
    async with asyncio.timeout(60):
        while wanted not in data:
            data += await anext(terminal)
