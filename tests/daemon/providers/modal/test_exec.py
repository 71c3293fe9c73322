"""Commands at Modal as streams: bytes each way, ends, and connections that break."""

import functools
import os
import random

import pytest
import trio
from tests.daemon.providers.modal.conftest import House
from tests.support.expect import DEADLINE_S, refused_async, until_async

from sandkeepd.providers.common.remote import STDERR_BYTES, BrokenExecError, Outcome, Remote, RemoteStream
from sandkeepd.providers.modal import exec as exec_module

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("modal"), pytest.mark.usefixtures("nothing_is_left")]


@functools.cache
def much() -> bytes:
    """Return the same each time. It is made by the process that needs it, and not by all that collect tests."""
    return random.Random(5).randbytes(3_000_000)


@pytest.fixture
async def remote(house: House) -> Remote:
    return (await house.box()).remote


async def everything(stream: RemoteStream) -> bytes:
    received = b""
    with trio.fail_after(DEADLINE_S):
        while data := await stream.receive_some():
            received += data
    return received


async def test_output_errors_and_the_exit_code(remote: Remote) -> None:
    async with remote.exec(["sh", "-c", "echo out; echo err >&2; exit 3"]) as stream:
        assert stream.outcome is None
        assert await everything(stream) == b"out\n"
        assert stream.outcome == Outcome(3, "")
        assert stream.stderr == b"err\n"
        assert await stream.receive_some() == b""
        assert await stream.wait() == 3


async def test_a_signal_is_an_exit_code(remote: Remote) -> None:
    async with remote.exec(["sh", "-c", "kill -9 $$"]) as stream:
        assert await stream.wait() == 137


async def test_much_each_way_at_once(remote: Remote) -> None:
    async with remote.exec(["cat"]) as stream, trio.open_nursery() as nursery:

        async def send() -> None:
            await stream.send_all(much())
            await stream.close_stdin()

        nursery.start_soon(send)
        assert await everything(stream) == much()


async def test_pieces_of_any_length(remote: Remote) -> None:
    async with remote.exec(["printf", "0123456789"]) as stream:
        pieces = [await stream.receive_some(4) for _ in range(4)]
    assert pieces == [b"0123", b"4567", b"89", b""]


async def test_of_much_stderr_the_end_is_kept(remote: Remote) -> None:
    script = f"head -c {4 * STDERR_BYTES} /dev/zero >&2; printf end >&2"
    async with remote.exec(["sh", "-c", script]) as stream:
        assert await stream.wait() == 0
        assert stream.stderr.endswith(b"\0end")
        assert len(stream.stderr) == STDERR_BYTES


async def test_receiving_goes_on_after_a_cancellation(remote: Remote) -> None:
    async with remote.exec(["sh", "-c", "echo one; read line; echo two"]) as stream:
        assert await stream.receive_some() == b"one\n"
        with trio.move_on_after(0.05):
            await stream.receive_some()
        await stream.send_all(b"on\n")
        assert await everything(stream) == b"two\n"


async def test_the_end_of_a_block_ends_the_input(house: House, remote: Remote) -> None:
    async with remote.exec(["sh", "-c", "cat >/dev/null; touch /ended"]) as stream:
        await stream.send_all(b"some")
    async with remote.exec(["sh", "-c", "until [ -e /ended ]; do sleep 0.05; done"]) as stream:
        with trio.fail_after(DEADLINE_S):
            assert await stream.wait() == 0


async def test_a_terminal_has_a_size_and_gets_another(remote: Remote) -> None:
    script = 'stty size; echo $$; trap "stty size" WINCH; while :; do read line; done'
    async with remote.exec(["sh", "-c", script], size=(30, 90)) as stream:
        said = b""
        with trio.fail_after(DEADLINE_S):
            while said.count(b"\n") < 2:
                said += await stream.receive_some()
            size, pid = said.split()[:2], said.split()[2]
            assert size == [b"30", b"90"]
            while b"33 77" not in said:
                await stream.resize(33, 77, int(pid))
                with trio.move_on_after(1):
                    said += await stream.receive_some()


async def test_a_stream_that_breaks_is_read_on_where_it_was(house: House, remote: Remote) -> None:
    """By the SDK itself: nothing is lost, and nothing comes twice."""
    house.service.fault("TaskExecStdioRead", after_bytes=100_000, status="UNAVAILABLE", times=2)
    async with remote.exec(["cat"]) as stream, trio.open_nursery() as nursery:

        async def send() -> None:
            await stream.send_all(much())
            await stream.close_stdin()

        nursery.start_soon(send)
        assert await everything(stream) == much()


async def test_a_command_that_is_lost(house: House, remote: Remote) -> None:
    async def lose() -> None:
        async with remote.exec(["sleep", "1000"]) as stream:
            house.service.fault("TaskExecStdioRead|TaskExecStdinWrite", status="NOT_FOUND", times=None)
            house.service.cut("TaskExecStdioRead")
            await stream.receive_some()

    error = await refused_async("provider_unavailable", lose())
    assert "the command at Modal was lost" in error.message
    assert error.data["engine"] == "modal"


async def test_input_to_a_command_that_has_ended(remote: Remote) -> None:
    async with remote.exec(["true"]) as stream:
        assert await stream.wait() == 0

        async def send() -> None:
            while True:
                await stream.send_all(b"more")
                await trio.sleep(0.01)

        with trio.fail_after(DEADLINE_S), pytest.raises(BrokenExecError):
            await send()


async def test_a_service_that_is_silent(house: House, remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    house.service.fault("TaskExecStart", hang=True)
    monkeypatch.setattr(exec_module.open_exec.__wrapped__, "__kwdefaults__", {  # type: ignore[attr-defined]
        **exec_module.open_exec.__wrapped__.__kwdefaults__, "answer_s": 0.3,  # type: ignore[attr-defined]
    })  # fmt: skip
    error = await refused_async("provider_unavailable", remote.exec(["true"]).__aenter__())
    assert error.data["engine"] == "modal"


async def test_no_descriptor_of_a_command_is_left(remote: Remote) -> None:
    async with remote.exec(["true"]) as stream:
        await stream.wait()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        async with remote.exec(["true"]) as stream:
            await stream.wait()
    await until_async(lambda: len(os.listdir("/proc/self/fd")) <= before)
