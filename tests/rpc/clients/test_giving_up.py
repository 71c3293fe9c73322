"""Calls that a program gives up, by Ctrl-C, cancellation or a timeout: the command ends, wherever the call was."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from tests.support.expect import until
from tests.support.patience import patient

import sandkeep
from sandkeep import aio, blocking
from sandkeep.clients import steps
from sandkeep.clients.dial import Daemon

pytestmark = pytest.mark.needs("bwrap")

LONG = ["sleep", "1000"]
HERE = os.path.dirname(sandkeep.__file__)
MOMENTS = 25
"""Turns of the event loop after which a call is cancelled: it is answered in fewer."""


def alive(client: Any, box: str) -> list[Any]:
    """Those that have not ended."""
    return list(client.process.list(sandbox_id=box).processes)


def running(client: Any, box: str) -> list[Any]:
    return [process for process in alive(client, box) if process.status == "running"]


def has_ended(client: Any, box: str, process_id: str) -> bool:
    """That it was ended, and by whom."""
    process = client.process.get(box, process_id)
    assert process.status != "exited" or process.exit_code == 130
    return bool(process.status == "exited")


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------

PROGRAMS = {
    "threads": """
with sandkeep.blocking.connect() as client:
    try:
        client.sandbox.exec(box, command)
    except KeyboardInterrupt as error:
        print(error.process_id, flush=True)
        raise
""",
    "trio": """
async def main():
    async with sandkeep.connect() as client:
        try:
            await client.sandbox.exec(box, command)
        except KeyboardInterrupt as error:
            print(error.process_id, flush=True)
            raise
import trio
trio.run(main)
""",
    "asyncio": """
async def main():
    async with sandkeep.aio.connect() as client:
        try:
            await client.sandbox.exec(box, command)
        except asyncio.CancelledError as error:
            print(error.process_id, flush=True)
            raise
import asyncio
asyncio.run(main())
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_ctrl_c_ends_the_command(shared_daemon: Any, client: Any, box: str, program: str) -> None:
    script = f"import sys, sandkeep; box, *command = sys.argv[1:]\n{PROGRAMS[program]}"
    with subprocess.Popen(
        [sys.executable, "-c", script, box, *LONG],
        env=shared_daemon.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as program_running:  # fmt: skip
        try:
            [process] = until(lambda: running(client, box))
            program_running.send_signal(signal.SIGINT)
            out, err = program_running.communicate(timeout=patient(60))
        finally:
            program_running.kill()
    assert out.decode() == f"{process.process_id}\n", err.decode()
    assert b"KeyboardInterrupt" in err
    until(lambda: has_ended(client, box, process.process_id))


@contextmanager
def interrupted_once(true: Callable[[], Any]) -> Iterator[None]:
    """Make a signal's handler raise KeyboardInterrupt in this thread, once that is true."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        until(true)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_what_a_handler_raises_ends_the_command_and_the_client_goes_on(
    shared_daemon: Any, client: Any, box: str
) -> None:
    """And the calls of other threads are not touched."""
    with blocking.connect(shared_daemon.socket) as shared:
        others: list[Any] = []
        other = threading.Thread(
            target=lambda: others.append(shared.sandbox.exec(box, "while [ ! -e go ]; do sleep 0.01; done; echo went"))
        )
        other.start()
        until(lambda: running(client, box))
        with pytest.raises(KeyboardInterrupt) as caught, interrupted_once(lambda: len(running(client, box)) == 2):
            shared.sandbox.exec(box, LONG)
        until(lambda: has_ended(client, box, caught.value.process_id))  # type: ignore[attr-defined]
        shared.sandbox.exec(box, "touch go")
        other.join(patient(120))
        assert [result.stdout for result in others] == [b"went\n"]


def test_a_call_that_only_waits_ends_nothing(shared_daemon: Any, client: Any, box: str) -> None:
    process = client.process.launch(box, LONG, name="p")
    before = client.daemon.status().connections
    with (
        blocking.Client(Daemon(shared_daemon.socket, "test")) as other,
        pytest.raises(KeyboardInterrupt) as caught,
        interrupted_once(lambda: client.daemon.status().connections > before),
    ):
        other.process.wait(box, "p")
    assert not hasattr(caught.value, "process_id")
    assert client.process.get(box, process.process_id).status == "running"


class Steps:
    """Counts the lines of this package that a call takes, and interrupts it before one of them. `wait` is the count at
    which it began to wait for its answer.
    """

    def __init__(self, interrupted_at: int | None = None) -> None:
        self.count = 0
        self.wait = 0
        self._interrupted_at = interrupted_at

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        if event == "line":
            self.count += 1
            if frame.f_locals.get("operation") == steps.READABLE:
                self.wait = self.count
            if self.count == self._interrupted_at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def of(self, client: Any, box: str, command: Any) -> "Steps":
        """Take the steps of an exec. Raises KeyboardInterrupt when it is interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            client.sandbox.exec(box, command)
        finally:
            sys.settrace(before)
        return self


@pytest.mark.parametrize("way", ["connected", "not connected"])
def test_an_interrupt_at_any_step_leaves_neither_a_command_nor_a_descriptor(
    shared_daemon: Any, client: Any, box: str, way: str
) -> None:
    """Up to the wait for its end with a command that goes on for long; after that, with one that has ended."""
    with blocking.connect(shared_daemon.socket) as used:

        def take(steps: Steps, command: Any) -> Steps:
            if way == "connected":
                return steps.of(used, box, command)
            with used.another() as other:
                return steps.of(other, box, command)

        take(Steps(), "true")  # imports, and all that is made once
        whole = take(Steps(), "true")
        assert 0 < whole.wait < whole.count
        opened = len(os.listdir("/proc/self/fd"))
        for number in range(1, whole.count + 1):
            command = LONG if number <= whole.wait else "true"
            with pytest.raises(KeyboardInterrupt):
                take(Steps(number), command)
            assert used.sandbox.exec(box, "echo").stdout == b"\n"
            assert len(os.listdir("/proc/self/fd")) <= opened
        until(lambda: not alive(client, box))


# -- cancellation -----------------------------------------------------------------------------------------------------


async def trio_body(path: str, box: str, turns: int) -> str | None:
    found: list[str | None] = []
    async with sandkeep.connect(path) as client:

        async def execute() -> None:
            try:
                await client.sandbox.exec(box, LONG)
            except trio.Cancelled as error:
                found.append(getattr(error, "process_id", None))
                raise

        async with trio.open_nursery() as nursery:
            nursery.start_soon(execute)
            await _let_run(client, box, turns, trio.lowlevel.checkpoint)
            nursery.cancel_scope.cancel()
        assert (await client.sandbox.exec(box, "echo")).stdout == b"\n"
    return found[0]


async def asyncio_body(path: str, box: str, turns: int) -> str | None:
    async with aio.connect(path) as client:
        task = asyncio.ensure_future(client.sandbox.exec(box, LONG))
        await _let_run(client, box, turns, lambda: asyncio.sleep(0))
        task.cancel()
        try:
            await task
        except asyncio.CancelledError as error:
            process_id = getattr(error, "process_id", None)
        assert (await client.sandbox.exec(box, "echo")).stdout == b"\n"
        return process_id


async def _let_run(client: Any, box: str, turns: int, turn: Callable[[], Any]) -> None:
    """Let the loop turn so often; or, with none, until the command runs."""
    while not turns and not [
        process for process in (await client.process.list(sandbox_id=box)).processes if process.status == "running"
    ]:
        pass
    for _ in range(turns):
        await turn()


BODIES: dict[str, Callable[[str, str, int], Any]] = {
    "trio": lambda *args: trio.run(trio_body, *args),
    "asyncio": lambda *args: asyncio.run(asyncio_body(*args)),
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_cancellation_ends_the_command(shared_daemon: Any, client: Any, box: str, kind: str) -> None:
    process_id = BODIES[kind](shared_daemon.socket, box, 0)
    assert process_id is not None
    until(lambda: has_ended(client, box, process_id))


@pytest.mark.parametrize("kind", BODIES)
def test_a_cancellation_at_any_moment_leaves_neither_a_command_nor_a_descriptor(
    shared_daemon: Any, client: Any, box: str, kind: str
) -> None:
    client.sandbox.exec(box, "true")
    opened = len(os.listdir("/proc/self/fd"))
    for turns in range(1, MOMENTS):
        BODIES[kind](shared_daemon.socket, box, turns)
        assert len(os.listdir("/proc/self/fd")) <= opened
    until(lambda: not alive(client, box))


@pytest.mark.parametrize("timeout", [asyncio.timeout, aio.timeout])
def test_a_timeout_of_asyncio_has_the_process_in_its_cause_and_ours_itself(
    shared_daemon: Any, client: Any, box: str, timeout: Any
) -> None:
    async def main() -> TimeoutError:
        async with aio.connect(shared_daemon.socket) as other:
            try:
                async with timeout(None) as deadline:
                    task = asyncio.ensure_future(_reschedule(other, box, deadline))
                    await other.sandbox.exec(box, LONG)
            except TimeoutError as error:
                await task
                return error
        raise AssertionError("it ended")

    error = asyncio.run(main())
    process_id = error.__cause__.process_id  # type: ignore[union-attr]
    assert getattr(error, "process_id", process_id) == process_id
    assert hasattr(error, "process_id") == (timeout is aio.timeout)
    until(lambda: has_ended(client, box, process_id))


def test_a_task_of_asyncio_that_is_cancelled_twice_has_the_process(shared_daemon: Any, client: Any, box: str) -> None:
    async def main() -> str | None:
        async with aio.connect(shared_daemon.socket) as other:
            task = asyncio.ensure_future(other.sandbox.exec(box, LONG))
            await _let_run(other, box, 0, lambda: asyncio.sleep(0))
            task.cancel()
            await asyncio.sleep(0)  # it has the command ended now
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            return getattr(caught.value, "process_id", None)

    process_id = asyncio.run(main())
    assert process_id is not None
    until(lambda: has_ended(client, box, process_id))


async def _reschedule(client: Any, box: str, deadline: asyncio.Timeout) -> None:
    """End the time as soon as the command runs."""
    await _let_run(client, box, 0, lambda: asyncio.sleep(0))
    deadline.reschedule(asyncio.get_running_loop().time())


@pytest.mark.parametrize("kind", BODIES)
def test_a_daemon_that_is_away_keeps_nobody_waiting(new_daemon: Any, tmp_path: Any, kind: str) -> None:
    """A call that is given up then leaves its command running, which nobody can reach."""
    daemon = new_daemon()
    daemon.start()
    (tmp_path / "image").mkdir()
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(str(tmp_path / "image")).image_id).sandbox_id

        def kill() -> None:
            [process] = until(lambda: running(client, box))
            began.append(process.process_id)
            daemon.kill()
            away.set()

        began: list[str] = []
        away = threading.Event()
        killer = threading.Thread(target=kill)
        killer.start()
        assert GIVEN_UP[kind](daemon.socket, box, away) is None
        killer.join()
        daemon.start()
        assert client.process.get(box, began[0]).status == "running"


async def trio_given_up(path: str, box: str, away: threading.Event) -> str | None:
    found: list[str | None] = []
    async with sandkeep.connect(path) as client, trio.open_nursery() as nursery:

        async def execute() -> None:
            try:
                await client.sandbox.exec(box, LONG)
            except trio.Cancelled as error:
                found.append(getattr(error, "process_id", None))
                raise

        nursery.start_soon(execute)
        await trio.to_thread.run_sync(away.wait)
        nursery.cancel_scope.cancel()
    return found[0]


async def asyncio_given_up(path: str, box: str, away: threading.Event) -> str | None:
    async with aio.connect(path) as client:
        task = asyncio.ensure_future(client.sandbox.exec(box, LONG))
        await asyncio.to_thread(away.wait)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError as error:
            return getattr(error, "process_id", None)
    raise AssertionError("it ended")


GIVEN_UP: dict[str, Callable[[str, str, threading.Event], Any]] = {
    "trio": lambda *args: trio.run(trio_given_up, *args),
    "asyncio": lambda *args: asyncio.run(asyncio_given_up(*args)),
}
