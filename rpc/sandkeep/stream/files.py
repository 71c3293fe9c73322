"""Copy of files and trees between this machine and a sandbox, over the stream server.

Trees travel as tar archives. Data from a sandbox is untrusted, so it is unpacked in a private place by a tar that can
write nowhere else (see `confined`), and put in place when its digest is right.
"""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import IO, BinaryIO, Final, TypeVar

import trio
from trio_websocket import ConnectionClosed

from sandkeep.errors import CallerError, DaemonError, SandkeepError, SetupError
from sandkeep.protocol import frames
from sandkeep.protocol.frames import Done, End
from sandkeep.protocol.wire import Connection
from sandkeep.stream.dial import next_message
from sandkeep.system import confined
from sandkeep.system.durable import Replacement
from sandkeep.system.staging import Stage

SEND_BYTES: Final = 256 * 1024
WRITE_BYTES: Final = 1024 * 1024

T = TypeVar("T")
Read = Callable[[int], Awaitable[bytes | bytearray]]
Write = Callable[[bytes], Awaitable[None]]

_PACK: Final = ("tar", "-c", "-f", "-", "--format=gnu", "--sparse", "--numeric-owner", "--mode=ug-s", "--no-unquote")
_UNPACK: Final = ("tar", "-x", "-f", "-", "--no-same-owner", "--no-same-permissions", "--numeric-owner", "-C")
_MAX_STDERR_BYTES: Final = 4096


async def receive(connection: Connection, write: Write) -> int:
    """Take all the bytes of a file or archive; answer how many, once it is certain that they are the right ones."""
    digest, held, size = hashlib.sha256(), bytearray(), 0
    while isinstance(message := await next_message(connection), bytes):
        digest.update(message)
        size += len(message)
        held += message
        if len(held) >= WRITE_BYTES:
            await write(bytes(held))
            held.clear()
    await write(bytes(held))
    if not isinstance(message, End) or message.sha256 != digest.hexdigest():
        raise DaemonError("internal", "the received bytes do not match their digest: copy again")
    return size


async def send(connection: Connection, read: Read, check: Callable[[], Awaitable[None]] | None = None) -> Done:
    """Send all the bytes of a file or archive, and their digest unless `check` raises; wait until they are in place."""
    digest = hashlib.sha256()
    try:
        while data := await read(SEND_BYTES):
            digest.update(data)
            await connection.send_message(bytes(data))
        if check is not None:
            await check()
        await connection.send_message(frames.encode(End(sha256=digest.hexdigest())).decode())
    except ConnectionClosed:
        pass  # the server's last message says why
    message = await next_message(connection)
    if not isinstance(message, Done):
        raise DaemonError("internal", "the stream server did not confirm the copy")
    return message


def reader(file: BinaryIO) -> Read:
    """Reads an open file, in a thread."""

    async def read(size: int) -> bytes:
        return await trio.to_thread.run_sync(file.read, size)

    return read


def writer(file: BinaryIO) -> Write:
    """Writes to an open file, in a thread."""

    async def write(data: bytes) -> None:
        await trio.to_thread.run_sync(file.write, data)

    return write


@asynccontextmanager
async def replacing(path: str) -> AsyncIterator[BinaryIO]:
    """A new file that takes the place of `path` when the block has ended well, and is gone otherwise."""
    new = Replacement(path, temporary=f"{path}.{os.urandom(6).hex()}.part", mode=0o666, durable=False)
    try:
        await trio.to_thread.run_sync(new.open)
        yield new.file
        await trio.to_thread.run_sync(new.put)
    except OSError as error:
        raise CallerError("invalid", f"{path!r} cannot be written: {error.strerror}", field="to") from None
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(new.discard)


@asynccontextmanager
async def unpacking(target: str) -> AsyncIterator[Write]:
    """Unpack an archive with one top-level entry, and install that at `target`, or in it if it is a directory."""
    with trio.CancelScope(shield=True):
        stage = await _in_thread(lambda: Stage(os.fsencode(target)), target)
    try:
        begin = partial(confined.start, [*_UNPACK, "."], stage.tree, cwd=stage.tree, umask=0)
        async with _tar(begin, writes=False) as (pipe, finish):
            try:
                yield pipe.send_all
            except trio.BrokenResourceError:  # it has ended; its stderr has the reason
                await finish()
                raise
            await finish()
        await _in_thread(lambda: stage.commit(stage.only_entry()), target)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(stage.__exit__, None, None, None)


@asynccontextmanager
async def packing(source: str) -> AsyncIterator[tuple[Read, Callable[[], Awaitable[None]]]]:
    """Yield a reader of a file or directory as an archive, and a function that raises if reading failed."""
    whole = await trio.to_thread.run_sync(os.path.realpath, source) if source.endswith("/") else source
    parent, name = os.path.split(whole)
    argv = [*_PACK, "-C", parent or ".", f"./{name}"]
    async with _tar(lambda **ends: subprocess.Popen(argv, **ends), writes=True) as (pipe, finish):
        yield pipe.receive_some, finish


@asynccontextmanager
async def _tar(
    begin: Callable[..., "subprocess.Popen[bytes]"], *, writes: bool
) -> AsyncIterator[tuple[trio.lowlevel.FdStream, Callable[[], Awaitable[None]]]]:
    """Run a tar for the length of a block: yield our end of its pipe, and a function that waits for its end and raises
    its error.

    `begin` starts it, with its standard streams as keywords.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    ours, its = (reading, writing) if writes else (writing, reading)
    os.set_blocking(ours, False)
    async with trio.lowlevel.FdStream(ours) as pipe:
        with tempfile.TemporaryFile() as stderr, _nothing() as nothing:
            ends = {"stdin": nothing, "stdout": its} if writes else {"stdin": its, "stdout": nothing}
            try:
                tar = await trio.to_thread.run_sync(lambda: begin(stderr=stderr, env=_environment(), **ends))
            except FileNotFoundError:
                raise SetupError("not_supported", "tar is not installed on this machine: install it") from None
            finally:
                os.close(its)

            async def finish() -> None:
                await pipe.aclose()
                if await trio.to_thread.run_sync(tar.wait, abandon_on_cancel=True):
                    raise _failed(stderr)

            try:
                yield pipe, finish
            finally:
                tar.kill()
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(tar.wait)


def _nothing() -> IO[bytes]:
    return open(os.devnull, "r+b")


def _failed(stderr: IO[bytes]) -> SandkeepError:
    stderr.seek(0)
    lines = stderr.read(_MAX_STDERR_BYTES).decode(errors="backslashreplace").strip().splitlines()
    message = f"not everything could be read or written here: {lines[0] if lines else 'tar failed'}; nothing was copied"
    return CallerError("permission_denied" if "ermission" in message else "invalid", message)


def _environment() -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name != "TAR_OPTIONS"}, "LC_ALL": "C"}


async def _in_thread(work: Callable[[], T], path: str) -> T:
    """Run disk work in a thread, and translate OSError into `invalid`."""
    try:
        return await trio.to_thread.run_sync(work)
    except OSError as error:
        raise CallerError("invalid", f"{path!r} cannot be written: {error.strerror}", field="target") from None
