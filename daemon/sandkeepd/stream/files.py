"""``/v1/files``: files and trees of a sandbox, in both directions and of any size.

Between the websocket and the command that reads or writes inside there is a pipe, and the daemon copies one message
after the other: the slower end sets the pace. Incoming data lies beside its target until its digest is right, and is
then put in place as a whole; a client that goes away before that leaves nothing behind.
"""

import hashlib
from typing import Final

import trio

from sandkeep.errors import CallerError
from sandkeep.ids import new_id
from sandkeep.model import Copied
from sandkeep.protocol.frames import Done, End, FilesQuery
from sandkeep.protocol.methods import CopyCommit, CopyIn, CopyOut
from sandkeepd.core.call import Handler as CallHandler
from sandkeepd.core.core import Core
from sandkeepd.serving.copy_pipe import CopyPipe
from sandkeepd.stream.session import Client, Handler, Session, validated

PIECE_BYTES: Final = 128 * 1024
_TRANSFER: Final = "str"


async def files(core: Core, handle: CallHandler, client: Client) -> Handler:
    """The endpoint: check access; a session is made ready, and the path resolved, when the copy begins."""
    query = client.query(FilesQuery)
    form = {"as_bytes": query.kind == "file", "contents": query.kind == "tree" and query.contents}
    given = {"sandbox_id": client.target.parts[2], "path_bytes": query.path, **form}
    if query.op == "get":
        wanted = validated(CopyOut, **given)
        client.request(core, "sandbox.copy_out", wanted)
        return lambda session: session.run_send_only(lambda: _get(session, handle, client, wanted))
    offered = validated(CopyIn, transfer_id=new_id(_TRANSFER), **given)
    client.request(core, "sandbox.copy_in", offered)
    return lambda session: _put(session, handle, client, offered)


async def _get(session: Session, handle: CallHandler, client: Client, wanted: CopyOut) -> None:
    digest, size = hashlib.sha256(), 0
    pipe, is_complete = CopyPipe(), trio.Event()

    async def copy_out() -> None:
        await handle(client.call("sandbox.copy_out", wanted, pipe.give))
        is_complete.set()

    async with pipe, trio.open_nursery() as nursery:
        nursery.start_soon(copy_out)
        stream = await pipe.stream()
        while sent := await _send_piece(stream, session, digest):
            size += sent
        await is_complete.wait()  # only then nothing is missing
    await session.send(End(sha256=digest.hexdigest(), size_bytes=size))


async def _put(session: Session, handle: CallHandler, client: Client, offered: CopyIn) -> None:
    pipe = CopyPipe()

    async def copy_in() -> None:
        await handle(client.call("sandbox.copy_in", offered, pipe.give))

    async with pipe, trio.open_nursery() as nursery:
        nursery.start_soon(copy_in)
        await _receive(session, await pipe.stream())
        await pipe.aclose()
        commit = CopyCommit(sandbox_id=offered.sandbox_id, transfer_id=offered.transfer_id)
        copied: Copied = await handle(client.call("sandbox.copy_commit", commit))
        nursery.cancel_scope.cancel()
    await session.send(Done(path=copied.path, files=copied.files, size_bytes=copied.size_bytes))


async def _receive(session: Session, pipe: trio.lowlevel.FdStream) -> None:
    """Receive a client's data, and verify it against the client's digest."""
    digest = hashlib.sha256()
    while isinstance(message := await session.receive(), bytes):
        digest.update(message)
        try:
            await pipe.send_all(message)
        except trio.BrokenResourceError:
            await trio.sleep_forever()  # the copy has failed, and is about to say why
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
