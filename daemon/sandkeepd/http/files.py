"""Files of a session as bodies, in both directions and of any size.

The bytes go through a pipe between the connection and the command that reads or writes inside, so the slower end sets
the pace. An upload lies beside its target until all of it has come, and is then put in place as a whole; a client that
goes away before that leaves nothing behind; so does an upload that the sandbox stops taking.
"""

import fcntl
import os
from collections.abc import Sequence
from functools import partial
from posixpath import basename, dirname
from typing import Any, Final
from urllib.parse import quote

import trio

from sandkeep.archives import archive_format
from sandkeep.errors import CallerError, StateError
from sandkeep.ids import new_id
from sandkeep.model import Artifact, Copied, Snapshot
from sandkeep_store.threads import in_thread
from sandkeepd.http import views
from sandkeepd.http.bodies import ContentQuery
from sandkeepd.http.exchange import Asked, Reply
from sandkeepd.http.gateway import Gateway, while_there
from sandkeepd.http.row import Row
from sandkeepd.serving.copy_pipe import CopyPipe

PIECE_BYTES: Final = 64 * 1024
FILE_PIECE_BYTES: Final = 256 * 1024
UNTAKEN_S: Final = 60.0
"""Seconds in which a sandbox has to take a piece of an upload. Until then nobody sees that the client has gone."""

OCTETS: Final = "application/octet-stream"
_TRANSFER: Final = "htt"


# -- upload -----------------------------------------------------------------------------------------------------------


async def upload(gateway: Gateway, row: Row, asked: Asked) -> None:
    """Write the body to a file, and make the directories above it."""
    directory = dirname(asked.query.path)
    if directory.strip("/"):
        # Whether that worked is seen by the copy, which names the path. The request's key is that of the copy.
        making = {"command": ["mkdir", "-p", "--", directory], "timeout_s": UNTAKEN_S, "command_id": new_id(_TRANSFER)}
        await gateway.call(asked, "sandbox.exec", {"sandbox_id": asked.id, **making}, is_read=False)
    transfer = {"sandbox_id": asked.id, "transfer_id": new_id(_TRANSFER)}
    pipe = CopyPipe()

    async def copy_in() -> None:
        values = {**transfer, "path": asked.query.path, "as_bytes": True}
        await gateway.call(asked, row.operation, values, pipe.give)

    async with pipe, trio.open_nursery() as nursery:
        nursery.start_soon(copy_in)
        await _receive(asked, await pipe.stream())
        await pipe.aclose()
        copied: Copied = await gateway.call(asked, "sandbox.copy_commit", transfer)
        nursery.cancel_scope.cancel()
    await asked.reply(Reply(row.statuses[0], views.uploaded(copied)))


async def import_archive(gateway: Gateway, row: Row, asked: Asked) -> None:
    """Make a snapshot of the body, an archive whose length the request announces."""
    length, query = asked.header(b"content-length"), asked.query
    if length is None or not length.isdecimal():
        raise CallerError("invalid", "give the header Content-Length: an archive is taken as a whole or not at all")
    optional = {"image_id": query.image, "digest": query.digest, "files": query.files, "name": query.label}
    values = {name: value for name, value in optional.items() if value is not None}
    first: bytes | None = b""
    while first == b"":
        first = await asked.piece()
    if first is None:
        raise CallerError("invalid", "the body is empty: it has to be the archive")
    values |= {"size_bytes": int(length), "format": archive_format(first)}
    pipe, found = CopyPipe(), list[Snapshot]()

    async def take() -> None:
        found.append(await gateway.call(asked, row.operation, values, pipe.give, is_read=False))

    async with pipe, trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await _pass_on(asked, await pipe.stream(), first)
        await pipe.aclose()
    await asked.reply(Reply(row.statuses[0], views.snapshot(found[0])))


async def _pass_on(asked: Asked, pipe: trio.lowlevel.FdStream, piece: bytes | None) -> None:
    """Write the body, from `piece` on. What the other end does not want is read nevertheless, for the answer's sake."""
    is_wanted = True
    while piece is not None:
        try:
            if is_wanted:
                await pipe.send_all(piece)
        except trio.BrokenResourceError:  # the call is about to say why, or repeats one that was carried out
            is_wanted = False
        piece = await asked.piece()


async def _receive(asked: Asked, pipe: trio.lowlevel.FdStream) -> None:
    try:
        while (piece := await asked.piece()) is not None:
            with trio.fail_after(UNTAKEN_S):
                await pipe.send_all(piece)
    except trio.TooSlowError:
        message = f"the sandbox read nothing of the file for {UNTAKEN_S:g} s: check its processes, then send it again"
        raise StateError("timeout", message) from None
    except trio.BrokenResourceError:
        await trio.sleep_forever()  # the copy has failed, and is about to say why


# -- download ---------------------------------------------------------------------------------------------------------


async def content(gateway: Gateway, row: Row, asked: Asked) -> None:
    """Answer a file's content."""
    await while_there(asked, partial(_send, gateway, row, asked))


async def _send(gateway: Gateway, row: Row, asked: Asked) -> None:
    pipe = CopyPipe()
    finished = trio.Event()

    async def copy_out() -> None:
        await gateway.call(asked, row.operation, row.params(asked), pipe.give)
        finished.set()

    async with pipe, trio.open_nursery() as nursery:
        nursery.start_soon(copy_out)
        stream = await pipe.stream()
        piece = await stream.receive_some(PIECE_BYTES)
        if not piece:
            await finished.wait()  # an empty file, or an error, which is answered instead
        query: ContentQuery = asked.query
        headers = _attached(query.filename or basename(query.path) or "content")
        await asked.send({"type": "http.response.start", "status": 200, "headers": headers})
        while piece:
            await asked.send({"type": "http.response.body", "body": bytes(piece), "more_body": True})
            piece = await stream.receive_some(PIECE_BYTES)
        await finished.wait()  # only then nothing is missing
    await asked.send({"type": "http.response.body", "body": b""})


def _attached(name: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of a file to store, whose name may hold anything (RFC 6266). No browser shows it as a page."""
    plain = "".join(char if char.isascii() and char.isprintable() and char not in '"\\%' else "_" for char in name)
    disposition = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
    return [
        (b"content-type", OCTETS.encode()),
        (b"content-disposition", disposition.encode()),
        (b"x-content-type-options", b"nosniff"),
    ]


def copy_params(asked: Asked) -> dict[str, Any]:
    """Return the parameters of the copy of a file out of a session."""
    return {"sandbox_id": asked.id, "path": asked.query.path, "as_bytes": True}


# -- artifacts --------------------------------------------------------------------------------------------------------


async def artifact(gateway: Gateway, row: Row, asked: Asked) -> None:
    """Answer an artifact's bytes."""
    given: list[int] = []

    async def give(descriptors: Sequence[int]) -> None:
        given.append(fcntl.fcntl(descriptors[0], fcntl.F_DUPFD_CLOEXEC, 0))
        await trio.lowlevel.checkpoint()

    try:
        found: Artifact = await gateway.call(asked, row.operation, {"artifact_id": asked.artifact_id}, give)
        if found.session_id != asked.id:
            message = f"session {asked.id} has no artifact {asked.artifact_id}"
            raise CallerError("not_found", message, artifact_id=asked.artifact_id)
        await while_there(asked, partial(_send_file, asked, found, given[0]))
    finally:
        for descriptor in given:
            os.close(descriptor)
    await asked.send({"type": "http.response.body", "body": b""})


async def _send_file(asked: Asked, found: Artifact, descriptor: int) -> None:
    headers = [*_attached(found.name), (b"content-length", b"%d" % found.size_bytes)]
    await asked.send({"type": "http.response.start", "status": 200, "headers": headers})
    while piece := await in_thread(os.read, descriptor, FILE_PIECE_BYTES):
        await asked.send({"type": "http.response.body", "body": piece, "more_body": True})
