"""``/v1/files``: files and trees of a sandbox, in both directions and of any size.

Between the websocket and the command that reads or writes inside there is a pipe, and the daemon copies one message
after the other: the slower end sets the pace. Incoming data lies beside its target until its digest is right, and is
then put in place as a whole; a client that goes away before that leaves nothing behind.
"""

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from sandkeep.errors import CallerError
from sandkeep.protocol.frames import Done, End, FilesQuery
from sandkeep.protocol.methods import CopyIn, CopyOut
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.keeper.copies import Form
from sandkeepd.sandboxes.files import Files, Incoming, path_of
from sandkeepd.stream.session import Client, Handler, Session, validated

PIECE_BYTES: Final = 128 * 1024
_TRANSFER: Final = "stream"  # names a copy for `sandbox.copy_commit`, which has no part in this


async def files(core: Core, copies: Files, client: Client) -> Handler:
    """The endpoint: check access; the path is resolved when the copy begins."""
    query = client.query(FilesQuery)
    called = client.target.parts[2]
    form: Form = "bytes" if query.kind == "file" else "contents" if query.contents else "whole"
    if query.op == "get":
        asked = validated(CopyOut, sandbox_id=called, path_bytes=query.path)
        sandbox_id, path = client.request(core, "sandbox.copy_out", asked).params.sandbox_id, path_of(asked)
        return lambda session: session.run_send_only(lambda: _get(session, copies, sandbox_id, path, form))
    given = validated(CopyIn, sandbox_id=called, transfer_id=_TRANSFER, path_bytes=query.path)
    request = client.request(core, "sandbox.copy_in", given)
    return lambda session: _put(session, copies, request, path_of(given), form)


async def _get(session: Session, copies: Files, sandbox_id: str, path: str, form: Form) -> None:
    digest, size = hashlib.sha256(), 0
    async with copies.send(sandbox_id, path, form=form) as outgoing:
        async with _pipe(outgoing.take_data()) as pipe:
            while sent := await _send_piece(pipe, session, digest):
                size += sent
        await outgoing.result()
    await session.send(End(sha256=digest.hexdigest(), size_bytes=size))


async def _put(session: Session, copies: Files, request: Request[CopyIn], path: str, form: Form) -> None:
    async with copies.receive(request.params.sandbox_id, path, form=form) as incoming:
        await _receive(session, incoming)
        copied = await incoming.commit(request.meta)
    await session.send(Done(path=copied.path, files=copied.files, size_bytes=copied.size_bytes))


async def _receive(session: Session, incoming: Incoming) -> None:
    """Receive a client's data, and verify it against the client's digest."""
    digest = hashlib.sha256()
    async with _pipe(incoming.take_data()) as pipe:
        while isinstance(message := await session.receive(), bytes):
            digest.update(message)
            try:
                await pipe.send_all(message)
            except trio.BrokenResourceError:
                await incoming.result()  # says why nothing more is taken
                raise
    if not isinstance(message, End):
        raise CallerError("invalid", "unexpected message: send bytes, and then an end with their digest")
    if message.sha256 != digest.hexdigest():
        raise CallerError("invalid", "sha256: the data received has another digest and was dropped: send it again")


async def _send_piece(pipe: trio.lowlevel.FdStream, session: Session, digest: "hashlib._Hash") -> int:
    """Carry one piece from the pipe to the client, once there is room for it; answer its size, 0 at the end."""
    await session.room()
    data = await pipe.receive_some(PIECE_BYTES)
    if data:
        digest.update(data)
        await session.send_bytes(bytes(data))
    return len(data)


@asynccontextmanager
async def _pipe(fd: int) -> AsyncIterator[trio.lowlevel.FdStream]:
    """Use one end of a pipe, and close it afterwards. Closing is shielded: the other end waits for it."""
    os.set_blocking(fd, False)
    pipe = trio.lowlevel.FdStream(fd)
    try:
        yield pipe
    finally:
        with trio.CancelScope(shield=True):
            await pipe.aclose()
