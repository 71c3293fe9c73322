"""ArtifactFiles: files exported from a sandbox into the state directory, where they outlive it.

A file is kept as it is, a directory as a `.tar.gz` with the directory at its top. Both come through a pipe from a
program that runs inside as the sandbox's own user, so that a link leads to what that user may read there, and to
nothing else.
"""

import mimetypes
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import trio
from msgspec import Struct

from sandkeep.errors import CallerError, DaemonError, DataError
from sandkeep_store.archives.stores.directory import DirectoryArchives
from sandkeep_store.archives.tar.compression import Codec, compressing
from sandkeep_store.archives.tar.output import Output, OutputError
from sandkeep_store.buckets.config import Root
from sandkeep_store.threads import in_thread
from sandkeepd.keeper.copies import Form
from sandkeepd.sandboxes.files import Files, plain

ARTIFACTS: Final = "artifacts"
"""The directory of artifacts in the state directory: ``SANDBOX/ARTIFACT``."""

UNKNOWN: Final = "application/octet-stream"

Reserve = Callable[[int], None]
"""Reserves a size in all for a file that grows. Raises if there is not so much."""

_PIECE_BYTES: Final = 1 << 20
_TYPES: Final = mimetypes.MimeTypes()
"""Python's own table: that of a machine would give other types on another."""


class ExportedFile(Struct, frozen=True, kw_only=True):
    """An exported file. `filename` is its name in the sandbox, which code there chose: no path, but any characters.
    `digest` is ``sha256:…`` of its bytes.
    """

    filename: str
    content_type: str
    size_bytes: int
    digest: str


class ArtifactFiles:
    """The artifacts below a state directory. `files` copies them out of sandboxes."""

    def __init__(self, state_dir: str, files: Files) -> None:
        self._store = DirectoryArchives(Root("state", f"{state_dir}/{ARTIFACTS}"))
        self._files = files
        self._since = time.time()

    async def export(self, sandbox_id: str, artifact_id: str, path: str, *, reserve: Reserve) -> ExportedFile:
        """Keep a file or directory of a sandbox under a new id. It is on the disk when this returns; on any error
        nothing is left of it. See `Files.send` for `path`. `reserve` is given its size, piece by piece as it grows.

        Raises the errors of `Files.send` and of `reserve`, `conflict` for an id that is taken, and
        `storage_unavailable`.
        """
        try:
            return await self._export(sandbox_id, artifact_id, path, "bytes", reserve)
        except CallerError as error:
            if error.code != "invalid":
                raise
            try:
                return await self._export(sandbox_id, artifact_id, f"{path}/", "whole", reserve)
            except CallerError as other:
                raise error if other.code == "not_found" else other from None  # neither a file nor a directory

    async def _export(self, sandbox_id: str, artifact_id: str, path: str, form: Form, reserve: Reserve) -> ExportedFile:
        upload = await in_thread(self._store.create, f"{sandbox_id}/{artifact_id}")
        try:
            output = Output(upload.descriptor)
            source = await self._receive(sandbox_id, path, form, output, reserve)
            await _in_thread(output.finish)
            await in_thread(upload.finish)
        finally:
            with trio.CancelScope(shield=True):
                await in_thread(upload.abort)
        name = plain(os.path.basename(source))
        return ExportedFile(
            filename=name if form == "bytes" else f"{name}.tar.gz",
            content_type=_type_of(name) if form == "bytes" else "application/gzip",
            size_bytes=output.size_bytes,
            digest=f"sha256:{output.sha256}",
        )

    async def _receive(self, sandbox_id: str, path: str, form: Form, output: Output, reserve: Reserve) -> str:
        """Write what the sandbox sends; return the path of its source inside."""
        codec: Codec = "none" if form == "bytes" else "gzip"
        async with self._files.send(sandbox_id, path, form=form) as outgoing:
            descriptor = outgoing.take_data()
            os.set_blocking(descriptor, False)
            async with trio.lowlevel.FdStream(descriptor) as pipe:
                with ExitStack() as ending:
                    compressor = ending.enter_context(compressing(output, codec))
                    # Piece by piece: a thread that waited for the sandbox would be one less for all others.
                    while data := await pipe.receive_some(_PIECE_BYTES):
                        await _in_thread(compressor.write, memoryview(data))
                        reserve(output.size_bytes)
                    await _in_thread(ending.close)
                    reserve(output.size_bytes)  # the compressor held some back
            return (await outgoing.result()).path

    def open(self, sandbox_id: str, artifact_id: str) -> int:
        """Open an artifact for reading; the caller closes it. Blocks. Raises `not_found`."""
        try:
            return self._store.open_file(f"{sandbox_id}/{artifact_id}")
        except DataError:
            message = f"the file of artifact {artifact_id} is gone: export it again"
            raise CallerError("not_found", message, artifact_id=artifact_id) from None

    def remove(self, sandbox_id: str, artifact_id: str) -> None:
        """Remove an artifact. Safe to repeat. Blocks."""
        self._store.delete(f"{sandbox_id}/{artifact_id}")

    async def sweep(self) -> None:
        """Remove what an earlier daemon left unfinished."""
        await in_thread(self._store.sweep, time.time() - self._since)


async def _in_thread(work: Callable[..., object], *args: object) -> None:
    """Run a piece of blocking work. Raises `storage_unavailable`."""
    try:
        await in_thread(work, *args)
    except OutputError as error:
        message = f"the artifact cannot be written: {error.strerror}: make room in the state directory"
        raise DaemonError("storage_unavailable", message) from None


def _type_of(name: str) -> str:
    kind, encoding = _TYPES.guess_type(name)
    if encoding is not None:  # a.tar.gz is no tar before it is unpacked
        return "application/gzip" if encoding == "gzip" else UNKNOWN
    return kind or UNKNOWN
