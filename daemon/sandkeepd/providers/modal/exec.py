"""Commands in sandboxes at Modal: an exec of the SDK as a stream of trio."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from sandkeep.errors import ProviderError, SandkeepError
from sandkeepd.providers.common.remote import BrokenExecError, Outcome, RemoteStream, readable
from sandkeepd.providers.modal import errors, sdk
from sandkeepd.providers.modal.loop import Call
from sandkeepd.providers.modal.service import ANSWER_S, Service

if TYPE_CHECKING:
    from modal.container_process import _ContainerProcess
    from modal.sandbox._sandbox import _Sandbox

T = TypeVar("T")

PIECE_BYTES: Final = 1 << 20
"""Maximum bytes of stdin in one request."""

END_S: Final = 20.0
"""Seconds that the service may take to tell how a command has ended that has closed its stdout."""

CLOSE_S: Final = 5.0
"""Seconds that the service may take to close a command's stdin."""

_RESIZE: Final = 'stty rows "$1" cols "$2" <"/proc/$0/fd/0"; kill -s WINCH "$0"'


class ModalStream(RemoteStream):
    """A command in a sandbox. See `RemoteStream`. Stdout is not read ahead; of stderr the last bytes are kept."""

    def __init__(self, service: Service, sandbox: "_Sandbox", process: "_ContainerProcess[bytes]") -> None:
        super().__init__()
        self._service = service
        self._sandbox = sandbox
        self._process = process
        self._sending = trio.Lock()
        self._collector: asyncio.Task[None] | None = None
        self._reading: Call | None = None
        """The reading of a piece, which goes on when its receiver is cancelled: the piece would be lost."""
        self._outcome: Outcome | None = None
        self._is_shut = False

    @property
    def outcome(self) -> Outcome | None:
        return self._outcome

    # In the SDK's loop

    async def collect(self) -> None:
        """Begin to read stderr, lest the command waits for that."""
        self._collector = asyncio.get_running_loop().create_task(self._collect())

    async def _collect(self) -> None:
        with suppress(Exception):  # a break is seen by whoever reads stdout
            async for data in self._process.stderr:
                self._append_stderr(data)

    async def _write(self, data: bytes, *, eof: bool) -> None:
        if data:
            self._process.stdin.write(data)
        if eof:
            self._process.stdin.write_eof()
        await self._process.stdin.drain()

    async def _next(self) -> bytes | None:
        try:
            return await anext(self._process.stdout)
        except StopAsyncIteration:
            return None

    async def _end(self) -> Outcome:
        code = await self._process.wait()
        if self._collector is not None:
            await asyncio.wait([self._collector], timeout=CLOSE_S)
        return Outcome(exit_code=code if code >= 0 else None, message="")

    async def _close(self) -> None:
        if self._collector is not None:
            self._collector.cancel()
            await asyncio.wait([self._collector])
        await self._process.stdout.aclose()  # type: ignore[no-untyped-call]

    # In trio

    async def _run(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self._service.loop.run(begin)
        except Exception as error:  # noqa: BLE001 - whatever the SDK has: the connection is of no use any more
            raise BrokenExecError(errors.converted(error).message) from None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `trio.abc.SendStream`."""
        rest = memoryview(data)
        async with self._sending:
            while rest:
                piece, rest = bytes(rest[:PIECE_BYTES]), rest[PIECE_BYTES:]
                await self._run(lambda piece=piece: self._write(piece, eof=False))  # type: ignore[misc]

    async def close_stdin(self) -> None:
        async with self._sending:
            if not self._is_shut:
                self._is_shut = True
                await self._run(lambda: self._write(b"", eof=True))

    async def resize(self, rows: int, cols: int, pid: int | None) -> None:
        if pid is not None:
            command = ["sh", "-c", _RESIZE, str(pid), str(rows), str(cols)]
            with suppress(SandkeepError):
                async with open_exec(self._service, self._sandbox, command, stderr=False) as stream:
                    await stream.wait()

    async def _receive(self) -> bytes:
        try:
            if self._reading is None:
                self._reading = await self._service.loop.begin(self._next)
            await self._reading.done.wait()
            reading, self._reading = self._reading, None
            data: bytes | None = reading.result()
        except Exception as error:  # noqa: BLE001 - as above
            raise BrokenExecError(errors.converted(error).message) from None
        if data is None:
            with trio.move_on_after(END_S):
                self._outcome = await self._run(self._end)
            self._is_over = True
        return data or b""

    def unavailable(self, error: BrokenExecError) -> ProviderError:
        why = readable(str(error)) or "the connection broke"
        return ProviderError("provider_unavailable", f"the command at Modal was lost: {why}", engine=errors.ENGINE)

    async def aclose(self) -> None:
        """Close the command's stdin, which it reads the end of, and stop to read its output."""
        if self._reading is not None:
            self._reading.cancel()
        with trio.move_on_after(CLOSE_S, shield=True):
            if not self._is_over:
                with suppress(BrokenExecError):
                    await self.close_stdin()
            with suppress(BrokenExecError):
                await self._run(self._close)
        await trio.lowlevel.checkpoint_if_cancelled()


@asynccontextmanager
async def open_exec(
    service: Service, sandbox: "_Sandbox", command: Sequence[str], *, stderr: bool = True,
    size: tuple[int, int] | None = None, answer_s: float = ANSWER_S,
) -> AsyncIterator[ModalStream]:  # fmt: skip
    """Run a command in a sandbox for the length of a block. See `Remote.exec`."""
    process = await service.run(lambda: sdk.start(sandbox, command, size, stderr=stderr, mark=service.mark), answer_s)
    stream = ModalStream(service, sandbox, process)
    try:
        if stderr and size is None:
            await service.run(stream.collect)
        yield stream
    except BrokenExecError as error:
        raise stream.unavailable(error) from None
    finally:
        await stream.aclose()
